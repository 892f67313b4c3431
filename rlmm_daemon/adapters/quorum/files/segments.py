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
from collections.abc import Iterator
from typing import Final, NamedTuple

from rlmm_daemon.adapters.quorum.files.layout import Layout, damaged
from rlmm_daemon.codec import scan
from rlmm_daemon.codec.batches import HEADER_BYTES, LENGTH_END
from rlmm_daemon.codec.kraft.log_batches import BATCH_BYTES_MAX
from rlmm_daemon.ports import disk_writes
from rlmm_daemon.ports.disk import Disk, DiskFile

SEGMENT_BYTES: Final = 64 * 1024 * 1024
#: A position is noted at least so often.
_INDEX_BYTES: Final = 4096
#: What was written last is read again soon, by all followers.
_RECENT_BYTES: Final = 1024 * 1024
#: Base offset, length; and at the header's end the last offset's delta.
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
        *,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        assert segments, "a log has a file, though it may be empty"
        self._disk = disk
        self._layout = layout
        self._segments = segments
        self._segment_bytes = segment_bytes
        self._file: DiskFile | None = None
        self._syncing = asyncio.Lock()
        self._lost_pages: OSError | None = None
        self._recent: deque[Recent] = deque()
        self._recent_bytes = 0

    @property
    def end(self) -> int:
        """The offset behind the last record."""
        return self._segments[-1].end

    @property
    def bases(self) -> list[int]:
        """The offsets that the files begin with."""
        return [segment.base for segment in self._segments]

    async def append(self, end: int, data: bytes) -> None:
        """Write a batch behind the last one; it ends before offset `end`."""
        newest = self._segments[-1]
        if newest.size and newest.size + len(data) > self._segment_bytes:
            await self._roll()
            newest = self._segments[-1]
        file = await self._newest()
        await disk_writes.write_all(file, newest.size, data)
        self._recent.append(Recent(newest.end, end, data))
        self._recent_bytes += len(data)
        while self._recent_bytes > _RECENT_BYTES:
            self._recent_bytes -= len(self._recent.popleft().data)
        newest.note(end, len(data))

    async def sync(self) -> None:
        """Make everything durable that was written before the call."""
        async with self._syncing:
            await self._sync_newest()

    async def cut(self, end: int) -> None:
        """Remove what stands at `end` or behind, durably, the newest first."""
        async with self._syncing:
            self._forget_recent(end)
            while len(self._segments) > 1 and self._segments[-1].base >= end:
                await self._close_newest()
                gone = self._segments[-1]
                await self._disk.remove(self._layout.segment(gone.base))
                self._segments.pop()
                # One by one: of two removals a crash may keep the first only, which leaves a gap.
                await self._disk.fsync_directory(self._layout.log)
            newest = self._segments[-1]
            position = await self._position(newest, end)
            await disk_writes.cut(await self._newest(), position)
            newest.cut(end, position)

    async def read(self, offset: int, end: int, bytes_max: int) -> bytes:
        """Return whole batches from the one that holds `offset`, all before `end`, at least one.

        They end with their file at the latest.

        Raises:
            LogCorrupt: no valid batch is where one was written.
        """
        if not self._segments[0].base <= offset < min(end, self.end):
            return b""
        if self._recent and offset >= self._recent[0].base:
            return b"".join(_fitting(self._recent, offset, end, bytes_max))
        at = bisect_right(self.bases, offset) - 1
        segment = self._segments[at]
        position = await self._position(segment, offset)
        data = await self._pread(segment, position, max(bytes_max, HEADER_BYTES))
        size = LENGTH_END + int(_BEGIN.unpack_from(data)[1])
        if size > len(data):
            data = await self._pread(segment, position, size)
        base = _BEGIN.unpack_from(data)[0]
        walked = scan.walk(data, base)
        taken = 0
        for batch in walked.found:
            if batch.next_offset > end or (taken and batch.position + batch.size > bytes_max):
                break
            taken = batch.position + batch.size
        if not taken:
            reason = walked.reason or f"no batch before offset {end}"
            raise damaged(self._layout.segment(segment.base), f"byte {position}: {reason}")
        return data[:taken]

    async def ends_at(self, end: int) -> bool:
        """Whether a batch ends before this offset, or the log does."""
        if end == self.end or end in self.bases:
            return True
        segment = self._segments[bisect_right(self.bases, end) - 1]
        position = await self._position(segment, end)
        header = await self._pread(segment, position, HEADER_BYTES)
        return bool(_BEGIN.unpack_from(header)[0] == end)

    async def drop_before(self, start: int) -> None:
        """Remove the files that end before this offset; those that a crash keeps go at an open."""
        gone = [each for each in self._segments[:-1] if each.end <= start]
        for segment in gone:
            await self._disk.remove(self._layout.segment(segment.base))
            self._segments.remove(segment)

    async def replace(self, start: int) -> None:
        """Go on with one empty file, which is on the disk: the others are gone."""
        await self.close()
        self._segments = [Segment(start)]
        self._forget_recent(0)

    async def close(self) -> None:
        """Give the descriptor back; nothing is synced."""
        async with self._syncing:
            await self._close_newest()

    async def _close_newest(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            await file.close()

    async def _newest(self) -> DiskFile:
        if self._file is None:
            path = self._layout.segment(self._segments[-1].base)
            self._file = await self._disk.open(path, write=True)
        return self._file

    async def _sync_newest(self) -> None:
        """Sync, unless a sync failed before: the pages that it lost look clean since."""
        if self._lost_pages is not None:
            raise OSError(errno.EIO, f"an earlier sync failed: {self._lost_pages}")
        file = await self._newest()
        try:
            await file.fdatasync()
        except OSError as error:
            self._lost_pages = error
            raise

    async def _roll(self) -> None:
        async with self._syncing:
            await self._sync_newest()
            await make_segment(self._disk, self._layout, self.end)
            await self._close_newest()
            self._segments.append(Segment(self.end))

    async def _position(self, segment: Segment, offset: int) -> int:
        """Return where the batch stands that holds an offset, or where the file's end is."""
        if offset == segment.end:
            return segment.size
        base, position = segment.before(offset)
        if base == offset:
            return position
        data = await self._pread(segment, position, segment.behind(offset) - position)
        at = 0
        while at + HEADER_BYTES <= len(data):
            found, length = _BEGIN.unpack_from(data, at)
            after = found + int(_DELTA.unpack_from(data, at + _DELTA_AT)[0]) + 1
            if found != base or not HEADER_BYTES <= LENGTH_END + length <= BATCH_BYTES_MAX:
                break
            if offset < after:
                return position + at
            base, at = after, at + LENGTH_END + int(length)
        raise damaged(
            self._layout.segment(segment.base),
            f"byte {position + at}: no batch with offset {base}, where one was written",
        )

    async def _pread(self, segment: Segment, position: int, length: int) -> bytes:
        length = min(length, segment.size - position)
        if segment is self._segments[-1]:
            return await (await self._newest()).pread(position, length)
        file = await self._disk.open(self._layout.segment(segment.base))
        try:
            return await file.pread(position, length)
        finally:
            await file.close()

    def _forget_recent(self, end: int) -> None:
        while self._recent and self._recent[-1].end > end:
            self._recent_bytes -= len(self._recent.pop().data)


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
