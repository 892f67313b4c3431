"""Snapshots on a disk that hangs, is full or has a bad sector: nobody waits, nothing is lost."""

import asyncio
import errno
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from mmap import PAGESIZE, mmap
from typing import Any

import pytest

from rlmm_daemon.adapters.os.disk import LocalFile, _map
from rlmm_daemon.core.fold import fold as fold_module
from rlmm_daemon.core.fold import user_partitions
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.user_partitions import Sleeping
from rlmm_daemon.core.snapshots import sealing, unsealing
from rlmm_daemon.daemon.base.appends import MustWait
from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.crash_guard import blamed
from rlmm_daemon.daemon.following import snapshots, snapshotter
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.following.snapshotter import SnapshotOptions
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.domain.errors import Malformed, NotReady, StorageFull, StorageUnavailable
from rlmm_daemon.domain.ids import TopicIdPartition
from tests.unit.daemon.events import NEIGHBOUR, TP, copied, of, segment_id, started, until, updated
from tests.unit.daemon.following.test_mapped import (
    BROKER,
    NEVER,
    damage,
    filled,
    found,
    segments_of,
    snapshot_files,
)

#: Of another metadata partition each.
_OTHERS = {
    of(tp): tp for n in range(100) if of(tp := TopicIdPartition(TP.topic_id, "orders", n)) != of(TP)
}
OTHER, THIRD = list(_OTHERS.values())[:2]


def slowed(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> asyncio.Event:
    """Hold every call of a coroutine function until the returned event is set."""
    going, real = asyncio.Event(), getattr(owner, name)

    async def slow(*arguments: Any) -> Any:
        await going.wait()
        return await real(*arguments)

    monkeypatch.setattr(owner, name, slow)
    return going


def failing(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, number: int
) -> list[tuple[Any, ...]]:
    """Let every call of a coroutine function fail with an error of the disk; return the calls."""
    calls = list[tuple[Any, ...]]()

    async def fails(*arguments: Any) -> None:
        calls.append(arguments)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(owner, name, fails)
    return calls


async def test_snapshots_of_a_dropped_fold_go_once_the_replay_was_compared(rig):
    """They are of a history that may not be the log's: the next start must not begin with them."""
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        await copied(manager, 1, 0, 9)
        follower = manager.fleet.followers[of(TP)]
        assert await manager.snapshotter.write(follower) is not None
        assert snapshot_files(rig)
        dropped = follower.fold
        await Operator(manager).partition_rebuild(of(TP))
        await until(lambda: follower.fold is not dropped and manager.lookups.is_ready(TP))
        assert not follower.history.comparing
        assert snapshot_files(rig) == []


@pytest.mark.parametrize("mends", [False, True])
async def test_a_snapshot_goes_with_what_an_operator_gave_up_or_mends(rig, mends):
    """A start from it would bring back what was given up, at offsets that mean other records."""
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        await copied(manager, 1, 0, 9)
        follower = manager.fleet.followers[of(TP)]
        assert await manager.snapshotter.write(follower) is not None
        assert snapshot_files(rig)
        await (follower.known_to_snapshot() if mends else follower.accept_loss())
        assert snapshot_files(rig) == []


async def test_whoever_is_announced_does_not_wait_for_the_last_snapshot_of_who_is_not(
    rig, monkeypatch
):
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        await copied(manager, 1, 0, 9)

        async def hangs(*_: object) -> int:
            await asyncio.Event().wait()
            return 0

        monkeypatch.setattr(manager.snapshots, "_write_file", hangs)
        manager.replace_assignment([OTHER], [])
        await until(lambda: manager.lookups.is_ready(OTHER))
        manager.replace_assignment([OTHER, THIRD], [])
        await until(lambda: manager.lookups.is_ready(THIRD))


async def test_a_full_disk_is_not_filled_anew_at_every_turn(rig, monkeypatch):
    monkeypatch.setattr(snapshotter, "POLL_SECONDS", 0.01)
    tries = failing(monkeypatch, snapshots, "write_fully", errno.ENOSPC)
    options = SnapshotOptions(after_events=1, after_seconds=10**6)
    async with rig.manager(snapshots=options) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        await copied(manager, 1, 0, 9)
        follower = manager.fleet.followers[of(TP)]
        await until(lambda: manager.snapshotter.failures == 1)
        turn, real = Broadcast(), manager.snapshotter._due

        def due(follower: Follower) -> Any:
            turn.ring()
            return real(follower)

        monkeypatch.setattr(manager.snapshotter, "_due", due)
        for number in range(2, 12):  # the next events, and the turns behind them
            await copied(manager, number, 10 * number, 10 * number + 9)
            await turn.wait()
        assert len(tries) == 1
        monkeypatch.undo()
        monkeypatch.setattr(snapshotter, "POLL_SECONDS", 0.01)
        follower.snapshot_failed_ms = 0  # the pause is over
        await until(lambda: follower.fold.image is not None)
        assert follower.snapshot_failed_ms is None


async def test_a_clock_that_is_set_back_puts_no_snapshot_off(rig):
    """One of a clock that was a year ahead was young, and one that failed then so, for a year."""
    options = SnapshotOptions(after_events=10**9, after_seconds=300)
    async with rig.manager(snapshots=options) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        await copied(manager, 1, 0, 9)
        follower, due = manager.fleet.followers[of(TP)], manager.snapshotter._due
        assert not due(follower)
        ahead_ms = manager.clock.now_ms() + 10**9
        follower.snapshot_at_ms = follower.snapshot_failed_ms = ahead_ms
        assert due(follower)
        follower.snapshot_at_ms = follower.snapshot_failed_ms = manager.clock.now_ms()
        assert not due(follower)


async def test_a_table_on_a_bad_sector_is_replaced_by_the_log(rig, monkeypatch):
    await filled(rig)
    monkeypatch.setattr(snapshotter, "POLL_SECONDS", 0.01)
    failing(monkeypatch, LocalFile, "pread", errno.EIO)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.snapshots.rejected == 1)
        await until(lambda: manager.lookups.is_ready(TP))
        assert [found(manager, 10 * n) for n in range(20)] == [segment_id(n) for n in range(20)]
        assert segments_of(manager) == 20


