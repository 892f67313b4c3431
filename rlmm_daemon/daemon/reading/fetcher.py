"""Ranges and indexes of stored segments: local files as they are, the rest through the caches."""

import asyncio
import contextlib
import functools
import hashlib
import os
import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from cachetools import LRUCache
from crc32c import crc32c

from rlmm_daemon.codec import custom_metadata
from rlmm_daemon.codec.custom_metadata import StoredFacts
from rlmm_daemon.codec.frames import LocalFile
from rlmm_daemon.daemon.base.outcomes import outcome_told
from rlmm_daemon.daemon.base.retry import Retry
from rlmm_daemon.daemon.base.segment_log import SegmentLog, decode_segment
from rlmm_daemon.daemon.base.services import FileSlice
from rlmm_daemon.daemon.bucket.bucket import Bucket, SegmentPlace
from rlmm_daemon.daemon.reading.chunk_fill import RemoteLog
from rlmm_daemon.daemon.reading.chunk_index import ObjectId
from rlmm_daemon.daemon.reading.index_cache import IndexKey
from rlmm_daemon.daemon.reading.read_caches import ReadCaches
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
from rlmm_daemon.observability.metrics import Metrics
from rlmm_daemon.ports.disk_threads import DiskThreads, Hangs
from rlmm_daemon.ports.storage import DescribingStorage, ObjectKind, RemoteStorage

TAG_BYTES: Final = 8
LOCATED_MAX: Final = 4_096
#: An index that comes wrong is asked for again.
INDEX_READS_MAX: Final = 3
#: Objects that are opened at once, where they are local files.
OPENS_MAX: Final = 4

T = TypeVar("T")


Pieces = AsyncGenerator[bytes | FileSlice, None]


