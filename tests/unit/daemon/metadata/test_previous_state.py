"""Which log this is: what was known of it, by state directory and bucket, against what opens."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rlmm_daemon.codec.marker import COMPARING
from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.core.readiness.states import FailureReason, PartitionState, TroubleKind
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.bucket.live_counts import LiveCounts
from rlmm_daemon.daemon.bucket.storage_keeper import presence_of
from rlmm_daemon.daemon.following.bucket_record import BucketLog
from rlmm_daemon.daemon.following.known_log import KnownLog
from rlmm_daemon.daemon.following.snapshots import SnapshotStore
from rlmm_daemon.daemon.metadata.previous_state import remembered
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.daemon.operator.standing import Standing
from rlmm_daemon.domain.errors import (
    ConfigError,
    HistoryLost,
    InvalidArgument,
    NotReady,
    PartitionFailed,
    StorageUnavailable,
    UnsupportedProtocol,
)
from rlmm_daemon.domain.ids import MetadataPartition, TopicId, uuid_text
from rlmm_daemon.ports.event_log import LogForeign, LogUnnamed
from tests.support.memory_log import MemoryEventLog, MemoryLogStore
from tests.unit.daemon.events import TP, copied, of, ready, started, until, updated

BROKER = Caller.BROKER
OTHER = TopicId(bytes(range(50, 66)))


@dataclass
class FakeBucket:
    """A bucket's word on the log."""

    has_storage: ClassVar[bool] = True

    known: BucketLog | None = None
    away: bool = False
    accepted: list[tuple[int | None, bytes]] = field(default_factory=list)
    gaps: list[Any] = field(default_factory=list)

    async def log(self):
        if self.away:
            raise StorageUnavailable
        return self.known

    async def accept_loss(self, partition, identity, gaps):
        self.accepted.append((partition, identity.topic_id))
        self.gaps.append(gaps)
        self.known = BucketLog(topic_id=identity.topic_id, partition_count=3)


async def one_segment(rig, **options) -> None:
    async with rig.manager(**options) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        await manager.events.add(started(1, 0, 9), BROKER)
        await manager.events.update(updated(1), BROKER)
        await manager.drain()


def ask(manager):
    return manager.lookups.remote_log_segment_metadata(TP, 0, 5, BROKER)


async def follower_of(manager):
    manager.replace_assignment([TP], [])
    await until(lambda: of(TP) in manager.fleet.followers)
    return manager.fleet.followers[of(TP)]


async def test_an_absent_log_that_was_known_is_not_made_anew(rig):
    await one_segment(rig)
    rig.store.exists = False
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.fleet.whole_failure is not None)
        with pytest.raises(PartitionFailed, match="accept-loss --all"):
            ask(manager)
        assert not rig.store.exists
        await manager.fleet.acceptance.accept_all()
        assert rig.store.exists, "a restart right behind the order would forget it"
        known = await manager.state.identity()
        assert known.topic_id == uuid_text(manager.fleet.identity.topic_id)
        await until(lambda: manager.lookups.is_ready(TP) or manager.fleet.followers != {})


@pytest.mark.parametrize(
    ("trouble", "refusal", "says"),
    [
        (LogUnnamed("identity.json is damaged"), InvalidArgument, "run: rlmm log name"),
        (UnsupportedProtocol("format 9"), InvalidArgument, "run: rlmm --version"),
        (StorageUnavailable("no broker answers"), NotReady, "no broker answers"),
    ],
)
async def test_a_loss_that_nobody_can_know_of_is_not_accepted_and_takes_nothing(
    rig, monkeypatch, trouble, refusal, says
):
    """It would remove what is known, end nothing, and let the log be made anew once it is gone."""
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        assert await Operator(manager).snapshot_now(None)
    open_log = MemoryEventLog.open

    async def refuse(*_, **__):
        raise trouble

    monkeypatch.setattr(MemoryEventLog, "open", refuse)
    async with rig.manager() as manager:
        away = TroubleKind.LOG_AWAY
        await until(lambda: _reason(manager) or manager.fleet.trouble.kind is away)
        with pytest.raises(refusal, match=says):
            await manager.fleet.acceptance.accept_all()
        assert await rig.disk.list(f"{rig.directory}/a/snapshots")
        monkeypatch.setattr(MemoryEventLog, "open", open_log)
        rig.store.exists = False
        await until(lambda: _reason(manager) is FailureReason.LOG_MISSING)
        assert not rig.store.exists


