"""A marked partition, from DELETE_PARTITION_MARKED to DELETE_PARTITION_FINISHED."""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence

import pytest
from msgspec.structs import replace

from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.core.disposal.steps import PartitionStep
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.storage.layout import Layout, object_key
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.bucket.live_marker import BucketIdentity
from rlmm_daemon.daemon.cleaner.peers import Peers
from rlmm_daemon.daemon.cleaner.segments import BATCH_SEGMENTS, _Walk
from rlmm_daemon.domain.ids import BrokerId, Offset, SegmentId
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import CustomMetadata
from rlmm_daemon.domain.segment import SegmentState as S
from rlmm_daemon.ports.storage import ObjectInfo
from tests.simulation.cleaning import (
    CLUSTER,
    COUNT,
    OPTIONS,
    CleanWorld,
    SimPeers,
    number_of,
    partition_of,
    run,
    segment,
)
from tests.support.memory_storage import MemoryStorage

MARKED, STARTED, FINISHED = PartitionDeleteState
DEAD, LIVING = partition_of(1), partition_of(2)
Scenario = Callable[[CleanWorld], Awaitable[None]]


def step_of(world: CleanWorld, broker_id: int = 1) -> PartitionStep | None:
    note = world.daemons[broker_id].cleaner.notes.removals.get(DEAD)
    return None if note is None else note.step


def is_finished(world: CleanWorld) -> bool:
    return world.removal(DEAD) is FINISHED


def test_a_marked_partition_whose_topic_is_gone_goes_whole_and_nothing_else_does():
    async def scenario(world: CleanWorld) -> None:
        for number in range(10):
            world.finished(number, DEAD, 100 * number)
            world.finished(100 + number, LIVING, 100 * number)
        world.facts.gone.add(DEAD.topic_id)
        world.daemon()
        world.mark(DEAD)
        await world.until(lambda: is_finished(world))
        assert world.stored(DEAD) == []
        assert len(world.stored(LIVING)) == 30
        assert world.state(105, LIVING) is S.COPY_SEGMENT_FINISHED

    run(scenario)


def test_a_mark_alone_deletes_nothing():
    async def scenario(world: CleanWorld) -> None:
        world.finished(1, DEAD)
        world.daemon()
        world.mark(DEAD)
        await asyncio.sleep(100)
        assert (world.removal(DEAD), step_of(world)) == (MARKED, PartitionStep.HOLD_ALIVE)
        world.facts.silent = True
        world.facts.gone.add(DEAD.topic_id)
        await asyncio.sleep(100)
        assert (world.removal(DEAD), step_of(world)) == (MARKED, PartitionStep.HOLD_UNPROVEN)
        assert len(world.stored(DEAD)) == 3
        world.facts.silent = False
        await world.until(lambda: is_finished(world))
        assert world.stored(DEAD) == []

    run(scenario)


def test_whoever_does_not_own_the_metadata_partition_does_nothing():
    async def scenario(world: CleanWorld) -> None:
        world.finished(1, DEAD)
        world.facts.gone.add(DEAD.topic_id)
        world.facts.owners.clear()
        world.daemon()
        world.mark(DEAD)
        await asyncio.sleep(100)
        assert world.removal(DEAD) is MARKED
        world.facts.owners[number_of(DEAD)] = 1
        await world.until(lambda: is_finished(world))

    run(scenario)


def test_a_new_owner_goes_on_where_the_old_one_was():
    async def scenario(world: CleanWorld) -> None:
        for number in range(450):
            world.finished(number, DEAD, 100 * number)
        world.facts.gone.add(DEAD.topic_id)
        slow = replace(OPTIONS, segments_per_second_max=20.0)
        world.daemon(1, slow)
        world.daemon(2, slow)
        world.mark(DEAD)
        await world.until(lambda: len(world.stored(DEAD)) < 1000)
        await world.daemons[1].stop()
        assert not is_finished(world)
        world.facts.owners = dict.fromkeys(world.facts.owners, 2)
        await world.until(lambda: is_finished(world))
        assert world.stored(DEAD) == []

    run(scenario)


def test_two_owners_at_once_do_no_harm():
    async def scenario(world: CleanWorld) -> None:
        for number in range(50):
            world.finished(number, DEAD, 100 * number)
        world.facts.gone.add(DEAD.topic_id)
        first, second = world.daemon(1), world.daemon(2)
        both = frozenset({number_of(DEAD)})
        first.cleaner._owned = second.cleaner._owned = lambda: both
        world.mark(DEAD)
        world.mark(DEAD)
        await world.until(lambda: is_finished(world))
        assert world.stored(DEAD) == []
        await asyncio.sleep(100)
        assert is_finished(world)

    run(scenario)


def test_a_storage_that_is_away_is_waited_for():
    async def scenario(world: CleanWorld) -> None:
        world.finished(1, DEAD)
        world.facts.gone.add(DEAD.topic_id)
        daemon = world.daemon()
        await asyncio.sleep(5)
        world.objects.available = False
        world.mark(DEAD)
        await asyncio.sleep(50)
        assert world.removal(DEAD) is STARTED
        note = daemon.cleaner.notes.removals[DEAD]
        assert note.error == "the bucket does not answer"
        world.objects.available = True
        await world.until(lambda: is_finished(world))
        assert world.stored(DEAD) == []

    run(scenario)