class Bulk:
    """Exactly `length` bytes: of an open file where there is one, else from `chunks`.

    None at all where a file is named, which the asker opens itself.
    """

    def __init__(
        self,
        length: int,
        crc32c: int | None,
        *,
        file: tuple[int, int] | None = None,
        named: LocalFile | None = None,
        first: bytes | FileSlice = b"",
        rest: Pieces | None = None,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        """`closed` is told once, by `aclose`."""
        self.length, self.crc32c = length, crc32c
        self._closed = closed
        #: Descriptor and position of the first byte, good for `sendfile` until `aclose`.
        self.file = file
        self.named = named
        self._first, self._rest = first, rest

    async def chunks(self) -> Pieces:
        """Yield the bytes; only where `file` is None, and only once."""
        yield self._first
        if self._rest is not None:
            async for piece in self._rest:
                yield piece

    async def aclose(self) -> None:
        """Free the descriptor and whatever is being read; idempotent."""
        if self.file is not None:
            os.close(self.file[0])
            self.file = None
        if self._rest is not None:
            await self._rest.aclose()
        closed, self._closed = self._closed, lambda: None
        closed()


class _Object(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    size: int


class Fetcher:
    """Reads for brokers and operators; retriable storage faults are retried under the deadline."""

    def __init__(
        self,
        bucket: Bucket | None,
        log: SegmentLog,
        *,
        rng: random.Random,
        caches: ReadCaches | None = None,
        metrics: Metrics | None = None,
        new_retry: Callable[[], Retry] | None = None,
        may_name: Callable[[int], bool] = lambda _device: False,
    ) -> None:
        """Without a bucket (`kind = "none"`) every method is StorageNotConfigured.

        Without caches only a storage of local files is read. A file may be named to a broker if
        its device is of this host: what comes over a network can hang for ever whoever reads it.
        """
        self._bucket, self._log, self._caches = bucket, log, caches
        self._metrics = metrics or Metrics()
        self._new_retry = new_retry or (lambda: Retry(rng))
        self._may_name = may_name
        self._threads = DiskThreads(OPENS_MAX, "storage.open")
        #: Of logs, as `rlmm_fetch_bytes_total` counts them.
        self.bytes_by_topic: Counter[str] = Counter()
        #: Where objects were found that may lie in one of several layouts.
        self._located: LRUCache[tuple[bytes, ObjectKind], _Object] = LRUCache(LOCATED_MAX)

    async def fetch_log_segment(
        self, record: bytes, start: int, end_inclusive: int | None, *, may_open: bool = False
    ) -> Bulk:
        """Return the bytes [start, end_inclusive] of a finished segment's log; the end is clamped.

        The first bytes are there when this returns, so that what is wrong is told as an error.
        Whoever may open files himself gets the name of the log where it is one of this host.

        Raises:
            InvalidArgument: a range that begins at or beyond the end, or ends before it begins.
            SegmentNotFound: the segment was never finished, is being deleted, or is gone.
            ObjectMissing: the log says that it is there, and the storage certainly lacks it.

        Source: RemoteStorageManager.fetchLogSegment.
        """
        with self._counted("log"):
            bucket = self._require_bucket()
            began = asyncio.get_running_loop().time()

            def ended() -> None:
                seconds = asyncio.get_running_loop().time() - began
                self._metrics.storage.fetch.observe(seconds)

            metadata = await self._readable(record)
            size = metadata.segment_size_bytes
            last = size - 1 if end_inclusive is None else min(end_inclusive, size - 1)
            if not 0 <= start < size or last < start:
                raise InvalidArgument(
                    f"range [{start}, {end_inclusive}] of a segment with {size} bytes", size=size
                )
            facts = self._facts(metadata)
            whole = facts is not None and (start, last) == (0, size - 1)
            crc32c = facts.log_crc32c if facts is not None and whole else None
            wanted = _Wanted(
                bucket=bucket, metadata=metadata, facts=facts, kind=ObjectKind.LOG, size=size
            )
            found = await self._object(wanted)
            file, named = await self._local(wanted, found, may_name=may_open)
            if file is not None:
                if named is not None:
                    os.close(file)
                    self._metrics.storage.fetches_named.inc()
                    return Bulk(0, None, named=named, closed=ended)
                self._count_bytes(metadata.partition.topic, last + 1 - start)
                return Bulk(last + 1 - start, crc32c, file=(file, start), closed=ended)
            recorded = None if facts is None else facts.log_crc32c
            identity = _identity(metadata, found, recorded)
            log = RemoteLog(identity, found.key, size, bucket.storage, recorded)
            bounded = end_inclusive is not None
            pieces = self._counted_pieces(
                metadata.partition.topic,
                self._remote.reads.read(log, start, last + 1, bounded=bounded),
            )
            first = await anext(pieces)
            source = "cache" if isinstance(first, FileSlice) else "storage"
            seconds = asyncio.get_running_loop().time() - began
            self._metrics.reads.first_byte.labels(source).observe(seconds)
            return Bulk(last + 1 - start, crc32c, first=first, rest=pieces, closed=ended)

    async def fetch_index(self, record: bytes, index: str) -> Bulk:
        """Return a whole index: OFFSET, TIMESTAMP, TRANSACTION, PRODUCER_SNAPSHOT, LEADER_EPOCH.

        Raises:
            IndexNotFound: TRANSACTION, and the segment was recorded as having none.
            ObjectMissing: recorded, and certainly not there.
            SegmentNotFound, InvalidArgument: as they say.

        Source: RemoteStorageManager.fetchIndex.
        """
        kind = ObjectKind.__members__.get(index)
        named = kind is not None and kind is not ObjectKind.LOG
        with self._counted(index.lower() if named else "unknown"):
            bucket = self._require_bucket()
            if kind is None or not named:
                raise InvalidArgument(f"{index!r} is not an index of a segment")
            metadata = await self._readable(record)
            facts = self._facts(metadata)
            if kind is ObjectKind.TRANSACTION and (
                metadata.txn_index_empty or (facts is not None and kind.value not in facts.sizes)
            ):
                raise IndexNotFound("the segment was recorded as having no transaction index")
            size = None if facts is None else facts.sizes.get(kind.value)
            wanted = _Wanted(bucket=bucket, metadata=metadata, facts=facts, kind=kind, size=size)
            found = await self._object(wanted)
            file, _ = await self._local(wanted, found)
            self._metrics.storage.fetch_bytes.labels(index.lower()).inc(found.size)
            if file is not None:
                return Bulk(found.size, None, file=(file, 0))
            identity = _identity(metadata, found, None)
            data = await self._remote.indexes.get(
                IndexKey(metadata.segment_id, identity.tag, kind),
                lambda: self._retried(lambda: self._index(bucket.storage, found)),
            )
            return Bulk(len(data), None, first=data)

    @property
    def _remote(self) -> ReadCaches:
        assert self._caches is not None, "a storage without local files is read through caches"
        return self._caches

    def _counted(self, kind: str) -> AbstractContextManager[None]:
        fetches = self._metrics.storage.fetches
        return outcome_told(lambda outcome: fetches.labels(kind, outcome).inc())

    async def _counted_pieces(self, topic: str, pieces: Pieces) -> Pieces:
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                length = piece.length if isinstance(piece, FileSlice) else len(piece)
                self._count_bytes(topic, length)
                yield piece

    def _count_bytes(self, topic: str, count: int) -> None:
        self._metrics.storage.fetch_bytes.labels("log").inc(count)
        self.bytes_by_topic[topic] += count

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
        if self._caches is not None:
            self._caches.deleted.is_back(given.segment_id)
        return given if present == record else decode_segment(present)

    def _facts(self, metadata: SegmentMetadata) -> StoredFacts | None:
        """Return what was recorded at the copy, even if an update has erased it since."""
        facts = custom_metadata.decode(metadata.custom_metadata)
        if facts is None:
            kept = self._log.kept_custom_metadata(metadata.partition, metadata.segment_id)
            facts = custom_metadata.decode(kept)
        return facts

    async def _object(self, wanted: "_Wanted") -> _Object:
        """Return where an object is, without asking the storage where the record says it all."""
        located = (wanted.metadata.segment_id, wanted.kind)
        found = self._located.get(located)
        if found is not None and found.size == wanted.size:
            return found
        places = await self._places(wanted)
        if len(places) == 1 and wanted.size is not None:
            return _Object(key=places[0].keys[wanted.kind], size=wanted.size)
        found = await self._find(wanted, places)
        self._located[located] = found
        return found

    async def _places(self, wanted: "_Wanted") -> list[SegmentPlace]:
        return await self._retried(lambda: wanted.bucket.places_of(wanted.metadata, wanted.facts))

    async def _find(self, wanted: "_Wanted", places: Sequence[SegmentPlace]) -> _Object:
        """Look for an object in every place where it may be.

        Raises:
            ObjectMissing: it certainly is in none.
            ChecksumMismatch: it is not as long as was recorded.
        """
        storage = wanted.bucket.storage
        for place in places:
            found = await self._size(storage, place.keys[wanted.kind])
            if found is None:
                continue
            if wanted.size not in {None, found.size}:
                raise _other_size(found.key, found.size, wanted.size)
            return found
        if not places:
            raise ObjectMissing("no object is stored under a topic name that Kafka forbids")
        key = places[0].keys[wanted.kind]
        raise ObjectMissing(f"{key} is recorded and not in the storage", key=key)

    async def _size(self, storage: RemoteStorage, key: str) -> _Object | None:
        size = await self._retried(lambda: storage.size(key))
        return None if size is None else _Object(key=key, size=size)

    async def _local(
        self, wanted: "_Wanted", found: _Object, *, may_name: bool = False
    ) -> tuple[int | None, LocalFile | None]:
        """Return a descriptor of the object if the storage keeps local files, and its name."""
        path = wanted.bucket.storage.local_path(found.key)
        if path is None:
            return None, None
        try:
            # Never on the loop: a mount that hangs would hold look-ups and writes with it.
            descriptor, status = await self._threads.run(
                functools.partial(_opened, path),
                unwanted=lambda opened: os.close(opened[0]),
                about=path,
            )
        except Hangs as error:
            raise StorageUnavailable(f"open of {found.key}: its disk or mount hangs") from error
        except FileNotFoundError as error:
            # The storage itself tells a lost object from a lost mount.
            await self._find(wanted, await self._places(wanted))
            raise StorageUnavailable(f"{found.key} came back while it was read") from error
        except OSError as error:
            raise StorageUnavailable(f"open of {found.key}: {error.strerror}") from error
        if status.st_size != found.size:
            os.close(descriptor)
            raise _other_size(found.key, status.st_size, found.size)
        return descriptor, self._named(path, status) if may_name else None

    def _named(self, path: str, status: os.stat_result) -> LocalFile | None:
        """Name a file so that whoever opens it knows whether it is the same one."""
        if not self._may_name(status.st_dev):
            return None
        return LocalFile(str(Path(path).absolute()), status.st_dev, status.st_ino)

    async def _index(self, storage: RemoteStorage, found: _Object) -> bytes:
        """Read an index whole, and one byte more than recorded, to see that there is none."""
        if not found.size:  # an empty object has no range
            size = await storage.size(found.key)
            if size is None:
                raise ObjectMissing(f"{found.key} is not in the storage", key=found.key)
            if size:
                raise _other_size(found.key, size, 0)
            return b""
        for _ in range(INDEX_READS_MAX):
            data = await self._whole_index(storage, found)
            if not isinstance(storage, DescribingStorage):
                return data
            stored = await storage.described_crc32c(found.key)
            if stored is None or stored == crc32c(data):
                return data
            self._metrics.reads.mismatches.labels("index").inc()
        raise ChecksumMismatch(
            f"{found.key} came {INDEX_READS_MAX} times with other bytes than were stored",
            key=found.key,
        )

    async def _whole_index(self, storage: RemoteStorage, found: _Object) -> bytes:
        reads = self._metrics.reads
        reads.gets.labels("index").inc()
        async with contextlib.aclosing(storage.fetch(found.key, 0, found.size + 1)) as pieces:
            data = b"".join([piece async for piece in pieces])
        reads.got_bytes.labels("index").inc(len(data))
        if len(data) != found.size:
            raise _other_size(found.key, len(data), found.size)
        return data

    async def _retried(self, call: Callable[[], Awaitable[T]]) -> T:
        retry = self._new_retry()
        while True:
            try:
                return await call()
            except UnavailableError as error:
                await retry.pause(error)


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """One object of a segment; facts and size as they were recorded, None if they were not."""

    bucket: Bucket
    metadata: SegmentMetadata
    facts: StoredFacts | None
    kind: ObjectKind
    size: int | None


def _opened(path: str) -> tuple[int, os.stat_result]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return descriptor, os.fstat(descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def _identity(metadata: SegmentMetadata, found: _Object, crc32c: int | None) -> ObjectId:
    """Name one copy of an object: another place, size or checksum is another copy."""
    text = f"{found.key}\0{found.size}\0{crc32c}"
    return ObjectId(
        metadata.segment_id, hashlib.blake2b(text.encode(), digest_size=TAG_BYTES).hexdigest()
    )


def _other_size(key: str, size: int, recorded: int | None) -> ChecksumMismatch:
    return ChecksumMismatch(f"{key} has {size} bytes, {recorded} were recorded", key=key)
