"""The disk's rules, one test each: these are the lies that real disks tell."""

import asyncio
import contextlib
import errno
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from tests.simulation.disk import DiskFaults, ProcessDead, SimDisk
from tests.simulation.loop import Crash, SimLoop, ended
from tests.simulation.platter import Inode, NameLoss, Platter, Tear, Write, sectors

T = TypeVar("T")
Use = Callable[[SimDisk], Coroutine[Any, Any, T]]


def use(
    work: Use[T], platter: Platter | None = None, seed: object = 0, **faults: Any
) -> tuple[T, Platter, SimDisk]:
    platter = platter or Platter()
    platter.directories.add("/d")
    with ended(SimLoop(rng=random.Random(f"{seed}/order"))) as loop:
        disk = SimDisk(platter, loop, random.Random(f"{seed}/disk"), DiskFaults(**faults))
        result = loop.run_until_complete(work(disk))
        disk.dead = True
        return result, platter, disk


def lose_power(platter: Platter, seed: object = 0, **modes: Any) -> None:
    modes = {"tear": Tear.NONE, "names": NameLoss.JOURNAL} | modes
    platter.lose_power(random.Random(f"{seed}/crash"), **modes)


async def _two_writes(disk: SimDisk, *, sync_directory: bool = True) -> None:
    file = await disk.open("/d/a", write=True, create=True)
    await file.pwrite(0, b"x" * 2048)
    await file.fdatasync()
    if sync_directory:
        await disk.fsync_directory("/d")
    await file.pwrite(2048, b"y" * 2048)
    await file.close()


def contents(platter: Platter) -> set[bytes]:
    return {bytes(inode.data) for inode in platter.names.values()}


def after_power_losses(tear: Tear, seeds: int = 40) -> set[bytes]:
    seen: set[bytes] = set()
    for seed in range(seeds):
        _, platter, _ = use(_two_writes)
        lose_power(platter, seed, tear=tear, names=NameLoss.ANY)
        seen |= contents(platter)
    return seen


X, Y, ZERO = b"x" * 512, b"y" * 512, bytes(512)


def test_a_kill_keeps_what_was_written_and_frees_the_locks():
    async def work(disk: SimDisk) -> None:
        await _two_writes(disk, sync_directory=False)
        await disk.lock("/d/lock")

    _, platter, _ = use(work)
    platter.kill(random.Random(1), evict=True)
    assert contents(platter) == {X * 4 + Y * 4, b""}
    assert platter.locks == {}


def test_a_power_loss_keeps_synced_bytes_only():
    assert after_power_losses(Tear.NONE) == {X * 4}


def test_a_power_loss_tears_the_last_write_at_a_sector():
    assert after_power_losses(Tear.PREFIX) == {X * 4 + Y * kept for kept in range(5)}


def test_a_power_loss_may_land_any_sectors_of_a_write():
    seen = after_power_losses(Tear.ANY)
    assert X * 4 + ZERO * 3 + Y in seen
    assert all(data.startswith(X * 4) for data in seen)
    assert len(seen) > 5


def test_a_power_loss_may_land_the_size_without_the_bytes():
    assert after_power_losses(Tear.ZERO_TAIL) == {X * 4 + ZERO * 4}


def test_a_created_name_is_lost_without_a_directory_sync():
    _, platter, _ = use(lambda disk: _two_writes(disk, sync_directory=False))
    names = set()
    for seed in range(20):
        _, platter, _ = use(lambda disk: _two_writes(disk, sync_directory=False))
        lose_power(platter, seed)
        names.add(tuple(sorted(platter.names)))
    assert names == {(), ("/d/a",)}


@pytest.mark.parametrize("mode", list(NameLoss))
def test_an_unsynced_rename_happened_whole_or_not_at_all(mode: NameLoss):
    async def work(disk: SimDisk) -> None:
        await _two_writes(disk)
        await disk.rename("/d/a", "/d/b")

    seen = set()
    for seed in range(20):
        _, platter, _ = use(work)
        lose_power(platter, seed, names=mode)
        seen.add(tuple(sorted(platter.names)))
    assert seen == {("/d/a",), ("/d/b",)}


def test_a_journal_loses_name_changes_from_the_end_and_any_loses_some():
    async def work(disk: SimDisk) -> None:
        for name in "abc":
            await disk.open(f"/d/{name}", write=True, create=True)

    def seen(mode: NameLoss) -> set[tuple[str, ...]]:
        result = set()
        for seed in range(60):
            _, platter, _ = use(work)
            lose_power(platter, seed, names=mode)
            result.add(tuple(sorted(platter.names)))
        return result

    prefixes = {(), ("/d/a",), ("/d/a", "/d/b"), ("/d/a", "/d/b", "/d/c")}
    assert seen(NameLoss.JOURNAL) == prefixes
    assert seen(NameLoss.ANY) > prefixes


