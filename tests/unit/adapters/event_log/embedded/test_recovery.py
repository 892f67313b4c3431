"""How a partition's end is found again: from a clean stop's word, else from the files alone."""

import errno
from contextlib import aclosing
from pathlib import Path

import pytest

from rlmm_daemon.adapters.event_log.embedded import epochs
from rlmm_daemon.adapters.event_log.embedded.identity import CleanEnd
from rlmm_daemon.adapters.event_log.embedded.options import Context
from rlmm_daemon.adapters.event_log.embedded.recovery import Recovered, newest_generation, recover
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.ports.event_log import NO_EPOCH
from tests.contract.event_log import P0, values
from tests.unit.adapters.event_log.embedded.test_log import LARGE, SMALL, Bench, bench, fill

__all__ = ["bench"]

NEWEST = 9


async def recovered(bench: Bench, clean: CleanEnd | None) -> tuple[Recovered, list[str]]:
    """Recover partition 0; return what came of it, and the calls of the disk."""
    context = Context(disk=bench.disk, clock=bench.clock, spawn=bench.spawn, options=LARGE)
    before = len(bench.disk.calls)
    found = await recover(
        context, str(bench.directory / "0"), P0, clean, newest_epoch=NEWEST, partition_count=3
    )
    return found, bench.disk.calls[before:]


async def stopped(bench: Bench) -> CleanEnd:
    """Write files of two generations, and return the end of their clean stop."""
    for begin in (0, 20):
        log = await bench.open(SMALL)
        await fill(log, values(20, begin))
        await log.close()
    newest = bench.files()[-1]
    seen, _ = await recovered(bench, None)
    return CleanEnd(
        base_offset=int(newest.stem),
        size=newest.stat().st_size,
        next_offset=40,
        epochs=list(seen.epochs.entries),
    )


async def test_a_partition_that_was_never_written_is_found_empty_and_nothing_is_made(
    bench: Bench,
) -> None:
    found, calls = await recovered(bench, None)
    assert (found.bases, found.position, found.next_offset) == ([], 0, 0)
    assert calls == ["list"]
    assert bench.files() == []


async def test_a_new_partition_is_durable_with_its_name_before_anything_is_in_it(
    bench: Bench,
) -> None:
    log = await bench.open(LARGE)
    before = len(bench.disk.calls)
    await fill(log, values(1))
    calls = bench.disk.calls[before:]
    order = [calls.index(call) for call in ("open", "fdatasync", "fsync_directory", "pwrite")]
    assert order == sorted(order)


async def test_after_a_clean_stop_nothing_is_read_or_written(bench: Bench) -> None:
    clean = await stopped(bench)
    found, calls = await recovered(bench, clean)
    assert (found.position, found.next_offset) == (clean.size, 40)
    assert sorted(set(calls)) == ["close", "list", "open", "read", "size"]
    assert calls.count("read") == 1, "whether a compaction was cut short"


@pytest.mark.parametrize("by", [-1, 1])
async def test_a_clean_end_of_another_file_is_not_believed(bench: Bench, by: int) -> None:
    clean = await stopped(bench)
    doubtful = of_another_file(clean, by)
    found, calls = await recovered(bench, doubtful)
    assert found.next_offset == 40
    assert "fdatasync" in calls


def of_another_file(clean: CleanEnd, by: int) -> CleanEnd:
    return CleanEnd(
        base_offset=clean.base_offset + by,
        size=clean.size,
        next_offset=clean.next_offset,
        epochs=clean.epochs,
    )


async def test_every_file_that_recovery_opens_is_closed(bench: Bench) -> None:
    clean = await stopped(bench)
    for end in (None, clean):
        _, calls = await recovered(bench, end)
        assert calls.count("open") == calls.count("close") > 0


@pytest.mark.parametrize("files", [1, 2, 3])
async def test_the_checkpoint_speaks_of_sealed_files_and_of_no_later_offset(
    bench: Bench, files: int
) -> None:
    """A file that was lost leaves a checkpoint that knows more than there is."""
    directory = bench.directory / "0"
    directory.mkdir(parents=True)
    for base in (0, 20, 40)[:files]:
        (directory / f"{base:020}.log").write_bytes(b"")
    written = [(3, 0), (5, 20), (6, 40), (8, 50)]
    (directory / "leader-epoch-checkpoint").write_bytes(epochs.encode(written))
    found, _ = await recovered(bench, None)
    assert list(found.epochs.entries) == written[: files - 1]


async def test_a_partition_without_files_hides_no_generation_of_those_behind_it(
    bench: Bench,
) -> None:
    log = await bench.open(SMALL)
    await log.append(P0, b"one")
    latest = (await log.epoch_end(P0, epochs.EPOCH_MAX)).epoch
    await log.close()
    (bench.directory / "0").rename(bench.directory / "1")
    (bench.directory / "0").mkdir()
    assert await newest_generation(bench.disk, str(bench.directory)) == latest


@pytest.mark.parametrize("scanned", [True, False])
async def test_a_file_that_the_disk_cannot_read_any_more_is_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, scanned: bool
) -> None:
    """By a start that scans it, and by one that need not; the system's own error names none."""
    whole = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path.suffix == ".log":
            raise OSError(errno.EIO, "ordered failure of read")
        return whole(path)

    log = await bench.open(LARGE)
    await fill(log, values(9))
    await log.close()
    log = await bench.open(LARGE)
    if scanned:
        log.forget(P0)
        monkeypatch.setattr(Path, "read_bytes", read_bytes)
    bench.disk.fail_next("pread", errno.EIO)
    with pytest.raises(StorageUnavailable) as caught:
        async with aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
            await anext(batches)
    assert caught.value.fields["file"] == str(bench.files()[-1])
    assert "ordered failure" in caught.value.message
