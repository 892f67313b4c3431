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
#: A host that is gone takes no longer than that from the time of a question.
_DIAL_SECONDS: Final = 2.0
#: Nor does a server that hangs, where it does no harm to ask another one.
_ANSWER_SECONDS: Final = 2.0

#: Kafka's controllers answer for themselves only, and not for brokers.
_OF_CONTROLLERS: Final[Message] = {"EndpointType": 2}


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


class _Call(msgspec.Struct):
    """One question, until it is answered or its time is over."""

    api: Api
    asked: Message
    #: A question that was sent may have taken effect, whatever becomes of its answer.
    changes: bool
    #: Whom it was sent to, without an answer yet.
    sent: str | None = None
    #: Whom it waits for.
    at: Endpoint | None = None
    why: str = "no server is known"


class QuorumClient:
    """Asks a quorum through any of some servers; they name the others."""

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
        self._servers = tuple(bootstrap)
        #: What servers said last: the leader first, as far as they know it.
        self._told: tuple[Endpoint, ...] = ()
        #: Who answered last as the leader.
        self._led: Endpoint | None = None
        #: Who did not answer last: the others are asked before.
        self._silent: Endpoint | None = None
        self._timeout_seconds = timeout_seconds
        self._dial_seconds = min(_DIAL_SECONDS, timeout_seconds / 3)

    async def cluster_id(self) -> str:
        """Return the cluster that the quorum is of.

        Raises:
            StorageUnavailable: no server answers in time.
        """
        message = await self._of_the_leader(apis.DESCRIBE_CLUSTER, _OF_CONTROLLERS)
        cluster_id: str = message["ClusterId"]
        return cluster_id

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
        call = _Call(api, asked, changes)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                while True:
                    for server in self._known():
                        message = await self._asked(server, call)
                        if message is not None:
                            return message
                    await asyncio.sleep(_PAUSE_SECONDS)
        except TimeoutError as error:
            self._silent = call.at
            if call.sent is not None and changes:
                raise OutcomeUnknown(
                    f"{call.sent} was asked, and did not answer in {self._timeout_seconds:g} s"
                ) from error
            raise StorageUnavailable(
                f"no leader of the quorum answered in {self._timeout_seconds:g} s: {call.why}"
            ) from error

    def _known(self) -> tuple[Endpoint, ...]:
        """Return all that may lead, the likeliest first, each address once."""
        led = () if self._led is None else (self._led,)
        by_place = {(at.host, at.port): at for at in (*led, *self._told, *self._servers)}
        if self._silent is not None:
            place = (self._silent.host, self._silent.port)
            by_place[place] = by_place.pop(place, self._silent)
        return tuple(by_place.values())

    async def _asked(self, server: Endpoint, call: _Call) -> Message | None:
        """Return the answer, or None, and the call knows why this server has none."""
        where = f"{server.host}:{server.port}"
        api, call.at = call.api, server
        try:
            async with self._link(server) as link:
                version = link.version_of(api)
                if version is None:
                    raise InvalidArgument(f"{where} does not speak {api.name}")
                call.sent = where
                async with asyncio.timeout(None if call.changes else _ANSWER_SECONDS):
                    body = await link.exchange(api, version, call.asked)
                message = api.read_answer(version, body)
                call.sent = None
                if (why := _not_leading(message)) is not None:
                    call.why = f"{where} {why}"
                    await self._learn(link)
                    return None
        except (OSError, EOFError, Malformed, TimeoutError) as error:
            if call.sent is not None and call.changes:
                raise OutcomeUnknown(f"{where} was asked, and its answer is lost") from error
            call.sent = None
            call.why = f"{where}: {type(error).__name__} {error}".rstrip()
            self._silent = server
            if self._led == server:
                self._led = None
            return None
        self._led = server
        if self._silent == server:
            self._silent = None
        return _judged(message, where, changes=call.changes)

    async def _learn(self, link: Link) -> None:
        """Ask a server that does not lead for those that may."""
        version = link.version_of(apis.DESCRIBE_CLUSTER)
        if version is None:
            return
        body = await link.exchange(apis.DESCRIBE_CLUSTER, version, _OF_CONTROLLERS)
        told = apis.DESCRIBE_CLUSTER.read_answer(version, body)
        leader = told["ControllerId"]
        brokers = sorted(told["Brokers"], key=lambda each: bool(each["BrokerId"] != leader))
        name = self._group.listener
        self._led = None
        self._told = tuple(Endpoint(name, each["Host"], each["Port"]) for each in brokers)

    @contextlib.asynccontextmanager
    async def _link(self, server: Endpoint) -> AsyncIterator[Link]:
        async with asyncio.timeout(self._dial_seconds):
            link = Link(await self._dialer.dial(server))
        try:
            async with asyncio.timeout(self._dial_seconds):
                await link.greet()
            yield link
        finally:
            link.close()


def _not_leading(message: Message) -> str | None:
    """Return why another server has to be asked; None: this one has answered."""
    code = _code_of(message)
    if code == Code.NOT_LEADER_OR_FOLLOWER:
        return "does not lead"
    return "takes no requests now" if code == Code.BROKER_NOT_AVAILABLE else None


def _judged(message: Message, where: str, *, changes: bool) -> Message:
    """Return an answer that is none of an error."""
    code = _code_of(message)
    if code == Code.NONE:
        return message
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
