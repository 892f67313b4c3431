"""Records of segments in the shapes whose costs are drawn: in a row, in pairs, in chains, by epoch.

One encoded record is the mould for all others of a shape, since encoding takes longer than folding.
"""

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from rlmm_daemon.codec import batches, records
from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.snapshots import sealing, unsealing
from rlmm_daemon.domain.ids import LeaderEpoch, MetadataPartition, Offset, TopicId
from rlmm_daemon.domain.ids import TopicIdPartition as Partition
from rlmm_daemon.domain.segment import SegmentState
from tests.benchmarks.daemon import finished, segment
from tests.benchmarks.scale_events import BATCH_EVENTS, fold_events

OFFSETS: Final = 1_000
CHAIN: Final = 1_000
PARTITION: Final = Partition(TopicId(bytes([7] * 16)), "orders", 3)
_SPAN: Final = struct.Struct(">qq")
_EPOCH: Final = struct.Struct(">iq")


class Segment(NamedTuple):
    """A segment's events, encoded."""

    epoch: int
    start: int
    started: bytes
    finished: bytes
    delete_started: bytes
    delete_finished: bytes


class Mould:
    """Events of segments of one user partition with one leader epoch each."""

    def __init__(self, partition: Partition = PARTITION) -> None:
        one = segment(partition, 0)
        self._head = tails.ENVELOPE + tails.prefix_of(partition)
        self._update_head = b"\x01\x01\x00" + self._head[3:]
        self._tail = records.encode(one)[len(self._head) + 16 :]
        update = replace(finished(one), custom_metadata=None)
        self._updates = [
            records.encode(replace(update, state=state))[len(self._head) + 16 :]
            for state in list(SegmentState)[1:]
        ]

    def segment(self, start: int, end: int, epoch: int = 5) -> Segment:
        """Return a segment of these offsets with an id of its own."""
        segment_id, tail, epoch_at = os.urandom(16), self._tail, tails.EPOCHS_AT + 1
        added = b"".join((
            self._head, segment_id, tail[: tails.START_AT], _SPAN.pack(start, end),
            tail[tails.BROKER_AT : epoch_at], _EPOCH.pack(epoch, start), tail[epoch_at + 12 :],
        ))  # fmt: skip
        later = [self._update_head + segment_id + each for each in self._updates]
        return Segment(epoch, start, added, *later)


def in_a_row(count: int) -> list[Segment]:
    """Segments one behind another."""
    mould = Mould()
    return [mould.segment(OFFSETS * n, OFFSETS * n + OFFSETS - 1) for n in range(count)]


def in_pairs(count: int) -> list[Segment]:
    """Each range twice, as two leaders in a row upload it."""
    mould = Mould()
    starts = [OFFSETS * (n // 2) for n in range(count)]
    return [mould.segment(start, start + OFFSETS - 1) for start in starts]


def in_chains(count: int) -> list[Segment]:
    """Each over half of the one before, for a thousand of them; then a gap."""
    mould = Mould()
    starts = [OFFSETS // 2 * n + 10 * OFFSETS * (n // CHAIN) for n in range(count)]
    return [mould.segment(start, start + OFFSETS - 1) for start in starts]


def by_epoch(count: int) -> list[Segment]:
    """Each of a leader epoch of its own."""
    mould = Mould()
    return [mould.segment(OFFSETS * n, OFFSETS * n + OFFSETS - 1, n) for n in range(count)]


def of_many_epochs(epochs: int) -> Segment:
    """One segment in which the leader changed at every offset."""
    made = segment(PARTITION, 1)
    made = replace(
        made,
        start_offset=Offset(0),
        end_offset=Offset(epochs - 1),
        segment_leader_epochs={LeaderEpoch(n): Offset(n) for n in range(epochs)},
    )
    updates = [
        records.encode(replace(finished(made), custom_metadata=None, state=state))
        for state in list(SegmentState)[1:]
    ]
    return Segment(0, 0, records.encode(made), *updates)


def new_fold() -> Fold:
    return Fold(MetadataPartition(0), 1)


def applied(fold: Fold, values: Iterable[bytes]) -> Iterator[None]:
    """Fold records in one by one, as they are when somebody waits for each."""
    for offset, value in enumerate(values, start=fold.position):
        fold.apply(offset, value)
        yield


def copies(segments: Iterable[Segment]) -> Iterator[bytes]:
    for each in segments:
        yield each.started
        yield each.finished


def deletes(segments: Iterable[Segment]) -> Iterator[bytes]:
    for each in segments:
        yield each.delete_started
        yield each.delete_finished


def all_deletes(segments: Sequence[Segment]) -> Iterator[bytes]:
    """Every delete begun before the first ends, as a broker deletes a topic."""
    for each in segments:
        yield each.delete_started
    for each in segments:
        yield each.delete_finished


def filled(segments: Iterable[Segment]) -> Fold:
    fold = new_fold()
    for offset, value in enumerate(copies(segments)):
        fold.apply(offset, value)
    return fold


def snapshot_pieces(fold: Fold) -> Iterator[bytes | memoryview]:
    """Yield a snapshot in the steps in which it is written."""
    nobody = TopicId(bytes(16))
    header = sealing.header_of(fold, cluster_id="bench", topic_id=nobody, created_at_ms=1)
    return sealing.write_chunks(fold, header)


def restarted(snapshot: bytes) -> Fold:
    """Return a fold over a snapshot, its one user partition awake."""
    _, fold = unsealing.in_place(snapshot)
    assert fold.partitions[PARTITION] is not None
    return fold


def encoded(values: Iterable[bytes]) -> list[bytes]:
    """Return record batches of these records."""
    found, some, base = list[bytes](), list[bytes](), 0
    for value in values:
        some.append(value)
        if len(some) == BATCH_EVENTS:
            found.append(batches.build(some, base_offset=base, leader_epoch=1, timestamp_ms=1))
            base, some = base + len(some), []
    if some:
        found.append(batches.build(some, base_offset=base, leader_epoch=1, timestamp_ms=1))
    return found


def replayed(encoded_batches: Iterable[bytes]) -> Iterator[None]:
    """Replay record batches; a follower gives way several times in each, so it is no step."""
    fold = new_fold()
    for each in encoded_batches:
        fold_events(fold, iter([each]))
        yield
