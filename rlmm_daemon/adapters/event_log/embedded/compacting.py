"""Compaction of one partition: closed files written anew without the events that nothing needs.

The files are read twice: once to learn which events stay (`core.snapshots.compaction`), once to
write these. Both go on in slices, beside appends and followers. Nothing has changed until `decide`.
"""

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Final

import msgspec

from rlmm_daemon.adapters.event_log.embedded import compacted_files, files
from rlmm_daemon.adapters.event_log.embedded.compacted_files import CLEANED_SUFFIX, Compaction
from rlmm_daemon.adapters.event_log.embedded.journal import Journal
from rlmm_daemon.adapters.event_log.embedded.options import Context
from rlmm_daemon.adapters.event_log.embedded.reader import Reader
from rlmm_daemon.adapters.event_log.embedded.rewriting import Rewriter
from rlmm_daemon.core.snapshots.compaction import Survivors
from rlmm_daemon.domain.errors import LogCorrupt
from rlmm_daemon.ports.disk import DiskFile  # noqa: TC001  # as every other module imports it
from rlmm_daemon.ports.event_log import Compacted, LogBatch, LogRange, Turn

#: A slice of the loop, and how many events are put in before the clock is looked at.
SLICE_SECONDS: Final = 0.0003
_SLICE_CHECK_EVENTS: Final = 16
#: What is written at once.
_CHUNK_BYTES: Final = 256 * 1024


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """Files that stand beside the log, complete and synced, and what they are to replace."""

    compaction: Compaction
    bytes_before: int = 0
    bytes_after: int = 0
    events_after: int = 0
    #: That was written down before; only what comes of it is left to be done.
    is_decided: bool = False

    @classmethod
    def of(cls, decided: Compaction) -> "Written":
        """Return what an earlier attempt wrote."""
        return cls(compaction=decided, is_decided=True)

    @property
    def told(self) -> Compacted:
        """What it came to."""
        return Compacted(
            until=self.compaction.until,
            bytes_before=self.bytes_before,
            bytes_after=self.bytes_after,
            events_after=self.events_after,
        )


class _Pace:
    """Gives way after each slice."""

    def __init__(self, context: Context, turn: Turn) -> None:
        self._clock = context.clock
        self._turn = turn
        self._until = 0.0

    async def keep(self) -> None:
        """Return at once, or in a later turn of the loop if the slice is over."""
        if self._clock.monotonic() >= self._until:
            await self._turn()
            self._until = self._clock.monotonic() + SLICE_SECONDS


async def write_anew(
    context: Context, journal: Journal, until: int, partition_count: int, *, turn: Turn
) -> Written:
    """Write what stays of the events before `until`, where a file begins, beside the log.

    Raises:
        LogCorrupt: a file is damaged.
        OSError: the disk is full or fails; what was written was removed if that can be.
    """
    pace = _Pace(context, turn)
    start = journal.range.start
    survivors = Survivors(journal.partition, partition_count, start=start)
    async with aclosing(_batches(context, journal, until)) as source:
        async for batch in source:
            if batch.unvouched:
                survivors.lost()
            for at, (offset, value) in enumerate(batch.records):
                survivors.take(offset, value)
                if not at % _SLICE_CHECK_EVENTS:
                    await pace.keep()
    for _ in survivors.settle():
        await pace.keep()
    output = _Output(context, journal.directory)
    try:
        rewriter = Rewriter(
            start,
            journal.epochs.entries,
            timestamp_ms=context.clock.now_ms(),
            bytes_max=context.options.slice_bytes,
        )
        events = 0
        async with aclosing(_batches(context, journal, until)) as source:
            async for batch in source:
                events += await _rewrite(batch, survivors, rewriter, pace)
                await output.take(rewriter)
        rewriter.close(until)
        await output.take(rewriter)
        await output.close()
    except BaseException:  # cancelled too
        await output.abandon()
        raise
    replaced = [base for base in journal.bases if base < until]
    return Written(
        compaction=Compaction(
            count=journal.compaction.count + 1,
            until=until,
            bases=output.bases,
            sizes=output.sizes,
            replaced=replaced,
            pending=True,
        ),
        bytes_before=sum([await size_of(context, journal, base) for base in replaced]),
        bytes_after=sum(output.sizes),
        events_after=events,
    )


