"""Bugs that a second pair of eyes found, each as the scenario that showed it."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from rlmm_daemon.codec import records
from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.readiness.follower_inputs import Broken
from rlmm_daemon.core.readiness.states import FailureReason, TroubleKind
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.following.bucket_record import BucketLog
from rlmm_daemon.daemon.following.confirmation import Confirmation
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.domain.errors import (
    ConfigError,
    Draining,
    HistoryLost,
    InvalidArgument,
    LogCorrupt,
    NotReady,
    StorageUnavailable,
)
from rlmm_daemon.domain.ids import TopicIdPartition, uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata
from tests.support.memory_log import MemoryEventLog
from tests.unit.daemon.events import TP, copied, of, ready, segment_id, started, until, updated
from tests.unit.daemon.following.test_mapped import NEVER
from tests.unit.daemon.metadata.test_previous_state import OTHER, FakeBucket

BROKER, OPERATOR = Caller.BROKER, Caller.OPERATOR


async def failed(manager):
    manager.replace_assignment([TP], [])
    await until(lambda: of(TP) in manager.fleet.followers)
    follower = manager.fleet.followers[of(TP)]
    await until(lambda: follower.failure is not None)
    return follower


def ask(manager, offset: int = 5):
    return manager.lookups.remote_log_segment_metadata(TP, 0, offset, BROKER)


def never_read(rig) -> FakeBucket:
    """A presence file that had read further than the log reaches."""
    return FakeBucket(
        BucketLog(
            topic_id=rig.store.identity.topic_id,
            partition_count=3,
            positions={of(TP): Position(7, 0)},
        )
    )


async def test_a_retry_checks_an_unconfirmed_position_anew_instead_of_forgetting_it(rig):
    async with rig.manager(bucket=never_read(rig)) as manager:
        follower = await failed(manager)
        follower.retry()
        for _ in range(5):
            with pytest.raises((HistoryLost, NotReady)):
                ask(manager)
            await asyncio.sleep(0)
        await until(lambda: not follower.restarting)
        await until(lambda: follower.failure is not None)
        with pytest.raises(HistoryLost):
            ask(manager)


async def test_a_foreign_log_is_not_made_ours_by_a_rebuild(rig):
    bucket = FakeBucket(BucketLog(topic_id=OTHER, partition_count=3))
    async with rig.manager(bucket=bucket) as manager:
        follower = await failed(manager)
        assert follower.failure.command(of(TP)) == "rlmm partition accept-loss --all"
        with pytest.raises(InvalidArgument, match="accept-loss --all"):
            follower.rebuild()


async def test_a_heartbeat_without_an_epoch_does_not_switch_the_lineage_check_off(rig):
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await copied(manager, 2, 10, 19)
        await manager.drain()
    async with rig.manager() as manager:
        await ready(manager)
        await until(lambda: manager.fleet.followers[of(TP)].settled is not None)
        assert manager.fleet.followers[of(TP)].fold.leader_epoch >= 0
        manager.fleet.followers[of(TP)].applied_since_snapshot = 1
        await manager.drain()
    rig.store.truncate(of(TP), 2)
    for number in (3, 4):
        rig.store.put(of(TP), started(number, 30, 39))
    async with rig.manager() as manager:
        await failed(manager)
        with pytest.raises(HistoryLost):
            ask(manager, 15)


async def test_a_truncation_that_was_settled_live_does_not_come_back_at_the_next_start(rig):
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await manager.events.add(started(2, 10, 19), BROKER)
        await until(lambda: manager.fleet.followers[of(TP)].settled == Position(3, 0))
        await manager.fleet.noted.write()
        rig.store.truncate(of(TP), 2)
        follower = manager.fleet.followers[of(TP)]
        await until(lambda: follower.fold.position == 2 and manager.lookups.is_ready(TP))
        await manager.drain()
    async with rig.manager() as manager:
        await ready(manager)
        assert ask(manager) is not None


async def test_a_tail_that_was_lost_while_nobody_ran_is_settled_by_what_the_snapshot_knew(rig):
    """No finished segment is missing, so the position that was read asks for nothing more."""
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await manager.events.add(started(2, 10, 19), BROKER)
        await until(lambda: manager.fleet.followers[of(TP)].settled == Position(3, 0))
        await manager.drain()
        await manager.fleet.noted.write()
    rig.store.truncate(of(TP), 2)
    async with rig.manager() as manager:
        await ready(manager)
        assert ask(manager) is not None


async def test_a_position_that_the_log_lacks_names_the_commands_that_end_it(rig):
    """What stood before it nobody here knows: its objects are looked for, then it is accepted."""
    async with rig.manager(bucket=never_read(rig)) as manager:
        follower = await failed(manager)
        assert follower.failure.command(of(TP)) == f"rlmm log recover {of(TP)}"
        follower.looked_for = True  # as `rlmm log recover` leaves it
        follower.retry()
        command = f"rlmm partition accept-loss {of(TP)}"
        await until(lambda: follower.failure and follower.failure.command(of(TP)) == command)


async def test_a_loss_may_be_accepted_while_the_log_is_asked_for_a_position(rig, monkeypatch):
    second, answered = asyncio.Event(), asyncio.Event()
    ask_log, asked = MemoryEventLog.epoch_end, []

    async def slow(self, *about):
        asked.append(about)
        if len(asked) > 1:
            second.set()
            await answered.wait()
        return await ask_log(self, *about)

    async with rig.manager(bucket=never_read(rig)) as manager:
        follower = await failed(manager)
        monkeypatch.setattr(MemoryEventLog, "epoch_end", slow)
        follower.recheck([Position(9, 0)])
        await second.wait()
        await manager.fleet.acceptance.accept(follower)
        answered.set()
        await until(lambda: manager.lookups.is_ready(TP))


@pytest.mark.parametrize("written", [0, 4])
async def test_a_tail_cut_off_after_it_was_confirmed_and_before_it_is_read_is_history_lost(
    rig, monkeypatch, written
):
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await copied(manager, 2, 10, 19)
        await manager.fleet.noted.write()
    ask_log, asked = MemoryEventLog.epoch_end, list[object]()

    async def then_cut(self, *about):
        found = await ask_log(self, *about)
        if not asked:
            asked.append(about)
            rig.store.truncate(of(TP), 2)
            for number in range(3, 3 + written):
                rig.store.put(of(TP), started(number, 10 * number, 10 * number + 9))
        return found

    monkeypatch.setattr(MemoryEventLog, "epoch_end", then_cut)
    async with rig.manager() as manager:
        follower = await failed(manager)
        assert asked
        assert "offset 4 of epoch 0" in follower.failure.evidence
        with pytest.raises(HistoryLost):
            ask(manager)
        await manager.fleet.acceptance.accept(follower)
        await until(lambda: manager.lookups.is_ready(TP))


async def test_a_bucket_that_is_read_late_makes_nothing_uncertain_that_a_snapshot_knew_whole(rig):
    """The comparison answers for its position too: what a repair can put back stays so."""
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await copied(manager, 2, 10, 19)
        await manager.drain()
    rig.store.truncate(of(TP), 2)
    known = BucketLog(
        topic_id=rig.store.identity.topic_id,
        partition_count=3,
        positions={of(TP): Position(4, 0)},
    )
    bucket = FakeBucket(known, away=True)
    async with rig.manager(bucket=bucket) as manager:
        follower = await failed(manager)
        assert not follower.uncertain
        bucket.away = False
        await manager.fleet.check_marker()
        assert not follower.uncertain
        assert follower.failure.command(of(TP)) == f"rlmm log repair {of(TP)}"


async def test_another_log_that_loses_its_tail_is_still_another_log(rig):
    """To compare it with itself finds nothing missing, and says nothing of the log that was."""
    for number in (1, 2):
        rig.store.put(of(TP), started(number, 10 * number, 10 * number + 9))
    bucket = FakeBucket(BucketLog(topic_id=OTHER, partition_count=3))
    async with rig.manager(bucket=bucket) as manager:
        follower = await failed(manager)
        await until(lambda: follower.fold.position == 2)
        rig.store.truncate(of(TP), 1)
        await until(lambda: follower.fold.position == 1 and follower.read_to_end)
        for _ in range(5):
            await follower.changed.wait()  # judged again and again
        with pytest.raises(HistoryLost):
            ask(manager)
        await manager.fleet.acceptance.accept_all()
        await until(lambda: manager.lookups.is_ready(TP))


async def test_another_log_that_lost_its_head_is_accepted_with_all_the_rest(rig):
    for number in (1, 2, 3):
        rig.store.put(of(TP), started(number, 10 * number, 10 * number + 9))
    rig.store.trim(of(TP), 2)
    bucket = FakeBucket(BucketLog(topic_id=OTHER, partition_count=3))
    async with rig.manager(bucket=bucket) as manager:
        follower = await failed(manager)
        await until(lambda: "the log starts at" in follower.failure.evidence)
        assert follower.failure.command(of(TP)) == "rlmm partition accept-loss --all"


async def test_one_acceptance_of_everything_is_enough(rig):
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await manager.drain()
    rig.store.exists = False
    rig.store.recreate(OTHER)
    async with rig.manager() as manager:
        await until(lambda: manager.fleet.whole_failure is not None)
        await manager.fleet.acceptance.accept_all()
        await ready(manager)
        assert ask(manager) is None
    async with rig.manager() as manager:
        await ready(manager)


async def test_a_log_that_comes_back_serves_again(rig):
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
    rig.store.exists = False
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.fleet.whole_failure is not None)
        rig.store.exists = True
        await until(lambda: manager.lookups.is_ready(TP))
        assert ask(manager) is not None


async def test_the_loss_of_a_logs_head_can_be_accepted_for_good(rig):
    rig.store.put(of(TP), started(1, 0, 9))
    rig.store.put(of(TP), updated(1))
    rig.store.put(of(TP), started(2, 10, 19))
    rig.store.trim(of(TP), 2)
    async with rig.manager() as manager:
        follower = await failed(manager)
        await manager.fleet.acceptance.accept(follower)
        await until(lambda: manager.lookups.is_ready(TP))
    async with rig.manager() as manager:
        await ready(manager)
    rig.store.put(of(TP), updated(2))
    rig.store.trim(of(TP), 3)
    async with rig.manager() as manager:
        await failed(manager)


async def test_an_accepted_start_says_nothing_of_the_log_that_takes_its_place(rig):
    """What was accepted is that offsets of the former log are gone; the new one holds its own."""
    for number in (1, 2, 3):
        rig.store.put(of(TP), started(number, 10 * number, 10 * number + 9))
    rig.store.trim(of(TP), 3)
    async with rig.manager() as manager:
        follower = await failed(manager)
        await manager.fleet.acceptance.accept(follower)
        await until(lambda: manager.lookups.is_ready(TP))
        rig.store.recreate(OTHER)
        rig.store.put(of(TP), started(4, 0, 9))
        rig.store.put(of(TP), updated(4))
        for number in (5, 6):
            rig.store.put(of(TP), started(number, 10 * number, 10 * number + 9))
        await until(lambda: follower.fold.position == 4 and manager.lookups.is_ready(TP))
        assert ask(manager) is not None, "the new log's first events were read"


async def test_a_log_that_starts_before_an_accepted_head_again_is_read_from_there(rig):
    """Its files went, so it begins at 0 anew; what was accepted was another log's loss by then."""
    for number in (1, 2, 3):
        rig.store.put(of(TP), started(number, 10 * number, 10 * number + 9))
    rig.store.trim(of(TP), 3)
    async with rig.manager(snapshots=NEVER) as manager:
        await manager.fleet.acceptance.accept(await failed(manager))
        await until(lambda: manager.lookups.is_ready(TP))
    rig.store.truncate(of(TP), 0)
    rig.store.trim(of(TP), 0)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: of(TP) in manager.fleet.followers)
        follower = manager.fleet.followers[of(TP)]
        rig.store.put(of(TP), started(4, 0, 9))
        rig.store.put(of(TP), updated(4))
        for number in (5, 6):
            rig.store.put(of(TP), started(number, 10 * number, 10 * number + 9))
        await until(lambda: follower.fold.position == 4)
        assert follower.fold.partitions[TP].state(segment_id(4)) is not None, "it was read"
        await until(lambda: not manager.fleet.noted.accepted_starts)


