"""A partition's files made fit for serving: the newest one scanned, its end made durable anew.

An invalid batch with nothing valid behind it in the newest file is what a crash leaves of the one
write that was in flight: it is trimmed, loudly. Any other invalid batch is damage, and the
partition does not serve. Nor does one that ends before the end which a clean stop recorded: files,
or the end of one, are gone.
"""

from contextlib import suppress

import msgspec
import structlog
from msgspec.structs import replace

from rlmm_daemon.adapters.event_log.embedded import compacted_files, epochs, files
from rlmm_daemon.adapters.event_log.embedded.compacted_files import Compaction
from rlmm_daemon.adapters.event_log.embedded.epochs import EpochHistory
from rlmm_daemon.adapters.event_log.embedded.identity import CleanEnd
from rlmm_daemon.adapters.event_log.embedded.misplaced import require_own
from rlmm_daemon.adapters.event_log.embedded.options import Context
from rlmm_daemon.codec import scan
from rlmm_daemon.domain.errors import LogCorrupt
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.disk import Disk

_log = structlog.get_logger(__name__)


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What a partition holds, all of it durable."""

    #: First offsets of the files, ascending; none if nothing was ever written.
    bases: list[int]
    position: int
    next_offset: int
    epochs: EpochHistory
    compaction: Compaction = compacted_files.NEVER


async def recover(
    context: Context,
    directory: str,
    partition: MetadataPartition,
    clean: CleanEnd | None,
    *,
    newest_epoch: int,
    partition_count: int,
) -> Recovered:
    """Return where the partition, one of so many, ends, after making that end durable.

    `newest_epoch` was begun last, by what the log's state says.

    Raises:
        LogCorrupt: an invalid batch that is not a torn tail, or files are gone.
        OSError: not now.
    """
    bases = await files.segments(context.disk, directory)
    if not bases:
        _require_end(directory, clean, 0)
        return Recovered(bases=[], position=0, next_offset=0, epochs=EpochHistory())
    await files.sweep(context.disk, directory)
    compaction = await compacted_files.finish(context.disk, directory)
    if compaction is not compacted_files.NEVER:
        bases = await files.segments(context.disk, directory)
    found = await _recover(
        context,
        directory,
        partition,
        clean,
        bases=bases,
        newest_epoch=newest_epoch,
        partition_count=partition_count,
    )
    return replace(found, compaction=compaction)


async def _recover(
    context: Context,
    directory: str,
    partition: MetadataPartition,
    clean: CleanEnd | None,
    *,
    bases: list[int],
    newest_epoch: int,
    partition_count: int,
) -> Recovered:
    disk = context.disk
    if clean is not None and clean.base_offset == bases[-1]:
        path = files.segment_path(directory, bases[-1])
        if await _size(disk, path) == clean.size:
            history = EpochHistory(clean.epochs)
            return Recovered(
                bases=bases, position=clean.size, next_offset=clean.next_offset, epochs=history
            )
    path = files.segment_path(directory, bases[-1])
    buffer = await files.read_segment(disk, path)
    walked = scan.walk(buffer, bases[-1])
    if clean is not None and walked.next_offset < clean.next_offset:
        require_own(path, buffer, walked.found, partition, partition_count=partition_count)
    _require_end(directory, clean, walked.next_offset)
    if walked.reason:
        _judge(buffer, walked, path, partition)
    history = await _history(disk, directory, bases, walked, newest_epoch=newest_epoch)
    await _make_durable(disk, directory, path, buffer, walked=walked)
    return Recovered(
        bases=bases, position=walked.stop, next_offset=walked.next_offset, epochs=history
    )


def _require_end(directory: str, clean: CleanEnd | None, next_offset: int) -> None:
    """Raise LogCorrupt if a partition ends before its last clean stop."""
    if clean is not None and next_offset < clean.next_offset:
        path = files.segment_path(directory, clean.base_offset)
        reason = ended_before(clean, next_offset)
        raise LogCorrupt(
            f"{path}: {reason}; put back what is gone while the daemon is stopped (`rlmm doctor` "
            "says whether directories changed places), else `rlmm log repair` ends it",
            file=path,
            reason=reason,
        )


def ended_before(clean: CleanEnd, next_offset: int) -> str:
    """Say what a partition lacks that ends before its last clean stop."""
    return (
        f"the log ended with offset {clean.next_offset} when it was stopped, and what is there "
        f"ends with {next_offset}"
    )


def _judge(buffer: bytes, walked: scan.Walk, path: str, partition: MetadataPartition) -> None:
    """Accept a torn tail with a warning.

    Raises:
        LogCorrupt: something valid stands behind the invalid batch.
    """
    behind = scan.valid_behind(buffer, walked.stop, walked.next_offset)
    if behind is not None:
        raise corrupt(path, walked.stop, walked.reason)
    torn = buffer[walked.stop :].rstrip(b"\0")
    _log.warning(
        "log_torn_tail_trimmed",
        partition=partition,
        file=path,
        position=walked.stop,
        next_offset=walked.next_offset,
        torn_bytes=len(torn),
        head=torn[:32].hex(),
        reason=walked.reason,
    )


async def _make_durable(
    disk: Disk, directory: str, path: str, buffer: bytes, *, walked: scan.Walk
) -> None:
    """Write the last batch again, cut behind it, and sync file and names.

    After a sync that failed and a restart, pages that look clean may never have reached the disk.
    Only the last batch can be such: each one was written after the sync of the one before.
    """
    file = await disk.open(path, write=True)
    try:
        if walked.found:
            last = walked.found[-1]
            await files.write_all(file, last.position, buffer[last.position : walked.stop])
        await files.cut(file, walked.stop)
    finally:
        await file.close()
    await disk.fsync_directory(directory)


async def _history(
    disk: Disk, directory: str, bases: list[int], newest: scan.Walk, *, newest_epoch: int
) -> EpochHistory:
    """Return the epochs: of sealed files from the checkpoint, else by reading them all."""
    entries = None
    if len(bases) > 1:
        with suppress(FileNotFoundError):
            entries = epochs.decode(await disk.read(f"{directory}/{files.EPOCHS_NAME}"))
    history = EpochHistory(entry for entry in entries or () if entry[1] < bases[-1])
    batches: list[scan.FoundBatch] = []
    for base in bases[:-1] if entries is None else ():
        path = files.segment_path(directory, base)
        batches += scan.walk(await files.read_segment(disk, path), base).found
    rows = [(each.leader_epoch, each.base_offset) for each in (*batches, *newest.found)]
    history.learn(rows, newest_epoch=newest_epoch)
    return history


async def newest_generation(disk: Disk, home: str) -> int:
    """Return the newest generation that any intact batch of the log carries, -1 if none does.

    Changes nothing: of a compaction that a crash cut short, new and old files are looked at alike.
    """
    newest = -1
    for partition in await files.partitions(disk, home):
        directory = files.partition_directory(home, partition)
        bases = await files.segments(disk, directory)
        if not bases:
            continue
        path = files.segment_path(directory, bases[-1])
        walked = scan.walk(await files.read_segment(disk, path), bases[-1])
        history = await _history(disk, directory, bases, walked, newest_epoch=epochs.EPOCH_MAX)
        newest = max(newest, history.latest)
    return newest


async def _size(disk: Disk, path: str) -> int:
    file = await disk.open(path)
    try:
        return await file.size()
    finally:
        await file.close()


def corrupt(path: str, position: int, reason: str) -> LogCorrupt:
    """Return the error that names the place, the reason and the command that ends it."""
    return LogCorrupt(
        f"invalid batch in {path} at {position}: {reason}; `rlmm log repair` ends it",
        file=path,
        position=position,
        reason=reason,
    )