async def _rewrite(batch: LogBatch, survivors: Survivors, rewriter: Rewriter, pace: _Pace) -> int:
    """Pass on what stays of a batch; return how many events."""
    gaps, events = deque(batch.unvouched), 0
    for at, (offset, value) in enumerate(batch.records):
        while gaps and gaps[0].start < offset:
            _pass_on(gaps.popleft(), rewriter)
        if offset in survivors:
            rewriter.put(offset, value)
            events += 1
        if not at % _SLICE_CHECK_EVENTS:
            await pace.keep()
    for gap in gaps:
        _pass_on(gap, rewriter)
    return events


def _pass_on(gap: LogRange, rewriter: Rewriter) -> None:
    rewriter.lost(gap.start, gap.end)


async def _batches(
    context: Context, journal: Journal, until: int
) -> AsyncGenerator[LogBatch, None]:
    reader, position = Reader(context, journal), journal.range.start
    try:
        while position < until:
            batch = await reader.read(position)
            position = batch.next_offset
            if position > until:  # the records beyond it would be lost
                raise LogCorrupt(
                    f"{reader.path} goes on beyond offset {until}, where another file begins",
                    file=reader.path,
                    position=0,
                    reason="two files hold the same offsets",
                )
            yield batch
    finally:
        await reader.close()


async def size_of(context: Context, journal: Journal, base: int) -> int:
    """Return the bytes of a file that is written no more."""
    if base not in journal.sizes:
        file = await context.disk.open(files.segment_path(journal.directory, base))
        try:
            journal.sizes[base] = await file.size()
        finally:
            await file.close()
    return journal.sizes[base]


async def sizes(context: Context, journal: Journal, until: int) -> tuple[int, int]:
    """Return the bytes of all files before `until`, and of those that the last compaction left."""
    left, size = set(journal.compaction.bases), {}
    for base in journal.bases:
        if base < min(until, journal.newest):
            size[base] = await size_of(context, journal, base)
    return sum(size.values()), sum(each for base, each in size.items() if base in left)


class _Output:
    """The new files, each at most as large as a file of the log."""

    def __init__(self, context: Context, directory: str) -> None:
        self._disk = context.disk
        self._directory = directory
        self._file_bytes_max = context.options.segment_bytes
        self.bases: list[int] = []
        self.sizes: list[int] = []
        self._file: DiskFile | None = None
        self._buffer = bytearray()
        #: Bytes of the file that are written.
        self._position = 0

    async def take(self, rewriter: Rewriter) -> None:
        """Write the batches that are complete."""
        while rewriter.ready:
            base, content = rewriter.ready.popleft()
            size = self._position + len(self._buffer)
            if self._file is None or size + len(content) > self._file_bytes_max:
                await self.close()
                await self._begin(base)
            self._buffer += content
            if len(self._buffer) >= _CHUNK_BYTES:
                await self._flush()

    async def close(self) -> None:
        """Complete the file, durably."""
        file = self._file
        if file is None:
            return
        await self._flush()
        await file.fdatasync()
        self.sizes.append(self._position)
        self._file = None
        await file.close()

    async def abandon(self) -> None:
        """Remove what was written."""
        file, self._file = self._file, None
        with suppress(OSError):
            if file is not None:
                await file.close()
            await compacted_files.discard(self._disk, self._directory)

    async def _begin(self, base: int) -> None:
        path = files.segment_path(self._directory, base) + CLEANED_SUFFIX
        self._file = await self._disk.open(path, write=True, create=True)
        await self._file.truncate(0)
        self.bases.append(base)
        self._position = 0

    async def _flush(self) -> None:
        assert self._file is not None, "there is something to write"
        await files.write_all(self._file, self._position, bytes(self._buffer))
        self._position += len(self._buffer)
        self._buffer.clear()
