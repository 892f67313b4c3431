"""The manager against a log that does what a log's bad day does."""

import asyncio
import errno
from contextlib import aclosing

import pytest

from rlmm_daemon.codec import records
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.following.fleet import FleetOptions
from rlmm_daemon.daemon.operator.mending import Mending
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.domain.errors import (
    HistoryLost,
    IllegalTransition,
    InvalidArgument,
    LogCorrupt,
    NotAssigned,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    SegmentNotFound,
    StorageUnavailable,
)
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState
from rlmm_daemon.ports.event_log import LogRange
from tests.support.memory_log import AppendFault, MemoryEventLog
from tests.unit.daemon.events import (
    NEIGHBOUR,
    TP,
    copied,
    marked,
    of,
    refused,
    segment_id,
    started,
    until,
    updated,
)

BROKER, OPERATOR = Caller.BROKER, Caller.OPERATOR
DELETE_STARTED = SegmentState.DELETE_SEGMENT_STARTED


async def ready(manager, tp=TP) -> None:
    await until(lambda: manager.lookups.is_ready(tp))


async def failed(manager) -> None:
    await until(lambda: of(TP) in manager.fleet.followers)
    await until(lambda: manager.fleet.followers[of(TP)].failure is not None)


def found(manager, offset: int, tp=TP, caller=BROKER):
    record = manager.lookups.remote_log_segment_metadata(tp, 0, offset, caller)
    if record is None:
        return None
    segment = records.decode(record)
    assert isinstance(segment, SegmentMetadata)
    return segment.segment_id