def _reason(manager):
    failure = manager.fleet.whole_failure
    return failure and failure.reason


async def test_an_absent_log_that_only_the_marker_names_is_not_made_either(rig):
    rig.store.exists = False
    bucket = FakeBucket(BucketLog(topic_id=OTHER, partition_count=3))
    async with rig.manager(bucket=bucket) as manager:
        await until(lambda: manager.fleet.whole_failure is not None)
        assert not rig.store.exists


async def test_nothing_is_ready_until_the_marker_was_read(rig):
    bucket = FakeBucket(away=True)
    async with rig.manager(bucket=bucket) as manager:
        manager.replace_assignment([TP], [])
        await until(
            lambda: (
                manager.fleet.trouble and manager.fleet.trouble.kind is TroubleKind.MARKER_UNREAD
            )
        )
        with pytest.raises(NotReady, match="marker"):
            ask(manager)
        bucket.away = False
        await until(lambda: manager.lookups.is_ready(TP))


async def test_another_log_than_the_markers_is_history_lost_until_all_is_accepted(rig):
    bucket = FakeBucket(BucketLog(topic_id=OTHER, partition_count=3))
    async with rig.manager(bucket=bucket) as manager:
        follower = await follower_of(manager)
        await until(lambda: follower.failure is not None)
        with pytest.raises(HistoryLost, match="bucket marker"):
            ask(manager)
        with pytest.raises(InvalidArgument, match="--all"):
            await manager.fleet.acceptance.accept(follower)
        await manager.fleet.acceptance.accept_all()
        assert bucket.accepted == [(None, rig.store.identity.topic_id)]
        await until(lambda: manager.lookups.is_ready(TP))


async def test_a_recreated_log_is_compared_with_what_the_snapshot_knew(rig):
    await one_segment(rig)
    rig.store.recreate(OTHER)
    async with rig.manager() as manager:
        follower = await follower_of(manager)
        await until(lambda: follower.failure is not None)
        with pytest.raises(HistoryLost, match="1 finished segment"):
            ask(manager)


async def recreated_under(manager, rig):
    """Wait until the follower holds the new log against what it knew."""
    await ready(manager)
    await copied(manager, 1, 0, 9)
    follower = manager.fleet.followers[of(TP)]
    rig.store.recreate(OTHER)
    await until(lambda: manager.fleet.identity.topic_id == OTHER)
    await until(lambda: follower.failure is not None)
    return follower


async def test_a_log_recreated_under_a_follower_is_history_lost_until_it_is_repaired(rig):
    async with rig.manager() as manager:
        follower = await recreated_under(manager, rig)
        with pytest.raises(HistoryLost, match="log repair") as lost:
            ask(manager)
        assert "1 finished segment" in str(lost.value)
        await Operator(manager).log_repair(follower.partition)
        await until(lambda: manager.lookups.is_ready(TP))
        assert ask(manager)
        await copied(manager, 2, 10, 19)


async def test_a_log_recreated_under_a_follower_may_be_accepted_as_it_is(rig):
    async with rig.manager() as manager:
        await recreated_under(manager, rig)
        elsewhere = manager.fleet.follow_set
        assert elsewhere is not None
        unknown = MetadataPartition((of(TP) + 1) % 3)
        elsewhere.demand([unknown])
        await until(lambda: unknown in manager.fleet.followers)
        await until(lambda: manager.fleet.followers[unknown].failure is not None)
        await Operator(manager).partition_accept_loss(None, everything=True)
        await until(lambda: manager.lookups.is_ready(TP))
        assert ask(manager) is None
        await until(lambda: manager.fleet.followers[unknown].failure is None)
        await copied(manager, 2, 10, 19)
    async with rig.manager() as manager:
        await ready(manager)


async def test_what_was_accepted_of_one_log_says_nothing_of_the_one_that_comes_after_it(rig):
    async with rig.manager() as manager:
        await recreated_under(manager, rig)
        await Operator(manager).partition_accept_loss(None, everything=True)
        await until(lambda: manager.lookups.is_ready(TP))
        third = TopicId(bytes(range(70, 86)))
        rig.store.recreate(third)
        await until(lambda: manager.fleet.identity.topic_id == third)
        unknown = MetadataPartition((of(TP) + 1) % 3)
        manager.fleet.follow_set.demand([unknown])
        await until(lambda: unknown in manager.fleet.followers)
        await until(lambda: manager.fleet.followers[unknown].failure is not None)


