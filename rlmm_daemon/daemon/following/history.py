"""The list of lost segments, `N.lost`: a dropped fold's knowledge, written before the fold goes.

*Missing* is a live COPY_SEGMENT_FINISHED of the dropped fold, or a held one, whose
COPY_SEGMENT_FINISHED the replay did not apply. *Risen* is a segment whose COPY_SEGMENT_FINISHED the
dropped fold had read, too, and that was not live in it: the log lost its deletion. Any of these
makes the partition `failed(history_lost)`; none, and it goes on.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import structlog

from rlmm_daemon.codec import records
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.codec.record_suffix import EVENT_TIMESTAMP_AT, prefix_of
from rlmm_daemon.codec.state_files import FORMAT, LOST_FORMAT_READ, Lost, Position
from rlmm_daemon.core.fold.deferred_free import leave
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.outcome import Applied, Outcome, Rejected, Repeated
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.domain.errors import NotReady
from rlmm_daemon.domain.ids import UUID_BYTES, MetadataPartition, SegmentId, TopicIdPartition
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from rlmm_daemon.ports.event_log import EventLog

logger = structlog.get_logger(__name__)

#: Records that are written down before others get a turn.
TURN_RECORDS: Final = 32
#: How a record of key 1 begins, and where it has its state: before its tags, of which it has none.
_UPDATE: Final = b"\x01\x01\x00"
#: How a record of key 2 begins: that a user partition is being removed.
_REMOVAL: Final = b"\x01\x02\x00"
_STATE_AT: Final = -2
#: Behind its segment id: tags, the broker, then the time.
_WRITTEN_AT: Final = 5
_TIME_BYTES: Final = 8

_DELETES: Final = (SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED)
_FOR_A_STUCK_COPY: Final = bytes(ONLY_IF_STARTED)

#: A record's partition and segment id as they stand in it: bytes, which no collector walks.
_Key = bytes
#: What a last byte can be.
_PARTS: Final = 256
#: Of folds that were dropped one after another: what the first ones had read the last one had, too.
READ_MAX: Final = 8
#: In place of a record that the replay has shown.
_FOUND: Final = b""


class _Known:
    """Records by what they are about, in many small dicts.

    One that holds a hundred thousand is moved whole now and then as it grows, which takes
    milliseconds; a list of as many is walked by the collector at its every turn.
    """

    def __init__(self) -> None:
        self._count = 0
        self._parts: list[dict[_Key, bytes]] = [{} for _ in range(_PARTS)]

    def __del__(self) -> None:
        for part in self._parts:
            leave(part)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        return (record for _, record in self.items())

    def __contains__(self, key: _Key) -> bool:
        """Whether it was ever noted, found or not."""
        return key in self._parts[key[-1]]

    def items(self) -> Iterator[tuple[_Key, bytes]]:
        """Yield all that were not found, in no order."""
        # A generator of its own keeps this alive until its end: what goes is taken apart piecemeal.
        for part in self._parts:
            for item in part.items():
                if item[1]:
                    yield item

    def put(self, key: _Key, record: bytes) -> None:
        """Note a record, in place of an earlier one about the same."""
        part = self._parts[key[-1]]
        self._count += not part.get(key)
        part[key] = record

    def found(self, key: _Key) -> bytes:
        """Let a record go and return it, if it is there; that it was is still known."""
        part = self._parts[key[-1]]
        if record := part.get(key, _FOUND):
            part[key] = _FOUND
            self._count -= 1
        return record


class History:
    """The comparison of one metadata partition's replay with what had been known before."""

    def __init__(self, partition: MetadataPartition, state: StateDirectory) -> None:
        self.partition = partition
        self._state = state
        #: None while there is nothing to compare with.
        self._missing: _Known | None = None
        self.reasons: list[str] = []
        #: How far dropped folds had read of this log, as `Lost.read`.
        self.read: Sequence[Position] = ()
        #: The same of another log, as `Lost.read_elsewhere`.
        self.read_elsewhere = 0
        #: What lies before this offset they had read as it stands there now.
        self.common_end = 0
        #: By what a record of theirs begins with, the partitions of risen segments.
        self._risen: dict[_Key, TopicIdPartition] = {}
        #: Of segments that the replay showed as finished by another event than was known.
        self._otherwise: dict[_Key, bytes] = {}
        #: Whose deletion dropped folds had read: what they knew is a later copy under that id.
        self._used_again: set[_Key] = set()
        self._loaded = False

    async def load(self) -> None:
        """Take up a comparison that an earlier process left.

        Raises:
            CorruptError, RefusedError: the file is damaged or newer; it is kept.
        """
        if self._loaded:
            return  # what is written down since is known here too
        lost = await self._state.lost(self.partition)
        self._loaded = True
        if lost is None:
            return
        self._missing = await self._gathered(_by_key(lost.records))
        self.reasons, self.read = lost.reasons, lost.read
        self.read_elsewhere = lost.read_elsewhere

    @property
    def comparing(self) -> bool:
        """Whether a list of lost segments exists; no snapshot may be written meanwhile."""
        return self._missing is not None

    @property
    def settled(self) -> bool:
        """Whether it is known that nothing has to be compared with what was known before."""
        return self._loaded and not self.comparing

    @property
    def missing(self) -> list[bytes]:
        """The records (COPY_SEGMENT_FINISHED) that the replay has not shown yet, in no order."""
        return [] if self._missing is None else list(self._missing)

    @property
    def missing_count(self) -> int:
        """How many records those are."""
        return 0 if self._missing is None else len(self._missing)

    @property
    def risen(self) -> list[tuple[TopicIdPartition, SegmentId]]:
        """The segments that were deleted, and that the replay shows as COPY_SEGMENT_FINISHED."""
        return [(tp, SegmentId(key[-UUID_BYTES:])) for key, tp in self._risen.items()]

    @property
    def risen_count(self) -> int:
        """How many segments those are."""
        return len(self._risen)

    def was_used_again(self, partition: TopicIdPartition, segment_id: SegmentId) -> bool:
        """Whether what is missing was copied under its id after that id's last deletion here."""
        return prefix_of(partition) + segment_id in self._used_again

    def let_be(self, segments: Iterable[tuple[TopicIdPartition, SegmentId]]) -> None:
        """Take it that these are not risen: their objects are there, whoever had deleted them."""
        for partition, segment_id in segments:
            self._risen.pop(prefix_of(partition) + segment_id, None)

    async def drop(self, fold: Fold, reason: str, *, same_log: bool = False) -> bool:
        """Write down what `fold` knew, merged with what was still missing, and start over.

        Returns whether that was all: what a damaged table knew is not among it. `same_log`: the
        log that is read from now on is the one that was folded, whatever it lost.

        Raises:
            OSError: it could not be written; the fold must not be dropped.
        """
        await self.load()
        before = iter(()) if self._missing is None else self._missing.items()
        damaged = list[TopicIdPartition]()
        live = (each for each in finished(fold, damaged.append) if each[0] not in self._risen)
        known = await self._gathered(chain(before, live))
        reasons = list(self.reasons)
        if reasons[-1:] != [reason]:
            reasons.append(reason)
        read = list[Position]()
        if same_log and not damaged:
            read = furthest([*self.read, Position(fold.position, fold.leader_epoch)])
        elsewhere = self.read_elsewhere
        if not (same_log or damaged):
            elsewhere = max(elsewhere, fold.position)
        lost = Lost(
            format=LOST_FORMAT_READ if read else FORMAT,
            metadata_partition=self.partition,
            reasons=reasons,
            read=read,
            read_elsewhere=elsewhere,
            records=[],
        )
        await self._state.write_lost(lost, known, len(known))
        self._missing, self.reasons, self.read = known, reasons, read
        self.read_elsewhere = elsewhere
        self._begin_anew()
        return not damaged

    async def find_common(self, log: EventLog) -> None:
        """Learn how far the log is still what dropped folds had read.

        Raises:
            UnavailableError: the log does not say.
        """
        for each in self.read:
            found = await log.epoch_end(self.partition, each.leader_epoch)
            end = min(each.next_offset, found.end_offset)
            self.common_end = max(self.common_end, end)

    def applied(self, outcome: Outcome, offset: int) -> None:
        """The replay applied a record: a finished copy is not missing any more.

        Nothing is put aside meanwhile: the fold began with nothing, and sleeps in no snapshot.
        """
        if self._missing is None or not isinstance(outcome, Applied | Repeated | Rejected):
            return
        if not isinstance(outcome, Applied):
            self._passed_over(self._missing, outcome, offset)
            return
        value = outcome.value  # in normal form, which begins with whom it is about
        if value.startswith(_REMOVAL) and self._risen:
            # Its segments need no end of their own: whoever removes a partition may write none.
            risen = self._risen.items()
            self._risen = {key: tp for key, tp in risen if tp != outcome.partition}
        if not value.startswith(_UPDATE):
            return
        begin = len(_UPDATE)
        key = value[begin : begin + len(prefix_of(outcome.partition)) + UUID_BYTES]
        if value[_STATE_AT] == SegmentState.COPY_SEGMENT_FINISHED:
            if key in self._missing:
                self._finished(self._missing, key, value, offset)
            elif offset < self.common_end:
                self._risen[key] = outcome.partition
        elif value[_STATE_AT] in _DELETES:
            self._risen.pop(key, None)
            self._deleted(self._missing, key, value, offset)

    def _finished(self, missing: _Known, key: _Key, update: bytes, offset: int) -> None:
        """A segment is finished: not missing, unless this turns out to be an earlier copy of it."""
        record = missing.found(key) or self._otherwise.pop(key, _FOUND)
        if record and offset < self.common_end and not _is_last_event(record, key, update):
            self._otherwise[key] = record

    def _deleted(self, missing: _Known, key: _Key, update: bytes, offset: int) -> None:
        """A deletion ends what was known, unless dropped folds had read it: they knew a later copy.

        A segment id is used again by whoever repeats a copy under it.
        """
        if offset >= self.common_end:
            if _ends(update):
                missing.found(key)
                self._otherwise.pop(key, None)
                self._used_again.discard(key)
            return
        if record := self._otherwise.pop(key, _FOUND):
            missing.put(key, record)
        if key in missing:
            self._used_again.add(key)

    def _passed_over(self, missing: _Known, outcome: Repeated | Rejected, offset: int) -> None:
        """The end of a segment whose beginning is lost is an end all the same."""
        event = outcome.event
        if isinstance(event, SegmentUpdate) and event.state in _DELETES:
            # Encoded anew: a foreign writer's record need not be in normal form.
            value = records.encode(event)
            key = prefix_of(outcome.partition) + event.segment_id
            self._deleted(missing, key, value, offset)

    def _begin_anew(self) -> None:
        """Forget what a replay showed."""
        self._risen, self._otherwise, self.common_end = {}, {}, 0
        self._used_again = set()

    async def _gathered(self, found: Iterable[tuple[_Key, bytes]]) -> _Known:
        """Return records by what they are about, with turns for others in between."""
        known = _Known()
        for index, (key, record) in enumerate(found):
            known.put(key, record)
            if index % TURN_RECORDS == TURN_RECORDS - 1:
                await self._state.turns.wait()
        return known

    async def forget(self) -> None:
        """End the comparison: everything was found again, or its loss was accepted."""
        await self._state.remove_lost(self.partition)
        self._missing, self.reasons = None, []
        self.read, self.read_elsewhere = (), 0
        self._begin_anew()

    def end_for_now(self) -> None:
        """End the comparison in a log that is another one than was known: all was found again.

        The list stays: a later life that had nothing to hold this log against could not tell it
        from one that lost everything.
        """
        self._missing, self.reasons = None, []


