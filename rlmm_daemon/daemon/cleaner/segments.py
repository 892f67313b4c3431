"""Deletion of many segments of a user partition: STARTED, objects, FINISHED, in order for each.

A batch shares its storage call; several batches are in flight, so that the log's and the storage's
times overlap. A segment that fails waits by itself, and everything about it is read anew from the
fold when its turn comes again.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from rlmm_daemon.codec.custom_metadata import is_foreign
from rlmm_daemon.core.disposal.steps import DeleteFacts, DeleteStep, delete_step
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.outcome import Applied
from rlmm_daemon.daemon.base.bounded import Bounded
from rlmm_daemon.daemon.base.segment_log import update_record
from rlmm_daemon.daemon.cleaner.backoff import KeyBackoff
from rlmm_daemon.daemon.cleaner.peers import Peers
from rlmm_daemon.daemon.cleaner.tools import StillOurs, Tools
from rlmm_daemon.domain.errors import NotReady, RlmmError
from rlmm_daemon.domain.ids import SegmentId, TopicIdPartition
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState

#: Segments that share a storage call; writing a larger one down holds the loop for too long.
BATCH_SEGMENTS: Final = 25
#: Of a batch, appended at once: look-ups get their turn in between.
APPENDS_AT_ONCE: Final = 5
#: Batches in flight for each storage call in flight: while one is at the storage, another one is at
#: the log.
BATCHES_PER_CALL: Final = 2
#: Candidates that are looked at before others get a turn, and how often that is done for a batch.
WALK_AT_ONCE: Final = 2_000
WALK_TURNS_MAX: Final = 10_000
#: Put off by one `remove`, as they failed or wait for a copy, before it leaves the rest to the next
#: one: a storage that refuses everything is not asked about all of a large partition in a row, and
#: pauses are remembered of a bounded number of segments only.
PUT_OFF_MAX: Final = 1_000
#: User partitions of which it is remembered where that was.
LEFT_AT_MAX: Final = 1_000
#: After so long `remove` lets whoever else waits have a turn.
TURN_SECONDS: Final = 60.0
#: Segments whose copy is known to have ended that are remembered.
ENDED_MAX: Final = 65_536
FOREIGN: Final = (
    "a segment was stored by another storage manager, which alone knows where its objects are; "
    "nothing of it was touched"
)

S = SegmentState
#: Whether a segment may still be deleted, asked just before DELETE_SEGMENT_STARTED is appended.
Holds = Callable[[PartitionCache, SegmentId], bool]


class _Order(msgspec.Struct):
    """What one `remove` was asked for, and how much of it was put off."""

    partition: TopicIdPartition
    why: str
    holds: Holds
    put_off: int = 0


class _Batch(msgspec.Struct):
    order: _Order
    ids: Sequence[SegmentId]
    #: What is DELETE_SEGMENT_STARTED now.
    going: dict[SegmentId, SegmentMetadata] = msgspec.field(default_factory=dict)

    @property
    def partition(self) -> TopicIdPartition:
        """Whose segments they are."""
        return self.order.partition


class _Walk(msgspec.Struct):
    """Where the search for a partition's candidates stands."""

    partition: TopicIdPartition
    candidates: Callable[[PartitionCache], Iterator[SegmentId]]
    #: The first so many are passed over at first: the last search stopped behind them.
    skip: int = 0
    #: Of the present round, how many were looked at.
    seen: int = 0
    cache: PartitionCache | None = None
    rest: Iterator[SegmentId] | None = None


