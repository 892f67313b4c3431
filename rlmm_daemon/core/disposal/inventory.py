"""Every segment that a log ever named beside every object that a listing found.

Filled in this order: the listing first, then the log to its end of now. So a copy that began after
the listing is no orphan, and one that was deleted since is at most a finding to be confirmed.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from rlmm_daemon.codec import custom_metadata
from rlmm_daemon.core.disposal.findings import (
    LOG,
    Ages,
    Finding,
    Judged,
    Present,
    Recorded,
    judge,
    judge_upload,
)
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.outcome import Applied
from rlmm_daemon.core.storage.layout import Layout, ParsedKey, object_key, parse_key
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import Offset, SegmentId, TopicIdPartition
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate


class SegmentName(NamedTuple):
    """One segment, wherever its objects lie."""

    partition: TopicIdPartition
    segment_id: SegmentId


class _Known(msgspec.Struct):
    """The log's last word on a segment."""

    start_offset: Offset
    size: int
    state: SegmentState
    event_ms: int
    #: The last that was not null.
    custom: bytes | None


class History(msgspec.Struct):
    """One metadata partition read from its start: its fold, and what became of what it dropped."""

    fold: Fold
    segments: dict[SegmentName, _Known] = msgspec.field(default_factory=dict)

    def take(self, offset: int, value: bytes | None) -> None:
        """Fold the next record in; what every broker rejects says nothing here either."""
        outcome = self.fold.apply(offset, value)
        if not isinstance(outcome, Applied):
            return
        match outcome.event:
            case SegmentMetadata() as made:
                name = SegmentName(made.partition, made.segment_id)
                self.segments[name] = _Known(
                    made.start_offset,
                    made.segment_size_bytes,
                    made.state,
                    made.event_timestamp_ms,
                    made.custom_metadata or None,
                )
            case SegmentUpdate() as update:
                known = self.segments.get(SegmentName(update.partition, update.segment_id))
                if known is not None:
                    known.state, known.event_ms = update.state, update.event_timestamp_ms
                    known.custom = update.custom_metadata or known.custom
            case _:
                pass  # the deletion of a partition: its segments have events of their own

    def recorded(self, name: SegmentName) -> Recorded | None:
        """Return what `judge` wants of a segment; None if no event names it."""
        known = self.segments.get(name)
        if known is None:
            return None
        facts = custom_metadata.decode(known.custom)
        cache = self.fold.partitions.get(name.partition)
        return Recorded(
            state=known.state,
            event_ms=known.event_ms,
            held=cache is not None and name.segment_id in cache.held,
            sizes={LOG: known.size} | dict(facts.sizes if facts else {}),
        )


class FindingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One finding, with the names that an operator needs."""

    judged: Judged
    name: SegmentName | None
    #: Of the object; "" for a finding about the whole segment.
    key: str


class Inventory(msgspec.Struct):
    """The objects of a listing by segment and layout."""

    #: Number -> layout, as the bucket's marker has them.
    layouts: Mapping[int, Layout]
    objects: int = 0
    unknown: list[tuple[str, int]] = msgspec.field(default_factory=list)
    _present: dict[SegmentName, dict[int, dict[str, Present]]] = msgspec.field(default_factory=dict)
    _starts: dict[SegmentName, Offset] = msgspec.field(default_factory=dict)
    _uploads: dict[SegmentName, list[tuple[str, int]]] = msgspec.field(default_factory=dict)

    def parsed(self, key: str) -> tuple[int, ParsedKey] | None:
        """Return the layout under which a key is a segment's, and what it names."""
        for number, layout in self.layouts.items():
            found = parse_key(layout, key)
            if found is not None:
                return number, found
        return None

    def listed(self, key: str, size: int, modified_ms: int) -> None:
        """Take in one object."""
        self.objects += 1
        found = self.parsed(key)
        if found is None:
            self.unknown.append((key, size))
            return
        number, parsed = found
        name = SegmentName(parsed.partition, parsed.segment_id)
        self._starts[name] = parsed.start_offset
        objects = self._present.setdefault(name, {}).setdefault(number, {})
        objects[parsed.suffix] = Present(suffix=parsed.suffix, size=size, modified_ms=modified_ms)

    def listed_upload(self, key: str, initiated_ms: int) -> None:
        """Take in one incomplete upload; one that is nobody's segment is not ours to judge."""
        found = self.parsed(key)
        if found is not None:
            name = SegmentName(found[1].partition, found[1].segment_id)
            self._uploads.setdefault(name, []).append((key, initiated_ms))

    def compared(self, history: History, ages: Ages) -> Iterator[FindingRow]:
        """Yield the findings about the segments of one metadata partition, which it takes out."""
        for name, known in history.segments.items():
            recorded = history.recorded(name)
            assert recorded is not None, "just iterated"
            places = self._present.pop(name, {})
            number = self._where(known.custom, places)
            for judged in judge(recorded, places.get(number, {}), ages):
                yield self._row(judged, name, known.start_offset, number)
            yield from self._judged_uploads(name, recorded, ages)

    def orphans(self, ages: Ages) -> Iterator[FindingRow]:
        """Yield what no event names, once every metadata partition was compared."""
        nothing = Recorded(state=None)
        for name, places in self._present.items():
            for number, present in places.items():
                for judged in judge(nothing, present, ages):
                    yield self._row(judged, name, self._starts[name], number)
        for name in list(self._uploads):
            yield from self._judged_uploads(name, nothing, ages)

    def _judged_uploads(
        self, name: SegmentName, recorded: Recorded, ages: Ages
    ) -> Iterator[FindingRow]:
        for key, initiated_ms in self._uploads.pop(name, ()):
            judged = judge_upload(recorded, initiated_ms, ages)
            if judged is not None:
                yield FindingRow(judged=judged, name=name, key=key)

    def strangers(self) -> Iterator[FindingRow]:
        """Yield the keys that no layout could have made."""
        for key, size in self.unknown:
            judged = Judged(kind=Finding.UNKNOWN_KEY, facts=f"stored={size}")
            yield FindingRow(judged=judged, name=None, key=key)

    def _where(self, custom: bytes | None, places: Mapping[int, object]) -> int:
        """Return the layout of a segment: as recorded, else where anything of it was found."""
        facts = custom_metadata.decode(custom)
        if facts is not None:
            return facts.layout_number
        return next(iter(places), max(self.layouts))

    def _row(self, judged: Judged, name: SegmentName, start: Offset, number: int) -> FindingRow:
        layout = self.layouts.get(number)
        key = ""
        if judged.suffix and layout is not None:
            try:
                key = object_key(
                    layout, name.partition, start, name.segment_id, suffix=judged.suffix
                )
            except InvalidArgument as error:  # somebody else wrote its events: it has no place
                judged = replace(judged, facts=f"{judged.facts} {error.message}")
        return FindingRow(judged=judged, name=name, key=key)
