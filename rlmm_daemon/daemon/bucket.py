"""Whose bucket this is, where new copies go, and where the objects of a segment lie."""

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from rlmm_daemon.codec import custom_metadata, marker
from rlmm_daemon.codec.marker import (
    MARKER_KEY,
    AcceptedGap,
    AcceptedLoss,
    BucketMarker,
    Hold,
    LayoutRow,
)
from rlmm_daemon.core.layout import Layout, object_key
from rlmm_daemon.domain.errors import ConfigError, Malformed, StorageUnavailable, UnavailableError
from rlmm_daemon.domain.segment import SegmentMetadata
from rlmm_daemon.ports.event_log import LogRange, ranges_joined
from rlmm_daemon.ports.storage import Conflict, ObjectKind, RemoteStorage

#: Each lost race means that another daemon wrote its row, and there are few daemons.
RACES_MAX: Final = 50
#: The `reason` of a StorageUnavailable that no waiting ends.
FOREIGN_MARKER: Final = "foreign_marker"
BACK_OFF_SECONDS: Final = 0.2
BACK_OFF_SECONDS_MAX: Final = 10.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketIdentity:
    """What a fresh marker is made of; known once the event log is open."""

    cluster_id: str
    partition_count: int
    #: Kafka's uuid text of the metadata topic.
    metadata_topic_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlace:
    """Where one set of a segment's objects lies, or may lie."""

    layout_number: int
    #: Every kind, whether or not it was stored.
    keys: dict[ObjectKind, str]


