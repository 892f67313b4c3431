"""`rlmm log repair` of files whose first or last batches are damaged, once and again."""

import asyncio
import errno
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlmm_daemon.adapters.event_log.embedded import repair as repair_module
from rlmm_daemon.adapters.event_log.embedded import verify as verify_module
from rlmm_daemon.adapters.event_log.embedded.identity import CleanEnd
from rlmm_daemon.adapters.event_log.embedded.partition import Partition
from rlmm_daemon.adapters.event_log.embedded.repair import repair
from rlmm_daemon.adapters.event_log.embedded.verify import Piece, verify
from rlmm_daemon.codec import batches
from rlmm_daemon.domain.errors import LogCorrupt
from tests.contract.event_log import P0, read, values
from tests.unit.adapters.event_log.embedded.faulty_disk import FaultyFile
from tests.unit.adapters.event_log.embedded.test_log import (
    SMALL,
    Bench,
    batch_position,
    bench,
    fill,
    spoil,
)

__all__ = ["bench"]

#: Kafka's record batch v2, without records.
HEADER = struct.Struct(">qiibIhiqqqhii")


def batches_in(file: Path) -> int:
    return len(list(batches.split(file.read_bytes())))


def contents(path: str) -> bytes:
    return Path(path).read_bytes()


def header_at(file: Path, position: int) -> tuple[int, ...]:
    return HEADER.unpack_from(file.read_bytes(), position)


@pytest.mark.parametrize("where", ["first", "last"])
async def test_a_damaged_batch_at_an_edge_of_a_sealed_file_keeps_every_other_offset(
    bench: Bench, where: str
) -> None:
    log = await bench.open(SMALL)
    filled = await fill(log, values(60))
    await log.close()
    file = bench.files()[1]
    index = 0 if where == "first" else batches_in(file) - 1
    spoil(file, index)
    lost = int(file.stem) + index
    log = await bench.open(SMALL)
    report = await repair(log, P0, [])
    assert [(gap.start, gap.end) for gap in report.lost] == [(lost, lost + 1)]
    assert await read(log, P0, 0, 60) == [record for record in filled if record[0] != lost]
    epochs = [header_at(file, batch_position(file, at))[2] for at in range(batches_in(file))]
    assert epochs == sorted(epochs)
    assert epochs[0] >= 0, "no batch of Kafka's has none"


async def test_lost_offsets_are_covered_by_an_empty_batch_like_those_of_kafkas_log_cleaner(
    bench: Bench,
) -> None:
    """Without producer, without times, of the epoch before: a Kafka tool passes over it."""
    for begin, count in ((0, 1), (1, 2), (3, 57)):
        log = await bench.open(SMALL)
        await fill(log, values(count, begin))
        await log.close()
    file = bench.files()[0]
    at = [batch_position(file, index) for index in range(5)]
    epochs = [header_at(file, position)[2] for position in at]
    assert 0 <= epochs[0] < epochs[2] < epochs[3] == epochs[4]
    spoil(file, 3)
    spoil(file, 4)
    log = await bench.open(SMALL)
    report = await repair(log, P0, [])
    assert [(gap.start, gap.end) for gap in report.lost] == [(3, 5)]
    offset, length, epoch, magic, _, *rest = header_at(file, at[3])
    assert (offset, length, epoch, magic) == (3, HEADER.size - 12, epochs[2], 2)
    attributes, delta, first_ms, last_ms, producer, producer_epoch, sequence, records = rest
    assert (attributes, delta, records) == (0, 1, 0)
    assert (first_ms, last_ms, producer, producer_epoch, sequence) == (-1,) * 5


async def test_the_last_batch_of_the_newest_file_leaves_a_gap_where_it_was_known_to_be_whole(
    bench: Bench,
) -> None:
    """Only a crash explains a torn tail, and a log that was stopped cleanly has none."""
    for begin in (0, 3):
        log = await bench.open(SMALL)
        await fill(log, values(3, begin))
        await log.close()
    file = bench.files()[-1]
    spoil(file, batches_in(file) - 1)
    found = file.read_bytes()
    log = await bench.open(SMALL)
    (known,) = (await log.end_offsets([P0])).values()
    report = await repair(log, P0, [])
    assert [(gap.start, gap.end) for gap in report.lost] == [(known.end - 1, known.end)]
    assert [contents(copy) for copy in report.set_aside] == [found]
    assert await log.end_offsets([P0]) == {P0: known}
    async for batch in log.follow(P0, 0, epoch=-1):
        if batch.unvouched:
            assert [(gap.start, gap.end) for gap in batch.unvouched] == [(known.end - 1, known.end)]
            break


async def test_whoever_has_read_a_gap_over_the_end_of_a_generation_stands_where_the_log_says(
    bench: Bench,
) -> None:
    """Else the follower takes it for a log that lost its tail, and reads it anew for ever."""
    for begin, count in ((0, 3), (3, 57)):
        log = await bench.open(SMALL)
        await fill(log, values(count, begin))
        await log.close()
    file, behind = bench.files()[:2]
    for index in range(2, batches_in(file)):
        spoil(file, index)
    log = await bench.open(SMALL)
    report = await repair(log, P0, [])
    gap = (2, int(behind.stem))
    assert [(lost.start, lost.end) for lost in report.lost] == [gap]
    async for batch in log.follow(P0, 0, epoch=-1):
        if batch.next_offset == gap[1]:
            assert (await log.epoch_end(P0, batch.leader_epoch)).end_offset >= gap[1]
            return


