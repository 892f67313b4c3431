"""Upload of a segment from the broker's disk to the storage, checked on the way."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from typing import Final

from rlmm_daemon.codec import custom_metadata
from rlmm_daemon.codec.custom_metadata import StoredFacts
from rlmm_daemon.daemon.bucket.bucket import SegmentPlace
from rlmm_daemon.daemon.copying.sources import SegmentSources
from rlmm_daemon.domain.errors import ChecksumMismatch, RlmmError, first_of
from rlmm_daemon.domain.segment import CustomMetadata, SegmentMetadata
from rlmm_daemon.ports.disk_threads import DiskThreads
from rlmm_daemon.ports.passes import Claims, Passes, PassStopped
from rlmm_daemon.ports.storage import (
    ObjectKind,
    Progress,
    RemoteStorage,
    Source,
    StoredObject,
)
from rlmm_daemon.ports.threads import in_thread

#: A `.log` up to this size is read by whoever asks for its checksum first: that is done sooner than
#: another thread is woken.
SHORT_BYTES: Final = 1024 * 1024


class _ReadMeanwhile:
    """`ports.storage.ReadSource`: the `.log`, whose bytes the check reads while they are stored."""

    def __init__(self, log: Source, check: Callable[[], int]) -> None:
        self._log, self._check = log, check
        self.size, self.fileno, self.pread = log.size, log.fileno, log.pread
        self.crc32c: concurrent.futures.Future[int] = concurrent.futures.Future()

    def checksum(self) -> int:
        """Wait for the reader, or be it; its error is ours."""
        if self.size <= SHORT_BYTES and not self.crc32c.done():
            return self.read()
        return self.crc32c.result()

    def read(self) -> int:
        """Read and check all of it, and tell whoever waits what that came to."""
        try:
            found = self._check()
        except PassStopped:
            self.crc32c.cancel()
            raise
        except Exception as error:
            self.crc32c.set_exception(error)
            raise
        self.crc32c.set_result(found)
        return found

    def ended(self, reading: asyncio.Task[int]) -> None:
        """Tell the storage's thread, which waits, that the reader never began."""
        if reading.cancelled():
            self.crc32c.cancel()


async def upload(
    storage: RemoteStorage,
    metadata: SegmentMetadata,
    sources: SegmentSources,
    place: SegmentPlace,
    *,
    progress: Progress,
    entered: Callable[[str], None],
    passes: Passes,
    checks: bool,
    threads: DiskThreads,
) -> CustomMetadata:
    """Store a segment and return its custom metadata.

    One of `threads` has the `.log` read meanwhile: its CRC-32C must be what the storage holds, and
    with `checks` every batch must be in order. `entered` is told each next phase.

    Raises:
        ChecksumMismatch: the source changed, or the storage holds something else.
        RlmmError: as the check and the storage say.
    """
    stop = threading.Event()
    claims = Claims(
        start_offset=metadata.start_offset,
        end_offset=metadata.end_offset,
        size_bytes=metadata.segment_size_bytes,
    )
    is_short = sources.log.size <= SHORT_BYTES

    async def store() -> Sequence[StoredObject]:
        found = await storage.put_segment(rows, progress=progress)
        entered("check")
        return found

    def check() -> int:
        found = passes.check(sources.log, claims if checks else None, stop=stop)
        if is_short:  # all others have been read by then
            sources.check_unchanged()
        return found

    log = _ReadMeanwhile(sources.log, check)
    rows = [
        (kind, place.keys[kind], log if kind is ObjectKind.LOG else source)
        for kind, source in sources.objects
    ]
    if is_short:
        stored = await store()
        if not log.crc32c.done():
            await in_thread(threads, log.read, stop)
    else:
        try:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(in_thread(threads, log.read, stop), name="copy.check")
                reading.add_done_callback(log.ended)
                # A task too: ended together they wait for their threads at the same time.
                storing = group.create_task(store(), name="copy.store")
        except* RlmmError as errors:
            raise first_of(errors) from None
        stored = storing.result()
        await in_thread(threads, sources.check_unchanged)
    by_kind = dict(zip((kind for kind, _, _ in rows), stored, strict=True))
    if by_kind[ObjectKind.LOG].crc32c != log.crc32c.result():
        raise ChecksumMismatch("the storage holds another .log than the broker's disk")
    return _custom_metadata(place, by_kind)


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