class SegmentRemover:
    """Deletes segments for every task of the cleaner, within one bound."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        options = tools.options
        self._turns = asyncio.Semaphore(options.parallelism * BATCHES_PER_CALL)
        self._busy: set[SegmentId] = set()
        #: Where a search stopped that put too much off.
        self._left_at: Bounded[TopicIdPartition, int] = Bounded(LEFT_AT_MAX)
        #: No copy of any daemon lives longer, as far as presence files tell.
        self._copy_ms = round(1000 * options.copy_deadline_seconds)
        #: Whether they were ever all read.
        self._looked = False
        #: Copies that ran in this process and have ended before their objects were deleted.
        self._ended: Bounded[SegmentId, None] = Bounded(ENDED_MAX)
        self.backoff = KeyBackoff(
            tools.clock.monotonic,
            tools.rng,
            seconds_min=options.backoff_seconds_min,
            seconds_max=options.backoff_seconds_max,
        )

    def wait_for_copies_of(self, peers: Peers) -> None:
        """Take in how long any daemon's copy may live; a look that failed never shortens it."""
        found = peers.copy_deadline_ms(self._tools.options.copy_deadline_seconds)
        self._copy_ms = found if peers.complete else max(found, self._copy_ms)
        self._looked = self._looked or peers.complete

    @property
    def copy_ms(self) -> int | None:
        """How long a copy of any daemon may live; None: not known yet."""
        return self._copy_ms if self._looked else None

    async def remove(
        self,
        partition: TopicIdPartition,
        candidates: Callable[[PartitionCache], Iterator[SegmentId]],
        *,
        why: str,
        holds: Holds,
        still_ours: StillOurs,
    ) -> bool:
        """Delete what `candidates` names until only what waits is left.

        Returns True if there may be more that could be deleted now: it was others' turn.

        Raises:
            NotReady: the fold may not be judged by any more.
        """
        unready: NotReady | None = None
        walk = _Walk(partition, candidates, skip=self._left_at.pop(partition, 0))
        order = _Order(partition, why, holds)
        monotonic = self._tools.clock.monotonic
        until, is_cut_off = monotonic() + TURN_SECONDS, False
        async with asyncio.TaskGroup() as workers:
            while still_ours() and order.put_off < PUT_OFF_MAX:
                if monotonic() >= until:
                    is_cut_off = True
                    break
                await self._turns.acquire()
                ids: list[SegmentId] = []
                try:
                    ids = await self._next(walk)
                    if not ids:
                        self._turns.release()
                        break
                    await self._tools.pace.take(len(ids))
                except NotReady as error:
                    self._turns.release()
                    unready = error  # raised behind the group, which would wrap it
                    break
                except BaseException:
                    self._busy.difference_update(ids)
                    self._turns.release()
                    raise
                batch = _Batch(order, ids)
                workers.create_task(self._work(batch), name=f"cleaner.batch {partition}")
        if order.put_off >= PUT_OFF_MAX:  # else what fails first would be all that is ever tried
            self._left_at[partition] = walk.seen
        if unready is not None:
            raise unready
        return is_cut_off

    async def _next(self, walk: _Walk) -> list[SegmentId]:
        """Return the next batch, busy from now on; none once a whole walk finds nothing.

        A walk goes on where the last batch ended: over a partition of many segments, beginning
        anew at the first one each time would take longer than the deletes do.
        """
        begun = False
        for _ in range(WALK_TURNS_MAX):
            cache = self._tools.cache(walk.partition)
            if cache is None:
                return []
            if walk.rest is None or walk.cache is not cache:
                if begun:
                    return []
                walk.cache, walk.rest, walk.seen = cache, walk.candidates(cache), 0
                begun = not walk.skip
            try:
                ids = self._some(walk)
            except RuntimeError:  # the dict that was walked has changed
                walk.rest, begun = None, False
                continue
            if ids:
                self._busy.update(ids)
                return ids
            if walk.rest is not None:
                await asyncio.sleep(0)
        return []

    def _some(self, walk: _Walk) -> list[SegmentId]:
        """Return free ones among the next candidates; a walk that ended has no rest."""
        assert walk.rest is not None, "it was begun"
        ids: list[SegmentId] = []
        looked = 0
        for segment_id in islice(walk.rest, WALK_AT_ONCE):
            looked += 1
            walk.seen += 1
            if walk.seen <= walk.skip:
                continue
            if segment_id not in self._busy and not self.backoff.waits(segment_id):
                ids.append(segment_id)
                if len(ids) == BATCH_SEGMENTS:
                    return ids
        if looked < WALK_AT_ONCE:
            walk.rest, walk.skip = None, 0
        return ids

    async def _work(self, batch: _Batch) -> None:
        try:
            with self._tools.bucket.removing.these(batch.ids):
                await self._tools.bucket.require_alone()
                await self._start(batch)
                gone = await self._delete_objects(batch)
                await self._finish(batch, gone)
        except RlmmError as error:
            for segment_id in batch.ids:
                self._failed(batch, segment_id, error.message)
        finally:
            self._busy.difference_update(batch.ids)
            self._turns.release()

    # The three steps.

    async def _start(self, batch: _Batch) -> None:
        await _some_at_once(batch.ids, lambda each: self._start_one(batch, each))
        for segment_id, segment in batch.going.items():
            if self._tools.copier.is_running(segment_id):
                await self._tools.copier.end_copy(segment_id)
            if segment.state is S.COPY_SEGMENT_STARTED and self._ran_here(segment):
                self._ended[segment_id] = None

    async def _start_one(self, batch: _Batch, segment_id: SegmentId) -> None:
        """Append DELETE_SEGMENT_STARTED unless it was; note what the segment was before."""
        try:
            segment = self._tools.segment(batch.partition, segment_id)
            if segment is None:
                return  # somebody else was faster
            if is_foreign(self._kept(segment)):
                self._failed(batch, segment_id, FOREIGN)
                return
            if segment.state is not S.DELETE_SEGMENT_STARTED:
                outcome = await self._append(batch, segment, S.DELETE_SEGMENT_STARTED)
                if isinstance(outcome, Applied) and outcome.previous_state is not segment.state:
                    self._failed(batch, segment_id, "it changed just before; looked at again")
                    return
            batch.going[segment_id] = segment
        except RlmmError as error:
            self._failed(batch, segment_id, error.message)

    def _ran_here(self, segment: SegmentMetadata) -> bool:
        own = segment.broker_id == self._tools.broker_id
        return own and segment.event_timestamp_ms >= self._tools.started_at_ms

    async def _delete_objects(self, batch: _Batch) -> list[SegmentId]:
        """Delete everything that the batch's segments may have; return those with nothing left."""
        owner: dict[str, SegmentId] = {}
        gone = list[SegmentId]()
        for segment_id, segment in batch.going.items():
            if self._tools.manager.events.is_held(batch.partition, segment_id):
                self._failed(batch, segment_id, "the segment is held; run: rlmm log repair")
                continue
            try:
                keys = await self._keys(segment)
                owner |= dict.fromkeys(keys, segment_id)
                await self._abort_uploads(segment)
                if not keys:
                    gone.append(segment_id)
            except RlmmError as error:
                self._failed(batch, segment_id, error.message)
        if not owner:
            return gone
        bucket, pace = self._tools.bucket, self._tools.pace
        outcomes = await pace.call(lambda: bucket.delete(list(owner)))
        failed = {owner[key]: error for key, error in outcomes.items() if error is not None}
        for segment_id, reason in failed.items():
            self._failed(batch, segment_id, reason.message)
        return gone + [each for each in dict.fromkeys(owner.values()) if each not in failed]

    async def _abort_uploads(self, segment: SegmentMetadata) -> None:
        """Abort what a copy left that was cut off; one that ran here has cleaned up."""
        if segment.segment_id not in self._ended and self._never_finished(segment):
            leftovers = self._tools.leftovers
            await leftovers.abort(await leftovers.uploads_of(segment))

    async def _keys(self, segment: SegmentMetadata) -> list[str]:
        bucket, kept = self._tools.bucket, self._kept(segment)
        if kept is None:  # any layout that was ever used: the marker is read anew
            places = await self._tools.pace.call(lambda: bucket.places(segment))
        else:
            places = await self._tools.pace.in_time(lambda: bucket.places(segment, kept))
        # The .log first: what is half deleted must not look whole.
        return [key for place in places for key in reversed(place.keys.values())]

    async def _finish(self, batch: _Batch, gone: Sequence[SegmentId]) -> None:
        await _some_at_once(gone, lambda each: self._finish_one(batch, each))

    async def _finish_one(self, batch: _Batch, segment_id: SegmentId) -> None:
        try:
            segment = self._tools.segment(batch.partition, segment_id)
            if segment is None:
                return
            step, wait_seconds = self._judge(segment)
            if step is DeleteStep.OBJECTS:
                self.backoff.wait(segment_id, wait_seconds, "a copy of it may still be ending")
                batch.order.put_off += 1
                return
            if step is not DeleteStep.FINISH:
                self._failed(batch, segment_id, f"not finished: {step.value}")
                return
            outcome = await self._append(batch, segment, S.DELETE_SEGMENT_FINISHED)
        except RlmmError as error:
            self._failed(batch, segment_id, error.message)
            return
        self.backoff.succeeded(segment_id)
        self._ended.pop(segment_id, None)
        if isinstance(outcome, Applied):
            self._tools.notes.finished(batch.partition, batch.order.why)

    def _judge(self, segment: SegmentMetadata) -> tuple[DeleteStep, float]:
        """Return what may be done about a segment now, and how long a copy is waited for."""
        tools, partition, segment_id = self._tools, segment.partition, segment.segment_id
        age_ms = max(0, tools.clock.now_ms() - segment.event_timestamp_ms)
        facts = DeleteFacts(
            failed=False,
            owner=True,
            held=tools.manager.events.is_held(partition, segment_id),
            # Whoever named the segment has judged these two already.
            loss_held=False,
            topic_gone=True,
            age_ms=age_ms,
            stuck_ms=0,
            foreign=is_foreign(self._kept(segment)),
            never_finished=self._never_finished(segment),
            copy_ended=segment_id in self._ended,
            copy_ms=self.copy_ms,
        )
        if self.copy_ms is None:
            return delete_step(facts), tools.options.interval_seconds
        return delete_step(facts), max(0, self.copy_ms - age_ms) / 1000

    # Small things.

    def _never_finished(self, segment: SegmentMetadata) -> bool:
        return self._kept(segment) is None

    def _kept(self, segment: SegmentMetadata) -> bytes | None:
        return self._tools.manager.events.kept_custom_metadata(
            segment.partition, segment.segment_id
        )

    async def _append(self, batch: _Batch, segment: SegmentMetadata, state: SegmentState) -> object:
        tools, segment_id = self._tools, segment.segment_id
        record = update_record(
            segment,
            state,
            segment.custom_metadata,
            broker_id=tools.broker_id,
            now_ms=tools.clock.now_ms(),
        )

        def holds(cache: PartitionCache) -> bool:
            return (
                segment_id not in cache.held
                and cache.state(segment_id) is segment.state
                and (state is S.DELETE_SEGMENT_FINISHED or batch.order.holds(cache, segment_id))
            )

        return await tools.manager.events.update_if(record, holds, tools.options.write_seconds)

    def _failed(self, batch: _Batch, segment_id: SegmentId, message: str) -> None:
        batch.order.put_off += 1
        self.backoff.failed(segment_id, message)
        self._tools.notes.failed(batch.partition, message)


async def _some_at_once(
    ids: Sequence[SegmentId], work: Callable[[SegmentId], Coroutine[Any, Any, None]]
) -> None:
    for first in range(0, len(ids), APPENDS_AT_ONCE):
        async with asyncio.TaskGroup() as appends:
            for segment_id in ids[first : first + APPENDS_AT_ONCE]:
                appends.create_task(work(segment_id), name="cleaner.append")