def test_a_sync_covers_what_was_written_before_it_was_issued_and_no_more():
    async def work(disk: SimDisk) -> None:
        file = await disk.open("/d/a", write=True, create=True)
        await disk.fsync_directory("/d")
        await file.pwrite(0, b"first")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(file.fdatasync())
            await asyncio.sleep(0)
            tasks.create_task(file.pwrite(5, b"later"))

    for seed in range(20):
        _, platter, _ = use(work, seed=seed)
        lose_power(platter)
        assert contents(platter) == {b"first"}


def test_a_synced_write_is_durable_in_the_end_even_if_its_caller_left():
    async def work(disk: SimDisk) -> None:
        file = await disk.open("/d/a", write=True, create=True)
        await disk.fsync_directory("/d")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await file.pwrite_synced(0, X)
        await file.close()
        await asyncio.sleep(60)  # virtual seconds

    for seed in range(20):
        _, platter, disk = use(work, seed=seed)
        lose_power(platter)
        assert contents(platter) == {X}
        assert disk.misuse == []


def test_a_synced_write_fails_as_its_sync_does_and_syncs_nothing_when_it_was_short():
    async def work(disk: SimDisk) -> None:
        file = await disk.open("/d/a", write=True, create=True)
        await disk.fsync_directory("/d")
        disk.faults = DiskFaults(sync_error=1.0)
        with pytest.raises(OSError, match="Input/output error"):
            await file.pwrite_synced(0, X)
        disk.faults = DiskFaults(short_write=1.0, sync_error=1.0)
        assert await file.pwrite_synced(512, X) < 512

    use(work)


def test_after_a_failed_sync_the_pages_look_clean_and_the_next_sync_succeeds():
    async def work(disk: SimDisk) -> None:
        file = await disk.open("/d/a", write=True, create=True)
        await disk.fsync_directory("/d")
        await file.pwrite(0, X)
        with pytest.raises(OSError, match="Input/output error") as caught:
            await file.fdatasync()
        assert caught.value.errno == errno.EIO
        disk.faults = DiskFaults()
        await file.fdatasync()
        assert await file.pread(0, 512) == X

    seen = set()
    for seed in range(20):
        _, platter, _ = use(work, seed=seed, sync_error=1.0)
        assert contents(platter) == {X}  # what a reader, and a restarted process, still see
        lose_power(platter)
        seen |= contents(platter)
    assert seen == {b"", X}


def test_an_evicted_page_shows_after_a_failed_sync_what_the_disk_has():
    inode = Inode()
    inode.write(0, X)
    inode.sync(inode.seq)
    inode.write(0, Y)
    inode._leave_unsynced(inode.seq, landed=lambda _: False)
    assert bytes(inode.data) == Y
    inode.evict()
    assert bytes(inode.data) == X


def test_writes_may_be_short_and_say_so():
    async def work(disk: SimDisk) -> tuple[int, int]:
        file = await disk.open("/d/a", write=True, create=True)
        return await file.pwrite(0, b"0123456789"), await file.size()

    taken = {use(work, seed=seed, short_write=1.0)[0] for seed in range(30)}
    assert all(count == size and 1 <= count <= 10 for count, size in taken)
    assert len(taken) > 3


def test_a_full_disk_refuses_new_bytes_for_a_while_but_not_bytes_that_have_their_place():
    async def work(disk: SimDisk) -> None:
        file = await disk.open("/d/a", write=True, create=True)
        await file.pwrite(0, bytes(1024))
        disk.fill(10.0)
        assert await file.pwrite(512, X) == 512
        assert await disk.free_bytes("/d") == 0
        with pytest.raises(OSError, match="No space left") as caught:
            await file.pwrite(512, X * 2)
        assert caught.value.errno == errno.ENOSPC
        await asyncio.sleep(10)
        assert await file.pwrite(512, X * 2) == 1024
        assert await disk.free_bytes("/d") > 0

    use(work)


def test_a_failed_write_may_have_written_a_part():
    async def work(disk: SimDisk) -> int:
        file = await disk.open("/d/a", write=True, create=True)
        with pytest.raises(OSError, match="Input/output"):
            await file.pwrite(0, X)
        return await file.size()

    assert len({use(work, seed=seed, write_error=1.0)[0] for seed in range(20)}) > 3