async def test_each_repair_keeps_a_copy_of_its_own_of_what_it_found(bench: Bench) -> None:
    log = await bench.open(SMALL)
    await fill(log, values(60))
    await log.close()
    found, copies = [], []
    for index in (1, 2, 3, 4):
        spoil(bench.files()[0], index)
        found.append(bench.files()[0].read_bytes())
        log = await bench.open(SMALL)
        copies += (await repair(log, P0, [])).set_aside
        await log.close()
    file = bench.files()[0]
    assert copies == [f"{file}.corrupt", *(f"{file}.corrupt.{n}" for n in (2, 3, 4))]
    assert [contents(copy) for copy in copies] == found


async def test_zeros_behind_a_sealed_file_are_cut_off_and_nothing_is_lost(bench: Bench) -> None:
    log = await bench.open(SMALL)
    filled = await fill(log, values(60))
    await log.close()
    file = bench.files()[0]
    whole = file.read_bytes()
    file.write_bytes(whole + bytes(100))
    (found,) = (await verify(bench.disk, str(bench.directory), 1))[0].findings
    assert "zeros follow" in found.reason
    log = await bench.open(SMALL)
    report = await repair(log, P0, [])
    assert (report.lost, report.set_aside) == ([], [f"{file}.corrupt"])
    assert file.read_bytes() == whole
    assert not (await verify(bench.disk, str(bench.directory), 1))[0].findings
    assert await read(log, P0, 0, 60) == filled


async def test_files_are_searched_beside_the_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await bench.open(SMALL)
    await fill(log, values(60))
    await log.close()
    spoil(bench.files()[0], 1)
    found = set[int]()

    def watched(buffer: bytes, base_offset: int, *, end: int | None = None) -> Iterator[Piece]:
        found.add(threading.get_ident())
        return verify_module.pieces(buffer, base_offset, end=end)

    monkeypatch.setattr(repair_module, "pieces", watched)
    log = await bench.open(SMALL)
    assert (await repair(log, P0, [])).lost
    assert found
    assert threading.get_ident() not in found


async def test_what_a_repair_that_was_killed_had_half_written_is_removed(bench: Bench) -> None:
    log = await bench.open(SMALL)
    filled = await fill(log, values(60))
    await log.close()
    file = bench.files()[0]
    left = {f"{file.name}{name}.123.4.tmp" for name in ("", ".corrupt")}
    kept = f"{file.name}.corrupt"
    for name in (*left, kept):
        await (await bench.disk.open(str(file.parent / name), create=True)).close()
    log = await bench.open(SMALL)
    assert await read(log, P0, 0, 60) == filled
    names = await bench.disk.list(str(file.parent))
    assert kept in names
    assert not left.intersection(names)


async def test_a_log_that_is_made_among_others_files_removes_none_of_them(bench: Bench) -> None:
    """`rlmm log restore --to` takes any directory: whatever was called temporary went."""
    log = await bench.open(SMALL)
    await fill(log, values(3))
    await log.close()
    directory = bench.files()[0].parent
    others = {"book.tmp.odt", "report.tmp", "recovery-point-offset-checkpoint.tmp", "1.tmp.log"}
    for name in others:
        for place in (directory, directory.parent):
            await (await bench.disk.open(str(place / name), create=True)).close()
    await (await bench.open(SMALL)).close()
    assert others <= set(await bench.disk.list(str(directory)))
    assert others <= set(await bench.disk.list(str(directory.parent)))


async def test_a_write_that_is_in_flight_as_a_repair_begins_is_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that damages what is on it may hang, too."""
    log = await bench.open(SMALL)
    await fill(log, values(60))
    spoil(bench.files()[1], 0)
    in_flight, going_on = asyncio.Event(), asyncio.Event()
    write, close = FaultyFile.pwrite_synced, Partition.close

    async def hanging(file: FaultyFile, offset: int, data: bytes | memoryview) -> int:
        if not in_flight.is_set():
            in_flight.set()
            await going_on.wait()
            return await write(file, offset, data)
        written = await write(file, offset, data)
        going_on.set()  # whoever writes beside it has what it wrote over now
        return written

    async def closing(partition: Partition) -> CleanEnd | None:
        going_on.set()
        return await close(partition)

    monkeypatch.setattr(FaultyFile, "pwrite_synced", hanging)
    monkeypatch.setattr(Partition, "close", closing)
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(log.append(P0, b"acknowledged"))
        await in_flight.wait()
        tasks.create_task(repair(log, P0, [b"put back"]))
    offset = writing.result()
    assert await log.append(P0, b"next") == offset + 2
    written = list(enumerate((b"acknowledged", b"put back", b"next"), offset))
    assert await read(log, P0, offset, offset + 3) == written
    await log.close()
    log = await bench.open(SMALL)
    assert await read(log, P0, offset, offset + 3) == written


async def test_a_repair_that_the_disk_stops_leaves_the_partition_to_the_next(bench: Bench) -> None:
    log = await bench.open(SMALL)
    await fill(log, values(60))
    await log.close()
    bench.files()[-1].unlink()
    log = await bench.open(SMALL)
    bench.disk.fail_next("write_atomically", errno.EIO)
    with pytest.raises(OSError, match="ordered failure"):
        await repair(log, P0, [])
    with pytest.raises(LogCorrupt, match="ended with offset 60"):
        await log.append(P0, b"more")
    assert (await repair(log, P0, [])).lost
    assert await log.append(P0, b"more") == 60
