"""Which copies are given up: one walk for all of a partition's, in turns, and none for nothing."""

import asyncio

import pytest
from msgspec.structs import replace

from rlmm_daemon.codec import records
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.daemon.cleaner import superseded
from rlmm_daemon.daemon.cleaner.superseded import WALK_AT_ONCE, Superseded
from rlmm_daemon.domain.ids import BrokerId, LeaderEpoch, Offset, SegmentId
from rlmm_daemon.domain.segment import SegmentMetadata
from tests.simulation.cleaning import COUNT, number_of, partition_of, segment

AT = partition_of(2)
OWN, OTHER = BrokerId(1), BrokerId(2)
MANY = 3_000


def begun(number: int, at_ms: int, start: int, broker_id: BrokerId = OWN) -> SegmentMetadata:
    return SegmentMetadata(
        partition=AT,
        segment_id=segment(number),
        start_offset=Offset(start),
        end_offset=Offset(start + 9),
        broker_id=broker_id,
        max_timestamp_ms=7,
        event_timestamp_ms=at_ms,
        segment_leader_epochs={LeaderEpoch(0): Offset(start)},
        segment_size_bytes=1024,
    )


class Folded:
    """A user partition of these copies."""

    def __init__(self, *copies: SegmentMetadata) -> None:
        self.fold = Fold(number_of(AT), COUNT)
        self.put(*copies)

    def put(self, *copies: SegmentMetadata) -> None:
        for copy in copies:
            self.fold.apply(self.fold.position, records.encode(copy))

    @property
    def cache(self) -> PartitionCache:
        return self.fold.partitions[AT]


@pytest.fixture
def walks(monkeypatch):
    """How many segments each turn looked at."""
    turns = list[int]()
    later = superseded._later

    def counted(some, broker_id, oldest_ms):
        turns.append(len(some))
        return later(some, broker_id, oldest_ms)

    monkeypatch.setattr(superseded, "_later", counted)
    return turns


async def given_up(folded: Folded, *numbers: int) -> set[SegmentId]:
    return set(await Superseded().of(folded.cache, OWN, [segment(n) for n in numbers]))


async def test_a_later_copy_of_the_same_broker_from_the_same_offset_on_supersedes():
    folded = Folded(begun(1, 10, 100), begun(2, 20, 100), begun(3, 30, 200))
    assert await given_up(folded, 1, 2, 3) == {segment(1), segment(2)}


async def test_an_earlier_one_another_brokers_or_one_of_lower_offsets_does_not():
    folded = Folded(begun(1, 10, 100), begun(2, 5, 200), begun(3, 20, 0))
    folded.put(begun(4, 30, 300, OTHER))
    assert await given_up(folded, 1) == set()


async def test_one_walk_in_turns_answers_for_all_copies(walks):
    folded = Folded(*(begun(number, number, 10 * number) for number in range(MANY)))
    found = await given_up(folded, *range(100))
    assert found == {segment(number) for number in range(100)}
    assert sum(walks) == MANY
    assert max(walks) <= WALK_AT_ONCE


async def test_nothing_is_walked_again_before_something_changed(walks):
    folded, known = Folded(begun(1, 10, 100), begun(2, 5, 50)), Superseded()
    for _ in range(3):
        assert await known.of(folded.cache, OWN, [segment(1)]) == frozenset()
    assert sum(walks) == 2
    folded.put(replace(begun(3, 20, 200)))
    assert await known.of(folded.cache, OWN, [segment(1)]) == {segment(1)}


async def test_a_copy_that_begins_during_the_walk_starts_it_over():
    folded = Folded(*(begun(number, number, 10 * number) for number in range(MANY)))
    known = Superseded()
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(known.of(folded.cache, OWN, [segment(MANY - 1)]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        folded.put(begun(MANY, MANY, 10 * MANY))
    assert asked.result() == {segment(MANY - 1)}
