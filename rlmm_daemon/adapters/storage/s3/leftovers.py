"""Multipart uploads that nobody will complete: aborted when they fail, else found and swept.

An upload costs storage until it is aborted and no listing of objects shows it. So a failed copy
aborts its own, also under cancellation; what could not be aborted then is remembered and tried
again; and a fresh daemon aborts what a killed one left, once it is older than any copy may live.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from typing import Final

import structlog

from rlmm_daemon.adapters.storage.s3 import control, listing
from rlmm_daemon.adapters.storage.s3.client import Client
from rlmm_daemon.adapters.storage.s3.errors import VENDOR_ERRORS, code_of
from rlmm_daemon.codec.marker import PRESENCE_PREFIX, decode_presence
from rlmm_daemon.core.storage.layout import Layout, parse_key
from rlmm_daemon.domain.errors import Malformed, RlmmError, StorageUnavailable

#: For a clean-up in the way of a cancellation: long enough for a slow answer, no longer.
REMOVE_SECONDS: Final = 5.0
#: A create whose answer was lost may reach the server so much later: until then no look at its key
#: is the last one.
LATE_SECONDS: Final = 30.0
#: Keys to look at again; beyond it only the sweep at the next start finds them.
SUSPECTS_MAX: Final = 1_000
#: A part that is being written while its upload is aborted may outlive it: S3 says to look again.
ABORTS_MAX: Final = 3
#: Beyond the longest copy: daemons' clocks and the storage's agree no better.
MARGIN_SECONDS: Final = 600.0
PRESENCE_FILES_MAX: Final = 1_000
#: The sweep, at the start; what it did not come to is for the next one.
SWEEP_SECONDS: Final = 30.0
#: After a sweep that failed.
SWEEP_AGAIN_SECONDS: Final = 600.0

log = structlog.get_logger()


class Leftovers:
    """Keys with uploads of ours to remove, and how."""

    def __init__(self, client: Client, *, sweeps: bool) -> None:
        """`sweeps`: whether uploads of earlier runs are ours to abort."""
        self._client = client
        #: When uploads of earlier runs are looked for next, by the loop; None: not any more.
        self._sweep_at: float | None = 0.0 if sweeps else None
        #: With the time of the loop from which on a look at the key can be the last one.
        self._suspects: dict[str, float] = {}
        #: Keys that are being written now: an upload under them may be alive.
        self._busy: set[str] = set()
        #: Held while uploads are looked up and aborted, so that none is begun in between.
        self._lock = asyncio.Lock()

    @property
    def suspects(self) -> list[str]:
        """Keys under which an upload of ours may be left."""
        return list(self._suspects)

    @contextlib.asynccontextmanager
    async def writing(self, key: str) -> AsyncIterator[None]:
        """Keep `retry` away from a key while the block writes it."""
        async with self._lock:
            self._busy.add(key)
        try:
            yield
        finally:
            self._busy.discard(key)

    async def discard(self, key: str) -> None:
        """Delete an object that may have appeared unverified; never raises an error of ours."""

        async def work() -> None:
            with self._client.late_deletes.sent([key]):
                await self._client.s3.delete_object(**self._client.where(key))

        try:
            async with asyncio.timeout(REMOVE_SECONDS):
                await self._client.call("DeleteObject", work, gate=self._client.writes, key=key)
        except (RlmmError, TimeoutError) as error:
            log.warning("an unverified object may be left", key=key, error=str(error))

    async def remove(self, key: str, upload_id: str) -> None:
        """Abort an upload, or with no id all under the key; never raises an error of ours.

        One attempt per key is the copier's promise, so all under a key are leftovers. With no id
        the server may not have heard of the upload yet, so the key stays suspected for a while.
        """
        self._suspect(key, late=not upload_id)
        await self._look(key, upload_id)

    async def retry(self) -> None:
        """Try again what could not be aborted; stops at the first that still can't."""
        now = asyncio.get_running_loop().time()
        for key in [key for key, due in self._suspects.items() if due <= now]:
            async with self._lock:
                if key not in self._busy and not await self._look(key, ""):
                    return

    async def _look(self, key: str, upload_id: str) -> bool:
        """Return whether the storage answered; then the key is suspected no longer than it must."""
        try:
            async with asyncio.timeout(REMOVE_SECONDS):
                if upload_id:
                    await self._abort_for_good(key, upload_id)
                else:
                    await self._abort_all(key)
        except (RlmmError, TimeoutError) as error:
            log.warning("a multipart upload is left", key=key, error=str(error))
            return False
        if self._suspects.get(key, 0) <= asyncio.get_running_loop().time():
            self._suspects.pop(key, None)
        return True

    async def sweep_once(self, seconds: float) -> None:
        """Abort what earlier runs left, unless that was done or failed a while ago.

        Never raises an error of ours: a storage that refuses housekeeping serves copies and reads.
        """
        now = asyncio.get_running_loop().time()
        if self._sweep_at is None or now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_AGAIN_SECONDS
        try:
            async with asyncio.timeout(seconds):
                await self._sweep()
        except (RlmmError, TimeoutError) as error:
            reason = str(error) or f"no end within {seconds:g} s"
            log.warning("multipart uploads of earlier runs are left", error=reason)
        else:
            self._sweep_at = None

    async def _sweep(self) -> None:
        """Abort uploads of segments below our prefix that no daemon can still be at.

        Ages are by the storage's own clock.

        Raises:
            RlmmError: they can't be listed, or the first that could not be aborted.
        """
        layout, swept, failure = Layout(self._client.options.prefix), 0, None
        until = await self._now_ms() - int(await self._longest_copy() * 1000)
        pages = listing.uploads(self._client, layout.listed_prefix)
        async with contextlib.aclosing(pages):
            async for page in pages:
                for upload in page:
                    # In a bucket that is shared with others only what is named like ours.
                    ours = parse_key(layout, upload.key) is not None
                    if ours and upload.initiated_ms < until:
                        try:
                            await self.abort(upload.key, upload.upload_id)
                            swept += 1
                        except RlmmError as error:
                            failure = failure or error
        if swept:
            log.info("aborted multipart uploads of earlier runs", uploads=swept)
        if failure is not None:
            raise failure

    async def abort(self, key: str, upload_id: str) -> None:
        """Abort one upload; absent is success."""

        async def work() -> None:
            try:
                await self._client.s3.abort_multipart_upload(
                    **self._client.where(key), UploadId=upload_id
                )
            except VENDOR_ERRORS as error:
                if code_of(error) != "NoSuchUpload":
                    raise

        await self._client.call("AbortMultipartUpload", work, gate=self._client.writes, key=key)

    async def _abort_for_good(self, key: str, upload_id: str) -> None:
        for _ in range(ABORTS_MAX):
            await self.abort(key, upload_id)
            if await self._is_gone(key, upload_id):
                return
        raise StorageUnavailable(f"{key}: the upload was aborted {ABORTS_MAX} times and is there")

    async def _is_gone(self, key: str, upload_id: str) -> bool:
        async def work() -> bool:
            try:
                await self._client.s3.list_parts(
                    **self._client.where(key), UploadId=upload_id, MaxParts=1
                )
            except VENDOR_ERRORS as error:
                if code_of(error) == "NoSuchUpload":
                    return True
                raise
            return False

        return await self._client.call("ListParts", work, key=key)

    async def _abort_all(self, key: str) -> None:
        async with contextlib.aclosing(listing.uploads(self._client, key)) as pages:
            found = [row async for page in pages for row in page]
        for upload in found:
            if upload.key == key:
                await self._abort_for_good(key, upload.upload_id)

    def _suspect(self, key: str, *, late: bool) -> None:
        due = asyncio.get_running_loop().time() + (LATE_SECONDS if late else 0)
        if key in self._suspects or len(self._suspects) < SUSPECTS_MAX:
            self._suspects[key] = max(due, self._suspects.get(key, 0))

    async def _now_ms(self) -> int:
        """Return the storage's time, which `Initiated` is of too."""
        prefix = Layout(self._client.options.prefix).listed_prefix
        answer = await self._client.call(
            "ListObjectsV2",
            lambda: self._client.s3.list_objects_v2(
                **self._client.where(), Prefix=prefix, MaxKeys=1
            ),
        )
        when = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
        try:
            return int(parsedate_to_datetime(when).timestamp() * 1000)
        except ValueError:
            return 0  # without a time nothing is old

    async def _longest_copy(self) -> float:
        """Return the longest deadline that any daemon of this bucket recorded, and a margin."""
        longest = self._client.options.copy_deadline
        pages = listing.objects(self._client, PRESENCE_PREFIX)
        async with contextlib.aclosing(pages):
            keys = [row.key async for page in pages for row in page]
        for key in keys[:PRESENCE_FILES_MAX]:
            found = await control.get(self._client, key)
            if found is None:
                continue
            try:
                longest = max(longest, decode_presence(found.data).copy_deadline_seconds)
            except Malformed as error:
                log.warning("a presence file is not read", key=key, error=str(error))
        return longest + MARGIN_SECONDS
