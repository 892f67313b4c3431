"""Operator methods of the socket, over manager, copier and runtime.

Nothing here is bound by the broker's announcements: what is asked about is followed on demand.
"""

import asyncio
import errno
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import asdict, replace

from rlmm_daemon import __version__
from rlmm_daemon.codec import api
from rlmm_daemon.config import Config
from rlmm_daemon.core import phrases
from rlmm_daemon.core.explain.explanation import explain
from rlmm_daemon.core.explain.facts import RemovalFacts
from rlmm_daemon.core.readiness.states import Failure, PartitionState, not_ready
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.crash_guard import CrashGuard
from rlmm_daemon.daemon.cleaner.cleaner import Cleaner
from rlmm_daemon.daemon.cleaner.left_behind import LeftBehind
from rlmm_daemon.daemon.cleaner.purge import Purge
from rlmm_daemon.daemon.copying.copier import Copier
from rlmm_daemon.daemon.following.follow_set import FollowSet
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.metadata import tally
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.metadata.tally import Tally
from rlmm_daemon.daemon.metadata.user_partitions import known, user_partitions
from rlmm_daemon.daemon.operator import selector as selectors
from rlmm_daemon.daemon.operator import tailing
from rlmm_daemon.daemon.operator.facts import CopyView, StorageView, collect
from rlmm_daemon.daemon.operator.memory import CopyingProcess, memory
from rlmm_daemon.daemon.operator.mending import LogRepair, Mending
from rlmm_daemon.daemon.operator.recovering import Recovery
from rlmm_daemon.daemon.process.runtime import Runtime
from rlmm_daemon.domain.errors import (
    InvalidArgument,
    NotReady,
    SegmentNotFound,
    StorageFull,
    StorageNotConfigured,
    StorageUnavailable,
)
from rlmm_daemon.domain.ids import MetadataPartition, TopicId, TopicIdPartition, uuid_text
from rlmm_daemon.domain.segment import SegmentState

#: How long a question waits for metadata partitions that nobody followed yet.
ON_DEMAND_SECONDS: Final = 10.0
#: `explain` answers in whatever state things are; it only gives a follower time to begin.
EXPLAIN_SECONDS: Final = 1.0
#: Metadata partitions whose rows are made in one go.
ROWS_AT_ONCE: Final = 8
#: What `cleanup` answers of removals where there is no cleaner.
NOTHING_CLEANED: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "owned": [],
        "removals": [],
        "stuck": [],
        "errors": [],
        "orders": [],
        "deleted": {},
        "failures": 0,
        "waiting": 0,
        "observation": None,
    }
)