def furthest(read: Sequence[Position]) -> list[Position]:
    """Return positions without those that another one is beyond in every way, the latest few."""
    kept = list[Position]()
    for each in read:
        if not any(beyond(other, each) for other in kept):
            kept = [*(other for other in kept if not beyond(each, other)), each]
    return kept[-READ_MAX:]


def beyond(one: Position, other: Position) -> bool:
    """Whether who had read up to `one` of a log had read as far as `other`, too."""
    return one.next_offset >= other.next_offset and one.leader_epoch >= other.leader_epoch


def _is_last_event(record: bytes, key: _Key, update: bytes) -> bool:
    """Whether an update is the event that a known record tells of: by when it was written."""
    behind_id = len(_UPDATE) + len(key)
    known, told = behind_id + EVENT_TIMESTAMP_AT, behind_id + _WRITTEN_AT
    return record[known : known + _TIME_BYTES] == update[told : told + _TIME_BYTES]


def _ends(update: bytes) -> bool:
    """Whether an update, in normal form, says that somebody wanted this very segment deleted.

    What was meant for a stuck copy does not: who wrote it did not know of the finish.
    """
    return update[_STATE_AT] in _DELETES and _FOR_A_STUCK_COPY not in update


def finished(
    fold: Fold, damaged: Callable[[TopicIdPartition], None]
) -> Iterator[tuple[_Key, bytes]]:
    """Yield the record of each live COPY_SEGMENT_FINISHED segment of a fold, and of those held.

    What is held was finished, and a delete that was meant for a stuck copy has not ended it.

    What a damaged snapshot held of a user partition is not known any more, and `damaged` told so.
    """
    for partition in list(fold.partitions):
        try:
            cache = fold.partitions[partition]
        except NotReady as damage:
            logger.warning("not compared", partition=str(partition), error=damage.message)
            damaged(partition)
            continue
        held = zip(sorted(cache.held), cache.held_records(), strict=True)
        for segment_id, record in chain(cache.live_finished_records(), held):
            yield cache.prefix + segment_id, record


def _by_key(written: Iterable[bytes]) -> Iterator[tuple[_Key, bytes]]:
    for record in written:
        segment = records.decode(record)
        assert isinstance(segment, SegmentMetadata), "only key 0 records are written down"
        yield prefix_of(segment.partition) + segment.segment_id, record
