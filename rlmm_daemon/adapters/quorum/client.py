"""An operator's or a submitter's side of a quorum: it finds the leader, and asks it.

Every call ends within its time: what could not be answered by then says whom it asked last, and
what that one said. A change whose answer was lost is not asked for again by itself.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from rlmm_daemon.adapters.quorum import wire
from rlmm_daemon.adapters.quorum.handshake import Dialer
from rlmm_daemon.adapters.quorum.links import Link
from rlmm_daemon.adapters.quorum.submitting import Record
from rlmm_daemon.adapters.quorum.wire import Group
from rlmm_daemon.codec.kraft import apis
from rlmm_daemon.codec.kraft.schema import Api, Message
from rlmm_daemon.core.raft.messages import (
    AddVoterRequest,
    Code,
    RemoveVoterRequest,
)
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter
from rlmm_daemon.domain.errors import (
    InvalidArgument,
    Malformed,
    OutcomeUnknown,
    StorageUnavailable,
)

_PAUSE_SECONDS: Final = 0.05


class ReplicaState(msgspec.Struct, frozen=True):
    """How far a replica has the leader's log."""

    key: ReplicaKey
    #: Before it all is on that replica's disk; -1 where the leader never heard of it.
    end: int
    #: In ms since 1970; -1: never.
    fetched_at_ms: int
    caught_up_at_ms: int


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """A quorum as its leader sees it."""

    leader: int
    epoch: int
    #: -1 until the first record of this epoch is committed.
    high_watermark: int
    voters: tuple[ReplicaState, ...]
    observers: tuple[ReplicaState, ...]
    #: Where voters listen.
    endpoints: dict[int, tuple[Endpoint, ...]]


class QuorumClient:
    """Asks a quorum through any of some servers."""

    def __init__(
        self,
        group: Group,
        dialer: Dialer,
        bootstrap: Sequence[Endpoint],
        *,
        timeout_seconds: float = 10.0,
    ) -> None:
        self._group = group
        self._dialer = dialer
        self._servers = list(bootstrap)
        self._timeout_seconds = timeout_seconds

    async def describe(self) -> Description:
        """Return what the leader knows.

        Raises:
            StorageUnavailable: no leader answers in time.
        """
        partition = {"PartitionIndex": 0}
        asked = {"Topics": ({"TopicName": self._group.topic, "Partitions": (partition,)},)}
        message = await self._of_the_leader(apis.DESCRIBE_QUORUM, asked)
        return _description(message)

    async def submit(self, records: Sequence[Record]) -> int:
        """Append records; return the offset of the first one, committed.

        Raises:
            StorageUnavailable: no leader took them; nothing was appended.
            OutcomeUnknown: the leader's answer was lost, or it leads no more.
            InvalidArgument: they can't be one batch.
        """
        packed = tuple({"Key": key, "Value": value} for key, value in records)
        asked = {
            "ClusterId": self._group.cluster_id,
            "TopicId": self._group.topic_id,
            "Records": packed,
        }
        message = await self._of_the_leader(apis.SUBMIT, asked, changes=True)
        offset: int = message["BaseOffset"]
        return offset

    async def add_voter(self, voter: Voter, *, when_committed: bool = True) -> None:
        """Have a caught-up observer count; OutcomeUnknown, StorageUnavailable, InvalidArgument."""
        request = AddVoterRequest(voter=voter, when_committed=when_committed)
        asked = wire.request_message(self._group, request)
        await self._of_the_leader(apis.ADD_RAFT_VOTER, asked, changes=True)

    async def remove_voter(self, key: ReplicaKey) -> None:
        """Have a voter count no more; errors as of `add_voter`."""
        asked = wire.request_message(self._group, RemoveVoterRequest(voter=key))
        await self._of_the_leader(apis.REMOVE_RAFT_VOTER, asked, changes=True)

    async def _of_the_leader(self, api: Api, asked: Message, *, changes: bool = False) -> Message:
        """Ask one server after the other, until one answers that leads."""
        why = "no server is known"
        try:
            async with asyncio.timeout(self._timeout_seconds):
                while True:
                    for server in tuple(self._servers):
                        message, why = await self._asked(server, api, asked, changes=changes)
                        if message is not None:
                            return message
                    await asyncio.sleep(_PAUSE_SECONDS)
        except TimeoutError as error:
            raise StorageUnavailable(
                f"no leader of the quorum answered in {self._timeout_seconds:g} s: {why}"
            ) from error

    async def _asked(
        self, server: Endpoint, api: Api, asked: Message, *, changes: bool
    ) -> tuple[Message | None, str]:
        """Return the answer, or None and why this server has none."""
        where = f"{server.host}:{server.port}"
        sent = False
        try:
            async with self._link(server) as link:
                version = link.version_of(api)
                if version is None:
                    raise InvalidArgument(f"{where} does not speak {api.name}")
                sent = True
                body = await link.exchange(api, version, asked)
                message = api.read_answer(version, body)
        except (OSError, EOFError, Malformed) as error:
            if sent and changes:
                raise OutcomeUnknown(f"{where} was asked, and its answer is lost") from error
            return None, f"{where}: {type(error).__name__} {error}"
        except TimeoutError as error:
            if sent and changes:
                raise OutcomeUnknown(f"{where} was asked, and did not answer in time") from error
            raise
        return _judged(message, where, changes=changes)

    @contextlib.asynccontextmanager
    async def _link(self, server: Endpoint) -> AsyncIterator[Link]:
        link = Link(await self._dialer.dial(server))
        try:
            await link.greet()
            yield link
        finally:
            link.close()


def _judged(message: Message, where: str, *, changes: bool) -> tuple[Message | None, str]:
    """Return an answer that is one; None: this server does not lead."""
    code = _code_of(message)
    if code == Code.NONE:
        return message, ""
    if code in (Code.NOT_LEADER_OR_FOLLOWER, Code.BROKER_NOT_AVAILABLE):
        return None, f"{where} does not lead"
    said = message.get("ErrorMessage") or _named(code)
    if code == Code.REQUEST_TIMED_OUT and changes:
        raise OutcomeUnknown(f"{where}: {said}: it may come about yet, or never")
    raise InvalidArgument(f"{where}: {said}")


def _code_of(message: Message) -> int:
    code: int = message["ErrorCode"]
    for topic in message.get("Topics", ()):
        for partition in topic["Partitions"]:
            code = code or partition["ErrorCode"]
    return code


def _named(code: int) -> str:
    try:
        return Code(code).name.lower()
    except ValueError:
        return f"error {code}"


def _description(message: Message) -> Description:
    partition = message["Topics"][0]["Partitions"][0]
    return Description(
        leader=partition["LeaderId"],
        epoch=partition["LeaderEpoch"],
        high_watermark=partition["HighWatermark"],
        voters=_states(partition["CurrentVoters"]),
        observers=_states(partition["Observers"]),
        endpoints={
            each["NodeId"]: tuple(
                Endpoint(at["Name"], at["Host"], at["Port"]) for at in each["Listeners"]
            )
            for each in message.get("Nodes", ())
        },
    )


def _states(replicas: Sequence[Message]) -> tuple[ReplicaState, ...]:
    return tuple(
        ReplicaState(
            ReplicaKey(each["ReplicaId"], each.get("ReplicaDirectoryId", bytes(16))),
            each["LogEndOffset"],
            each.get("LastFetchTimestamp", -1),
            each.get("LastCaughtUpTimestamp", -1),
        )
        for each in replicas
    )
