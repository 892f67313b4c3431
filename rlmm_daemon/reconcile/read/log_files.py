"""The embedded log's files, read beside a running daemon and never written."""

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from typing import NamedTuple

from rlmm_daemon.adapters.event_log.embedded import compacted_files, files
from rlmm_daemon.adapters.event_log.embedded.epochs import EPOCH_MAX, EpochHistory
from rlmm_daemon.adapters.event_log.embedded.identity import read_identity
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec import batches, scan
from rlmm_daemon.config import Config
from rlmm_daemon.domain.errors import LogCorrupt
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import EpochEnd, LogIdentity, LogRange, ranges_without
from rlmm_daemon.reconcile.errors import Incomplete


class Records(NamedTuple):
    """Some of the log in a row."""

    #: Offset and value of each.
    pairs: list[tuple[int, bytes | None]]
    #: Offsets without a record that the log doesn't vouch for.
    lost: tuple[LogRange, ...] = ()


async def records(
    config: Config, number: int, begin: int, end: int
) -> AsyncGenerator[Records, None]:
    """Yield what offsets [begin, end) of one metadata partition hold.

    What a compaction dropped is not among it, and not lost. What two files hold is read once, as
    the daemon does: a repair leaves such where a compaction was not put in its place.

    Raises:
        Incomplete: the first of them are gone.
        LogCorrupt: a file is damaged, or ends before the next one begins.
    """
    disk = LocalDisk()
    try:
        home = files.partition_directory(config.event_log_directory, MetadataPartition(number))
        found = await compacted_files.segment_files(disk, home)
        bases = [base for base, _ in found]
        if not bases or bases[0] > begin:
            raise Incomplete(f"metadata partition {number}: offset {begin} is gone by now")
        for (base, path), after in zip(found, [*bases[1:], end], strict=True):
            if after <= begin or base >= end:
                continue
            buffer = await compacted_files.read(disk, path)
            walked = scan.walk(buffer, base)
            if walked.next_offset < min(after, end):
                reason = walked.reason or "the file ends early"
                raise _corrupt(number, reason, home)
            for batch in batches.split(buffer[: walked.stop]):
                if begin < batch.next_offset and batch.base_offset < end:
                    yield _within(batch, begin, end)
                    begin = batch.next_offset
    finally:
        disk.close()


async def compactions(config: Config, numbers: Iterable[int]) -> Mapping[int, tuple[int, int]]:
    """Return how often each metadata partition was compacted, and up to which offset.

    Those that never were are left out.
    """
    disk = LocalDisk()
    try:
        home = config.event_log_directory
        directories = {n: files.partition_directory(home, MetadataPartition(n)) for n in numbers}
        found = {n: await compacted_files.last(disk, each) for n, each in directories.items()}
    finally:
        disk.close()
    return {number: (each.count, each.until) for number, each in found.items() if each.count}


def _within(batch: batches.Batch, begin: int, end: int) -> Records:
    pairs = [pair for pair in batches.records_of(batch) if begin <= pair[0] < end]
    first, behind = max(begin, batch.base_offset), min(end, batch.next_offset)
    if batch.is_compacted:
        return Records(pairs)
    # The log itself writes dense batches: a repair leaves others over what it could not save.
    return Records(pairs, ranges_without(first, behind, (offset for offset, _ in pairs)))


async def identity(config: Config) -> LogIdentity | None:
    """Return whose log it is, None if there is none."""
    disk = LocalDisk()
    try:
        return await read_identity(disk, config.event_log_directory)
    finally:
        disk.close()


async def ranges(config: Config) -> tuple[LogIdentity, Mapping[int, LogRange]]:
    """Return whose log it is, and where each metadata partition begins and ends.

    Raises:
        Incomplete: there is none.
        LogCorrupt: events stand behind a damaged batch of a newest file.
    """
    disk = LocalDisk()
    try:
        home = config.event_log_directory
        whose = await read_identity(disk, home)
        if whose is None:
            raise Incomplete(f"there is no event log in {home}")
        return whose, {
            number: await _range(disk, home, MetadataPartition(number))
            for number in range(whose.partition_count)
        }
    finally:
        disk.close()


async def epoch_ends(
    config: Config, pairs: Collection[tuple[int, int]]
) -> Mapping[tuple[int, int], EpochEnd]:
    """Return what the log says of each (metadata partition, epoch)."""
    disk = LocalDisk()
    try:
        histories = {n: await _generations(disk, config, n) for n, _ in pairs}
    finally:
        disk.close()
    return {(n, epoch): histories[n][0].end_of(epoch, histories[n][1]) for n, epoch in pairs}


def _corrupt(number: int, reason: str, file: str) -> LogCorrupt:
    """Return the error: a daemon may be ready all the same, and `log repair` then mends nothing."""
    return LogCorrupt(
        f"metadata partition {number}: {reason}; where the daemon is ready, as it went on from a "
        f"snapshot, it has to read the log again first: rlmm partition rebuild {number}, and then "
        "what that names",
        file=file,
    )


async def _range(disk: LocalDisk, home: str, number: MetadataPartition) -> LogRange:
    directory = files.partition_directory(home, number)
    found = await compacted_files.segment_files(disk, directory)
    if not found:
        return LogRange(start=0, end=0)
    base, path = found[-1]
    newest = await files.read_segment(disk, path)
    walked = scan.walk(newest, base)
    behind = scan.valid_behind(newest, walked.stop, walked.next_offset) if walked.reason else None
    if behind is not None:
        reason = (
            f"a batch at offset {walked.next_offset} is damaged, and others follow at "
            f"{behind.base_offset} ({walked.reason})"
        )
        raise _corrupt(number, reason, path)
    # Else what follows the last valid batch is a write in flight, so it is not in the log yet.
    return LogRange(start=found[0][0], end=walked.next_offset)


async def _generations(disk: LocalDisk, config: Config, number: int) -> tuple[EpochHistory, int]:
    """Return which generation wrote what, read from every batch, and where the log ends."""
    home = files.partition_directory(config.event_log_directory, MetadataPartition(number))
    history, end = EpochHistory(), 0
    for base, path in await compacted_files.segment_files(disk, home):
        walked = scan.walk(await compacted_files.read(disk, path), base)
        found = [(each.leader_epoch, each.base_offset) for each in walked.found]
        history.learn(found, newest_epoch=EPOCH_MAX)  # an epoch that is damaged is passed over
        end = walked.next_offset
    return history, end
