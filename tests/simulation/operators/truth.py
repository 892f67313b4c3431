"""What was acknowledged and what was given up: which objects may go, and which answers are true.

An object of an acknowledged COPY_SEGMENT_FINISHED goes only if a caller asked for the segment's
deletion, or its topic is gone, or an operator accepted that its events are lost and later ended the
hold. An acceptance by itself lets nothing go, and gives up only what the log really lacks: every
segment of its metadata partition is in doubt until the daemon is ready again, and a segment that is
there then was never given up. A deletion stays one, unless such a loss was accepted.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from rlmm_daemon.codec import batches, records
from rlmm_daemon.codec.api import SegmentFiles
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.core.storage.layout import Layout, object_key, parse_key
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataPartition,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
)
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from rlmm_daemon.ports.storage import ObjectKind
from tests.simulation.operators.manifests import Manifests

BROKER = BrokerId(1)
TOPICS = 2
PARTITIONS = 2
SEGMENT_OFFSETS = 4
LAYOUT = Layout()
#: Every segment has these; a transaction index is left out, as most have none.
KINDS = tuple(kind for kind in ObjectKind if kind is not ObjectKind.TRANSACTION)


@dataclass(slots=True, eq=False)
class Segment:
    """One segment as its broker remembers it over all lives."""

    first: SegmentMetadata
    metadata_partition: MetadataPartition
    body: bytes
    #: Whether its COPY_SEGMENT_FINISHED, its DELETE_SEGMENT_FINISHED were acknowledged.
    finished: bool = False
    deleted: bool = False
    #: A clone acknowledged its COPY_SEGMENT_FINISHED, which stands in no log of ours: its objects
    #: stay until every hold is ended.
    elsewhere: bool = False
    #: A caller asked for its deletion: nothing is promised of it from then on.
    unwanted: bool = False
    #: Its copy ended in an error that a repeat would not end: the broker goes on without it.
    given_up: bool = False
    busy: bool = False
    #: A loss was, or may have been, accepted of its metadata partition since it was seen last.
    doubted: bool = False
    #: Its events are lost, and that was accepted.
    lost: bool = False
    #: And the hold on its objects was ended since.
    released: bool = False
    #: A loss was, or may have been, accepted of its metadata partition since somebody asked for its
    #: deletion: that may have stood in what was lost.
    end_given_up: bool = False
    #: The storage lost an object of it.
    maimed: bool = False

    @property
    def promised(self) -> bool:
        """Whether the log must show it as COPY_SEGMENT_FINISHED."""
        return self.finished and not self.unwanted and not self.lost

    @property
    def name(self) -> str:
        """Return what people call it."""
        number = int.from_bytes(self.first.segment_id, "big")
        return f"segment {number} of {self.first.partition} in {self.metadata_partition}"

    @property
    def files(self) -> SegmentFiles:
        """Return what a caller names; the simulated broker's disk knows files by the segment."""
        return SegmentFiles(
            log=self.first.segment_id.hex(),
            offset_index="offset",
            time_index="time",
            producer_snapshot="snapshot",
            leader_epoch_checkpoint=b"0\n1\n0 0\n",
            transaction_index=None,
        )

    def content(self, kind: ObjectKind) -> bytes:
        """Return what is stored of a kind."""
        return self.body if kind is ObjectKind.LOG else kind.value.encode() * 3


