"""A remote storage in a dictionary: for tests and the simulation.

Several `MemoryStorage` may share one `MemoryBucket`, as daemons share a bucket.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Final

import msgspec
from crc32c import crc32c

from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    ObjectMissing,
    RlmmError,
    StorageFull,
    StorageUnavailable,
)
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.storage import (
    Conflict,
    ControlObject,
    ObjectInfo,
    ObjectKind,
    ProbeResult,
    Progress,
    Source,
    StoredObject,
    UploadInfo,
)

READ_BYTES: Final = 256 * 1024
PAGE_KEYS: Final = 1000


class _Stored(msgspec.Struct, frozen=True):
    body: bytes
    modified_ms: int

    @property
    def etag(self) -> str:
        return f"{crc32c(self.body):08x}-{len(self.body)}"


class MemoryBucket(msgspec.Struct):
    """What outlives a daemon. The switches play the storage's own faults."""

    objects: dict[str, _Stored] = msgspec.field(default_factory=dict)
    uploads: dict[str, UploadInfo] = msgspec.field(default_factory=dict)
    #: False: the bucket does not answer, or was removed.
    available: bool = True
    #: None: endless.
    capacity_bytes: int | None = None

    def free_bytes(self) -> int | None:
        """Return what may still be stored, None without a limit."""
        if self.capacity_bytes is None:
            return None
        return self.capacity_bytes - sum(len(stored.body) for stored in self.objects.values())


class MemoryStorage:
    """`ports.storage.RemoteStorage` over a `MemoryBucket`. Reads sources on the loop."""

    def __init__(self, bucket: MemoryBucket | None = None, *, clock: Clock) -> None:
        self.bucket = bucket or MemoryBucket()
        self._clock = clock
        self._uploads_begun = 0

    async def open(self) -> None:
        """Check that the bucket answers."""
        await self._reach()

    async def put_segment(
        self, objects: Sequence[tuple[ObjectKind, str, Source]], *, progress: Progress
    ) -> Sequence[StoredObject]:
        """Store all objects in one step once all were read and verified."""
        await self._reach()
        progress.phase, progress.bytes_total = "upload", sum(s.size for _, _, s in objects)
        free = self.bucket.free_bytes()
        if free is not None and progress.bytes_total > free:
            raise StorageFull(needed_bytes=progress.bytes_total, free_bytes=free)
        progress.write_begun = True
        self._uploads_begun += 1
        upload_id = f"{id(self)}-{self._uploads_begun}"
        bodies: list[tuple[str, bytes]] = []
        try:
            for kind, key, source in objects:
                upload = UploadInfo(key=key, upload_id=upload_id, initiated_ms=self._clock.now_ms())
                self.bucket.uploads[f"{upload_id}/{key}"] = upload
                progress.call = f"put {kind.value}"
                bodies.append((key, await self._read(source, progress)))
                progress.parts_done += 1
            await self._reach()
        finally:
            for _, key, _ in objects:
                self.bucket.uploads.pop(f"{upload_id}/{key}", None)
        for key, body in bodies:
            self._store(key, body)
        return [StoredObject(key=key, size=len(body), crc32c=crc32c(body)) for key, body in bodies]

    async def fetch(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield the range in pieces of at most 256 KiB."""
        while True:
            await self._reach()
            stored = self.bucket.objects.get(key)
            if stored is None:
                raise ObjectMissing(f"{key} is not in the storage", key=key)
            piece = stored.body[start : min(end, start + READ_BYTES)]
            if not piece:
                return
            yield piece
            start += len(piece)

    async def size(self, key: str) -> int | None:
        """Return an object's size, or None if it is absent."""
        await self._reach()
        stored = self.bucket.objects.get(key)
        return None if stored is None else len(stored.body)

    def local_path(self, key: str) -> str | None:
        """Return None: nothing here is a file."""
        del key
        return None

    async def delete(self, keys: Collection[str]) -> Mapping[str, RlmmError | None]:
        """Delete all of them, or none while the bucket does not answer."""
        try:
            await self._reach()
        except StorageUnavailable as error:
            return dict.fromkeys(keys, error)
        for key in keys:
            self.bucket.objects.pop(key, None)
        return dict.fromkeys(keys)

    async def list(self, prefix: str) -> AsyncGenerator[Sequence[ObjectInfo], None]:
        """Yield pages in the order of storing."""
        await self._reach()
        rows = [
            ObjectInfo(
                key=key, size=len(stored.body), modified_ms=stored.modified_ms, etag=stored.etag
            )
            for key, stored in self.bucket.objects.items()
            if key.startswith(prefix)
        ]
        for first in range(0, len(rows), PAGE_KEYS):
            yield rows[first : first + PAGE_KEYS]
            await self._reach()

    async def list_uploads(self, prefix: str) -> AsyncGenerator[Sequence[UploadInfo], None]:
        """Yield the uploads in flight as one page."""
        await self._reach()
        uploads = [u for u in self.bucket.uploads.values() if u.key.startswith(prefix)]
        if uploads:
            yield uploads

    async def abort_upload(self, upload: UploadInfo) -> None:
        """Forget an upload."""
        await self._reach()
        self.bucket.uploads.pop(f"{upload.upload_id}/{upload.key}", None)

    async def get_control(self, key: str) -> ControlObject | None:
        """Return a small object."""
        await self._reach()
        stored = self.bucket.objects.get(key)
        if stored is None:
            return None
        return ControlObject(data=stored.body, etag=stored.etag, modified_ms=stored.modified_ms)

    async def put_control(self, key: str, data: bytes, *, if_etag: str | None) -> str:
        """Compare and set, in one step of the loop."""
        await self._reach()
        stored = self.bucket.objects.get(key)
        if (None if stored is None else stored.etag) != if_etag:
            raise Conflict(key)
        return self._store(key, data).etag

    async def overwrite_control(self, key: str, data: bytes) -> None:
        """Write a small object."""
        await self._reach()
        self._store(key, data)

    async def probe(self, keys: Collection[str] = ()) -> ProbeResult:
        """Say whether the bucket answers."""
        steps = ("write", "read", "list", "delete", *(f"write {key}" for key in keys))
        try:
            await self._reach()
        except StorageUnavailable as error:
            return ProbeResult(results=dict.fromkeys(steps, error))
        return ProbeResult(results=dict.fromkeys(steps))

    async def close(self) -> None:
        """Do nothing: the bucket stays."""

    async def _reach(self) -> None:
        # A real storage answers later, never at once: callers must not rely on one step.
        await asyncio.sleep(0)
        if not self.bucket.available:
            raise StorageUnavailable("the bucket does not answer")

    async def _read(self, source: Source, progress: Progress) -> bytes:
        pieces: list[bytes] = []
        for offset in range(0, source.size, READ_BYTES):
            pieces.append(source.pread(offset, min(READ_BYTES, source.size - offset)))
            progress.bytes_done += len(pieces[-1])
            await asyncio.sleep(0)
        body = b"".join(pieces)
        again = (
            source.pread(offset, min(READ_BYTES, source.size - offset))
            for offset in range(0, source.size, READ_BYTES)
        )
        descriptor = source.fileno()
        if (descriptor is not None and os.fstat(descriptor).st_size != source.size) or any(
            piece != fresh for piece, fresh in zip(pieces, again, strict=True)
        ):
            raise ChecksumMismatch("the source changed while it was read")
        return body

    def _store(self, key: str, body: bytes) -> _Stored:
        stored = self.bucket.objects[key] = _Stored(body, self._clock.now_ms())
        return stored
