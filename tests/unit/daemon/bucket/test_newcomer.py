"""A daemon that never followed a metadata partition, and a log that lost its tail before it came.

It has no position of its own to hold the log against. The daemons that had read further say so in
their presence files, which outlive them.
"""

import asyncio
import random
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from rlmm_daemon.codec import marker
from rlmm_daemon.codec.marker import BucketMarker, PresencePartition
from rlmm_daemon.core.readiness.states import FailureReason
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.bucket.recorded_log import RecordedLog
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.domain.errors import HistoryLost
from rlmm_daemon.domain.ids import BrokerId, uuid_text
from rlmm_daemon.domain.segment import SegmentState as S
from tests.simulation import cleaning
from tests.simulation.cleaning import (
    CLUSTER,
    COUNT,
    CUSTOM,
    OPTIONS,
    CleanWorld,
    SimDaemon,
    number_of,
    partition_of,
    run,
)

AT, US = partition_of(2), BrokerId(1)
PATIENCE = OPTIONS.copy_deadline_seconds + OPTIONS.delivery_timeout_seconds


async def told(world: CleanWorld, broker_id: int, next_offset: int) -> None:
    """The marker, and a presence file of a daemon that has read so far."""
    storage = world.storage_of(BrokerId(broker_id))
    await storage.open()
    topic_id = uuid_text(world.store.identity.topic_id)
    fresh = BucketMarker(cluster_id=CLUSTER, partition_count=COUNT, metadata_topic_id=topic_id)
    if await storage.get_control(marker.MARKER_KEY) is None:
        await storage.put_control(marker.MARKER_KEY, marker.encode(fresh), if_etag=None)
    world.present(broker_id, lease_seconds=60.0)
    at = PresencePartition(
        state="ready", topic_id=topic_id, leader_epoch=0, next_offset=next_offset
    )
    presence = msgspec.structs.replace(
        world.facts.presences[BrokerId(broker_id)], partitions={number_of(AT): at}
    )
    await storage.overwrite_control(marker.presence_key(broker_id), marker.encode(presence))


def cut(world: CleanWorld) -> None:
    """Lose the last event, as an unclean election does; broker 2 is gone for good."""
    number = number_of(AT)
    world.store.truncate(number, world.store.partition(number).end - 1)


@pytest.fixture
def recorded(monkeypatch) -> Callable[[CleanWorld], None]:
    """Daemons that ask the bucket what it knows of the log."""

    def install(world: CleanWorld) -> None:
        storage = world.storage_of(US)
        bucket = Bucket(storage, layout=world.layout, rng=random.Random(4))
        record = RecordedLog(
            storage,
            bucket,
            broker_id=US,
            cluster_id=CLUSTER,
            now_ms=world.clock.now_ms,
            state=StateDirectory(world.disk_of(US), "/record"),
        )
        monkeypatch.setattr(cleaning, "Manager", partial(Manager, bucket=record))
        monkeypatch.setattr(cleaning, "Bucket", lambda *_, **__: bucket)

    return install


async def acknowledged(world: CleanWorld) -> None:
    """A copy of broker 2."""
    world.put(world.started(1, AT, broker_id=2))
    world.place(1, AT)
    world.put(world.updated(1, AT, S.COPY_SEGMENT_FINISHED, CUSTOM, broker_id=2))
    await told(world, 2, next_offset=world.store.partition(number_of(AT)).end)


def require_lost(world: CleanWorld, daemon: SimDaemon) -> Follower:
    follower = daemon.manager.fleet.followers[number_of(AT)]
    assert follower.failure is not None
    assert follower.failure.reason is FailureReason.HISTORY_LOST
    assert marker.presence_key(2) in follower.failure.evidence, "whose word it is"
    assert len(world.stored(AT)) == 3
    with pytest.raises(HistoryLost):
        daemon.manager.lookups.remote_log_segment_metadata(AT, 0, 5, Caller.BROKER)
    return follower


async def announced(world: CleanWorld, daemon: SimDaemon) -> None:
    await asyncio.sleep(3)
    daemon.manager.hello_from_broker(world.clock.now_ms())
    daemon.manager.replace_assignment([AT], [])


def test_a_newcomer_neither_hides_nor_ends_what_a_cut_log_took_from_another_broker(recorded):
    async def scenario(world: CleanWorld) -> None:
        await acknowledged(world)
        cut(world)
        recorded(world)
        daemon = world.daemon(1)
        await announced(world, daemon)
        await asyncio.sleep(3 * PATIENCE)
        follower = require_lost(world, daemon)
        await daemon.manager.fleet.acceptance.accept(follower, without_looking=True)
        await world.until(lambda: daemon.manager.lookups.is_ready(AT))
        # Nor does it come back, in whichever life: the file is older than the acceptance.
        await daemon.stop()
        daemon = world.daemon(1)
        await announced(world, daemon)
        await world.until(lambda: daemon.manager.lookups.is_ready(AT))
        await asyncio.sleep(3 * PATIENCE)
        assert len(world.stored(AT)) == 3  # held

    run(scenario)


