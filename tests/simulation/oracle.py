"""What an event log has promised so far, and whether what it says now keeps to that.

Once a record is acknowledged or shown to a follower it is there for ever, at that offset. A record
whose outcome is unknown may or may not appear, at most once; one that was refused never appears.
"""

from dataclasses import dataclass, field

from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import EpochEnd, LogBatch, LogIdentity, LogRange
from tests.simulation.world import Violation


@dataclass(slots=True)
class _Partition:
    #: Value -> whether the log has certainly refused it.
    sent: dict[bytes, bool] = field(default_factory=dict)
    #: Offset -> value: acknowledged or shown, so it stays.
    known: dict[int, bytes] = field(default_factory=dict)
    offset_of: dict[bytes, int] = field(default_factory=dict)
    #: The largest stable end that the log ever named.
    end: int = 0
    #: (position, leader epoch) of batches delivered: each must be confirmed for ever.
    positions: set[tuple[int, int]] = field(default_factory=set)
    #: Offset -> epoch, where a batch told it.
    epochs: dict[int, int] = field(default_factory=dict)
    #: The largest epoch seen in the lives before this one, and the values sent in this one.
    epoch_before: int = -1
    fresh: set[bytes] = field(default_factory=set)


class LogOracle:
    """The model of a whole log; it survives every crash."""

    def __init__(self, partitions: int) -> None:
        self._partitions = [_Partition() for _ in range(partitions)]
        self._identity: LogIdentity | None = None
        self.acknowledged = 0
        self.unknown = 0
        self.refused = 0

    def new_life(self) -> None:
        """A process starts: what it writes must carry a newer epoch than all before."""
        for each in self._partitions:
            each.epoch_before = max(each.epochs.values(), default=-1)
            each.fresh = set()

    @property
    def exists(self) -> bool:
        """Whether the log was ever opened: from then on it may not be missing."""
        return self._identity is not None

    def opened(self, identity: LogIdentity) -> None:
        """The log named itself."""
        if self._identity not in (None, identity):
            raise Violation(f"the log's identity changed from {self._identity} to {identity}")
        self._identity = identity

    # -- appends --

    def sending(self, partition: int, value: bytes) -> None:
        """A client is about to append; values are unique."""
        each = self._partitions[partition]
        assert value not in each.sent
        each.sent[value] = False
        each.fresh.add(value)

    def acknowledge(self, partition: int, value: bytes, offset: int) -> None:
        """The client was told the offset."""
        self.acknowledged += 1
        self._establish(partition, offset, value)

    def refuse(self, partition: int, value: bytes) -> None:
        """The client was told that the record is certainly not in the log, now or later."""
        self.refused += 1
        each = self._partitions[partition]
        if value in each.offset_of:
            raise Violation(f"refused, yet it is at offset {each.offset_of[value]}: {value[:40]!r}")
        each.sent[value] = True

    def lose_track(self) -> None:
        """The client does not know; both outcomes are right."""
        self.unknown += 1

    def _establish(self, partition: int, offset: int, value: bytes) -> None:
        each = self._partitions[partition]
        where = f"partition {partition} offset {offset}"
        if value not in each.sent:
            raise Violation(f"{where} holds what nobody sent: {value[:40]!r}")
        if each.sent[value]:
            raise Violation(f"{where} holds a record that was refused: {value[:40]!r}")
        if each.known.get(offset, value) != value:
            raise Violation(f"{where} held {each.known[offset][:40]!r}, now {value[:40]!r}")
        if each.offset_of.get(value, offset) != offset:
            raise Violation(f"{where} repeats offset {each.offset_of[value]}: {value[:40]!r}")
        each.known[offset] = value
        each.offset_of[value] = offset

    # -- readers --

    def delivered(self, partition: int, position: int, batch: LogBatch) -> int:
        """A follower at `position` was given a batch; return its new position."""
        each = self._partitions[partition]
        for offset, value in batch.records:
            if offset != position:
                raise Violation(f"partition {partition}: offset {offset} came at {position}")
            if value is None:
                raise Violation(f"partition {partition}: a tombstone nobody sent at {offset}")
            self._establish(partition, offset, value)
            position += 1
        if batch.next_offset != position:
            raise Violation(f"partition {partition}: next is {batch.next_offset}, not {position}")
        if position > batch.range.end:
            raise Violation(f"partition {partition}: read to {position} of {batch.range}")
        self.ranged(partition, batch.range)
        if batch.records:
            self._check_epoch(each, partition, batch)
        return position

    def _check_epoch(self, each: _Partition, partition: int, batch: LogBatch) -> None:
        offset, value = batch.records[-1]
        epoch = batch.leader_epoch
        if each.epochs.setdefault(offset, epoch) != epoch:
            raise Violation(f"partition {partition}: the epoch of {offset} changed to {epoch}")
        if value in each.fresh and epoch <= each.epoch_before:
            raise Violation(f"partition {partition}: {offset} written now in old epoch {epoch}")
        each.positions.add((batch.next_offset, epoch))

    def ranged(self, partition: int, found: LogRange) -> None:
        """The log named a range."""
        each = self._partitions[partition]
        shown = max(each.known, default=-1) + 1
        if found.start != 0 or found.end < max(each.end, shown):
            raise Violation(f"partition {partition}: {found}, promised {max(each.end, shown)}")
        each.end = found.end

    def end(self, partition: int) -> int:
        """Return the largest end ever named."""
        return self._partitions[partition].end

    def positions(self, partition: int) -> list[tuple[int, int]]:
        """Return the (position, epoch) pairs that followers have stood at, ascending."""
        return sorted(self._partitions[partition].positions)

    def confirmed(self, partition: int, position: int, epoch: int, answer: EpochEnd) -> None:
        """The divergence check of a position that was delivered once: it must be confirmed."""
        if answer.epoch != epoch or answer.end_offset < position:
            raise Violation(f"partition {partition}: {position} in {epoch} denied by {answer}")

    def complete(self, partition: MetadataPartition, position: int) -> None:
        """A reader came from 0 to `position`, the end: nothing may be missing."""
        each = self._partitions[partition]
        missing = [offset for offset in each.known if offset >= position]
        if missing or position < each.end:
            raise Violation(f"partition {partition} ends at {position}, missing {missing}")
