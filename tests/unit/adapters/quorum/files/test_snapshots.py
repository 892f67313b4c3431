"""Snapshots of a replica: made, read in pieces, fetched in pieces, in the place of the log."""

import asyncio

import pytest

from rlmm_daemon.adapters.quorum.files.replica_files import ReplicaFiles
from rlmm_daemon.codec.kraft import checkpoint
from rlmm_daemon.core.raft.inputs import SavedState
from rlmm_daemon.core.raft.log_facts import BEGINNING, Batch, LogPoint, emptied_to
from rlmm_daemon.core.raft.voters import VoterHistory, VotersAt
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    HistoryLost,
    InvalidArgument,
    LogCorrupt,
    SnapshotGone,
)
from tests.unit.adapters.quorum.files.test_replica_files import (
    VOTERS,
    Bench,
    bench,
    built,
    data,
    first,
)

__all__ = ["bench"]

ROWS = [(b"key", b"value"), (None, bytes(500))]
POINT = LogPoint(epoch=4, end=7)
#: Of another replica, far ahead.
AHEAD = LogPoint(epoch=9, end=100)
IMAGE = b"".join(
    checkpoint.build(
        AHEAD, VotersAt(-1, VOTERS.without(3), 1), ROWS, timestamp_ms=1, last_timestamp_ms=1
    )
)


async def started(bench: Bench) -> ReplicaFiles:
    """A replica with ten records, a change of voters among them, in small files."""
    await bench.format()
    files = await bench.open(segment_bytes=400)
    await files.save(SavedState(4, 1, None))
    await bench.write(files, first(4), data(3, 4, bytes(200), bytes(100)))
    await bench.write(files, built(Batch(5, 1, 4, payload=VOTERS.without(2))))
    await bench.write(files, data(6, 4, b"one"), data(7, 4, b"two", b"three", b"four"))
    return files


async def fetch(
    files: ReplicaFiles, image: bytes, point: LogPoint = AHEAD, size: int = 200
) -> None:
    for at in range(0, len(image), size):
        await files.store_piece(point, at, image[at : at + size])


async def test_a_snapshot_is_served_in_pieces_and_found_again(bench: Bench) -> None:
    files = await started(bench)
    await files.make_snapshot(POINT, ROWS, timestamp_ms=8, last_timestamp_ms=5)
    assert files.log.snapshots == (POINT,)
    whole = b""
    while True:
        size, piece = await files.read_piece(POINT, len(whole), 100)
        whole += piece
        if len(whole) == size:
            break
    read = checkpoint.read(whole, POINT)
    assert read.last_timestamp_ms == 5
    assert read.voters == VotersAt(-1, VOTERS.without(2), 1)
    assert list(checkpoint.records(whole)) == ROWS
    assert await files.read_piece(POINT, size, 100) == (size, b"")
    before = files.log
    await files.close()
    again = await bench.open()
    assert again.log == before
    await again.close()


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        (BEGINNING, "not within the log"),
        (LogPoint(4, 11), "not within the log"),
        (LogPoint(3, 7), "not of epoch 3"),
        (LogPoint(4, 8), "no batch ends at 8"),
        (LogPoint(4, 2), "no batch ends at 2"),
    ],
)
async def test_a_snapshot_ends_where_a_batch_does(
    bench: Bench, point: LogPoint, reason: str
) -> None:
    files = await started(bench)
    with pytest.raises(InvalidArgument, match=reason):
        await files.make_snapshot(point, ROWS)
    await files.write(data(10, 4, b"unsynced"))
    with pytest.raises(InvalidArgument, match="on the disk"):
        await files.make_snapshot(LogPoint(4, 11), ROWS)
    assert files.log.snapshots == ()
    await files.close()


async def test_the_log_begins_where_a_snapshot_ends(bench: Bench) -> None:
    files = await started(bench)
    await files.make_snapshot(LogPoint(4, 3), ROWS)
    await files.make_snapshot(POINT, ROWS)
    await files.begin_at(POINT)
    assert (files.log.start, files.log.snapshots) == (7, (POINT,))
    with pytest.raises(SnapshotGone, match="was removed"):
        await files.read_piece(LogPoint(4, 3), 0, 10)
    assert {path.name for path in bench.log.glob("*.checkpoint")} == {checkpoint.name(POINT)}
    assert min(path.name for path in bench.log.glob("*.log")) > f"{0:020}.log"
    assert await files.read(6, 10, 1_000) == b""
    assert await files.read(7, 10, 1_000) == data(7, 4, b"two", b"three", b"four").payload
    log, voters = files.log, files.voters.newest.voters
    await files.close()
    again = await bench.open()
    assert (again.log, again.voters.newest.voters) == (log, voters)
    assert again.log.epoch_end(4) == LogPoint(4, 10)
    await again.close()


async def test_a_fetched_snapshot_takes_the_place_of_the_log(bench: Bench) -> None:
    files = await started(bench)
    await files.make_snapshot(POINT, ROWS)
    await fetch(files, b"another one, given up")
    await fetch(files, IMAGE)
    said = await files.install(AHEAD)
    assert said == VotersAt(-1, VOTERS.without(3), 1)
    assert files.log == emptied_to(AHEAD)
    assert files.voters == VoterHistory((said,))
    assert await files.read(100, 100, 1_000) == b""
    await files.save(SavedState(9, 2, None))
    await bench.write(files, data(100, 9, b"on"), data(101, 9, b"and on"))
    await files.close()
    again = await bench.open()
    assert (again.log, again.voters) == (files.log, files.voters)
    assert again.log.last == LogPoint(9, 102)
    names = {path.name for path in bench.log.iterdir() if path.suffix in (".log", ".checkpoint")}
    assert names == {f"{100:020}.log", checkpoint.name(AHEAD)}
    await again.close()


