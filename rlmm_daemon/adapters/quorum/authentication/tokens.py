"""OAUTHBEARER (RFC 7628, KIP-255): tokens that an identity provider signed.

They are checked against the provider's public keys in a file, without a question to the provider:
a quorum serves while the provider is away. A token says nothing of who the server is, so that the
connection under it has to be TLS, or on loopback.
"""

import asyncio
import importlib
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from rlmm_daemon.adapters.quorum.authentication.mechanisms import NotProven, Proven, Step
from rlmm_daemon.adapters.quorum.authentication.principals import (
    SCHEME,
    NoPrincipal,
    read_member,
)
from rlmm_daemon.adapters.quorum.authentication.watched import Watched
from rlmm_daemon.domain.errors import ConfigError

MECHANISM: Final = "OAUTHBEARER"
#: Signed by a key that is nobody's secret here: never with a shared one, never unsigned.
ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "EdDSA",
)
#: Clocks of the provider and ours may differ so much.
_LEEWAY_SECONDS: Final = 30.0
_KEYS_BYTES_MAX: Final = 1 << 20
#: With the rest of its frame below what a server takes before a proof.
TOKEN_BYTES_MAX: Final = 12 << 10
_SIGNED: Final = r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+"
_FIRST: Final = re.compile(
    rf"n,(?:a=[^,\x01]{{0,200}})?,\x01(?:[A-Za-z]+=[^\x01]*\x01)*?"
    rf"auth=[Bb]earer ({_SIGNED})\x01(?:[A-Za-z]+=[^\x01]*\x01)*\x01"
)


class TokenOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Whose tokens are believed."""

    cluster_id: str
    #: The provider's public keys, a JWKS (RFC 7517).
    keys_file: str
    #: Claims `iss` and `aud`; a token for another service proves nothing here.
    issuer: str
    audience: str


class Tokens:
    """Those who show a token; its subject is a member's name, with or without the quorum's."""

    mechanism = MECHANISM

    def __init__(self, options: TokenOptions, now: Callable[[], float] = time.monotonic) -> None:
        """Read the keys.

        Raises:
            ConfigError: there are none, or what checks signatures is not installed.
        """
        self._options = options
        self._jwt = _library()
        load = partial(_read_keys, self._jwt, options.keys_file)
        self._keys = Watched((options.keys_file,), load, now)

    async def proven(self, first: bytes, ask: Step) -> Proven:  # noqa: ARG002 - one token is all
        """Return the member whom the token names."""
        found = _FIRST.fullmatch(first.decode("latin-1"))
        if found is None:
            raise NotProven("no token")
        claims = self._claims(found[1], await self._keys.current())
        subject = str(claims["sub"]).removeprefix(f"{SCHEME}{self._options.cluster_id}/")
        try:
            member = read_member(subject)
        except NoPrincipal as error:
            raise NotProven(f"the token's subject: {error}") from None
        return Proven(member=member, expires_at=float(claims["exp"]) + _LEEWAY_SECONDS)

    def _claims(self, token: str, keys: Mapping[str | None, Any]) -> Mapping[str, Any]:
        jwt = self._jwt
        try:
            name = jwt.get_unverified_header(token).get("kid")
            key = keys.get(name)
            if key is None:
                raise NotProven("a token of a key that is not the provider's")
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                issuer=self._options.issuer,
                audience=self._options.audience,
                leeway=_LEEWAY_SECONDS,
                options={"require": ["exp", "sub", "iss", "aud"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            # Its words are of the token's form and claims, never of the token itself.
            raise NotProven(f"the token: {type(error).__name__}") from None
        return claims


class TokenFile:
    """One's own token, read anew for each connection, as others put newer ones in its place."""

    mechanism = MECHANISM
    refused = "its token is not the provider's, not for this quorum, or expired"

    def __init__(self, path: str) -> None:
        self._path = path

    async def prove(self, ask: Step) -> None:
        """Show it."""
        token = await asyncio.to_thread(read_token, self._path)
        await ask(f"n,,\x01auth=Bearer {token}\x01\x01".encode())


def read_token(path: str) -> str:
    """Return the token that a file holds.

    Raises:
        OSError: it can't be read.
        ConfigError: it holds none; nothing of what it holds is said.
    """
    with Path(path).open("rb") as file:
        text = file.read(TOKEN_BYTES_MAX + 1)
    token = text.strip().decode("latin-1")
    if len(text) > TOKEN_BYTES_MAX or re.fullmatch(_SIGNED, token) is None:
        raise ConfigError(f"{path} holds no signed token (three parts between dots)")
    return token


def _library() -> Any:
    try:
        jwt = importlib.import_module("jwt")
        importlib.import_module("cryptography")
    except ImportError:
        raise ConfigError(
            "tokens need PyJWT and cryptography: install rlmm-daemon[oauth]"
        ) from None
    return jwt


def _read_keys(jwt: Any, path: str) -> Mapping[str | None, Any]:
    """Return the keys by their ids; a single one is that of tokens that name none, too."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(_KEYS_BYTES_MAX + 1)
        if len(text) > _KEYS_BYTES_MAX:
            raise ConfigError(f"{path} is larger than {_KEYS_BYTES_MAX} bytes")
        found = jwt.PyJWKSet.from_dict(msgspec.json.decode(text, type=dict[str, Any])).keys
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from None
    except (msgspec.DecodeError, jwt.PyJWTError, AttributeError, TypeError, ValueError):
        raise ConfigError(f"{path} is no set of public keys (JWKS)") from None
    usable = [key for key in found if key.key_type != "oct"]
    if not usable:
        raise ConfigError(f"{path} holds no public key")
    keys: dict[str | None, Any] = {key.key_id: key for key in usable if key.key_id is not None}
    if len(usable) == 1:
        keys[None] = usable[0]
    return keys
