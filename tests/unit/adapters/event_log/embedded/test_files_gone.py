"""Files of an embedded log that were there at its last clean stop, and are gone at its start."""

import shutil
from collections.abc import Callable

import pytest

from rlmm_daemon.adapters.event_log.embedded.repair import repair
from rlmm_daemon.adapters.event_log.embedded.verify import verify
from rlmm_daemon.domain.errors import LogCorrupt
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import NO_EPOCH, LogRange
from tests.contract.event_log import P0, read, values
from tests.unit.adapters.event_log.embedded.test_log import SMALL, Bench, bench, fill

__all__ = ["bench"]

END = 60
OTHER = MetadataPartition(1)


def newest(bench: Bench) -> None:
    bench.files()[-1].unlink()


def newest_two(bench: Bench) -> None:
    newest(bench)
    newest(bench)


def every(bench: Bench) -> None:
    for file in bench.files():
        file.unlink()


def directory(bench: Bench) -> None:
    shutil.rmtree(bench.directory / "0")


def half(bench: Bench) -> None:
    content = bench.files()[-1].read_bytes()
    bench.files()[-1].write_bytes(content[: len(content) // 2])


def emptied(bench: Bench) -> None:
    bench.files()[-1].write_bytes(b"")


GONE = (newest, newest_two, every, directory, half, emptied)


async def stopped(bench: Bench) -> list[tuple[int, bytes]]:
    log = await bench.open(SMALL)
    filled = await fill(log, values(END))
    for value in values(3):
        await log.append(OTHER, value)
    await log.close()
    return filled


async def left(bench: Bench) -> int:
    """Return where what is there ends, by its files alone."""
    reports = await verify(bench.disk, str(bench.directory), 3)
    return next(report.range.end for report in reports if report.partition == P0)


@pytest.mark.parametrize("lose", GONE)
async def test_a_log_whose_files_are_gone_is_never_silently_shorter(
    bench: Bench, lose: Callable[[Bench], None]
) -> None:
    filled = await stopped(bench)
    lose(bench)
    end = await left(bench)
    assert end < END
    for _ in range(2):  # whatever others write in between
        log = await bench.open(SMALL)
        with pytest.raises(LogCorrupt, match=f"ended with offset {END}.* ends with {end}") as told:
            await log.append(P0, b"more")
        assert "rlmm log repair" in told.value.message
        assert P0 not in await log.end_offsets([P0])
        await log.append(OTHER, b"goes on")
        await log.close()
    log = await bench.open(SMALL)
    await log.append(OTHER, b"goes on")
    await bench.kill(log)
    log = await bench.open(SMALL)
    report = await repair(log, P0, [])
    assert report.lost == [LogRange(start=end, end=END)]
    assert (await log.end_offsets([P0]))[P0].end == END
    if end:
        assert await read(log, P0, 0, end) == filled[:end]
    batches = [batch async for batch in _first(log, end)]
    assert batches[0].unvouched, "what is lost is told to whoever reads on"
    await log.append(P0, b"more")
    await log.close()
    log = await bench.open(SMALL)
    assert (await log.end_offsets([P0]))[P0].end == END + 1


async def _first(log, offset):
    async for batch in log.follow(P0, offset, epoch=NO_EPOCH):
        yield batch
        return


@pytest.mark.parametrize("lose", GONE)
async def test_verify_names_what_is_gone(bench: Bench, lose: Callable[[Bench], None]) -> None:
    await stopped(bench)
    name = bench.files()[-1].name
    assert all(not each.findings for each in await verify(bench.disk, str(bench.directory), 3))
    lose(bench)
    reports = {each.partition: each for each in await verify(bench.disk, str(bench.directory), 3)}
    assert not reports[OTHER].findings
    found = reports[P0].findings[-1]
    assert (found.file, found.kind) == (str(bench.directory / "0" / name), "corrupt")
    assert f"ended with offset {END}" in found.reason


async def test_a_repair_that_is_cut_short_is_done_by_the_next(bench: Bench) -> None:
    await stopped(bench)
    every(bench)
    log = await bench.open(SMALL)
    await log.begin_changing()
    await bench.kill(log)
    log = await bench.open(SMALL)
    with pytest.raises(LogCorrupt):
        await log.append(P0, b"more")
    report = await repair(log, P0, [])
    assert report.lost == [LogRange(start=0, end=END)]
    await bench.kill(log)
    log = await bench.open(SMALL)
    assert (await log.end_offsets([P0]))[P0] == LogRange(start=0, end=END)


async def test_files_that_are_put_back_are_the_log_again(bench: Bench) -> None:
    filled = await stopped(bench)
    kept = bench.files()[-1].read_bytes()
    path = bench.files()[-1]
    path.unlink()
    log = await bench.open(SMALL)
    with pytest.raises(LogCorrupt):
        await log.append(P0, b"more")
    await log.close()
    path.write_bytes(kept)
    log = await bench.open(SMALL)
    assert await read(log, P0, 0, END) == filled
