"""A metadata partition: opened at its first use, written by one writer, read by its followers."""

import asyncio
import errno
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress

import structlog
from msgspec.structs import replace

from rlmm_daemon.adapters.event_log.embedded import compacted_files, compacting, files
from rlmm_daemon.adapters.event_log.embedded.growth import Growth
from rlmm_daemon.adapters.event_log.embedded.identity import (
    CleanEnd,
    Generations,
)
from rlmm_daemon.adapters.event_log.embedded.journal import Journal
from rlmm_daemon.adapters.event_log.embedded.misplaced import strangers_below
from rlmm_daemon.adapters.event_log.embedded.options import Context
from rlmm_daemon.adapters.event_log.embedded.reader import Reader
from rlmm_daemon.adapters.event_log.embedded.recovery import recover
from rlmm_daemon.adapters.event_log.embedded.writer import Writer
from rlmm_daemon.domain.errors import (
    Draining,
    LogCorrupt,
    Overloaded,
    RlmmError,
    StorageFull,
    StorageUnavailable,
)
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import (
    NO_EPOCH,
    Compacted,
    EpochEnd,
    LogBatch,
    LogRange,
    LogTrimmed,
    LogTruncated,
    Steady,
    Told,
    Turn,
    diverged,
    ranges_within,
)

_log = structlog.get_logger(__name__)