def test_a_cancelled_call_still_takes_effect():
    async def work(disk: SimDisk) -> bytes:
        file = await disk.open("/d/a", write=True, create=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await file.pwrite(0, X)
        await asyncio.sleep(100)
        return bytes(disk.platter.names["/d/a"].data)

    assert use(work, latency_seconds=0.001, stall=1.0, late=1.0)[0] == X


def test_calls_in_flight_finish_in_any_order():
    async def work(disk: SimDisk) -> bytes:
        file = await disk.open("/d/a", write=True, create=True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(file.pwrite(0, b"1"))
            tasks.create_task(file.pwrite(0, b"2"))
        return await file.pread(0, 1)

    assert {use(work, seed=seed)[0] for seed in range(20)} == {b"1", b"2"}


def test_a_list_has_no_order():
    async def work(disk: SimDisk) -> tuple[str, ...]:
        for name in "abcd":
            await disk.open(f"/d/{name}", write=True, create=True)
        return tuple(await disk.list("/d"))

    seen = {use(work, seed=seed)[0] for seed in range(20)}
    assert len(seen) > 5
    assert {tuple(sorted(names)) for names in seen} == {("a", "b", "c", "d")}


def test_an_atomic_replacement_is_old_or_new_after_any_crash_and_new_once_answered():
    async def first(disk: SimDisk) -> None:
        await disk.write_atomically("/d/a", b"old")

    async def second(disk: SimDisk) -> None:
        await disk.write_atomically("/d/a", b"new" * 400)

    seen = set()
    for crash_at in range(1, 40):
        _, platter, _ = use(first)
        with ended(SimLoop(rng=random.Random(1), crash_at=crash_at)) as loop:
            disk = SimDisk(platter, loop, random.Random(f"{crash_at}"), DiskFaults())
            done = False
            with contextlib.suppress(Crash):
                loop.run_until_complete(second(disk))
                done = True
            disk.dead = True
        lose_power(platter, crash_at, tear=Tear.ANY, names=NameLoss.ANY)
        data = bytes(platter.names["/d/a"].data)
        seen.add(data)
        assert data == b"new" * 400 or (not done and data == b"old")
    assert seen == {b"old", b"new" * 400}


def test_a_cancelled_atomic_replacement_still_happens():
    async def work(disk: SimDisk) -> bytes:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await disk.write_atomically("/d/a", b"whole")
        await asyncio.sleep(100)
        return await disk.read("/d/a")

    assert use(work, stall=1.0)[0] == b"whole"


def test_a_failed_atomic_replacement_leaves_the_old_file_and_no_other():
    async def work(disk: SimDisk) -> bytes:
        await disk.write_atomically("/d/a", b"old")
        disk.fill(60)
        with pytest.raises(OSError, match="No space left"):
            await disk.write_atomically("/d/a", b"new")
        assert await disk.list("/d") == ["a"]
        return await disk.read("/d/a")

    assert use(work)[0] == b"old"


def test_a_lock_is_held_by_one():
    async def work(disk: SimDisk) -> None:
        lock = await disk.lock("/d/lock")
        with pytest.raises(BlockingIOError):
            await disk.lock("/d/lock")
        await lock.release()
        await lock.release()
        await disk.lock("/d/lock")

    use(work)


def test_absent_things_are_absent():
    async def work(disk: SimDisk) -> None:
        for call in (
            disk.open("/d/a"),
            disk.read("/d/a"),
            disk.remove("/d/a"),
            disk.list("/none"),
            disk.fsync_directory("/none"),
            disk.open("/none/a", write=True, create=True),
        ):
            with pytest.raises(FileNotFoundError):
                await call
        assert not await disk.exists("/none")
        await disk.make_directory("/none/deep")
        assert await disk.exists("/none")
        assert await disk.list("/none") == ["deep"]

    use(work)


def test_use_after_close_is_a_recorded_misuse():
    async def work(disk: SimDisk) -> list[str]:
        file = await disk.open("/d/a", write=True, create=True)
        await file.close()
        await file.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            await file.pwrite(0, X)
        return disk.misuse

    assert use(work)[0] == ["pwrite on closed /d/a"]


def test_a_dead_process_reaches_nothing():
    async def work(disk: SimDisk) -> None:
        disk.dead = True
        with pytest.raises(ProcessDead):
            await disk.exists("/d")

    use(work)


def test_a_switched_off_fault_shifts_no_other_draw():
    def draws(**faults: Any) -> list[float]:
        disk = SimDisk(
            Platter(), SimLoop(rng=random.Random(1)), random.Random(2), DiskFaults(**faults)
        )
        luck = [disk.draw().share for _ in range(10)]
        disk.loop.close()
        return luck

    assert draws() == draws(stall=1.0, short_write=1.0, sync_error=1.0)


def test_sectors_are_cut_at_the_file_s_own_boundaries():
    pieces = sectors(Write(seq=1, offset=500, data=bytes(600)))
    assert [(piece.offset, len(piece.data)) for piece in pieces] == [
        (500, 12),
        (512, 512),
        (1024, 76),
    ]
