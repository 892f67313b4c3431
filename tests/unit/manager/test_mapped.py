"""Snapshots under a running manager: taken up in place, moved on to, and damaged."""

import asyncio
from pathlib import Path

import pytest

from rlmm_daemon.core.user_partitions import Sleeping
from rlmm_daemon.daemon import snapshotter
from rlmm_daemon.daemon.caller import Caller
from rlmm_daemon.daemon.snapshotter import SnapshotOptions
from rlmm_daemon.domain.errors import NotReady
from tests.unit.manager.events import NEIGHBOUR, TP, of, segment_id, started, until, updated

BROKER = Caller.BROKER
NEVER = SnapshotOptions(after_events=10**9, after_seconds=10**9)


async def copied(manager, number: int, start: int, end: int, tp=TP) -> None:
    await manager.add(started(number, start, end, tp), BROKER)
    await manager.update(updated(number, tp=tp), BROKER)


def found(manager, offset: int, tp=TP) -> bytes | None:
    record = manager.remote_log_segment_metadata(tp, 0, offset, BROKER)
    return None if record is None else record[record.index(b"orders") + 27 :][:16]


def segments_of(manager, tp=TP) -> int:
    return len(manager.list_remote_log_segments(tp, None, BROKER))


async def filled(rig, count: int = 20) -> None:
    """Leave a snapshot of some segments of two user partitions."""
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP, NEIGHBOUR], [])
        await until(lambda: manager.is_ready(TP) and manager.is_ready(NEIGHBOUR))
        for number in range(count):
            await copied(manager, number, 10 * number, 10 * number + 9)
            await copied(manager, 1000 + number, 10 * number, 10 * number + 9, NEIGHBOUR)
        follower = manager.fleet.followers[of(TP)]
        assert await manager.snapshotter.write(follower) is not None


def snapshot_files(rig) -> list[Path]:
    return sorted(Path(rig.directory, "a").rglob(f"{of(TP)}-*.snapshot"))


def damage(path: Path, what: bytes) -> None:
    """Change the first byte of something that is in a file once."""
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(what)] ^= 1
    path.write_bytes(damaged)


async def test_a_restart_wakes_only_what_is_asked_for(rig):
    await filled(rig)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.is_ready(TP))
        assert found(manager, 55) == segment_id(5)
        partitions = manager.fleet.followers[of(TP)].fold.partitions
        assert isinstance(partitions.peek(NEIGHBOUR), Sleeping)
        await manager.log.append(of(TP), started(2000, 900, 909, NEIGHBOUR))
        await copied(manager, 20, 200, 209)
        assert partitions.peek(NEIGHBOUR).aside_events == 1
        manager.replace_assignment([TP, NEIGHBOUR], [])
        await until(lambda: manager.is_ready(NEIGHBOUR))
        assert segments_of(manager, NEIGHBOUR) == 21
        assert segments_of(manager) == 21


async def test_once_a_snapshot_is_written_the_overlay_is_gone_and_nothing_is_forgotten(rig):
    await filled(rig)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.is_ready(TP))
        follower = manager.fleet.followers[of(TP)]
        for number in range(20, 30):
            await copied(manager, number, 10 * number, 10 * number + 9)
        assert follower.fold.partitions[TP].segments.changed == 10
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(manager.snapshotter.write(follower))
            for number in range(30, 60):  # while it is drawn, written and moved on to
                await copied(manager, number, 10 * number, 10 * number + 9)
        assert follower.fold.journal is None
        assert follower.fold.partitions[TP].segments.changed <= 30
        assert segments_of(manager) == 60
        assert [found(manager, 10 * n + 3) for n in range(60)] == [segment_id(n) for n in range(60)]
        assert await manager.snapshotter.write(follower) is not None
        assert follower.fold.partitions[TP].segments.changed == 0
        assert segments_of(manager) == 60


async def test_a_damaged_table_is_found_in_the_background_and_the_log_replayed(rig):
    await filled(rig)
    (path,) = snapshot_files(rig)
    damage(path, segment_id(1003))  # in the neighbour's table
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.snapshots.rejected == 1)
        await until(lambda: manager.is_ready(TP))
        assert (segments_of(manager), found(manager, 55)) == (20, segment_id(5))
        manager.replace_assignment([TP, NEIGHBOUR], [])
        await until(lambda: manager.is_ready(NEIGHBOUR))
        assert segments_of(manager, NEIGHBOUR) == 20
    assert path.with_name(f"{path.name}.rejected").exists()


@pytest.mark.parametrize("changed", [False, True])
async def test_a_damaged_table_is_not_believed_for_having_been_copied(rig, monkeypatch, changed):
    monkeypatch.setattr(snapshotter, "POLL_SECONDS", 10**9)  # nothing is checked by the way
    await filled(rig)
    (path,) = snapshot_files(rig)
    damage(path, segment_id(1003))
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.is_ready(TP))
        if changed:
            await manager.log.append(of(TP), started(1020, 200, 209, NEIGHBOUR))
        await copied(manager, 20, 200, 209)
        with pytest.raises(NotReady):
            await manager.snapshotter.write(manager.fleet.followers[of(TP)])
        assert snapshot_files(rig) in ([path], [])  # the follower may have set it aside by now
        await until(lambda: manager.snapshots.rejected == 1 and manager.is_ready(TP))
        manager.replace_assignment([TP, NEIGHBOUR], [])
        await until(lambda: manager.is_ready(NEIGHBOUR))
        listed = manager.list_remote_log_segments(NEIGHBOUR, None, BROKER)
        assert all(
            any(segment_id(1000 + number) in record for record in listed) for number in range(20)
        )
        assert len(listed) == 20 + changed


async def test_tables_of_a_file_that_was_removed_are_read_through_its_mapping(rig, monkeypatch):
    monkeypatch.setattr(snapshotter, "POLL_SECONDS", 10**9)
    await filled(rig)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.is_ready(TP))
        follower = manager.fleet.followers[of(TP)]
        await copied(manager, 20, 200, 209)
        image = follower.fold.image
        assert image is not None
        assert image.unchecked()
        snapshot_files(rig)[0].unlink()  # as if others were written since: the mapping is read
        assert await manager.snapshotter.write(follower) is not None
        assert not image.unchecked()
        assert segments_of(manager) == 21


async def test_a_damaged_table_that_is_asked_for_first_is_never_answered_from(rig):
    await filled(rig)
    (path,) = snapshot_files(rig)
    damage(path, segment_id(3))
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.is_ready(TP) and manager.snapshots.rejected == 1)
        assert [found(manager, 10 * n + 3) for n in range(20)] == [segment_id(n) for n in range(20)]