async def test_a_corrupt_log_whose_head_was_given_up_is_said_to_be_corrupt(rig, monkeypatch):
    for number in (1, 2):
        rig.store.put(of(TP), started(number, 10 * number, 10 * number + 9))
    rig.store.trim(of(TP), 1)
    async with rig.manager(snapshots=NEVER) as manager:
        await manager.fleet.acceptance.accept(await failed(manager))
        await until(lambda: manager.lookups.is_ready(TP))

    async def unknown(_: object) -> dict[int, object]:
        return {}

    async def corrupt(*_: object) -> None:
        raise LogCorrupt("an invalid batch")

    async with rig.manager(snapshots=NEVER) as manager:
        monkeypatch.setattr(manager.log, "end_offsets", unknown)
        monkeypatch.setattr(manager.log, "epoch_end", corrupt)
        manager.replace_assignment([TP], [])
        await until(lambda: of(TP) in manager.fleet.followers)
        follower = manager.fleet.followers[of(TP)]
        await until(lambda: follower.failure is not None)
        assert follower.failure.reason is FailureReason.LOG_CORRUPT


@pytest.mark.parametrize("everything", [False, True])
async def test_of_a_corrupt_log_no_loss_is_accepted_which_would_not_end_that(rig, *, everything):
    """What is known to be missing is what `rlmm log repair` appends."""
    for number in (1, 2):
        rig.store.put(of(TP), started(number, 10 * number, 10 * number + 9))
    rig.store.trim(of(TP), 1)
    async with rig.manager(snapshots=NEVER) as manager:
        follower, acceptance = await failed(manager), manager.fleet.acceptance
        follower._take(Broken(FailureReason.LOG_CORRUPT, "a batch", None))
        assert follower.lacking
        with pytest.raises(InvalidArgument, match=f"does not end that.*log repair {of(TP)}"):
            await (acceptance.accept_all() if everything else acceptance.accept(follower))
        assert follower.open_gaps


