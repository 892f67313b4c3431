"""A slice of the log is read whole or it is an error."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog, compacted_files, files
from rlmm_daemon.adapters.event_log.embedded.compacted_files import Compaction
from rlmm_daemon.adapters.event_log.embedded.repair import repair
from rlmm_daemon.codec import batches
from rlmm_daemon.codec.snapshot import Header
from rlmm_daemon.config import Config, load, parse
from rlmm_daemon.domain.errors import LogCorrupt, RlmmError, StorageUnavailable
from rlmm_daemon.domain.ids import MetadataPartition, TopicId, uuid_text
from rlmm_daemon.domain.segment import SegmentState
from rlmm_daemon.ports.disk import Disk
from rlmm_daemon.ports.event_log import (
    NO_EPOCH,
    EpochEnd,
    LogBatch,
    LogIdentity,
    LogRange,
    LogTrimmed,
    LogTruncated,
)
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.read import log_files, log_reading, snapshots
from rlmm_daemon.reconcile.read.log_files import Records
from rlmm_daemon.reconcile.read.log_reading import LogSlice
from rlmm_daemon.reconcile.read.snapshots import SnapshotCover
from rlmm_daemon.reconcile.schema import RowKind
from tests.reconcile.world import PARTITIONS, World
from tests.support.compacting import compacted

NOW = 1_795_000_000_000
KAFKA = """
[daemon]
broker_id = 1
state_dir = "/nowhere/state"
log_dirs = ["/nowhere/logs"]
[socket]
path = "/nowhere/rlmm.sock"
[event_log]
kind = "kafka"
[event_log.kafka]
bootstrap = ["127.0.0.1:9092"]
"""


@pytest.fixture
def log(tmp_path: Path) -> tuple[Config, LogSlice, list[Path]]:
    """Return a log of several files, the whole of it as one slice, and its files."""
    world = World(tmp_path, NOW, segment_bytes=4_096)
    for _ in range(40):
        world.live()
    world.write_log()
    ((number, end),) = world.ends.items()
    files = sorted(file for file in (tmp_path / "log").rglob("*.log") if file.stat().st_size)
    assert len(files) > 2
    part = LogSlice(number=number, begin=0, end=end, partition_count=PARTITIONS)
    return load(world.write_local()), part, files


def kinds(config: Config, part: LogSlice) -> list[int]:
    return [kind for rows in log_reading.read(config, part) for kind in rows["kind"].to_pylist()]


def test_every_event_is_read_and_the_last_row_says_how_far(
    log: tuple[Config, LogSlice, list[Path]],
) -> None:
    config, part, _ = log
    assert kinds(config, part) == [RowKind.SEGMENT] * part.end + [RowKind.READ]


@pytest.mark.parametrize("at", [0, 1, -1])
def test_a_file_that_goes_after_the_ends_were_asked_for_is_an_error(
    log: tuple[Config, LogSlice, list[Path]], at: int
) -> None:
    config, part, files = log
    files[at].unlink()
    with pytest.raises(RlmmError, match="metadata partition"):
        kinds(config, part)


def test_a_log_whose_files_all_go_is_an_error(log: tuple[Config, LogSlice, list[Path]]) -> None:
    config, part, files = log
    for file in files:
        file.unlink()
    with pytest.raises(Incomplete, match="is gone by now"):
        kinds(config, part)


def test_a_log_that_does_not_answer_is_an_error(
    log: tuple[Config, LogSlice, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, part, _ = log
    comes_back, ended = threading.Event(), threading.Event()

    async def silent(*_: object) -> AsyncGenerator[Records, None]:
        try:
            await asyncio.to_thread(comes_back.wait, 60)
            yield Records([])
        finally:
            ended.set()

    monkeypatch.setattr(log_reading, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(log_reading, "_records", silent)
    with pytest.raises(Incomplete, match="did not answer"):
        kinds(config, part)
    comes_back.set()
    assert ended.wait(60), "its thread goes on"


def test_a_log_that_is_slow_is_not_a_silent_one(
    log: tuple[Config, LogSlice, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, part, _ = log

    async def slow(*_: object) -> AsyncGenerator[Records, None]:
        for offset in range(5):
            yield Records([(offset, None)] * (offset % 2))

    monkeypatch.setattr(log_reading, "_HAND_SECONDS", 0.0)
    monkeypatch.setattr(log_reading, "_records", slow)
    told = [len(rows) for rows in log_reading.read(config, part)]
    assert told == [1, 1, 1], "each record is told when it comes, and the end"


def test_a_log_that_answers_and_has_nothing_is_a_silent_one(
    log: tuple[Config, LogSlice, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end went back since it was asked for: every long poll is answered, with no record."""
    config, part, _ = log
    ended = threading.Event()

    async def empty(*_: object) -> AsyncGenerator[Records, None]:
        try:
            for _poll in range(1_000):
                yield Records([])
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    monkeypatch.setattr(log_reading, "_HAND_SECONDS", 0.0)
    monkeypatch.setattr(log_reading, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(log_reading, "_records", empty)
    with pytest.raises(Incomplete, match="did not answer"):
        kinds(config, part)
    assert ended.wait(60), "its thread goes on"


def test_a_slice_that_is_a_snapshots_says_of_when_it_is(
    log: tuple[Config, LogSlice, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, part, _ = log
    header = Header(
        cluster_id="c", topic_id=TopicId(bytes(16)), metadata_partition=part.number,
        partition_count=PARTITIONS, partitioner_id=0, next_offset=9, leader_epoch=0,
        created_at_ms=7,
    )  # fmt: skip
    cover = SnapshotCover(path="x.snapshot", header=header)
    monkeypatch.setattr(snapshots, "covers", lambda *_: {part.number: cover})
    first, *others = log_reading.slices(config, log_reading.view(config), 1_000)
    assert (first.snapshot, first.end, first.snapshot_ms) == ("x.snapshot", 9, 7)
    assert {each.snapshot_ms for each in others} == {None}


class Wavering:
    """A log of which some partitions have no leader when it is asked for the first times."""

    identity = LogIdentity(cluster_id="c", topic_id=TopicId(bytes(16)), partition_count=3)

    def __init__(self, *, silent: int) -> None:
        self._silent = silent

    async def end_offsets(self, numbers: list[int]) -> dict[int, LogRange]:
        known = {number: LogRange(start=0, end=7) for number in numbers}
        if self._silent > 0:
            self._silent -= 1
            known.pop(1, None)
        return known


@pytest.mark.parametrize(("silent", "told"), [(0, {0, 1, 2}), (2, {0, 1, 2}), (10**9, {0, 2})])
async def test_a_partition_without_a_leader_for_a_moment_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, silent: int, told: set[int]
) -> None:
    log = Wavering(silent=silent)

    @asynccontextmanager
    async def opened(_config: object) -> AsyncIterator[Wavering]:
        yield log

    monkeypatch.setattr(log_reading, "opened", opened)
    monkeypatch.setattr(log_reading, "VIEW_SECONDS", 60.0 if silent < 10 else 0.1)
    monkeypatch.setattr(log_reading, "PAUSE_SECONDS", 0.01)
    seen = await log_reading._view(parse(KAFKA))
    assert set(seen.ranges) == told


@pytest.fixture
def moving(monkeypatch: pytest.MonkeyPatch) -> "Moving":
    log = Moving()

    @asynccontextmanager
    async def opened(_config: object) -> AsyncIterator[Moving]:
        yield log

    monkeypatch.setattr(log_reading, "opened", opened)
    monkeypatch.setattr(log_reading, "PAUSE_SECONDS", 0.01)
    return log


class Moving:
    """A log of ten events in which a partition loses its leader again and again."""

    identity = LogIdentity(cluster_id="c", topic_id=TopicId(bytes(16)), partition_count=3)

    def __init__(self) -> None:
        self.followed: list[int] = []
        self.epochs: list[int] = []
        #: What each follower meets at its end.
        self.ends: list[Exception] = []
        self.silent = 0
        #: By the next offset of the answer that tells it.
        self.lost: dict[int, LogRange] = {}

    async def follow(
        self, _number: int, begin: int, *, epoch: int
    ) -> AsyncGenerator[LogBatch, None]:
        self.followed.append(begin)
        self.epochs.append(epoch)
        end = self.ends.pop(0) if self.ends else None
        upto = 10 if end is None else min(begin + 3, 10)
        for offset in range(begin, upto):
            lost = self.lost.get(offset + 1)
            yield LogBatch(
                next_offset=offset + 1,
                leader_epoch=1,
                records=[(offset, None)],
                range=LogRange(start=0, end=10),
                unvouched=(lost,) if lost else (),
            )
        if end is not None:
            raise end

    async def epoch_end(self, number: int, epoch: int) -> EpochEnd:
        if number == 1 and self.silent > 0:
            self.silent -= 1
            raise StorageUnavailable("it has no leader")
        return EpochEnd(epoch=epoch, end_offset=7)


def test_each_slice_is_of_the_log_that_told_its_end(
    log: tuple[Config, LogSlice, list[Path]], moving: Moving
) -> None:
    """One that was made anew since may have as many events, of which nobody knows anything."""
    config, part, _ = log
    (mine,) = log_reading.slices(config, log_reading.view(config), 10**6)
    assert kinds(config, mine) == kinds(config, part)
    other = uuid_text(TopicId(bytes(range(16))))
    for asked, each in ((config, replace(mine, topic_id=other)), (parse(KAFKA), mine)):
        with pytest.raises(Incomplete, match="made anew"):
            kinds(asked, each)
    assert kinds(parse(KAFKA), replace(PART, topic_id=uuid_text(moving.identity.topic_id)))


PART = LogSlice(number=1, begin=2, end=10, partition_count=3)


def test_a_partition_that_loses_its_leader_is_followed_again_from_where_it_was_left(
    moving: Moving,
) -> None:
    moving.ends = [StorageUnavailable("no leader")] * 2
    rows = [row for each in log_reading.read(parse(KAFKA), PART) for row in each.to_pylist()]
    assert [row["offset"] for row in rows] == [*range(2, 10), 10]
    assert rows[-1]["kind"] == RowKind.READ
    assert moving.followed == [2, 5, 8]
    assert moving.epochs == [NO_EPOCH, 1, 1], "each is held against where the last one ended"


@pytest.mark.parametrize(
    ("end", "error"),
    [(LogTruncated("cut"), "cut"), (LogTrimmed(7), "7"), (StorageUnavailable("for good"), "good")],
)
def test_a_log_that_moved_or_stays_away_is_an_error(
    moving: Moving, monkeypatch: pytest.MonkeyPatch, end: Exception, error: str
) -> None:
    moving.ends = [StorageUnavailable("no leader"), *[end] * 10_000]
    monkeypatch.setattr(log_reading, "VIEW_SECONDS", 0.2)
    stuck = LogSlice(number=1, begin=2, end=1_000, partition_count=3)
    with pytest.raises(RlmmError, match=error):
        [*log_reading.read(parse(KAFKA), stuck)]


@pytest.mark.parametrize(("silent", "told"), [(0, {0, 1}), (2, {0, 1}), (10**9, {0})])
def test_an_epoch_of_a_partition_without_a_leader_is_asked_for_again_and_then_left_out(
    moving: Moving, monkeypatch: pytest.MonkeyPatch, silent: int, told: set[int]
) -> None:
    moving.silent = silent
    monkeypatch.setattr(log_reading, "VIEW_SECONDS", 60.0 if silent < 10 else 0.1)
    found = log_reading.epoch_ends(parse(KAFKA), [(0, 4), (1, 4), (1, 5)])
    assert {number for number, _ in found} == told
    assert set(found.values()) <= {EpochEnd(epoch=4, end_offset=7), EpochEnd(epoch=5, end_offset=7)}


def test_offsets_that_nobody_vouches_for_are_told_with_the_slice_that_they_are_in(
    moving: Moving,
) -> None:
    moving.lost = {
        5: LogRange(start=0, end=4),
        8: LogRange(start=6, end=8),
        10: LogRange(start=9, end=10),
    }

    def told(begin: int, end: int) -> list[tuple[int, int]]:
        part = replace(PART, begin=begin, end=end)
        rows = [row for each in log_reading.read(parse(KAFKA), part) for row in each.to_pylist()]
        return [(r["start_offset"], r["offset"]) for r in rows if r["kind"] == RowKind.LOST]

    assert told(2, 10) == [(2, 4), (6, 8), (9, 10)]
    assert told(2, 7) == [(2, 4)], "the log answers in steps: the rest is another slice's"
    assert told(7, 8) == [(7, 8)]


def test_a_damaged_batch_of_the_newest_file_is_not_the_logs_end(
    log: tuple[Config, LogSlice, list[Path]],
) -> None:
    config, part, (*_, newest) = log
    first, *others = batches.split(newest.read_bytes())
    assert others
    damage = bytearray(newest.read_bytes())
    damage[first.size - 1] ^= 1
    newest.write_bytes(damage)
    with pytest.raises(LogCorrupt) as found:
        asyncio.run(log_files.ranges(config))
    assert found.value.message.startswith(f"metadata partition {part.number}: a batch at offset")
    # The daemon may be ready over it.
    assert f"rlmm partition rebuild {part.number}" in found.value.message


#: The last byte of a batch's partitionLeaderEpoch.
EPOCH_ENDS_AT = 15


@pytest.mark.parametrize("bit", [0, 7, 20, 31])
def test_a_flipped_bit_of_a_batchs_epoch_moves_no_epochs_end(
    log: tuple[Config, LogSlice, list[Path]], bit: int
) -> None:
    """It lies outside of the batch's CRC; the daemon passes over it, and so nothing ends it."""
    config, part, (oldest, *_) = log
    data = bytearray(oldest.read_bytes())
    first, *_ = batches.split(bytes(data))
    asked = [(part.number, epoch) for epoch in range(3)]
    before = log_reading.epoch_ends(config, asked)
    data[first.size + EPOCH_ENDS_AT - bit // 8] ^= 1 << bit % 8
    oldest.write_bytes(data)
    assert log_reading.epoch_ends(config, asked) == before


def test_what_nothing_follows_is_a_write_in_flight_and_not_in_the_log_yet(
    log: tuple[Config, LogSlice, list[Path]],
) -> None:
    config, part, (*_, newest) = log
    first, *_ = batches.split(newest.read_bytes())
    newest.write_bytes(newest.read_bytes()[: first.size - 1])
    _, ranges = asyncio.run(log_files.ranges(config))
    assert ranges[part.number].end == first.base_offset


def test_what_two_files_hold_is_read_once(log: tuple[Config, LogSlice, list[Path]]) -> None:
    """A repair went on with what a compaction had left half in place: its file, and an old one."""
    config, part, (oldest, second, *_) = log
    before = kinds(config, part)
    first, *_ = batches.split(second.read_bytes())
    oldest.write_bytes(oldest.read_bytes() + second.read_bytes()[: first.size])
    assert kinds(config, part) == before
    behind = replace(part, begin=first.base_offset)
    assert kinds(config, behind) == before[first.base_offset :]


def test_what_a_repair_could_not_save_of_an_embedded_log_is_told(
    log: tuple[Config, LogSlice, list[Path]],
) -> None:
    config, part, files = log
    data, first = bytearray(files[1].read_bytes()), int(files[1].stem)
    data[70] ^= 1
    files[1].write_bytes(data)
    repaired(config, part.number)
    assert kinds(config, part).count(RowKind.LOST) == 1
    (lost,) = (
        (row["start_offset"], row["offset"])
        for rows in log_reading.read(config, part)
        for row in rows.to_pylist()
        if row["kind"] == RowKind.LOST
    )
    assert lost == (first, first + 1)
    behind = replace(part, begin=first + 1)
    assert RowKind.LOST not in kinds(config, behind)


class Killed(Exception):  # the name says what happens
    """The process ends here."""


@pytest.fixture
def churned(tmp_path: Path) -> tuple[Config, int]:
    """Return a log of many segments that are gone, and the partition that they are in."""
    world = World(tmp_path, NOW, segment_bytes=4_096)
    for _ in range(60):
        gone = world.live()
        for state in (
            SegmentState.DELETE_SEGMENT_STARTED,
            SegmentState.DELETE_SEGMENT_FINISHED,
        ):
            world.update(gone, state)
    for _ in range(4):
        world.live()
    world.write_log()
    return load(world.write_local()), next(iter(world.ends))


def compact(config: Config) -> None:
    assert asyncio.run(compacted(config.event_log_directory, PARTITIONS))


def test_what_a_compaction_dropped_is_neither_there_nor_lost(churned: tuple[Config, int]) -> None:
    config, number = churned
    before = log_reading.view(config)
    compact(config)
    seen = log_reading.view(config)
    assert seen.ranges == before.ranges
    assert (dict(before.compactions), set(seen.compactions)) == ({}, {number})
    assert seen.compactions[number][1] == seen.ranges[number].end
    parts = [part for part in log_reading.slices(config, seen, 50) if part.number == number]
    assert len(parts) > 3
    found = [kind for part in parts for kind in kinds(config, part)]
    assert set(found) == {RowKind.SEGMENT, RowKind.READ}
    assert found.count(RowKind.READ) == len(parts)
    assert 8 <= found.count(RowKind.SEGMENT) < 20, (
        "the live ones, and those who made highest offsets"
    )


def test_a_log_that_is_compacted_between_two_slices_is_an_error(
    churned: tuple[Config, int],
) -> None:
    """What the first slice has as begun, the other one would not have as ended."""
    config, number = churned
    seen = log_reading.view(config)
    first, *others = (p for p in log_reading.slices(config, seen, 100) if p.number == number)
    kinds(config, first)
    compact(config)
    for part in others:
        with pytest.raises(Incomplete, match="compacted while it was read"):
            kinds(config, part)
    tail = replace(first, compacted=None)
    assert RowKind.READ in kinds(config, tail)


def test_epochs_end_where_they_did_before_a_compaction(churned: tuple[Config, int]) -> None:
    config, number = churned
    asked = [(number, epoch) for epoch in range(4)]
    before = log_reading.epoch_ends(config, asked)
    compact(config)
    assert log_reading.epoch_ends(config, asked) == before


@pytest.mark.parametrize("steps", [0, 1])
def test_a_log_is_read_as_it_will_be_in_the_middle_of_a_compaction(
    churned: tuple[Config, int], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon was killed behind the decision: with all names left to give, or one."""
    config, number = churned

    async def killed(disk: Disk, directory: str, compaction: Compaction) -> None:
        for base in compaction.bases[:steps]:
            path = files.segment_path(directory, base)
            await disk.rename(path + compacted_files.CLEANED_SUFFIX, path)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(compacted_files, "put_in_place", killed)
        with pytest.raises(ExceptionGroup):
            asyncio.run(compacted(config.event_log_directory, PARTITIONS))
    told = [
        [kind for part in log_reading.slices(config, seen, 50) for kind in kinds(config, part)]
        for seen in [log_reading.view(config)]
    ]
    with_daemon = log_reading.opened(config)

    async def finished() -> None:
        async with with_daemon as log:
            await log.end_offsets([MetadataPartition(number)])

    asyncio.run(finished())
    seen = log_reading.view(config)
    parts = log_reading.slices(config, seen, 50)
    assert told == [[kind for part in parts for kind in kinds(config, part)]]


def repaired(config: Config, number: int) -> None:
    """Mend a damaged log as `rlmm log repair` does, with nothing to take its records from."""

    async def work() -> None:
        async with log_reading.opened(config) as opened:
            assert isinstance(opened, EmbeddedLog)
            await repair(opened, MetadataPartition(number), [])

    asyncio.run(work())
