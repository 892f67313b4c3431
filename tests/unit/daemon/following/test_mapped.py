"""Snapshots under a running manager: taken up in place, moved on to, and damaged."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.core.fold.user_partitions import Sleeping
from rlmm_daemon.core.snapshots import sealing, unsealing
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.following import snapshotter
from rlmm_daemon.daemon.following.snapshots import SnapshotStore
from rlmm_daemon.daemon.following.snapshotter import SnapshotOptions
from rlmm_daemon.domain.errors import HistoryLost, NotReady
from rlmm_daemon.domain.ids import MetadataPartition, TopicId
from rlmm_daemon.domain.segment import SegmentState
from tests.support.memory_log import MemoryLogStore
from tests.unit.daemon.events import NEIGHBOUR, TP, copied, of, segment_id, started, until, updated

BROKER = Caller.BROKER
DELETE_STARTED = SegmentState.DELETE_SEGMENT_STARTED
NEVER = SnapshotOptions(after_events=10**9, after_seconds=10**9)


def found(manager, offset: int, tp=TP) -> bytes | None:
    record = manager.lookups.remote_log_segment_metadata(tp, 0, offset, BROKER)
    return None if record is None else record[record.index(b"orders") + 27 :][:16]


def segments_of(manager, tp=TP) -> int:
    return len(manager.lookups.list_remote_log_segments(tp, None, BROKER))


async def filled(rig, count: int = 20) -> None:
    """Leave a snapshot of some segments of two user partitions."""
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP, NEIGHBOUR], [])
        await until(lambda: manager.lookups.is_ready(TP) and manager.lookups.is_ready(NEIGHBOUR))
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
        await until(lambda: manager.lookups.is_ready(TP))
        assert found(manager, 55) == segment_id(5)
        partitions = manager.fleet.followers[of(TP)].fold.partitions
        assert isinstance(partitions.peek(NEIGHBOUR), Sleeping)
        await manager.log.append(of(TP), started(2000, 900, 909, NEIGHBOUR))
        await copied(manager, 20, 200, 209)
        assert partitions.peek(NEIGHBOUR).aside_events == 1
        assert NEIGHBOUR not in partitions.restless(), "what looks for stuck copies wakes it"
        manager.replace_assignment([TP, NEIGHBOUR], [])
        await until(lambda: manager.lookups.is_ready(NEIGHBOUR))
        assert segments_of(manager, NEIGHBOUR) == 21
        assert segments_of(manager) == 21


async def test_a_delete_of_a_partition_that_sleeps_is_told_of_before_it_is_applied(rig):
    """A copy may run on when its partition was given to another broker; it has to hear of it."""
    await filled(rig)
    async with rig.manager(snapshots=NEVER) as manager:
        told, aside = list[object](), list[object]()
        manager.events.on_delete_started.append(lambda *at: told.append(at))
        manager.events.on_delete_put_aside.append(lambda *at: aside.append(at))
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        await manager.log.append(of(TP), updated(1003, DELETE_STARTED, tp=NEIGHBOUR))
        await manager.log.append(of(TP), updated(1004, tp=NEIGHBOUR)[:-9] + b"\x02\x00")
        await copied(manager, 20, 200, 209)
        assert isinstance(manager.fleet.followers[of(TP)].fold.partitions.peek(NEIGHBOUR), Sleeping)
        assert (told, aside) == ([], [(NEIGHBOUR, segment_id(1003))])


async def test_once_a_snapshot_is_written_the_overlay_is_gone_and_nothing_is_forgotten(rig):
    await filled(rig)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
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


async def test_too_much_put_aside_makes_a_snapshot_due(rig, monkeypatch):
    monkeypatch.setattr(snapshotter, "POLL_SECONDS", 0.01)
    await filled(rig)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        follower = manager.fleet.followers[of(TP)]
        partitions, image = follower.fold.partitions, follower.fold.image
        monkeypatch.setattr(snapshotter, "ASIDE_BYTES", 1_000)
        monkeypatch.setattr(snapshotter, "ASIDE_SHARE", 10**9)
        number = 2_000
        while partitions.aside_bytes <= 800:
            assert follower.fold.image is image, "nothing was due yet"
            await manager.log.append(of(TP), started(number, number, number, NEIGHBOUR))
            await until(lambda: follower.fold.position == rig.store.partition(of(TP)).end)
            number += 1
        monkeypatch.setattr(snapshotter, "ASIDE_BYTES", 700)
        await until(lambda: follower.fold.image is not image)
        assert partitions.aside_bytes == 0
        assert isinstance(partitions.peek(NEIGHBOUR), Sleeping)
        assert sum(partitions.peek(NEIGHBOUR).segments_by_state) == 20 + number - 2_000


async def test_a_damaged_table_is_found_in_the_background_and_the_log_replayed(rig):
    await filled(rig)
    (path,) = snapshot_files(rig)
    damage(path, segment_id(1003))  # in the neighbour's table
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.snapshots.rejected == 1)
        await until(lambda: manager.lookups.is_ready(TP))
        assert (segments_of(manager), found(manager, 55)) == (20, segment_id(5))
        manager.replace_assignment([TP, NEIGHBOUR], [])
        await until(lambda: manager.lookups.is_ready(NEIGHBOUR))
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
        await until(lambda: manager.lookups.is_ready(TP))
        if changed:
            await manager.log.append(of(TP), started(1020, 200, 209, NEIGHBOUR))
        await copied(manager, 20, 200, 209)
        with pytest.raises(NotReady):
            await manager.snapshotter.write(manager.fleet.followers[of(TP)])
        assert snapshot_files(rig) in ([path], [])  # the follower may have set it aside by now
        await until(lambda: manager.snapshots.rejected == 1 and manager.lookups.is_ready(TP))
        manager.replace_assignment([TP, NEIGHBOUR], [])
        await until(lambda: manager.lookups.is_ready(NEIGHBOUR))
        listed = manager.lookups.list_remote_log_segments(NEIGHBOUR, None, BROKER)
        assert all(
            any(segment_id(1000 + number) in record for record in listed) for number in range(20)
        )
        assert len(listed) == 20 + changed


async def test_tables_of_a_file_that_was_removed_are_read_through_its_mapping(rig, monkeypatch):
    monkeypatch.setattr(snapshotter, "POLL_SECONDS", 10**9)
    await filled(rig)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
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
        await until(lambda: manager.lookups.is_ready(TP) and manager.snapshots.rejected == 1)
        assert [found(manager, 10 * n + 3) for n in range(20)] == [segment_id(n) for n in range(20)]


def store_of(rig, **other) -> SnapshotStore:
    """Return the store of a process that is on another log in these respects."""
    store = SnapshotStore(rig.disk, str(snapshot_files(rig)[0].parent), SystemClock())
    store.belongs_to(replace(rig.store.identity, **other))
    return store


@pytest.mark.parametrize(
    ("same", "other"),
    [
        (True, {}),
        (True, {"cluster_id": None}),
        (False, {"cluster_id": "another"}),
        (False, {"topic_id": TopicId(bytes(16))}),
        (False, {"partition_count": 6}),
    ],
)
async def test_a_snapshot_is_of_the_log_whose_identity_it_names(rig, same, other):
    rig.store = MemoryLogStore(
        topic_id=rig.store.identity.topic_id, partition_count=3, cluster_id="ours"
    )
    await filled(rig, 1)
    loaded = await store_of(rig, **other).load(of(TP))
    assert loaded is not None
    assert loaded.same_log is same


async def test_a_snapshot_of_another_cluster_is_never_answered_from(rig):
    rig.store = MemoryLogStore(
        topic_id=rig.store.identity.topic_id, partition_count=3, cluster_id="ours"
    )
    await filled(rig)
    (path,) = snapshot_files(rig)
    header, fold = unsealing.in_place(path.read_bytes())
    fold.apply(fold.position, started(99, 900, 999))
    fold.apply(fold.position, updated(99))
    fold.position = header.next_offset
    other = msgspec.structs.replace(header, cluster_id="another")
    path.write_bytes(b"".join(sealing.write_chunks(fold, other)))
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: bool(manager.fleet.followers))
        follower = manager.fleet.followers[of(TP)]
        await until(lambda: follower.failure is not None)
        with pytest.raises(HistoryLost, match="1 finished segment"):
            found(manager, 950)
        assert follower.fold.image is None


async def test_a_file_under_another_metadata_partitions_name_is_rejected(rig):
    await filled(rig, 1)
    (path,) = snapshot_files(rig)
    other = MetadataPartition((of(TP) + 1) % 3)
    path.rename(path.with_name(path.name.replace(f"{of(TP)}-", f"{other}-", 1)))
    store = SnapshotStore(rig.disk, str(path.parent), SystemClock())
    store.belongs_to(rig.store.identity)
    assert await store.load(other) is None
    assert (store.rejected, len(list(path.parent.glob("*.rejected")))) == (1, 1)


async def test_of_two_generations_the_older_is_taken_if_the_newest_is_damaged(rig):
    await filled(rig)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP, NEIGHBOUR], [])
        await until(lambda: manager.lookups.is_ready(TP) and manager.lookups.is_ready(NEIGHBOUR))
        for number in range(20, 24):
            await copied(manager, number, 10 * number, 10 * number + 9)
            assert await manager.snapshotter.write(manager.fleet.followers[of(TP)]) is not None
            assert len(snapshot_files(rig)) == 2
    older, newest = snapshot_files(rig)
    damage(newest, rig.store.identity.topic_id)  # in the header
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        image = manager.fleet.followers[of(TP)].fold.image
        assert image is not None
        assert image.path == str(older)
        assert manager.snapshots.rejected == 1
        assert [found(manager, 10 * n + 3) for n in range(24)] == [segment_id(n) for n in range(24)]


async def test_a_damaged_table_sends_the_follower_back_to_the_generation_before(rig):
    await filled(rig)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP, NEIGHBOUR], [])
        await until(lambda: manager.lookups.is_ready(TP) and manager.lookups.is_ready(NEIGHBOUR))
        await copied(manager, 20, 200, 209)
        assert await manager.snapshotter.write(manager.fleet.followers[of(TP)]) is not None
    older, newest = snapshot_files(rig)
    damage(newest, segment_id(3))
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.snapshots.rejected == 1 and manager.lookups.is_ready(TP))
        image = manager.fleet.followers[of(TP)].fold.image
        assert image is not None
        assert image.path == str(older)
        assert [found(manager, 10 * n + 3) for n in range(21)] == [segment_id(n) for n in range(21)]


async def test_a_snapshot_from_before_the_logs_start_is_history_lost_and_stays(rig):
    await filled(rig)
    (path,) = snapshot_files(rig)
    end = rig.store.partition(of(TP)).end
    rig.store.put(of(TP), started(99, 900, 999))
    rig.store.trim(of(TP), end + 1)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: bool(manager.fleet.followers))
        follower = manager.fleet.followers[of(TP)]
        await until(lambda: follower.failure is not None)
        with pytest.raises(HistoryLost, match=f"starts at {end + 1}") as lost:
            found(manager, 55)
        assert lost.value.fields["command"] == f"rlmm partition accept-loss {of(TP)}"
        assert path.exists()


async def test_a_damaged_snapshot_of_what_the_log_lost_its_head_of_is_history_lost(rig):
    """Nothing but the snapshot knew the head: what is left to read is not the whole."""
    await filled(rig)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        follower = manager.fleet.followers[of(TP)]
        start = follower.fold.position - 1
        rig.store.trim(of(TP), start)
        follower.fold.partitions.damaged(follower.fold.image, "as a test wants it")
        await until(lambda: follower.failure or (not follower.restarting and follower.read_to_end))
        with pytest.raises(HistoryLost, match=f"starts at {start} now, this daemon stands at 0"):
            found(manager, 55)


async def test_a_refused_snapshot_with_a_damaged_table_does_not_answer_for_all_that_was_read(rig):
    """The log lost the last finish, and the table that knew of it can't be compared with."""
    await filled(rig)
    (path,) = snapshot_files(rig)
    damage(path, segment_id(1019))
    rig.store.truncate(of(TP), rig.store.partition(of(TP)).end - 1)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP, NEIGHBOUR], [])
        await until(lambda: bool(manager.fleet.followers))
        follower = manager.fleet.followers[of(TP)]
        await until(lambda: follower.failure is not None or manager.lookups.is_ready(NEIGHBOUR))
        with pytest.raises(HistoryLost, match="had been read and the log does not hold it"):
            found(manager, 195, NEIGHBOUR)