async def test_a_fetched_snapshot_that_does_not_hold_changes_nothing(bench: Bench) -> None:
    files = await started(bench)
    before = files.log
    for image in (IMAGE[:-1], IMAGE[:300] + b"!" + IMAGE[301:], b""):
        await fetch(files, image or b"x")
        with pytest.raises(ChecksumMismatch, match="does not hold"):
            await files.install(AHEAD)
    with pytest.raises(InvalidArgument, match="no piece"):
        await files.install(AHEAD)
    assert files.log == before
    await bench.write(files, data(10, 4, b"and on"))
    await fetch(files, IMAGE)
    await files.install(AHEAD)
    await files.close()


async def test_pieces_follow_each_other(bench: Bench) -> None:
    files = await started(bench)
    await files.store_piece(AHEAD, 0, IMAGE[:10])
    for point, position in ((AHEAD, 11), (AHEAD, 9), (LogPoint(9, 101), 10)):
        with pytest.raises(InvalidArgument, match="a gap"):
            await files.store_piece(point, position, b"x")
    await files.close()


async def test_what_was_fetched_in_part_is_gone_at_the_next_start(bench: Bench) -> None:
    files = await started(bench)
    await fetch(files, IMAGE[:100])
    await files.close()
    (bench.log / f"{checkpoint.name(POINT)}.deleted").write_bytes(b"Kafka's")
    (bench.log / "quorum-state.tmp").write_bytes(b"half a st")
    (bench.directory / "meta.properties.17.3.tmp").write_bytes(b"half")
    files = await bench.open()
    assert not [
        path for path in bench.log.iterdir() if path.suffix in (".part", ".deleted", ".tmp")
    ]
    assert not list(bench.directory.glob("*.tmp"))
    await files.close()


async def test_an_interrupted_installation_is_finished_at_the_next_start(bench: Bench) -> None:
    files = await started(bench)
    await files.close()
    (bench.log / f"{checkpoint.name(AHEAD)}.installing").write_bytes(IMAGE)
    files = await bench.open()
    assert files.log == emptied_to(AHEAD)
    assert files.voters.newest.voters == VOTERS.without(3)
    await files.close()


async def test_a_marked_snapshot_that_does_not_hold_is_refused_with_the_log_untouched(
    bench: Bench,
) -> None:
    files = await started(bench)
    await files.close()
    before = sorted(bench.log.glob("*.log"))
    path = bench.log / f"{checkpoint.name(AHEAD)}.installing"
    path.write_bytes(IMAGE[:-3])
    with pytest.raises(LogCorrupt, match="installing: the snapshot is cut short"):
        await bench.open()
    assert sorted(bench.log.glob("*.log")) == before


async def test_a_snapshot_beyond_a_log_of_ours_means_that_the_logs_end_is_gone(
    bench: Bench,
) -> None:
    files = await started(bench)
    await files.close()
    (bench.log / checkpoint.name(AHEAD)).write_bytes(IMAGE)
    with pytest.raises(HistoryLost, match="it ends with offset 100, and the log with 10"):
        await bench.open()


async def test_a_snapshot_beyond_a_log_of_kafkas_takes_its_place(bench: Bench) -> None:
    """Kafka marks nothing: it leaves both when it ends between the two."""
    files = await started(bench)
    await files.close()
    (bench.log / checkpoint.name(AHEAD)).write_bytes(IMAGE)
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        (bench.directory / name).unlink()
    files = await bench.open()
    assert files.log == emptied_to(AHEAD)
    await files.close()
    again = await bench.open()
    assert again.log == emptied_to(AHEAD)
    await again.close()


@pytest.mark.parametrize("point", [LogPoint(4, 8), LogPoint(3, 7)])
async def test_a_snapshot_that_is_not_on_the_log_is_refused(bench: Bench, point: LogPoint) -> None:
    files = await started(bench)
    await files.close()
    image = checkpoint.build(
        point, VotersAt(-1, VOTERS, 1), ROWS, timestamp_ms=1, last_timestamp_ms=1
    )
    (bench.log / checkpoint.name(point)).write_bytes(b"".join(image))
    with pytest.raises(LogCorrupt, match=f"no batch of epoch {point.epoch} ends at {point.end}"):
        await bench.open()


async def test_a_start_without_its_snapshot_is_refused(bench: Bench) -> None:
    files = await started(bench)
    await files.make_snapshot(POINT, ROWS)
    await files.begin_at(POINT)
    await files.close()
    (bench.log / checkpoint.name(POINT)).unlink()
    with pytest.raises(HistoryLost, match="begins at 7, and no snapshot ends there"):
        await bench.open()


async def test_a_log_is_read_while_a_snapshot_is_made(bench: Bench) -> None:
    files = await started(bench)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(files.make_snapshot(POINT, ROWS))
        reading = tasks.create_task(files.read(0, 10, 10))
    assert reading.result() == first(4).payload
    await files.close()
