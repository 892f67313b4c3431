"""Second pass: each suspect segment judged by `core.disposal`, inside Arrow batches.

Rows come sorted by segment, events in the log's order; one segment's rows are in memory at a time.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from rlmm_daemon.codec.custom_metadata import SIZED
from rlmm_daemon.codec.marker import AcceptedLoss, Hold, LayoutRow
from rlmm_daemon.core.disposal.findings import (
    LOG,
    RULES,
    Ages,
    Finding,
    Judged,
    Present,
    Recorded,
    judge,
    judge_upload,
)
from rlmm_daemon.core.disposal.history import Segment, Told, last_word
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.core.storage.layout import Layout, ParsedKey, is_topic_name, object_key, parse_key
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import Offset, SegmentId, TopicId, TopicIdPartition, uuid_bytes
from rlmm_daemon.domain.segment import SegmentState
from rlmm_daemon.reconcile.schema import FINDINGS, batch

ROWS_PER_BATCH: Final = 5_000
Row = Mapping[str, Any]
#: What a row says of an object, where the finding is that it is not there.
_ABSENT: Final = dict.fromkeys(("key", "size", "modified_ms", "etag", "upload_id"))
_segment_of = itemgetter("topic_id", "partition", "segment_id")


class Judge(msgspec.Struct, frozen=True, kw_only=True):
    """What a task needs to know; small, since every task is sent one."""

    cluster: str
    layouts: tuple[LayoutRow, ...]
    ages: Ages
    #: Of the metadata log, and what of it was given up (the marker's words).
    partition_count: int = 1
    losses: tuple[AcceptedLoss, ...] = ()
    holds: tuple[Hold, ...] = ()
    #: Metadata partition -> when the snapshot was made that stands for its head.
    covered_ms: Mapping[int, int] = msgspec.field(default_factory=dict)
    #: The listing is a report of another day: what it says is there must be seen again, too.
    listing_is_old: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield findings, as `mapInArrow` wants it."""
        rows = itertools.chain.from_iterable(each.to_pylist() for each in batches)
        found: list[dict[str, Any]] = []
        for (_, _, segment_id), group in itertools.groupby(rows, key=_segment_of):
            # There may be millions of strangers in a row: one by one.
            whole = segment_id is not None
            for finding in self.segment([*group]) if whole else map(self._stranger, group):
                found.append(finding)
                if len(found) >= ROWS_PER_BATCH:
                    yield _batch(found)
                    found = []
        yield _batch(found)

    def _stranger(self, row: Row) -> dict[str, Any]:
        return self._unknown(row, f"stored={row['size']}")

    def segment(self, rows: list[Row]) -> Iterator[dict[str, Any]]:
        """Yield the findings of one segment, given all its rows."""
        segment = last_word(_told(row) for row in rows if row["offset"] is not None)
        uploads = [row for row in rows if row["upload_id"] is not None]
        stored = [row for row in rows if row["key"] is not None and row["upload_id"] is None]
        present: dict[str, tuple[Row, Present]] = {}
        layout = next((each for each in self.layouts if each.number == segment.layout), None)
        odd = _oddity(segment, self.layouts)
        for row in stored:
            place = self._place(row, segment)
            if place is None or place[1] in present:
                yield self._unknown(row, "the log puts this segment's objects elsewhere")
            else:
                lies, suffix = place
                # Where the log does not say it: with whatever else is there of the segment.
                layout = layout or lies
                whole = Present(suffix=suffix, size=row["size"], modified_ms=row["modified_ms"])
                present[suffix] = row, whole
        recorded = _recorded(segment)
        listed = {suffix: whole for suffix, (_, whole) in present.items()}
        ages = self._ages(rows[0])
        for found in judge(recorded, listed, ages):
            judged = replace(found, facts=f"{found.facts}{odd}")
            row = present[judged.suffix][0] if judged.suffix in present else {**rows[0], **_ABSENT}
            yield self._finding(judged, row, segment, self._key(judged, row, segment, layout))
        for row in uploads:
            if not any(self._parsed(row)):
                yield self._unknown(row, "an upload under a key that no layout could have made")
                continue
            upload = judge_upload(recorded, row["modified_ms"], ages)
            if upload is not None:
                yield self._finding(upload, row, segment, row["key"])

    def _ages(self, row: Row) -> Ages:
        """Return the ages that count for one segment: with what is lost of its partition."""
        if not (self.losses or self.covered_ms or self.holds):
            return self.ages
        number = metadata_partition(
            TopicId(uuid_bytes(row["topic_id"])), row["partition"], self.partition_count
        )
        at_ms = [
            loss.accepted_at_ms for loss in self.losses if loss.metadata_partition in (None, number)
        ]
        return replace(
            self.ages,
            loss_ms=max(at_ms, default=0),
            snapshot_ms=self.covered_ms.get(number, 0),
            holds=self.holds,
            metadata_partition=number,
        )

    def _place(self, row: Row, segment: Segment) -> tuple[LayoutRow, str] | None:
        """Return which of the segment's objects a key is; None if it is not where that lies."""
        for layout, parsed in self._parsed(row):
            if segment.state is SegmentState.COPY_SEGMENT_FINISHED:
                there = (parsed.start_offset, parsed.partition.topic)
                if there != (segment.start_offset, segment.topic):
                    return None
                if segment.layout not in (None, layout.number):
                    return None
            return layout, parsed.suffix
        return None

    def _parsed(self, row: Row) -> Iterator[tuple[LayoutRow, ParsedKey]]:
        """Yield what a key names under each layout that could have made it."""
        for layout in self.layouts:
            parsed = parse_key(Layout(layout.prefix, layout.kind), row["key"])
            if parsed is not None:
                yield layout, parsed

    def _key(
        self, judged: Judged, row: Row, segment: Segment, layout: LayoutRow | None
    ) -> str | None:
        if not judged.suffix:
            return None
        if row["key"] is not None:
            return str(row["key"])
        # Nothing of it is there and the log does not say where: daemons write the newest layout.
        if layout is None and segment.layout is None:
            layout = max(self.layouts, key=lambda each: each.number, default=None)
        if layout is None:
            return None
        topic_id = TopicId(uuid_bytes(row["topic_id"]))
        try:
            return object_key(
                Layout(layout.prefix, layout.kind),
                TopicIdPartition(topic_id, segment.topic, row["partition"]),
                Offset(segment.start_offset),
                SegmentId(uuid_bytes(row["segment_id"])),
                suffix=judged.suffix,
            )
        except InvalidArgument:  # Kafka forbids its topic's name: no daemon makes such a key
            return None

    def _unknown(self, row: Row, facts: str) -> dict[str, Any]:
        judged = Judged(kind=Finding.UNKNOWN_KEY, facts=facts)
        return self._finding(judged, row, Segment(), row["key"])

    def _finding(
        self, judged: Judged, row: Row, segment: Segment, key: str | None
    ) -> dict[str, Any]:
        rule = RULES[judged.kind]
        modified_ms = row["modified_ms"]
        since_ms = segment.event_ms if modified_ms is None else modified_ms
        recorded = {LOG: segment.log_size, **segment.sizes}.get(judged.suffix)
        return {
            "kind": judged.kind.value,
            "severity": rule.severity.value,
            "cluster": self.cluster,
            "topic": segment.topic or row["topic"],
            "topic_id": row["topic_id"],
            "partition": row["partition"],
            "segment_id": row["segment_id"],
            "key": key,
            "bytes": next(
                size for size in (row["size"], recorded, segment.log_size) if size is not None
            ),
            "age_ms": self.ages.listed_ms - since_ms,
            "facts": judged.facts,
            "action": rule.action,
            "etag": row["etag"],
            "modified_ms": modified_ms,
            "upload_id": row["upload_id"],
            "confirm": judged.confirm or (self.listing_is_old and bool(judged.suffix)),
            # A missing key can't be condemned, whatever was judged.
            "condemned": judged.condemned and key is not None,
            "recorded_bytes": recorded,
        }


