"""The index of cached chunks: found by position, forgotten by segment, least recently used first.

Nothing here knows files. What is forgotten is found no more at once, and is then taken out one by
one: a segment's chunks can be thousands, and whoever takes them can pause.
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from rlmm_daemon.domain.ids import SegmentId

#: What changes when somebody writes to a file: inode, size, mtime.
Stamp = tuple[int, int, int]

_START: Final = attrgetter("start")


class ObjectId(NamedTuple):
    """One copy of one segment's `.log`."""

    segment_id: SegmentId
    #: Lower-case hex: tells two copies of one segment id apart, by key, size and checksum.
    tag: str


class Chunk(msgspec.Struct, eq=False):
    """Bytes of one object, in a file."""

    object: ObjectId
    start: int
    length: int
    crc32c: int
    name: str
    #: The file as its checksum was last found right; None since the start.
    verified: Stamp | None = msgspec.field(default=None)

    @property
    def end(self) -> int:
        """Return the position behind the last byte."""
        return self.start + self.length


class ObjectChunks(msgspec.Struct, eq=False):
    """The chunks of one object in the order of their positions."""

    chunks: list[Chunk] = msgspec.field(default_factory=list)
    size_bytes: int = 0
    #: Whether these very chunks cover the object, and are what was recorded of it.
    proven: bool = False


class ChunkIndex:
    """Chunks of which no two overlap. What was forgotten counts until it is taken."""

    def __init__(self) -> None:
        self.size_bytes = 0
        #: The longest unused first; the forgotten ones too.
        self._used: OrderedDict[Chunk, None] = OrderedDict()
        #: None is empty.
        self._rows: dict[SegmentId, dict[ObjectId, ObjectChunks]] = {}
        self._forgotten: deque[tuple[list[Chunk], str]] = deque()

    def __len__(self) -> int:
        return len(self._used)

    @property
    def forgotten(self) -> bool:
        """Whether there is something to take that was forgotten."""
        return bool(self._forgotten)

    def covering(self, object_id: ObjectId, at: int) -> Chunk | None:
        """Return the chunk that holds this position; O(log n), as no two overlap."""
        chunk = self.last_before(object_id, at + 1)
        return chunk if chunk is not None and at < chunk.end else None

    def last_before(self, object_id: ObjectId, end: int) -> Chunk | None:
        """Return the last chunk of an object that begins before `end`."""
        row = self.row(object_id)
        if row is None:
            return None
        number = bisect_left(row.chunks, end, key=_START)
        return row.chunks[number - 1] if number else None

    def __contains__(self, chunk: Chunk) -> bool:
        """Return whether it was neither removed nor forgotten."""
        return self.covering(chunk.object, chunk.start) is chunk

    def row(self, object_id: ObjectId) -> ObjectChunks | None:
        """Return what there is of an object; None if there is nothing."""
        return self._rows.get(object_id.segment_id, {}).get(object_id)

    def add(self, chunk: Chunk) -> None:
        """Take in a chunk that overlaps none, as the last used."""
        row = self._rows.setdefault(chunk.object.segment_id, {}).setdefault(
            chunk.object, ObjectChunks()
        )
        row.chunks.insert(bisect_left(row.chunks, chunk.start, key=_START), chunk)
        row.size_bytes += chunk.length
        row.proven = False
        self._used[chunk] = None
        self.size_bytes += chunk.length

    def use(self, chunk: Chunk) -> None:
        """Make it the last used."""
        self._used.move_to_end(chunk)

    def remove(self, chunk: Chunk) -> None:
        """Take out a chunk that is contained."""
        row = self._rows[chunk.object.segment_id][chunk.object]
        del row.chunks[bisect_left(row.chunks, chunk.start, key=_START)]
        row.size_bytes -= chunk.length
        if not row.chunks:
            self._unlist(chunk.object)
        self._taken(chunk)

    def forget(self, segment_id: SegmentId, cause: str) -> None:
        """Find no chunk of a segment any more; O(1) for each of its copies."""
        for object_id in list(self._rows.get(segment_id, ())):
            self.forget_object(object_id, cause)

    def forget_object(self, object_id: ObjectId, cause: str) -> None:
        """Find no chunk of one copy any more; O(1)."""
        row = self._unlist(object_id)
        if row is not None:
            self._forgotten.append((row.chunks, cause))

    def take(self, cause: str) -> tuple[Chunk, str]:
        """Take out one that was forgotten, with why it was, else the longest unused, for `cause`.

        There has to be one.
        """
        return self.take_forgotten() or (self._take_oldest(), cause)

    def take_forgotten(self) -> tuple[Chunk, str] | None:
        """Take out one that was forgotten, if there is any, and why it was."""
        if not self._forgotten:
            return None
        row, cause = self._forgotten[0]
        chunk = row.pop()
        if not row:
            self._forgotten.popleft()
        self._taken(chunk)
        return chunk, cause

    def _take_oldest(self) -> Chunk:
        chunk = next(iter(self._used))
        self.remove(chunk)
        return chunk

    def _taken(self, chunk: Chunk) -> None:
        del self._used[chunk]
        self.size_bytes -= chunk.length

    def _unlist(self, object_id: ObjectId) -> ObjectChunks | None:
        rows = self._rows.get(object_id.segment_id, {})
        row = rows.pop(object_id, None)
        if not rows:
            self._rows.pop(object_id.segment_id, None)
        return row
