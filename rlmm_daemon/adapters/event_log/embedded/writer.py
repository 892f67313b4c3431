"""Appends of one partition: group commit, room made ahead, and the cut after a failure.

Waiting appends become one record batch, written and synced by one task that the log owns, so no
caller's cancellation can stop a write half-way. One fdatasync covers exactly one batch, and the
next is written only after it: what a crash leaves is then at most one torn batch, at the end.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Coroutine
from typing import Any

import msgspec
import structlog

from rlmm_daemon.adapters.event_log.embedded import epochs, files
from rlmm_daemon.adapters.event_log.embedded.identity import CleanEnd, Generations
from rlmm_daemon.adapters.event_log.embedded.journal import Journal, Synced
from rlmm_daemon.adapters.event_log.embedded.options import Context
from rlmm_daemon.adapters.event_log.embedded.refusal import Refusal
from rlmm_daemon.codec import batches
from rlmm_daemon.domain.errors import (
    Draining,
    InvalidArgument,
    OutcomeUnknown,
    Overloaded,
    RlmmError,
)
from rlmm_daemon.ports.disk import DiskFile
from rlmm_daemon.ports.event_log import NO_EPOCH, Told

_log = structlog.get_logger(__name__)


class _Waiting(msgspec.Struct, frozen=True):
    """A record and whoever is to be told of it."""

    value: bytes
    told: Told


class Writer:
    """The only one that writes to a partition's files once recovery has handed them over."""

    def __init__(self, context: Context, generations: Generations, journal: Journal) -> None:
        self._context = context
        self._generations = generations
        self._journal = journal
        #: Begun with the first write.
        self._generation = NO_EPOCH
        self._file: DiskFile | None = None
        #: Bytes of the newest file that are written, with zeros after the durable position.
        self._allocated = journal.position
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._handed: list[_Waiting] = []
        self._idle = asyncio.Event()
        self._idle.set()
        #: The newest file may hold bytes that no sync vouches for.
        self._must_cut = False
        #: A roll has begun: nothing goes into the old file any more.
        self._must_roll = False
        self._refusal = Refusal(context, journal.partition, self._begin_probe)
        #: Of the last batch, which may have been refused.
        self._batch_bytes = 0
        self._ended = False

    @property
    def refusal(self) -> str:
        """Why the disk refused the last write; empty once it has room for it, asked or not."""
        return self._refusal.words

    def begin_append(self, value: bytes, told: Told) -> None:
        """Take a record; `told` hears its offset once a sync has covered it.

        It hears OutcomeUnknown if the write or its sync failed, and what is raised below if that
        shows only when the record's turn comes.

        Raises:
            InvalidArgument: the record is too large for any batch.
            Overloaded: too many records wait already.
            StorageFull: the disk is full, or the log is known to be unwritable just now.
            Draining: the log is closing.
        """
        self._check(value)
        if self._idle.is_set() and not self._start():
            raise Draining("the event log is closing")
        self._waiting.append(_Waiting(value, told))
        self._waiting_bytes += len(value)

    async def seal(self) -> None:
        """Begin a new file once nothing is being written; nothing to do in an empty one.

        Raises:
            StorageFull: the new file could not be made.
            Draining: the log is closing.
        """
        await self._until_idle()
        if self._ended:
            raise Draining("the event log is closing")
        if not self._journal.position:
            return
        self._idle.clear()
        try:
            await self._cut_if_needed()
            await self._begin()
            await self._roll()
        except OSError as error:
            self._refusal.begin(error)
            raise self._refusal.error from error
        finally:
            self._go_on()

    async def close(self) -> CleanEnd | None:
        """Finish what was taken, trim the file; return where it ends if that is certain."""
        self._ended = True
        await self._until_idle()
        try:
            if self._must_cut or self._handed:
                return None
            if self._file is not None:
                await files.cut(self._file, self._journal.position)
        except OSError:
            return None  # the next open scans the file
        finally:
            await self._close_file()
        return self._clean_end()

    async def _until_idle(self) -> None:
        """Return while nothing is being written; of several who wait, the first may begin again."""
        while not self._idle.is_set():
            await self._idle.wait()

    def _clean_end(self) -> CleanEnd | None:
        if self._must_roll or not self._journal.bases:
            return None
        newest = self._journal.newest
        return CleanEnd(
            base_offset=newest,
            size=self._journal.position,
            next_offset=self._journal.next_offset,
            epochs=list(self._journal.epochs.entries),
        )

    def _check(self, value: bytes) -> None:
        options = self._context.options
        if self._ended:
            raise Draining("the event log is closing")
        if len(value) > options.record_bytes_max:
            raise InvalidArgument(
                f"a record of {len(value)} bytes is over the limit of {options.record_bytes_max}"
            )
        if self._refusal.holds:
            raise self._refusal.error
        if (
            len(self._waiting) >= options.pending_records_max
            or self._waiting_bytes + len(value) > options.pending_bytes_max
        ):
            raise Overloaded("too many records wait for the event log's disk")

    # The one task that writes -------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None] | None = None) -> bool:
        """Begin to write what waits from the loop's next turn on; False if nothing can begin."""
        self._idle.clear()
        work = work or self._commit_all()
        try:
            task = self._context.spawn(work, f"log.write.{self._journal.partition}")
        except RuntimeError:  # the task group is ending
            work.close()
            self._stop()
            return False
        # A callback, since a task that is cancelled before its first step runs no `finally`.
        task.add_done_callback(self._ended_task)
        return True

    def _ended_task(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._stop()
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self._waiting:
            self._start()
        else:
            self._idle.set()

    def _stop(self) -> None:
        """Take no more: the write in flight may yet reach the disk, so nothing may follow it."""
        self._ended = True
        self._must_cut = True
        handed, self._handed = self._handed, []
        for waiting in handed:
            waiting.told(OutcomeUnknown("the event log stopped during the write"))
        self._refuse_waiting(Draining("the event log is closing"))
        self._idle.set()

    async def _commit_all(self) -> None:
        while self._waiting:
            await self._commit()
            # Those just answered may append again at once, and then share the next sync.
            await asyncio.sleep(0)

    async def _commit(self) -> None:
        if self._refusal.holds:
            self._refuse_waiting(self._refusal.error)
            return
        values = self._take()
        try:
            await self._cut_if_needed()
            await self._begin()
            batch = self._encode(values)
            self._batch_bytes = len(batch)
            file = await self._make_room(len(batch))
        except OSError as error:
            self._refusal.begin(error)
            self._refuse_handed(self._refusal.error)
            self._refuse_waiting(self._refusal.error)
            return
        self._refusal.end()
        began = self._context.clock.monotonic()
        try:
            await files.write_all_synced(file, self._journal.position, batch)
        except OSError as error:
            await self._after_failed_write(error)
            return
        self._context.on_sync(self._context.clock.monotonic() - began, len(values))
        self._answer(values, len(batch))

    def _take(self) -> list[bytes]:
        """Move what one batch takes from the waiting to the handed."""
        size = 0
        while self._waiting:
            size += len(self._waiting[0].value)
            if self._handed and size > self._context.options.batch_bytes_max:
                break
            waiting = self._waiting.popleft()
            self._waiting_bytes -= len(waiting.value)
            self._handed.append(waiting)
        return [waiting.value for waiting in self._handed]

    async def _begin(self) -> None:
        """Take up the generation that writes here, larger than any that did; make the first file.

        Both need room: what is only read leaves everything as it is.
        """
        if self._generation <= self._generations.floor:
            self._generation = await self._generations.begin(beyond=self._journal.epochs.latest)
        if not self._journal.bases:
            await begin_segment(self._context, self._journal)

    def _encode(self, values: list[bytes]) -> bytes:
        return batches.build(
            values,
            base_offset=self._journal.next_offset,
            leader_epoch=self._generation,
            timestamp_ms=self._context.clock.now_ms(),
        )

    def _answer(self, values: list[bytes], size: int) -> None:
        base = self._journal.next_offset
        synced = Synced(
            base_offset=base,
            next_offset=base + len(values),
            leader_epoch=self._generation,
            values=values,
            bytes_of_values=sum(map(len, values)),
        )
        self._journal.grew(synced, size=size)
        handed, self._handed = self._handed, []
        for offset, waiting in enumerate(handed, base):
            waiting.told(offset)

    # Failures -----------------------------------------------------------------------------

    async def _after_failed_write(self, error: OSError) -> None:
        self._must_cut = True
        partition = self._journal.partition
        _log.error("log_write_failed", partition=partition, errno=error.errno, error=str(error))
        handed, self._handed = self._handed, []
        for waiting in handed:
            waiting.told(OutcomeUnknown(f"the event log's write failed: {error}"))
        try:
            await self._cut_if_needed()
        except OSError as second:
            self._refusal.begin(second)
            self._refuse_waiting(self._refusal.error)

    async def _cut_if_needed(self) -> None:
        """Cut off what no sync vouches for, in a new generation, through a new descriptor.

        The old descriptor has reported its error and would call later syncs of the same pages
        a success.
        """
        if not self._must_cut:
            return
        await self._close_file()
        file = await self._open_newest()
        await files.cut(file, self._journal.position)
        self._allocated = self._journal.position
        self._generation = await self._generations.advance(beyond=self._journal.epochs.latest)
        self._must_cut = False
        partition = self._journal.partition
        _log.warning("log_cut", partition=partition, end=self._journal.next_offset)

    def _begin_probe(self) -> None:
        if self._ended:
            return
        if self._idle.is_set():
            self._start(self._probe())
        else:
            self._refusal.probe_later()

    async def _probe(self) -> None:
        """Make the room that was refused, which the next write needs in any case."""
        try:
            await self._cut_if_needed()
            await self._begin()
            await self._make_room(self._batch_bytes)
        except OSError as error:
            self._refusal.begin(error)
        else:
            self._refusal.end()

    def _refuse_handed(self, error: RlmmError) -> None:
        handed, self._handed = self._handed, []
        for waiting in handed:
            waiting.told(error)

    def _refuse_waiting(self, error: RlmmError) -> None:
        refused, self._waiting = self._waiting, deque()
        self._waiting_bytes = 0
        for waiting in refused:
            waiting.told(error)

    # Room ---------------------------------------------------------------------------------

    async def _make_room(self, size: int) -> DiskFile:
        """Return a file in which the next `size` bytes are zeros on the disk already.

        A full disk is met here, where nothing of the batch has been written.
        """
        position = self._journal.position
        if self._must_roll or (position and position + size > self._context.options.segment_bytes):
            await self._roll()
        file = await self._open_newest()
        end = self._journal.position + size
        if end > self._allocated:
            await self._preallocate(file, end)
        return file

    async def _preallocate(self, file: DiskFile, needed: int) -> None:
        options = self._context.options
        limit = max(options.segment_bytes, needed)
        end = min(max(self._allocated + options.preallocate_bytes, needed), limit)
        try:
            await files.write_zeros(file, self._allocated, end)
        except OSError:
            await self._give_back(file)
            raise
        try:
            await file.fdatasync()
        except OSError:
            self._must_cut = True
            raise
        self._allocated = end

    async def _give_back(self, file: DiskFile) -> None:
        """Free the zeros that did fit: others need the space, and the next try starts over."""
        try:
            await file.truncate(self._allocated)
        except OSError:
            self._must_cut = True

    async def _roll(self) -> None:
        """Seal the newest file and begin the next; may be repeated from any step."""
        self._must_roll = True
        if self._journal.position:  # else the next one was begun before, and then not opened
            file = await self._open_newest()
            try:
                await files.cut(file, self._journal.position)
            except OSError:
                self._must_cut = True
                raise
            self._allocated = self._journal.position
            await begin_segment(self._context, self._journal)
            await self._close_file()
        await self._open_newest()
        self._allocated = 0
        self._must_roll = False

    async def _open_newest(self) -> DiskFile:
        if self._file is None:
            path = files.segment_path(self._journal.directory, self._journal.newest)
            self._file = await self._context.disk.open(path, write=True)
        return self._file

    async def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            await file.close()


async def begin_segment(context: Context, journal: Journal) -> None:
    """Begin the file after the newest one, which must be trimmed and synced, or the first one.

    The checkpoint comes first, so that a file that is no longer the newest is always covered by
    it; the file's name is durable before the first batch is written to it.
    """
    directory, base = journal.directory, journal.next_offset
    if not journal.bases:
        await context.disk.make_directory(directory)
    elif journal.newest == base:
        raise OSError(errno.EEXIST, "the newest file is empty, so it cannot be rolled")
    else:
        await context.disk.write_atomically(
            f"{directory}/{files.EPOCHS_NAME}", epochs.encode(journal.epochs.entries)
        )
    file = await context.disk.open(files.segment_path(directory, base), write=True, create=True)
    try:
        await files.cut(file, 0)
    finally:
        await file.close()
    await context.disk.fsync_directory(directory)
    journal.bases.append(base)
    journal.position = 0
