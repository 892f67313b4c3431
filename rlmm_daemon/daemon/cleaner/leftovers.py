"""What a listing of one user partition's prefixes shows, in every layout of the bucket's marker."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from rlmm_daemon.core.layout import Layout, listing_prefix, parse_key
from rlmm_daemon.daemon.bucket import Bucket
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.ids import SegmentId, TopicIdPartition
from rlmm_daemon.ports.storage import UploadInfo

#: Found at once; the next look finds the rest.
LEFTOVERS_MAX: Final = 5_000


@dataclass(slots=True)
class Leftovers:
    """Objects and incomplete uploads of one user partition."""

    keys: list[str] = field(default_factory=list)
    uploads: list[UploadInfo] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys) + len(self.uploads)


async def find(
    bucket: Bucket, partition: TopicIdPartition, on_page: Callable[[], None]
) -> Leftovers:
    """Return what is still there of a partition, at most `LEFTOVERS_MAX` of it.

    `on_page` is told of each page: below a prefix that begins with a hash lies the whole bucket.

    Raises:
        StorageUnavailable: a listing could not be ended, so nothing is known to be empty.
    """
    found = Leftovers()
    for layout in await bucket.layouts():
        async for key in _keys(bucket, layout, partition, on_page):
            found.keys.append(key)
            if len(found) >= LEFTOVERS_MAX:
                return found
        async for upload in _uploads(bucket, layout, partition, None, on_page):
            found.uploads.append(upload)
            if len(found) >= LEFTOVERS_MAX:
                return found
    return found


async def sweep(bucket: Bucket, found: Leftovers) -> None:
    """Delete what was found.

    Raises:
        StorageUnavailable: at least one may still be there.
    """
    await abort(bucket, found.uploads)
    outcomes = (await bucket.storage.delete(found.keys)).values() if found.keys else ()
    failed = [error for error in outcomes if error is not None]
    if failed:
        raise StorageUnavailable(
            f"{len(failed)} of {len(found.keys)} leftovers were not deleted: {failed[0]}"
        ) from failed[0]


async def uploads_of(
    bucket: Bucket, partition: TopicIdPartition, segment_id: SegmentId
) -> list[UploadInfo]:
    """Return the incomplete uploads of one segment, in every layout."""
    return [
        upload
        for layout in await bucket.layouts()
        async for upload in _uploads(bucket, layout, partition, segment_id)
    ]


async def abort(bucket: Bucket, uploads: Sequence[UploadInfo]) -> None:
    """Abort uploads; an absent one is fine."""
    for upload in uploads:
        await bucket.storage.abort_upload(upload)


async def _keys(
    bucket: Bucket, layout: Layout, partition: TopicIdPartition, on_page: Callable[[], None]
) -> AsyncGenerator[str, None]:
    async with aclosing(bucket.storage.list(listing_prefix(layout, partition))) as pages:
        async for page in pages:
            on_page()
            for row in page:
                parsed = parse_key(layout, row.key)
                if parsed is not None and parsed.partition == partition:
                    yield row.key


async def _uploads(
    bucket: Bucket,
    layout: Layout,
    partition: TopicIdPartition,
    segment_id: SegmentId | None,
    on_page: Callable[[], None] = lambda: None,
) -> AsyncGenerator[UploadInfo, None]:
    async with aclosing(bucket.storage.list_uploads(listing_prefix(layout, partition))) as pages:
        async for page in pages:
            on_page()
            for upload in page:
                parsed = parse_key(layout, upload.key)
                if (
                    parsed is not None
                    and parsed.partition == partition
                    and segment_id in (None, parsed.segment_id)
                ):
                    yield upload