async def test_nothing_is_followed_by_another_count_until_that_is_accepted(rig):
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        follower = manager.fleet.followers[of(TP)]
        rig.store.grow(7)
        manager.fleet.seen(partition_count=2)
        assert ask(manager), "a broker that lags behind tells nothing"
        manager.fleet.seen(partition_count=7)
        with pytest.raises(PartitionFailed, match="had 3 partitions and has 7 now") as failed:
            ask(manager)
        assert failed.value.fields["command"] == "rlmm partition accept-loss --all"
        await until(lambda: not manager.fleet.followers)
        await Operator(manager).partition_accept_loss(None, everything=True)
        await until(lambda: manager.lookups.is_ready(TP))
        assert manager.fleet.follow_set.partition_count == 7
        assert follower.retired
        await copied(manager, 2, 10, 19)
    async with rig.manager() as manager:
        await ready(manager)
        assert len(manager.lookups.list_remote_log_segments(TP, None, Caller.BROKER)) == 1


async def test_a_log_counts_as_open_once_its_partitions_can_be_asked_for(rig, monkeypatch):
    """In between there was no trouble and no partition, which looked like one that is healthy."""
    accepted, told = StateDirectory.accepted, list[str]()

    async def looking(state: StateDirectory) -> Any:
        with pytest.raises(NotReady) as refused:
            ask(manager)
        told.append(refused.value.message)
        return await accepted(state)

    monkeypatch.setattr(StateDirectory, "accepted", looking)
    async with rig.manager() as manager:
        await ready(manager)
    assert told == ["the event log is not open: not opened yet"]


async def test_no_snapshot_of_the_former_count_is_missed_while_its_loss_is_accepted(
    rig, monkeypatch
):
    """A follower that began before it was removed would raise what was just given up."""
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await manager.drain()
    rig.store.grow(7)
    remove_all = SnapshotStore.remove_all

    async def slow(snapshots: SnapshotStore) -> None:
        await until(lambda: manager.fleet.followers or manager.fleet.whole_failure is not None)
        assert not manager.fleet.followers, "nobody follows yet"
        await remove_all(snapshots)

    monkeypatch.setattr(SnapshotStore, "remove_all", slow)
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.fleet.whole_failure is not None)
        await manager.fleet.acceptance.accept_all()
        await until(lambda: manager.lookups.is_ready(TP))
        (follower,) = manager.fleet.followers.values()
        assert not follower.history.reasons


async def test_a_death_over_the_acceptance_of_another_count_leaves_nothing_to_be_missed(
    rig, monkeypatch
):
    """By the new count those segments lie in other partitions: no repair would end that."""
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await manager.drain()
    rig.store.grow(7)

    async def dies(_: KnownLog) -> None:
        raise StorageUnavailable("as if it died here")

    async with rig.manager() as manager:
        await until(lambda: manager.fleet.whole_failure is not None)
        monkeypatch.setattr(KnownLog, "write_identity", dies)
        with pytest.raises(StorageUnavailable):
            await manager.fleet.acceptance.accept_all()
        monkeypatch.undo()
        assert not await manager.snapshots.any()
    async with rig.manager() as manager:
        await until(lambda: manager.fleet.whole_failure is not None)
        await manager.fleet.acceptance.accept_all()
        await ready(manager)


async def test_a_log_recreated_with_another_count_is_followed_by_that_once_accepted(rig):
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        rig.store.recreate(OTHER)
        rig.store.grow(7)
        await until(lambda: manager.fleet.whole_failure is not None)
        with pytest.raises(PartitionFailed, match="accept-loss --all"):
            ask(manager)
        await Operator(manager).partition_accept_loss(None, everything=True)
        await until(lambda: manager.lookups.is_ready(TP))
        assert manager.fleet.follow_set.partition_count == 7
        assert manager.fleet.follow_set.of(TP) == metadata_partition(TP.topic_id, TP.partition, 7)
        await copied(manager, 2, 10, 19)


async def test_another_partition_count_fails_every_partition(rig):
    bucket = FakeBucket(BucketLog(topic_id=rig.store.identity.topic_id, partition_count=50))
    async with rig.manager(bucket=bucket) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.fleet.whole_failure is not None)
        with pytest.raises(PartitionFailed, match="50 partitions, the log has 3"):
            ask(manager)


