"""Events of a log's beginning that its fold still needs; all others a compaction may drop.

A segment's events are dropped once it is gone (DELETE_SEGMENT_FINISHED), a user partition's once it
is (DELETE_PARTITION_FINISHED; its marks stay, since they decide about later events). What is left
folds to the same state, so everything that follows means the same. A segment that is gone stays if

* the highest offset of an epoch is its own: highest offsets never decrease;
* it began the latest copy of its user partition, or it is held (`PartitionCache.held`);
* it ever touched a segment that stays in an epoch, both finished: one decided what became of the
  other in Kafka's sets and in the cover. So did the epoch's highest offset at that moment, and
  hence the segment that had made it.

Repeats are dropped as well, and what was refused of a segment that is dropped. What cannot be read
stays, and so do updates of segments that were never begun here: whoever looks for lost or leaked
objects reads what they name.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.outcome import Applied, Deferred, Outcome, Rejected, Repeated, Unreadable
from rlmm_daemon.domain.errors import SegmentNotFound
from rlmm_daemon.domain.ids import UUID_BYTES, MetadataPartition, SegmentId
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentState

_ENVELOPE_BYTES: Final = 3
_KIND_AT: Final = 1
#: Of a record in normal form, from its end: before its tags, of which an update has none.
_STATE_AT: Final = -2
_ADD, _UPDATE, _MARK = range(3)
_FINISHED: Final = SegmentState.COPY_SEGMENT_FINISHED
_GONE: Final = SegmentState.DELETE_SEGMENT_FINISHED
#: Segments that are gone and tied to others are looked through again when they are twice as many.
_TIED_MIN: Final = 1_000


class When(msgspec.Struct, frozen=True, kw_only=True):
    """How large a metadata partition's log may become before it is compacted."""

    #: As many times as large as the last compaction left it.
    factor: float = 1.5
    #: And so many bytes.
    bytes_min: int = 4 * 1024 * 1024
    #: It is left as it is if more than this share of it would stay.
    share_max: float = 0.9

    def due(self, size: int, left: int) -> bool:
        """Whether a log of so many bytes, of which the last compaction left `left`, is due."""
        return size >= max(self.bytes_min, self.factor * left)


class Offsets:
    """A set of offsets that lie close together: a bit each."""

    __slots__ = ("_bits", "_first")

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._bits = bytearray()

    def add(self, offset: int) -> None:
        """Put an offset in; none may lie before the first."""
        at, bit = divmod(offset - self._first, 8)
        if at >= len(self._bits):
            self._bits.extend(bytes(at + 1 - len(self._bits)))
        self._bits[at] |= 1 << bit

    def discard(self, offset: int) -> None:
        """Take an offset out that was put in."""
        at, bit = divmod(offset - self._first, 8)
        self._bits[at] &= ~(1 << bit)

    def __contains__(self, offset: int) -> bool:
        at, bit = divmod(offset - self._first, 8)
        return 0 <= at < len(self._bits) and bool(self._bits[at] >> bit & 1)


def ended_by(outcome: Outcome) -> bool:
    """Whether an event says that a segment is gone, known or not."""
    if not isinstance(outcome, Applied | Repeated):
        return False
    value = outcome.value
    return value[_KIND_AT] == _UPDATE and value[_STATE_AT] == _GONE


class Survivors:
    """A log's beginning is put in event by event; then the offsets of those that stay are known."""

    def __init__(
        self, partition: MetadataPartition, partition_count: int, *, start: int = 0
    ) -> None:
        #: What the whole beginning folds to.
        self.fold = Fold(partition, partition_count)
        self._offsets = Offsets(start)
        self._pasts: dict[bytes, _Past] = {}
        #: Events may be missing from the log, so an end without a beginning says something.
        self._lossy = start > 0

    def __contains__(self, offset: int) -> bool:
        """Whether the event of an offset stays; to be asked after `settle`."""
        return offset in self._offsets

    def take(self, offset: int, value: bytes | None) -> Outcome:
        """Put the next event in; return what the fold made of it."""
        outcome = self.fold.apply(offset, value)
        match outcome:
            case Applied():
                self._applied(offset, outcome)
            case Rejected(error=error):
                if isinstance(error, SegmentNotFound):  # no less so without what is dropped
                    self._offsets.add(offset)
            case Repeated(value=value):
                if self._lossy and value[_KIND_AT] == _UPDATE and value[_STATE_AT] == _GONE:
                    self._offsets.add(offset)
            case Unreadable():
                self._offsets.add(offset)
            case Deferred():
                raise AssertionError("nothing sleeps in a fold without a snapshot")
        return outcome

    def lost(self) -> None:
        """Note that the log lacks events here: from now on it may hold ends of unknown segments."""
        self._lossy = True

    def settle(self) -> Iterator[None]:
        """Drop the segments that are gone and that nothing needs; a step for each user partition.

        More may be put in afterwards.
        """
        for past in list(self._pasts.values()):
            past.settle()
            yield

    def _applied(self, offset: int, outcome: Applied) -> None:
        value, cache = outcome.value, self.fold.cache(outcome.partition)
        assert cache is not None, "an event of it was applied"
        past = self._pasts.get(cache.prefix)
        if past is None:
            past = self._pasts[cache.prefix] = _Past(cache, self._offsets)
        kind = value[_KIND_AT]
        if kind == _MARK:
            past.marked(offset)
            return
        at = _ENVELOPE_BYTES + len(cache.prefix)
        segment_id = SegmentId(value[at : at + UUID_BYTES])
        if kind == _ADD:
            past.begun(offset, segment_id)
        else:
            past.updated(offset, segment_id, value[_STATE_AT])


