"""Work counted, not timed: an event costs as much in a long history as in a short one."""

import pytest

from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.snapshots import sealing, unsealing
from rlmm_daemon.domain.ids import TopicId
from tests.unit.core.world import DELETE_FINISHED, DELETE_STARTED, FOO, World, update

SEGMENTS = 400


@pytest.fixture
def looked(monkeypatch):
    """Count the segments of which somebody asks where they lie."""
    found, part = [], PartitionCache._part

    def counted(cache, epoch, segment_id):
        found.append(segment_id)
        return part(cache, epoch, segment_id)

    monkeypatch.setattr(PartitionCache, "_part", counted)
    return found


def in_pairs(n):
    return 10 * (n // 2), 10 * (n // 2) + 9


def in_a_chain(n):
    return 5 * n, 5 * n + 9


def made(where) -> World:
    world = World()
    for n in range(SEGMENTS):
        world.upload(n, *where(n))
    return world


def slept(world: World) -> World:
    """Return the same from a snapshot."""
    nobody = TopicId(bytes(16))
    header = sealing.header_of(world.fold, cluster_id="c", topic_id=nobody, created_at_ms=1)
    _, world.fold = unsealing.in_place(b"".join(sealing.write_chunks(world.fold, header)))
    assert world.fold.partitions[FOO] is not None
    return world


@pytest.mark.parametrize("where", [in_pairs, in_a_chain])
@pytest.mark.parametrize("from_snapshot", [False, True])
def test_a_topic_whose_segments_overlap_is_deleted_in_steps_as_short_as_any(
    looked, where, from_snapshot
):
    world = made(where)
    if from_snapshot:
        world = slept(world)
    looked.clear()
    for n in range(SEGMENTS):
        world.put(update(n, DELETE_STARTED))
    for n in range(SEGMENTS):
        world.put(update(n, DELETE_FINISHED))
    assert world.cache.is_empty
    assert len(looked) <= 8 * SEGMENTS
