"""SASL of a quorum's connections, on top of plaintext on loopback or of TLS: SCRAM-SHA-256.

A user's name is the last part of a member's: a node's id, or `operator/<name>`. Where TLS has
proven a replica already, both have to name the same one.
"""

import asyncio
import hmac
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from rlmm_daemon.adapters.quorum.authentication import scram
from rlmm_daemon.adapters.quorum.authentication.principals import (
    NoPrincipal,
    Principal,
    read_member,
)
from rlmm_daemon.adapters.quorum.authentication.scram import NotProven, Verifier
from rlmm_daemon.adapters.quorum.authentication.watched import Watched
from rlmm_daemon.adapters.quorum.handshake import Acceptor, Dialer, Stream, Unproven
from rlmm_daemon.adapters.quorum.links import Link
from rlmm_daemon.adapters.quorum.listener import spoken_here
from rlmm_daemon.codec.kraft import apis, headers
from rlmm_daemon.codec.kraft.headers import RequestHead
from rlmm_daemon.codec.kraft.schema import Message
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.domain.secret import Secret

_FRAME_BYTES_MAX: Final = 1 << 14
_UNSUPPORTED_MECHANISM: Final = 33
_AUTHENTICATION_FAILED: Final = 58
#: A client may ask for versions, and for another mechanism first.
_STEPS_MAX: Final = 8
_USERS_BYTES_MAX: Final = 1 << 20


class SaslAcceptor:
    """Has clients prove who they are by a password that is kept as a verifier."""

    def __init__(
        self,
        under: Acceptor,
        users_file: str,
        voter_changers: frozenset[str] = frozenset(),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the users, one a line: `<node id>` or `operator/<name>`, a space, the verifier.

        Raises:
            ConfigError: the file can't be read, or holds something else.
        """
        self._under = under
        self._voter_changers = voter_changers
        self._users = Watched((users_file,), partial(read_users, users_file), now)
        #: So that a user who is not there looks like one who is.
        self._secret = secrets.token_bytes(32)

    def check(self, host: str) -> None:
        """Refuse what the step below refuses there: ConfigError."""
        self._under.check(host)

    async def accept(self, connection: socket.socket) -> Stream:
        """Return the stream of a member; errors as of `Acceptor`."""
        stream = await self._under.accept(connection)
        try:
            member = await self._proven(stream)
            below = stream.peer.id
            if below is not None and below != member.node:
                raise Unproven(f"{member} came over the connection of replica {below}")
        except BaseException:
            stream.abort()
            raise
        return msgspec.structs.replace(stream, peer=member.peer(self._voter_changers))

    async def _proven(self, stream: Stream) -> Principal:
        await self._until_handshake(stream)
        users = await self._users.current()
        head, token = await self._token(stream)
        try:
            server = scram.Server(token)
            kept = users.get(server.user)
            await _answer(
                stream, head, {"AuthBytes": server.challenge(kept or self._nobody(server.user))}
            )
            head, token = await self._token(stream)
            verdict = server.verdict(token)
            if kept is None:
                raise NotProven("a user who is not there")
        except NotProven:
            said = {"ErrorCode": _AUTHENTICATION_FAILED, "ErrorMessage": "authentication failed"}
            await _answer(stream, head, said)
            raise Unproven("SASL authentication failed: a wrong user or password") from None
        await _answer(stream, head, {"AuthBytes": verdict})
        return read_member(server.user)

    async def _until_handshake(self, stream: Stream) -> None:
        for _ in range(_STEPS_MAX):
            head = await _asked(stream)
            message = head.api.read_request(head.version, head.body)
            if head.api is apis.API_VERSIONS:
                await _answer(stream, head, spoken_here())
            elif head.api is apis.SASL_HANDSHAKE:
                known = message["Mechanism"] == scram.MECHANISM
                error = 0 if known else _UNSUPPORTED_MECHANISM
                said = {"ErrorCode": error, "Mechanisms": (scram.MECHANISM,)}
                await _answer(stream, head, said)
                if known:
                    return
            else:
                raise Unproven(f"{head.api.name} came before SASL")
        raise Unproven("no SASL handshake came")

    async def _token(self, stream: Stream) -> tuple[RequestHead, bytes]:
        head = await _asked(stream)
        if head.api is not apis.SASL_AUTHENTICATE:
            raise Unproven(f"{head.api.name} came within SASL")
        token: bytes = head.api.read_request(head.version, head.body)["AuthBytes"]
        return head, token

    def _nobody(self, user: str) -> Verifier:
        salt = hmac.digest(self._secret, user.encode(), "sha256")
        return Verifier(salt[:16], scram.ITERATIONS, secrets.token_bytes(32), bytes(32))


class SaslDialer:
    """Proves who this is by a password."""

    def __init__(self, under: Dialer, member: Principal, password: Secret) -> None:
        self._under = under
        self._member = member
        self._password = password

    async def dial(self, endpoint: Endpoint, expected: int | None = None) -> Stream:
        """Connect, and have each side prove that it knows the password; errors as of `Dialer`."""
        stream = await self._under.dial(endpoint, expected)
        try:
            await self._prove(stream)
        except BaseException:
            stream.abort()
            raise
        return stream

    async def _prove(self, stream: Stream) -> None:
        link = Link(stream)
        asked = {"Mechanism": scram.MECHANISM}
        body = await link.exchange(apis.SASL_HANDSHAKE, apis.SASL_HANDSHAKE.last, asked)
        told = apis.SASL_HANDSHAKE.read_answer(apis.SASL_HANDSHAKE.last, body)
        if told["ErrorCode"]:
            raise Unproven(f"{scram.MECHANISM} is not spoken there")
        client = scram.Client(f"{self._member}", self._password.reveal())
        try:
            challenge = await self._step(link, client.first)
            proof = await asyncio.to_thread(client.proof, challenge)
            client.check(await self._step(link, proof))
        except NotProven as error:
            raise Unproven(f"SASL: {error}") from None

    async def _step(self, link: Link, token: bytes) -> bytes:
        api = apis.SASL_AUTHENTICATE
        body = await link.exchange(api, api.last, {"AuthBytes": token})
        told = api.read_answer(api.last, body)
        if told["ErrorCode"]:
            raise Unproven(f"{self._member} was not believed: a wrong user or password")
        answer: bytes = told["AuthBytes"]
        return answer


async def _asked(stream: Stream) -> RequestHead:
    return headers.read_request(await stream.frame(_FRAME_BYTES_MAX))


async def _answer(stream: Stream, head: RequestHead, message: Message) -> None:
    body = head.api.pack_answer(head.version, message)
    stream.writer.write(headers.pack_answer(head.api, head.version, head.correlation, body))
    await stream.writer.drain()


def read_users(path: str) -> Mapping[str, Verifier]:
    """Return the users of a file; ConfigError names a line, and shows nothing of it."""
    try:
        with Path(path).open(encoding="ascii") as file:
            text = file.read(_USERS_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not plain text"
        raise ConfigError(f"{path} can't be read: {why}") from None
    if len(text) > _USERS_BYTES_MAX:
        raise ConfigError(f"{path} is larger than {_USERS_BYTES_MAX} bytes")
    users: dict[str, Verifier] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, _, kept = line.strip().partition(" ")
        try:
            known = f"{read_member(user)}"
            if known in users:
                raise NotProven("twice")
            users[known] = scram.decode(kept.strip())
        except (NoPrincipal, NotProven):
            raise ConfigError(f"{path}, line {number}: no member with a verifier") from None
    return users
