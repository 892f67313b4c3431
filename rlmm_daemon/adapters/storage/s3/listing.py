"""Pages of what is in the bucket. No order is relied on: servers differ in it."""

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Any, Final

from rlmm_daemon.adapters.storage.s3.client import Client
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.ports.storage import ObjectInfo, UploadInfo

PAGE_KEYS: Final = 1_000
#: In a row; versions and delete markers can make some.
EMPTY_PAGES_MAX: Final = 10_000


async def objects(client: Client, prefix: str) -> AsyncGenerator[Sequence[ObjectInfo], None]:
    """Yield pages of objects whose keys begin with `prefix`."""
    course = _Course()
    while True:
        page = await _page(client, prefix, course.at)
        rows = [
            ObjectInfo(
                key=row["Key"],
                size=int(row["Size"]),
                modified_ms=_ms(row["LastModified"]),
                etag=row.get("ETag", ""),
            )
            for row in page.get("Contents", [])
        ]
        if rows:
            yield rows
        if not page.get("IsTruncated"):
            return
        first = rows[0].key if rows else None
        course.advance({"ContinuationToken": page.get("NextContinuationToken")}, first)


async def uploads(client: Client, prefix: str) -> AsyncGenerator[Sequence[UploadInfo], None]:
    """Yield pages of incomplete multipart uploads whose keys begin with `prefix`."""
    course = _Course()
    while True:
        page = await _uploads_page(client, prefix, course.at)
        rows = [
            UploadInfo(
                key=row["Key"], upload_id=row["UploadId"], initiated_ms=_ms(row.get("Initiated"))
            )
            for row in page.get("Uploads", [])
            # A server may list more than it was asked for.
            if row["Key"].startswith(prefix)
        ]
        if rows:
            yield rows
        if not page.get("IsTruncated"):
            return
        course.advance(
            {
                "KeyMarker": page.get("NextKeyMarker"),
                "UploadIdMarker": page.get("NextUploadIdMarker"),
            },
            rows[0].upload_id if rows else None,
        )


async def reachable(client: Client, prefix: str) -> None:
    """Make sure that the bucket is there and may be listed.

    Raises:
        StorageUnavailable: with the reason.
    """
    await client.call(
        "ListObjectsV2",
        lambda: client.s3.list_objects_v2(**client.where(), Prefix=prefix, MaxKeys=1),
    )


async def _page(client: Client, prefix: str, token: dict[str, str]) -> Any:
    return await client.call(
        "ListObjectsV2",
        lambda: client.s3.list_objects_v2(
            **client.where(), Prefix=prefix, MaxKeys=PAGE_KEYS, **token
        ),
    )


async def _uploads_page(client: Client, prefix: str, marker: dict[str, str]) -> Any:
    return await client.call(
        "ListMultipartUploads",
        lambda: client.s3.list_multipart_uploads(
            **client.where(), Prefix=prefix, MaxUploads=PAGE_KEYS, **marker
        ),
    )


class _Circle:
    """Whether a row of values goes in circles: one of them is kept, for ever longer (Brent)."""

    def __init__(self) -> None:
        self._kept: object = None
        self._steps, self._steps_max = 0, 1

    def closes(self, value: object) -> bool:
        """Return whether the next value is the kept one; of a circle that comes out in time."""
        if value == self._kept:
            return True
        self._steps += 1
        if self._steps == self._steps_max:
            self._kept, self._steps, self._steps_max = value, 0, 2 * self._steps_max
        return False


class _Course:
    """Where a listing is; one that stands still or goes in circles would never end."""

    def __init__(self) -> None:
        #: What the next page is asked for with.
        self.at: dict[str, str] = {}
        self._places, self._firsts = _Circle(), _Circle()
        self._empty = 0

    def advance(self, after: dict[str, Any], first: str | None) -> None:
        """Go on to the next page; `first` names the first row of this one.

        Raises:
            StorageUnavailable: that page, or this one, was given before.
        """
        fresh = {name: str(value) for name, value in after.items() if value}
        if not fresh:
            raise StorageUnavailable("a listing says that there is more and not where")
        self._empty = self._empty + 1 if first is None else 0
        again = first is not None and self._firsts.closes(first)
        if fresh == self.at or self._places.closes(fresh) or again:
            raise StorageUnavailable("a listing goes in circles: a page came twice")
        if self._empty > EMPTY_PAGES_MAX:
            raise StorageUnavailable(f"a listing has {EMPTY_PAGES_MAX} empty pages in a row")
        self.at = fresh


def _ms(when: datetime | None) -> int:
    return int(when.timestamp() * 1000) if when else 0