def _oddity(segment: Segment, layouts: tuple[LayoutRow, ...]) -> str:
    """Return why nobody can say where a segment's objects lie, to stand behind other facts."""
    if segment.layout is not None and all(each.number != segment.layout for each in layouts):
        return f" layout {segment.layout} is not in the marker"
    if segment.state is not None and not is_topic_name(segment.topic):
        return f" {segment.topic!r} is no name that Kafka allows a topic"
    return ""


def _told(row: Row) -> Told:
    sizes = row["sizes"]
    return Told(
        offset=row["offset"],
        state=SegmentState(row["state"]),
        event_ms=row["event_ms"],
        log_size=row["log_size"],
        start_offset=row["start_offset"],
        topic=row["topic"],
        layout=row["layout"],
        sizes=None
        if sizes is None
        else {name: size for name, size in zip(SIZED, sizes, strict=True) if size >= 0},
        only_if_started=bool(row["only_if_started"]),
    )


def _recorded(segment: Segment) -> Recorded:
    sizes = {LOG: segment.log_size, **segment.sizes} if segment.state is not None else {}
    return Recorded(
        state=segment.state,
        refused=segment.named and segment.state is None,
        event_ms=segment.event_ms,
        held=segment.held,
        sizes=sizes,
    )


def _batch(found: list[dict[str, Any]]) -> pa.RecordBatch:
    return batch(FINDINGS, {name: [row[name] for row in found] for name in FINDINGS.names})
