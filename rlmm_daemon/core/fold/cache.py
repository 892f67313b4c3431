"""Cache of one user partition: its segments, their epochs, and the answers from them.

Listings are Kafka's, set and order. Look-ups answer any live finished segment that covers the
offset, of several the one that finished last. Source: RemoteLogMetadataCache; the deliberate
differences have a test each in `test_deviations.py`.

    state                   look-up   listed by epoch       listed in all
    COPY_SEGMENT_STARTED    no        yes                   yes
    COPY_SEGMENT_FINISHED   yes       yes, or third set     yes
    DELETE_SEGMENT_STARTED  no        yes                   yes
    DELETE_SEGMENT_FINISHED the segment is gone
"""

from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.codec.custom_metadata import is_only_if_started
from rlmm_daemon.codec.record_suffix import Span, merged, spans, state_of
from rlmm_daemon.core.fold.cover import Piece
from rlmm_daemon.core.fold.epochs import Epochs, Put
from rlmm_daemon.core.fold.kept_custom import KeptCustom, custom_of
from rlmm_daemon.core.fold.lifecycle import (
    LEGAL_BY_NUMBER,
    illegal,
    illegal_partition_delete,
    legal_partition_delete,
)
from rlmm_daemon.core.fold.segment_table import SegmentTable
from rlmm_daemon.domain.errors import InvalidArgument, SegmentNotFound
from rlmm_daemon.domain.ids import LeaderEpoch, Offset, SegmentId, TopicIdPartition, uuid_text
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import CustomMetadata, SegmentState

if TYPE_CHECKING:
    from rlmm_daemon.codec.sealed_table import SealedTable

STATES = tuple(SegmentState)
_STARTED, _FINISHED, _DELETE_STARTED, _DELETE_FINISHED = range(4)
#: Into more leader epochs an event is put some at a time (`Epochs.due`).
EPOCHS_AT_ONCE: Final = 64