async def test_a_long_table_is_read_by_a_thread_before_it_is_answered_from(rig, monkeypatch):
    await filled(rig)
    monkeypatch.setattr(snapshotter, "POLL_SECONDS", 10**9)  # nothing is checked by the way
    monkeypatch.setattr(user_partitions, "TOUCHED_BYTES_MAX", 0)
    going = slowed(monkeypatch, LocalFile, "pread")
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.snapshotter._asking._waiting and manager.followed())
        (follower,) = manager.followed()
        await until(lambda: TP in follower.confirmation.confirmed)
        with pytest.raises(NotReady, match="read through"):
            found(manager, 55)
        assert not manager.lookups.is_ready(TP)
        with pytest.raises(MustWait):
            manager.events.begin_add(started(20, 200, 209), 30, lambda _: None)
        async with asyncio.TaskGroup() as tasks:
            adding = tasks.create_task(manager.events.add(started(20, 200, 209), BROKER))
            await asyncio.sleep(0)
            assert isinstance(follower.fold.partitions.peek(TP), Sleeping)
            assert not adding.done()
            going.set()
            await manager.lookups.until_readable(TP, BROKER, 60)
        assert found(manager, 55) == segment_id(5)
        assert segments_of(manager) == 21
        assert follower.fold.image is not None
        assert len(follower.fold.image.unchecked()) == 1, "the neighbour's"


@pytest.mark.parametrize("damaged", [False, True])
async def test_a_long_table_of_a_disk_that_fails_otherwise_is_mapped_after_all(
    rig, monkeypatch, damaged
):
    await filled(rig)
    if damaged:
        damage(snapshot_files(rig)[0], segment_id(3))
    monkeypatch.setattr(snapshotter, "POLL_SECONDS", 10**9)
    monkeypatch.setattr(user_partitions, "TOUCHED_BYTES_MAX", 0)
    failing(monkeypatch, LocalFile, "pread", errno.EMFILE)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        assert [found(manager, 10 * n) for n in range(20)] == [segment_id(n) for n in range(20)]
        assert manager.snapshots.rejected == damaged


async def test_a_damaged_long_table_is_replaced_by_the_log(rig, monkeypatch):
    await filled(rig)
    damage(snapshot_files(rig)[0], segment_id(3))
    monkeypatch.setattr(snapshotter, "POLL_SECONDS", 10**9)
    monkeypatch.setattr(user_partitions, "TOUCHED_BYTES_MAX", 0)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        assert manager.snapshots.rejected == 1
        assert [found(manager, 10 * n) for n in range(20)] == [segment_id(n) for n in range(20)]


async def test_a_bug_over_one_snapshot_is_blamed_on_its_metadata_partition(rig, monkeypatch):
    monkeypatch.setattr(snapshotter, "POLL_SECONDS", 0.01)

    def broken(_fold: object) -> list[bytes]:
        raise AssertionError("a bug")

    async def lived() -> None:
        async with rig.manager(snapshots=SnapshotOptions(after_events=1)) as manager:
            monkeypatch.setattr(manager.snapshots, "image", broken)
            manager.replace_assignment([TP], [])
            await until(lambda: manager.lookups.is_ready(TP))
            await copied(manager, 1, 0, 9)
            await asyncio.sleep(10)  # the bug ends it

    with pytest.raises(ExceptionGroup) as caught:
        await lived()
    assert blamed(caught.value) == {of(TP)}


def listed(manager) -> int:
    """Return how many segments an operator finds in what nobody announced; 0 while not ready."""
    try:
        return len(manager.lookups.list_remote_log_segments(NEIGHBOUR, None, Caller.OPERATOR))
    except NotReady:
        return 0


