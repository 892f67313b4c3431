"""Objects listed below one user partition's prefixes, in every layout of the bucket's marker.

Below a prefix that begins with a hash lies the whole bucket, so all partitions that want to know
share one listing of it.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, TypeAlias, TypeVar

import msgspec

from rlmm_daemon.core.storage.layout import (
    Layout,
    ParsedKey,
    listing_prefix,
    may_have_objects,
    object_key,
    parse_key,
)
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.cleaner.pace import Pace
from rlmm_daemon.daemon.cleaner.together import Together
from rlmm_daemon.domain.errors import ObjectMissing, StorageUnavailable
from rlmm_daemon.domain.ids import TopicIdPartition, uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata
from rlmm_daemon.ports.storage import ObjectInfo, UploadInfo

#: Found by one listing; the next look finds the rest.
LEFTOVERS_MAX: Final = 5_000
#: Of each partition at least, however many share the listing.
OF_EACH_MIN: Final = 50
#: Keys that go in one call.
SWEEP_KEYS: Final = 1_000
_SUFFIX: Final = ".log"
_Row = TypeVar("_Row", ObjectInfo, UploadInfo)
#: What a storage has below a prefix, page by page.
_Listing: TypeAlias = Callable[[str], AsyncGenerator[Sequence[_Row], None]]


class Leftovers(msgspec.Struct):
    """Objects and incomplete uploads of one user partition."""

    keys: list[str] = msgspec.field(default_factory=list)
    uploads: list[UploadInfo] = msgspec.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys) + len(self.uploads)

    def add(self, other: "Leftovers") -> None:
        """Take up what another layout holds."""
        self.keys += other.keys
        self.uploads += other.uploads


class LeftoverSearch:
    """Searches the bucket for every task of the cleaner, and clears away what was found."""

    def __init__(self, bucket: Bucket, pace: Pace) -> None:
        self._bucket, self._pace = bucket, pace
        #: By layout that begins with a hash.
        self._shared: dict[Layout, Together[TopicIdPartition, Leftovers]] = {}

    async def find(self, partition: TopicIdPartition) -> Leftovers:
        """Return what is still there of a partition, at most about `LEFTOVERS_MAX` of it.

        Raises:
            StorageUnavailable: a listing could not be ended, so nothing is known to be empty.
        """
        found = Leftovers()
        if not may_have_objects(partition):
            return found  # no object bears such a name
        for layout in await self._layouts():
            if listing_prefix(layout, partition):
                found.add((await self._list(layout, [partition]))[partition])
            else:
                found.add(await self._shared_of(layout).of(partition))
            if len(found) >= LEFTOVERS_MAX:
                break
        return found

    async def uploads_of(self, segment: SegmentMetadata) -> list[UploadInfo]:
        """Return the incomplete uploads of one segment, in every layout."""
        return await self._of(segment, self._bucket.storage.list_uploads)

    async def objects_of(self, segment: SegmentMetadata) -> list[ObjectInfo]:
        """Return the objects of one segment, in every layout."""
        return await self._of(segment, self._bucket.storage.list)

    async def require_stored(self, segment: SegmentMetadata) -> None:
        """Return if a finished segment has its `.log`: that it is finished does not say so.

        Raises:
            ObjectMissing: it has none, be it lost or another storage manager's.
            StorageUnavailable: nobody can say.
        """
        if not any(row.key.endswith(_SUFFIX) for row in await self.objects_of(segment)):
            name = uuid_text(segment.segment_id)
            raise ObjectMissing(f"segment {name} has no {_SUFFIX} in the storage")

    async def _of(self, segment: SegmentMetadata, listing: _Listing[_Row]) -> list[_Row]:
        found: list[_Row] = []
        if not may_have_objects(segment.partition):
            return found
        at = segment.partition, segment.start_offset, segment.segment_id
        for layout in await self._layouts():
            stem = object_key(layout, *at, suffix=_SUFFIX).removesuffix(_SUFFIX)
            async with aclosing(self._pace.pages(listing(stem))) as pages:
                async for page in pages:
                    parsed = ((row, parse_key(layout, row.key)) for row in page)
                    found += [row for row, key in parsed if key and key.segment_id == at[-1]]
        return found

    async def sweep(self, found: Leftovers) -> None:
        """Delete what was found.

        Raises:
            StorageUnavailable: at least one may still be there.
        """
        await self.abort(found.uploads)
        await self._pace.take(len({key.rpartition(".")[0] for key in found.keys}))
        failed = []
        for first in range(0, len(found.keys), SWEEP_KEYS):
            keys = found.keys[first : first + SWEEP_KEYS]
            outcomes = await self._pace.call(partial(self._bucket.delete, keys))
            failed += [error for error in outcomes.values() if error is not None]
        if failed:
            raise StorageUnavailable(
                f"{len(failed)} of {len(found.keys)} leftovers were not deleted: {failed[0]}"
            ) from failed[0]

    async def abort(self, uploads: Sequence[UploadInfo]) -> None:
        """Abort uploads; an absent one is fine."""
        for upload in uploads:
            await self._pace.call(partial(self._bucket.storage.abort_upload, upload))

    async def _layouts(self) -> Sequence[Layout]:
        return await self._pace.call(self._bucket.layouts)

    def _shared_of(self, layout: Layout) -> Together[TopicIdPartition, Leftovers]:
        found = self._shared.get(layout)
        if found is None:
            found = self._shared[layout] = Together(partial(self._list, layout))
        return found

    async def _list(
        self, layout: Layout, partitions: Collection[TopicIdPartition]
    ) -> Mapping[TopicIdPartition, Leftovers]:
        """List the prefix that these partitions have in common; of each, up to its share."""
        storage, sorted_in = self._bucket.storage, _SortedIn(layout, partitions)
        prefix = listing_prefix(layout, next(iter(partitions)))
        async with aclosing(self._pace.pages(storage.list(prefix))) as pages:
            async for page in pages:
                for partition, key in sorted_in.own(row.key for row in page):
                    sorted_in.found[partition].keys.append(key)
                if sorted_in.is_full:
                    return sorted_in.found
        async with aclosing(self._pace.pages(storage.list_uploads(prefix))) as uploads:
            async for some in uploads:
                for upload in some:
                    for partition, _ in sorted_in.own([upload.key]):
                        sorted_in.found[partition].uploads.append(upload)
        return sorted_in.found


class _SortedIn:
    """Which of these partitions a key is of."""

    def __init__(self, layout: Layout, partitions: Collection[TopicIdPartition]) -> None:
        self._layout = layout
        self.found = {each: Leftovers() for each in partitions}
        self._share = max(OF_EACH_MIN, LEFTOVERS_MAX // len(self.found))
        #: By the directory that Kafka's naming gives them.
        self._by_name = {listing_prefix(Layout(), each)[:-1]: each for each in self.found}

    @property
    def is_full(self) -> bool:
        """Whether of each partition as much was found as there is room for."""
        return all(len(each) >= self._share for each in self.found.values())

    def own(self, keys: Iterable[str]) -> Iterable[tuple[TopicIdPartition, str]]:
        """Yield the keys of partitions that have room, with whose they are."""
        for key in keys:
            directory = key.rpartition("/")[0].rpartition("/")[2]
            partition = self._by_name.get(directory)  # nearly always none of ours
            if partition is None or len(self.found[partition]) >= self._share:
                continue
            parsed: ParsedKey | None = parse_key(self._layout, key)
            if parsed is not None and parsed.partition == partition:
                yield partition, key
