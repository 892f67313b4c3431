"""A replica's log as its files tell it: scanned, held against what is known of it, made durable.

Up to the recovery point the log was on the disk, so nothing of that may be missing or damaged.
Behind it a crash may have torn any of the writes that were under way: the log ends before the first
one that does not hold. Base offsets and epochs, which no checksum covers, have to follow on one
another; and an epoch begins with its leader's own record, where the checkpoint of epochs says.
"""

from typing import Final

import msgspec
import structlog

from rlmm_daemon.adapters.quorum.files.layout import Layout, damaged, lost
from rlmm_daemon.adapters.quorum.files.segments import Segment
from rlmm_daemon.codec import scan
from rlmm_daemon.codec.kraft import line_checkpoint, log_batches, small_files
from rlmm_daemon.core.raft.log_facts import Batch, LogFacts
from rlmm_daemon.core.raft.voters import VoterHistory, VotersAt
from rlmm_daemon.domain.errors import LogCorrupt, Malformed
from rlmm_daemon.ports import disk_writes
from rlmm_daemon.ports.disk import Disk

_log = structlog.get_logger(__name__)

#: Bit 5 of the attributes, whose low byte is the second one behind the checksum.
_ATTRIBUTES_LOW_AT: Final = 22
_CONTROL: Final = 0x20


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What the files of a log hold, all of it on the disk."""

    segments: list[Segment]
    #: From the first file's first record on; without snapshots.
    log: LogFacts
    #: Batches with control records that set voters, or a version.
    changes: list[Batch]
    #: Those of the asked ends at which a batch ends.
    ends: frozenset[int]


class _File(msgspec.Struct, frozen=True):
    base: int
    data: bytes
    walked: scan.Walk


async def recover(
    disk: Disk, layout: Layout, bases: list[int], *, point: int | None, asked: frozenset[int]
) -> Found:
    """Return what the log's files hold, after making it durable.

    `point` is the recovery point; None where only Kafka ever wrote here.

    Raises:
        LogCorrupt: damage before the recovery point, or of what no crash tears.
        HistoryLost: files, or the end of one, are gone.
        OSError: not now.
    """
    seen = _Seen(layout, bases[0], asked)
    segments: list[Segment] = []
    file = await _scan(disk, layout, bases[0])
    for after in bases[1:]:
        _require_whole(layout, file, after)
        segments.append(await disk.compute(lambda: seen.take(file)))  # noqa: B023 - awaited here
        file = await _scan(disk, layout, after)
    _judge_end(layout, file, point or 0)
    segments.append(await disk.compute(lambda: seen.take(file)))
    log = LogFacts(bases[0], seen.end, 0, tuple(seen.epochs))
    await _compare_epochs(disk, layout, log, point)
    await _make_durable(disk, layout, file, point or 0)
    return Found(
        segments=segments,
        log=log.sync(log.end),
        changes=seen.changes,
        ends=frozenset(seen.ends),
    )


async def recovery_point(disk: Disk, layout: Layout) -> int | None:
    """Return up to where the log is known to be on the disk; None where ours never said.

    Raises:
        LogCorrupt: the file does not hold.
    """
    return await _offset_in(disk, layout, layout.recovery_point)


async def log_start(disk: Disk, layout: Layout) -> int | None:
    """Return where the log begins; None where ours never said.

    Raises:
        LogCorrupt: the file does not hold.
    """
    return await _offset_in(disk, layout, layout.log_start)


def voters_along(base: VotersAt, changes: list[Batch], start: int) -> VoterHistory:
    """Return the sets along a log that begins at `start` with `base` in force."""
    history = VoterHistory((base,))
    for batch in changes:
        if batch.base >= start and batch.voters is not None:
            history = history.append(set_by(batch, history))
    return history


def set_by(batch: Batch, history: VoterHistory) -> VotersAt:
    """Return the voters that a batch sets; without a version of its own, in the one in force."""
    assert batch.voters is not None, "a batch that sets voters"
    version = batch.kraft_version
    version = history.newest.kraft_version if version is None else version
    return VotersAt(batch.base, batch.voters, version)


async def _offset_in(disk: Disk, layout: Layout, path: str) -> int | None:
    try:
        data = await disk.read(path)
    except FileNotFoundError:
        return None
    try:
        return small_files.decode_offset(data, layout.topic)
    except Malformed as error:
        raise damaged(path, error.message) from error


async def _scan(disk: Disk, layout: Layout, base: int) -> _File:
    data = await disk.read(layout.segment(base))
    return _File(base, data, await disk.compute(lambda: scan.walk(data, base)))


def _require_whole(layout: Layout, file: _File, after: int) -> None:
    """Refuse a file that another follows, and that does not lead up to that one."""
    walked = file.walked
    if walked.stop < len(file.data):
        reason = walked.reason or "zeros"
        raise damaged(layout.segment(file.base), f"byte {walked.stop}: {reason}")
    if walked.next_offset != after:
        reason = f"it ends with offset {walked.next_offset}, and the next file begins with {after}"
        raise lost(layout.segment(file.base), reason)


def _judge_end(layout: Layout, file: _File, point: int) -> None:
    """Accept a torn tail with a warning, unless it was on the disk before."""
    walked, path = file.walked, layout.segment(file.base)
    if walked.next_offset < point:
        if walked.stop < len(file.data):
            raise damaged(path, f"byte {walked.stop}: {walked.reason or 'zeros'}")
        reason = f"the log ends with offset {walked.next_offset}, and was on the disk up to {point}"
        raise lost(path, reason)
    if walked.stop < len(file.data):
        _log.warning(
            "log_torn_tail_trimmed",
            partition=f"{layout.topic}-0",
            file=path,
            position=walked.stop,
            next_offset=walked.next_offset,
            torn_bytes=len(file.data) - walked.stop,
            head=file.data[walked.stop : walked.stop + 32].hex(),
            reason=walked.reason,
        )


class _Seen:
    """What the batches tell, one file after the other; no epoch is believed alone."""

    def __init__(self, layout: Layout, base: int, asked: frozenset[int]) -> None:
        self.epochs: list[tuple[int, int]] = []
        self.changes: list[Batch] = []
        self.ends = {base} & asked
        self.end = base
        self._layout = layout
        self._asked = asked

    def take(self, file: _File) -> Segment:
        """Learn of a file's batches; return where they stand.

        Raises:
            LogCorrupt: one that no crash leaves so.
        """
        segment, data = Segment(file.base), file.data
        epoch = self.epochs[-1][0] if self.epochs else None
        for found in file.walked.found:
            is_control = data[found.position + _ATTRIBUTES_LOW_AT] & _CONTROL
            if is_control or found.leader_epoch != epoch:
                self._learn(file, found, self._control(file, found) if is_control else None)
                epoch = found.leader_epoch
            end = found.next_offset
            segment.note(end, found.size)
            if end in self._asked:
                self.ends.add(end)
        self.end = segment.end
        return segment

    def _learn(self, file: _File, found: scan.FoundBatch, batch: Batch | None) -> None:
        self._note_epoch(file, found, batch)
        if batch is not None and (batch.voters or batch.kraft_version is not None):
            self.changes.append(batch)

    def _control(self, file: _File, found: scan.FoundBatch) -> Batch:
        try:
            (batch,) = log_batches.read(file.data[found.position : found.position + found.size])
        except (LogCorrupt, Malformed) as error:
            raise self._damaged(file, found, error.message) from error
        return batch

    def _note_epoch(self, file: _File, found: scan.FoundBatch, batch: Batch | None) -> None:
        newest = self.epochs[-1][0] if self.epochs else None
        epoch = found.leader_epoch
        if epoch < (newest or 0):
            raise self._damaged(file, found, f"epoch {epoch} behind epoch {newest}")
        if epoch == newest:
            return
        begins = batch is not None and log_batches.starts_epoch(batch)
        if newest is not None and not begins:
            raise self._damaged(file, found, f"epoch {epoch} begins without its leader's record")
        self.epochs.append((epoch, found.base_offset))

    def _damaged(self, file: _File, found: scan.FoundBatch, reason: str) -> LogCorrupt:
        return damaged(self._layout.segment(file.base), f"byte {found.position}: {reason}")


async def _compare_epochs(disk: Disk, layout: Layout, log: LogFacts, point: int | None) -> None:
    """Refuse epochs that are not those which the checkpoint speaks of; make it speak of all.

    It lacks one that began behind the recovery point if a crash came between the two.
    """
    path = layout.epochs
    try:
        said = [line_checkpoint.numbers(row) for row in await _epoch_rows(disk, path)]
    except FileNotFoundError:
        said = None
    except Malformed as error:
        raise damaged(path, error.message, do="remove it: it is made anew of the log") from error
    begun = dict(log.epochs)
    for epoch, start in said or ():
        if log.start <= start < log.end and begun.get(epoch) != start:
            raise damaged(path, f"epoch {epoch} begins at {start}, and not so in the log")
    if said is not None and point is not None:
        known = {epoch for epoch, _ in said}
        for epoch, start in log.epochs:
            if start < point and epoch not in known:
                raise damaged(path, f"epoch {epoch}, which begins at {start}, is not in it")
    if said != list(log.epochs):
        await disk.write_atomically(path, line_checkpoint.encode(log.epochs))


async def _epoch_rows(disk: Disk, path: str) -> list[list[str]]:
    return line_checkpoint.decode(await disk.read(path), fields=2)


async def _make_durable(disk: Disk, layout: Layout, file: _File, point: int) -> None:
    """Write again what is not known to be on the disk, cut behind it, sync file and names.

    After a sync that failed, pages that look clean may never have reached the disk.
    """
    walked = file.walked
    begin = next((each.position for each in walked.found if each.next_offset > point), walked.stop)
    opened = await disk.open(layout.segment(file.base), write=True)
    try:
        if begin < walked.stop:
            await disk_writes.write_all(opened, begin, file.data[begin : walked.stop])
        await disk_writes.cut(opened, walked.stop)
    finally:
        await opened.close()
    await disk.fsync_directory(layout.log)
