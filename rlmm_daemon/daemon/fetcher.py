"""Ranges and indexes of stored segments, straight from the storage."""

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from rlmm_daemon.codec import custom_metadata
from rlmm_daemon.codec.custom_metadata import StoredFacts
from rlmm_daemon.daemon.bucket import Bucket
from rlmm_daemon.daemon.segment_log import SegmentLog, decode_segment
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    IndexNotFound,
    InvalidArgument,
    ObjectMissing,
    SegmentNotFound,
    StorageNotConfigured,
    StorageUnavailable,
    UnavailableError,
)
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState
from rlmm_daemon.ports.storage import ObjectKind, RemoteStorage

BACK_OFF_SECONDS: Final = 0.05
BACK_OFF_SECONDS_MAX: Final = 5.0
#: Without any new byte; the caller's own deadline is usually shorter.
STALL_SECONDS_MAX: Final = 300.0

T = TypeVar("T")


class Bulk:
    """Exactly `length` bytes: of an open file where there is one, else from `chunks`."""

    def __init__(
        self,
        length: int,
        crc32c: int | None,
        *,
        file: tuple[int, int] | None = None,
        chunks: Callable[[], AsyncGenerator[bytes, None]] | None = None,
    ) -> None:
        self.length, self.crc32c = length, crc32c
        #: Descriptor and position of the first byte, good for `sendfile` until `aclose`.
        self.file = file
        self._chunks = chunks
        self._iterators: list[AsyncGenerator[bytes, None]] = []

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """Return the bytes as an iterator; only where `file` is None."""
        assert self._chunks is not None, "there is a file"
        self._iterators.append(self._chunks())
        return self._iterators[-1]

    async def aclose(self) -> None:
        """Free the descriptor and whatever is being read; idempotent."""
        if self.file is not None:
            os.close(self.file[0])
            self.file = None
        for iterator in self._iterators:
            await iterator.aclose()
        self._iterators.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    key: str
    size: int