async def test_a_finished_copy_is_found_and_an_unfinished_one_is_not(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        await manager.events.add(started(1, 0, 9), BROKER)
        assert found(manager, 5) is None
        await manager.events.update(updated(1), BROKER)
        assert found(manager, 5) == segment_id(1)
        assert manager.lookups.highest_offset_for_epoch(TP, 0, BROKER) == 9
        assert len(manager.lookups.list_remote_log_segments(TP, None, BROKER)) == 1
        assert manager.lookups.remote_log_size(TP, 0, BROKER) == 100


async def test_who_asks_how_far_a_segment_is_the_answer_is_told(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        for number, start, end in ((1, 0, 99), (2, 40, 59)):
            await manager.events.add(started(number, start, end), BROKER)
            await manager.events.update(updated(number), BROKER)
        told = [manager.lookups.found_until(TP, 0, offset, BROKER) for offset in (0, 45, 60, 100)]
        assert [found and found.until for found in told] == [39, 59, 99, None]
        assert told[0].record == manager.lookups.remote_log_segment_metadata(TP, 0, 0, BROKER)


async def test_a_removed_partitions_look_ups_are_refused_until_its_next_life(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        await manager.events.add(started(1, 0, 9), BROKER)
        await manager.events.update(updated(1), BROKER)
        for state in PartitionDeleteState:
            assert found(manager, 5) == segment_id(1)
            await manager.events.put_partition_delete(marked(state), OPERATOR)
        for ask in (
            manager.lookups.remote_log_segment_metadata,
            manager.lookups.next_segment_with_txn_index,
        ):
            with pytest.raises(SegmentNotFound, match="was removed"):
                ask(TP, 0, 5, BROKER)
        with pytest.raises(SegmentNotFound):
            manager.lookups.found_until(TP, 0, 5, BROKER)
        assert manager.lookups.is_ready(TP)
        assert manager.lookups.highest_offset_for_epoch(TP, 0, BROKER) is None, "as for a new life"
        await manager.events.add(started(2, 50, 59), BROKER)
        assert found(manager, 5) is None


async def test_before_the_first_announcement_every_read_is_not_ready(rig):
    async with rig.manager() as manager:
        with pytest.raises(NotReady, match=r"not announced|not open"):
            manager.lookups.remote_log_segment_metadata(TP, 0, 0, BROKER)
        await until(lambda: manager.fleet.follow_set is not None)
        with pytest.raises(NotReady, match="not announced"):
            manager.lookups.list_remote_log_segments(TP, None, BROKER)
        assert not manager.lookups.is_ready(TP)


async def test_an_empty_announcement_opens_the_gate_and_names_nothing(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([], [])
        with pytest.raises(NotAssigned):
            manager.lookups.list_remote_log_segments(TP, None, BROKER)
        with pytest.raises(NotAssigned):
            await manager.events.add(started(1, 0, 9), BROKER)


async def test_a_follower_may_not_start_a_copy_but_may_end_one(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        await manager.events.add(started(1, 0, 9), BROKER)
        manager.on_partition_leadership_changes([], [TP])
        with pytest.raises(NotLeader):
            await manager.events.add(started(2, 10, 19), BROKER)
        await manager.events.update(updated(1), BROKER)
        assert found(manager, 5) == segment_id(1)


async def test_an_update_after_stop_is_accepted_while_a_neighbour_keeps_the_fold(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP, NEIGHBOUR], [])
        await ready(manager)
        await manager.events.add(started(1, 0, 9), BROKER)
        manager.on_stop_partitions([TP])
        await manager.events.update(updated(1), BROKER)
        manager.on_partition_leadership_changes([TP], [])
        await ready(manager)
        assert found(manager, 5) == segment_id(1)


async def test_repeats_succeed_and_append_nothing(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        await manager.events.add(started(1, 0, 9), BROKER)
        await manager.events.add(started(1, 0, 9), BROKER)
        await manager.events.update(updated(1), BROKER)
        await manager.events.update(updated(1), BROKER)
        assert manager.fleet.followers[of(TP)].fold.position == 2


async def test_an_illegal_step_is_refused_before_it_is_published(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        await manager.events.add(started(1, 0, 9), BROKER)
        with pytest.raises(IllegalTransition):
            await manager.events.add(started(1, 0, 10), BROKER)
        with pytest.raises(SegmentNotFound):
            await manager.events.update(updated(2), BROKER)
        with pytest.raises(InvalidArgument):
            await manager.events.add(updated(1), BROKER)
        assert manager.fleet.followers[of(TP)].fold.position == 1


async def test_a_write_whose_answer_is_lost_is_found_where_it_landed(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        rig.store.fail_next_append(of(TP), AppendFault.UNKNOWN_LANDED)
        await manager.events.add(started(1, 0, 9), BROKER)
        assert manager.fleet.followers[of(TP)].fold.position == 1


async def test_a_write_that_never_landed_is_unknown_and_blocks_its_segment_only(rig):
    options = FleetOptions(delivery_timeout_seconds=0.3)
    async with rig.manager(fleet=options) as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        rig.store.fail_next_append(of(TP), AppendFault.UNKNOWN_LOST)
        with pytest.raises(OutcomeUnknown):
            await manager.events.add(started(1, 0, 9), BROKER)
        with pytest.raises(OutcomeUnknown, match="still in flight"):
            await manager.events.add(started(1, 0, 9), BROKER, 0.05)
        await manager.events.add(started(2, 10, 19), BROKER)
        await manager.events.add(started(1, 0, 9), BROKER)
        assert manager.fleet.followers[of(TP)].fold.position == 2


async def test_a_restart_takes_up_the_snapshot_and_the_tail(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        await copied(manager, 1, 0, 9)
        assert await Operator(manager).snapshot_now(None)
        await copied(manager, 2, 10, 19)
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        follower = manager.fleet.followers[of(TP)]
        assert follower.snapshot_at_ms is not None
        assert (found(manager, 5), found(manager, 15)) == (segment_id(1), segment_id(2))


async def test_while_the_log_is_silent_only_hits_are_answered(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        await copied(manager, 1, 0, 9)
        rig.store.pause()
        manager.fleet.followers[of(TP)]._answered_at -= 61
        assert found(manager, 5) == segment_id(1)
        with pytest.raises(NotReady, match="stale"):
            found(manager, 50)
        with pytest.raises(NotReady):
            manager.lookups.highest_offset_for_epoch(TP, 0, BROKER)
        assert not manager.lookups.is_ready(TP)
        rig.store.resume()
        await ready(manager)


async def test_stop_all_then_announce_again_is_not_ready_until_caught_up(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        await copied(manager, 1, 0, 9)
        manager.replace_assignment([], [])
        await until(lambda: not manager.fleet.followers)
        rig.store.put(of(TP), started(2, 10, 19))
        rig.store.put(of(TP), updated(2))
        manager.replace_assignment([TP], [])
        with pytest.raises(NotReady):
            found(manager, 15)
        await ready(manager)
        assert found(manager, 15) == segment_id(2)


async def test_a_new_neighbour_answers_hits_at_once(rig):
    async with rig.manager() as manager:
        rig.store.put(of(TP), started(1, 0, 9, NEIGHBOUR))
        rig.store.put(of(TP), updated(1, tp=NEIGHBOUR))
        manager.replace_assignment([TP], [])
        await ready(manager)
        manager.on_partition_leadership_changes([NEIGHBOUR], [])
        assert found(manager, 5, NEIGHBOUR) == segment_id(1)
        with pytest.raises(NotReady):
            found(manager, 50, NEIGHBOUR)
        await ready(manager, NEIGHBOUR)
        assert found(manager, 50, NEIGHBOUR) is None


async def test_a_truncated_tail_is_history_lost_until_it_is_accepted(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await copied(manager, 2, 10, 19)
        rig.store.truncate(of(TP), 2)
        await until(lambda: manager.fleet.followers[of(TP)].failure is not None)
        with pytest.raises(HistoryLost, match="1 finished segment"):
            found(manager, 5)
        assert not manager.lookups.is_ready(TP)
        await manager.fleet.followers[of(TP)].accept_loss()
        await ready(manager)
        assert (found(manager, 5), found(manager, 15)) == (segment_id(1), None)


@pytest.mark.parametrize("was_ready", [False, True])
async def test_a_log_cut_between_the_position_and_the_target_is_asked_anew(
    rig, monkeypatch, was_ready
):
    """It lost what had not been read here, and nobody writes: the old end never comes."""
    ends = MemoryEventLog.end_offsets
    answered: set[int] = set()

    async def before_the_cut(log, partitions):
        ranges = await ends(log, partitions)
        answered.update(ranges)
        return {n: LogRange(start=0, end=each.end + 2) for n, each in ranges.items()}

    async with rig.manager() as manager:
        if was_ready:
            manager.replace_assignment([TP], [])
            await ready(manager)
            await copied(manager, 1, 0, 9)
        with monkeypatch.context() as patched:
            patched.setattr(MemoryEventLog, "end_offsets", before_the_cut)
            manager.replace_assignment([TP, NEIGHBOUR], [])
            await until(lambda: of(TP) in answered)
        await until(lambda: manager.lookups.is_ready(NEIGHBOUR) and manager.lookups.is_ready(TP))
        await copied(manager, 2, 10, 19)


async def test_a_truncated_tail_that_comes_back_ends_the_failure(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        await copied(manager, 1, 0, 9)
        rig.store.truncate(of(TP), 0)
        await until(lambda: manager.fleet.followers[of(TP)].failure is not None)
        rig.store.put(of(TP), started(1, 0, 9))
        rig.store.put(of(TP), updated(1))
        await ready(manager)
        assert found(manager, 5) == segment_id(1)


def following_fails(manager, monkeypatch):
    """Return a list: while it holds an error, whoever follows the log gets that."""
    follow, errors = manager.log.follow, list[Exception]()

    async def unsteady(partition, offset, *, epoch):
        async with aclosing(follow(partition, offset, epoch=epoch)) as batches:
            async for batch in batches:
                if errors:
                    raise errors[0]
                yield batch

    monkeypatch.setattr(manager.log, "follow", unsteady)
    return errors


async def test_a_truncated_tail_that_comes_back_behind_an_outage_ends_the_failure_too(
    rig, monkeypatch
):
    async with rig.manager() as manager:
        errors = following_fails(manager, monkeypatch)
        manager.replace_assignment([TP], [])
        await ready(manager)
        await copied(manager, 1, 0, 9)
        rig.store.truncate(of(TP), 0)
        follower = manager.fleet.followers[of(TP)]
        await until(lambda: follower.failure is not None)
        errors.append(StorageUnavailable("away"))
        await until(lambda: follower.trouble is not None)
        errors.clear()
        rig.store.put(of(TP), started(1, 0, 9))
        rig.store.put(of(TP), updated(1))
        await ready(manager)
        assert found(manager, 5) == segment_id(1)


async def test_what_keeps_a_follower_from_its_log_is_told_until_that_answers_again(
    rig, monkeypatch
):
    async with rig.manager() as manager:
        errors = following_fails(manager, monkeypatch)
        errors.append(OSError(errno.EACCES, "no right to it", "a.log"))
        manager.replace_assignment([TP], [])
        await until(lambda: of(TP) in manager.fleet.followers)
        follower = manager.fleet.followers[of(TP)]
        await until(lambda: follower.trouble is not None)
        first = follower.trouble
        assert (first.consecutive, first.file) == (1, "a.log")
        assert "no right to it" in first.message

        async def next_trouble(error: Exception) -> tuple[str, str | None]:
            before = follower.trouble
            errors[:] = [error]
            await until(lambda: follower.trouble is not before)
            return follower.trouble.message, follower.trouble.file

        assert await next_trouble(StorageUnavailable("away")) == ("away", None)
        assert follower.trouble.consecutive == 2
        _, file = await next_trouble(OSError(errno.ENOSPC, "no space", "a.log"))
        assert file is None, "no file is at fault for a shortage"
        told = await next_trouble(StorageUnavailable("a bad sector", file="b.log"))
        assert told == ("a bad sector", "b.log"), "the log says which of its files it is"
        errors.clear()
        await until(lambda: follower.trouble is None)


async def test_a_log_that_is_corrupt_and_not_ours_to_mend_is_read_again(rig, monkeypatch):
    async with rig.manager() as manager:
        errors = following_fails(manager, monkeypatch)
        manager.replace_assignment([TP], [])
        await ready(manager)
        await copied(manager, 1, 0, 9)
        follower = manager.fleet.followers[of(TP)]
        fold, retry = follower.fold, f"rlmm partition retry {of(TP)}"
        errors.append(LogCorrupt("a batch", command=retry))
        await until(lambda: follower.failure is not None)
        assert follower.failure.command(of(TP)) == retry
        errors.clear()
        mending = Mending(manager, guard=None, repair=None)
        (row,) = (await mending.repair([follower]))["repaired"]
        assert (row["state"], "theirs to mend" in row["error"]) == ("ready", True)
        assert follower.fold is fold, "nothing was given up for it"
        assert found(manager, 5) == segment_id(1)


async def test_a_loss_is_still_known_after_a_restart(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await manager.drain()
    rig.store.truncate(of(TP), 0)
    for _ in range(2):
        async with rig.manager() as manager:
            manager.replace_assignment([TP], [])
            await failed(manager)
            with pytest.raises(HistoryLost):
                found(manager, 5)


async def test_a_tail_overwritten_between_the_check_of_a_snapshot_and_the_reading_is_noticed(
    rig, monkeypatch
):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        for number in range(5):
            await copied(manager, number, 10 * number, 10 * number + 9)
        await manager.drain()
    async with rig.manager() as manager:
        follow = manager.log.follow

        def cut_first(partition, offset, *, epoch):
            if offset == 10:
                rig.store.truncate(partition, 6)
                for number in range(100, 103):
                    rig.store.put(partition, started(number, 10 * number, 10 * number + 9))
                    rig.store.put(partition, updated(number))
            return follow(partition, offset, epoch=epoch)

        monkeypatch.setattr(manager.log, "follow", cut_first)
        manager.replace_assignment([TP], [])
        await failed(manager)
        with pytest.raises(HistoryLost, match="2 finished segments"):
            found(manager, 5)


async def test_what_stands_behind_an_accepted_loss_of_the_head_is_no_divergence(rig):
    """Nobody knows in which epoch the record just before it was written."""
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await manager.drain()
    rig.store.begin_epoch(of(TP))
    for _ in range(4):
        rig.store.put(of(TP), None)
    rig.store.trim(of(TP), 5)
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await failed(manager)
        follower = manager.fleet.followers[of(TP)]
        await manager.fleet.acceptance.accept(follower)
        await ready(manager)
        assert found(manager, 5) == segment_id(1), "what was known before is still known"
        assert not follower.history.reasons


async def test_a_trimmed_head_is_history_lost(rig):
    rig.store.put(of(TP), started(1, 0, 9))
    rig.store.put(of(TP), updated(1))
    rig.store.trim(of(TP), 1)
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: bool(manager.fleet.followers))
        follower = manager.fleet.followers[of(TP)]
        await until(lambda: follower.failure is not None)
        with pytest.raises(HistoryLost, match="starts at 1") as raised:
            found(manager, 5)
        assert raised.value.fields["command"] == f"rlmm partition accept-loss {of(TP)}"
        await manager.fleet.acceptance.accept(follower)
        await ready(manager)


async def test_an_operator_follows_on_demand_and_waits(rig):
    rig.store.put(of(TP), started(1, 0, 9))
    rig.store.put(of(TP), updated(1))
    async with rig.manager() as manager:
        with pytest.raises(NotReady):
            found(manager, 5, caller=OPERATOR)
        await manager.lookups.until_readable(TP, OPERATOR, 5.0)
        assert found(manager, 5, caller=OPERATOR) == segment_id(1)
        with pytest.raises(NotReady):
            found(manager, 5)


async def test_a_poison_record_is_passed_over(rig):
    rig.store.put(of(TP), None)
    rig.store.put(of(TP), b"garbage")
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        await copied(manager, 1, 0, 9)
        assert found(manager, 5) == segment_id(1)


@pytest.mark.parametrize("which", refused(1))
async def test_what_the_life_cycles_refuse_changes_nothing_and_is_counted(rig, which):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        await copied(manager, 1, 0, 9)
        fold = manager.fleet.followers[of(TP)].fold
        rig.store.put(of(TP), refused(1)[which])
        await copied(manager, 3, 10, 19)
        assert sum(fold.rejected.values()) == 1, fold.rejected
        assert (found(manager, 5), found(manager, 15)) == (segment_id(1), segment_id(3))


async def test_delete_started_is_told_to_whoever_asked(rig):
    async with rig.manager() as manager:
        told = []
        manager.events.on_delete_started.append(lambda tp, sid: told.append((tp, sid)))
        manager.replace_assignment([TP], [])
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await manager.events.update(updated(1, DELETE_STARTED), BROKER)
        assert told == [(TP, segment_id(1))]


async def test_until_state_waits_for_the_apply(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(
                manager.events.until_state(
                    TP, segment_id(1), frozenset({SegmentState.COPY_SEGMENT_STARTED})
                )
            )
            await manager.events.add(started(1, 0, 9), BROKER)
        state, _ = waiting.result()
        assert state is SegmentState.COPY_SEGMENT_STARTED


async def test_sixty_four_writers_all_get_their_own_answer(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        async with asyncio.TaskGroup() as group:
            for number in range(64):
                group.create_task(
                    manager.events.add(started(number, number * 10, number * 10 + 9), BROKER)
                )
        assert len(manager.lookups.list_remote_log_segments(TP, None, BROKER)) == 64


async def test_a_cancelled_write_is_not_taken_back(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        rig.store.pause()
        async with asyncio.TaskGroup() as group:
            write = group.create_task(manager.events.add(started(1, 0, 9), BROKER))
            writer = manager.fleet._writers[of(TP)] if manager.fleet._writers else None
            await until(lambda: writer is not None and writer.in_flight == 1)
            write.cancel()
        rig.store.resume()
        await until(lambda: manager.fleet.followers[of(TP)].fold.position == 1)


async def test_a_segment_that_was_a_hit_is_none_once_the_gate_closes(rig):
    async with rig.manager() as manager:
        manager.hello_from_broker(1)
        manager.replace_assignment([TP], [])
        await ready(manager)
        await copied(manager, 1, 0, 9)
        assert found(manager, 5) == segment_id(1)
        manager.hello_from_broker(1)
        assert found(manager, 5) == segment_id(1)
        manager.hello_from_broker(2)
        with pytest.raises(NotReady, match="announced"):
            found(manager, 5)


async def test_a_segment_that_was_a_hit_is_none_once_its_partition_is_stopped(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP, NEIGHBOUR], [])
        await ready(manager)
        await copied(manager, 1, 0, 9)
        assert found(manager, 5) == segment_id(1)
        manager.on_stop_partitions([TP])
        with pytest.raises(NotAssigned):
            found(manager, 5)


async def test_what_was_known_is_written_down_before_its_partition_is_followed_no_more(
    rig, monkeypatch
):
    """Whoever follows it next, on a slow disk, would know of nothing and be ready."""
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        await copied(manager, 1, 0, 9)
        asked, may_write, write = list[int](), asyncio.Event(), manager.state.write_lost

        async def slow(*given):
            asked.append(given[2])
            await may_write.wait()
            await write(*given)

        monkeypatch.setattr(manager.state, "write_lost", slow)
        follower = manager.fleet.followers[of(TP)]
        rig.store.truncate(of(TP), 0)
        await until(lambda: bool(asked))
        monkeypatch.setattr(manager.fleet, "_wanted", set)
        await manager.fleet._stop(follower)
        assert not follower.retired
        may_write.set()
        await until(lambda: follower.retired)
        assert await manager.state.lost(of(TP)) is not None


async def test_a_segment_that_was_a_hit_is_none_once_its_history_is_in_doubt(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        await copied(manager, 1, 0, 9)
        assert found(manager, 5) == segment_id(1)
        rig.store.truncate(of(TP), 0)
        await until(lambda: manager.fleet.followers[of(TP)].failure is not None)
        with pytest.raises(HistoryLost):
            found(manager, 5)


async def test_an_empty_log_is_ready_without_waiting_for_a_heartbeat(rig):
    rig.heartbeat_seconds = 3600.0
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