@pytest.fixture
async def running(rig, monkeypatch):
    """A manager that goes on from a snapshot with a damaged table, which nobody has met yet."""
    monkeypatch.setattr(snapshotter, "POLL_SECONDS", 10**9)  # nothing is checked by the way
    await filled(rig)
    (path,) = snapshot_files(rig)
    damage(path, segment_id(1019))  # in the neighbour's table
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        yield manager


async def judged(manager):
    """Return the follower once it has read again, and either failed or is ready."""
    follower = manager.fleet.followers[of(TP)]
    known = follower.fold
    await until(lambda: follower.fold is not known)
    manager.replace_assignment([TP, NEIGHBOUR], [])
    await until(lambda: follower.failure is not None or manager.lookups.is_ready(NEIGHBOUR))
    return follower


async def test_a_damaged_table_of_a_fold_whose_log_loses_its_tail_is_not_passed_over(rig, running):
    """The log lost the last finish, and the table that knew of it can't be compared with."""
    rig.store.truncate(of(TP), rig.store.partition(of(TP)).end - 1)
    follower = await judged(running)
    assert follower.uncertain
    with pytest.raises(HistoryLost, match="had been read and the log does not hold it"):
        found(running, 195, NEIGHBOUR)
    await running.fleet.acceptance.accept(follower)
    await until(lambda: running.lookups.is_ready(NEIGHBOUR))


async def test_a_damaged_table_of_a_fold_whose_topic_is_recreated_is_not_passed_over(rig, running):
    """The other log holds all that the rest of the fold knew, at the same offsets and epochs."""
    values = list(rig.store.partition(of(TP)).values)
    rig.store.recreate(TopicId(b"o" * 16))
    for value in [*values[:-1], *values[:2]]:
        rig.store.put(of(TP), value)
    follower = await judged(running)
    assert follower.uncertain
    with pytest.raises(HistoryLost):
        found(running, 195, NEIGHBOUR)


async def test_a_damaged_table_of_a_fold_that_is_rebuilt_is_read_again_from_the_log(running):
    running.fleet.followers[of(TP)].rebuild()
    follower = await judged(running)
    assert follower.failure is None
    assert (segments_of(running), segments_of(running, NEIGHBOUR)) == (20, 20)
