"""Files of a quorum's log: written at the end, cut there, synced, read from any offset.

One sync is under way at a time: of two on one descriptor only one would hear of a failure. A file
follows the one before when that is synced, and has its own name on the disk before a byte is in it.
"""

import asyncio
import errno
import struct
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, NamedTuple

from rlmm_daemon.adapters.quorum.files.layout import Layout, damaged
from rlmm_daemon.codec import scan
from rlmm_daemon.codec.batches import HEADER_BYTES, LENGTH_END
from rlmm_daemon.codec.kraft.log_batches import BATCH_BYTES_MAX
from rlmm_daemon.domain.errors import LogCorrupt
from rlmm_daemon.ports import disk_writes
from rlmm_daemon.ports.disk import Disk, DiskFile

SEGMENT_BYTES: Final = 64 * 1024 * 1024
#: A position is noted at least so often.
_INDEX_BYTES: Final = 4096
#: What was written last is read again soon, by all followers.
_RECENT_BYTES: Final = 1024 * 1024
#: Base offset, length; and behind the attributes the last offset's delta.
_BEGIN: Final = struct.Struct(">qi")
_DELTA: Final = struct.Struct(">i")
_DELTA_AT: Final = 23


class Recent(NamedTuple):
    """A batch that was written lately."""

    base: int
    end: int
    data: bytes


class Segment:
    """One file: where it begins and ends, and where some of its batches stand."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.end = base
        self.size = 0
        self._offsets = array("q", [base])
        self._positions = array("q", [0])

    def note(self, end: int, size: int) -> None:
        """Know of a batch at the file's end."""
        if self.size - self._positions[-1] >= _INDEX_BYTES:
            self._offsets.append(self.end)
            self._positions.append(self.size)
        self.end = end
        self.size += size

    def before(self, offset: int) -> tuple[int, int]:
        """Return offset and position of a batch at or before this offset."""
        at = bisect_right(self._offsets, offset) - 1
        return self._offsets[at], self._positions[at]

    def behind(self, offset: int) -> int:
        """Return the first position that is noted behind this offset, or the file's end."""
        at = bisect_right(self._offsets, offset)
        return self._positions[at] if at < len(self._positions) else self.size

    def cut(self, end: int, size: int) -> None:
        """Forget what stands from there on."""
        kept = max(1, bisect_right(self._positions, max(0, size - 1)))
        del self._offsets[kept:], self._positions[kept:]
        self.end, self.size = end, size


