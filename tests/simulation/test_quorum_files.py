"""Lives of a replica's files; and no sync of theirs that could be left out unnoticed."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
import structlog

from rlmm_daemon.adapters.quorum.files import replica_files, segments, snapshots
from rlmm_daemon.adapters.quorum.files.replica_files import ReplicaFiles
from rlmm_daemon.adapters.quorum.files.segments import Segment, Segments, make_segment
from rlmm_daemon.adapters.quorum.files.snapshots import Snapshots
from rlmm_daemon.codec.kraft.small_files import encode_offset
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.core.raft.voters import VoterHistory
from tests.simulation.quorum.files import call_sites, hunt
from tests.simulation.quorum.left_out import Plant

LOG: Final = "__rlmm_quorum-0"
#: Of a hunt, from where a bug was found first.
SEEDS: Final = 600
#: Where hunts begin that would take long otherwise; recorded anew when histories change.
FIRST: Final = {
    ("fdatasync", "Segments.cut", "N.log"): 26,
    ("fsync_directory", "Segments.cut", LOG): 36,
    ("fsync_directory", "Snapshots.keep", LOG): 890,
    ("fsync_directory", "_make_durable", LOG): 272,
}
#: Each call that makes something durable, or writes it again where nobody can know.
SYNCS: Final = (
    ("fdatasync", "Segments._sync_newest", "N.log"),
    ("fdatasync", "Segments.cut", "N.log"),
    ("fdatasync", "Snapshots.keep", "N.checkpoint.part"),
    ("fdatasync", "SnapshotWriter.end", "N.checkpoint.part"),
    ("fdatasync", "_make_durable", "N.log"),
    ("fsync_directory", "Segments.cut", LOG),
    ("fsync_directory", "Snapshots.keep", LOG),
    ("fsync_directory", "Snapshots.name", LOG),
    ("fsync_directory", "_make_durable", LOG),
    ("fsync_directory", "make_segment", LOG),
    ("write_atomically", "ReplicaFiles._move_point", "recovery-point-offset-checkpoint"),
    ("write_atomically", "ReplicaFiles._say_epochs", "leader-epoch-checkpoint"),
    ("write_atomically", "ReplicaFiles.begin_at", "log-start-offset-checkpoint"),
    ("write_atomically", "_compare_epochs", "leader-epoch-checkpoint"),
    ("write_atomically", "begin", "leader-epoch-checkpoint"),
    ("write_atomically", "begin", "log-start-offset-checkpoint"),
    ("write_atomically", "begin", "partition.metadata"),
    ("write_atomically", "begin", "recovery-point-offset-checkpoint"),
    ("write_atomically", "format_replica", "N.checkpoint"),
    ("write_atomically", "format_replica", "meta.properties"),
    ("write_atomically", "install", "leader-epoch-checkpoint"),
    ("write_atomically", "install", "log-start-offset-checkpoint"),
    ("write_atomically", "install", "recovery-point-offset-checkpoint"),
    ("write_atomically", "open_all", "recovery-point-offset-checkpoint"),
    ("write_atomically", "save", "quorum-state"),
)
#: Of an installed snapshot's name: the first record behind it begins an epoch, and the checkpoint
#: of epochs takes the name along to the disk.
SPARE: Final = {("fsync_directory", "install", LOG)}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the recovery point move within a few records, and reads meet files."""
    monkeypatch.setattr(replica_files, "_POINT_BYTES", 1_000)
    monkeypatch.setattr(segments, "_RECENT_BYTES", 500)
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.configure(**before)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, 200, 25))
def test_files_keep_what_they_were_told_to(first: int) -> None:
    assert hunt(None, range(first, first + 25)) is None


@pytest.mark.timeout(300)
def test_each_sync_is_known() -> None:
    seen = {site for site in call_sites(range(60)) if site[0] != "pwrite"}
    assert seen == {*SYNCS, *SPARE}


def seeds(first: int = 0) -> range:
    return range(first, first + SEEDS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("site", SYNCS, ids=" ".join)
def test_no_sync_can_be_left_out(site: tuple[str, str, str]) -> None:
    kind, caller, name = site
    assert hunt(Plant(kind, caller, re.escape(name)), seeds(FIRST.get(site, 0))) is not None


@pytest.mark.timeout(300)
def test_what_was_found_is_written_again() -> None:
    assert hunt(Plant("pwrite", "_make_durable"), seeds()) is not None


async def start_moves_last(self: ReplicaFiles, oldest: LogPoint) -> None:
    async with self._changing():
        self.log, self.voters = self.log.begin_at(oldest), self.voters.begin_at(oldest.end)
        await self._segments.drop_before(oldest.end)
        await self._snapshots.remove_before(oldest.end)
        start = encode_offset(self._layout.topic, oldest.end)
        await self._disk.write_atomically(self._layout.log_start, start)


async def sync_again(self: Segments) -> None:
    await self._newest.fdatasync()


async def roll_unsynced(self: Segments) -> None:
    async with self._changing:
        await make_segment(self._disk, self._layout, self.end)
        await self._newest.close()
        self._segments.append(Segment(self.end))
        self._newest = await self._open_newest()


def log_goes_first(
    keep: Callable[[Snapshots, LogPoint], Awaitable[Any]],
) -> Callable[[Snapshots, LogPoint], Awaitable[Any]]:
    async def kept(self: Snapshots, point: LogPoint) -> Any:
        await snapshots._clear(self._disk, self._layout, but=self._layout.part(point))
        return await keep(self, point)

    return kept


async def read_once(
    self: Segments, offset: int, end: int, bytes_max: int, *, epochs: list[tuple[int, int]]
) -> bytes:
    if not self._segments[0].base <= offset < min(end, self.end):
        return b""
    return await self._read(offset, end, bytes_max, epochs)


@asynccontextmanager
async def looked_early(self: ReplicaFiles) -> AsyncIterator[None]:
    async with self._changing(), self._syncing:
        yield


async def point_never_falls(self: ReplicaFiles, end: int) -> None:
    if end >= self._point:
        point = encode_offset(self._layout.topic, end)
        await self._disk.write_atomically(self._layout.recovery_point, point)
        self._point = end


async def epochs_are_said_late(self: ReplicaFiles) -> None:
    self._epochs_said = list(self._epochs)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("owner", "name", "planted", "first"),
    [
        pytest.param(VoterHistory, "truncate", lambda self, _: self, 0, id="voters_not_reverted"),
        pytest.param(ReplicaFiles, "begin_at", start_moves_last, 154, id="log_gone_before_start"),
        pytest.param(Segments, "_sync_newest", sync_again, 690, id="failed_sync_is_tried_again"),
        pytest.param(Segments, "_roll", roll_unsynced, 0, id="roll_without_sync"),
        pytest.param(Snapshots, "keep", log_goes_first(Snapshots.keep), 0, id="log_gone_first"),
        pytest.param(ReplicaFiles, "_alone", looked_early, 1230, id="cut_after_failed_sync"),
        pytest.param(Segments, "read", read_once, 0, id="read_through_a_cut"),
        pytest.param(ReplicaFiles, "_move_point", point_never_falls, 0, id="point_behind_a_cut"),
        pytest.param(ReplicaFiles, "_say_epochs", epochs_are_said_late, 0, id="epochs_not_said"),
    ],
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, planted: object, first: int
) -> None:
    monkeypatch.setattr(owner, name, planted)
    assert hunt(None, seeds(first)) is not None
