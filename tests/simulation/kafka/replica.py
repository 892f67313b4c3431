"""One broker's copy of one partition: batches, leader epochs, what each producer wrote last.

Source of the epoch rules: Kafka's LeaderEpochFileCache and UnifiedLog.
"""

import struct
from dataclasses import dataclass, field
from typing import Final

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c

#: Where a batch has its producer id, producer epoch, first sequence and count.
_PRODUCER: Final = struct.Struct(">qhii")
_PRODUCER_AT: Final = 43
_CONTROL_ATTRIBUTES: Final = 0x30
_ATTRIBUTES_AT: Final = 21
_CRC_AT: Final = 17
_BATCHES_REMEMBERED: Final = 5
_NO_PRODUCER: Final = -1

OUT_OF_ORDER: Final = "out of order"


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch as it stands in the log."""

    base: int
    last: int
    epoch: int
    data: bytes
    #: Offset and value of each record; none of a control batch.
    records: tuple[tuple[int, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Written:
    """What a producer wrote: enough to know a repeat."""

    producer: int
    producer_epoch: int
    sequence: int
    count: int
    base: int


@dataclass(slots=True)
class Replica:
    """A copy of a partition; the leader's is the one that clients see."""

    start: int = 0
    end: int = 0
    #: The high watermark, as far as this broker knows.
    stable: int = 0
    batches: list[Batch] = field(default_factory=list)
    #: (leader epoch, its start offset), ascending.
    epochs: list[tuple[int, int]] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)

    # -- writing --

    def lead(self, epoch: int) -> None:
        """Note that this broker leads in an epoch, which begins at the log's end."""
        if self.epochs and self.epochs[-1][0] == epoch:
            return  # it wrote in it already
        while self.epochs and (self.epochs[-1][0] >= epoch or self.epochs[-1][1] >= self.end):
            self.epochs.pop()
        self.epochs.append((epoch, self.end))

    def append(self, data: bytes, epoch: int) -> int:
        """Place a batch at the end and return its base offset."""
        base, batch = self.end, batch_of(data, self.end, epoch)
        producer, producer_epoch, sequence, count = _PRODUCER.unpack_from(data, _PRODUCER_AT)
        if producer != _NO_PRODUCER:
            self.written.append(Written(producer, producer_epoch, sequence, count, base))
        self.batches.append(batch)
        self.end = batch.last + 1
        return base

    def judge(self, data: bytes) -> int | str | None:
        """Return the base offset of a repeat, or what is wrong with a batch's sequence, or None."""
        producer, producer_epoch, sequence, count = _PRODUCER.unpack_from(data, _PRODUCER_AT)
        mine = [each for each in self.written if each.producer == producer]
        if producer == _NO_PRODUCER or not mine:
            return None  # a leader that knows nothing of a producer takes any sequence
        for each in mine[-_BATCHES_REMEMBERED:]:
            if (each.producer_epoch, each.sequence, each.count) == (
                producer_epoch,
                sequence,
                count,
            ):
                return each.base
        follows = mine[-1].sequence + mine[-1].count
        if producer_epoch == mine[-1].producer_epoch and sequence != follows:
            return OUT_OF_ORDER
        return None

    # -- losing --

    def copy_of(self, leader: "Replica") -> None:
        """Become what the leader is: whatever differs is cut off first, as a follower does."""
        self.end = leader.end
        self.start = leader.start
        self.batches = list(leader.batches)
        self.epochs = list(leader.epochs)
        self.written = list(leader.written)
        self.stable = min(leader.stable, self.end)

    def agreed(self, leader: "Replica") -> int:
        """Return up to where this copy is the leader's: one that led may have a tail of its own."""
        if self.batches and leader.batches and self.batches[-1] is leader.batches[-1]:
            return self.end
        theirs = {(batch.base, batch.last, batch.epoch) for batch in leader.batches}
        shared = (
            batch.last + 1
            for batch in reversed(self.batches)
            if (batch.base, batch.last, batch.epoch) in theirs
        )
        return next(shared, min(self.start, leader.start))

    def fall_back(self, end: int) -> None:
        """Be what this copy was when it ended at `end` or before: it had stopped to copy then."""
        self.batches = [batch for batch in self.batches if batch.last < end]
        self.end = self.batches[-1].last + 1 if self.batches else self.start
        self.stable = min(self.stable, self.end)
        self.epochs = [entry for entry in self.epochs if entry[1] < self.end]
        self.written = [each for each in self.written if each.base < self.end]

    def trim(self, start: int) -> None:
        """Delete what lies before `start`, whole batches only, as DeleteRecords in the end does."""
        self.start = max(self.start, start)
        self.batches = [batch for batch in self.batches if batch.last >= self.start]
        earlier = [entry for entry in self.epochs if entry[1] <= self.start]
        if earlier:
            later = self.epochs[len(earlier) :]
            self.epochs = [(earlier[-1][0], self.start), *later]

    def compact(self, gone: set[int]) -> None:
        """Take out records; a batch keeps its borders, and goes when nothing is left of it."""
        kept = []
        for batch in self.batches:
            left = [row for row in batch.records if row[0] not in gone]
            if len(left) == len(batch.records):
                kept.append(batch)
            elif left:
                kept.append(thinned(batch, left))
        self.batches = kept

    # -- reading --

    @property
    def offsets(self) -> set[int]:
        """The offsets of all records that are here."""
        rows = (row for batch in self.batches for row in batch.records)
        return {offset for offset, _ in rows if offset >= self.start}

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to the asked one, and where it ends; -1 and -1: unknown."""
        if not self.epochs or epoch < 0:
            return -1, -1
        if epoch == self.epochs[-1][0]:
            return epoch, self.end
        later = [entry for entry in self.epochs if entry[0] > epoch]
        if not later:
            return -1, -1
        earlier = [entry for entry in self.epochs if entry[0] <= epoch]
        return (earlier[-1][0] if earlier else epoch), later[0][1]

    def read(self, position: int, bytes_max: int) -> bytes:
        """Return whole batches that reach beyond `position`, none beyond the high watermark."""
        found: list[bytes] = []
        size = 0
        for batch in self.batches:
            if batch.last < position:
                continue
            if batch.last >= self.stable:
                break
            if found and size + len(batch.data) > bytes_max:
                found.append(batch.data[: bytes_max - size])  # cut off, as the size limit does
                break
            found.append(batch.data)
            size += len(batch.data)
        return b"".join(found)


def encoded(values: list[bytes | None]) -> bytes:
    """Return a batch of a writer that is no idempotent producer."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for index, value in enumerate(values):
        builder.append(index, timestamp=1, key=None, value=value, headers=[])
    return bytes(builder.build())