class Segments:
    """All files of one log, of which there is always one."""

    def __init__(
        self,
        disk: Disk,
        layout: Layout,
        segments: list[Segment],
        newest: DiskFile,
        *,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        assert segments, "a log has a file, though it may be empty"
        self._disk = disk
        self._layout = layout
        self._segments = segments
        self._segment_bytes = segment_bytes
        #: Open to be written.
        self._newest = newest
        #: Of syncs, and of whatever changes which files there are.
        self._changing = asyncio.Lock()
        #: How often files were cut or removed: who read meanwhile reads again.
        self._changes = 0
        self._lost_pages: OSError | None = None
        self._recent: deque[Recent] = deque()
        self._recent_bytes = 0

    @property
    def end(self) -> int:
        """The offset behind the last record."""
        return self._segments[-1].end

    async def append(self, end: int, data: bytes) -> None:
        """Write a batch behind the last one; it ends before offset `end`."""
        newest = self._segments[-1]
        if newest.size and newest.size + len(data) > self._segment_bytes:
            await self._roll()
            newest = self._segments[-1]
        await disk_writes.write_all(self._newest, newest.size, data)
        self._recent.append(Recent(newest.end, end, data))
        self._recent_bytes += len(data)
        while self._recent_bytes > _RECENT_BYTES:
            self._recent_bytes -= len(self._recent.popleft().data)
        newest.note(end, len(data))

    async def sync(self) -> None:
        """Make everything durable that was written before the call."""
        async with self._changing:
            await self._sync_newest()

    async def cut(self, end: int) -> None:
        """Remove what stands at `end` or behind, durably, the newest first."""
        async with self._changing:
            self._forget_recent(end)
            while len(self._segments) > 1 and self._segments[-1].base >= end:
                await self._newest.close()
                await self._disk.remove(self._layout.segment(self._segments[-1].base))
                # One by one: of two removals a crash may keep the first only, which leaves a gap.
                await self._disk.fsync_directory(self._layout.log)
                self._segments.pop()
                self._newest = await self._open_newest()
            newest = self._segments[-1]
            position = await self._position(self._newest, newest, end)
            await disk_writes.cut(self._newest, position)
            newest.cut(end, position)
            self._changes += 1

    async def read(
        self, offset: int, end: int, bytes_max: int, *, epochs: Sequence[tuple[int, int]]
    ) -> bytes:
        """Return whole batches from the one that holds `offset`, all before `end`, at least one.

        They end with their file at the latest. Each has its epoch by `epochs`, which are ascending
        (epoch, first offset).

        Raises:
            LogCorrupt: no valid batch is where one was written.
        """
        while self._segments[0].base <= offset < min(end, self.end):
            if self._recent and offset >= self._recent[0].base:
                return b"".join(_fitting(self._recent, offset, end, bytes_max))
            changes = self._changes
            try:
                return await self._read(offset, end, bytes_max, epochs)
            except (OSError, LogCorrupt):
                async with self._changing:
                    if changes == self._changes:
                        raise
        return b""

    async def ends_at(self, end: int) -> bool:
        """Whether a batch ends before this offset, or the log does."""
        segment = self._holding(end)
        if end in (self.end, segment.base):
            return True
        file = await self._disk.open(self._layout.segment(segment.base))
        try:
            position = await self._position(file, segment, end)
            return bool(_BEGIN.unpack(await file.pread(position, _BEGIN.size))[0] == end)
        finally:
            await file.close()

    async def drop_before(self, start: int) -> None:
        """Remove the files that end before this offset; those that a crash keeps go at an open."""
        async with self._changing:
            for segment in [each for each in self._segments[:-1] if each.end <= start]:
                await self._disk.remove(self._layout.segment(segment.base))
                self._segments.remove(segment)
            self._changes += 1

    async def replace(self, start: int, install: Callable[[], Awaitable[None]]) -> None:
        """Have all files replaced by one empty one; `install` does so on the disk."""
        async with self._changing:
            await self._newest.close()
            await install()
            self._segments = [Segment(start)]
            self._forget_recent(0)
            self._newest = await self._open_newest()
            self._changes += 1

    async def close(self) -> None:
        """Give the descriptor back; nothing is synced."""
        async with self._changing:
            await self._newest.close()

    async def _open_newest(self) -> DiskFile:
        path = self._layout.segment(self._segments[-1].base)
        return await self._disk.open(path, write=True)

    async def _sync_newest(self) -> None:
        """Sync, unless a sync failed before: the pages that it lost look clean since."""
        if self._lost_pages is not None:
            raise OSError(errno.EIO, f"an earlier sync failed: {self._lost_pages}")
        try:
            await self._newest.fdatasync()
        except OSError as error:
            self._lost_pages = error
            raise

    async def _roll(self) -> None:
        async with self._changing:
            await self._sync_newest()
            await make_segment(self._disk, self._layout, self.end)
            await self._newest.close()
            self._segments.append(Segment(self.end))
            self._newest = await self._open_newest()

    def _holding(self, offset: int) -> Segment:
        at = bisect_right(self._segments, offset, key=_base_of) - 1
        return self._segments[at]

    async def _read(
        self, offset: int, end: int, bytes_max: int, epochs: Sequence[tuple[int, int]]
    ) -> bytes:
        segment = self._holding(offset)
        path = self._layout.segment(segment.base)
        file = await self._disk.open(path)
        try:
            position = await self._position(file, segment, offset)
            left = segment.size - position
            data = await file.pread(position, min(max(bytes_max, HEADER_BYTES), left))
            size = _size_of(data)
            if len(data) < size <= left:
                data = await file.pread(position, size)
        finally:
            await file.close()
        walked = scan.walk(data, _BEGIN.unpack_from(data)[0] if size else offset)
        reason = walked.reason
        if walked.found and not walked.found[0].base_offset <= offset < walked.found[0].next_offset:
            reason = f"it begins with offset {walked.found[0].base_offset}, and {offset} was there"
        elif taken := _taken(walked.found, end, bytes_max, epochs):
            return data[:taken]
        raise damaged(path, f"byte {position}: {reason or 'not the epoch that was written'}")

    async def _position(self, file: DiskFile, segment: Segment, offset: int) -> int:
        """Return where the batch stands that holds an offset, or where the file's end is."""
        if offset == segment.end:
            return segment.size
        base, position = segment.before(offset)
        if base == offset:
            return position
        data = await file.pread(position, segment.behind(offset) - position)
        at = 0
        while at + HEADER_BYTES <= len(data):
            after = int.from_bytes(data[at : at + 8], "big") + 1
            after += int(_DELTA.unpack_from(data, at + _DELTA_AT)[0])
            size = _size_of(data[at:])
            if data[at : at + 8] != base.to_bytes(8, "big") or not size or after <= base:
                break
            if offset < after:
                return position + at
            base, at = after, at + size
        raise damaged(
            self._layout.segment(segment.base),
            f"byte {position + at}: no batch with offset {base}, where one was written",
        )

    def _forget_recent(self, end: int) -> None:
        while self._recent and self._recent[-1].end > end:
            self._recent_bytes -= len(self._recent.pop().data)


def _base_of(segment: Segment) -> int:
    return segment.base


def _size_of(data: bytes) -> int:
    """Return the size that a batch claims; 0 where it can't have it."""
    if len(data) < _BEGIN.size:
        return 0
    size = LENGTH_END + int(_BEGIN.unpack_from(data)[1])
    return size if HEADER_BYTES <= size <= BATCH_BYTES_MAX else 0


def _taken(
    found: Sequence[scan.FoundBatch], end: int, bytes_max: int, epochs: Sequence[tuple[int, int]]
) -> int:
    """Return how many bytes of these batches are taken: before `end`, each of its epoch."""
    taken = 0
    for batch in found:
        if batch.next_offset > end or (taken and batch.position + batch.size > bytes_max):
            break
        at = bisect_right(epochs, batch.base_offset, key=_start_of) - 1
        if at < 0 or epochs[at][0] != batch.leader_epoch:
            break
        taken = batch.position + batch.size
    return taken


def _start_of(entry: tuple[int, int]) -> int:
    return entry[1]


def _fitting(recent: deque[Recent], offset: int, end: int, bytes_max: int) -> Iterator[bytes]:
    size = 0
    for each in recent:
        if each.end <= offset:
            continue
        size += len(each.data)
        if each.end > end or (size > bytes_max and size > len(each.data)):
            return
        yield each.data


async def make_segment(disk: Disk, layout: Layout, base: int) -> None:
    """Make an empty file; its name is on the disk."""
    file = await disk.open(layout.segment(base), write=True, create=True)
    await file.close()
    await disk.fsync_directory(layout.log)
