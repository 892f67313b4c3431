"""Files of an embedded log that were there at its last clean stop, and are gone at its start."""

import shutil
from collections.abc import Callable

import pytest

from rlmm_daemon.adapters.event_log.embedded.repair import repair
from rlmm_daemon.adapters.event_log.embedded.verify import verify
from rlmm_daemon.domain.errors import LogCorrupt
from rlmm_daemon.domain.ids import MetadataPartition, TopicIdPartition
from rlmm_daemon.ports.event_log import NO_EPOCH, LogRange
from tests.contract.event_log import P0, read, values
from tests.unit.adapters.event_log.embedded.test_log import SMALL, Bench, bench, fill
from tests.unit.daemon.events import COUNT, TP, of, started

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


async def test_a_directory_that_changed_places_with_another_is_called_so_and_left_alone(
    bench: Bench,
) -> None:
    """What the shorter one lacks is in the other: a repair would write over what is missing."""
    mine, theirs = of(TP), MetadataPartition((of(TP) + 1) % COUNT)
    other = next(
        tp for n in range(1, 100) if of(tp := TopicIdPartition(TP.topic_id, "orders", n)) == theirs
    )
    log = await bench.open()
    for number in range(3):
        await log.append(mine, started(number, 10 * number, 10 * number + 9))
    await log.append(theirs, started(9, 0, 9, other))
    await log.close()
    places = [bench.directory / str(number) for number in (mine, theirs)]

    def change_places() -> None:
        away = bench.directory / "away"
        places[0].rename(away)
        places[1].rename(places[0])
        away.rename(places[1])

    change_places()
    (before,) = [file.read_bytes() for file in bench.files(mine)]
    log = await bench.open()
    with pytest.raises(LogCorrupt, match=f"events are of metadata partition {theirs};") as told:
        await log.append(mine, b"more")
    assert told.value.fields["command"] == "rlmm doctor"
    assert "directories were mixed up: stop the daemon" in told.value.message
    assert "rlmm log repair" not in told.value.message
    await log.close()
    assert [file.read_bytes() for file in bench.files(mine)] == [before]
    change_places()
    log = await bench.open()
    assert (await log.end_offsets([mine, theirs])) == {
        mine: LogRange(start=0, end=3),
        theirs: LogRange(start=0, end=1),
    }


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
