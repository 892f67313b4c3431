"""The cleaner: a task per metadata partition, as long as this daemon owns or follows it.

The owner removes what is marked and ends what is stuck; a daemon that only follows ends its own
broker's stuck copies. Those may lie where it follows nothing any more, since replicas move: so each
metadata partition is followed for one pass now and then, and soon after its broker was started
anew. With the Kafka log the owner is the daemon of the partition's leader, and a view of the
cluster that is too old owns nothing, so that a former owner stops.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import structlog

from rlmm_daemon.core.disposal.steps import CopyStep
from rlmm_daemon.core.fold.outcome import Applied, Outcome
from rlmm_daemon.core.readiness.states import PartitionState
from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.cleaner.backoff import KeyBackoff
from rlmm_daemon.daemon.cleaner.leftovers import LeftoverSearch
from rlmm_daemon.daemon.cleaner.notes import Notes
from rlmm_daemon.daemon.cleaner.options import CleanerOptions
from rlmm_daemon.daemon.cleaner.pace import Pace
from rlmm_daemon.daemon.cleaner.peers import Peers, PeerSource, SharedLook
from rlmm_daemon.daemon.cleaner.proof import JoinedProof, SharedProof, TopicProof
from rlmm_daemon.daemon.cleaner.removal import PartitionRemoval
from rlmm_daemon.daemon.cleaner.segments import SegmentRemover
from rlmm_daemon.daemon.cleaner.stuck import Stuck
from rlmm_daemon.daemon.cleaner.superseded import Superseded
from rlmm_daemon.daemon.cleaner.tools import Copies, Tools
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.domain.errors import NotReady, RlmmError
from rlmm_daemon.domain.ids import (
    BrokerId,
    MetadataPartition,
    SegmentId,
    TopicIdPartition,
)
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.ports.clock import Clock

logger = structlog.get_logger(__name__)

#: How soon a change of owners or followers is seen, at the latest.
LOOK_SECONDS: Final = 1.0
#: Of one metadata partition: they share questions and listings.
REMOVALS_AT_ONCE: Final = 8
#: A key 2 record: a partition's mark.
_MARK: Final = 2
_API_KEY_AT: Final = 1

D = PartitionDeleteState
#: The metadata partitions that this daemon owns; None: not known now, so none is.
Owned = Callable[[], frozenset[MetadataPartition] | None]


class Cleaner:
    """Runs until cancelled; everything it knows beyond the fold is for people."""

    def __init__(
        self,
        *,
        manager: Manager,
        bucket: Bucket,
        copier: Copies,
        proof: TopicProof,
        peers: PeerSource,
        owned: Owned,
        options: CleanerOptions,
        broker_id: BrokerId,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.notes = Notes(clock.now_ms)
        proof, pace = JoinedProof(proof), Pace(options, clock.monotonic)
        self.tools = Tools(
            manager=manager,
            bucket=bucket,
            copier=copier,
            proof=proof,
            peers=peers,
            recent_proof=SharedProof(proof, clock.monotonic, options.interval_seconds / 2),
            recent_peers=SharedLook(peers, clock.monotonic, options.interval_seconds / 2),
            options=options,
            pace=pace,
            leftovers=LeftoverSearch(bucket, pace),
            broker_id=broker_id,
            clock=clock,
            rng=rng,
            notes=self.notes,
            superseded=Superseded(),
            started_at_ms=clock.now_ms(),
        )
        self.segments = SegmentRemover(self.tools)
        self._owned = owned
        self._backoff = KeyBackoff(
            clock.monotonic,
            rng,
            seconds_min=options.backoff_seconds_min,
            seconds_max=options.backoff_seconds_max,
        )
        self._bells: dict[MetadataPartition, Broadcast] = {}
        self._tasks: dict[MetadataPartition, asyncio.Task[None]] = {}
        #: Rung by marks since the last pass of that partition.
        self._marked: set[MetadataPartition] = set()
        #: How many passes over a metadata partition were ended, for the rounds.
        self._passes: Counter[MetadataPartition] = Counter()
        #: The broker's incarnation whose forerunners' copies were looked for everywhere.
        self._looked_for: int | None = None
        self._group: asyncio.TaskGroup | None = None
        #: Orders of people that are under way.
        self.orders: dict[str, asyncio.Task[None]] = {}
        #: What purges under way were told to delete.
        self.ordered: dict[TopicIdPartition, set[SegmentId]] = {}
        manager.events.has_cleaner = True
        manager.hooks.applied.append(self._applied)

    # The tasks.

    async def run(self) -> None:
        """Keep a task for each metadata partition that is owned or followed, for ever."""
        manager = self.tools.manager
        await manager.gates.until_open()
        async with asyncio.TaskGroup() as self._group:
            group = self._group
            group.create_task(self._rounds(), name="cleaner.rounds")
            while True:
                wanted = self._wanted()
                for number in [each for each in self._tasks if each not in wanted]:
                    await self._stop(number)
                for number in sorted(wanted - self._tasks.keys()):
                    self._bells[number] = Broadcast()
                    self._tasks[number] = group.create_task(
                        self._keep(number), name=f"cleaner.{number}"
                    )
                await asyncio.sleep(LOOK_SECONDS)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do a person's order beside the passes; the same one is not begun twice."""
        if self._group is None or name in self.orders:
            work.close()
            return
        task = self.orders[name] = self._group.create_task(work, name=name)
        task.add_done_callback(lambda _: self.orders.pop(name, None))

    @property
    def waiting(self) -> int:
        """How many partitions and segments wait after a failure."""
        return len(self.segments.backoff) + len(self._backoff)

    def owns(self, number: MetadataPartition) -> bool:
        """Return whether this daemon owns a metadata partition now."""
        owned = self._owned()
        return owned is not None and number in owned

    def _wanted(self) -> set[MetadataPartition]:
        if self.tools.manager.fleet.follow_set is None:
            return set()
        return set(self._owned() or ()) | set(self.tools.manager.fleet.followers)

    async def _rounds(self) -> None:
        """Follow each metadata partition that nobody else wants for a pass, one after another."""
        while True:
            await self._until_round()
            follow_set = self.tools.manager.fleet.follow_set
            count = 0 if follow_set is None else follow_set.partition_count
            for number in map(MetadataPartition, range(count)):
                if follow_set is not None and number not in self.tools.manager.fleet.followers:
                    with follow_set.keep(number):
                        await self._until_passed(number)

    async def _until_round(self) -> None:
        """Wait for a round's time, or until what an earlier incarnation of the broker began is old.

        That one copies no more, so its copies need not hang until the next round.
        """
        clock, options = self.tools.clock, self.tools.options
        until = clock.monotonic() + options.round_seconds
        while clock.monotonic() < until:
            await asyncio.sleep(LOOK_SECONDS)
            born_ms = self.tools.manager.assignment.incarnation_ms
            if born_ms is None or born_ms == self._looked_for:
                continue
            if clock.now_ms() - born_ms > options.own_patience_ms:
                self._looked_for = born_ms
                return

    async def _until_passed(self, number: MetadataPartition) -> None:
        """Return after a whole pass that left nothing to end, or as soon as the fold is `failed`.

        Not beyond a round's time.
        """
        before = self._passes[number]
        until = self.tools.clock.monotonic() + self.tools.options.round_seconds
        while self._passes[number] == before or self._is_ending(number):
            await asyncio.sleep(LOOK_SECONDS)
            found = self.tools.manager.fleet.followers.get(number)
            failed = found is not None and found.state is PartitionState.FAILED
            if failed or self.tools.clock.monotonic() >= until:
                return

    def _is_ending(self, number: MetadataPartition) -> bool:
        """Return whether the last pass over it found copies to end; the next one tells."""
        return any(
            CopyStep.REMOVE in note.copies and self.number_of(partition) == number
            for partition, note in self.notes.stuck.items()
        )

    async def _stop(self, number: MetadataPartition) -> None:
        task = self._tasks.pop(number)
        task.cancel()
        await asyncio.wait({task})
        del self._bells[number]
        self.notes.forget([p for p in self.notes.removals if self.number_of(p) == number])
        self.notes.forget([p for p in self.notes.stuck if self.number_of(p) == number])

    async def _keep(self, number: MetadataPartition) -> None:
        """Pass over one metadata partition, at each mark and every interval."""
        while True:
            self._marked.discard(number)
            if self.owns(number):
                await self._as_owner(number)
            else:
                await self._pass(number)
            await self._wait(number)

    async def _as_owner(self, number: MetadataPartition) -> None:
        follow_set = self.tools.manager.fleet.follow_set
        assert follow_set is not None, "a task starts once the log is open"
        with follow_set.keep(number):
            while self.owns(number):
                await self._pass(number)
                await self._wait(number)

    async def _wait(self, number: MetadataPartition) -> None:
        """Return at a mark, at a change of the owner, or after the interval."""
        if number in self._marked:
            self._marked.discard(number)
            return
        owner, until = self.owns(number), self.tools.clock.monotonic() + self._interval(number)
        while self.owns(number) == owner and self.tools.clock.monotonic() < until:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._bells[number].wait()
            except TimeoutError:
                continue
            self._marked.discard(number)
            return

    def _interval(self, number: MetadataPartition) -> float:
        """Look again soon while the fold is on its way to be judged by."""
        options = self.tools.options
        found = self.tools.manager.fleet.followers.get(number)
        settled = (PartitionState.READY, PartitionState.FAILED)
        if found is not None and found.state in settled:
            return options.interval_seconds
        return min(LOOK_SECONDS, options.interval_seconds)

    def _applied(self, number: MetadataPartition, outcome: Outcome) -> None:
        if isinstance(outcome, Applied) and outcome.value[_API_KEY_AT] == _MARK:
            self._marked.add(number)
            if number in self._bells:
                self._bells[number].ring()

    # A pass.

    async def _pass(self, number: MetadataPartition) -> None:
        """Go over it once; one partition's trouble ends nothing but this pass."""
        try:
            await self._go_over(number)
        except RlmmError as error:
            self.notes.failures += 1
            logger.warning("pass ended early", metadata_partition=number, error=error.message)

    async def _go_over(self, number: MetadataPartition) -> None:
        follower = self.tools.manager.fleet.followers.get(number)
        if follower is not None and follower.state is PartitionState.FAILED:
            await self._tell_of_failed(number, follower)
        if follower is None or follower.state is not PartitionState.READY:
            return
        peers = Peers()
        if self.owns(number):
            peers = await self.tools.recent_peers.look()
            self.segments.wait_for_copies_of(peers)
            await self._remove_marked(number, follower)
        await Stuck(
            self.tools,
            self.segments,
            owner=lambda: self.owns(number),
            still_ours=lambda: self._still_follows(number, follower),
            peers=peers,
        ).look(follower)
        self._passes[number] += 1

    async def _tell_of_failed(self, number: MetadataPartition, follower: Follower) -> None:
        """Note what a failed metadata partition keeps from being deleted."""
        with suppress(RlmmError):  # a fold may have failed because it cannot be read
            for partition in self._marked_in(follower) if self.owns(number) else ():
                cache = follower.fold.partitions.get(partition)
                if cache is not None:
                    self._removal(number, partition).hold(cache)
            await Stuck(
                self.tools,
                self.segments,
                owner=lambda: self.owns(number),
                still_ours=lambda: self._still_follows(number, follower),
                peers=Peers(),
                failed=True,
            ).look(follower)

    def _still_follows(self, number: MetadataPartition, follower: Follower) -> bool:
        return self.tools.manager.fleet.followers.get(number) is follower

    def _marked_in(self, follower: Follower) -> list[TopicIdPartition]:
        return [
            partition
            for partition in list(follower.fold.partitions)
            if (found := follower.fold.partitions.peek(partition)) is not None
            and found.delete_state in (D.DELETE_PARTITION_MARKED, D.DELETE_PARTITION_STARTED)
        ]

    async def _remove_marked(self, number: MetadataPartition, follower: Follower) -> None:
        marked = self._marked_in(follower)
        gone = self.notes.removals.keys() - set(marked)
        self.notes.forget([p for p in gone if self.number_of(p) == number])
        due = [p for p in marked if not self._backoff.waits(p)]
        for first in range(0, len(due), REMOVALS_AT_ONCE):
            if not self.owns(number):
                return
            async with asyncio.TaskGroup() as removals:
                for partition in due[first : first + REMOVALS_AT_ONCE]:
                    work = self._advance(number, partition)
                    removals.create_task(work, name=f"cleaner.removal {partition}")

    def _removal(self, number: MetadataPartition, partition: TopicIdPartition) -> PartitionRemoval:
        return PartitionRemoval(partition, self.tools, self.segments, lambda: self.owns(number))

    async def _advance(self, number: MetadataPartition, partition: TopicIdPartition) -> None:
        removal = self._removal(number, partition)
        try:
            await removal.advance()
        except NotReady:
            return  # the next pass sees
        except RlmmError as error:
            self._backoff.failed(partition, error.message)
            self.notes.failed(partition, error.message)
            logger.warning("removal failed", partition=str(partition), error=error.message)
        else:
            self._backoff.succeeded(partition)
            if removal.is_cut_off:
                self._marked.add(number)  # the next pass comes at once

    def number_of(self, partition: TopicIdPartition) -> MetadataPartition | None:
        """Return the metadata partition of a user partition; None while the log is not open."""
        follow_set = self.tools.manager.fleet.follow_set
        return None if follow_set is None else follow_set.of(partition)