async def test_a_storage_that_is_away_does_not_hold_up_a_known_state_directory(rig):
    bucket = FakeBucket()
    async with rig.manager(bucket=bucket) as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await manager.drain()
    bucket.away = True
    async with rig.manager(bucket=bucket) as manager:
        await ready(manager)
        assert ask(manager) is not None
        with pytest.raises(StorageUnavailable):
            await bucket.log()
        bucket.known = BucketLog(topic_id=OTHER, partition_count=3)
        bucket.away = False
        await until(lambda: manager.fleet.known.foreign_evidence is not None)
        await until(lambda: manager.fleet.followers[of(TP)].failure is not None)
        with pytest.raises(HistoryLost, match="bucket marker"):
            ask(manager)


async def test_a_marker_that_was_read_at_last_is_no_trouble_any_more(rig):
    bucket = FakeBucket()
    async with rig.manager(bucket=bucket) as manager:
        await ready(manager)
        await manager.drain()
    bucket.away = True
    async with rig.manager(bucket=bucket) as manager:
        await ready(manager)
        await until(lambda: manager.fleet.trouble is not None)
        assert manager.fleet.trouble.kind is TroubleKind.MARKER_UNREAD
        bucket.away = False
        await until(lambda: manager.fleet.marker_checked)
        assert manager.fleet.trouble is None


