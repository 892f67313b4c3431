"""Operator methods of the socket but for the daemon's standing: what the log names, and orders.

Nothing here is bound by the broker's announcements: what is asked about is followed on demand.
"""

import asyncio
import errno
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, Final

from rlmm_daemon.codec import api
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.crash_guard import CrashGuard
from rlmm_daemon.daemon.cleaner.left_behind import LeftBehind
from rlmm_daemon.daemon.cleaner.purge import Purge
from rlmm_daemon.daemon.cleaner.report import Report
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.metadata.on_demand import ON_DEMAND_SECONDS, require_ready
from rlmm_daemon.daemon.metadata.user_partitions import user_partitions
from rlmm_daemon.daemon.operator import selector as selectors
from rlmm_daemon.daemon.operator import tailing
from rlmm_daemon.daemon.operator.forecasting import Forecasts
from rlmm_daemon.daemon.operator.mending import LogRepair, Mending
from rlmm_daemon.daemon.operator.pausing import Pausing
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
from rlmm_daemon.domain.ids import TopicId, TopicIdPartition

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
        runtime: Runtime | None = None,
        guard: CrashGuard | None = None,
        repair: LogRepair | None = None,
        recovery: Recovery | None = None,
        removals: Report | None = None,
        left_behind: LeftBehind | None = None,
        forecasts: Forecasts | None = None,
    ) -> None:
        """Without `repair` the event log has none of its own; without `recovery` no storage is."""
        self._manager = manager
        self._on_demand = manager.on_demand
        self._runtime = runtime
        self._mending = Mending(manager, guard=guard, repair=repair, recovery=recovery)
        self._recovery = recovery
        self._pausing = Pausing(manager)
        self._removals = removals
        self._left_behind = left_behind
        self._forecasts = forecasts

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
            await self._on_demand.whole()
        found = await selectors.find(self._manager, selector)
        if not found:
            for follower in self._manager.followed():
                require_ready(follower)  # an unread fold is no proof that there is nothing
            raise SegmentNotFound(
                f"no event of the log names {selector}, and nobody announced it", selector=selector
            )
        if len({partition.topic_id for partition in found}) > 1:
            selectors.only(selector, found)
        return found

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

    async def tail(
        self, metadata_partition: int | None, from_offset: int | None, *, follow: bool
    ) -> AsyncGenerator[api.TailEvent, None]:
        """Yield the last events of one metadata partition or all, then those that come."""
        followers = await self._on_demand.chosen(metadata_partition)
        wanted = frozenset(follower.partition for follower in followers)
        events = tailing.tail(
            self._manager, self._on_demand.follow_set(), wanted, from_offset, follow=follow
        )
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
                await self._on_demand.whole()  # the same name may be another topic's, too
            async with aclosing(self.segments(selector, None)) as found:
                async for record in found:
                    yield record
            return
        for follower in await self._on_demand.whole():
            require_ready(follower)  # it may have begun to start over meanwhile
            for partition in sorted(follower.fold.partitions):
                async for record in self._listed(partition, None):
                    yield record

    async def forecast(self, topic: str | None) -> dict[str, Any]:
        """Return what topics hold, and the next thirty days of each, the largest first.

        Raises:
            NotReady, PartitionFailed and kin: a part of it could not be told whole.
            StorageNotConfigured: there is nothing to forecast.
        """
        if self._forecasts is None:
            raise StorageNotConfigured
        for follower in await self._on_demand.whole():
            require_ready(follower)
        return await self._forecasts.of(topic)

    # What they order.

    async def snapshot_now(self, metadata_partition: int | None) -> list[dict[str, Any]]:
        """Write a snapshot of one followed metadata partition, or of all that are."""
        rows = []
        for follower in await self._on_demand.chosen(metadata_partition, all_of_them=False):
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
        if self._removals is None and self._left_behind is not None:
            await self._on_demand.chosen(None)
            return {**NOTHING_CLEANED, **await self._left_behind.rows()}
        return self._require_removals().rows()

    async def purge(self, topic_id: bytes, *, execute: bool, existing: bool) -> dict[str, Any]:
        """Return what there is of a topic and, if told so, have it removed.

        Raises:
            StorageNotConfigured, SegmentNotFound, InvalidArgument, NotReady: as `cleaner.purge`.
        """
        order = Purge(self._require_removals().cleaner)
        self._on_demand.follow_set()  # nobody knows what the log names while the whole of it failed
        return await order.purge(TopicId(topic_id), execute=execute, existing=existing)

    async def topic_pause(self, topic: str, *, execute: bool) -> dict[str, Any]:
        """Return what a pause of a topic's copies is about; pause them if told so."""
        return await self._pausing.pause(topic, execute=execute)

    async def topic_resume(self, topic: str, *, execute: bool) -> dict[str, Any]:
        """Return what ending a pause is about; let copies begin again if told so."""
        return await self._pausing.resume(topic, execute=execute)

    def _require_removals(self) -> Report:
        if self._removals is None:
            raise StorageNotConfigured
        return self._removals

    async def drain(self) -> None:
        """Begin to stop, and return at once."""
        if self._runtime is None:
            self._manager.gates.draining = True
        else:
            self._runtime.stop("an operator ordered it")

    async def partition_retry(self, metadata_partition: int | None) -> dict[str, Any]:
        """Start failed metadata partitions over, since what failed them may be gone."""
        return await self._mending.retry(
            await self._on_demand.chosen(metadata_partition, all_of_them=False)
        )

    async def partition_rebuild(self, metadata_partition: int | None) -> dict[str, Any]:
        """Drop a fold and replay it from the log's start, held against what had been known."""
        if metadata_partition is None:
            raise InvalidArgument("say which metadata partition is to be rebuilt")
        (follower,) = await self._on_demand.chosen(metadata_partition)
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
        (follower,) = await self._on_demand.chosen(metadata_partition)
        return await self._mending.accept(follower, without_looking=without_looking)

    async def log_repair(self, metadata_partition: int | None) -> dict[str, Any]:
        """Mend the log's files, append the finished segments that it lost, and start over."""
        return await self._mending.repair(
            await self._on_demand.chosen(metadata_partition, all_of_them=False)
        )

    async def log_recover(self, metadata_partition: int, *, execute: bool) -> dict[str, Any]:
        """Return which segments that the log lost are there, whole; put them back if told so.

        It answers when the partition was judged anew, with the command that is named then.

        Raises:
            StorageNotConfigured: metadata only, so there is nowhere to look.
            StorageUnavailable: not now.
        """
        if self._recovery is None:
            raise StorageNotConfigured
        (follower,) = await self._on_demand.chosen(metadata_partition)
        await self._on_demand.until_folded(follower)
        return await self._mending.recover(follower, execute=execute)

    async def partition_end_hold(
        self, metadata_partition: int | None, *, execute: bool
    ) -> dict[str, Any]:
        """Return what accepted losses keep from being deleted; end that if told so.

        Raises:
            StorageNotConfigured: metadata only, so nothing is held.
            NotReady, PartitionFailed: the log is not open, and why.
        """
        removals = self._require_removals()
        self._on_demand.follow_set()  # the marker that has the holds is read after the log
        held = await removals.held(metadata_partition)
        # One of every metadata partition is not ended for one of them.
        ends = any(metadata_partition in (None, hold["metadata_partition"]) for hold in held)
        if execute and ends:
            await removals.end_holds(metadata_partition)
        return {"executed": execute and ends, "holds": held}
