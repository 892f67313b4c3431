"""Snapshots on a disk that hangs, is full or has a bad sector: nobody waits, nothing is lost."""

import asyncio
import errno
import os
from typing import Any

import pytest

from rlmm_daemon.adapters.disk import LocalFile
from rlmm_daemon.core.user_partitions import Sleeping
from rlmm_daemon.daemon import snapshots, snapshotter
from rlmm_daemon.daemon.bell import Bell
from rlmm_daemon.daemon.caller import Caller
from rlmm_daemon.daemon.crash_guard import blamed
from rlmm_daemon.daemon.follower import Follower
from rlmm_daemon.daemon.operator import Operator
from rlmm_daemon.daemon.snapshotter import SnapshotOptions
from rlmm_daemon.domain.errors import NotReady, StorageFull
from rlmm_daemon.domain.ids import TopicIdPartition
from tests.unit.manager.events import NEIGHBOUR, TP, of, segment_id, until
from tests.unit.manager.test_mapped import NEVER, copied, filled, found, segments_of

#: Of another metadata partition each.
_OTHERS = {
    of(tp): tp for n in range(100) if of(tp := TopicIdPartition(TP.topic_id, "orders", n)) != of(TP)
}
OTHER, THIRD = list(_OTHERS.values())[:2]


async def test_whoever_is_announced_does_not_wait_for_the_last_snapshot_of_who_is_not(
    rig, monkeypatch
):
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.is_ready(TP))
        await copied(manager, 1, 0, 9)

        async def hangs(*_: object) -> int:
            await asyncio.Event().wait()
            return 0

        monkeypatch.setattr(manager.snapshots, "_write_file", hangs)
        manager.replace_assignment([OTHER], [])
        await until(lambda: manager.is_ready(OTHER))
        manager.replace_assignment([OTHER, THIRD], [])
        await until(lambda: manager.is_ready(THIRD))


async def test_a_full_disk_is_not_filled_anew_at_every_turn(rig, monkeypatch):
    monkeypatch.setattr(snapshotter, "POLL_SECONDS", 0.01)
    tries = []

    async def full(_file: object, _offset: int, _data: object) -> int:
        tries.append(1)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(snapshots, "write_fully", full)
    options = SnapshotOptions(after_events=1, after_seconds=10**6)
    async with rig.manager(snapshots=options) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.is_ready(TP))
        await copied(manager, 1, 0, 9)
        follower = manager.fleet.followers[of(TP)]
        await until(lambda: manager.snapshotter.failures == 1)
        turn, real = Bell(), manager.snapshotter._due

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


async def test_a_table_on_a_bad_sector_is_replaced_by_the_log(rig, monkeypatch):
    await filled(rig)
    monkeypatch.setattr(snapshotter, "POLL_SECONDS", 0.01)

    async def pread(_self: object, _offset: int, _length: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(LocalFile, "pread", pread)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.snapshots.rejected == 1)
        await until(lambda: manager.is_ready(TP))
        assert [found(manager, 10 * n) for n in range(20)] == [segment_id(n) for n in range(20)]
        assert segments_of(manager) == 20


async def test_a_bug_over_one_snapshot_is_blamed_on_its_metadata_partition(rig, monkeypatch):
    monkeypatch.setattr(snapshotter, "POLL_SECONDS", 0.01)

    def broken(_fold: object) -> list[bytes]:
        raise AssertionError("a bug")

    async def lived() -> None:
        async with rig.manager(snapshots=SnapshotOptions(after_events=1)) as manager:
            monkeypatch.setattr(manager.snapshots, "image", broken)
            manager.replace_assignment([TP], [])
            await until(lambda: manager.is_ready(TP))
            await copied(manager, 1, 0, 9)
            await asyncio.sleep(10)  # the bug ends it

    with pytest.raises(ExceptionGroup) as caught:
        await lived()
    assert blamed(caught.value) == {of(TP)}


def listed(manager) -> int:
    """Return how many segments an operator finds in what nobody announced; 0 while not ready."""
    try:
        return len(manager.list_remote_log_segments(NEIGHBOUR, None, Caller.OPERATOR))
    except NotReady:
        return 0


async def test_whoever_was_asked_about_once_sleeps_again_after_the_next_snapshot(rig):
    await filled(rig)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.is_ready(TP))
        partitions = manager.fleet.followers[of(TP)].fold.partitions
        await until(lambda: listed(manager) == 20)
        assert not isinstance(partitions.peek(NEIGHBOUR), Sleeping)
        await copied(manager, 20, 200, 209)
        assert await manager.snapshotter.write(manager.fleet.followers[of(TP)]) is not None
        assert isinstance(partitions.peek(NEIGHBOUR), Sleeping)
        assert not isinstance(partitions.peek(TP), Sleeping)
        assert listed(manager) == 20


async def test_a_follower_that_ended_leaves_no_snapshot_behind(rig, monkeypatch):
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.is_ready(TP))
        await copied(manager, 1, 0, 9)
        follower = manager.fleet.followers[of(TP)]
        going, writes = asyncio.Event(), manager.snapshots._write_file

        async def slow(path: str, pieces: object) -> int:
            await going.wait()
            return int(await writes(path, pieces))

        monkeypatch.setattr(manager.snapshots, "_write_file", slow)
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(manager.snapshotter.write(follower))
            await until(lambda: follower.fold.journal is not None)
            await manager.fleet._end(of(TP))
            going.set()
        assert writing.result() is None
        assert await manager.snapshots._generations(of(TP)) == []


async def test_a_snapshot_that_is_asked_for_on_a_full_disk_says_that(rig, monkeypatch):
    async def full(_file: object, _offset: int, _data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(snapshots, "write_fully", full)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.is_ready(TP))
        with pytest.raises(StorageFull, match="No space left"):
            await Operator(manager).snapshot_now(of(TP))