def control() -> bytes:
    """Return the batch of a transaction's end, whose one record is none for a consumer."""
    builder = DefaultRecordBatchBuilder(2, 0, 1, -1, -1, -1, 1 << 10)
    builder.append(0, timestamp=1, key=b"\0\0\0\1", value=b"\0\0\0\0\0\0", headers=[])
    return _with_attributes(bytes(builder.build()), _CONTROL_ATTRIBUTES)


def is_control(data: bytes) -> bool:
    """Return whether a batch is a transaction's end."""
    return bool(int.from_bytes(data[_ATTRIBUTES_AT : _ATTRIBUTES_AT + 2], "big") & 0x20)


def batch_of(data: bytes, base: int, epoch: int) -> Batch:
    """Return a writer's batch with the offset and the leader epoch that a leader gives it."""
    placed = base.to_bytes(8, "big") + data[8:12] + epoch.to_bytes(4, "big") + data[16:]
    last = base + int.from_bytes(data[23:27], "big")
    rows: tuple[tuple[int, bytes | None], ...] = ()
    if not is_control(data):
        rows = tuple((each.offset, each.value) for each in DefaultRecordBatch(placed))
    return Batch(base, last, epoch, placed, rows)


def thinned(batch: Batch, left: list[tuple[int, bytes | None]]) -> Batch:
    """Return a batch with fewer records and the same borders, as the log cleaner leaves it."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for offset, value in left:
        builder.append(offset - batch.base, timestamp=1, key=None, value=value, headers=[])
    data = bytearray(builder.build())
    data[23:27] = (batch.last - batch.base).to_bytes(4, "big")
    whole = _summed(data)
    placed = batch.base.to_bytes(8, "big") + whole[8:12] + batch.data[12:16] + whole[16:]
    return Batch(batch.base, batch.last, batch.epoch, placed, tuple(left))


def _with_attributes(data: bytes, attributes: int) -> bytes:
    changed = bytearray(data)
    changed[_ATTRIBUTES_AT : _ATTRIBUTES_AT + 2] = attributes.to_bytes(2, "big")
    return _summed(changed)


def _summed(data: bytearray) -> bytes:
    """Return the bytes with their checksum put right."""
    data[_CRC_AT : _CRC_AT + 4] = crc32c(bytes(data[_ATTRIBUTES_AT:])).to_bytes(4, "big")
    return bytes(data)