def test_an_end_offset_of_an_earlier_lineage_is_dropped():
    confirmation = Confirmation()
    confirmation.insert(TP)
    asked = confirmation.question()
    confirmation.restart()
    confirmation.answered(9, asked)
    assert confirmation.target is None


def test_an_end_offset_asked_for_before_an_insertion_does_not_confirm_it():
    confirmation = Confirmation()
    confirmation.insert(TP)
    asked = confirmation.question()
    confirmation.remove(TP)
    confirmation.insert(TP)
    confirmation.answered(0, asked)
    confirmation.reached(0)
    assert TP not in confirmation.confirmed


async def test_a_write_before_the_managers_begin_hears_that_it_starts_not_that_it_stops(rig):
    async with rig.manager() as manager:  # its task has not begun
        manager.replace_assignment([TP], [])
        with pytest.raises(NotReady, match="just begun"):
            manager.events.begin_add(started(1, 0, 9), 1.0, lambda _: None)


async def test_a_write_after_the_managers_end_begins_nothing(rig):
    async with rig.manager() as manager:
        await ready(manager)
    with pytest.raises(Draining):
        await manager.events.update(updated(1), OPERATOR)


@pytest.mark.parametrize("name", ["announced.json", "positions.json"])
async def test_a_damaged_file_that_only_warms_or_guards_is_left_out(rig, name):
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await manager.drain()
    await rig.disk.write_atomically(f"{rig.directory}/a/{name}", b"{")
    async with rig.manager() as manager:
        await ready(manager)
        assert ask(manager) is not None