def test_objects_that_no_event_names_go_too():
    async def scenario(world: CleanWorld) -> None:
        world.finished(1, DEAD)
        world.place(77, DEAD)
        world.facts.gone.add(DEAD.topic_id)
        world.daemon()
        world.mark(DEAD)
        await world.until(lambda: is_finished(world))
        assert world.stored(DEAD) == []

    run(scenario)


@pytest.mark.parametrize(
    "peer",
    [
        {"metadata_manager": "foreign"},
        {"lease_seconds": -1.0},
        None,
    ],
)
def test_finished_waits_for_every_registered_brokers_metadata_manager(peer):
    """Kafka's own would end its consumer for good."""

    async def scenario(world: CleanWorld) -> None:
        world.finished(1, DEAD)
        world.facts.gone.add(DEAD.topic_id)
        world.daemon()
        world.facts.registered.add(BrokerId(2))
        if peer is not None:
            world.present(2, **peer)
        world.mark(DEAD)
        await world.until(lambda: step_of(world) is PartitionStep.HOLD_PEERS)
        assert world.stored(DEAD) == []  # segment events and objects need nobody's consent
        world.present(2)
        await world.until(lambda: is_finished(world))

    run(scenario)


def test_an_operator_may_say_that_no_jvm_reads_the_log():
    async def scenario(world: CleanWorld) -> None:
        world.finished(1, DEAD)
        world.facts.gone.add(DEAD.topic_id)
        world.facts.registered.add(BrokerId(2))
        world.daemon(options=replace(OPTIONS, jvm_peers=False))
        world.mark(DEAD)
        await world.until(lambda: is_finished(world))

    run(scenario)


def test_a_copy_of_ours_is_ended_first_and_swept_after():
    async def scenario(world: CleanWorld) -> None:
        daemon = world.daemon()
        await asyncio.sleep(5)
        world.put(world.started(1, DEAD))

        async def copy() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                world.place(1, DEAD)  # its last object lands as it is cancelled

        daemon.copies.begin(DEAD, segment(1), world.group.create_task(copy()))
        await asyncio.sleep(1)
        world.facts.gone.add(DEAD.topic_id)
        world.mark(DEAD)
        await world.until(lambda: is_finished(world), 30)
        assert world.stored(DEAD) == []
        assert daemon.copies.tasks == {}

    run(scenario)


def test_a_copy_that_was_begun_unheard_of_is_not_dropped_by_the_last_mark(monkeypatch):
    """It stands in the log before DELETE_PARTITION_FINISHED, which drops every segment."""
    look = SimPeers.look

    async def scenario(world: CleanWorld) -> None:
        world.finished(1, DEAD)
        world.facts.gone.add(DEAD.topic_id)
        unheard = [2]

        async def found(self: SimPeers) -> Peers:
            answer = await look(self)
            if not world.stored(DEAD) and unheard:
                world.put(world.started(unheard.pop(), DEAD, 100, broker_id=2))
                world.place(2, DEAD, 100)
            return answer

        monkeypatch.setattr(SimPeers, "look", found)
        world.daemon()
        world.mark(DEAD)
        await world.until(lambda: is_finished(world))
        assert (unheard, world.stored(DEAD)) == ([], [])

    run(scenario)


def test_a_copy_of_another_daemon_is_waited_for_as_long_as_it_may_live():
    async def scenario(world: CleanWorld) -> None:
        daemon = world.daemon()
        await asyncio.sleep(5)
        world.put(world.started(1, DEAD, broker_id=2))
        world.facts.gone.add(DEAD.topic_id)
        world.mark(DEAD)
        await asyncio.sleep(OPTIONS.copy_deadline_seconds - 5)
        assert world.state(1, DEAD) is S.DELETE_SEGMENT_STARTED
        assert daemon.cleaner.notes.removals[DEAD].step is PartitionStep.DELETE_SEGMENTS
        world.place(1, DEAD)  # it was still at it
        await world.until(lambda: is_finished(world))
        assert world.stored(DEAD) == []

    run(scenario)


def test_a_segment_that_was_held_back_holds_the_partition_back():
    async def scenario(world: CleanWorld) -> None:
        world.finished(1, DEAD)
        world.put(world.updated(1, DEAD, S.DELETE_SEGMENT_STARTED, ONLY_IF_STARTED))
        world.facts.gone.add(DEAD.topic_id)
        world.mark(DEAD)
        world.daemon()
        await asyncio.sleep(200)
        assert len(world.stored(DEAD)) == 3
        assert world.removal(DEAD) is MARKED

    run(scenario)


