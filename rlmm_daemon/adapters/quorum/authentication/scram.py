"""SCRAM-SHA-256 (RFC 5802, 7677), both sides, as steps from message to message.

No channel binding: under it, TLS has proven the server. What the server keeps of a password proves
nobody to another server.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from typing import Final

import msgspec

from rlmm_daemon.adapters.quorum.authentication.mechanisms import NotProven

MECHANISM: Final = "SCRAM-SHA-256"
ITERATIONS: Final = 8192
#: Fewer make a password easy to guess; more would keep a processor busy for a server's joke.
_ITERATIONS_MIN: Final = 4096
_ITERATIONS_MAX: Final = 1 << 17
_SALT_BYTES: Final = 16
_KEY_BYTES: Final = hashlib.sha256().digest_size
_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]{8,256}"
_FIRST: Final = re.compile(rf"n,,(n=([^,=]{{1,200}}),r=({_NONCE})(?:,[ -~]*)?)")
_CHALLENGE: Final = re.compile(rf"r=({_NONCE}),s=([A-Za-z0-9+/=]{{1,200}}),i=([0-9]{{1,9}})")
_PROOF: Final = re.compile(rf"(c=biws,r=({_NONCE})),p=([A-Za-z0-9+/=]{{1,200}})")
_VERDICT: Final = re.compile(r"v=([A-Za-z0-9+/=]{1,200})")


class Verifier(msgspec.Struct, frozen=True):
    """What a server keeps of a password: enough to check a proof, not to give one."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return "Verifier(...)"


def verifier(password: str, *, salt: bytes | None = None, iterations: int = ITERATIONS) -> Verifier:
    """Return what to keep of a password; takes some milliseconds."""
    salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    stored = hashlib.sha256(_hmac(salted, b"Client Key")).digest()
    return Verifier(salt, iterations, stored, _hmac(salted, b"Server Key"))


def encode(kept: Verifier) -> str:
    """Return it in the form that PostgreSQL has for it."""
    salt, stored, server = map(_b64, (kept.salt, kept.stored_key, kept.server_key))
    return f"{MECHANISM}${kept.iterations}:{salt}${stored}:{server}"


def decode(text: str) -> Verifier:
    """Return what `encode` wrote; NotProven: it is none."""
    found = re.fullmatch(rf"{MECHANISM}\$([0-9]{{1,9}}):([^$:]+)\$([^$:]+):([^$:]+)", text)
    if found is None or not _ITERATIONS_MIN <= int(found[1]) <= _ITERATIONS_MAX:
        raise NotProven("no verifier")
    kept = Verifier(_unb64(found[2]), int(found[1]), _unb64(found[3]), _unb64(found[4]))
    if not len(kept.stored_key) == len(kept.server_key) == _KEY_BYTES:
        raise NotProven("no verifier")
    return kept


class Server:
    """A server's side of one exchange: `user`, then `challenge`, then `verdict`."""

    def __init__(self, first: bytes, nonce: str | None = None) -> None:
        """Take the client's first message.

        Raises:
            NotProven: it is none.
        """
        found = _matched(_FIRST, first)
        self.user = found[2]
        self._client_first = found[1]
        self._nonce = found[3] + (secrets.token_urlsafe(18) if nonce is None else nonce)
        self._said = ""

    def challenge(self, kept: Verifier) -> bytes:
        """Return the answer to the first message."""
        self._kept = kept
        self._said = f"r={self._nonce},s={_b64(kept.salt)},i={kept.iterations}"
        return self._said.encode()

    def verdict(self, final: bytes) -> bytes:
        """Return the answer to the client's proof; NotProven: it is none."""
        found = _matched(_PROOF, final)
        message = f"{self._client_first},{self._said},{found[1]}".encode()
        proof = _unb64(found[3])
        signature = _hmac(self._kept.stored_key, message)
        if len(proof) != len(signature):
            raise NotProven("a proof of another size")
        stored = hashlib.sha256(_xor(proof, signature)).digest()
        known = hmac.compare_digest(stored, self._kept.stored_key)
        if found[2] != self._nonce or not known:
            raise NotProven("a wrong password")
        return b"v=" + _b64(_hmac(self._kept.server_key, message)).encode()


class Client:
    """A client's side of one exchange: `first`, then `proof`, then `check`."""

    def __init__(
        self, user: str, password: str, nonce: str | None = None, *, digest: str = "sha256"
    ) -> None:
        """`digest`: of Kafka's brokers and controllers, which speak SCRAM-SHA-512 too."""
        self._digest = digest
        self._nonce = secrets.token_urlsafe(18) if nonce is None else nonce
        self._password = password
        self._bare = f"n={user},r={self._nonce}"
        self._expected = b""

    @property
    def first(self) -> bytes:
        """The first message."""
        return f"n,,{self._bare}".encode()

    def proof(self, challenge: bytes) -> bytes:
        """Return the proof for a challenge; takes some milliseconds.

        Raises:
            NotProven: it is none of a server that has read the first message.
        """
        found = _matched(_CHALLENGE, challenge)
        iterations = int(found[3])
        if not found[1].startswith(self._nonce) or found[1] == self._nonce:
            raise NotProven("a challenge for somebody else")
        if not _ITERATIONS_MIN <= iterations <= _ITERATIONS_MAX:
            raise NotProven(f"a challenge of {iterations} iterations")
        salted = hashlib.pbkdf2_hmac(
            self._digest, self._password.encode(), _unb64(found[2]), iterations
        )
        unproven = f"c=biws,r={found[1]}"
        message = f"{self._bare},{challenge.decode()},{unproven}".encode()
        key = self._hmac(salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._digest, key).digest(), message)
        self._expected = self._hmac(self._hmac(salted, b"Server Key"), message)
        return f"{unproven},p={_b64(_xor(key, signature))}".encode()

    def check(self, verdict: bytes) -> None:
        """Take the server's last message; NotProven: it does not know the password either."""
        found = _matched(_VERDICT, verdict)
        if not self._expected or not hmac.compare_digest(_unb64(found[1]), self._expected):
            raise NotProven("a server that does not know the password")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._digest)


def _matched(form: re.Pattern[str], message: bytes) -> re.Match[str]:
    found = form.fullmatch(message.decode("latin-1"))
    if found is None:
        raise NotProven("no message of SCRAM")
    return found


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _unb64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise NotProven("no base64") from None
