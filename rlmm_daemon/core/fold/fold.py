"""The state that a metadata partition's log implies, for every user partition in it.

The log is the truth and this is its fold: state changes only by `apply`, in log order. A record
that says nothing here (a tombstone, garbage, another partition's event) and an event that the life
cycles refuse change nothing but counters, and the position passes them: Kafka's own consumer dies
of most of them (ConsumerTask). Every user partition is folded, announced or not, though events of
one that sleeps in a snapshot are applied only when somebody asks for it (`user_partitions`).

The common shapes of a record are split here by hand, without decoding; all else is read by
`codec.records`, which is the authority, and goes on in normal form. A test holds both ways equal.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, assert_never

import msgspec

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.codec import records
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.codec.record_writing import Record
from rlmm_daemon.core.fold import common_events, copy_runs
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.outcome import (
    Applied,
    Deferred,
    Outcome,
    Rejected,
    Repeated,
    State,
    Unreadable,
    Verdict,
)
from rlmm_daemon.core.fold.user_partitions import Image, Sleeping, UserPartitions
from rlmm_daemon.core.fold.validation import validate
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.domain.errors import InvalidArgument, Malformed, RefusedError, SegmentNotFound
from rlmm_daemon.domain.event import Event
from rlmm_daemon.domain.ids import UUID_BYTES, MetadataPartition, SegmentId, TopicId
from rlmm_daemon.domain.ids import TopicIdPartition as Partition
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentSnapshot, SegmentState, SegmentUpdate

#: How many troubles `rlmm partitions` can show; counters know them all.
TROUBLES_MAX: Final = 64
HEAD_BYTES: Final = 32
#: Why an event is passed over whose user partition belongs to another metadata partition.
WRONG_PARTITION: Final = "wrong_partition"
#: Over so many rows, a look for whole copies that came to nothing is not repeated among them.
_LOOKED_IN_VAIN_MAX: Final = 16

#: Events noted while a snapshot is written; with more it is not moved on to.
JOURNAL_EVENTS_MAX: Final = 100_000

_ENVELOPE_BYTES: Final = 3
_ADD: Final = b"\x01\x00\x00"
_UPDATE: Final = b"\x01\x01\x00"
#: Of any record version.
_ANY_MARK: Final = b"\x01\x02"
#: Of a TopicIdPartitionEntry behind its name: topic id, partition, no tags.
_BEHIND_NAME_BYTES: Final = UUID_BYTES + 5
_VARINT_TOP: Final = 0x80
# Places in an update, counted from behind its prefix.
_ID_END: Final = UUID_BYTES
_WRITTEN_AT: Final = UUID_BYTES + 1
_CUSTOM_AT: Final = _WRITTEN_AT + 12
_UPDATE_BYTES_MIN: Final = _CUSTOM_AT + 3
_COPY_STARTED: Final = SegmentState.COPY_SEGMENT_STARTED
_DELETE_FINISHED: Final = int(SegmentState.DELETE_SEGMENT_FINISHED)


#: (offset, record in normal form) by user partition.
Journal = dict[Partition, list[tuple[int, bytes]]]


class Trouble(msgspec.Struct, frozen=True):
    """A record that changed nothing: where, why, and how it begins."""

    offset: int
    #: `tombstone`, `malformed`, ..., or the wire name of the error that rejected an event.
    reason: str
    head_hex: str


class Fold:
    """All user partitions of one metadata partition, and how far its log was read."""

    def __init__(self, partition: MetadataPartition, partition_count: int) -> None:
        self.partition = partition
        self.partition_count = partition_count
        #: The offset to read next.
        self.position = 0
        #: Of the last batch fetched; -1 before the first.
        self.leader_epoch = -1
        self.partitions = UserPartitions(self._apply_aside)
        #: The snapshot that user partitions sleep in.
        self.image: Image | None = None
        #: While not None: the events by user partition since a snapshot was drawn.
        self.journal: Journal | None = None
        self._journal_from = 0
        #: Passed-over records by reason, rejected events by error name, since this fold was made.
        self.unreadable: dict[str, int] = {}
        self.rejected: dict[str, int] = {}
        self.unreadable_recent: deque[Trouble] = deque(maxlen=TROUBLES_MAX)
        self.rejected_recent: deque[Trouble] = deque(maxlen=TROUBLES_MAX)
        #: User partitions with held segments (`PartitionCache.held`).
        self.holding: set[Partition] = set()
        #: Whose last event is not in all of its leader epochs yet (`Epochs.due`).
        self._due: PartitionCache | None = None
        #: No whole copies are looked for before this offset.
        self._whole_copies_from = 0
        self.applied = 0
        self.repeated = 0

    # Events

    def apply(self, offset: int, value: bytes | None) -> Outcome:
        """Fold one record in and say what became of it; bad input never raises.

        `offset` may not lie before the position; the position is behind it afterwards.
        """
        assert offset >= self.position, (offset, self.position)
        self.position = offset + 1
        if value is None:
            return self._pass_over(offset, "tombstone", b"")
        outcome = self._apply(offset, value)
        if self.journal is not None and not isinstance(outcome, Unreadable):
            self.journal.setdefault(outcome.partition, []).append((offset, outcome.value))
            if offset - self._journal_from >= JOURNAL_EVENTS_MAX:
                self.journal = None  # the disk may hang: then the next snapshot is moved on to
        return outcome

    def settle(self, epochs_max: int) -> bool:
        """Put the last event into so many more of its leader epochs; False once it is in all.

        Nobody has to: whoever looks at an epoch finds it there. It keeps that look short.
        """
        if self._due is not None:
            self._due.epochs.settle(epochs_max)
            if not self._due.epochs.due:
                self._due = None
        return self._due is not None

    def keep_journal(self) -> None:
        """Note what is applied from here on, up to `JOURNAL_EVENTS_MAX` events."""
        self.journal, self._journal_from = {}, self.position

    def apply_run(
        self,
        rows: Sequence[tuple[int, bytes | None]],
        begin: int,
        end: int,
        turn: int | None = None,
    ) -> int:
        """Fold rows[begin:end] in up to the first that is not simply a new or a finished copy.

        Returns where that row stands; `begin` if it is the first, or while a snapshot is drawn.
        What came before it was applied, as `apply` would have. For whoever needs no outcomes: a
        replay is little else. What has to go row by row goes no further than `turn`.
        """
        if self.journal is not None or begin >= end:
            return begin
        assert rows[begin][0] >= self.position, (rows[begin][0], self.position)
        caches, at = self.partitions.by_prefix, begin
        if rows[begin][0] >= self._whole_copies_from:
            if (first := rows[begin][1]) is not None and first.startswith(_UPDATE):
                at = common_events.run(caches, rows, begin, begin + 1)  # of a copy begun before
            at, looked = copy_runs.apply(caches, rows, at, end)
            if looked - at > _LOOKED_IN_VAIN_MAX:
                self._whole_copies_from = rows[looked - 1][0]
        turn = end if turn is None else turn
        if at < turn:
            at = common_events.run(caches, rows, at, turn)
        if at > begin:
            self.position = rows[at - 1][0] + 1
            self.applied += at - begin
        return at

    def _apply(self, offset: int, value: bytes) -> Outcome:
        if len(value) > _ENVELOPE_BYTES:
            at = value[_ENVELOPE_BYTES] + _ENVELOPE_BYTES + _BEHIND_NAME_BYTES
            cache = self.partitions.by_prefix.get(value[_ENVELOPE_BYTES:at])
            if isinstance(cache, Sleeping):
                if not self._needs(cache, value):
                    return self._defer(offset, value, cache)
                cache = self.partitions.wake(cache)
            if cache is not None:
                outcome = self._apply_short(offset, value, cache, at)
                if outcome is not None:
                    return outcome
        return self._apply_decoded(offset, value)

    def _apply_short(
        self, offset: int, value: bytes, cache: PartitionCache, at: int
    ) -> Outcome | None:
        """Apply a record of a common shape, whose prefix ends at `at`; None: take the long way."""
        kind = value[:_ENVELOPE_BYTES]
        if kind == _UPDATE:
            if common_events.finish(cache, value, at):
                self.applied += 1
                return Applied(value, cache.partition, _COPY_STARTED)
            end = _update_state_at(value, at)
            return self._update(offset, value, cache, at, end) if end else None
        if kind != _ADD:
            return None
        if common_events.start(cache, value, at):
            self.applied += 1
            return Applied(value, cache.partition, None)
        tail = value[at + UUID_BYTES :]
        return self._add(offset, value, cache, tail) if tails.is_common_start(tail) else None

    def again(self, cache: PartitionCache, events: Iterable[tuple[int, bytes]]) -> None:
        """Apply events to one cache that were counted before."""
        other = Fold(self.partition, self.partition_count)
        other.partitions.add(cache)
        late_writers = dict(cache.late_writers)
        for offset, value in events:
            other._apply(offset, value)
        cache.late_writers = late_writers

    def _needs(self, sleeping: Sleeping, value: bytes) -> bool:
        """Whether an event of a partition that sleeps has to be applied now.

        So it is where held segments may come or go, which alarm, and where the partition itself
        is marked for deletion.
        """
        return (
            not sleeping.has_room(value)
            or bool(sleeping.entry.held)
            or value.startswith(_ANY_MARK)
            or bytes(ONLY_IF_STARTED) in value
        )

    def _defer(self, offset: int, value: bytes, sleeping: Sleeping) -> Deferred:
        self.partitions.put_aside(sleeping, offset, value)
        return Deferred(value, sleeping.partition)

    def _apply_aside(self, cache: PartitionCache, offset: int, value: bytes) -> None:
        assert self.partitions.by_prefix[cache.prefix] is cache, "awake by now"
        self._apply(offset, value)

    def advance(self, next_offset: int, leader_epoch: int) -> None:
        """Note how far the log was read: past gaps and control records too."""
        assert next_offset >= self.position, (next_offset, self.position)
        self.position = next_offset
        self.leader_epoch = leader_epoch

    def _apply_decoded(self, offset: int, value: bytes) -> Outcome:
        try:
            record, normal = records.decode_normal(value)
        except Malformed:
            return self._pass_over(offset, _malformed_reason(value), value)
        if isinstance(record, SegmentSnapshot):
            return self._pass_over(offset, "snapshot_record", value)
        sleeping = self.partitions.by_prefix.get(tails.prefix_of(record.partition))
        if isinstance(sleeping, Sleeping) and not self._needs(sleeping, normal):
            return self._defer(offset, value, sleeping)
        cache = self.partitions.get(record.partition)
        if cache is None:
            if not self.owns(record.partition):
                return self._pass_over(offset, WRONG_PARTITION, value)
            cache = PartitionCache(record.partition)
        outcome = self._dispatch(offset, record, normal, cache)
        # An event that was refused leaves no trace, or garbage could fill the memory.
        if isinstance(outcome, Applied):
            self.partitions.add(cache)
        return outcome

    def _dispatch(
        self, offset: int, record: Record, normal: bytes, cache: PartitionCache
    ) -> Outcome:
        at = _ENVELOPE_BYTES + len(cache.prefix)
        match record:
            case SegmentMetadata():
                return self._add(offset, normal, cache, normal[at + UUID_BYTES :])
            case SegmentUpdate():
                return self._update(offset, normal, cache, at, len(normal) - 2)
            case PartitionDelete(state=state):
                return self._mark_delete(offset, normal, cache, state)
            case SegmentSnapshot():
                raise AssertionError(record)
            case _:
                assert_never(record)

    def _add(self, offset: int, value: bytes, cache: PartitionCache, tail: bytes) -> Outcome:
        changes = cache.changes
        behind = len(value) - len(tail)
        try:
            before = cache.start(SegmentId(value[behind - UUID_BYTES : behind]), tail)
        except RefusedError as error:
            return self._reject(offset, value, cache, error)
        return self._done(value, cache, before, changed=cache.changes != changes)

    def _update(
        self, offset: int, value: bytes, cache: PartitionCache, at: int, state_at: int
    ) -> Outcome:
        segment_id = SegmentId(value[at : at + _ID_END])
        state = value[state_at]
        written = value[at + _WRITTEN_AT : at + _CUSTOM_AT]
        changes = cache.changes
        try:
            before = cache.update(segment_id, written, value[at + _CUSTOM_AT : state_at], state)
        except SegmentNotFound as error:
            finished = cache.delete_state is PartitionDeleteState.DELETE_PARTITION_FINISHED
            if state == _DELETE_FINISHED and not finished:
                return self._done(value, cache, None, changed=False)
            return self._reject(offset, value, cache, error)
        except RefusedError as error:
            return self._reject(offset, value, cache, error)
        if cache.held or self.holding:
            self._note_held(cache)
        return self._done(value, cache, before, changed=cache.changes != changes)

    def _note_held(self, cache: PartitionCache) -> None:
        if cache.held:
            self.holding.add(cache.partition)
        else:
            self.holding.discard(cache.partition)

    def _mark_delete(
        self, offset: int, value: bytes, cache: PartitionCache, state: PartitionDeleteState
    ) -> Outcome:
        changes = cache.changes
        try:
            before = cache.mark_delete(state)
        except RefusedError as error:
            return self._reject(offset, value, cache, error)
        self._note_held(cache)
        return self._done(value, cache, before, changed=cache.changes != changes)

    def _done(
        self, value: bytes, cache: PartitionCache, before: State | None, *, changed: bool
    ) -> Outcome:
        if cache.epochs.due:
            self._due = cache
        if changed:
            self.applied += 1
            return Applied(value, cache.partition, before)
        self.repeated += 1
        return Repeated(value, cache.partition)

    def _reject(
        self, offset: int, value: bytes, cache: PartitionCache, error: RefusedError
    ) -> Rejected:
        reason = error.wire_name()
        self.rejected[reason] = self.rejected.get(reason, 0) + 1
        self.rejected_recent.append(Trouble(offset, reason, value[:HEAD_BYTES].hex()))
        return Rejected(value, cache.partition, error)

    def _pass_over(self, offset: int, reason: str, value: bytes) -> Unreadable:
        head_hex = value[:HEAD_BYTES].hex()
        self.unreadable[reason] = self.unreadable.get(reason, 0) + 1
        self.unreadable_recent.append(Trouble(offset, reason, head_hex))
        return Unreadable(reason, head_hex)

    # Answers

    def validate(self, event: Event) -> Verdict:
        """Return whether to append an event, or that it is a repeat; see `core.fold.validation`.

        Raises:
            InvalidArgument, IllegalTransition, SegmentNotFound: it would be dropped.
        """
        if not self.owns(event.partition):
            raise InvalidArgument(
                f"{event.partition} does not belong to metadata partition {self.partition}"
            )
        return validate(self.partitions.get(event.partition), event)

    def owns(self, partition: Partition) -> bool:
        """Return whether Kafka's partitioner sends this user partition's events here."""
        if partition in self.partitions:
            return True
        mine = metadata_partition(partition.topic_id, partition.partition, self.partition_count)
        return mine == self.partition

    def cache(self, partition: Partition) -> PartitionCache | None:
        """Return what is known of a user partition; None if no event of it was ever applied."""
        return self.partitions.get(partition)

    def find(self, topic: str | TopicId, partition: int) -> list[PartitionCache]:
        """Return the user partitions that an operator may mean, by topic name or id.

        A name may stand for several topics: those deleted and created anew.
        """
        return [
            self.partitions[at]
            for at in list(self.partitions)
            if at.partition == partition and topic in (at.topic, at.topic_id)
        ]

    def held_records(self) -> list[bytes]:
        """Return the records, as COPY_SEGMENT_FINISHED, of all segments that are held."""
        found: list[bytes] = []
        for partition in sorted(self.holding):
            found += self.partitions[partition].held_records()
        return found

    def live_finished(self) -> Iterator[tuple[Partition, SegmentId]]:
        """Yield every live COPY_SEGMENT_FINISHED segment, for the comparison of histories."""
        for partition, cache in self.partitions.items():
            for segment_id in cache.live_finished():
                yield partition, segment_id

    # Snapshots

    def restore(self, caches: list[PartitionCache], position: int, leader_epoch: int) -> None:
        """Take over what a snapshot holds; only for a fold that was just made."""
        assert not len(self.partitions)
        assert self.position == 0
        self.position, self.leader_epoch = position, leader_epoch
        for cache in caches:
            self.partitions.add(cache)
            self._note_held(cache)

    def lay(self, image: Image, position: int, leader_epoch: int) -> None:
        """Take over a snapshot in place, all asleep; only for a fold that was just made."""
        assert not len(self.partitions)
        self.position, self.leader_epoch = position, leader_epoch
        self.image = image
        for number, entry in enumerate(image.entries):
            sleeping = Sleeping(image, number)
            self.partitions.lay(sleeping)
            if entry.held:
                self.holding.add(sleeping.partition)


def _update_state_at(value: bytes, at: int) -> int:
    """Return where a common key 1 record has its state; 0 if it takes the long way."""
    if len(value) < at + _UPDATE_BYTES_MIN or value[at + _ID_END]:
        return 0
    custom = value[at + _CUSTOM_AT]
    if custom >= _VARINT_TOP:
        return 0
    state_at = at + _CUSTOM_AT + (custom or 1)
    if len(value) != state_at + 2 or value[state_at + 1] or value[state_at] > _DELETE_FINISHED:
        return 0
    return state_at


def _malformed_reason(value: bytes) -> str:
    """Return `unknown_key` if the envelope is fine but for its api key, else `malformed`."""
    head = value[:_ENVELOPE_BYTES]
    unknown = len(head) > 1 and head[0] == 1 and head[1] > max(records.ApiKey)
    return "unknown_key" if unknown else "malformed"
