"""Check of a Kafka `.log` file: it is fed the file in chunks, in one pass.

Every batch's checksum holds, offsets ascend and lie in the metadata's range, the file has exactly
the size that the metadata names, nothing stands behind the last batch. Nothing is decompressed, and
equality at the ends is not asked for: compaction leaves gaps. Batches of the old message formats
(magic 0 and 1, in files older than Kafka 4) are checked by their own CRC-32; of their offsets only
the outer one is known. Source: DefaultRecordBatch, LegacyRecord.
"""

import enum
import struct
import zlib
from typing import Final

import msgspec
from crc32c import crc32c

from rlmm_daemon.codec.batches import CRC_FROM, HEADER_BYTES, LENGTH_END, MAGIC
from rlmm_daemon.domain.errors import ChecksumMismatch, Malformed
from rlmm_daemon.domain.ids import Offset

#: Base offset, length, leader epoch, magic, CRC, attributes, last offset delta.
_HEADER: Final = struct.Struct(">qiibIhi")
#: Offset, length, CRC, magic: as far as every format agrees.
_LEGACY_HEADER: Final = struct.Struct(">qiIb")
_LEGACY_CRC_FROM: Final = 16
#: Offset and length, then CRC, magic, attributes, null key, null value.
_LEGACY_BYTES_MIN: Final = 26
_BIGGEST_LEGACY_MAGIC: Final = 1


class _Sum(enum.Enum):
    CRC32C = enum.auto()
    CRC32 = enum.auto()


class CheckedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a file that passed."""

    size_bytes: int
    batches: int
    #: How many of them are of magic 0 or 1.
    legacy_batches: int
    #: None in a file without batches.
    first_offset: Offset | None
    last_offset: Offset | None


class SegmentChecker:
    """Feed it a whole segment file front to back, then `finish`. Not for use after an error.

    What it holds between two chunks is at most one header. A chunk is best some 64 KiB to 1 MiB:
    one batch at a time is copied out of it for the checksum, which reads `bytes` only.
    """

    def __init__(self, *, start_offset: Offset, end_offset: Offset, size_bytes: int) -> None:
        self._start_offset, self._end_offset = start_offset, end_offset
        self._size = size_bytes
        self._fed = 0
        self._batches = self._legacy = 0
        self._first: Offset | None = None
        self._last = Offset(-1)
        #: The start of a batch's header, when a chunk ended inside it.
        self._header = b""
        # The batch that is under way: where it began, its offset, what is missing, its checksum.
        self._position = 0
        self._offset = 0
        self._missing = 0
        self._kind = _Sum.CRC32C
        self._expected_crc = self._crc = 0

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        """Check the file's next bytes; `bytes` is fastest, all else is copied once.

        Raises:
            ChecksumMismatch: a batch's CRC is wrong.
            Malformed: a header that is none, an offset out of place, more bytes than promised.

        Both carry `position` (of the batch in the file) and `offset` (the batch's base offset, or
        None where there is no header to tell it).
        """
        piece = chunk if type(chunk) is bytes else bytes(chunk)
        at = self._fed
        self._fed += len(piece)
        if self._fed > self._size:
            self._walk(piece[: self._size - at], at)  # a batch that is wrong is the better reason
            reason = f"the file goes on beyond the {self._size} bytes of its metadata"
            raise self._fail(reason, outside_at=self._size)
        self._walk(piece, at)

    def finish(self) -> CheckedSegment:
        """Return what was found once the whole file was fed.

        Raises:
            Malformed: the file ends early, or inside a batch.
        """
        if self._header:
            left = len(self._header)
            raise self._fail(f"{left} bytes at the end are no batch", outside_at=self._fed - left)
        if self._missing:
            raise self._fail(f"the file ends {self._missing} bytes before the batch does")
        if self._fed != self._size:
            reason = f"the file has {self._fed} bytes, its metadata says {self._size}"
            raise self._fail(reason, outside_at=self._fed)
        return CheckedSegment(
            size_bytes=self._fed,
            batches=self._batches,
            legacy_batches=self._legacy,
            first_offset=self._first,
            last_offset=None if self._first is None else self._last,
        )

    def _walk(self, piece: bytes, file_at: int) -> None:
        at, size = 0, len(piece)
        while at < size:
            if self._missing:
                at = self._continue(piece, at)
                continue
            if not self._header:
                at = self._sound_batches(piece, at, file_at)
            self._position = file_at + at - len(self._header)
            header = self._header + piece[at : at + _HEADER.size - len(self._header)]
            if len(header) < self._header_bytes(header):
                self._header = header
                return
            at -= len(self._header)  # may be negative: what was carried counts as read
            self._header = b""
            at += self._begin(header)

    def _sound_batches(self, piece: bytes, at: int, file_at: int) -> int:
        """Pass over the batches that lie whole in the piece, and return where the last ends.

        Nearly all do, so this is one loop without a call; whatever is cut, old or odd is left to
        the careful path, which says what is wrong with it.
        """
        behind = min(len(piece), self._size - file_at)
        first, last, count = self._start_offset, self._last, 0
        while at + HEADER_BYTES <= behind:
            base, length, _, magic, expected, _, delta = _HEADER.unpack_from(piece, at)
            end = at + LENGTH_END + length
            sound = (
                magic == MAGIC
                and at + HEADER_BYTES <= end <= behind
                and delta >= 0
                and base > last
                and base >= first
                and base + delta <= self._end_offset
                and crc32c(piece[at + CRC_FROM : end]) == expected
            )
            if not sound:
                break
            if self._first is None:
                self._first = Offset(base)
            at, last, count = end, base + delta, count + 1
        self._last = Offset(last)
        self._batches += count
        return at

    @staticmethod
    def _header_bytes(header: bytes) -> int:
        """Return how many bytes must be known; an old message may be shorter than a v2 header."""
        if len(header) < _LEGACY_HEADER.size:
            return _LEGACY_HEADER.size
        return _LEGACY_HEADER.size if 0 <= header[16] <= _BIGGEST_LEGACY_MAGIC else _HEADER.size

    def _begin(self, header: bytes) -> int:
        """Take a batch's header in; return how many of its bytes are used up."""
        base, length, expected, magic = _LEGACY_HEADER.unpack_from(header)
        self._offset, last = base, base
        if magic == MAGIC:
            _, _, _, _, expected, _, delta = _HEADER.unpack_from(header)
            self._kind, covered, least = _Sum.CRC32C, CRC_FROM, HEADER_BYTES
            last = base + delta
        elif 0 <= magic <= _BIGGEST_LEGACY_MAGIC:
            self._kind, covered, least = _Sum.CRC32, _LEGACY_CRC_FROM, _LEGACY_BYTES_MIN
            self._legacy += 1
        else:
            reason = f"no batch begins here: magic is {magic}"
            raise self._fail(reason, outside_at=self._position)
        self._admit(base, last, LENGTH_END + length, least)
        used = header[covered : _HEADER.size if magic == MAGIC else _LEGACY_HEADER.size]
        self._expected_crc, self._crc = expected, 0
        self._missing = LENGTH_END + length - covered
        self._sum(used)
        return covered + len(used)

    def _admit(self, base: int, last: int, size: int, least: int) -> None:
        """Refuse a size or an offset that cannot be; else count the batch."""
        if size < least:
            raise self._fail(f"the batch claims {size} bytes, less than its header")
        if self._position + size > self._size:
            raise self._fail(f"the batch claims {size} bytes, beyond the end of the file")
        if last < base:
            raise self._fail(f"the batch's last offset {last} is below its first")
        if base <= self._last:
            raise self._fail(f"the offset does not ascend: {self._last} came before")
        if base < self._start_offset or last > self._end_offset:
            allowed = f"{self._start_offset}..{self._end_offset}"
            raise self._fail(f"offsets {base}..{last} lie outside the metadata's {allowed}")
        self._batches += 1
        self._last = Offset(last)
        if self._first is None:
            self._first = Offset(base)

    def _continue(self, piece: bytes, at: int) -> int:
        """Take what the piece holds of the batch that is under way; return where it ends there."""
        behind = min(at + self._missing, len(piece))
        self._sum(piece[at:behind])
        return behind

    def _sum(self, covered: bytes) -> None:
        add = crc32c if self._kind is _Sum.CRC32C else zlib.crc32
        self._crc = add(covered, self._crc)
        self._missing -= len(covered)
        if not self._missing and self._crc != self._expected_crc:
            raise ChecksumMismatch(
                f"batch at offset {self._offset}, file position {self._position}: checksum is"
                f" {self._crc:08x}, its header says {self._expected_crc:08x}",
                position=self._position,
                offset=self._offset,
            )

    def _fail(self, reason: str, *, outside_at: int | None = None) -> Malformed:
        """Return the error of the batch under way, or of a place that belongs to no batch."""
        if outside_at is not None:
            return Malformed(
                f"file position {outside_at}: {reason}", position=outside_at, offset=None
            )
        return Malformed(
            f"batch at offset {self._offset}, file position {self._position}: {reason}",
            position=self._position,
            offset=self._offset,
        )