async def test_a_position_that_the_presence_file_had_and_the_log_lacks_is_history_lost(rig):
    bucket = FakeBucket(
        BucketLog(
            topic_id=rig.store.identity.topic_id,
            partition_count=3,
            positions={of(TP): Position(7, 0)},
        )
    )
    async with rig.manager(bucket=bucket) as manager:
        follower = await follower_of(manager)
        await until(lambda: follower.failure is not None)
        with pytest.raises(HistoryLost, match="offset 7"):
            ask(manager)
        assert manager.fleet.furthest()[of(TP)] == Position(7, 0)
        await manager.fleet.acceptance.accept(follower)
        await until(lambda: manager.lookups.is_ready(TP))


async def test_a_log_of_another_cluster_than_the_state_directory_is_left_alone(rig):
    """Brokers of another cluster answer, or two daemons' state directories were mixed up."""
    rig.store = MemoryLogStore(topic_id=OTHER, partition_count=3, cluster_id="theirs")
    await one_segment(rig)
    theirs = rig.store
    rig.store = MemoryLogStore(
        topic_id=TopicId(bytes(range(16))), partition_count=3, cluster_id="ours"
    )
    async with rig.manager("b") as manager:
        await ready(manager)
    rig.store = theirs
    async with rig.manager("b") as manager:
        await until(lambda: manager.fleet.whole_failure is not None)
        assert manager.fleet.whole_failure.reason.value == "log_foreign"
        manager.replace_assignment([TP], [])
        with pytest.raises(PartitionFailed, match="another cluster's"):
            ask(manager)
        with pytest.raises(InvalidArgument, match="does not end that"):
            await Operator(manager).partition_accept_loss(None, everything=True)
    async with rig.manager() as manager:
        await ready(manager)
        assert ask(manager) is not None, "theirs is whole for them"


async def test_a_loss_that_was_accepted_is_not_raised_again_by_a_bucket_that_answers_later(rig):
    await one_segment(rig)
    known = BucketLog(
        topic_id=rig.store.identity.topic_id, partition_count=3, positions={of(TP): Position(7, 0)}
    )
    answers = asyncio.Event()

    class Late(FakeBucket):
        async def log(self):
            await answers.wait()
            return known

    bucket = Late()
    rig.store.truncate(of(TP), 0)
    async with rig.manager(bucket=bucket) as manager:
        follower = await follower_of(manager)
        await until(lambda: follower.failure is not None)
        await manager.fleet.acceptance.accept(follower)
        await until(lambda: manager.lookups.is_ready(TP))
        answers.set()
        await until(lambda: manager.fleet.marker_checked)
        assert follower.failure is None
        assert not follower.restarting
        assert manager.lookups.is_ready(TP)


@pytest.mark.parametrize(
    ("error", "reason", "command"),
    [
        (UnsupportedProtocol("state.json is of format 2"), "newer_log", "rlmm --version"),
        (LogUnnamed("identity.json is damaged"), "log_unnamed", "rlmm log name"),
        (LogForeign("it is of cluster c2"), "log_foreign", "rlmm doctor"),
    ],
)
async def test_a_whole_log_that_cannot_be_taken_for_ours_is_not_called_damaged(
    rig, monkeypatch, error, reason, command
):
    """Nothing of it is missing or corrupt, and no command that gives it up is named."""

    async def refuse(_self, **_):
        raise error

    monkeypatch.setattr(MemoryEventLog, "open", refuse)
    async with rig.manager() as manager:
        await until(lambda: manager.fleet.whole_failure is not None)
        failure = manager.fleet.whole_failure
        assert (failure.reason.value, failure.command(of(TP))) == (reason, command)
        assert failure.evidence == error.message
        assert "acknowledged" not in failure.error(of(TP)).message
        monkeypatch.undo()
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))


def made_newer(rig) -> tuple[Path, bytes]:
    """Let the only snapshot be of a newer format."""
    (snapshot,) = Path(rig.directory, "a").rglob("*.snapshot")
    newer = bytearray(snapshot.read_bytes())
    newer[8] = newer[9] = 9  # of its format's number, behind eight bytes of magic
    snapshot.write_bytes(newer)
    return snapshot, bytes(newer)