async def test_a_damaged_identity_is_told_as_a_misconfiguration(rig):
    async with rig.manager() as manager:
        await ready(manager)
    await rig.disk.write_atomically(f"{rig.directory}/a/identity.json", b"{")
    with pytest.raises(ExceptionGroup) as caught:
        async with rig.manager() as manager:
            await until(lambda: manager.fleet.follow_set is not None)
    assert caught.group_contains(ConfigError, match="identity.json")


async def test_an_export_of_everything_is_refused_while_a_part_is_unread(rig):
    rig.store.put(of(TP), started(1, 0, 9))
    rig.store.trim(of(TP), 1)
    async with rig.manager() as manager:
        await failed(manager)
        operator = Operator(manager)
        with pytest.raises(HistoryLost):
            [record async for record in operator.export(None)]
        with pytest.raises(HistoryLost):
            await operator.resolve("unheard-of-0")


def left_over(rig) -> list[str]:
    return [path.name for path in Path(rig.directory, "a").rglob("*.tmp")]


async def test_a_snapshot_that_failed_is_still_due_and_leaves_nothing(rig, monkeypatch):
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        follower = manager.fleet.followers[of(TP)]
        tried = 0

        async def full(file, offset, data):
            nonlocal tried
            tried += 1
            await file.pwrite(offset, data[:100])
            assert left_over(rig), "a part is on the disk"
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("rlmm_daemon.daemon.following.snapshots.write_fully", full)
        for _ in range(3):
            assert await manager.snapshotter.try_write(follower) is None
            assert not left_over(rig)
        assert tried == 3
        assert follower.applied_since_snapshot == 2
        assert segment_id(1) in follower.fold.partitions[TP].live_finished()


@pytest.mark.parametrize("step", ["_write_file", "opened"])
async def test_a_snapshot_that_was_cancelled_leaves_nothing(rig, monkeypatch, step):
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        follower = manager.fleet.followers[of(TP)]
        original, begun = getattr(manager.snapshots, step), asyncio.Event()

        async def hangs(*args):
            await original(*args)
            begun.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patched:
            patched.setattr(manager.snapshots, step, hangs)
            async with asyncio.TaskGroup() as tasks:
                write = tasks.create_task(manager.snapshotter.write(follower))
                await begun.wait()
                await copied(manager, 2, 10, 19)  # noted meanwhile
                write.cancel()
        assert write.cancelled()
        assert not left_over(rig)
        assert follower.fold.journal is None
        assert follower.applied_since_snapshot == (4 if step == "_write_file" else 2)
        await copied(manager, 3, 20, 29)
        assert await manager.snapshotter.write(follower) is not None
        assert len(follower.fold.partitions[TP].segments) == 3
        assert follower.applied_since_snapshot == 0


async def test_an_operators_write_waits_for_the_log_to_open(rig):
    rig.store.pause()
    async with rig.manager() as manager, asyncio.TaskGroup() as group:
        write = group.create_task(manager.events.add(started(1, 0, 9), OPERATOR))
        await until(
            lambda: manager.fleet.trouble and manager.fleet.trouble.kind is TroubleKind.LOG_AWAY
        )
        rig.store.resume()
        await write


