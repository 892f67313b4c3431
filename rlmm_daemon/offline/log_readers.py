"""Event logs as commands read them that only look: beside a daemon that runs, or without one."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from rlmm_daemon.adapters.event_log.embedded import compacted_files
from rlmm_daemon.adapters.event_log.embedded import files as embedded
from rlmm_daemon.adapters.event_log.embedded.identity import read_identity
from rlmm_daemon.adapters.event_log.embedded.verify import pieces
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec import batches
from rlmm_daemon.config import Config, EmbeddedLog, QuorumLog
from rlmm_daemon.core.disposal.inventory import History
from rlmm_daemon.domain.errors import LogCorrupt, NotReady
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.offline.log_adoption import read_before
from rlmm_daemon.offline.log_contents import KAFKA, opened
from rlmm_daemon.offline.quorum import replica_log
from rlmm_daemon.offline.quorum.replica_log import Event, Standing
from rlmm_daemon.ports.disk import Disk
from rlmm_daemon.ports.event_log import NO_EPOCH, EventLog, LogIdentity, LogMissing


class LogReader(Protocol):
    """A log that is only read."""

    @property
    def identity(self) -> LogIdentity:
        """Which log it is."""

    async def read_on(self, history: History, damaged: dict[int, str] | None = None) -> int:
        """Read from the history's position to the end of now; return where the log begins.

        Given `damaged`, invalid batches of files are passed over, and the first one is put there.
        """

    @property
    def standing(self) -> Standing | None:
        """What is known of a quorum's replica; None of a log that is read whole."""

    def unsettled(self, number: MetadataPartition) -> Sequence[Event]:
        """Return events that may yet be taken back, behind all that was read."""


@contextlib.asynccontextmanager
async def reading(config: Config) -> AsyncIterator[LogReader]:
    """Open the configured log for reading; beside a daemon that runs, or without one.

    Raises:
        LogMissing: there is none.
        ConfigError: a quorum's replica is not formatted, or was left behind.
        RlmmError: one is damaged.
    """
    if isinstance(config.event_log, QuorumLog):
        disk = LocalDisk()
        try:
            yield await replica_log.of_config(config, disk, read_before)
        finally:
            disk.close()
        return
    if isinstance(config.event_log, EmbeddedLog):
        disk = LocalDisk()
        try:
            identity = await read_identity(disk, config.event_log_directory)
            if identity is None:
                raise LogMissing(f"{config.event_log_directory} holds no event log")
            yield _Files(disk, config.event_log_directory, identity)
        finally:
            disk.close()
        return
    async with opened(config, KAFKA, None) as log:
        yield _Topic(log)


class _Whole:
    """Nothing of what is read is ever taken back."""

    standing = None

    def unsettled(self, number: MetadataPartition) -> Sequence[Event]:
        del number
        return ()


class _Topic(_Whole):
    """Kafka's metadata topic."""

    def __init__(self, log: EventLog) -> None:
        assert log.identity is not None, "open"
        self._log, self.identity = log, log.identity

    async def read_on(self, history: History, damaged: dict[int, str] | None = None) -> int:
        del damaged  # another replica may lead, whose batches are whole
        number = history.fold.partition
        ranges = await self._log.end_offsets([number])
        if number not in ranges:
            raise NotReady(f"the end of metadata partition {number} is not known now")
        start, end = ranges[number].start, ranges[number].end
        fold, began = history.fold, history.fold.position
        at = max(fold.position, start)
        epoch = fold.leader_epoch if at == fold.position else NO_EPOCH
        if at < end:
            async with contextlib.aclosing(self._log.follow(number, at, epoch=epoch)) as found:
                async for batch in found:
                    _require_one_form(history, began, batch.dropped_to)
                    for offset, value in batch.records:
                        history.take(offset, value)
                    history.fold.advance(batch.next_offset, batch.leader_epoch)
                    if batch.next_offset >= end:
                        break
        return start


class _Files(_Whole):
    """An embedded log's files, of a daemon that perhaps runs: only whole batches are taken."""

    def __init__(self, disk: Disk, directory: str, identity: LogIdentity) -> None:
        self._disk, self._directory, self.identity = disk, directory, identity

    async def read_on(self, history: History, damaged: dict[int, str] | None = None) -> int:
        began = history.fold.position
        home = embedded.partition_directory(self._directory, history.fold.partition)
        files = await compacted_files.segment_files(self._disk, home)
        bases = [base for base, _ in files]
        end = bases[0] if bases else 0
        for base, path in files:
            if end < base:
                _damaged(
                    path, f"it begins at {base}, the file before ends at {end}", history, damaged
                )
            buffer, end = await compacted_files.read(self._disk, path), max(end, base)
            for piece in pieces(buffer, base):
                end = max(end, piece.next_offset)
                if piece.found:
                    dropped = [each.next_offset for each in piece.found if each.compacted]
                    _require_one_form(history, began, max(dropped, default=0))
                    _take(history, buffer[piece.position : piece.end])
                elif base != bases[-1] or piece.end < len(buffer):
                    where = f"{path} at byte {piece.position}"
                    _damaged(where, piece.reason, history, damaged)
        return bases[0] if bases else 0


def _damaged(where: str, why: str, history: History, damaged: dict[int, str] | None) -> None:
    """Note what is wrong with the log, where that is wanted.

    Raises:
        LogCorrupt: it is not.
    """
    number = history.fold.partition
    if damaged is None:
        raise LogCorrupt(
            f"{where}: {why}; a daemon that stands on a snapshot may not have read it yet, then "
            f"run: rlmm partition rebuild {number} (it says what mends the log); else: rlmm log "
            f"repair {number}"
        )
    damaged.setdefault(number, f"{where}: {why}")


def _require_one_form(history: History, began: int, dropped_to: int) -> None:
    """Make sure that nothing was dropped since an earlier reading: it may be the end of that.

    `began` is how far that had read; 0: there was none.

    Raises:
        NotReady: the log was compacted meanwhile.
    """
    if 0 < began < dropped_to:
        number = history.fold.partition
        raise NotReady(f"metadata partition {number} was compacted meanwhile: ask again")


def _take(history: History, buffer: bytes) -> None:
    for batch in batches.split(buffer):
        for offset, value in batches.records_of(batch):
            if offset >= history.fold.position:
                history.take(offset, value)
