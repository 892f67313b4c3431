"""One segment's bytes from the broker's disk to the storage, checked on the way."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, Protocol

from crc32c import crc32c

from rlmm_daemon.codec import custom_metadata
from rlmm_daemon.codec.custom_metadata import StoredFacts
from rlmm_daemon.codec.segment_check import SegmentChecker
from rlmm_daemon.daemon.bucket import SegmentPlace
from rlmm_daemon.daemon.sources import SegmentSources
from rlmm_daemon.domain.errors import ChecksumMismatch, RlmmError
from rlmm_daemon.domain.segment import CustomMetadata, SegmentMetadata
from rlmm_daemon.ports.storage import (
    ObjectKind,
    Progress,
    RemoteStorage,
    Source,
    StoredObject,
)
from rlmm_daemon.ports.threads import in_thread

#: Reading and hashing it leave the interpreter to others.
READ_BYTES: Final = 1024 * 1024


class _ReadMeanwhile:
    """`ports.storage.ReadSource`: the `.log`, whose bytes the check reads while they are stored."""

    def __init__(self, log: Source) -> None:
        self._log = log
        self.size, self.fileno, self.pread = log.size, log.fileno, log.pread
        self.crc32c: concurrent.futures.Future[int] = concurrent.futures.Future()

    def checksum(self) -> int:
        """Wait for the reader; its error is ours."""
        return self.crc32c.result()

    def ended(self, reading: asyncio.Task[int]) -> None:
        """Tell what the reader came to, also if it never began."""
        if reading.cancelled():
            self.crc32c.cancel()
        elif (error := reading.exception()) is not None:
            self.crc32c.set_exception(error)
        else:
            self.crc32c.set_result(reading.result())


class SegmentCheck(Protocol):
    """Reads a `.log` in order and raises a RlmmError at the first thing that is wrong with it."""

    def feed(self, chunk: bytes, /) -> None:
        """Take the next bytes."""
        ...

    def finish(self) -> object:
        """Say that there are no more."""
        ...


NewCheck = Callable[[SegmentMetadata], SegmentCheck]


def kafka_segment_check(metadata: SegmentMetadata) -> SegmentCheck:
    """Return the check of a Kafka segment file against what its metadata claims."""
    return SegmentChecker(
        start_offset=metadata.start_offset,
        end_offset=metadata.end_offset,
        size_bytes=metadata.segment_size_bytes,
    )


async def upload(
    storage: RemoteStorage,
    metadata: SegmentMetadata,
    sources: SegmentSources,
    place: SegmentPlace,
    *,
    progress: Progress,
    entered: Callable[[str], None],
    new_check: NewCheck | None,
    threads: Executor,
) -> CustomMetadata:
    """Store a segment and return its custom metadata.

    One of `threads` reads the `.log` meanwhile: its CRC-32C must be what the storage holds, and
    `new_check`, if given, must find every batch in order. `entered` is told each next phase.

    Raises:
        ChecksumMismatch: the source changed, or the storage holds something else.
        RlmmError: as the check and the storage say.
    """
    stop = threading.Event()
    check = new_check(metadata) if new_check else None
    log = _ReadMeanwhile(sources.log)
    rows = [
        (kind, place.keys[kind], log if kind is ObjectKind.LOG else source)
        for kind, source in sources.objects
    ]
    try:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(
                in_thread(threads, lambda: _read(sources.log, check, stop), stop),
                name="copy.check",
            )
            reading.add_done_callback(log.ended)
            stored = await storage.put_segment(rows, progress=progress)
            entered("check")
    except* RlmmError as errors:
        raise _first(errors) from None
    sources.check_unchanged()
    by_kind = dict(zip((kind for kind, _, _ in rows), stored, strict=True))
    if by_kind[ObjectKind.LOG].crc32c != reading.result():
        raise ChecksumMismatch("the storage holds another .log than the broker's disk")
    return _custom_metadata(place, by_kind)


def _read(log: Source, check: SegmentCheck | None, stop: threading.Event) -> int:
    found = 0
    for offset in range(0, log.size, READ_BYTES):
        if stop.is_set():
            break
        chunk = log.pread(offset, min(READ_BYTES, log.size - offset))
        found = crc32c(chunk, found)
        if check is not None:
            check.feed(chunk)
    else:
        if check is not None:
            check.finish()
    return found


def _custom_metadata(place: SegmentPlace, stored: dict[ObjectKind, StoredObject]) -> CustomMetadata:
    return custom_metadata.encode(
        StoredFacts(
            layout_number=place.layout_number,
            log_crc32c=stored[ObjectKind.LOG].crc32c,
            sizes={
                kind.value: row.size for kind, row in stored.items() if kind is not ObjectKind.LOG
            },
        )
    )


def _first(errors: BaseExceptionGroup[RlmmError]) -> RlmmError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, RlmmError)
    return error
