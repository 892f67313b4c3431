"""An embedded log under churn, in simulated time: its bytes, and what they cost to read back.

One metadata partition of fifty, whose user partitions copy segments in a row and delete the oldest:
the log itself runs, on files in memory, and is compacted as the daemon does it. Every event is a
batch of its own, as at a few segments a second; batches are put into the newest file without the
writer, whose tasks would take most of a year's time. All fifty are alike.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console

from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog, EmbeddedOptions, files
from rlmm_daemon.adapters.event_log.embedded.journal import (
    Journal,  # noqa: TC001  # as every other module imports it
)
from rlmm_daemon.codec import batches
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.snapshots.compaction import When
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.observability import logging
from rlmm_daemon.ports.event_log import NO_EPOCH
from tests.benchmarks.growth_events import OFFSETS, PARTITION, Mould, Segment
from tests.benchmarks.memory_disk import MemoryDisk

PARTITIONS: Final = 50
USER_PARTITIONS: Final = 20
ZERO: Final = MetadataPartition(0)
DIRECTORY: Final = "/log"
DAY_SECONDS: Final = 86_400
#: The snapshotter's times, and the compactor's.
SNAPSHOT_SECONDS: Final = 300.0
SNAPSHOTS_KEPT: Final = 2
POLL_SECONDS: Final = 30.0


class SimulatedClock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return 1_795_000_000_000 + int(self.seconds * 1000)


@dataclass(slots=True)
class Churn:
    """Segments that are copied, and the oldest deleted once so many live."""

    alive: int
    made: int = 0
    live: deque[tuple[Segment, int]] = field(default_factory=deque)
    #: Bytes of the live segments' events, each in a batch of its own.
    live_bytes: int = 0
    _moulds: list[Mould] = field(default_factory=list)

    def __post_init__(self) -> None:
        at = [PARTITION._replace(partition=number) for number in range(USER_PARTITIONS)]
        self._moulds = [Mould(partition) for partition in at]

    def next(self) -> list[bytes]:
        """Return the events of one copy, and of the deletion that it brings."""
        mould, row = self._moulds[self.made % USER_PARTITIONS], self.made // USER_PARTITIONS
        segment = mould.segment(OFFSETS * row, OFFSETS * row + OFFSETS - 1)
        self.made += 1
        size = sum(batch_bytes(value) for value in (segment.started, segment.finished))
        self.live.append((segment, size))
        self.live_bytes += size
        if len(self.live) <= self.alive:
            return [segment.started, segment.finished]
        gone, size = self.live.popleft()
        self.live_bytes -= size
        return [segment.started, segment.finished, gone.delete_started, gone.delete_finished]


def batch_bytes(value: bytes) -> int:
    return len(batches.build([value], base_offset=0, leader_epoch=0, timestamp_ms=0))


@dataclass(slots=True)
class Churned:
    """What a log came to."""

    events: int = 0
    compactions: int = 0
    compaction_seconds: float = 0.0
    log_bytes: int = 0
    live_bytes: int = 0
    #: The largest that the log ever was, in live events of that moment; once it was full.
    ratio_max: float = 0.0
    #: Seconds of the processor to read and fold the log, and the live events alone.
    replay_seconds: float = 0.0
    replay_live_seconds: float = 0.0
    replayed: int = 0

    @property
    def ratio(self) -> float:
        return self.log_bytes / self.live_bytes


@asynccontextmanager
async def steady() -> AsyncGenerator[bool, None]:
    yield True


async def turn() -> None:
    """Nobody else is there."""


class Bench:
    """A log, its churn, and the time that passes."""

    def __init__(self, alive: int, when: When | None, tasks: asyncio.TaskGroup) -> None:
        self.disk = MemoryDisk()
        self.clock = SimulatedClock()
        self.churn = Churn(alive)
        self.found = Churned()
        self.log = self._made(self.disk, when, tasks)
        self._snapshots = deque([0] * SNAPSHOTS_KEPT, maxlen=SNAPSHOTS_KEPT)
        self._snapshot_at = self._poll_at = 0.0
        self._full = False
        self._tasks = tasks
        self.journal: Journal

    def _made(self, disk: MemoryDisk, when: When | None, tasks: asyncio.TaskGroup) -> EmbeddedLog:
        return EmbeddedLog(
            disk=disk,
            clock=self.clock,
            spawn=lambda work, name: tasks.create_task(work, name=name),
            luck=random.Random(1),
            directory=DIRECTORY,
            partition_count=1,
            options=EmbeddedOptions(compaction=when),
        )

    async def begin(self) -> None:
        """Make the log and its first file."""
        await self.log.open(create=True)
        await self.log.append(ZERO, b"garbage")
        journal = self.log._partitions[ZERO]._journal
        assert journal is not None, "it is open"
        self.journal = journal

    async def step(self, seconds: float) -> None:
        """Copy a segment, and do what is due in the time until the next."""
        for value in self.churn.next():
            await self._put(value)
        self.clock.seconds += seconds
        if self.clock.seconds >= self._snapshot_at:
            self._snapshots.append(self.journal.next_offset)
            self._snapshot_at = self.clock.seconds + SNAPSHOT_SECONDS
        if self.clock.seconds >= self._poll_at:
            self._poll_at = self.clock.seconds + POLL_SECONDS
            await self._poll()

    async def _put(self, value: bytes) -> None:
        journal, options = self.journal, self.log.context.options
        base, epoch = journal.next_offset, journal.epochs.latest
        content = batches.build([value], base_offset=base, leader_epoch=epoch, timestamp_ms=0)
        if journal.position + len(content) > options.segment_bytes:
            await self.log.seal(ZERO)
        newest = self.disk.files[files.segment_path(journal.directory, journal.newest)]
        newest[journal.position : journal.position + len(content)] = content
        journal.position += len(content)
        journal.next_offset += 1
        self.found.events += 1

    async def _poll(self) -> None:
        # With the room that the writer makes ahead.
        ahead = self.log.context.options.preallocate_bytes
        size = self.disk.log_bytes(DIRECTORY) + ahead
        self._full = self._full or len(self.churn.live) == self.churn.alive
        if self._full:
            self.found.ratio_max = max(self.found.ratio_max, size / self.churn.live_bytes)
        begun = time.process_time()
        done = await self.log.compact(ZERO, self._snapshots[0], turn=turn, steady=steady)
        if done is not None:
            self.found.compactions += 1
            self.found.compaction_seconds += time.process_time() - begun

    async def end(self) -> Churned:
        """Measure what there is: bytes, and two replays."""
        found, churn = self.found, self.churn
        found.log_bytes, found.live_bytes = self.disk.log_bytes(DIRECTORY), churn.live_bytes
        await self.log.close()
        found.replay_seconds, found.replayed, fold = await self._replay(self.disk)
        alone = MemoryDisk()
        log = self._made(alone, None, self._tasks)
        await log.open(create=True)
        for segment, _ in churn.live:
            await log.append(ZERO, segment.started)
            await log.append(ZERO, segment.finished)
        await log.close()
        found.replay_live_seconds, _, live = await self._replay(alone)
        assert set(fold.live_finished()) == set(live.live_finished()), "they hold the same"
        return found

    async def _replay(self, disk: MemoryDisk) -> tuple[float, int, Fold]:
        best, fold, records = float("inf"), Fold(ZERO, 1), 0
        for _ in range(3):
            log = self._made(disk, None, self._tasks)
            await log.open(create=False)
            end = (await log.end_offsets([ZERO]))[ZERO].end
            fold, records = Fold(ZERO, 1), 0
            begun = time.process_time()
            async with aclosing(log.follow(ZERO, 0, epoch=NO_EPOCH)) as stream:
                async for batch in stream:
                    rows, at = batch.records, 0
                    while at < len(rows):
                        behind = fold.apply_run(rows, at, len(rows))
                        if behind == at:
                            fold.apply(*rows[at])
                            behind += 1
                        at = behind
                    fold.advance(batch.next_offset, batch.leader_epoch)
                    records += len(rows)
                    if batch.next_offset >= end:
                        break
            best = min(best, time.process_time() - begun)
            await log.close()
        return best, records, fold


async def churned(
    *, segments: int, alive: int, seconds_each: float, when: When | None = None, shown: int = 0
) -> Churned:
    """Run so many segments through a log of its own and return what that came to."""
    async with asyncio.TaskGroup() as tasks:
        bench = Bench(alive, when, tasks)
        await bench.begin()
        for number in range(segments):
            await bench.step(seconds_each)
            if shown and number % shown == shown - 1:
                found, size = bench.found, bench.disk.log_bytes(DIRECTORY)
                print(  # noqa: T201 - the progress of a long run
                    f"{(number + 1) / segments:.0%}: {found.events:,} events, {size:,} B, "
                    f"{found.compactions} compactions, at most {found.ratio_max:.2f} times live",
                    flush=True,
                )
        return await bench.end()


def rows(found: Churned) -> Iterator[str]:
    """Say what a run came to."""
    yield f"{found.events:,} events, {found.compactions} compactions"
    yield f"log {found.log_bytes * PARTITIONS:,} B in all partitions"
    yield f"live events {found.live_bytes * PARTITIONS:,} B: each in a batch of its own"
    yield f"the log is {found.ratio:.2f} times that, and was {found.ratio_max:.2f} at most"
    each = found.compaction_seconds / max(1, found.events) * 1e6
    yield f"compactions took {each:.2f} us of the processor for each event appended"
    replay = found.replay_seconds / found.replay_live_seconds
    yield (
        f"a cold replay reads {found.replayed:,} events in {found.replay_seconds:.2f} s, "
        f"{replay:.2f} times what the live ones take"
    )


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.benchmarks.churned_log")
    options.add_argument("--days", type=float, default=1.0)
    options.add_argument("--alive", type=int, default=1_000_000, help="in all partitions")
    options.add_argument("--per-second", type=float, default=10.0, help="segments, in all")
    options.add_argument("--never", action="store_true", help="without compaction")
    chosen = options.parse_args()
    logging.configure(level="error", style="console")
    rate = chosen.per_second / PARTITIONS
    alive = chosen.alive // PARTITIONS
    segments = int(chosen.days * DAY_SECONDS * rate)
    found = asyncio.run(
        churned(
            segments=segments, alive=alive, seconds_each=1 / rate,
            when=None if chosen.never else When(), shown=max(1, segments // 20),
        )
    )  # fmt: skip
    console = Console(width=None if sys.stdout.isatty() else 150)
    for row in rows(found):
        console.print(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
