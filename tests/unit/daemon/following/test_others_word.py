"""How far a daemon had read, after another one was told to accept that the log lost it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rlmm_daemon.codec.marker import AcceptedLoss
from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.readiness.states import FailureReason
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.bucket.storage_keeper import _tell_of_changes, presence_of
from rlmm_daemon.daemon.following import others_word
from rlmm_daemon.daemon.following.bucket_record import BucketLog
from rlmm_daemon.domain.errors import PartitionFailed, StorageUnavailable
from rlmm_daemon.domain.ids import uuid_text
from tests.unit.daemon.events import TP, of, started, until, updated
from tests.unit.daemon.metadata.test_previous_state import FakeBucket

NUMBER = of(TP)


async def read(manager: Any) -> None:
    """Read the log to its end, and follow it no more."""
    manager.replace_assignment([TP], [])
    await until(lambda: manager.lookups.is_ready(TP))
    await manager.events.add(started(1, 0, 9), Caller.BROKER)
    await manager.events.update(updated(1), Caller.BROKER)
    manager.replace_assignment([], [])
    await until(lambda: NUMBER not in manager.fleet.followers)
    assert presence_of(manager).partitions[NUMBER].next_offset == 2


def loss(manager: Any, number: int | None) -> AcceptedLoss:
    topic_id = uuid_text(manager.fleet.identity.topic_id)
    return AcceptedLoss(metadata_partition=number, topic_id=topic_id, accepted_at_ms=7, broker_id=2)


@pytest.mark.parametrize("number", [NUMBER, None])
async def test_what_nobody_follows_here_is_not_told_as_news_behind_an_accepted_loss(rig, number):
    async with rig.manager() as manager:
        await read(manager)
        losses = list[AcceptedLoss]()
        presence: Any = SimpleNamespace(changed=lambda: None, moved=lambda: None)
        async with asyncio.TaskGroup() as group:
            told = _tell_of_changes(manager, presence, tuple, lambda: tuple(losses))
            telling = group.create_task(told)
            await asyncio.sleep(0)
            losses.append(loss(manager, number))
            await until(lambda: NUMBER not in presence_of(manager).partitions)
            telling.cancel()


async def test_nor_is_it_in_the_next_life_that_hears_of_the_loss(rig):
    async with rig.manager() as manager:
        await read(manager)
        known = BucketLog(
            topic_id=manager.fleet.identity.topic_id,
            partition_count=manager.fleet.identity.partition_count,
            lost_since={NUMBER},
        )
    async with rig.manager(bucket=FakeBucket(known)) as manager:
        await until(lambda: manager.fleet.marker_checked)
        assert NUMBER not in presence_of(manager).partitions


async def test_what_the_log_confirms_here_is_told_all_the_same(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        manager.fleet.others.lost_elsewhere([NUMBER])
        await manager.events.add(started(1, 0, 9), Caller.BROKER)
        await until(lambda: presence_of(manager).partitions[NUMBER].next_offset == 1)
        manager.replace_assignment([], [])
        await until(lambda: NUMBER not in manager.fleet.followers)
        assert presence_of(manager).partitions[NUMBER].next_offset == 1


async def test_what_failed_of_it_here_is_not_told_once_nobody_follows_it(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        manager.fleet.followers[NUMBER].recheck([Position(7, 0)])
        await until(lambda: manager.fleet.followers[NUMBER].failure is not None)
        manager.fleet._reads.recorded[NUMBER] = Position(7, 0)
        manager.fleet.others.lost_elsewhere([NUMBER])
        assert presence_of(manager).partitions[NUMBER].next_offset == 7
        manager.replace_assignment([], [])
        await until(lambda: NUMBER not in manager.fleet.followers)
        assert NUMBER not in presence_of(manager).partitions


def says(manager: Any, **unread: Any) -> BucketLog:
    identity = manager.fleet.identity
    return BucketLog(topic_id=identity.topic_id, partition_count=identity.partition_count, **unread)


async def test_what_is_followed_beside_a_file_that_cannot_be_read_fails_until_it_can(
    rig, monkeypatch
):
    monkeypatch.setattr(others_word, "GAPS_SECONDS", 0.01)
    bucket = FakeBucket(None)
    async with rig.manager() as manager:
        await read(manager)
        unread = says(manager, unread={NUMBER: ["7.json"]})
        whole = says(manager)
    bucket.known = unread
    async with rig.manager(bucket=bucket) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.fleet.followers and manager.fleet.followers[NUMBER].failure)
        follower = manager.fleet.followers[NUMBER]
        assert follower.failure.reason is FailureReason.PRESENCE_UNREAD
        assert follower.uncertain, "nothing is certain that a repair would append"
        assert presence_of(manager).partitions[NUMBER].state == "failed"
        with pytest.raises(PartitionFailed, match=r"can't be read: 7\.json"):
            manager.lookups.remote_log_segment_metadata(TP, 0, 5, Caller.BROKER)
        follower.retry()
        await until(lambda: follower.failure is not None and not follower.restarting)
        bucket.known = whole
        await until(lambda: manager.lookups.is_ready(TP))
        # Damaged from now on: its words were heard, but for what it may have said since.
        bucket.known = unread
        with pytest.raises(StorageUnavailable, match=r"7\.json"):
            await manager.fleet.others.ask_others(NUMBER)
        assert manager.lookups.is_ready(TP)
        manager.replace_assignment([], [])
        await until(lambda: NUMBER not in manager.fleet.followers)
        manager.replace_assignment([TP], [])
        await until(lambda: NUMBER in manager.fleet.followers)
        await until(lambda: manager.fleet.followers[NUMBER].failure is not None)


@pytest.mark.parametrize("everything", [False, True])
async def test_a_loss_that_is_accepted_beside_it_ends_that_for_good(rig, everything):
    """Its daemon, of a newer version say, may run and write it anew each minute."""
    bucket = FakeBucket(None)
    async with rig.manager() as manager:
        await read(manager)
        bucket.known = says(manager, unread={0: ["7.json"], 1: ["7.json"], 2: ["7.json"]})
    async with rig.manager(bucket=bucket) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.fleet.followers and manager.fleet.followers[NUMBER].failure)
        acceptance = manager.fleet.acceptance
        if everything:
            await acceptance.accept_all()
        else:
            await acceptance.accept(manager.fleet.followers[NUMBER])
        await until(lambda: manager.lookups.is_ready(TP))
        assert bucket.accepted[0][0] == (None if everything else NUMBER)
        bucket.known = says(manager, unread={NUMBER: ["7.json"]})
        await manager.fleet.others.heard()
        for number in range(2, 5):
            await manager.events.add(started(number, 10 * number, 10 * number + 9), Caller.BROKER)
        assert manager.lookups.is_ready(TP)


async def test_what_an_own_file_says_that_can_be_read_again_is_held_against_the_log(
    rig, monkeypatch
):
    monkeypatch.setattr(others_word, "GAPS_SECONDS", 0.01)
    bucket = FakeBucket(None)
    async with rig.manager() as manager:
        await read(manager)
        bucket.known = says(manager, unread={NUMBER: ["1.json"]}, own_unread=True)
        whole = says(manager, positions={NUMBER: Position(9, 0)})
    async with rig.manager(bucket=bucket) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.fleet.followers and manager.fleet.followers[NUMBER].failure)
        bucket.known = whole
        follower = manager.fleet.followers[NUMBER]
        await until(lambda: follower.failure.reason is FailureReason.HISTORY_LOST)
        assert presence_of(manager).partitions[NUMBER].next_offset == 9


async def cut_off(rig, manager: Any) -> Any:
    """A segment is finished, and the log loses that while it is followed."""
    manager.replace_assignment([TP], [])
    await until(lambda: manager.lookups.is_ready(TP))
    await manager.events.add(started(1, 0, 9), Caller.BROKER)
    await manager.events.update(updated(1), Caller.BROKER)
    await until(lambda: presence_of(manager).partitions[NUMBER].next_offset == 2)
    rig.store.truncate(NUMBER, 1)
    follower = manager.fleet.followers[NUMBER]
    await until(lambda: follower.failure is not None)
    assert follower.history.missing_count == 1
    await manager.fleet.noted.write()
    return follower


async def test_what_a_daemon_had_read_of_a_cut_log_is_told_until_it_is_there_again(rig):
    """It has a list of it, but others have only its presence file, and so has its next disk."""
    async with rig.manager() as manager:
        await cut_off(rig, manager)
        assert presence_of(manager).partitions[NUMBER].next_offset == 2
    async with rig.manager() as manager:
        await until(lambda: manager.fleet.follow_set is not None)
        assert presence_of(manager).partitions[NUMBER].next_offset == 2
        manager.replace_assignment([TP], [])
        await until(lambda: NUMBER in manager.fleet.followers)
        follower = manager.fleet.followers[NUMBER]
        await until(lambda: follower.failure is not None)
        rig.store.begin_epoch(NUMBER)
        rig.store.put(NUMBER, updated(1))
        await until(lambda: manager.lookups.is_ready(TP))
        rig.store.put(NUMBER, None)
        await until(lambda: presence_of(manager).partitions[NUMBER].next_offset == 3)


async def test_nor_does_a_daemon_fail_of_what_it_says_itself_of_its_list(rig):
    async with rig.manager() as manager:
        await cut_off(rig, manager)
        known = BucketLog(
            topic_id=manager.fleet.identity.topic_id,
            partition_count=manager.fleet.identity.partition_count,
            positions={NUMBER: Position(2, 0)},
        )
    async with rig.manager(bucket=FakeBucket(known)) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: NUMBER in manager.fleet.followers)
        follower = manager.fleet.followers[NUMBER]
        await until(lambda: follower.failure is not None and manager.fleet.marker_checked)
        assert not follower.uncertain, "all that is missing is on the list"
        await manager.fleet.acceptance.accept(follower, without_looking=True)
        await until(lambda: manager.lookups.is_ready(TP))
        await until(lambda: presence_of(manager).partitions[NUMBER].next_offset == 1)