async def test_a_topic_that_is_deleted_under_us_is_not_ready_and_does_not_spin(rig, monkeypatch):
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        follower = manager.fleet.followers[of(TP)]
        drops = []
        drop = follower.history.drop

        async def counted(fold, reason, **options):
            drops.append(reason)
            return await drop(fold, reason, **options)

        monkeypatch.setattr(follower.history, "drop", counted)
        rig.store.exists = False
        rig.store.recreate(OTHER)  # something answers with another id, and then there is no topic
        await until(lambda: len(drops) >= 3)
        assert len(follower.history.missing) == 1
        assert len(follower.history.reasons) == 1
        with pytest.raises((HistoryLost, NotReady)):
            ask(manager)
        monkeypatch.setattr("rlmm_daemon.daemon.following.follower.BACKOFF_SECONDS_MAX", 3600.0)
        monkeypatch.setattr("rlmm_daemon.daemon.following.follower.BACKOFF_SECONDS_MIN", 3600.0)
        seen = len(drops)
        for _ in range(50):  # each drop does as much disk work as one of these
            await rig.disk.write_atomically(f"{rig.directory}/beat", b"x")
        assert len(drops) <= seen + 3, "the pauses grow, so few drops fit in"


async def of_several_metadata_partitions(rig) -> list[TopicIdPartition]:
    """Write a segment for partitions of one topic that lie in all three metadata partitions."""
    several = [TopicIdPartition(TP.topic_id, TP.topic, number) for number in range(8)]
    assert {of(tp) for tp in several} == {0, 1, 2}
    async with rig.manager("writer") as manager:
        manager.replace_assignment(several, [])
        for number, tp in enumerate(several):
            await until(partial(manager.lookups.is_ready, tp))
            await manager.events.add(started(number + 1, 0, 9, tp), BROKER)
            await manager.events.update(updated(number + 1, tp=tp), BROKER)
    return several


async def test_what_is_asked_of_a_whole_topic_covers_partitions_that_nobody_follows_yet(rig):
    several = await of_several_metadata_partitions(rig)
    topic = uuid_text(TP.topic_id)
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        operator = Operator(manager)
        for asked in (operator.export(topic), operator.segments(topic, None)):
            found = [records.decode(record) async for record in asked]
            told = {each.partition for each in found if isinstance(each, SegmentMetadata)}
            assert told == set(several)


async def test_what_is_asked_of_a_whole_topic_is_refused_while_a_part_may_be_missing(
    rig, monkeypatch
):
    several = await of_several_metadata_partitions(rig)
    monkeypatch.setattr("rlmm_daemon.daemon.metadata.on_demand.ON_DEMAND_SECONDS", 0.3)
    other = next(of(tp) for tp in several if of(tp) != of(TP))
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        rig.store.lose(other, 0, 1)
        operator = Operator(manager)
        topic = uuid_text(TP.topic_id)
        for asked in (operator.export(topic), operator.segments(topic, None)):
            with pytest.raises(HistoryLost):
                [record async for record in asked]


async def test_an_export_is_refused_while_a_metadata_partition_is_not_even_followed(
    rig, monkeypatch
):
    monkeypatch.setattr("rlmm_daemon.daemon.metadata.on_demand.ON_DEMAND_SECONDS", 0.05)
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        monkeypatch.setattr(manager.fleet.follow_set, "wanted", lambda: {of(TP)})
        operator = Operator(manager)
        with pytest.raises(NotReady, match="2 of 3 metadata partitions"):
            [record async for record in operator.export(None)]
        assert [record async for record in operator.export(str(TP))] == []


async def test_the_buckets_word_that_comes_late_and_says_nothing_new_makes_no_partition_wait(
    rig, monkeypatch
):
    """The state directory knows as much as the presence file; each life writes in its own epoch."""
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await copied(manager, 2, 10, 19)
        await manager.fleet.noted.write()
    rig.store.begin_epoch(of(TP))
    bucket = FakeBucket(
        BucketLog(
            topic_id=rig.store.identity.topic_id,
            partition_count=3,
            positions={of(TP): Position(4, 0)},
        ),
        away=True,
    )
    async with rig.manager(bucket=bucket) as manager:
        await ready(manager)
        await copied(manager, 3, 20, 29)
        rechecked = list[bool]()
        recheck = Follower.recheck

        def noted(self, recorded):
            recheck(self, recorded)
            rechecked.append(manager.lookups.is_ready(TP))

        monkeypatch.setattr(Follower, "recheck", noted)
        bucket.away = False
        await until(lambda: manager.fleet.marker_checked)
        assert rechecked == [True]
