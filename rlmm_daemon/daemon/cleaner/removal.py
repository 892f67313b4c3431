"""Removal of a marked user partition: the next step, until it is done or has to wait."""

import asyncio
from collections.abc import Iterator
from typing import Final, assert_never

import structlog

from rlmm_daemon.codec import records
from rlmm_daemon.core.disposal.steps import (
    HOLDS,
    Listing,
    PartitionFacts,
    PartitionStep,
    Proof,
    partition_step,
)
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.cleaner.leftovers import Leftovers
from rlmm_daemon.daemon.cleaner.peers import PeerSource
from rlmm_daemon.daemon.cleaner.segments import SegmentRemover
from rlmm_daemon.daemon.cleaner.tools import StillOurs, Tools
from rlmm_daemon.domain.errors import IllegalTransition
from rlmm_daemon.domain.ids import SegmentId, TopicIdPartition
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState

logger = structlog.get_logger(__name__)

#: An answer about the topic id is asked for anew after so long.
PROOF_SECONDS: Final = 10.0
#: More turns than any removal needs: each sweep that finds something new is one.
TURNS_MAX: Final = 1_000
REMOVED: Final = "partition_removed"

Step, D = PartitionStep, PartitionDeleteState


class PartitionRemoval:
    """The turns of one user partition."""

    def __init__(
        self,
        partition: TopicIdPartition,
        tools: Tools,
        segments: SegmentRemover,
        still_ours: StillOurs,
    ) -> None:
        self._partition, self._tools, self._segments = partition, tools, segments
        self._still_ours = still_ours
        self._listing = Listing.NOT_TAKEN
        self._found = Leftovers()
        self._proof = Proof.UNKNOWN
        self._proven_at: float | None = None
        #: It stopped for others' turn, not because something has to be waited for.
        self.is_cut_off = False
        #: Something of this partition may show up late in a listing until then.
        self._settled_at = 0.0

    async def advance(self) -> PartitionStep:
        """Take steps until one has to wait; return that step.

        Raises:
            RlmmError: a step failed; nothing is lost, the next call goes on.
        """
        step = Step.REST
        for _ in range(TURNS_MAX):
            step = await self._next()
            self._note(step)
            if step is Step.REST or step in HOLDS or not self._still_ours():
                return step
            if not await self._take(step):
                return step
            self._tools.notes.went_well(self._partition)
        return step

    def hold(self, cache: PartitionCache) -> None:
        """Note what it waits for while its metadata partition is failed; nothing is done."""
        self._note(partition_step(self._judged(cache, Proof.UNKNOWN, failed=True, peers=False)))

    def _note(self, step: PartitionStep) -> None:
        if self._tools.notes.step(self._partition, step):
            log = logger.warning if step in HOLDS else logger.info
            log("removal", partition=str(self._partition), step=step.value)

    # The facts.

    async def _next(self) -> PartitionStep:
        """Return the step that the facts call for, the cheap facts first."""
        step = partition_step(self._facts(Proof.GONE, peers=True))
        if step is Step.REST or step in HOLDS:
            return step
        step = partition_step(self._facts(await self._proven(fresh=_appends(step)), peers=True))
        waited = step is Step.LIST and self._waited_for_peers()
        if waited and not await self._survive(self._tools.recent_peers):
            return Step.HOLD_PEERS  # it was listed before; no need to list it for nothing
        if step is not Step.APPEND_FINISHED:
            return step
        return partition_step(
            self._facts(self._proof, peers=await self._survive(self._tools.peers))
        )

    def _facts(self, proof: Proof, *, peers: bool) -> PartitionFacts:
        """Return the facts of a fold that may be judged by."""
        return self._judged(self._tools.cache(self._partition), proof, failed=False, peers=peers)

    def _judged(
        self, cache: PartitionCache | None, proof: Proof, *, failed: bool, peers: bool
    ) -> PartitionFacts:
        return PartitionFacts(
            state=None if cache is None else cache.delete_state,
            proof=proof,
            failed=failed,
            segments=0 if cache is None else len(cache.segments),
            held=0 if cache is None else len(cache.held),
            copies_here=len(self._tools.copier.running_in(self._partition)),
            listing=self._listing,
            peers=peers,
        )

    async def _proven(self, *, fresh: bool) -> Proof:
        now = self._tools.clock.monotonic()
        old = self._proven_at is None or now - self._proven_at > PROOF_SECONDS
        if fresh or old or self._proof is not Proof.GONE:
            topic_id = self._partition.topic_id
            # That it is gone is never an answer of before.
            self._proof = (await self._tools.recent_proof.prove([topic_id]))[topic_id]
            self._proven_at = now
        return self._proof

    def _waited_for_peers(self) -> bool:
        note = self._tools.notes.removals.get(self._partition)
        return note is not None and note.step is Step.HOLD_PEERS

    async def _survive(self, source: PeerSource) -> bool:
        """Return whether all metadata managers survive the last mark."""
        if not self._tools.options.jvm_peers:
            return True
        peers = await source.look()
        return peers.survive_finished(self._tools.clock.now_ms())

    # The steps.

    async def _take(self, step: PartitionStep) -> bool:
        """Take a step; False if what is left of it has to wait."""
        match step:
            case Step.APPEND_STARTED:
                await self._append(D.DELETE_PARTITION_STARTED)
            case Step.DELETE_SEGMENTS:
                return await self._delete_segments()
            case Step.END_COPIES:
                await self._end_copies()
            case Step.LIST:
                await self._list()
            case Step.SWEEP:
                await self._sweep()
            case Step.APPEND_FINISHED:
                await self._finish()
            case (
                Step.REST
                | Step.HOLD_FAILED
                | Step.HOLD_ALIVE
                | Step.HOLD_UNPROVEN
                | Step.HOLD_HELD_SEGMENT
                | Step.HOLD_PEERS
            ):
                raise AssertionError(step)
            case _:
                assert_never(step)
        return True

    async def _append(self, state: PartitionDeleteState) -> None:
        tools = self._tools
        mark = PartitionDelete(
            partition=self._partition,
            broker_id=tools.broker_id,
            event_timestamp_ms=tools.clock.now_ms(),
            state=state,
        )
        try:
            await tools.manager.events.put_partition_delete(
                records.encode(mark),
                Caller.OPERATOR,
                tools.options.write_seconds,
                by_cleaner=True,
            )
        except IllegalTransition:
            # Another owner was faster, or a new life began: the next turn sees which.
            logger.info("mark refused", partition=str(self._partition), mark=state.name)

    async def _finish(self) -> None:
        """Append the last mark, unless a copy was begun that this daemon had not heard of.

        The mark drops every segment before it, so nobody would know of that copy's objects.
        """
        tools = self._tools
        await tools.manager.events.until_folded(self._partition, tools.options.write_seconds)
        if partition_step(self._facts(self._proof, peers=True)) is Step.APPEND_FINISHED:
            await self._append(D.DELETE_PARTITION_FINISHED)

    async def _delete_segments(self) -> bool:
        """Delete what may be deleted now; False if all that is left waits for its turn."""
        self._listing = Listing.NOT_TAKEN
        if self._tools.copier.running_in(self._partition):
            await self._end_copies()
        self.is_cut_off = await self._segments.remove(
            self._partition,
            _every,
            why=REMOVED,
            holds=_is_being_removed,
            still_ours=self._still_ours,
        )
        cache = self._tools.cache(self._partition)
        return cache is None or not len(cache.segments)

    async def _end_copies(self) -> None:
        for segment_id in self._tools.copier.running_in(self._partition):
            await self._tools.copier.end_copy(segment_id)
        self._settled_at = self._tools.clock.monotonic() + self._tools.options.settle_seconds
        self._listing = Listing.NOT_TAKEN

    async def _list(self) -> None:
        await asyncio.sleep(max(0.0, self._settled_at - self._tools.clock.monotonic()))
        self._found = await self._tools.leftovers.find(self._partition)
        self._listing = Listing.LEFTOVERS if self._found else Listing.EMPTY

    async def _sweep(self) -> None:
        await self._tools.bucket.require_alone()
        logger.info("leftovers", partition=str(self._partition), count=len(self._found))
        await self._tools.leftovers.sweep(self._found)
        self._listing = Listing.NOT_TAKEN


def _appends(step: PartitionStep) -> bool:
    return step in (Step.APPEND_STARTED, Step.APPEND_FINISHED)


def _every(cache: PartitionCache) -> Iterator[SegmentId]:
    return iter(cache.segments)


def _is_being_removed(cache: PartitionCache, _segment_id: SegmentId) -> bool:
    return cache.delete_state is D.DELETE_PARTITION_STARTED and not cache.held
