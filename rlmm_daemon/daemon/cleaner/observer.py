"""Marks that nobody asked for: looks at the cluster, and lets `core.disposal.observation` judge.

Off unless configured. A daemon with it follows every metadata partition, and remembers which topic
ids it heard the brokers know; one of them marks, beside the leader of metadata partition 0: an
event anywhere in the log starts a clock over. The others look on, so that they know what it left
for a person. A mark is not a delete: the cleaner asks every broker again before it begins.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final

import msgspec
import structlog

from rlmm_daemon.codec import records
from rlmm_daemon.codec.state_files import Observed
from rlmm_daemon.core.disposal.observation import (
    Observation,
    ObservationOptions,
    TopicLook,
    UnknownClock,
)
from rlmm_daemon.core.explain.facts import ObservedFacts
from rlmm_daemon.core.fold.outcome import Outcome, Unreadable
from rlmm_daemon.core.readiness.states import PartitionState
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.cleaner.directories import topic_ids_on_disk
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.domain.errors import Malformed, NotReady, RlmmError, StorageUnavailable
from rlmm_daemon.domain.ids import (
    BrokerId,
    MetadataPartition,
    TopicId,
    TopicIdPartition,
    uuid_bytes,
    uuid_text,
)
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.ports.cluster import Cluster, ClusterLook

logger = structlog.get_logger(__name__)

#: Whose owner is the one daemon that lets clocks run.
WATCHED_BY_OWNER_OF: Final = MetadataPartition(0)
#: A look that takes longer has failed.
LOOK_SECONDS_MAX: Final = 60.0
#: After a look that failed.
RETRY_SECONDS: Final = 15.0
#: User partitions that are counted before others get a turn.
_TURN: Final = 512


class ObserverOptions(msgspec.Struct, frozen=True, kw_only=True):
    """When to look, and what may be marked."""

    interval_seconds: float = 300.0
    write_seconds: float = 30.0
    bounds: ObservationOptions = msgspec.field(default_factory=ObservationOptions)


class _Known(msgspec.Struct):
    """A topic that has segments and that nobody marked."""

    partitions: list[TopicIdPartition] = msgspec.field(default_factory=list)
    size_bytes: int = 0


class Observer:
    """Looks for ever; what it found out is for people, and in the marks it appends."""

    def __init__(
        self,
        *,
        manager: Manager,
        cluster: Cluster,
        log_dirs: Sequence[str],
        broker_id: BrokerId,
        watches: Callable[[], bool],
        options: ObserverOptions,
    ) -> None:
        """`watches`: whether this daemon is the one that marks."""
        self._manager, self._cluster, self._log_dirs = manager, cluster, log_dirs
        self._broker_id, self._watches, self._options = broker_id, watches, options
        self.observation = Observation(options.bounds)
        #: What the last look met; None: it was whole.
        self.trouble: str | None = None
        self.failures = 0
        #: Topics that were marked since the start.
        self.marked = 0
        self.last_look_ms: int | None = None
        self._events: Counter[TopicId] = Counter()
        self._kept: Observed | None = None
        #: Of the ids that the last look called unknown.
        self._names = dict[TopicId, str]()
        self._loaded = False
        # Copies that come in a run are events too, so each is heard of while this is on.
        manager.hooks.every.append(self._read)

    def _read(self, _number: MetadataPartition, outcome: Outcome) -> None:
        if not isinstance(outcome, Unreadable):
            self._events[outcome.partition.topic_id] += 1

    async def run(self) -> None:
        """Look every interval, for ever."""
        await self._manager.gates.until_open()
        follow_set = self._manager.fleet.follow_set
        assert follow_set is not None, "the log is open"
        with ExitStack() as kept:
            for number in range(follow_set.partition_count):
                kept.enter_context(follow_set.keep(MetadataPartition(number)))
            watched = False
            while True:
                watches = self._watches()
                if watches != watched:
                    self.observation.stopped()
                watched = watches
                await self._turn(marks=watches)

    async def _turn(self, *, marks: bool) -> None:
        seconds = self._options.interval_seconds
        try:
            async with asyncio.timeout(LOOK_SECONDS_MAX):
                await self._load()
                due = await self._look(marks=marks)
                await self._keep()
            for topic_id, partitions in due.items():
                await self._mark(topic_id, partitions)
        except (RlmmError, OSError, TimeoutError) as error:
            message = str(error) or f"no answer in {LOOK_SECONDS_MAX:g} s"
            if self.trouble is None:
                logger.warning("the cluster was not observed", error=message)
            self.trouble, self.failures = message, self.failures + 1
            self.observation.failed()
            seconds = min(seconds, RETRY_SECONDS)
        else:
            self.trouble, self.last_look_ms = None, self._manager.clock.now_ms()
        await asyncio.sleep(seconds)

    # A look.

    async def _look(self, *, marks: bool) -> dict[TopicId, list[TopicIdPartition]]:
        """Look at the cluster; return what may be marked now."""
        if marks:
            self._require_all_ready()
        known = await self._known()
        asked = frozenset(known)
        told = await self._cluster.look(asked)
        self._require_ours(told)
        if not marks:  # whatever becomes of the rest of this look
            self.observation.alive(told.cluster_id, asked - told.unknown)
        on_disk = await topic_ids_on_disk(self._manager.state.disk, self._log_dirs)
        if not marks and self._unready() is not None:
            return {}
        self._require_all_ready()
        if marks and not self._watches():
            raise NotReady("another daemon observes the cluster now")
        unknown = told.unknown & asked
        self._names = {each: known[each].partitions[0].topic for each in unknown}
        look = TopicLook(
            at_ms=self._monotonic_ms(),
            cluster_id=told.cluster_id,
            controller=told.controller,
            answers=told.live,
            registered=told.registered,
            asked=asked,
            unknown=told.unknown,
            on_disk=on_disk,
            events={each: self._events[each] for each in told.unknown},
            size_bytes={topic_id: each.size_bytes for topic_id, each in known.items()},
        )
        if not marks:
            self.observation.look_on(look)
            return {}
        return {topic_id: known[topic_id].partitions for topic_id in self.observation.look(look)}

    async def _known(self) -> dict[TopicId, _Known]:
        """Return the topics that have segments and are not marked, as far as they are followed."""
        known: dict[TopicId, _Known] = {}
        for follower in self._manager.followed():
            if follower.state is not PartitionState.READY:
                continue
            for index, cache in enumerate(list(follower.fold.partitions.at_rest())):
                if index % _TURN == _TURN - 1:
                    await asyncio.sleep(0)
                if cache.delete_state is None and any(cache.segments_by_state):
                    topic = known.setdefault(cache.partition.topic_id, _Known())
                    topic.partitions.append(cache.partition)
                    topic.size_bytes += sum(cache.bytes_by_state)
        return known

    def _require_all_ready(self) -> None:
        number = self._unready()
        if number is not None:
            raise NotReady(f"metadata partition {number} is not ready")

    def _unready(self) -> MetadataPartition | None:
        """Return a metadata partition that nothing may be judged by now."""
        followers = self._manager.fleet.followers
        follow_set = self._manager.fleet.follow_set
        assert follow_set is not None, "the log is open"
        for number in map(MetadataPartition, range(follow_set.partition_count)):
            found = followers.get(number)
            if found is None or found.state is not PartitionState.READY:
                return number
        return None

    def _require_ours(self, told: ClusterLook) -> None:
        identity = self._manager.fleet.identity
        ours = None if identity is None else identity.cluster_id
        if ours is not None and told.cluster_id != ours:
            raise StorageUnavailable(f"the brokers belong to cluster {told.cluster_id}")

    async def _mark(self, topic_id: TopicId, partitions: Sequence[TopicIdPartition]) -> None:
        logger.warning(
            "marking a topic that every broker has long called unknown",
            topic_id=uuid_text(topic_id),
            topic=partitions[0].topic,
            partitions=len(partitions),
        )
        self.marked += 1
        for partition in partitions:
            mark = PartitionDelete(
                partition=partition,
                broker_id=self._broker_id,
                event_timestamp_ms=self._manager.clock.now_ms(),
                state=PartitionDeleteState.DELETE_PARTITION_MARKED,
            )
            await self._manager.events.put_partition_delete(
                records.encode(mark), Caller.OPERATOR, self._options.write_seconds
            )

    # What outlives the process.

    async def _load(self) -> None:
        if self._loaded:
            return
        try:
            kept = await self._manager.state.observed()
        except Malformed as error:
            logger.warning("what was observed before is lost", error=error.message)
            kept = None
        self._loaded = True
        if kept is not None:
            self._kept = kept
            self.observation.alive(kept.cluster_id, _ids(kept.seen))
            self.observation.for_purge |= _ids(kept.for_purge)

    async def _keep(self) -> None:
        observation = self.observation
        if observation.cluster_id is None:
            return
        now = Observed(
            cluster_id=observation.cluster_id,
            seen=sorted(map(uuid_text, observation.seen)),
            for_purge=sorted(map(uuid_text, observation.for_purge)),
        )
        if now != self._kept:
            await self._manager.state.write(now)
            self._kept = now

    # For people.

    def told(self, topic_id: TopicId) -> ObservedFacts | None:
        """Return how the clock of a topic id stands; None: a broker knows it, or nobody asked."""
        found = self.observation.watched.get(topic_id)
        if found is None:
            return None
        if found.since_ms is None:
            return ObservedFacts(clock=found.clock)
        manager_clock = self._manager.clock
        since_ms = manager_clock.now_ms() - (self._monotonic_ms() - found.since_ms)
        due_ms = since_ms + self._options.bounds.grace_ms
        return ObservedFacts(clock=found.clock, since_ms=since_ms, due_ms=due_ms)

    def clocks(self) -> Counter[UnknownClock]:
        """Return how many ids' clocks stand how."""
        return Counter(each.clock for each in self.observation.watched.values())

    def rows(self) -> dict[str, Any]:
        """Return what `rlmm cleanup` and `rlmm status` show."""
        rows = []
        for topic_id in sorted(self.observation.watched):
            told = self.told(topic_id)
            assert told is not None, "it is watched"
            rows.append(
                {
                    "topic_id": uuid_text(topic_id),
                    "topic": self._names.get(topic_id),
                    "clock": told.clock.value,
                    "since_ms": told.since_ms,
                    "due_ms": told.due_ms,
                }
            )
        return {
            "watches": self._watches(),
            "last_look_ms": self.last_look_ms,
            "trouble": self.trouble,
            "seen_alive": len(self.observation.seen),
            "marked": self.marked,
            "topics": rows,
        }

    def _monotonic_ms(self) -> int:
        return round(1000 * self._manager.clock.monotonic())


def _ids(texts: Sequence[str]) -> frozenset[TopicId]:
    return frozenset(TopicId(uuid_bytes(each)) for each in texts)