class _Past:
    """What stays of one user partition's events."""

    __slots__ = (
        "_begun", "_cache", "_events", "_gone", "_highest", "_makers", "_marks", "_needs", "_odd",
        "_offsets", "_settle_at", "_tied",
    )  # fmt: skip

    def __init__(self, cache: PartitionCache, offsets: Offsets) -> None:
        self._cache = cache
        self._offsets = offsets
        self._marks: list[int] = []
        self._reset()

    def _reset(self) -> None:
        #: Offsets of the events that stay, by segment; no lists, which the collector would walk.
        self._events: dict[SegmentId, tuple[int, ...]] = {}
        #: Those of them that are gone.
        self._gone: set[SegmentId] = set()
        #: Who has to stay if a segment does, for what it became.
        self._needs: dict[SegmentId, set[SegmentId]] = {}
        #: All that are in there.
        self._tied: set[SegmentId] = set()
        #: Highest offset by epoch, and the segment that made it.
        self._highest: dict[int, tuple[int, SegmentId]] = {}
        #: Who made how many of them.
        self._makers: Counter[SegmentId] = Counter()
        #: Finished parts that end before they start, by epoch: no index knows what they touch.
        self._odd: dict[int, dict[SegmentId, tuple[int, int]]] = {}
        #: Who began the latest copy.
        self._begun: SegmentId | None = None
        self._settle_at = _TIED_MIN

    def begun(self, offset: int, segment_id: SegmentId) -> None:
        """Take up COPY_SEGMENT_STARTED; the first one after the partition's end begins a life."""
        if self._marks and self._cache.delete_state is None:
            self._forget(self._marks)
            self._marks = []
        self._keep(offset, segment_id)
        self._gone.discard(segment_id)
        before, self._begun = self._begun, segment_id
        if before is not None:
            self._release(before)

    def updated(self, offset: int, segment_id: SegmentId, state: int) -> None:
        """Take up an update."""
        self._keep(offset, segment_id)
        if state == _FINISHED:
            self._finished(segment_id)
        elif state == _GONE:
            self._gone.add(segment_id)
            for odd in self._odd.values():
                odd.pop(segment_id, None)
            self._release(segment_id)
            if len(self._gone) >= self._settle_at:
                self.settle()

    def marked(self, offset: int) -> None:
        """Take up a mark of the user partition's deletion."""
        self._offsets.add(offset)
        self._marks.append(offset)
        if self._cache.delete_state is PartitionDeleteState.DELETE_PARTITION_FINISHED:
            for events in self._events.values():
                self._forget(events)
            self._reset()

    def settle(self) -> None:
        """Drop what is gone and not needed, however it is tied."""
        if self._tied:
            self._drop_untied(self._needed())
        self._settle_at = max(_TIED_MIN, 2 * len(self._gone))

    def _drop_untied(self, needed: set[SegmentId]) -> None:
        for segment_id in [each for each in self._gone if each not in needed]:
            self._drop(segment_id)
        self._tied &= needed
        self._needs = {each: self._needs[each] for each in self._needs if each in needed}

    def _needed(self) -> set[SegmentId]:
        """Return all of those that are tied or gone and have to stay."""
        known = self._tied | self._gone
        reached = {each for each in known if each not in self._gone or self._is_root(each)}
        left = list(reached)
        while left:
            for other in self._needs.get(left.pop(), ()):
                if other not in reached:
                    reached.add(other)
                    left.append(other)
        return reached

    def _is_root(self, segment_id: SegmentId) -> bool:
        return (
            segment_id == self._begun
            or segment_id in self._cache.held
            or segment_id in self._makers
        )

    def _release(self, segment_id: SegmentId) -> None:
        """Drop a segment if it is gone and nothing needs it or may need it."""
        gone = segment_id in self._gone and segment_id not in self._tied
        if gone and not self._is_root(segment_id):
            self._drop(segment_id)

    def _drop(self, segment_id: SegmentId) -> None:
        self._gone.discard(segment_id)
        self._forget(self._events.pop(segment_id))

    def _keep(self, offset: int, segment_id: SegmentId) -> None:
        self._offsets.add(offset)
        self._events[segment_id] = (*self._events.get(segment_id, ()), offset)

    def _forget(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self._offsets.discard(offset)

    def _finished(self, segment_id: SegmentId) -> None:
        cache = self._cache
        for epoch, start, end in tails.spans(cache.segments[segment_id]):
            index = cache.epochs[epoch]
            # As long as the cover is Kafka's referenced set, no two segments touched.
            if not index.is_plain:
                self._touched(epoch, (start, end, segment_id))
            known = self._highest.get(epoch)
            if known is None or end > known[0]:
                self._highest[epoch] = end, segment_id
                self._makers[segment_id] += 1
                if known is not None:
                    self._surpassed(known[1])

    def _surpassed(self, segment_id: SegmentId) -> None:
        """A highest offset that this segment made is another one's now."""
        self._makers[segment_id] -= 1
        if not self._makers[segment_id]:
            del self._makers[segment_id]
            self._release(segment_id)

    def _touched(self, epoch: int, piece: tuple[int, int, SegmentId]) -> None:
        start, end, segment_id = piece
        low, high = min(start, end), max(start, end)
        odd = self._odd.get(epoch, {})
        others = {each for each, (a, b) in odd.items() if a <= high and b >= low}
        others |= set(self._cache.touching(epoch, low, high))
        if start > end:
            self._odd.setdefault(epoch, {})[segment_id] = low, high
        others.discard(segment_id)
        if not others:
            return
        top, maker = self._highest.get(epoch, (end, segment_id))
        mine = self._needs.setdefault(segment_id, set())
        mine |= others
        if top > end:
            mine.add(maker)
        for other in others:
            self._needs.setdefault(other, set()).add(segment_id)
        self._tied |= mine
        self._tied.add(segment_id)