@pytest.mark.parametrize("was_here", [False, True])
def test_a_daemon_that_comes_to_follow_a_cut_log_later_hears_of_it_too(recorded, was_here):
    async def scenario(world: CleanWorld) -> None:
        world.put(world.started(2, AT, 100))
        await told(world, 2, next_offset=1)
        recorded(world)
        daemon = world.daemon(1)
        world.facts.owners = {number_of(AT): 1} if was_here else {}
        await asyncio.sleep(60)
        world.facts.owners = {}
        followers = daemon.manager.fleet.followers
        await world.until(lambda: number_of(AT) not in followers)
        await acknowledged(world)
        cut(world)
        world.facts.owners = {number_of(AT): 1}
        await announced(world, daemon)
        await asyncio.sleep(3 * PATIENCE)
        require_lost(world, daemon)

    run(scenario)


def test_a_daemon_that_was_down_while_another_wrote_alone_is_not_ready_without_that(recorded):
    """As its broker, whose replica is behind: it is elected uncleanly when the other one dies."""

    async def scenario(world: CleanWorld) -> None:
        world.put(world.started(2, AT, 100))
        await told(world, 2, next_offset=1)
        recorded(world)
        daemon = world.daemon(1, state_dir="/state")
        await announced(world, daemon)
        await world.until(lambda: daemon.manager.lookups.is_ready(AT))
        await asyncio.sleep(3)
        await daemon.stop()
        await acknowledged(world)
        cut(world)
        daemon = world.daemon(1, state_dir="/state")
        await announced(world, daemon)
        await asyncio.sleep(3 * PATIENCE)
        require_lost(world, daemon)

    run(scenario)


def test_a_daemon_that_lagged_while_another_wrote_alone_asks_before_it_ends_that_copy(recorded):
    async def scenario(world: CleanWorld) -> None:
        world.put(world.started(1, AT, broker_id=2))
        await told(world, 2, next_offset=1)
        recorded(world)
        daemon = world.daemon(1)
        await announced(world, daemon)
        await world.until(lambda: daemon.manager.lookups.is_ready(AT))
        # Finished and read by broker 2 alone, and cut before this daemon's fetch.
        world.place(1, AT)
        await told(world, 2, next_offset=2)
        await asyncio.sleep(3 * PATIENCE)
        require_lost(world, daemon)

    run(scenario)


def test_a_copy_of_a_broker_that_is_gone_is_ended_where_the_log_has_all_that_it_had_read(recorded):
    async def scenario(world: CleanWorld) -> None:
        world.put(world.started(1, AT, broker_id=2))
        world.place(1, AT)
        await told(world, 2, next_offset=1)
        recorded(world)
        await announced(world, world.daemon(1))
        await world.until(lambda: not world.stored(AT))

    run(scenario)


def test_a_log_that_has_all_that_others_had_read_is_taken_up(recorded):
    async def scenario(world: CleanWorld) -> None:
        await acknowledged(world)
        recorded(world)
        daemon = world.daemon(1)
        await announced(world, daemon)
        await world.until(lambda: daemon.manager.lookups.is_ready(AT))

    run(scenario)


@pytest.mark.parametrize("everything", [False, True])
def test_a_loss_that_was_accepted_earlier_in_this_life_hides_no_later_one(recorded, everything):
    """Nor does the cleaner end the copy of a broker that is gone, whose finish was cut off."""

    async def scenario(world: CleanWorld) -> None:
        await acknowledged(world)
        cut(world)
        recorded(world)
        daemon = world.daemon(1)
        await announced(world, daemon)
        await asyncio.sleep(3 * PATIENCE)
        acceptance = daemon.manager.fleet.acceptance
        if everything:
            await acceptance.accept_all(without_looking=True)
        else:
            await acceptance.accept(require_lost(world, daemon), without_looking=True)
        await world.until(lambda: daemon.manager.lookups.is_ready(AT))
        # Broker 2 is told of the acceptance later, and goes on to say what was lost.
        await told(world, 2, next_offset=2)
        await daemon.manager.fleet.others.ask_others(number_of(AT))
        await asyncio.sleep(60)
        assert daemon.manager.lookups.is_ready(AT)
        # Finished and read by broker 2 alone, and cut before this daemon's fetch.
        world.put(world.started(3, AT, 100, broker_id=2))
        world.place(3, AT, 100)
        await world.until(lambda: daemon.manager.fleet.followers[number_of(AT)].lag == 0)
        at = world.store.partition(number_of(AT)).end + 1
        await told(world, 2, next_offset=at)
        await asyncio.sleep(3 * PATIENCE)
        follower = daemon.manager.fleet.followers[number_of(AT)]
        assert len(world.stored(AT)) == 6
        assert follower.failure is not None
        assert follower.failure.reason is FailureReason.HISTORY_LOST

    run(scenario)
