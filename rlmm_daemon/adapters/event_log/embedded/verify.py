"""Verification of an embedded log: every batch of every file is read, nothing is changed."""

from collections.abc import Iterator
from itertools import islice
from typing import Literal

import msgspec

from rlmm_daemon.adapters.event_log.embedded import compacted_files, files
from rlmm_daemon.adapters.event_log.embedded.identity import clean_ends
from rlmm_daemon.adapters.event_log.embedded.misplaced import owner_of
from rlmm_daemon.adapters.event_log.embedded.recovery import ended_before
from rlmm_daemon.codec import scan
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.disk import Disk
from rlmm_daemon.ports.event_log import LogRange


class FileFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One place that does not hold what it should."""

    file: str
    position: int
    reason: str
    #: A torn tail is trimmed by the next start, or is a write in flight; corrupt needs a repair. A
    #: misplaced file is another partition's, and a person puts it where it belongs.
    kind: Literal["corrupt", "torn_tail", "misplaced"]


class PartitionReport(msgspec.Struct, kw_only=True):
    """One partition as its files are now."""

    partition: MetadataPartition
    range: LogRange = msgspec.field(default_factory=lambda: LogRange(start=0, end=0))
    files: int = 0
    batches: int = 0
    #: Offsets that valid batches cover.
    records: int = 0
    #: Those of them whose events compactions dropped.
    dropped: int = 0
    #: Zeros behind the newest file's end: room made ahead, cut off by a clean stop or a seal.
    preallocated_bytes: int = 0
    findings: list[FileFinding] = msgspec.field(default_factory=list)


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A run of valid batches, or the invalid bytes before the next one."""

    position: int
    end: int
    next_offset: int
    found: list[scan.FoundBatch]
    #: Empty for a valid run.
    reason: str


async def verify(disk: Disk, directory: str, partition_count: int) -> list[PartitionReport]:
    """Return a report per partition, ascending; takes no lock, so a daemon may be writing."""
    ended = await clean_ends(disk, directory)  # first: they go before anything is written
    numbers = {*await files.partitions(disk, directory), *ended}
    reports = [
        await verify_partition(disk, directory, partition, partition_count)
        for partition in sorted(numbers)
    ]
    mixed_up = any(each.kind == "misplaced" for report in reports for each in report.findings)
    for report in reports:
        clean = ended.get(report.partition)
        # Where directories changed places, what one lacks is in the other: nothing to repair.
        if clean is not None and report.range.end < clean.next_offset and not mixed_up:
            home = files.partition_directory(directory, report.partition)
            missing = FileFinding(
                file=files.segment_path(home, clean.base_offset),
                position=0,
                reason=ended_before(clean, report.range.end),
                kind="corrupt",
            )
            report.findings.append(missing)
    return reports


async def verify_partition(
    disk: Disk, home: str, partition: MetadataPartition, partition_count: int
) -> PartitionReport:
    """Return the report of one of so many partitions."""
    directory = files.partition_directory(home, partition)
    found = await compacted_files.segment_files(disk, directory)
    bases = [base for base, _ in found]
    report = PartitionReport(partition=partition, files=len(bases))
    following: list[int | None] = [*bases[1:], None]
    end = bases[0] if bases else 0
    for (base, path), after in zip(found, following, strict=False):
        buffer = await compacted_files.read(disk, path)
        end = _judge_file(report, path, buffer, base, after=after)
        report.findings += islice(
            _strangers(path, buffer, base, partition, partition_count=partition_count), 1
        )
    if bases:
        report.range = LogRange(start=bases[0], end=end)
    return report


def pieces(buffer: bytes, base_offset: int, *, end: int | None = None) -> Iterator[Piece]:
    """Yield what a segment file holds, valid and invalid runs in turn; not the zeros at its end.

    `end` is the offset behind the file's last, where another file or the writer says it.
    """
    position, offset = 0, base_offset
    while position < len(buffer):
        walked = scan.walk(buffer, offset, begin=position)
        found, stop, offset = walked.found, walked.stop, walked.next_offset
        if found:
            yield Piece(position=position, end=stop, next_offset=offset, found=found, reason="")
        if not walked.reason:
            return
        behind = scan.valid_behind(buffer, stop, offset, end=end)
        position = len(buffer) if behind is None else behind.position
        offset = offset if behind is None else behind.base_offset
        yield Piece(position=stop, end=position, next_offset=offset, found=[], reason=walked.reason)


def _strangers(
    path: str, buffer: bytes, base: int, partition: MetadataPartition, *, partition_count: int
) -> Iterator[FileFinding]:
    """Yield each batch of another metadata partition, whose events every reader passes over."""
    for piece in pieces(buffer, base):
        for found in piece.found:
            owner = owner_of(buffer, found, partition_count)
            if owner not in (None, partition):
                reason = f"the events from offset {found.base_offset} on are of partition {owner}"
                yield FileFinding(
                    file=path, position=found.position, reason=reason, kind="misplaced"
                )


def _judge_file(
    report: PartitionReport, path: str, buffer: bytes, base: int, *, after: int | None
) -> int:
    """Add what one file holds to the report, and return the offset at its end.

    One may go on beyond the next one's beginning: a compaction wrote it, and not all that it was
    to replace is gone (`compacted_files.give_up`). Readers pass the others by.
    """
    offset, end = base, 0
    for piece in pieces(buffer, base, end=after):
        report.batches += len(piece.found)
        report.records += sum(each.next_offset - each.base_offset for each in piece.found)
        report.dropped += sum(each.dropped(buffer) for each in piece.found if each.compacted)
        offset, end = piece.next_offset, piece.end
        if piece.reason:
            torn = after is None and piece.end == len(buffer)
            report.findings.append(
                FileFinding(
                    file=path,
                    position=piece.position,
                    reason=piece.reason,
                    kind="torn_tail" if torn else "corrupt",
                )
            )
    if after is None:
        report.preallocated_bytes = len(buffer) - end
        return offset
    if offset < after or end != len(buffer):
        reason = (
            f"the file ends with offset {offset}, the next begins with {after}"
            if offset < after
            else "zeros follow the last batch of a file that is no longer written"
        )
        report.findings.append(FileFinding(file=path, position=end, reason=reason, kind="corrupt"))
    return after