class Partition:
    """What `EventLog` promises, for one partition. A corrupt one fails alone."""

    def __init__(
        self,
        context: Context,
        generations: Generations,
        partition: MetadataPartition,
        home: str,
        *,
        clean: CleanEnd | None,
    ) -> None:
        self._context = context
        self._generations = generations
        self._partition = partition
        self._directory = files.partition_directory(home, partition)
        self._clean = clean
        self._journal: Journal | None = None
        self._writer: Writer | None = None
        self._opening: asyncio.Task[None] | None = None
        self._compacting = asyncio.Lock()
        self._placing: asyncio.Task[None] | None = None
        #: Records that were taken before the partition was open.
        self._early: deque[tuple[bytes, Told]] = deque()
        self._corrupt: LogCorrupt | None = None
        self._trouble: RlmmError | None = None
        self._closed = False

    @property
    def directory(self) -> str:
        """Where the files are."""
        return self._directory

    @property
    def end(self) -> int | None:
        """The stable end, also while what stands before it can't be read; None: not known."""
        if self._journal is None:
            return None if self._clean is None else self._clean.next_offset
        return self._journal.next_offset

    @property
    def refusal(self) -> str:
        """Why the disk refused the last write; empty if it took it."""
        return "" if self._writer is None else self._writer.refusal

    def begin_append(self, value: bytes, told: Told) -> None:
        """Take a record, now or once the partition is open; see `Writer.begin_append`."""
        if self._writer is not None and not self._early:
            self._writer.begin_append(value, told)
            return
        if len(self._early) >= self._context.options.pending_records_max:
            raise Overloaded("too many records wait for the event log to open")
        if self._begin_opening() is None:
            raise self._why_not()
        self._early.append((value, told))

    async def seal(self) -> None:
        """Trim the newest file and begin the next, so that tools may read all that is there."""
        writer, _ = await self._ready()
        await writer.seal()

    async def compact(
        self, upto: int, partition_count: int, *, turn: Turn, steady: Steady
    ) -> Compacted | None:
        """Do what `Compactable.compact` promises; one at a time."""
        async with self._compacting:
            return await self._compact(upto, partition_count, turn=turn, steady=steady)

    async def _compact(
        self, upto: int, partition_count: int, *, turn: Turn, steady: Steady
    ) -> Compacted | None:
        writer, journal = await self._ready()
        if self._placing is not None:  # of one whose caller has left
            await asyncio.wait([self._placing])
        try:
            await self._close_what_is_due(writer, journal)
            until = max((base for base in journal.bases if base <= upto), default=0)
            decided = await compacted_files.last(self._context.disk, self._directory)
            if decided.pending:  # a disk that failed kept it from its end
                written = compacting.Written.of(decided)
            elif until > journal.range.start and await self._is_due(journal, until):
                written = await compacting.write_anew(
                    self._context, journal, until, partition_count, turn=turn
                )
            else:
                return None
            return await self._put_in_place(journal, written, steady)
        except OSError as error:
            message = f"the event log's partition {self._partition} is not compacted: {error}"
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise (StorageFull if full else StorageUnavailable)(message) from error

    async def _close_what_is_due(self, writer: Writer, journal: Journal) -> None:
        """Begin a new file if only the newest one, which is never compacted, makes it due."""
        if not journal.bases or not journal.position:
            return
        when = self._context.options.compaction
        closed, left = await compacting.sizes(self._context, journal, journal.newest)
        left = max(left, journal.kept)
        if when and when.due(closed + journal.position, left) and not when.due(closed, left):
            await writer.seal()

    async def _is_due(self, journal: Journal, until: int) -> bool:
        when = self._context.options.compaction
        size, left = await compacting.sizes(self._context, journal, until)
        return when is not None and when.due(size, max(left, journal.kept))

    async def _put_in_place(
        self, journal: Journal, written: compacting.Written, steady: Steady
    ) -> Compacted | None:
        when = self._context.options.compaction
        share = written.bytes_after / (written.bytes_before or 1)
        if not written.is_decided and (when is None or share > when.share_max):
            journal.kept = written.bytes_before
            await compacted_files.discard(self._context.disk, self._directory)
            return None
        async with steady() as holds:
            if not holds or self._closed or self._journal is not journal:
                if not written.is_decided:
                    await compacted_files.discard(self._context.disk, self._directory)
                return None
            # The log's own task: to be torn away in the middle would leave names that nobody knows.
            failed = list[OSError | LogCorrupt]()
            work = self._place(journal, written, failed)
            try:
                self._placing = self._context.spawn(work, f"log.compact.{self._partition}")
            except RuntimeError as error:  # the task group is ending
                work.close()
                raise Draining("the event log is closing") from error
            await asyncio.wait([self._placing])
        self._placing = None
        if failed:
            raise failed[0]
        return written.told if journal.compaction.count == written.compaction.count else None

    async def _place(
        self, journal: Journal, written: compacting.Written, failed: list[OSError | LogCorrupt]
    ) -> None:
        disk, compaction = self._context.disk, written.compaction
        if not written.is_decided:
            try:
                await self._generations.allow_compaction()
                # Should it fail, it may count all the same: what was written stays until that is
                # known.
                await compacted_files.decide(disk, self._directory, compaction)
            except OSError as error:
                failed.append(error)
                return
        try:
            while not await self._named(compaction):
                if self._closed:
                    return  # the next open does it
                await asyncio.sleep(self._context.options.probe_seconds)
        except LogCorrupt as error:
            failed.append(error)
            return
        journal.compacted(compaction)
        with suppress(OSError):  # the next compaction or open does it
            journal.compaction = await compacted_files.clear(disk, self._directory, compaction)

    async def _named(self, compaction: compacted_files.Compaction) -> bool:
        """Give the files of a compaction their names; whether that is done."""
        try:
            await compacted_files.put_in_place(self._context.disk, self._directory, compaction)
        except OSError as error:
            _log.warning("log_compaction_waits", partition=self._partition, error=str(error))
            return False
        return True

    async def range(self) -> LogRange:
        """Return start and stable end."""
        _, journal = await self._ready()
        return journal.range

    async def epoch_end(self, epoch: int) -> EpochEnd:
        """Return where a generation ends."""
        _, journal = await self._ready()
        return journal.epochs.end_of(epoch, journal.next_offset)

    async def follow(self, from_offset: int, epoch: int) -> AsyncGenerator[LogBatch, None]:
        """Yield what is durable from `from_offset` on, then what becomes so, with heartbeats."""
        _, journal = await self._ready()
        if from_offset > journal.next_offset:
            raise LogTruncated(f"the log ends at {journal.next_offset}, before {from_offset}")
        if from_offset < journal.range.start:
            raise LogTrimmed(journal.range.start)
        epoch = epoch if from_offset > 0 else NO_EPOCH
        if epoch >= 0:  # once is enough: nothing synced is cut while the log is open
            found = journal.epochs.end_of(epoch, journal.next_offset)
            if (how := diverged(found, from_offset, epoch)) is not None:
                raise LogTruncated(how)
        reader = Reader(self._context, journal)
        growth = Growth(journal, self._context.options.heartbeat_seconds)
        position, due = from_offset, True
        try:
            identity = self._generations.identity
            assert identity is not None, "the log is open"
            strange = await strangers_below(
                self._context.disk, journal, from_offset, identity.partition_count
            )
            below = (*await self._repaired_below(reader, journal, from_offset), *strange)
            while True:
                if self._closed:
                    raise Draining("the event log is closing")
                if position < journal.next_offset:
                    batch = journal.recent(position) or await self._read(reader, position)
                    epoch, due = batch.leader_epoch, False
                    if batch.next_offset > position:
                        position = batch.next_offset
                        unvouched = (*below, *batch.unvouched)
                        yield replace(batch, unvouched=unvouched, misplaced=bool(strange))
                        below = strange = ()
                elif due:
                    due = False
                    yield LogBatch(
                        next_offset=position,
                        leader_epoch=epoch,
                        records=(),
                        range=journal.range,
                        unvouched=below,
                        misplaced=bool(strange),
                    )
                    below = strange = ()
                else:
                    due = not await growth.wait()
        finally:
            growth.close()
            await reader.close()

    async def close(self) -> CleanEnd | None:
        """Finish appends; return the end if the next open may trust it."""
        self._closed = True
        for task in (self._opening, self._placing):
            if task is not None:
                await asyncio.wait([task])
        if self._journal is None or self._writer is None:
            return self._clean if self._corrupt is None and self._trouble is None else None
        self._journal.wake()
        return await self._writer.close()

    def _being_placed(self) -> "asyncio.Task[None] | None":
        """Return what gives a compaction's files their names right now."""
        return None if self._placing is None or self._placing.done() else self._placing

    async def _read(self, reader: Reader, position: int) -> LogBatch:
        """Return the next records; again where a compaction replaced the file that was read.

        Between the first of its renames and the last, a file's name may stand for one that ends
        elsewhere than the journal knows.
        """
        while True:
            placing = self._being_placed()
            try:
                return await reader.read(position)
            except OSError as error:
                await reader.close()
                path = error.filename or reader.path
                message = f"the event log cannot be read: {path}: {error.strerror}"
                raise StorageUnavailable(message, file=path) from error
            except LogCorrupt:
                placing = self._being_placed() or placing
                if placing is None and not reader.is_behind:
                    raise
                await reader.close()
            if placing is not None:
                await asyncio.wait([placing], timeout=self._context.options.probe_seconds)
                if not placing.done():
                    raise StorageUnavailable("files of the event log are being replaced")

    async def _repaired_below(
        self, reader: Reader, journal: Journal, offset: int
    ) -> tuple[LogRange, ...]:
        """Return the offsets below `offset` over which a repair wrote empty batches.

        A fold that begins at `offset` was made of this very log, perhaps by a version that passed
        over them unseen. Only a log that was ever repaired is read for it, up to there.
        """
        if offset == journal.range.start or not await files.was_repaired(
            self._context.disk, self._directory
        ):
            return ()
        found: list[LogRange] = []
        at = journal.range.start
        while at < offset and not self._closed:
            batch = await self._read(reader, at)
            found += batch.unvouched
            at = batch.next_offset
            await asyncio.sleep(0)
        return ranges_within(found, LogRange(start=0, end=offset))

    async def _ready(self) -> tuple[Writer, Journal]:
        """Return the open partition.

        The opening is the log's own task: were it the caller's, a cancelled one could leave a
        truncate in flight that takes effect after later appends.
        """
        if self._writer is None or self._journal is None:
            await self._open_once()
        if self._writer is None or self._journal is None:
            raise self._why_not()
        return self._writer, self._journal

    def _why_not(self) -> RlmmError:
        if self._corrupt is not None:
            return LogCorrupt(self._corrupt.message, **self._corrupt.fields)
        return self._trouble or Draining("the event log is closing")

    async def _open_once(self) -> None:
        opening = self._begin_opening()
        if opening is not None:
            await asyncio.wait([opening])

    def _begin_opening(self) -> asyncio.Task[None] | None:
        """Return the task that opens the partition; None if it will not be opened."""
        if self._opening is None and self._corrupt is None and not self._closed:
            work = self._open()
            try:
                self._opening = self._context.spawn(work, f"log.open.{self._partition}")
            except RuntimeError:  # the task group is ending
                work.close()
                return None
            # A callback, since a task that is cancelled before its first step runs no `finally`.
            self._opening.add_done_callback(self._opened)
        return self._opening

    def _opened(self, _: asyncio.Task[None]) -> None:
        self._opening = None
        early, self._early = self._early, deque()
        for value, told in early:
            try:
                if self._writer is None:
                    raise self._why_not()
                self._writer.begin_append(value, told)
            except RlmmError as error:
                told(error)

    async def _open(self) -> None:
        try:
            await self._recover()
        except LogCorrupt as error:
            self._corrupt = error
            _log.error("log_partition_corrupt", partition=self._partition, **error.fields)
        except OSError as error:
            message = f"the event log's partition {self._partition} cannot be opened: {error}"
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            named = {} if error.filename is None else {"file": error.filename}
            self._trouble = StorageFull(message) if full else StorageUnavailable(message, **named)
            _log.warning("log_partition_not_opened", partition=self._partition, error=str(error))

    async def _recover(self) -> None:
        context = self._context
        newest_epoch, identity = self._generations.newest, self._generations.identity
        assert identity is not None, "the log is open"
        found = await recover(
            context,
            self._directory,
            self._partition,
            self._clean,
            newest_epoch=newest_epoch,
            partition_count=identity.partition_count,
        )
        self._generations.owed.pop(self._partition, None)
        if found.epochs.latest > newest_epoch:
            self._generations.go_on_beyond(found.epochs.latest)
        self._journal = Journal(
            partition=self._partition,
            directory=self._directory,
            bases=found.bases,
            position=found.position,
            next_offset=found.next_offset,
            epochs=found.epochs,
            compaction=found.compaction,
            recent_bytes_max=context.options.recent_bytes,
        )
        self._writer = Writer(context, self._generations, self._journal)
        self._trouble = None