@dataclass(slots=True)
class Books:
    """The world's truth; asked at each effect on the bucket and after each step."""

    partition_count: int
    #: Whether all of a segment's objects are stored now.
    is_whole: Callable[[Segment], bool] = lambda _: True
    #: Whether none of them is.
    is_gone: Callable[[Segment], bool] = lambda _: False
    segments: list[Segment] = field(default_factory=list)
    by_id: dict[SegmentId, Segment] = field(default_factory=dict)
    gone: set[TopicId] = field(default_factory=set)
    #: Topics that exist, and whose remote segments an operator had deleted all the same.
    purged: set[TopicId] = field(default_factory=set)
    #: What no later step repairs; raised by whoever looks next.
    violation: str | None = None
    #: Objects whose removal was judged.
    judged: int = 0
    #: Deleted segments that the log shows as finished, since their end is lost.
    risen_segments: set[SegmentId] = field(default_factory=set)
    #: What operators said of the nightly job's manifests.
    manifests: Manifests = field(default_factory=Manifests)
    #: Whether a night's share has room for nothing: what it deletes was approved.
    tight: bool = False
    #: Metadata partitions with damage to their log that were not ready since.
    wounded: set[int] = field(default_factory=set)

    # The world.

    @property
    def partitions(self) -> list[TopicIdPartition]:
        """Every user partition that there ever was."""
        return [
            TopicIdPartition(TopicId(bytes([number + 1]) * 16), f"topic{number}", at)
            for number in range(TOPICS)
            for at in range(PARTITIONS)
        ]

    @property
    def living(self) -> list[TopicIdPartition]:
        """Those whose topic exists."""
        return [each for each in self.partitions if each.topic_id not in self.gone]

    def begin(self, partition: TopicIdPartition, now_ms: int) -> Segment:
        """Return a new segment behind those that its partition has."""
        start = SEGMENT_OFFSETS * sum(s.first.partition == partition for s in self.segments)
        body = batches.build(
            [bytes([len(self.segments) % 251]) * 8] * SEGMENT_OFFSETS,
            base_offset=start,
            leader_epoch=0,
            timestamp_ms=1,
        )
        first = SegmentMetadata(
            partition=partition,
            segment_id=SegmentId((len(self.segments) + 1).to_bytes(16, "big")),
            start_offset=Offset(start),
            end_offset=Offset(start + SEGMENT_OFFSETS - 1),
            broker_id=BROKER,
            max_timestamp_ms=1,
            event_timestamp_ms=now_ms,
            segment_leader_epochs={LeaderEpoch(0): Offset(start)},
            segment_size_bytes=len(body),
            txn_index_empty=True,
        )
        number = metadata_partition(partition.topic_id, partition.partition, self.partition_count)
        made = Segment(first=first, metadata_partition=number, body=body)
        self.segments.append(made)
        self.by_id[first.segment_id] = made
        return made

    def of(self, partition: TopicIdPartition) -> Iterator[Segment]:
        """Yield a user partition's segments, by their offsets."""
        return (each for each in self.segments if each.first.partition == partition)

    # Orders.

    def accepting(self, number: int | None) -> list[Segment]:
        """Somebody orders that a loss be accepted (None: of the whole log); return who is doubted.

        Whether the order took effect is not known before its answer, and after a death never.
        """
        fresh = [each for each in self._in(number) if not each.doubted]
        for each in fresh:
            each.doubted = True
        for each in self._in(number):
            each.end_given_up = each.end_given_up or each.unwanted
        return fresh

    def refused(self, doubted: Iterable[Segment]) -> None:
        """That order certainly had no effect."""
        for each in doubted:
            each.doubted = False

    def ending_hold(self, number: int | None) -> None:
        """Somebody orders that a hold be ended: what was given up may go from now on."""
        for each in self._in(number):
            each.released = each.released or each.doubted or each.lost
            each.elsewhere = each.elsewhere and number is not None

    def _in(self, number: int | None) -> list[Segment]:
        return [each for each in self.segments if number in (None, each.metadata_partition)]

    def can_be_put_back(self, segment: Segment) -> bool:
        """Whether its loss is none: it is whole, and nobody wants it gone, nor its topic."""
        lives = segment.first.partition.topic_id not in self.gone
        return segment.promised and lives and self.is_whole(segment)

    def keys(self, segment: Segment) -> dict[str, bytes]:
        """Return what must be stored of a segment, by key."""
        first = segment.first
        return {
            object_key(
                LAYOUT, first.partition, first.start_offset, first.segment_id, suffix=kind.value
            ): segment.content(kind)
            for kind in KINDS
        }  # fmt: skip

    # Judgements.

    def fail(self, what: str) -> None:
        """Note what does not hold; the first one counts."""
        self.violation = self.violation or what

    def removed(self, key: str, etag: str, *, by_night: bool) -> None:
        """An object that was there goes."""
        parsed = parse_key(LAYOUT, key)
        swept = parsed is not None and parsed.partition.topic_id in self.gone | self.purged
        why = self.manifests.why_kept(key)
        if why and (by_night or not (swept or key in self._asked_for())):
            self.fail(f"{key} goes, and {why}")
        if by_night and (why := self.manifests.deleted(key, etag, tight=self.tight)):
            self.fail(f"{key} goes by a night, and {why}")
        if parsed is None:
            return
        self.judged += 1
        segment = self.by_id.get(parsed.segment_id)
        if (
            segment is None
            or not (segment.finished or segment.elsewhere)
            or segment.unwanted
            or parsed.partition.topic_id in self.gone
        ):
            return
        if not segment.finished:
            self.fail(f"{parsed.suffix} of {segment.name} goes, which a clone acknowledged")
            return
        if segment.lost and segment.released:
            return
        why = "its hold stands" if segment.lost else "nobody gave it up"
        self.fail(f"{parsed.suffix} of {segment.name} goes, which was acknowledged: {why}")

    def _asked_for(self) -> set[str]:
        """Return the keys of what callers deleted: no manifest spares that."""
        return {
            key
            for each in self.segments
            if each.unwanted or not (each.finished or each.elsewhere)
            for key in self.keys(each)
        }

    def seen(self, segment: Segment, *, there: bool) -> None:
        """A look-up that was answered shows a segment as finished, or does not."""
        if there:
            # What is there was not given up, or was put back.
            segment.doubted = segment.lost = segment.released = False
            return
        if segment.doubted:
            segment.lost, segment.doubted = True, False
        elif segment.promised:
            self.fail(f"{segment.name} was acknowledged, and a look-up is empty")

    def risen(self, segment: Segment) -> None:
        """A ready fold shows a deleted segment as finished.

        Its end may be among what the log lost and somebody accepted. With an object it can be read,
        or tells where it went: a write of the copy that came late.
        """
        if not segment.end_given_up and self.is_gone(segment):
            self.fail(f"{segment.name} was deleted, and is COPY_SEGMENT_FINISHED again")
        self.risen_segments.add(segment.first.segment_id)

    def damaged(self, number: int) -> None:
        """The log of a metadata partition was damaged: what stood in it may be gone."""
        self.wounded.add(number)

    def forgotten(self) -> None:
        """Log, state directory and marker are lost at once: the objects alone are left."""
        for each in self.segments:
            each.lost = each.lost or each.finished
            each.doubted = each.released = False
            each.end_given_up = each.unwanted
        self.wounded.clear()

    def marker_made(self) -> None:
        """A daemon made a marker where there was none: the rows of the former one are gone."""
        for each in self.segments:
            if (
                each.promised
                and not each.doubted
                and each.first.partition.topic_id not in self.gone
                and each.metadata_partition not in self.wounded
            ):
                self.fail(f"a marker is made anew, and the log names {each.name}")

    def appended(self, value: bytes) -> None:
        """Somebody who is no client appends a record: never the return of what was deleted.

        Nor the end of what can be read.
        """
        event = records.decode(value)
        if isinstance(event, SegmentUpdate) and event.state is SegmentState.DELETE_SEGMENT_STARTED:
            segment = self.by_id[event.segment_id]
            if segment.finished and not segment.unwanted and self.is_whole(segment):
                self.fail(f"{segment.name} is whole, and is ended")
        if isinstance(event, SegmentUpdate) and event.state is SegmentState.COPY_SEGMENT_FINISHED:
            segment = self.by_id[event.segment_id]
            if segment.deleted:
                self.fail(f"{segment.name} was deleted, and is put back as COPY_SEGMENT_FINISHED")
            if not self.is_whole(segment):
                self.fail(f"{segment.name} is put back, and its objects are not whole")
