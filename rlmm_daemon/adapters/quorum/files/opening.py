"""Opening of a replica's directory: everything held against everything else, or refused."""

from collections.abc import Mapping
from typing import Final

import msgspec

from rlmm_daemon.adapters.quorum.files import identity, recovery, snapshots
from rlmm_daemon.adapters.quorum.files.layout import Layout, Names, damaged, lost, names, sweep
from rlmm_daemon.adapters.quorum.files.segments import Segment
from rlmm_daemon.codec.kraft.small_files import MetaProperties, encode_offset
from rlmm_daemon.core.raft.inputs import SavedState
from rlmm_daemon.core.raft.log_facts import BEGINNING, LogFacts, LogPoint
from rlmm_daemon.core.raft.voters import VoterHistory, VotersAt, VoterSet
from rlmm_daemon.ports.disk import Disk

#: Of a directory that joins a quorum: nobody leads until the log, or a snapshot, names the voters.
_NOBODY: Final = VotersAt(-1, VoterSet(), 1)


class OpenedLog(msgspec.Struct, frozen=True, kw_only=True):
    """A log by its files, all of it on the disk."""

    log: LogFacts
    voters: VoterHistory
    segments: list[Segment]
    #: As the files have them, whatever offset the log begins with.
    epochs: list[tuple[int, int]]


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A replica by its files."""

    meta: MetaProperties
    saved: SavedState | None
    files: OpenedLog


async def open_all(
    disk: Disk, layout: Layout, topic_id: bytes, static_voters: VoterSet | None
) -> Opened:
    """Return what a replica is; see `ReplicaFiles.open`."""
    meta = await identity.read_meta(disk, layout)
    await sweep(disk, layout)
    found = await names(disk, layout)
    version = 1 if static_voters is None else 0
    if not await identity.require_begun(disk, layout, found, topic_id):
        await identity.begin(disk, layout, topic_id, kraft_version=version)
        found = await names(disk, layout)
    if found.installing is not None:
        await snapshots.install(disk, layout, found.installing)
        found = await names(disk, layout)
    saved = await identity.read_saved(disk, layout)
    base = _NOBODY if static_voters is None else VotersAt(-1, static_voters, version)
    files = await _open_log(disk, layout, found, base)
    end = encode_offset(layout.topic, files.log.end)
    await disk.write_atomically(layout.recovery_point, end)
    return Opened(meta=meta, saved=saved, files=files)


async def _open_log(disk: Disk, layout: Layout, found: Names, base: VotersAt) -> OpenedLog:
    point = await recovery.recovery_point(disk, layout)
    start = await _start(disk, layout, found)
    found = await _without_older(disk, layout, found, start)
    said = {each: await snapshots.read(disk, layout, each) for each in found.snapshots}
    seen = await recovery.recover(
        disk, layout, found.segments, point=point, asked=frozenset(each.end for each in said)
    )
    kept = sorted(each for each in said if each.end >= start and each != BEGINNING)
    if point is None and kept and kept[-1].end > seen.log.end:
        # Kafka leaves it so when it ends between a fetched snapshot and the reset of its log.
        await snapshots.mark(disk, layout, kept[-1])
        await snapshots.install(disk, layout, kept[-1])
        return await _open_log(disk, layout, await names(disk, layout), base)
    for each in kept:
        _require_on_log(layout, each, seen)
    voters = {each: checkpoint.voters for each, checkpoint in said.items()}
    log, base = _begun(layout, seen.log, start, kept=kept, voters=voters, base=base)
    return OpenedLog(
        log=log,
        voters=recovery.voters_along(base, seen.changes, start),
        segments=seen.segments,
        epochs=list(seen.log.epochs),
    )


async def _start(disk: Disk, layout: Layout, found: Names) -> int:
    """Return where the log begins; Kafka keeps that nowhere, and begins where its files do."""
    start, first = await recovery.log_start(disk, layout), found.segments[0]
    if start is None:
        ends = sorted(each.end for each in found.snapshots if each.end >= first)
        start = ends[0] if first and ends else first
        await disk.write_atomically(layout.log_start, encode_offset(layout.topic, start))
    if first > start:
        raise lost(layout.log, f"the log begins at {start}, and its first file at {first}")
    return start


async def _without_older(disk: Disk, layout: Layout, found: Names, start: int) -> Names:
    """Remove what lies before the log's start, of which a crash may have kept any part."""
    first = max(base for base in found.segments if base <= start)
    old_segments = [base for base in found.segments if base < first]
    old_snapshots = [point for point in found.snapshots if point.end < start]
    for path in (*map(layout.segment, old_segments), *map(layout.snapshot, old_snapshots)):
        await disk.remove(path)
    return await names(disk, layout) if old_segments or old_snapshots else found


def _require_on_log(layout: Layout, point: LogPoint, seen: recovery.Found) -> None:
    """Refuse a snapshot that does not end where a batch of its epoch does."""
    path, log = layout.snapshot(point), seen.log
    if point.end > log.end:
        raise lost(path, f"it ends with offset {point.end}, and the log with {log.end}")
    before = log.epoch_at(point.end - 1)
    if point.end not in seen.ends or before not in (None, point.epoch):
        raise damaged(path, f"no batch of epoch {point.epoch} ends at {point.end} in the log")


def _begun(
    layout: Layout,
    log: LogFacts,
    start: int,
    *,
    kept: list[LogPoint],
    voters: Mapping[LogPoint, VotersAt],
    base: VotersAt,
) -> tuple[LogFacts, VotersAt]:
    """Return the log from its start on, with its snapshots, and the voters in force there."""
    for each in kept:
        log = log.with_snapshot(each)
    if start == 0:
        return log, voters.get(BEGINNING, base)
    first = next((each for each in kept if each.end == start), None)
    if first is None:
        raise lost(layout.log, f"the log begins at {start}, and no snapshot ends there")
    said = voters[first]
    return log.begin_at(first), said if said.kraft_version > 0 else base
