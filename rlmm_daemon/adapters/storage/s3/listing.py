"""Pages of what is in the bucket. No order is relied on: servers differ in it."""

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Any, Final

from rlmm_daemon.adapters.storage.s3.client import Client
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.ports.storage import ObjectInfo, UploadInfo

PAGE_KEYS: Final = 1_000


async def objects(client: Client, prefix: str) -> AsyncGenerator[Sequence[ObjectInfo], None]:
    """Yield pages of objects whose keys begin with `prefix`."""
    token: dict[str, str] = {}
    while True:
        page = await _page(client, prefix, token)
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
        token = _advanced(token, {"ContinuationToken": page.get("NextContinuationToken")})


async def uploads(client: Client, prefix: str) -> AsyncGenerator[Sequence[UploadInfo], None]:
    """Yield pages of incomplete multipart uploads whose keys begin with `prefix`."""
    marker: dict[str, str] = {}
    while True:
        page = await _uploads_page(client, prefix, marker)
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
        marker = _advanced(
            marker,
            {
                "KeyMarker": page.get("NextKeyMarker"),
                "UploadIdMarker": page.get("NextUploadIdMarker"),
            },
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


def _advanced(before: dict[str, str], after: dict[str, Any]) -> dict[str, str]:
    """Return where the next page begins; a listing that stands still would never end."""
    fresh = {name: str(value) for name, value in after.items() if value}
    if not fresh or fresh == before:
        raise StorageUnavailable("a listing says that there is more and not where")
    return fresh


def _ms(when: datetime | None) -> int:
    return int(when.timestamp() * 1000) if when else 0
