"""Reading from any offset, whatever the files' sizes; and what a failing disk leaves."""

import errno
import random
from typing import Any

import pytest

from rlmm_daemon.adapters.quorum.files import segments
from rlmm_daemon.adapters.quorum.files.replica_files import ReplicaFiles
from rlmm_daemon.codec.kraft import log_batches
from rlmm_daemon.core.raft.inputs import SavedState
from rlmm_daemon.core.raft.log_facts import Batch, LogPoint
from rlmm_daemon.domain.errors import LogCorrupt, StorageUnavailable
from tests.unit.adapters.event_log.embedded.faulty_disk import FaultyDisk
from tests.unit.adapters.quorum.files.test_replica_files import Bench, bench, data, first

__all__ = ["bench"]


async def filled(bench: Bench, count: int, **options: Any) -> tuple[ReplicaFiles, list[Batch]]:
    """A log of batches of all sizes."""
    rng = random.Random(7)
    await bench.format()
    files = await bench.open(**options)
    batches, base = [first(1)], 3
    for _ in range(count):
        values = [bytes(rng.choice([3, 80, 900])) for _ in range(rng.randint(1, 3))]
        batches.append(data(base, 1, *values))
        base += len(values)
    await bench.write(files, *batches)
    return files, batches


@pytest.mark.parametrize("recent", [0, 2_000, 1 << 20])
@pytest.mark.parametrize("segment_bytes", [500, 5_000, 1 << 20])
async def test_whole_batches_are_read_from_any_offset(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, recent: int, segment_bytes: int
) -> None:
    monkeypatch.setattr(segments, "_RECENT_BYTES", recent)
    monkeypatch.setattr(segments, "_INDEX_BYTES", 300)
    files, batches = await filled(bench, 40, segment_bytes=segment_bytes)
    last = batches[-1].end
    for offset in range(last):
        at = next(n for n, batch in enumerate(batches) if offset < batch.end)
        for end in {batches[at].end, batches[min(at + 4, len(batches) - 1)].end, last}:
            for bytes_max in (1, 700, 1 << 20):
                read = log_batches.read(await files.read(offset, end, bytes_max))
                assert read == tuple(batches[at : at + len(read)])
                assert read
                assert read[-1].end <= end
                size = sum(len(each.payload) for each in read if isinstance(each.payload, bytes))
                assert size <= bytes_max or len(read) == 1
    assert await files.read(last, last, 100) == b""
    assert await files.read(5, 5, 100) == b""
    await files.close()


async def test_a_log_is_cut_across_its_files(bench: Bench) -> None:
    files, batches = await filled(bench, 30, segment_bytes=800)
    at = 9
    await files.truncate(batches[at].base)
    assert files.log.end == files.log.synced == batches[at].base
    assert await files.read(batches[at].base, 1 << 40, 100) == b""
    kept = [path.name for path in sorted(bench.log.glob("*.log"))]
    assert int(kept[-1][:20]) < batches[at].end
    await bench.write(files, data(batches[at].base, 1, b"another"))
    read = log_batches.read(await files.read(batches[at - 1].base, 1 << 40, 1))
    assert read == (batches[at - 1],)
    await files.close()
    again = await bench.open(segment_bytes=800)
    assert again.log == files.log
    await again.truncate(0)
    assert (again.log.end, again.log.epochs) == (0, ())
    assert again.voters.newest.offset == -1, "the bootstrap's are in force again"
    await again.close()


async def test_damage_that_is_read_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_RECENT_BYTES", 0)
    files, batches = await filled(bench, 3)
    path = bench.log / f"{0:020}.log"
    whole = path.read_bytes()
    assert isinstance(batches[0].payload, bytes)
    begin = len(batches[0].payload)
    for at in (begin + 3, begin + 10, begin + 14, begin + 30):  # offset, length, epoch, rest
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :])
        with pytest.raises(LogCorrupt, match=f"{path}: byte {begin}"):
            await files.read(3, 1 << 40, 1)
    path.write_bytes(whole)
    await files.close()


@pytest.mark.parametrize(
    "work", ["save", "write", "roll", "sync", "truncate", "begin_at", "make_snapshot"]
)
async def test_nothing_is_taken_after_a_failure_until_opened_anew(bench: Bench, work: str) -> None:
    """But for a snapshot of its own, which the log does not need."""
    files, batches = await filled(bench, 6, segment_bytes=800)
    await files.make_snapshot(LogPoint(1, batches[3].end), [])
    await files.close()
    plain = bench.disk
    step = 0
    while True:
        faulty = FaultyDisk(plain)
        bench.disk = faulty  # type: ignore[assignment] # a disk by its methods
        files = await bench.open(segment_bytes=800)
        found = files.log
        faulty.fail_at(step, errno.EIO)
        try:
            await _do(files, work)
        except OSError:
            failed = True
        else:
            failed = False
        faulty.heal()
        if failed and work != "make_snapshot":
            with pytest.raises(StorageUnavailable, match="opened anew"):
                await files.sync()
        await files.close()
        bench.disk = plain
        again = await bench.open(segment_bytes=800)
        if work != "truncate":
            assert again.log.end >= found.synced
        await again.close()
        if not failed:
            break
        step += 1
    assert step > 0


async def _do(files: ReplicaFiles, work: str) -> None:
    end, epoch = files.log.end, files.log.last_epoch
    match work:
        case "save":
            await files.save(SavedState(epoch + 1))
        case "write":
            await files.write(data(end, epoch, b"value"))
        case "roll":
            await files.write(data(end, epoch, bytes(900)))
        case "sync":
            await files.write(first(epoch + 1, base=end))
            await files.sync()
        case "truncate":
            await files.truncate(files.log.snapshots[0].end)
        case "begin_at":
            await files.begin_at(files.log.snapshots[0])
        case "make_snapshot":
            await files.make_snapshot(LogPoint(epoch, end), [])
        case _:
            raise AssertionError(work)