async def test_after_a_downgrade_a_newer_snapshot_is_named_and_a_rebuild_ends_it(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        await manager.events.add(started(1, 0, 9), BROKER)
        await manager.events.update(updated(1), BROKER)
        await manager.drain()
    snapshot, newer = made_newer(rig)
    async with rig.manager() as manager:
        follower = await follower_of(manager)
        await until(lambda: follower.failure is not None)
        assert follower.failure.reason is FailureReason.NEWER_SNAPSHOT
        with pytest.raises(PartitionFailed, match="the event log is whole") as raised:
            ask(manager)
        assert str(snapshot) in raised.value.message
        assert raised.value.fields["command"] == f"rlmm partition rebuild {of(TP)}"
        assert snapshot.read_bytes() == newer, "left untouched"
        follower.rebuild()
        await until(lambda: manager.lookups.is_ready(TP))
        assert ask(manager) is not None
        assert not follower.history.comparing


async def test_a_recorded_position_that_the_log_lacks_is_history_lost_even_with_a_snapshot(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        await manager.events.add(started(1, 0, 9), BROKER)
        assert await Operator(manager).snapshot_now(None)
        await manager.events.update(updated(1), BROKER)
        await manager.fleet.noted.write()
        manager.fleet.noted.note(manager.fleet.followers[of(TP)])
        await manager.fleet.noted.write()
    rig.store.truncate(of(TP), 1)
    async with rig.manager() as manager:
        follower = await follower_of(manager)
        await until(lambda: follower.failure is not None)
        with pytest.raises(HistoryLost):
            ask(manager)


async def test_the_brokers_manager_is_called_foreign_unless_it_is_connected(rig):
    """A broker that was ours may come back with Kafka's own."""
    connected = {7}
    async with rig.manager() as manager:
        await ready(manager)
        manager.assignment.is_connected = connected.__contains__
        assert presence_of(manager).metadata_manager == "foreign"
        manager.hello_from_broker(7)
        found = presence_of(manager)
        assert (found.metadata_manager, found.incarnation) == ("rlmm", 7)
        connected.clear()
        assert presence_of(manager).metadata_manager == "foreign"


async def test_the_presence_file_says_how_many_segments_are_finished_at_least(rig):
    async with rig.manager() as manager:
        await ready(manager)
        await manager.events.add(started(1, 0, 9), BROKER)
        await manager.events.update(updated(1), BROKER)
        await manager.events.add(started(2, 10, 19), BROKER)
        counts = LiveCounts(manager)
        await counts.count()
        follower = await follower_of(manager)
        seen = presence_of(manager, counts.known).partitions[follower.partition]
        assert (seen.live_segments, seen.live_at) == (1, follower.fold.position)
        assert presence_of(manager).partitions[follower.partition].live_segments is None


async def test_the_presence_file_tells_of_a_loss_before_the_replay_has_shown_it(rig, monkeypatch):
    """The dropped fold took its position along: the nightly job would see a log that is whole."""
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        assert await Operator(manager).snapshot_now(None)
    rig.store.truncate(of(TP), 1)
    async with rig.manager() as manager:
        follower = await follower_of(manager)
        await until(lambda: follower.state is PartitionState.FAILED)
    goes_on = asyncio.Event()
    follow = MemoryEventLog.follow

    async def slowly(*args, **kwargs):
        await goes_on.wait()
        async for batch in follow(*args, **kwargs):
            yield batch

    monkeypatch.setattr(MemoryEventLog, "follow", slowly)

    def said(manager):
        return presence_of(manager).partitions[of(TP)].state

    async with rig.manager() as manager:
        follower = await follower_of(manager)
        await until(lambda: follower.history.comparing)
        assert (follower.state, said(manager)) == (PartitionState.REPLAYING, COMPARING)
        goes_on.set()
        await until(lambda: follower.state is PartitionState.FAILED)
        assert said(manager) == "failed"


async def test_the_presence_file_tells_how_far_a_dropped_fold_had_read_whoever_follows_it(rig):
    """Nobody compares what nobody follows: the position alone shows that the log lost something."""
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        assert await Operator(manager).snapshot_now(None)
    rig.store.truncate(of(TP), 1)
    async with rig.manager() as manager:
        follower = await follower_of(manager)
        await until(lambda: follower.state is PartitionState.FAILED)
        assert presence_of(manager).partitions[of(TP)].next_offset == 2
    async with rig.manager() as manager:
        await until(lambda: manager.fleet.identity is not None)
        seen = presence_of(manager).partitions[of(TP)]
        assert (seen.state, seen.next_offset) == (PartitionState.UNASSIGNED.value, 2)


async def test_a_damaged_identity_is_never_ended_by_emptying_what_holds_the_log(rig):
    await one_segment(rig)
    path = f"{rig.directory}/a/identity.json"
    await rig.disk.write_atomically(path, b"damaged")
    state = StateDirectory(rig.disk, f"{rig.directory}/a")
    with pytest.raises(ConfigError, match="move this one file aside") as told:
        await remembered(state)
    assert "Never empty" in told.value.message
    await rig.disk.remove(path)
    async with rig.manager() as manager:
        await ready(manager)
        assert ask(manager) is not None, "what the text says to do ends it"


async def named_by_positions_alone(rig) -> None:
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await until(lambda: manager.fleet.followers[of(TP)].settled is not None)
        await manager.fleet.noted.write()
    await rig.disk.remove(f"{rig.directory}/a/identity.json")


async def test_a_log_that_only_the_positions_name_is_not_made_anew(rig):
    await named_by_positions_alone(rig)
    rig.store.exists = False
    async with rig.manager() as manager:
        await until(lambda: manager.fleet.whole_failure is not None)
        assert manager.fleet.whole_failure.reason is FailureReason.LOG_MISSING
        assert not rig.store.exists


async def test_a_log_in_the_place_of_one_that_only_the_positions_name_is_not_taken_up(rig):
    await named_by_positions_alone(rig)
    rig.store.recreate(OTHER)
    async with rig.manager() as manager:
        follower = await follower_of(manager)
        await until(lambda: follower.state in (PartitionState.READY, PartitionState.FAILED))
        assert follower.state is PartitionState.FAILED
        assert "positions.json names the log" in (manager.fleet.known.foreign_evidence or "")
        written = await rig.disk.exists(f"{rig.directory}/a/identity.json")
        assert not written, "nor is it by a later start"
        await manager.fleet.acceptance.accept_all()
        await until(lambda: manager.lookups.is_ready(TP))
    async with rig.manager() as manager:
        await ready(manager)


@pytest.mark.parametrize(
    ("facts", "cause", "words", "command"),
    [
        (
            {
                "warnings": [
                    "cleanup.policy is compact: compaction deletes events; set it to delete"
                ]
            },
            "log_may_lose_events",
            "cleanup.policy is compact",
            "rlmm doctor",
        ),
        (
            {"unwritable": "No space left on device"},
            "log_takes_no_writes",
            "No space left on device",
            "rlmm doctor",
        ),
        (
            {"leaderless": "replica 3, prospective in epoch 2, hears of the voters 3, not 1, 2"},
            "quorum_takes_no_writes",
            "hears of the voters 3, not 1, 2",
            "rlmm status",
        ),
    ],
)
async def test_explain_says_what_is_wrong_with_the_log_beside_the_answer(
    rig, facts, cause, words, command
):
    async with rig.manager() as manager:
        await ready(manager)
        told: dict[str, object] = {}
        standing = Standing(manager, log_facts=lambda: told)
        before = await standing.explain(str(TP), None, None)
        assert cause not in [notice["cause"] for notice in before["also"]]
        told |= facts
        answer = await standing.explain(str(TP), None, None)
        (notice,) = [each for each in answer["also"] if each["cause"] == cause]
        assert words in notice["sentence"]
        assert (notice["next_command"], notice["trouble"]) == (command, True)


def failure(manager) -> str:
    found = [each.failure for each in manager.followed() if each.partition == of(TP)]
    return found[0].evidence if found and found[0] is not None else ""


async def test_a_log_that_holds_all_that_was_known_of_another_serves_after_a_restart_too(rig):
    await one_segment(rig)
    rig.store = MemoryLogStore(topic_id=OTHER, partition_count=3)
    bucket = FakeBucket(BucketLog(topic_id=TopicId(bytes(range(16))), partition_count=3))
    async with rig.manager(bucket=bucket) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: "1 finished segment" in failure(manager))
        for record in (started(1, 0, 9), updated(1)):  # as `log repair` does
            await manager.log.append(of(TP), record)
        await until(lambda: manager.lookups.is_ready(TP))
    for _ in range(2):
        async with rig.manager(bucket=bucket) as manager:
            manager.replace_assignment([TP], [])
            await until(lambda: manager.lookups.is_ready(TP))
            assert manager.lookups.remote_log_segment_metadata(TP, 0, 0, BROKER) is not None
    rig.store = MemoryLogStore(topic_id=OTHER, partition_count=3)  # and that one is lost
    async with rig.manager(bucket=bucket) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: "1 finished segment" in failure(manager))