async def test_whoever_was_asked_about_once_sleeps_again_after_the_next_snapshot(rig):
    await filled(rig)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        partitions = manager.fleet.followers[of(TP)].fold.partitions
        await until(lambda: listed(manager) == 20)
        assert not isinstance(partitions.peek(NEIGHBOUR), Sleeping)
        await copied(manager, 20, 200, 209)
        assert await manager.snapshotter.write(manager.fleet.followers[of(TP)]) is not None
        assert isinstance(partitions.peek(NEIGHBOUR), Sleeping)
        assert not isinstance(partitions.peek(TP), Sleeping)
        assert listed(manager) == 20


async def with_one_segment(manager: Manager) -> Follower:
    manager.replace_assignment([TP], [])
    await until(lambda: manager.lookups.is_ready(TP))
    await copied(manager, 0, 0, 9)
    return manager.fleet.followers[of(TP)]


@asynccontextmanager
async def held_write(
    manager: Manager, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[asyncio.Task[Any], None]:
    """Do the block while a snapshot is being written; the file is whole behind it."""
    going = slowed(monkeypatch, manager.snapshots, "_write_file")
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(manager.snapshotter.write(follower))
        await until(lambda: follower.fold.journal is not None)
        yield writing
        going.set()


async def test_a_follower_that_ended_leaves_no_snapshot_behind(rig, monkeypatch):
    async with rig.manager(snapshots=NEVER) as manager:
        follower = await with_one_segment(manager)
        async with held_write(manager, follower, monkeypatch) as writing:
            await manager.fleet._end(of(TP))
        assert writing.result() is None
        assert await manager.snapshots._generations(of(TP)) == []


async def test_what_is_noted_while_a_snapshot_is_written_has_a_bound(rig, monkeypatch):
    """A disk that hangs must not fill the memory; the file is good, and the next is moved on to."""
    monkeypatch.setattr(fold_module, "JOURNAL_EVENTS_MAX", 10)
    async with rig.manager(snapshots=NEVER) as manager:
        follower = await with_one_segment(manager)
        async with held_write(manager, follower, monkeypatch) as writing:
            for number in range(1, 8):
                await copied(manager, number, 10 * number, 10 * number + 9)
            assert follower.fold.journal is None
        assert writing.result() is not None
        before = follower.fold.image
        assert before is None, "it was not moved on to"
        assert [found(manager, 10 * n) for n in range(8)] == [segment_id(n) for n in range(8)]
        assert await manager.snapshotter.write(follower) is not None
        assert follower.fold.image is not None
        assert follower.fold.partitions[TP].segments.changed == 0
        assert [found(manager, 10 * n) for n in range(8)] == [segment_id(n) for n in range(8)]


async def test_of_what_was_set_aside_the_newest_alone_is_kept(rig):
    await filled(rig)
    (path,) = snapshot_files(rig)
    others = [path.with_name(f"{n}-000000000{g}.snapshot.rejected") for n, g in ((0, 1), (11, 2))]
    mine = [path.with_name(f"{of(TP)}-000000000{g}.snapshot.rejected") for g in (3, 4, 5)]
    for each in (*others, *mine):
        each.write_bytes(b"damaged")
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        assert await manager.snapshotter.write(manager.fleet.followers[of(TP)]) is not None
    left = {each.name for each in path.parent.glob("*.rejected")}
    assert left == {each.name for each in (*others, mine[-1])}


async def test_a_snapshot_that_is_asked_for_on_a_full_disk_says_that(rig, monkeypatch):
    failing(monkeypatch, snapshots, "write_fully", errno.ENOSPC)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        with pytest.raises(StorageFull, match="No space left"):
            await Operator(manager).snapshot_now(of(TP))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
async def test_a_snapshot_that_cannot_be_written_now_is_no_fault_of_who_asked(
    rig, monkeypatch, number
):
    failing(monkeypatch, snapshots, "write_fully", number)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        with pytest.raises(StorageUnavailable, match="could not be written"):
            await Operator(manager).snapshot_now(of(TP))


def test_whoever_looks_at_a_file_that_was_cut_short_below_it_lives(tmp_path):
    """As a bad sector: the kernel says so when it is asked, and ends who is not asking."""
    fold = Fold(of(TP), 3)
    for number in range(300):
        fold.apply(2 * number, started(number, 10 * number, 10 * number + 9))
        fold.apply(2 * number + 1, updated(number))
    header = sealing.header_of(fold, cluster_id=None, topic_id=TP.topic_id, created_at_ms=0)
    path = tmp_path / "0-0000000001.snapshot"
    path.write_bytes(b"".join(sealing.write_chunks(fold, header)))
    mapped = _map(str(path))
    _, laid = unsealing.in_place(mapped)
    os.truncate(path, PAGESIZE)  # the header is left
    assert isinstance(mapped, mmap)
    try:
        mapped.madvise(22)  # MADV_POPULATE_READ
    except OSError as error:
        if error.errno == errno.EINVAL:
            pytest.skip("this kernel cannot be asked")
    told = list[str]()
    laid.partitions.on_damage = told.append
    with pytest.raises(NotReady, match="does not give"):
        laid.partitions.get(TP)
    assert len(told) == 1
    with pytest.raises(Malformed, match="does not give"):
        unsealing.in_place(mapped)
