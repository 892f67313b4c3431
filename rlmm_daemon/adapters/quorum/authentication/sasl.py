"""SASL of a quorum's connections, on top of plaintext on loopback or of TLS.

Where TLS has proven a replica already, both have to name the same one.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from rlmm_daemon.adapters.quorum.authentication.mechanisms import (
    Believer,
    NotProven,
    Proven,
    Speaker,
)
from rlmm_daemon.adapters.quorum.handshake import Acceptor, Dialer, Stream, Unproven
from rlmm_daemon.adapters.quorum.links import Link
from rlmm_daemon.adapters.quorum.listener import spoken_here
from rlmm_daemon.codec.kraft import apis, headers
from rlmm_daemon.codec.kraft.headers import RequestHead
from rlmm_daemon.codec.kraft.schema import Message
from rlmm_daemon.core.raft.voters import Endpoint

_FRAME_BYTES_MAX: Final = 1 << 14
_UNSUPPORTED_MECHANISM: Final = 33
_AUTHENTICATION_FAILED: Final = 58
#: A client may ask for versions, and for another mechanism first.
_STEPS_MAX: Final = 8


class SaslAcceptor:
    """Has clients prove who they are by one of some mechanisms."""

    def __init__(
        self,
        under: Acceptor,
        believers: Sequence[Believer],
        now_ms: Callable[[], int],
        voter_changers: frozenset[str] = frozenset(),
    ) -> None:
        """`now_ms` is the time of day, by which proofs expire."""
        self._under = under
        self._believers = {each.mechanism: each for each in believers}
        self._voter_changers = voter_changers
        self._now_ms = now_ms

    def check(self, host: str) -> None:
        """Refuse what the step below refuses there: ConfigError."""
        self._under.check(host)

    async def accept(self, connection: socket.socket) -> Stream:
        """Return the stream of a member; errors as of `Acceptor`."""
        stream = await self._under.accept(connection)
        try:
            proven = await self._proven(stream)
            member, below = proven.member, stream.peer.id
            if below is not None and below != member.node:
                raise Unproven(f"{member} came over the connection of replica {below}")
        except BaseException:
            stream.abort()
            raise
        peer, until = member.peer(self._voter_changers), self._until(proven)
        return msgspec.structs.replace(stream, peer=peer, until=until)

    def _until(self, proven: Proven) -> float | None:
        """Return when the proof ends, by the loop's clock."""
        if proven.expires_at is None:
            return None
        return asyncio.get_running_loop().time() + proven.expires_at - self._now_ms() / 1000

    async def _proven(self, stream: Stream) -> Proven:
        believer = await self._chosen(stream)
        head, token = await self._token(stream)

        async def ask(challenge: bytes) -> bytes:
            nonlocal head
            await _answer(stream, head, {"AuthBytes": challenge})
            head, answered = await self._token(stream)
            return answered

        try:
            proven = await believer.proven(token, ask)
        except NotProven as error:
            # What it was is for this side's log alone.
            said = {"ErrorCode": _AUTHENTICATION_FAILED, "ErrorMessage": "authentication failed"}
            await _answer(stream, head, said)
            raise Unproven(f"SASL authentication by {believer.mechanism} failed: {error}") from None
        await _answer(stream, head, {"AuthBytes": proven.verdict})
        return proven

    async def _chosen(self, stream: Stream) -> Believer:
        for _ in range(_STEPS_MAX):
            head = await _asked(stream)
            message = head.api.read_request(head.version, head.body)
            if head.api is apis.API_VERSIONS:
                await _answer(stream, head, spoken_here())
            elif head.api is apis.SASL_HANDSHAKE:
                believer = self._believers.get(message["Mechanism"])
                error = 0 if believer is not None else _UNSUPPORTED_MECHANISM
                said = {"ErrorCode": error, "Mechanisms": tuple(self._believers)}
                await _answer(stream, head, said)
                if believer is not None:
                    return believer
            else:
                raise Unproven(f"{head.api.name} came before SASL")
        raise Unproven("no SASL handshake came")

    async def _token(self, stream: Stream) -> tuple[RequestHead, bytes]:
        head = await _asked(stream)
        if head.api is not apis.SASL_AUTHENTICATE:
            raise Unproven(f"{head.api.name} came within SASL")
        token: bytes = head.api.read_request(head.version, head.body)["AuthBytes"]
        return head, token


class SaslDialer:
    """Proves who this is by one mechanism."""

    def __init__(self, under: Dialer, speaker: Speaker) -> None:
        self._under = under
        self._speaker = speaker

    async def dial(self, endpoint: Endpoint, expected: int | None = None) -> Stream:
        """Connect, and have each side prove what its mechanism asks; errors as of `Dialer`."""
        stream = await self._under.dial(endpoint, expected)
        try:
            await self._prove(stream)
        except BaseException:
            stream.abort()
            raise
        return stream

    async def _prove(self, stream: Stream) -> None:
        link = Link(stream)
        asked = {"Mechanism": self._speaker.mechanism}
        body = await link.exchange(apis.SASL_HANDSHAKE, apis.SASL_HANDSHAKE.last, asked)
        told = apis.SASL_HANDSHAKE.read_answer(apis.SASL_HANDSHAKE.last, body)
        if told["ErrorCode"]:
            raise Unproven(f"{self._speaker.mechanism} is not spoken there")

        async def ask(token: bytes) -> bytes:
            return await self._step(link, token)

        try:
            await self._speaker.prove(ask)
        except NotProven as error:
            raise Unproven(f"SASL: {error}") from None

    async def _step(self, link: Link, token: bytes) -> bytes:
        api = apis.SASL_AUTHENTICATE
        body = await link.exchange(api, api.last, {"AuthBytes": token})
        told = api.read_answer(api.last, body)
        if told["ErrorCode"]:
            raise Unproven(f"this one was not believed: {self._speaker.refused}")
        answer: bytes = told["AuthBytes"]
        return answer


async def _asked(stream: Stream) -> RequestHead:
    return headers.read_request(await stream.frame(_FRAME_BYTES_MAX))


async def _answer(stream: Stream, head: RequestHead, message: Message) -> None:
    body = head.api.pack_answer(head.version, message)
    stream.writer.write(headers.pack_answer(head.api, head.version, head.correlation, body))
    await stream.writer.drain()