class PartitionCache:
    """One user partition. Answers are whole records: key 0, version 0, the present state."""

    __slots__ = (
        "_strays",
        "bytes_by_state",
        "changes",
        "delete_state",
        "epochs",
        "held",
        "kept",
        "late_writers",
        "partition",
        "prefix",
        "segments",
        "segments_by_state",
        "writer",
    )

    def __init__(self, partition: TopicIdPartition, sealed: "SealedTable | None" = None) -> None:
        self.partition = partition
        #: The TopicIdPartitionEntry of its records.
        self.prefix = tails.prefix_of(partition)
        self.delete_state: PartitionDeleteState | None = None
        if sealed is not None and sealed.entry.delete_state is not None:
            self.delete_state = PartitionDeleteState(sealed.entry.delete_state)
        #: Events that changed something; a repeat leaves it alone.
        self.changes = 0
        #: Finished copies whose broker is not the one that began the latest copy: two writers.
        self.late_writers: dict[int, int] = {}
        self._reset(sealed)

    def _reset(self, sealed: "SealedTable | None" = None) -> None:
        self.segments = SegmentTable(self.prefix, sealed)
        self.epochs = Epochs(sealed)
        self.kept = KeptCustom(sealed)
        #: Epochs of an earlier COPY_SEGMENT_STARTED of the same id, in which it is still listed.
        self._strays: dict[SegmentId, set[int]] = {}
        #: Finished segments whose delete was meant for a stuck copy (`ONLY_IF_STARTED`), as they
        #: were: their objects may not be deleted until COPY_SEGMENT_FINISHED was appended again,
        #: whatever is applied in between.
        self.held: dict[SegmentId, bytes] = {}
        #: Who began the latest copy.
        self.writer: int | None = None
        self.segments_by_state = [0, 0, 0, 0]
        self.bytes_by_state = [0, 0, 0, 0]
        if sealed is not None:
            self.writer = sealed.writer
            self.segments_by_state[:3] = sealed.entry.segments
            self.bytes_by_state[:3] = sealed.entry.segment_bytes
            if sealed.rare is not None:
                self.held.update((SegmentId(i), tail) for i, tail in sealed.rare.held)
                self._strays.update((SegmentId(i), set(of)) for i, of in sealed.rare.strays)

    # Answers

    def lookup(self, epoch: int, offset: int) -> bytes | None:
        """Return the finished segment that holds `offset` in `epoch`. One bisect.

        Source: RemoteLogMetadataCache.remoteLogSegmentMetadata, which knows the floor entry only.
        """
        index = self.epochs.get(epoch)
        if index is None:
            return None
        found = index.cover.locate(offset)
        return None if found is None else self.segments.record(found)

    def answers_until(self, epoch: int, offset: int) -> int:
        """Return the last offset of `epoch` for which `lookup` gives what it gives for `offset`.

        Less than the segment's own end where another one that finished later lies over it.
        """
        index = self.epochs.get(epoch)
        assert index is not None, "something answers in it"
        return index.cover.until(offset)

    def next_with_txn_index(self, epoch: LeaderEpoch, offset: Offset) -> bytes | None:
        """Return the first segment with a non-empty transaction index, from `offset` on in `epoch`.

        None too if the walk meets an offset that no segment holds (KIP-1058).
        """
        index = self.epochs.get(epoch)
        found = None if index is None else index.cover.next_with_txn_index(offset, self.facts)
        return None if found is None else self.segments.record(found)

    def highest_offset(self, epoch: LeaderEpoch) -> int | None:
        """Return the highest offset that ever finished in `epoch`; it never decreases."""
        return self.epochs.highest(epoch)

    def list_all(self) -> list[bytes]:
        """Return every live segment by start offset, then id (Kafka promises no order)."""
        return [self.segments.record(ref) for ref in self.segments.refs()]

    def list_epoch(self, epoch: LeaderEpoch) -> list[bytes]:
        """Return Kafka's listing of an epoch, in Kafka's order, so without the third set.

        Ties of start offset: referenced before unreferenced, these as they came.
        """
        return [self.segments.record(ref) for ref in self._listed(epoch)]

    def _listed(self, epoch: LeaderEpoch) -> list[SegmentId | int]:
        index = self.epochs.get(epoch)
        if index is None:
            return []
        referenced = index.referenced_refs()
        if not index.unreferenced:
            return referenced
        stored = self.segments
        # Kafka sorts by the segment's own start, and only if there is something to merge in.
        return sorted(
            (*referenced, *index.unreferenced), key=lambda ref: tails.start_of(stored.pair(ref)[1])
        )

    def size(self, epoch: LeaderEpoch) -> int:
        """Return the bytes of all that `list_epoch` holds, in whatever state (`remoteLogSize`)."""
        return sum(tails.size_of(self.segments.pair(ref)[1]) for ref in self._listed(epoch))

    def touching(self, epoch: int, low: int, high: int) -> list[SegmentId]:
        """Return the finished segments with offsets of low..high in an epoch that is not plain.

        Parts that end before they start are left out: they have no offset.
        """
        return self.epochs[epoch].touching(low, high, partial(self._part, epoch))

    def third_set(self, epoch: LeaderEpoch) -> list[SegmentId]:
        """Return the finished segments of `epoch` that are in neither of Kafka's sets."""
        index = self.epochs.get(epoch)
        return [] if index is None else list(index.third)

    def get(self, segment_id: SegmentId) -> bytes | None:
        """Return a live segment, whatever its state."""
        tail = self.segments.get(segment_id)
        return None if tail is None else b"".join((self.segments.head, segment_id, tail))

    def state(self, segment_id: SegmentId) -> SegmentState | None:
        """Return a segment's state; None if it was never seen or is gone."""
        tail = self.segments.get(segment_id)
        return None if tail is None else STATES[state_of(tail)]

    def last_custom_metadata(self, segment_id: SegmentId) -> CustomMetadata | None:
        """Return the last non-null custom metadata: an update may have erased it in the record."""
        tail = self.segments.get(segment_id)
        custom = None if tail is None else custom_of(tail)
        custom = self.kept.of(segment_id) if custom is None else custom
        return None if custom is None else CustomMetadata(custom)

    def live_finished(self) -> Iterator[SegmentId]:
        """Yield the ids of all COPY_SEGMENT_FINISHED segments."""
        return (i for i, tail in self.segments.items() if state_of(tail) == _FINISHED)

    def live_finished_records(self) -> Iterator[tuple[SegmentId, bytes]]:
        """Yield ids and records of all COPY_SEGMENT_FINISHED segments."""
        head = self.segments.head
        for segment_id, tail in self.segments.items():
            if state_of(tail) == _FINISHED:
                yield segment_id, b"".join((head, segment_id, tail))

    def held_records(self) -> list[bytes]:
        """Return the held segments' records as they were when they were finished, by id."""
        head = self.segments.head
        return [b"".join((head, i, tail)) for i, tail in sorted(self.held.items())]

    @property
    def is_empty(self) -> bool:
        """Whether no segment is left; highest offsets may be."""
        return not len(self.segments)

    @property
    def strays(self) -> dict[SegmentId, set[int]]:
        """Segments that are listed in epochs which they do not name any more; not to be changed."""
        return self._strays

    @property
    def highest_offsets(self) -> dict[int, int]:
        """Highest offset by epoch; not to be changed."""
        return self.epochs.highest_offsets()

    # Events

    def start(self, segment_id: SegmentId, tail: bytes) -> SegmentState | None:
        """Apply COPY_SEGMENT_STARTED and return the state before it.

        Raises:
            InvalidArgument: the record is in another state.
            IllegalTransition: the segment is past COPY_SEGMENT_STARTED.
        """
        if state_of(tail) != _STARTED:
            raise InvalidArgument("a new segment's state must be COPY_SEGMENT_STARTED")
        self.epochs.settle()
        stored = self.segments
        old = stored.get(segment_id)
        if old is not None:
            if state_of(old) != _STARTED:
                raise illegal(segment_id, STATES[state_of(old)], SegmentState.COPY_SEGMENT_STARTED)
            if old == tail:
                return SegmentState.COPY_SEGMENT_STARTED
            self._restart(segment_id, old, tail)
        if self.delete_state is PartitionDeleteState.DELETE_PARTITION_FINISHED:
            self.delete_state = None
        _, self.writer, size, parts = tails.outline(tail)
        stored.put(segment_id, tail, is_new=old is None)
        self._put(parts, partial(self._list, segment_id))
        self.segments_by_state[_STARTED] += 1
        self.bytes_by_state[_STARTED] += size
        self.changes += 1
        return None if old is None else SegmentState.COPY_SEGMENT_STARTED

    def _put(self, parts: Collection[Span], put: Put) -> None:
        """Put an event into its epochs, at once unless they are very many."""
        if len(parts) > EPOCHS_AT_ONCE:
            self.epochs.defer(parts, put)
        else:
            for epoch, start, end in parts:
                put(epoch, start, end)

    def _list(self, segment_id: SegmentId, epoch: int, _start: int, _end: int) -> None:
        self.epochs.made(epoch).unreferenced[segment_id] = None

    def _restart(self, segment_id: SegmentId, old: bytes, tail: bytes) -> None:
        """Prepare for another COPY_SEGMENT_STARTED of one id that says something else.

        Kafka lists it in its former epochs too, and forgets to take it out there at its end.
        """
        self.segments_by_state[_STARTED] -= 1
        self.bytes_by_state[_STARTED] -= tails.size_of(old)
        now = {epoch for epoch, _, _ in spans(tail)}
        before = {epoch for epoch, _, _ in spans(old)} | self._strays.pop(segment_id, set())
        if before - now:
            self._strays[segment_id] = before - now
        self.kept.note(segment_id, old, tail)

    def update(
        self, segment_id: SegmentId, written: bytes, custom: bytes, state: int
    ) -> SegmentState:
        """Apply an update and return the state before it.

        `written` is broker id and event timestamp, `custom` the custom metadata, both as on the
        wire (`codec.record_suffix.merged`).

        Raises:
            SegmentNotFound: never seen, or gone.
            IllegalTransition: the life cycle does not allow it.
            InvalidArgument: COPY_SEGMENT_STARTED, which no update may say.
        """
        self.epochs.settle()
        stored = self.segments
        old = stored.get(segment_id)
        if old is None:
            raise SegmentNotFound(segment_id=uuid_text(segment_id))
        before = state_of(old)
        if not LEGAL_BY_NUMBER[before][state]:
            raise illegal(segment_id, STATES[before], STATES[state])
        if state == _STARTED:
            raise InvalidArgument("an update cannot say COPY_SEGMENT_STARTED")
        if state == _DELETE_FINISHED:
            self._remove(segment_id, old)
            return SegmentState.DELETE_SEGMENT_STARTED
        custom_at = tails.custom_at(old)
        new = merged(old, custom_at, written, custom, state)
        stored.put(segment_id, new, is_new=False)
        if old[custom_at] or custom != tails.NULL_CUSTOM:
            self.kept.note(segment_id, old, new)
            if before == _FINISHED and state == _DELETE_STARTED and _is_for_stuck_copy(new):
                self.held[segment_id] = old
        moved = self._move(segment_id, new, before, state)
        if moved or new != old:
            self.changes += 1
        return STATES[before]

    def _move(self, segment_id: SegmentId, tail: bytes, before: int, after: int) -> bool:
        """Move a segment between the sets of its epochs; False if it was there already."""
        segment_end, broker, size, parts = tails.outline(tail)
        if after == _FINISHED:
            put = partial(self._finish, segment_id, (segment_end, tails.has_txn_index(tail)))
            if before == _FINISHED:
                repeated = [put(*part) for part in parts]
                return any(repeated)
            self._put(parts, put)
            self.held.pop(segment_id, None)
            if broker != self.writer:
                self.late_writers[broker] = self.late_writers.get(broker, 0) + 1
        elif before == after:
            return False
        else:
            self._put(parts, partial(self._start_delete, segment_id))
        self.segments_by_state[before] -= 1
        self.segments_by_state[after] += 1
        self.bytes_by_state[before] -= size
        self.bytes_by_state[after] += size
        return True

    def mark_delete(self, state: PartitionDeleteState) -> PartitionDeleteState | None:
        """Apply a partition delete event and return the state before it.

        DELETE_PARTITION_FINISHED drops every segment and highest offset, as Kafka drops its cache.

        Raises:
            IllegalTransition: out of order; Kafka enforces nothing here.
        """
        before = self.delete_state
        if not legal_partition_delete(before, state):
            raise illegal_partition_delete(before, state)
        if before is not state:
            self.delete_state = state
            self.changes += 1
            if state is PartitionDeleteState.DELETE_PARTITION_FINISHED:
                self._reset()
        return before

    def _finish(
        self, segment_id: SegmentId, own: tuple[int, bool], epoch: int, start: int, end: int
    ) -> bool:
        """Put COPY_SEGMENT_FINISHED into an epoch; False if it was there already."""
        top, part_of = self.epochs.highest(epoch), partial(self._part, epoch)
        piece = (start, end, segment_id)
        moved = self.epochs[epoch].finish(piece, top, own, part_of, self.facts)
        if top is None or end > top:
            self.epochs.set_highest(epoch, end)
        return moved

    def _start_delete(self, segment_id: SegmentId, epoch: int, start: int, end: int) -> None:
        part_of = partial(self._part, epoch)
        self.epochs[epoch].start_delete((start, end, segment_id), part_of, self.facts)

    def _remove(self, segment_id: SegmentId, tail: bytes) -> None:
        epochs = {epoch for epoch, _, _ in spans(tail)} | self._strays.pop(segment_id, set())
        self._put([(epoch, 0, 0) for epoch in epochs], partial(self._unlist, segment_id))
        self.kept.forget(segment_id)
        self.segments.remove(segment_id)
        self.segments_by_state[_DELETE_STARTED] -= 1
        self.bytes_by_state[_DELETE_STARTED] -= tails.size_of(tail)
        self.changes += 1

    def _unlist(self, segment_id: SegmentId, epoch: int, _start: int, _end: int) -> None:
        index = self.epochs[epoch]
        index.unreferenced.pop(segment_id, None)
        if index.is_empty:
            self.epochs.drop(epoch)

    def facts(self, segment_id: SegmentId) -> tuple[int, bool]:
        """Return a segment's end offset, and whether its transaction index is non-empty."""
        tail = self.segments[segment_id]
        return tails.end_of(tail), tails.has_txn_index(tail)

    def _part(self, epoch: int, segment_id: SegmentId) -> Piece | None:
        """Return a finished segment's part in an epoch."""
        tail = self.segments[segment_id]
        if state_of(tail) != _FINISHED:
            return None
        part = tails.span_of(tail, epoch)
        return None if part is None else (*part, segment_id)

    # Snapshots

    def rebase(self, sealed: "SealedTable") -> None:
        """Stand on a snapshot in which everything is that was applied here until it was drawn.

        What was applied since has to be applied again.
        """
        state = sealed.entry.delete_state
        self.delete_state = None if state is None else PartitionDeleteState(state)
        self._reset(sealed)

    def restore(
        self,
        *,
        highest: dict[int, int],
        kept: dict[SegmentId, bytes],
        held: dict[SegmentId, bytes],
        writer: int | None,
        delete_state: PartitionDeleteState | None,
    ) -> None:
        """Take over what a snapshot says beside segments and epochs, and count anew.

        `segments` and `epochs` were filled before.
        """
        for epoch, offset in highest.items():
            self.epochs.set_highest(epoch, offset)
        self.kept.update(kept)
        self.held = held
        self.writer, self.delete_state = writer, delete_state
        for segment_id in self.segments:
            tail = self.segments[segment_id]
            self.segments_by_state[state_of(tail)] += 1
            self.bytes_by_state[state_of(tail)] += tails.size_of(tail)
        for epoch, index in self.epochs.items():
            for segment_id in index.unreferenced:
                if all(own != epoch for own, _, _ in spans(self.segments[segment_id])):
                    self._strays.setdefault(segment_id, set()).add(epoch)


def _is_for_stuck_copy(tail: bytes) -> bool:
    return is_only_if_started(tails.custom_of(tail))