class Operator:
    """`base.services.Operator` over a running manager; what is absent is left out of answers."""

    def __init__(
        self,
        manager: Manager,
        *,
        copier: Copier | None = None,
        config: Config | None = None,
        runtime: Runtime | None = None,
        guard: CrashGuard | None = None,
        version: str = __version__,
        storage: Callable[[], StorageView] | None = None,
        repair: LogRepair | None = None,
        recovery: Recovery | None = None,
        cleaner: Cleaner | None = None,
        left_behind: LeftBehind | None = None,
        log_facts: Callable[[], Mapping[str, Any]] = dict,
        copying: Callable[[], CopyingProcess] = CopyingProcess,
    ) -> None:
        """Without `repair` the event log has none of its own; `log_facts` are its connections'.

        Without `recovery` there is no storage to look for objects in. `copying` tells of the
        process for copies.
        """
        self._manager = manager
        self._copies = _copies(copier, config)
        self._config = config
        self._runtime = runtime
        self._version = version
        self._storage = storage or (lambda: StorageView(kind=storage_kind(config)))
        self._mending = Mending(manager, guard=guard, repair=repair, recovery=recovery)
        self._recovery = recovery
        self._cleaner = cleaner
        self._left_behind = left_behind
        self._log_facts = log_facts
        self._copying = copying
        self._started_at = manager.clock.monotonic()

    # Which partitions.

    async def resolve(self, selector: str) -> list[TopicIdPartition]:
        """Return the user partitions that a selector means; all of a topic for its id alone.

        Raises:
            InvalidArgument: no form of a selector, or a name that two topic ids bear.
            SegmentNotFound: nothing of that name is known.
            NotReady, PartitionFailed and kin: the log is not open, or of a topic's partitions some
                may stand in a metadata partition that is not ready.
        """
        if selectors.means_a_topic(selector):
            await self._whole()
        found = await self._find(selector)
        if not found:
            for follower in self._manager.followed():
                _require_ready(follower)  # an unread fold is no proof that there is nothing
            raise SegmentNotFound(
                f"no event of the log names {selector}, and nobody announced it", selector=selector
            )
        if len({partition.topic_id for partition in found}) > 1:
            selectors.only(selector, found)
        return found

    async def _find(self, selector: str) -> list[TopicIdPartition]:
        found = await self._matching(selector)
        if not found:
            await self._manager.follow_all(ON_DEMAND_SECONDS)
            found = await self._matching(selector)
        return found

    async def _matching(self, selector: str) -> list[TopicIdPartition]:
        if named := selectors.matching(selector, ()):
            return named  # in full, whether anybody knows it or not
        found = set[TopicIdPartition]()
        for index, some in enumerate(known(self._manager)):
            if index:
                await self._manager.turns.wait()
            found.update(selectors.matching(selector, some))
        return sorted(found)

    # What is there.

    async def status(self) -> dict[str, Any]:
        """Return what the daemon is and how it stands, in one screen."""
        log_facts = self._log_facts()
        manager, fleet = self._manager, self._manager.fleet
        folds = [follower.fold for follower in manager.followed()]
        counted = await tally.taken(folds, manager.turns)
        states = [follower.state for follower in manager.followed()]
        identity, assignment, storage = fleet.identity, manager.assignment, self._storage()
        return {
            "version": self._version,
            "broker_id": self._config and self._config.daemon.broker_id,
            "cluster_id": (identity and identity.cluster_id)
            or (self._config and self._config.daemon.cluster_id),
            "uptime_seconds": round(manager.clock.monotonic() - self._started_at, 3),
            "draining": manager.gates.draining,
            "log": {
                "kind": self._config and event_log_kind(self._config),
                "open": identity is not None,
                "topic_id": identity and uuid_text(identity.topic_id),
                "partition_count": identity and identity.partition_count,
                "trouble": fleet.trouble and fleet.trouble.message,
                "unwritable": self._refusal(log_facts) or None,
                "warnings": log_facts.get("warnings", []),
                "connections": log_facts.get("connections"),
                "failure": _failure(fleet.whole_failure, None),
                "compaction": self._compaction(),
            },
            "broker": {
                "announced": assignment.gate_open,
                "leads": assignment.leads,
                "follows": len(assignment.announced) - assignment.leads,
            },
            "metadata_partitions": {
                state.value: states.count(state) for state in PartitionState if state in states
            },
            "user_partitions": counted.user_partitions,
            "segments": {
                state.name: counted.segments[state]
                for state in SegmentState
                if state is not SegmentState.DELETE_SEGMENT_FINISHED
            },
            "segment_bytes": counted.finished_bytes,
            "memory": memory(folds, counted, self._copying().pid),
            "copying_process": asdict(self._copying()),
            "storage": {
                "kind": storage.kind,
                "error": storage.error and storage.error.message,
                "other_daemon": storage.other_daemon and storage.other_daemon.message,
            },
            "snapshots": {
                "rejected": manager.snapshots.rejected,
                "failures": manager.snapshotter.failures,
            },
            "copies": [asdict(job) for job in self._copies.jobs()],
            "internal_errors": manager.bugs.facts(),
            "unsettled_copies": [asdict(row) for row in self._copies.unsettled()],
            "observation": self._observation(),
            "tasks": [asdict(task) for task in self._runtime.tasks()] if self._runtime else [],
        }

    def _refusal(self, log_facts: Mapping[str, Any]) -> str:
        """Return why writes are refused for now; empty if they are not."""
        return str(log_facts.get("unwritable") or self._manager.fleet.noted.refusal)

    def _compaction(self) -> dict[str, Any] | None:
        compactor = self._manager.compactor
        return None if compactor is None else asdict(compactor.counts)

    def _observation(self) -> dict[str, Any] | None:
        observer = None if self._cleaner is None else self._cleaner.observer
        return None if observer is None else observer.rows()

    async def partitions(self) -> list[dict[str, Any]]:
        """Return a row for each followed metadata partition."""
        connections = self._log_facts().get("partitions", {})
        rows = list[dict[str, Any]]()
        for follower in self._manager.followed():
            if len(rows) % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                await self._manager.turns.wait()
            counted = await tally.taken([follower.fold], self._manager.turns)
            row = self._row(follower, counted)
            rows.append(row | {"connection": connections.get(follower.partition)})
        return rows

    def _row(self, follower: Follower, counted: Tally) -> dict[str, Any]:
        fold, history, fleet = follower.fold, follower.history, self._manager.fleet
        failure = fleet.whole_failure or follower.failure
        return {
            "metadata_partition": follower.partition,
            "state": PartitionState.FAILED.value if failure else follower.state.value,
            "failure": _failure(failure, follower.partition),
            "position": fold.position,
            "target": follower.confirmation.target,
            "lag": follower.lag,
            "log_start": follower.range.start if follower.range else None,
            "log_end": follower.range.end if follower.range else None,
            "leader_epoch": fold.leader_epoch,
            "silent_seconds": round(follower.silent_seconds, 3),
            "trouble": follower.trouble and follower.trouble.message,
            "announced": self._follow_set().announced_count(follower.partition),
            "user_partitions": counted.user_partitions,
            "segments": sum(counted.segments),
            "writes_in_flight": follower.writer.in_flight,
            "snapshot_at_ms": follower.snapshot_at_ms,
            "events_since_snapshot": follower.applied_since_snapshot,
            "missing": history.missing_count,
            "unreadable": dict(fold.unreadable),
            "rejected": dict(fold.rejected),
            "recent": [
                {"kind": kind, "offset": each.offset, "reason": each.reason, "head": each.head_hex}
                for kind, ring in (
                    ("unreadable", fold.unreadable_recent),
                    ("rejected", fold.rejected_recent),
                )
                for each in ring
            ],
        }

    async def user_partitions(self, topic: str | None) -> AsyncGenerator[api.UserPartition, None]:
        """Yield the user partitions that are announced, or that a followed log names."""
        found = user_partitions(self._manager, topic)
        async with aclosing(found):
            async for each in found:
                yield each

    async def segments(self, selector: str, epoch: int | None) -> AsyncGenerator[bytes, None]:
        """Yield the records of a selector's partitions, in Kafka's order within each."""
        for partition in await self.resolve(selector):
            async for record in self._listed(partition, epoch):
                yield record

    async def _listed(
        self, partition: TopicIdPartition, epoch: int | None
    ) -> AsyncGenerator[bytes, None]:
        manager = self._manager
        try:
            walk = manager.lookups.listing(partition, epoch, Caller.OPERATOR)
        except NotReady:
            await manager.lookups.until_readable(partition, Caller.OPERATOR, ON_DEMAND_SECONDS)
            walk = manager.lookups.listing(partition, epoch, Caller.OPERATOR)
        for piece in walk.pieces:
            for record in piece:
                yield record
            await asyncio.sleep(0)

    async def explain(
        self, selector: str, epoch: int | None = None, offset: int | None = None
    ) -> dict[str, Any]:
        """Return why a partition answers as it does; answers whatever the state is.

        Raises:
            InvalidArgument: no form of a selector, or it names several partitions.
        """
        manager, cleaner, partition = self._manager, self._cleaner, None
        if manager.fleet.follow_set is None:
            selectors.matching(selector, ())
        else:
            partition = selectors.only(selector, await self._find(selector))
        if partition is not None:
            await manager.lookups.until_readable(partition, Caller.OPERATOR, EXPLAIN_SECONDS)
        facts = await collect(
            manager,
            selector,
            partition,
            epoch=epoch,
            offset=offset,
            storage=self._storage(),
            copies=self._copies,
            removal=(lambda _: RemovalFacts()) if cleaner is None else cleaner.told,
        )
        log_facts = self._log_facts()
        facts = replace(
            facts,
            log_warnings=tuple(log_facts.get("warnings", ())),
            log_refusal=self._refusal(log_facts),
        )
        known = log_facts.get("partitions", {}).get(facts.metadata_partition)
        if known is not None:
            facts = replace(facts, connection=phrases.connection(known))
        return {
            "partition": None if partition is None else str(partition),
            "metadata_partition": facts.metadata_partition,
            "as_of_ms": facts.now_ms,
            **explain(facts).to_dict(),
        }

    async def tail(
        self, metadata_partition: int | None, from_offset: int | None, *, follow: bool
    ) -> AsyncGenerator[api.TailEvent, None]:
        """Yield the last events of one metadata partition or all, then those that come."""
        followers = await self._chosen(metadata_partition)
        wanted = frozenset(follower.partition for follower in followers)
        events = tailing.tail(self._manager, self._follow_set(), wanted, from_offset, follow=follow)
        async with aclosing(events):
            async for event in events:
                yield event

    async def export(self, selector: str | None) -> AsyncGenerator[bytes, None]:
        """Yield every live segment as a record: of a selector's partitions, or of the whole log.

        Raises:
            NotReady, PartitionFailed and kin: a part of it could not be told whole.
        """
        if selector is not None:
            if selectors.exact(selector) is None:
                await self._whole()  # the same name may be another topic's, too
            async with aclosing(self.segments(selector, None)) as found:
                async for record in found:
                    yield record
            return
        for follower in await self._whole():
            _require_ready(follower)  # it may have begun to start over meanwhile
            for partition in sorted(follower.fold.partitions):
                async for record in self._listed(partition, None):
                    yield record

    # What they order.

    async def snapshot_now(self, metadata_partition: int | None) -> list[dict[str, Any]]:
        """Write a snapshot of one followed metadata partition, or of all that are."""
        rows = []
        for follower in await self._chosen(metadata_partition, all_of_them=False):
            try:
                written = await self._manager.snapshotter.write(follower)
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                kind = StorageFull if full else StorageUnavailable
                raise kind(f"the snapshot could not be written: {error}") from error
            rows.append(
                {
                    "metadata_partition": follower.partition,
                    "state": follower.state.value,
                    "written": written is not None,
                    "path": written and written.path,
                    "next_offset": written and written.next_offset,
                    "bytes": written and written.bytes,
                    "seconds": written and round(written.seconds, 6),
                }
            )
        return rows

    async def cleanup(self) -> dict[str, Any]:
        """Return where removals stand and what is stuck, as far as this daemon looks after it.

        With metadata only nothing is removed here: then what deleted topics left behind.

        Raises:
            StorageNotConfigured: metadata only, and nobody was given who tells what was left.
        """
        if self._cleaner is None and self._left_behind is not None:
            await self._chosen(None)
            return {**NOTHING_CLEANED, **await self._left_behind.rows()}
        return self._require_cleaner().rows()

    async def purge(self, topic_id: bytes, *, execute: bool, existing: bool) -> dict[str, Any]:
        """Return what there is of a topic and, if told so, have it removed.

        Raises:
            StorageNotConfigured, SegmentNotFound, InvalidArgument, NotReady: as `cleaner.purge`.
        """
        order = Purge(self._require_cleaner())
        self._follow_set()  # nobody knows what the log names while the whole of it failed
        return await order.purge(TopicId(topic_id), execute=execute, existing=existing)

    def _require_cleaner(self) -> Cleaner:
        if self._cleaner is None:
            raise StorageNotConfigured
        return self._cleaner

    async def drain(self) -> None:
        """Begin to stop, and return at once."""
        if self._runtime is None:
            self._manager.gates.draining = True
        else:
            self._runtime.stop("an operator ordered it")

    async def partition_retry(self, metadata_partition: int | None) -> dict[str, Any]:
        """Start failed metadata partitions over, since what failed them may be gone."""
        return await self._mending.retry(await self._chosen(metadata_partition, all_of_them=False))

    async def partition_rebuild(self, metadata_partition: int | None) -> dict[str, Any]:
        """Drop a fold and replay it from the log's start, held against what had been known."""
        if metadata_partition is None:
            raise InvalidArgument("say which metadata partition is to be rebuilt")
        (follower,) = await self._chosen(metadata_partition)
        return await self._mending.rebuild(follower)

    async def partition_accept_loss(
        self, metadata_partition: int | None, *, everything: bool, without_looking: bool = False
    ) -> dict[str, Any]:
        """Go on without what is missing; nothing brings it back afterwards.

        Raises:
            InvalidArgument: there is no loss, or the objects were not looked for yet.
        """
        if everything == (metadata_partition is not None):
            raise InvalidArgument("say either one metadata partition or all of them")
        if metadata_partition is None:
            return await self._mending.accept_everything(without_looking=without_looking)
        (follower,) = await self._chosen(metadata_partition)
        return await self._mending.accept(follower, without_looking=without_looking)

    async def log_repair(self, metadata_partition: int | None) -> dict[str, Any]:
        """Mend the log's files, append the finished segments that it lost, and start over."""
        return await self._mending.repair(await self._chosen(metadata_partition, all_of_them=False))

    async def log_recover(self, metadata_partition: int, *, execute: bool) -> dict[str, Any]:
        """Return which segments that the log lost are there, whole; put them back if told so.

        It answers when the partition was judged anew, with the command that is named then.

        Raises:
            StorageNotConfigured: metadata only, so there is nowhere to look.
            StorageUnavailable: not now.
        """
        if self._recovery is None:
            raise StorageNotConfigured
        (follower,) = await self._chosen(metadata_partition)
        await self._until_folded(follower)
        return await self._mending.recover(follower, execute=execute)

    async def _until_folded(self, follower: Follower) -> None:
        """Return once a fold is read to its end: a copy may have been finished further on.

        Raises:
            NotReady: it is not, and why.
            PartitionFailed and kin: something else has to end before it is read on.
        """
        try:
            async with asyncio.timeout(ON_DEMAND_SECONDS):
                while not follower.read_to_end:
                    if follower.failure is not None and follower.waits_for_order:
                        raise follower.failure.error(follower.partition)
                    await follower.changed.wait()
        except TimeoutError as error:
            raise not_ready(follower.partition, follower.state, follower.lag) from error

    async def partition_end_hold(
        self, metadata_partition: int | None, *, execute: bool
    ) -> dict[str, Any]:
        """Return what accepted losses keep from being deleted; end that if told so.

        Raises:
            StorageNotConfigured: metadata only, so nothing is held.
            NotReady, PartitionFailed: the log is not open, and why.
        """
        cleaner = self._require_cleaner()
        self._follow_set()  # the marker that has the holds is read after the log
        held = await cleaner.held(metadata_partition)
        # One of every metadata partition is not ended for one of them.
        ends = any(metadata_partition in (None, hold["metadata_partition"]) for hold in held)
        if execute and ends:
            await cleaner.end_holds(metadata_partition)
        return {"executed": execute and ends, "holds": held}

    # Which followers.

    def _follow_set(self) -> FollowSet:
        fleet = self._manager.fleet
        if fleet.whole_failure is not None:
            raise fleet.whole_failure.error(MetadataPartition(0))
        if fleet.follow_set is None:
            raise NotReady(f"the event log is not open: {fleet.trouble}", state="starting")
        return fleet.follow_set

    async def _whole(self) -> list[Follower]:
        """Return the followers of every metadata partition, all of them ready.

        Raises:
            NotReady, PartitionFailed and kin: not one is missing from an answer that is whole.
        """
        followers, count = await self._chosen(None), self._follow_set().partition_count
        for follower in followers:
            _require_ready(follower)
        if len(followers) < count:
            raise NotReady(
                f"{count - len(followers)} of {count} metadata partitions are not followed yet"
            )
        return followers

    async def _chosen(
        self, metadata_partition: int | None, *, all_of_them: bool = True
    ) -> list[Follower]:
        """Return followers by metadata partition, followed on demand.

        None means every metadata partition, or those followed anyway unless `all_of_them`.
        """
        manager, follow_set = self._manager, self._follow_set()
        if metadata_partition is None:
            if all_of_them:
                await manager.follow_all(ON_DEMAND_SECONDS)
            return list(manager.followed())
        if not 0 <= metadata_partition < follow_set.partition_count:
            raise InvalidArgument(
                f"there are {follow_set.partition_count} metadata partitions, from 0 on"
            )
        number = MetadataPartition(metadata_partition)
        follow_set.demand([number])
        try:
            async with asyncio.timeout(ON_DEMAND_SECONDS):
                while number not in manager.fleet.followers:
                    await manager.fleet.changed.wait()
        except TimeoutError as error:
            raise NotReady(f"metadata partition {number} is not followed yet") from error
        return [manager.fleet.followers[number]]


def _copies(copier: Copier | None, config: Config | None) -> CopyView:
    if copier is None:
        return CopyView()
    if config is None:
        return CopyView(jobs=copier.jobs, failures=copier.failures, unsettled=copier.unsettled)
    return CopyView(
        jobs=copier.jobs,
        failures=copier.failures,
        unsettled=copier.unsettled,
        deadline_seconds=config.copy.deadline_seconds,
    )


def event_log_kind(config: Config) -> str:
    """Return the `kind` of the configured event log."""
    return str(config.event_log.__struct_config__.tag)


def storage_kind(config: Config | None) -> str:
    """Return the `kind` of the configured storage."""
    return "none" if config is None else str(config.storage.__struct_config__.tag)


def _failure(failure: Failure | None, partition: MetadataPartition | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    return {
        "reason": failure.reason.value,
        "evidence": failure.evidence,
        "at_ms": failure.at_ms,
        "command": failure.command(MetadataPartition(0) if partition is None else partition),
    }


def _require_ready(follower: Follower) -> None:
    """Raise why a follower cannot say what is not there."""
    if follower.failure is not None:
        raise follower.failure.error(follower.partition)
    if follower.state is not PartitionState.READY:
        raise not_ready(follower.partition, follower.state, follower.lag)
