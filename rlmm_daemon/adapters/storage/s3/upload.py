"""Upload of a segment to S3: companions and `.log` verified one by one, the `.log` visible last.

A large `.log` is sent in parts first, the companions go next, and completing the upload is the
moment at which the `.log` appears: a copy that is given up in the middle leaves nothing visible.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec

from rlmm_daemon.adapters.storage.s3.client import Client
from rlmm_daemon.adapters.storage.s3.errors import VENDOR_ERRORS, code_of, told
from rlmm_daemon.adapters.storage.s3.leftovers import Leftovers
from rlmm_daemon.adapters.storage.s3.objects import FoundObject, head
from rlmm_daemon.adapters.storage.s3.rates import TokenBucket, TopicRates
from rlmm_daemon.adapters.storage.s3.reading import (
    Body,
    Reader,
    blocks_of,
    blocks_read,
    checksum_text,
    joined_parts,
)
from rlmm_daemon.core.storage.calls import Calls
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    RlmmError,
    StorageFull,
    StorageUnavailable,
    first_of,
)
from rlmm_daemon.ports.storage import ObjectKind, Progress, Source, StoredObject

Row = tuple[ObjectKind, str, Source]


class UploadTools(msgspec.Struct, frozen=True, kw_only=True):
    """What all copies share."""

    client: Client
    reader: Reader
    leftovers: Leftovers
    rate: TokenBucket
    topic_rates: TopicRates
    #: One for each part, or small object, in memory.
    slots: asyncio.Semaphore


class _Multipart(msgspec.Struct):
    key: str
    upload_id: str
    part_size: int
    #: Part number -> what CompleteMultipartUpload wants of it.
    done: dict[int, dict[str, Any]] = msgspec.field(default_factory=dict)
    #: Part number -> checksum, of the first read: a retry must read the same.
    crc32c: dict[int, int] = msgspec.field(default_factory=dict)


class _Attempt:
    """The attempt of a call that is being made."""

    deadline: asyncio.Timeout

    def began(self, deadline: asyncio.Timeout) -> None:
        """Keep the deadline of this one."""
        self.deadline = deadline


class SegmentUpload:
    """One `put_segment`."""

    def __init__(self, tools: UploadTools, rows: Sequence[Row], progress: Progress) -> None:
        self._tools, self._client = tools, tools.client
        self._rows, self._progress = rows, progress
        self._rate = tools.topic_rates.with_whole(progress.topic, tools.rate)
        self._is_limited = tools.topic_rates.pattern_of(progress.topic) is not None
        self._calls = progress.calls = Calls(asyncio.get_running_loop().time)
        #: True from the moment at which the `.log` may become visible.
        self._log_sent = False
        #: Whether a `.log` may have been there before; it is what a finished segment may name.
        self._repeats = True
        #: Of an attempt that may have stored an object though it failed.
        self._doubt = False
        #: Held by the one part, or object, of this copy that waits for a place.
        self._turn = asyncio.Lock()

    async def run(self) -> list[StoredObject]:
        """Store and verify all objects; leaves no multipart upload, whatever happens."""
        progress = self._progress
        progress.phase = "upload"
        progress.bytes_total = sum(source.size for _, _, source in self._rows)
        try:
            async with self._tools.leftovers.writing(self._rows[-1][1]):
                return await self._stored()
        except BaseException as error:
            # Refused by the first call that would have written, nothing of this copy is there.
            nothing = isinstance(error, StorageFull) and not self._doubt
            if self._log_sent and not nothing and not self._repeats:
                # It was not verified, so it must not be taken for a copy.
                await self._tools.leftovers.discard(self._rows[-1][1])
            if nothing:
                progress.write_begun = progress.write_begun and progress.parts_done > 0
            raise

    def _doubted(self) -> None:
        self._doubt = True

    async def _stored(self) -> list[StoredObject]:
        last = self._rows[-1]
        if last[2].size < self._client.options.multipart_threshold_bytes:
            return [*await self._companions(), await self._single(last)]
        async with self._begun(last) as upload:
            crc32c = await self._parts(upload, last)
            companions = await self._companions()
            return [*companions, await self._complete(upload, last, crc32c)]

    async def _companions(self) -> list[StoredObject]:
        """Store all but the `.log`; meanwhile one of an earlier copy is looked for."""
        work = [functools.partial(self._single, row) for row in self._rows[:-1]]
        _, *stored = await _all([self._look_for_log, *work], name="storage.companion")
        return stored

    async def _look_for_log(self) -> None:
        """Find out whether a `.log` is there already; while that is not known, one is."""
        key = self._rows[-1][1]

        async def look() -> bool:
            with self._calls.made("ListObjectsV2 .log"):
                answer = await self._client.s3.list_objects_v2(
                    **self._client.where(), Prefix=key, MaxKeys=1
                )
            return bool(answer.get("Contents") or answer.get("IsTruncated"))

        with contextlib.suppress(StorageUnavailable):
            self._repeats = await self._client.call("ListObjectsV2", look, key=key)

    async def _single(self, row: Row) -> StoredObject:
        """Store a whole object in one call."""
        kind, key, source = row
        first: list[int] = []
        attempt = _Attempt()

        async def put() -> None:
            crc32c, body = await self._read(source, 0, source.size)
            first.append(crc32c)
            if crc32c != first[0]:
                raise ChecksumMismatch(f"the source of {key} changed while it was read", key=key)
            self._progress.write_begun = True
            self._log_sent = self._log_sent or row is self._rows[-1]
            await self._send(
                f"PutObject {kind.value}",
                body,
                attempt,
                lambda: self._client.s3.put_object(
                    **self._client.where(key),
                    **self._client.as_written(),
                    Body=body if source.size else b"",
                    ChecksumCRC32C=checksum_text(crc32c),
                ),
            )

        async with self._slot():
            await self._client.call(
                "PutObject",
                put,
                gate=self._client.writes,
                key=key,
                size=source.size,
                on_uncertain=self._doubted,
                on_attempt=attempt.began,
            )
        stored = await self._verified(kind, key, source.size, first[0])
        self._progress.parts_done += 1
        return stored

    @contextlib.asynccontextmanager
    async def _begun(self, row: Row) -> AsyncIterator[_Multipart]:
        """Begin a multipart upload and abort it unless the block completed it."""
        kind, key, source = row
        leftovers, uncertain = self._tools.leftovers, False

        def doubt() -> None:
            nonlocal uncertain
            uncertain = True

        async def create() -> str:
            with self._calls.made(f"CreateMultipartUpload {kind.value}"):
                answer = await self._client.s3.create_multipart_upload(
                    **self._client.where(key),
                    **self._client.as_written(),
                    ChecksumAlgorithm="CRC32C",
                    ChecksumType="FULL_OBJECT",
                )
            return told(answer, "UploadId")

        upload_id = ""
        try:
            upload_id = await self._client.call(
                "CreateMultipartUpload",
                create,
                gate=self._client.writes,
                key=key,
                on_uncertain=doubt,
            )
            self._progress.write_begun = True
            yield _Multipart(key, upload_id, self._client.options.part_size(source.size))
        except BaseException:
            # Also where a create was refused for certain: the one before may have been heard.
            if upload_id or uncertain:
                await leftovers.remove(key, "" if uncertain else upload_id)
            raise
        if uncertain:
            await leftovers.remove(key, "")

    async def _parts(self, upload: _Multipart, row: Row) -> int:
        """Send all parts and return the checksum of the whole."""
        _, key, source = row
        before = await self._tools.reader.version(source)
        numbers = range(1, -(-source.size // upload.part_size) + 1)
        queue = iter(numbers)

        async def worker() -> None:
            # Many workers, one iterator: each number is taken once, in order.
            for number in queue:
                await self._part(upload, row, number)

        # What waits for a limit of its own must not keep others from the places of parts.
        most = 1 if self._is_limited else self._client.options.parts_in_flight_max
        workers = min(len(numbers), most)
        await _all([worker] * workers, name="storage.part")
        if await self._tools.reader.version(source) != before:
            raise ChecksumMismatch(f"the source of {key} changed while it was copied", key=key)
        checksums = [upload.crc32c[number] for number in numbers]
        return await joined_parts(checksums, upload.part_size, source.size)

    async def _part(self, upload: _Multipart, row: Row, number: int) -> None:
        kind, key, source = row
        offset = (number - 1) * upload.part_size
        size = min(upload.part_size, source.size - offset)
        attempt = _Attempt()

        async def send() -> None:
            crc32c, body = await self._read(source, offset, size)
            if upload.crc32c.setdefault(number, crc32c) != crc32c:
                raise ChecksumMismatch(f"the source of {key} changed while it was copied", key=key)
            await self._send_part(upload, kind, number, body, attempt=attempt)

        async with self._slot():
            await self._client.call(
                "UploadPart",
                send,
                gate=self._client.writes,
                key=key,
                size=size,
                on_attempt=attempt.began,
            )
        self._progress.parts_done += 1

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """Wait for a place in memory. One of a copy waits at a time, so that copies take turns."""
        async with self._turn:
            await self._tools.slots.acquire()
        try:
            yield
        finally:
            self._tools.slots.release()

    async def _send_part(
        self, upload: _Multipart, kind: ObjectKind, number: int, body: Body, *, attempt: _Attempt
    ) -> None:
        checksum = checksum_text(upload.crc32c[number])
        answer = await self._send(
            f"UploadPart {number} {kind.value}",
            body,
            attempt,
            lambda: self._client.s3.upload_part(
                **self._client.where(upload.key),
                UploadId=upload.upload_id,
                PartNumber=number,
                Body=body,
                ChecksumCRC32C=checksum,
            ),
        )
        upload.done[number] = {
            "PartNumber": number,
            "ETag": told(answer, "ETag"),
            "ChecksumCRC32C": checksum,
        }

    async def _complete(self, upload: _Multipart, row: Row, crc32c: int) -> StoredObject:
        kind, key, source = row
        self._log_sent = True
        parts = [upload.done[number] for number in sorted(upload.done)]

        async def complete() -> None:
            try:
                with self._calls.made(f"CompleteMultipartUpload {kind.value}"):
                    await self._client.s3.complete_multipart_upload(
                        **self._client.where(key),
                        UploadId=upload.upload_id,
                        MultipartUpload={"Parts": parts},
                        ChecksumCRC32C=checksum_text(crc32c),
                        ChecksumType="FULL_OBJECT",
                    )
            except VENDOR_ERRORS as error:
                # An answer that was lost: the upload is gone because it became the object.
                if code_of(error) != "NoSuchUpload":
                    raise
                found = await head(self._client, key)
                if found is None or (found.size, found.crc32c) != (source.size, crc32c):
                    raise

        await self._client.call(
            "CompleteMultipartUpload",
            complete,
            gate=self._client.writes,
            key=key,
            on_uncertain=self._doubted,
        )
        return await self._verified(kind, key, source.size, crc32c)

    async def _verified(self, kind: ObjectKind, key: str, size: int, crc32c: int) -> StoredObject:
        """Return the object as the storage describes it.

        One that differs does not stay, unless an earlier copy may be lost with it.
        """

        async def look() -> FoundObject | None:
            with self._calls.made(f"HeadObject {kind.value}"):
                return await head(self._client, key)

        found = await self._client.call("HeadObject", look, key=key)
        if found is not None and (found.size, found.crc32c) == (size, crc32c):
            return StoredObject(key=key, size=size, crc32c=crc32c)
        if found is None:
            raise StorageUnavailable(
                f"{key} was stored and is not there", reason="vanished", call="HeadObject"
            )
        if not self._repeats:
            await self._delete(key)
        if found.crc32c is None:
            raise StorageUnavailable(
                f"the storage reports no CRC-32C of {key}, so no copy can be verified",
                reason="no_checksums",
                retry=False,
            )
        raise ChecksumMismatch(f"the storage holds other bytes than were sent as {key}", key=key)

    async def _delete(self, key: str) -> None:
        async def work() -> None:
            with self._client.late_deletes.sent([key]):
                await self._client.s3.delete_object(**self._client.where(key))

        await self._client.call("DeleteObject", work, gate=self._client.writes, key=key)

    async def _read(self, source: Source, offset: int, size: int) -> tuple[int, Body]:
        """Return the checksum of a piece of a source, and a body that will send it.

        A file is read twice, which costs less than memory for a whole part: S3 itself refuses
        bytes that are others the second time. A buffer may change unseen, so it is kept.
        """
        reader = self._tools.reader
        if source.fileno() is None and size <= self._client.options.part_size_bytes:
            part = await reader.part(source, offset, size)
            return part.crc32c, self._body(size, lambda: blocks_of(part))
        crc32c = await reader.checksum(source, offset, size)
        return crc32c, self._body(size, lambda: blocks_read(reader, source, offset, size))

    def _body(self, size: int, blocks: Callable[[], AsyncIterator[bytes | memoryview]]) -> Body:
        return Body(size, blocks, rate=self._rate, on_bytes=self._progress.moved)

    async def _send(
        self, name: str, body: Body, attempt: _Attempt, call: Callable[[], Awaitable[Any]]
    ) -> Any:
        try:
            # aiohttp bounds the wait for an answer, not the wait for the socket to take our bytes.
            with self._calls.made(name) as made:
                async with asyncio.timeout(None) as patience:
                    seconds = self._client.options.read_timeout
                    body.watch(made, patience, seconds, attempt.deadline)
                    return await call()
        except BaseException as error:
            body.take_back()
            if body.failure is not None and isinstance(error, Exception):
                raise body.failure from error
            raise
        finally:
            # Its writer may outlive the call, if the answer came early.
            body.end()


async def _all(work: Sequence[Callable[[], Awaitable[Any]]], *, name: str) -> list[Any]:
    """Run all at once and return their results; the first error of ours ends the others."""

    async def run(each: Callable[[], Awaitable[Any]]) -> Any:
        return await each()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(each), name=name) for each in work]
    except* RlmmError as errors:
        raise first_of(errors) from None
    return [task.result() for task in tasks]
