"""Connections to other replicas: one for fetches, which wait long, and one for all else.

Versions are asked for first, on each connection anew: who listens there may have changed.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

import structlog

from rlmm_daemon.adapters.quorum import wire, wire_answers
from rlmm_daemon.adapters.quorum.handshake import Dialer, Stream, Unproven
from rlmm_daemon.adapters.quorum.wire import Group
from rlmm_daemon.codec.kraft import apis, headers
from rlmm_daemon.codec.kraft.schema import Api, Message
from rlmm_daemon.core.raft.messages import (
    Answer,
    Code,
    FetchRequest,
    FetchSnapshotRequest,
    Request,
    VoteRequest,
    answer_to,
)
from rlmm_daemon.core.raft.voters import NO_DIRECTORY, Endpoint, ReplicaKey
from rlmm_daemon.domain.errors import ConfigError, LogCorrupt, Malformed

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class _Place(NamedTuple):
    """Where a connection leads, to which replica (None: any), and whether for what takes long."""

    host: str
    port: int
    expected: int | None
    waits: bool


CLIENT: Final = "rlmm-quorum"
_KRAFT_VERSION: Final = "kraft.version"
#: Idle connections are kept to so many addresses; more are closed, the oldest first.
_KEPT_MAX: Final = 32


class Unreachable(Exception):
    """Nobody answered; `refused`: where a connection had been, nobody listens any more.

    `unproven`: whoever is there is not the one that was meant.
    """

    def __init__(self, why: str, *, refused: bool = False, unproven: bool = False) -> None:
        """Say why."""
        super().__init__(why)
        self.refused = refused
        self.unproven = unproven


class Link:
    """One connection, and the versions that the other end speaks; one request at a time."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._correlation = 0
        self._spoken: Mapping[int, tuple[int, int]] = MappingProxyType({})
        self.kraft_versions = (0, 0)

    async def greet(self) -> None:
        """Ask which versions are spoken."""
        said = {"ClientSoftwareName": "rlmm-daemon", "ClientSoftwareVersion": "0"}
        version = apis.API_VERSIONS.last
        body = await self.exchange(apis.API_VERSIONS, version, said)
        told = apis.API_VERSIONS.read_answer(version, body)
        if told["ErrorCode"]:
            raise Malformed(f"ApiVersions was answered with error {told['ErrorCode']}")
        self._spoken = {
            each["ApiKey"]: (each["MinVersion"], each["MaxVersion"]) for each in told["ApiKeys"]
        }
        for each in told["SupportedFeatures"]:
            if each["Name"] == _KRAFT_VERSION:
                self.kraft_versions = (each["MinVersion"], each["MaxVersion"])

    def version_of(self, api: Api) -> int | None:
        """Return the newest version that both speak."""
        least, most = self._spoken.get(api.key, (0, -1))
        newest = min(most, api.last)
        return newest if newest >= max(least, api.first) else None

    async def exchange(self, api: Api, version: int, message: Message) -> bytes:
        """Send a request and return its answer's body."""
        self._correlation = correlation = self._correlation + 1 & 0x7FFFFFFF
        body = api.pack_request(version, message)
        self._stream.writer.write(
            headers.pack_request(api, version, correlation, body, client=CLIENT)
        )
        await self._stream.writer.drain()
        frame = await self._stream.frame(headers.FRAME_BYTES_MAX)
        return headers.read_answer(api, version, correlation, frame)

    def close(self) -> None:
        """Give the connection back: nobody waits until TLS took leave, too."""
        self._stream.abort()