class Fetcher:
    """Reads for brokers and operators; retriable storage faults are retried under the deadline."""

    def __init__(self, bucket: Bucket | None, log: SegmentLog, *, rng: random.Random) -> None:
        """Without a bucket (`kind = "none"`) every method is StorageNotConfigured."""
        self._bucket, self._log, self._rng = bucket, log, rng

    async def fetch_log_segment(self, record: bytes, start: int, end_inclusive: int | None) -> Bulk:
        """Return the bytes [start, end_inclusive] of a finished segment's log; the end is clamped.

        Raises:
            InvalidArgument: a range that begins at or beyond the end, or ends before it begins.
            SegmentNotFound: the segment was never finished, is being deleted, or is gone.
            ObjectMissing: the log says that it is there, and the storage certainly lacks it.

        Source: RemoteStorageManager.fetchLogSegment.
        """
        bucket = self._require_bucket()
        metadata = await self._readable(record)
        size = metadata.segment_size_bytes
        last = size - 1 if end_inclusive is None else min(end_inclusive, size - 1)
        if not 0 <= start < size or last < start:
            raise InvalidArgument(
                f"range [{start}, {end_inclusive}] of a segment with {size} bytes", size=size
            )
        facts = self._facts(metadata)
        found = await self._find(bucket, metadata, ObjectKind.LOG, recorded_size=size)
        whole = facts is not None and (start, last) == (0, size - 1)
        crc32c = facts.log_crc32c if facts is not None and whole else None
        return await self._bulk(bucket.storage, found, start, last + 1, crc32c)

    async def fetch_index(self, record: bytes, index: str) -> Bulk:
        """Return a whole index: OFFSET, TIMESTAMP, TRANSACTION, PRODUCER_SNAPSHOT, LEADER_EPOCH.

        Raises:
            IndexNotFound: TRANSACTION, and the segment was recorded as having none.
            ObjectMissing: recorded, and certainly not there.
            SegmentNotFound, InvalidArgument: as they say.

        Source: RemoteStorageManager.fetchIndex.
        """
        bucket = self._require_bucket()
        kind = ObjectKind.__members__.get(index)
        if kind is None or kind is ObjectKind.LOG:
            raise InvalidArgument(f"{index!r} is not an index of a segment")
        metadata = await self._readable(record)
        facts = self._facts(metadata)
        if kind is ObjectKind.TRANSACTION and (
            metadata.txn_index_empty or (facts is not None and kind.value not in facts.sizes)
        ):
            raise IndexNotFound("the segment was recorded as having no transaction index")
        size = None if facts is None else facts.sizes.get(kind.value)
        found = await self._find(bucket, metadata, kind, recorded_size=size)
        return await self._bulk(bucket.storage, found, 0, found.size, None)

    def _require_bucket(self) -> Bucket:
        if self._bucket is None:
            raise StorageNotConfigured
        return self._bucket

    async def _readable(self, record: bytes) -> SegmentMetadata:
        """Return the fold's own word on the segment, which is newer than the caller's."""
        given = decode_segment(record)
        found = await self._log.segment(given.partition, given.segment_id)
        if found is None:
            raise SegmentNotFound
        state, present = found
        if state is not SegmentState.COPY_SEGMENT_FINISHED:
            raise SegmentNotFound(f"the segment is {state.name}", state=state.name)
        return decode_segment(present)

    def _facts(self, metadata: SegmentMetadata) -> StoredFacts | None:
        """Return what was recorded at the copy, even if an update has erased it since."""
        kept = self._log.kept_custom_metadata(metadata.partition, metadata.segment_id)
        return custom_metadata.decode(metadata.custom_metadata) or custom_metadata.decode(kept)

    async def _find(
        self,
        bucket: Bucket,
        metadata: SegmentMetadata,
        kind: ObjectKind,
        *,
        recorded_size: int | None,
    ) -> _Object:
        kept = self._log.kept_custom_metadata(metadata.partition, metadata.segment_id)
        places = await self._retried(lambda: bucket.places(metadata, kept))
        for place in places:
            found = await self._size(bucket.storage, place.keys[kind])
            if found is None:
                continue
            if recorded_size not in {None, found.size}:
                raise ChecksumMismatch(
                    f"{found.key} has {found.size} bytes, {recorded_size} were recorded"
                )
            return found
        key = places[0].keys[kind]
        raise ObjectMissing(f"{key} is recorded and not in the storage", key=key)

    async def _size(self, storage: RemoteStorage, key: str) -> _Object | None:
        size = await self._retried(lambda: storage.size(key))
        return None if size is None else _Object(key=key, size=size)

    async def _bulk(
        self, storage: RemoteStorage, found: _Object, start: int, end: int, crc32c: int | None
    ) -> Bulk:
        path = storage.local_path(found.key)
        if path is None:
            return Bulk(
                end - start, crc32c, chunks=lambda: self._chunks(storage, found.key, start, end)
            )
        # On the loop: a short call, and a descriptor opened in a thread leaks if we are cancelled.
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise ObjectMissing(f"{found.key} is not in the storage", key=found.key) from error
        except OSError as error:
            raise StorageUnavailable(f"open of {found.key}: {error.strerror}") from error
        return Bulk(end - start, crc32c, file=(descriptor, start))

    async def _chunks(
        self, storage: RemoteStorage, key: str, start: int, end: int
    ) -> AsyncGenerator[bytes, None]:
        """Yield a range; after a passing fault it goes on where it was."""
        retry = _Retry(self._rng)
        while start < end:
            try:
                async with contextlib.aclosing(storage.fetch(key, start, end)) as pieces:
                    async for piece in pieces:
                        start += len(piece)
                        retry = _Retry(self._rng)
                        yield piece
            except UnavailableError as error:
                await retry.pause(error)
                continue
            if start < end:
                raise ChecksumMismatch(f"{key} ends at {start}, before {end}", key=key)

    async def _retried(self, call: Callable[[], Awaitable[T]]) -> T:
        retry = _Retry(self._rng)
        while True:
            try:
                return await call()
            except UnavailableError as error:
                await retry.pause(error)


class _Retry:
    """Exponential back-off with jitter, bounded by STALL_SECONDS_MAX in all."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._seconds = BACK_OFF_SECONDS
        self._waited = 0.0

    async def pause(self, error: UnavailableError) -> None:
        if self._waited >= STALL_SECONDS_MAX:
            raise error
        seconds = self._seconds * self._rng.uniform(0.5, 1.0)
        await asyncio.sleep(seconds)
        self._waited += seconds
        self._seconds = min(2 * self._seconds, BACK_OFF_SECONDS_MAX)
