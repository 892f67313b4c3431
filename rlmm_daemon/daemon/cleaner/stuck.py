"""Segments that nobody ends: copies that were given up, deletes that stay begun, the third set.

The owner of a metadata partition looks at all of it; a daemon that only follows one looks at the
copies of the broker that it stands beside, which nobody else can judge.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

import structlog

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED, is_foreign, is_only_if_started
from rlmm_daemon.core.disposal.holds import Holds, held
from rlmm_daemon.core.disposal.steps import (
    CopyFacts,
    CopyStep,
    DeleteFacts,
    DeleteStep,
    Proof,
    copy_step,
    delete_step,
)
from rlmm_daemon.core.disposal.third_set import holders, may_go, removable
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.outcome import Applied
from rlmm_daemon.daemon.base.segment_log import decode_segment, update_record
from rlmm_daemon.daemon.cleaner.notes import StuckNote, add_stuck
from rlmm_daemon.daemon.cleaner.peers import Peers
from rlmm_daemon.daemon.cleaner.segments import SegmentRemover
from rlmm_daemon.daemon.cleaner.tools import StillOurs, Tools
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.domain.errors import NotReady, RlmmError
from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, SegmentId, TopicId, TopicIdPartition
from rlmm_daemon.domain.segment import SegmentState

logger = structlog.get_logger(__name__)

#: Caches, or segments, that are looked at before others get a turn.
TURN: Final = 64
#: For a long table of a snapshot that a thread has to read through first.
READ_SECONDS: Final = 30.0
#: Of one user partition, ended in one pass.
COPIES_MAX: Final = 100
#: A delete younger than this is not worth asking every broker about its topic.
ASK_AFTER_MS: Final = 60_000
_STORED_BEFORE: Final = (
    "by its event it was {} after a loss was accepted, but it was stored before, so it is kept; "
    "run: {}"
)
_LAST_COPY: Final = "no listing shows it, and it is kept, as it may be the last of its offsets: {}"
STUCK_COPY, STUCK_DELETE, UNLISTED = "stuck_copy", "stuck_delete", "unlisted"

S = SegmentState


class Stuck:
    """One pass over what a metadata partition holds."""

    def __init__(
        self,
        tools: Tools,
        segments: SegmentRemover,
        *,
        owner: StillOurs,
        still_ours: StillOurs,
        peers: Peers,
        failed: bool = False,
    ) -> None:
        """`failed`: the metadata partition is, so what hangs is told of and nothing is done."""
        self._tools, self._segments, self._peers = tools, segments, peers
        self._owner, self._still_ours, self._failed = owner, still_ours, failed
        self._now_ms = tools.clock.now_ms()
        #: What an accepted loss keeps: a fold that is ready has no gap but accepted ones, and holds
        #: are written together with an acceptance. Read again before anything is ended.
        self._holds: Holds | None = None
        self._number: MetadataPartition | None = None
        #: Of the partition that is looked at: copies that a later one of their broker shows as old.
        self._given_up: frozenset[SegmentId] = frozenset()

    async def look(self, follower: Follower) -> None:
        """Judge whatever hangs, and end what may be ended."""
        self._number = follower.partition
        for index, partition in enumerate(follower.fold.partitions.restless()):
            if index % TURN == TURN - 1:
                await asyncio.sleep(0)
            if not self._still_ours():
                return
            await self._tools.manager.gates.until_read(follower.partition, partition, READ_SECONDS)
            try:
                await self._look_into(partition, follower.fold.partitions.get(partition))
            except NotReady:
                return  # the fold is not to be judged by any more; the next pass sees
            except RlmmError as error:
                self._tools.notes.failures += 1
                logger.warning("not ended", partition=str(partition), error=error.message)

    async def _look_into(self, partition: TopicIdPartition, cache: PartitionCache | None) -> None:
        if cache is None or cache.delete_state is not None:
            return  # a marked partition's segments go with it
        if _hangs(cache):
            await self._look_at(partition, cache)
        elif partition in self._tools.notes.stuck:
            self._tools.notes.found(partition, StuckNote())

    async def _look_at(self, partition: TopicIdPartition, cache: PartitionCache) -> None:
        note = StuckNote()
        if self._holds is None and not self._failed:
            self._holds = await self._read_holds()
        copies = list(_unlisted_states(cache, S.COPY_SEGMENT_STARTED))
        old = [i for i in copies if self._is_old_own(cache, i)]
        self._given_up = await self._tools.superseded.of(cache, self._tools.broker_id, old)
        copies = list(_unlisted_states(cache, S.COPY_SEGMENT_STARTED))  # some may be gone by now
        stuck = [i for i in copies if self._judge_copy(cache, i, note) is CopyStep.REMOVE]
        deletes = list(_unlisted_states(cache, S.DELETE_SEGMENT_STARTED))
        gone = await self._topic_gone(partition.topic_id, cache, deletes)
        ending = [i for i in deletes if self._judge_delete(cache, i, note, gone=gone)]
        note.error = self._error_of([*copies, *deletes])
        self._tools.notes.found(partition, note)
        if self._failed:
            return
        due = [i for i in stuck if not self._segments.backoff.waits(i)]
        for segment_id in due[:COPIES_MAX]:
            await self._tools.pace.take(1)
            if await self._is_still_stuck(partition, segment_id):
                await self._end_copy(partition, segment_id)
        if ending and self._owner():
            self._holds = await self._read_holds()
            ending = [i for i in ending if self._judge_delete(cache, i, StuckNote(), gone=gone)]
            if not gone:
                ending = [i for i in ending if not await self._is_kept(cache, i)]
            await self._end_deletes(partition, ending)
        if self._owner():
            await self._end_unlisted(partition, note)

    async def _read_holds(self) -> Holds:
        """Return what the marker holds; it is read anew where it held something."""
        return await self._tools.pace.in_time(self._tools.bucket.holds)

    def _error_of(self, segment_ids: Iterable[SegmentId]) -> str | None:
        """Return what one of these failed of when it was last tried."""
        errors = map(self._segments.backoff.message, segment_ids)
        return next((error for error in errors if error is not None), None)

    # Copies.

    def _judge_copy(
        self, cache: PartitionCache, segment_id: SegmentId, note: StuckNote
    ) -> CopyStep:
        tail = cache.segments[segment_id]
        event_ms = tails.event_ms_of(tail)
        broker_id = BrokerId(tails.broker_of(tail))
        own = broker_id == self._tools.broker_id
        assignment = self._tools.manager.assignment
        incarnation = assignment.incarnation_ms
        age_ms = self._now_ms - event_ms
        patience_ms = self._patience_ms(own=own)
        step = copy_step(
            CopyFacts(
                failed=self._failed,
                loss_held=self._is_loss_held(event_ms),
                running_here=self._tools.copier.is_running(segment_id),
                age_ms=age_ms,
                patience_ms=patience_ms,
                own=own,
                manager_ours=assignment.has_manager,
                storage_ours=assignment.has_storage,
                reborn=incarnation is not None and incarnation > event_ms,
                superseded=segment_id in self._given_up,
                owner=self._owner(),
                registered=self._peers.is_registered(broker_id),
                lease_over=self._peers.lease_over(broker_id, self._now_ms),
            )
        )
        add_stuck(note.copies, step, segment_id, event_ms)
        return step

    def _is_loss_held(self, event_ms: int) -> bool:
        return held(self._holds or (), self._number, event_ms) is not None

    def _is_old_own(self, cache: PartitionCache, segment_id: SegmentId) -> bool:
        tail = cache.segments[segment_id]
        age_ms = self._now_ms - tails.event_ms_of(tail)
        own = tails.broker_of(tail) == self._tools.broker_id
        return own and age_ms > self._patience_ms(own=True)

    async def _is_still_stuck(self, partition: TopicIdPartition, segment_id: SegmentId) -> bool:
        """Judge a copy again, just before it is ended: those before it may have taken minutes."""
        cache = self._tools.cache(partition)
        tail = None if cache is None else cache.segments.get(segment_id)
        if cache is None or tail is None or not self._still_ours():
            return False
        if tails.broker_of(tail) != self._tools.broker_id:
            self._peers = await self._tools.peers.look()
            # Its COPY_SEGMENT_FINISHED may be what the log lost before this daemon had read it.
            assert self._number is not None, "it is being looked at"
            others, number = self._tools.manager.fleet.others, self._number
            await self._tools.pace.call(lambda: others.ask_others(number))
            await self._tools.manager.events.until_folded(
                partition, self._tools.options.write_seconds
            )
            cache = self._tools.cache(partition)
            if cache is None or segment_id not in cache.segments:
                return False
        self._holds = await self._read_holds()
        if await self._was_stored_before(cache, segment_id, "begun"):
            return False
        if cache.state(segment_id) is not S.COPY_SEGMENT_STARTED:
            return False
        return self._judge_copy(cache, segment_id, StuckNote()) is CopyStep.REMOVE

    async def _was_stored_before(
        self, cache: PartitionCache, segment_id: SegmentId, what: str
    ) -> bool:
        """Whether a hold keeps what the storage has of a copy, by the storage's own time.

        By its event it is younger, but that is of its writer's clock, which may have been ahead.
        """
        if held(self._holds or (), self._number, None) is None:
            return False
        record = cache.get(segment_id)
        if record is None:
            return False
        try:
            rows = await self._tools.leftovers.objects_of(decode_segment(record))
        except RlmmError as error:
            self._segments.backoff.failed(segment_id, error.message)
            return True  # nobody can say
        found = (held(self._holds or (), self._number, row.modified_ms) for row in rows)
        if (hold := next(filter(None, found), None)) is None:
            return False
        command = f"rlmm log recover {self._number}"
        if what != "begun":
            which = "--all" if hold.metadata_partition is None else self._number
            command = f"rlmm partition end-hold {which}"
        self._segments.backoff.failed(segment_id, _STORED_BEFORE.format(what, command))
        return True

    def _patience_ms(self, *, own: bool) -> int:
        options = self._tools.options
        if own:
            return options.own_patience_ms
        copy_ms = self._peers.copy_deadline_ms(options.copy_deadline_seconds)
        return copy_ms + round(1000 * options.delivery_timeout_seconds)

    async def _end_copy(self, partition: TopicIdPartition, segment_id: SegmentId) -> None:
        """Roll a copy back that nobody finishes, unless it was finished after all.

        Objects go only if this very DELETE_SEGMENT_STARTED replaced COPY_SEGMENT_STARTED.
        """
        tools, key = self._tools, segment_id
        try:
            await tools.bucket.require_alone()
            async with tools.manager.events.fence(
                partition, segment_id, tools.options.write_seconds
            ):
                if not await self._start_delete(partition, segment_id):
                    return
                await self._delete_objects(partition, segment_id)
                await self._finish_delete(partition, segment_id)
        except RlmmError as error:
            self._segments.backoff.failed(key, error.message)
            tools.notes.failed(partition, error.message)
            return
        self._segments.backoff.succeeded(key)
        tools.notes.finished(partition, STUCK_COPY)
        logger.info("stuck copy ended", partition=str(partition))

    async def _start_delete(self, partition: TopicIdPartition, segment_id: SegmentId) -> bool:
        tools = self._tools
        segment = tools.segment(partition, segment_id)
        if segment is None or tools.copier.is_running(segment_id):
            return False
        outcome = await tools.manager.events.update_if(
            update_record(
                segment,
                S.DELETE_SEGMENT_STARTED,
                ONLY_IF_STARTED,
                broker_id=tools.broker_id,
                now_ms=tools.clock.now_ms(),
            ),
            lambda cache: cache.state(segment_id) is S.COPY_SEGMENT_STARTED,
            tools.options.write_seconds,
            inside=True,
        )
        return isinstance(outcome, Applied) and outcome.previous_state is S.COPY_SEGMENT_STARTED

    async def _delete_objects(self, partition: TopicIdPartition, segment_id: SegmentId) -> None:
        tools = self._tools
        segment = tools.segment(partition, segment_id)
        if segment is None:
            return  # somebody else ended it
        places = await tools.pace.call(lambda: tools.bucket.places(segment))
        keys = [key for place in places for key in reversed(place.keys.values())]
        outcomes = await tools.pace.call(lambda: tools.bucket.delete(keys)) if keys else {}
        await tools.leftovers.abort(await tools.leftovers.uploads_of(segment))
        failed = [error for error in outcomes.values() if error is not None]
        if failed:
            raise failed[0]

    async def _finish_delete(self, partition: TopicIdPartition, segment_id: SegmentId) -> None:
        tools = self._tools
        segment = tools.segment(partition, segment_id)
        if segment is None:
            return
        await tools.manager.events.update_if(
            update_record(
                segment,
                S.DELETE_SEGMENT_FINISHED,
                None,
                broker_id=tools.broker_id,
                now_ms=tools.clock.now_ms(),
            ),
            lambda cache: segment_id not in cache.held,
            tools.options.write_seconds,
            inside=True,
        )

    # Deletes.

    async def _topic_gone(
        self, topic_id: TopicId, cache: PartitionCache, deletes: list[SegmentId]
    ) -> bool:
        """Return whether the topic is gone, asked only where that would change something."""
        if (
            self._failed
            or not self._owner()
            or not any(
                self._now_ms - tails.event_ms_of(cache.segments[i]) > ASK_AFTER_MS for i in deletes
            )
        ):
            return False
        return (await self._tools.proof.prove([topic_id]))[topic_id] is Proof.GONE

    def _judge_delete(
        self, cache: PartitionCache, segment_id: SegmentId, note: StuckNote, *, gone: bool
    ) -> bool:
        tail = cache.segments.get(segment_id)
        if tail is None:
            return False
        event_ms = tails.event_ms_of(tail)
        step = delete_step(
            DeleteFacts(
                failed=self._failed,
                owner=self._owner(),
                held=segment_id in cache.held,
                loss_held=(
                    is_only_if_started(tails.custom_of(tail)) and self._is_loss_held(event_ms)
                ),
                topic_gone=gone,
                age_ms=self._now_ms - event_ms,
                stuck_ms=round(1000 * self._tools.options.stuck_delete_seconds),
                foreign=is_foreign(cache.last_custom_metadata(segment_id)),
                never_finished=cache.last_custom_metadata(segment_id) is None,
                copy_ended=False,
                copy_ms=self._segments.copy_ms,
            )
        )
        add_stuck(note.deletes, step, segment_id, event_ms)
        return step in (DeleteStep.FINISH, DeleteStep.OBJECTS)

    async def _is_kept(self, cache: PartitionCache, segment_id: SegmentId) -> bool:
        """Whether a hold keeps a stuck copy whose delete was begun by a clock that was ahead."""
        tail = cache.segments.get(segment_id)
        if tail is None or not is_only_if_started(tails.custom_of(tail)):
            return False  # somebody asked for it
        if self._segments.backoff.waits(segment_id):
            return True
        return await self._was_stored_before(cache, segment_id, "deleted")

    async def _end_deletes(self, partition: TopicIdPartition, ending: list[SegmentId]) -> None:
        def candidates(cache: PartitionCache) -> Iterator[SegmentId]:
            return (i for i in ending if cache.state(i) is S.DELETE_SEGMENT_STARTED)

        await self._segments.remove(
            partition,
            candidates,
            why=STUCK_DELETE,
            holds=lambda _cache, _segment_id: False,  # nothing is begun here, only ended
            still_ours=self._owner,
        )

    # What no listing shows.

    async def _end_unlisted(self, partition: TopicIdPartition, note: StuckNote) -> None:
        cache = self._tools.cache(partition)
        if cache is None or cache.held:
            return
        chosen = removable(cache, self._segments.backoff.waits)
        if chosen is not None:
            self._holds = await self._read_holds()
            if held(self._holds, self._number, None) is not None:
                return  # what seems to cover it may have been deleted by an event that is lost
            await self._end_unlisted_one(cache, chosen)
        note.error = note.error or self._error_of(
            segment_id for index in cache.epochs.values() for segment_id in index.third
        )
        self._tools.notes.found(partition, note)

    async def _end_unlisted_one(self, cache: PartitionCache, chosen: SegmentId) -> None:
        stored = holders(cache, chosen) or frozenset()
        try:
            for each in filter(None, map(cache.get, stored)):
                await self._tools.leftovers.require_stored(decode_segment(each))
        except RlmmError as error:
            self._segments.backoff.failed(chosen, _LAST_COPY.format(error.message))
            return
        await self._segments.remove(
            cache.partition,
            lambda cache: iter([chosen] if chosen in cache.segments else []),
            why=UNLISTED,
            holds=lambda cache, i: cache.delete_state is None and may_go(cache, i, stored),
            still_ours=self._owner,
        )


def _hangs(cache: PartitionCache) -> bool:
    counts = cache.segments_by_state
    return bool(
        counts[S.COPY_SEGMENT_STARTED]
        or counts[S.DELETE_SEGMENT_STARTED]
        or any(index.third for index in cache.epochs.values())
    )


def _unlisted_states(cache: PartitionCache, state: SegmentState) -> Iterator[SegmentId]:
    """Yield the segments in a state that never is in Kafka's referenced set, each once."""
    seen: set[SegmentId] = set()
    for index in list(cache.epochs.values()):
        for segment_id in list(index.unreferenced):
            if segment_id not in seen and cache.state(segment_id) is state:
                seen.add(segment_id)
                yield segment_id