def test_what_another_storage_manager_stored_is_left_to_it():
    """Its objects are not where ours would be: absent there, they would count as deleted."""

    async def scenario(world: CleanWorld) -> None:
        world.finished(1, DEAD)
        world.put(world.started(2, DEAD, 100))
        foreign = CustomMetadata(b"somewhere else")
        world.put(world.updated(2, DEAD, S.COPY_SEGMENT_FINISHED, foreign))
        world.facts.gone.add(DEAD.topic_id)
        daemon = world.daemon()
        world.mark(DEAD)
        await world.until(lambda: not world.stored(DEAD))
        await asyncio.sleep(600)
        assert (world.state(1, DEAD), world.state(2, DEAD)) == (None, S.COPY_SEGMENT_FINISHED)
        (row,) = daemon.report.rows()["removals"]
        assert "another storage manager" in row["error"]
        # Its own manager, asked by its broker, deletes it.
        world.put(
            world.updated(2, DEAD, S.DELETE_SEGMENT_STARTED, foreign),
            world.updated(2, DEAD, S.DELETE_SEGMENT_FINISHED, foreign),
        )
        await world.until(lambda: is_finished(world))

    run(scenario)


def test_every_layout_of_the_markers_table_is_emptied():
    """A prefix that was in use before: what lies below it goes too, listed or not."""

    async def scenario(world: CleanWorld) -> None:
        old = Layout(prefix="before")
        storage = MemoryStorage(world.objects, clock=world.clock)
        earlier = Bucket(storage, layout=old, rng=random.Random(1))
        await earlier.open(
            BucketIdentity(cluster_id=CLUSTER, partition_count=COUNT, metadata_topic_id="m")
        )
        for number in (1, 2):  # 2 is known to no event
            storage._store(object_key(old, DEAD, Offset(0), segment(number), suffix=".log"), b"x")
        world.finished(1, DEAD)
        world.facts.gone.add(DEAD.topic_id)
        world.daemon()
        world.mark(DEAD)
        await world.until(lambda: is_finished(world))
        assert [key for key in world.objects.objects if not key.startswith("_rlmm")] == []

    run(scenario)


class Endless(MemoryStorage):
    """A bucket whose pages come slowly, and many of them before the first object."""

    async def list(self, prefix: str) -> AsyncGenerator[Sequence[ObjectInfo], None]:
        for _ in range(20):
            await asyncio.sleep(OPTIONS.storage_seconds / 10)
            yield []
        async for page in super().list(prefix):
            yield page


class EndlessWorld(CleanWorld):
    def storage_of(self, _broker_id: BrokerId) -> Endless:
        return Endless(self.objects, clock=self.clock)


def test_a_listing_may_take_as_long_as_it_goes_on():
    """Below a prefix that begins with a hash lies the whole bucket."""

    async def scenario(world: CleanWorld) -> None:
        world.finished(1, DEAD)
        world.place(77, DEAD)
        world.facts.gone.add(DEAD.topic_id)
        world.daemon()
        world.mark(DEAD)
        await world.until(lambda: is_finished(world), 20 * OPTIONS.storage_seconds)
        assert world.stored(DEAD) == []

    run(scenario, EndlessWorld)


class Silent(MemoryStorage):
    """A bucket that begins to answer and stops."""

    async def list(self, prefix: str) -> AsyncGenerator[Sequence[ObjectInfo], None]:
        yield []
        await asyncio.Event().wait()
        async for page in super().list(prefix):
            yield page


class SilentWorld(CleanWorld):
    def storage_of(self, _broker_id: BrokerId) -> Silent:
        return Silent(self.objects, clock=self.clock)


def test_a_listing_that_does_not_go_on_is_given_up():
    async def scenario(world: CleanWorld) -> None:
        world.finished(1, DEAD)
        world.facts.gone.add(DEAD.topic_id)
        daemon = world.daemon()
        world.mark(DEAD)
        await asyncio.sleep(3 * OPTIONS.storage_seconds)
        assert daemon.cleaner.notes.removals[DEAD].error == "a listing does not go on"

    run(scenario, SilentWorld)


def test_a_search_goes_on_where_the_last_batch_ended():
    """A partition of many segments is walked twice, not once for each batch."""
    many = 40 * BATCH_SEGMENTS

    async def scenario(world: CleanWorld) -> None:
        world.finished(1, DEAD)
        daemon = world.daemon()
        await asyncio.sleep(5)
        looked = 0

        def candidates(_: PartitionCache) -> Iterator[SegmentId]:
            nonlocal looked
            for number in range(many):
                looked += 1
                yield segment(number)

        found: list[SegmentId] = []
        walk = _Walk(DEAD, candidates)
        while ids := await daemon.cleaner.segments._next(walk):
            found += ids
        assert found == [segment(number) for number in range(many)]
        assert looked <= 2 * many

    run(scenario)


def test_a_search_begins_anew_when_what_it_walks_changed():
    async def scenario(world: CleanWorld) -> None:
        world.finished(1, DEAD)
        daemon = world.daemon()
        await asyncio.sleep(5)
        known = {segment(number): None for number in range(3 * BATCH_SEGMENTS)}
        walk = _Walk(DEAD, lambda _: iter(known))
        found = await daemon.cleaner.segments._next(walk)
        del known[found[0]]
        while ids := await daemon.cleaner.segments._next(walk):
            found += ids
        assert sorted(found) == [segment(number) for number in range(3 * BATCH_SEGMENTS)]

    run(scenario)