class Bucket:
    """The marker of one storage, and this daemon's layout in it."""

    def __init__(self, storage: RemoteStorage, *, layout: Layout, rng: random.Random) -> None:
        self.storage = storage
        self._layout = layout
        self._rng = rng
        self._marker: BucketMarker | None = None
        self._number: int | None = None
        self._refusal: ConfigError | None = None
        self._judged = asyncio.Event()

    async def until_judged(self, timeout_seconds: float) -> None:
        """Return once the marker was read, whosever it is, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._judged.wait()

    @property
    def marker(self) -> BucketMarker | None:
        """The marker as last read; None until `open` returned."""
        return self._marker

    @property
    def refusal(self) -> ConfigError | None:
        """Why this bucket is none of ours; None while nothing is known against it."""
        return self._refusal

    async def open(self, identity: BucketIdentity) -> BucketMarker:
        """Open the storage and return its marker with our layout in it; waits for the storage.

        Retries for ever with back-off: a daemon without its bucket is not ready, not dead. The
        partition count and topic id of an existing marker are returned, not judged.

        Raises:
            ConfigError: the bucket belongs to another cluster; copies and reads stay refused.
            Malformed: the marker is damaged or newer than this program.
        """
        pause = BACK_OFF_SECONDS
        while True:
            try:
                await self.storage.open()
                return await self._settle(identity)
            except ConfigError as error:
                self._refusal = error
                self._judged.set()
                raise
            except UnavailableError as error:
                log.warning("bucket not reached", error=str(error), retry_seconds=round(pause, 1))
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            pause = min(2 * pause, BACK_OFF_SECONDS_MAX)

    async def peek(self) -> BucketMarker | None:
        """Return the marker as it is, without making one; None if the storage has none yet.

        Asked before the event log is opened: a log that the marker names is never made anew.

        Raises:
            StorageUnavailable: the storage does not answer, which says nothing about a marker.
            Malformed: the marker is damaged or newer than this program.
        """
        await self.storage.open()
        control = await self.storage.get_control(MARKER_KEY)
        if control is None:
            return None
        fresh = marker.decode_marker(control.data)
        if self._marker is not None and fresh.cluster_id == self._marker.cluster_id:
            self._marker = fresh
        return fresh

    async def accept_loss(
        self, loss: AcceptedLoss, gaps: Iterable[AcceptedGap] = (), *, cluster_id: str | None
    ) -> None:
        """Keep an accepted loss in the marker, with a hold, and make its topic id the marker's.

        The hold keeps the objects whose events may be among what was lost. The marker of another
        cluster than `cluster_id` is left alone.

        Raises:
            StorageUnavailable: it was not written.
            Malformed: the marker is damaged or newer than this program.
        """
        hold = Hold(
            metadata_partition=loss.metadata_partition,
            before_ms=loss.accepted_at_ms,
            broker_id=loss.broker_id,
        )

        def accepted(present: BucketMarker) -> BucketMarker:
            others = (h for h in present.held if h.metadata_partition != hold.metadata_partition)
            return msgspec.structs.replace(
                present,
                metadata_topic_id=loss.topic_id,
                accepted_losses=(*present.accepted_losses, loss),
                accepted_gaps=_joined([*present.gaps, *gaps]),
                holds=(*others, hold),  # a later one says all that the one before it did
            )

        await self._rewrite(accepted, cluster_id)

    async def end_holds(self, metadata_partition: int | None, *, cluster_id: str | None) -> None:
        """End the hold of one metadata partition, or (None) every one.

        Raises:
            StorageUnavailable: it was not written.
            Malformed: the marker is damaged or newer than this program.
        """

        def ended(present: BucketMarker) -> BucketMarker:
            left = (h for h in present.held if h.metadata_partition != metadata_partition)
            return msgspec.structs.replace(
                present, holds=() if metadata_partition is None else tuple(left)
            )

        await self._rewrite(ended, cluster_id)

    async def holds(self) -> tuple[Hold, ...]:
        """Return what may not be deleted.

        As the marker was last read: a daemon reads it before it goes on after a loss, and the hold
        is in it by then. Where there are holds it is read anew, for they may have been ended.

        Raises:
            StorageUnavailable: the marker was not read yet, or is another cluster's.
        """
        known = self._require().held
        if known:
            with suppress(StorageUnavailable, Malformed):
                known = (await self._refresh()).held
        return known

    async def name_log(self, topic_id: str, *, cluster_id: str | None) -> None:
        """Make a log the marker's, for everything that is known is in it.

        The marker of another cluster than `cluster_id` is left alone.

        Raises:
            StorageUnavailable: it was not written.
            Malformed: the marker is damaged or newer than this program.
        """
        await self._rewrite(
            lambda present: msgspec.structs.replace(present, metadata_topic_id=topic_id), cluster_id
        )

    async def _rewrite(
        self, change: Callable[[BucketMarker], BucketMarker], cluster_id: str | None
    ) -> None:
        """Change the marker, against whoever else writes it.

        Raises:
            StorageUnavailable: it was not written.
            Malformed: the marker is damaged or newer than this program.
        """
        await self.storage.open()  # the start may not have reached it yet
        for _ in range(RACES_MAX):
            control = await self.storage.get_control(MARKER_KEY)
            if control is None:
                return  # a bucket without a marker: the one that is made will name this log
            present = marker.decode_marker(control.data)
            if cluster_id not in (None, present.cluster_id):
                return
            wanted = change(present)
            if wanted == present:
                return
            try:
                await self.storage.put_control(
                    MARKER_KEY, marker.encode(wanted), if_etag=control.etag
                )
            except Conflict:
                continue
            if self._marker is not None:
                self._marker = wanted
            return
        raise StorageUnavailable(f"the bucket marker was written by others {RACES_MAX} times")

    def place_for_new(self, metadata: SegmentMetadata) -> SegmentPlace:
        """Return where a new copy goes.

        Raises:
            StorageUnavailable: the marker was not read yet, or is another cluster's.
        """
        self._require()
        assert self._number is not None, "settled together with the marker"
        return _place(self._number, self._layout, metadata)

    async def places(
        self, metadata: SegmentMetadata, kept_custom_metadata: bytes | None = None
    ) -> list[SegmentPlace]:
        """Return where the objects are: one place if it was recorded, else every listed layout.

        Raises:
            StorageUnavailable: the marker cannot be read, or lacks the recorded layout.
            Malformed: the custom metadata is ours but newer than this program.
        """
        found = self._require()
        facts = custom_metadata.decode(metadata.custom_metadata)
        facts = facts or custom_metadata.decode(kept_custom_metadata)
        if facts is None or facts.layout_number > len(found.layouts):
            # Another daemon may have added a row since.
            found = await self._refresh()
        rows = [row for row in found.layouts if facts is None or row.number == facts.layout_number]
        if not rows:
            raise StorageUnavailable("the bucket marker lacks the layout that was recorded")
        return [_place(row.number, Layout(row.prefix, row.kind), metadata) for row in rows]

    async def layouts(self) -> list[Layout]:
        """Return every layout that any daemon ever used, by a fresh look at the marker.

        Raises:
            StorageUnavailable: the marker cannot be read.
        """
        self._require()
        return [Layout(row.prefix, row.kind) for row in (await self._refresh()).layouts]

    def _require(self) -> BucketMarker:
        if self._refusal is not None:
            raise StorageUnavailable(self._refusal.message, reason=FOREIGN_MARKER)
        if self._marker is None:
            raise StorageUnavailable("the bucket marker was not read yet", reason="no_marker")
        return self._marker

    async def _refresh(self) -> BucketMarker:
        control = await self.storage.get_control(MARKER_KEY)
        if control is None:
            raise StorageUnavailable("the bucket marker is gone", reason="no_marker")
        fresh = marker.decode_marker(control.data)
        if self._marker is not None and fresh.cluster_id != self._marker.cluster_id:
            raise StorageUnavailable("the bucket marker is another cluster's now")
        self._marker = fresh
        return fresh

    async def _settle(self, identity: BucketIdentity) -> BucketMarker:
        """Read the marker, and write it where it lacks us; a lost race reads again."""
        for _ in range(RACES_MAX):
            control = await self.storage.get_control(MARKER_KEY)
            present = (
                BucketMarker(
                    cluster_id=identity.cluster_id,
                    partition_count=identity.partition_count,
                    metadata_topic_id=identity.metadata_topic_id,
                )
                if control is None
                else marker.decode_marker(control.data)
            )
            _require_ours(present, identity)
            wanted, number = _with_layout(present, self._layout)
            try:
                if control is None or wanted is not present:
                    await self.storage.put_control(
                        MARKER_KEY,
                        marker.encode(wanted),
                        if_etag=control.etag if control else None,
                    )
            except Conflict:
                continue
            self._marker, self._number = wanted, number
            self._judged.set()
            return wanted
        raise StorageUnavailable(f"the bucket marker was written by others {RACES_MAX} times")


def _joined(gaps: Iterable[AcceptedGap]) -> tuple[AcceptedGap, ...]:
    """Return the same offsets in as few gaps as can be."""
    by_log: dict[tuple[str, int], list[LogRange]] = {}
    for gap in gaps:
        ranges = by_log.setdefault((gap.topic_id, gap.metadata_partition), [])
        ranges.append(LogRange(start=gap.start, end=gap.end))
    return tuple(
        AcceptedGap(topic_id=topic_id, metadata_partition=number, start=at.start, end=at.end)
        for (topic_id, number), ranges in sorted(by_log.items())
        for at in ranges_joined(ranges)
    )


def _require_ours(present: BucketMarker, identity: BucketIdentity) -> None:
    if present.cluster_id != identity.cluster_id:
        raise ConfigError(
            f"the remote storage belongs to cluster {present.cluster_id!r}, this is "
            f"{identity.cluster_id!r}; give this cluster a bucket or directory of its own",
            theirs=present.cluster_id,
            ours=identity.cluster_id,
        )


def _with_layout(present: BucketMarker, layout: Layout) -> tuple[BucketMarker, int]:
    for row in present.layouts:
        if (row.prefix, row.kind) == (layout.prefix, layout.kind):
            return present, row.number
    number = len(present.layouts) + 1
    row = LayoutRow(number=number, kind=layout.kind, prefix=layout.prefix)
    return msgspec.structs.replace(present, layouts=(*present.layouts, row)), number


def _place(number: int, layout: Layout, metadata: SegmentMetadata) -> SegmentPlace:
    keys = {
        kind: object_key(
            layout, metadata.partition, metadata.start_offset, metadata.segment_id, kind.value
        )
        for kind in ObjectKind
    }
    return SegmentPlace(layout_number=number, keys=keys)
