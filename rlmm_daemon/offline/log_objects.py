"""A look at the storage for the objects of segments that a log is to be given back."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

from rlmm_daemon.codec import custom_metadata
from rlmm_daemon.codec.marker import BucketMarker
from rlmm_daemon.config import Config
from rlmm_daemon.core.readiness.marker_verdict import IF_NONE
from rlmm_daemon.core.storage.layout import Layout, object_key
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import TopicId, uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata
from rlmm_daemon.ports.event_log import LogRange
from rlmm_daemon.ports.storage import ObjectKind, RemoteStorage
from rlmm_daemon.wiring import adapters

#: Segments that are looked for at once.
_AT_ONCE: Final = 16

#: Key -> size, None where any will do.
_Wanted = dict[str, int | None]


class Objects(Protocol):
    """Whether segments' objects are there."""

    #: Whose the storage is; None where there is none.
    cluster_id: str | None

    async def whole(self, segments: Sequence[SegmentMetadata]) -> list[SegmentMetadata]:
        """Return the segments of which every recorded object is there."""

    def accepted_gaps(self, topic_id: TopicId, number: int) -> Sequence[LogRange]:
        """Return offsets of one metadata partition of a log whose loss was accepted."""


class _Unseen:
    """No storage of ours: whoever stored the objects has to be believed."""

    cluster_id: str | None = None

    def accepted_gaps(self, *_: object) -> Sequence[LogRange]:
        return ()

    async def whole(self, segments: Sequence[SegmentMetadata]) -> list[SegmentMetadata]:
        return list(segments)


class _Seen:
    def __init__(self, storage: RemoteStorage, marker: BucketMarker) -> None:
        self._storage, self._marker = storage, marker
        self.cluster_id: str | None = marker.cluster_id

    def accepted_gaps(self, topic_id: TopicId, number: int) -> Sequence[LogRange]:
        """Return those that the marker keeps."""
        return [
            LogRange(start=gap.start, end=gap.end)
            for gap in self._marker.gaps
            if (gap.topic_id, gap.metadata_partition) == (uuid_text(topic_id), number)
        ]

    async def whole(self, segments: Sequence[SegmentMetadata]) -> list[SegmentMetadata]:
        """Return the whole ones.

        Raises:
            StorageUnavailable: it can't be said.
        """
        found: list[SegmentMetadata] = []
        for begin in range(0, len(segments), _AT_ONCE):
            several = segments[begin : begin + _AT_ONCE]
            async with asyncio.TaskGroup() as group:
                looks = [group.create_task(self._is_whole(each)) for each in several]
            found += [each for each, look in zip(several, looks, strict=True) if look.result()]
        return found

    async def _is_whole(self, segment: SegmentMetadata) -> bool:
        if custom_metadata.is_foreign(segment.custom_metadata):
            return True  # another storage manager's: its objects have names that we don't know
        for wanted in self._places(segment):
            for key, size in wanted.items():
                present = await self._storage.size(key)
                if present is None or size not in (None, present):
                    break
            else:
                return True
        return False

    def _places(self, segment: SegmentMetadata) -> Iterator[_Wanted]:
        """Yield where its objects may be: one place if it was recorded, else each layout's."""
        facts = custom_metadata.decode(segment.custom_metadata)
        sizes: _Wanted = {ObjectKind.LOG.value: segment.segment_size_bytes}
        if facts is not None:
            sizes |= facts.sizes
        for row in self._marker.layouts:
            if facts is None or row.number == facts.layout_number:
                at = Layout(row.prefix, row.kind), segment.partition, segment.start_offset
                yield {
                    object_key(*at, segment.segment_id, suffix=s): size for s, size in sizes.items()
                }


@asynccontextmanager
async def looking(config: Config) -> AsyncIterator[Objects]:
    """Yield a look at the configured storage; where there is none every segment counts as whole.

    Raises:
        InvalidArgument: no daemon has used that storage.
        StorageUnavailable: it does not answer.
    """
    made = adapters.storage_of(config, random.Random(), reads_only=True)  # noqa: S311 - jitter
    if made is None:
        yield _Unseen()
        return
    try:
        marker = await made.bucket.peek()
        if marker is None:
            raise InvalidArgument(
                f"{made.bucket.name or 'the storage'} has no marker, so no object can be looked "
                f"for; {IF_NONE}"
            )
        yield _Seen(made.backend, marker)
    finally:
        await made.backend.close()