class Links:
    """All connections of one replica to others."""

    def __init__(self, group: Group, dialer: Dialer, *, timeout_seconds: float) -> None:
        self.group = group
        self._dialer = dialer
        self._timeout_seconds = timeout_seconds
        self._idle: OrderedDict[_Place, Link] = OrderedDict()
        #: Where somebody answered since nobody last listened there.
        self._met: set[tuple[str, int]] = set()

    async def ask(
        self, request: Request, endpoints: Sequence[Endpoint], to: int | None = None
    ) -> Answer:
        """Return the answer of the replica with this id; None: of any.

        Raises:
            Unreachable: there is none.
        """
        api = wire.api_of(request)

        async def exchange(link: Link) -> Answer:
            version = link.version_of(api)
            if version is None or _would_be_a_vote(request, version):
                epoch = getattr(request, "epoch", 0)
                return answer_to(request)(error=Code.UNSUPPORTED_VERSION, epoch=epoch)
            message = wire.request_message(self.group, request)
            body = await link.exchange(api, version, message)
            return wire_answers.read_answer(self.group, request, version, body)

        waits = isinstance(request, FetchRequest | FetchSnapshotRequest)
        return await self._over(endpoints, exchange, to, waits=waits)

    async def call(
        self, api: Api, message: Message, endpoints: Sequence[Endpoint], to: int
    ) -> Message:
        """Return a replica's answer to what is no replica's request.

        It may be sent twice, where the connection that was kept turns out to be lost.

        Raises:
            Unreachable: there is none; the request may have taken effect.
        """

        async def exchange(link: Link) -> Message:
            version = link.version_of(api)
            if version is None:
                raise Malformed(f"replica {to} does not speak {api.name}")
            return api.read_answer(version, await link.exchange(api, version, message))

        return await self._over(endpoints, exchange, to)

    async def versions(self, endpoints: Sequence[Endpoint], to: int) -> tuple[int, int]:
        """Return the kraft.versions that a replica bears, as it says now.

        Raises:
            Unreachable: it does not answer.
        """

        async def told(link: Link) -> tuple[int, int]:
            await link.greet()
            return link.kraft_versions

        return await self._over(endpoints, told, to)

    async def voters(self, endpoints: Sequence[Endpoint], to: int) -> frozenset[ReplicaKey] | None:
        """Return whom a replica counts, if it leads.

        Raises:
            Unreachable: it does not answer.
        """
        partition = {"PartitionIndex": 0}
        asked = {"Topics": ({"TopicName": self.group.topic, "Partitions": (partition,)},)}

        async def told(link: Link) -> frozenset[ReplicaKey] | None:
            version = link.version_of(apis.DESCRIBE_QUORUM)
            if version is None:
                return None
            body = await link.exchange(apis.DESCRIBE_QUORUM, version, asked)
            message = apis.DESCRIBE_QUORUM.read_answer(version, body)
            if message["ErrorCode"]:
                return None
            partition = wire_answers.only_partition(message)
            if partition["ErrorCode"]:
                return None
            return frozenset(
                ReplicaKey(each["ReplicaId"], each.get("ReplicaDirectoryId", NO_DIRECTORY))
                for each in partition["CurrentVoters"]
            )

        return await self._over(endpoints, told, to)

    async def _over(
        self,
        endpoints: Sequence[Endpoint],
        exchange: Callable[[Link], Awaitable[T]],
        to: int | None,
        *,
        waits: bool = False,
    ) -> T:
        """Return what comes of an exchange; one that a kept connection lost is begun anew.

        `waits`: over the connection for what takes long.
        """
        at = _of_listener(endpoints, self.group.listener)
        place = _Place(at.host, at.port, to, waits)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                kept = self._idle.pop(place, None)
                if kept is not None:
                    with contextlib.suppress(ConnectionError, EOFError):
                        return await self._on(kept, place, exchange)
                return await self._on(await self._dial(at, to), place, exchange)
        except TimeoutError as error:
            raise Unreachable(f"{at.host}:{at.port}: no answer in time") from error
        except ConnectionRefusedError as error:
            met = (at.host, at.port) in self._met
            self._met.discard((at.host, at.port))
            raise Unreachable(f"{at.host}:{at.port}: nobody listens", refused=met) from error
        except Unproven as error:
            raise Unreachable(f"{at.host}:{at.port}: {error}", unproven=True) from error
        except (OSError, EOFError, Malformed, LogCorrupt, ConfigError) as error:
            raise Unreachable(f"{at.host}:{at.port}: {error}") from error
        except Exception as error:
            # Whoever waits for an answer that never comes asks nobody else.
            _log.exception("a request to a replica met a defect", replica=to)
            raise Unreachable(f"{at.host}:{at.port}: a defect here: {error!r}") from error

    async def _on(self, link: Link, place: _Place, exchange: Callable[[Link], Awaitable[T]]) -> T:
        try:
            result = await exchange(link)
        except BaseException:
            link.close()
            raise
        self._keep(place, link)
        return result

    async def _dial(self, at: Endpoint, to: int | None) -> Link:
        link = Link(await self._dialer.dial(at, to))
        try:
            await link.greet()
        except BaseException:
            link.close()
            raise
        self._met.add((at.host, at.port))
        return link

    def _keep(self, place: _Place, link: Link) -> None:
        other = self._idle.pop(place, None)
        if other is not None:
            other.close()
        self._idle[place] = link
        while len(self._idle) > _KEPT_MAX:
            _, oldest = self._idle.popitem(last=False)
            oldest.close()

    def close(self) -> None:
        """Give all of them back."""
        for link in self._idle.values():
            link.close()
        self._idle.clear()


def _would_be_a_vote(request: Request, version: int) -> bool:
    """Whether a pre-vote would be taken for a vote: it came with version 2 (KIP-996)."""
    return isinstance(request, VoteRequest) and request.pre_vote and version < apis.VOTE.last


def _of_listener(endpoints: Sequence[Endpoint], listener: str) -> Endpoint:
    if not endpoints:
        raise Unreachable("its address is not known")
    return next((each for each in endpoints if each.name == listener), endpoints[0])
