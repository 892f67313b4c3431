"""What `rlmm status` says of memory: counted, not guessed from what lies over a snapshot."""

import asyncio

from rlmm_daemon.core.snapshots import sealing, unsealing
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.daemon.metadata import tally
from rlmm_daemon.daemon.operator import memory
from rlmm_daemon.domain.ids import TopicId, TopicIdPartition
from tests.unit.core.world import (
    DELETE_STARTED,
    FINISHED,
    FOO,
    STARTED,
    TOPIC_ID,
    World,
    add,
    update,
)

BAR = TopicIdPartition(TOPIC_ID, "bar", 3)
COUNTED = (
    "segments_in_memory", "segments_in_snapshots", "user_partitions_awake",
    "user_partitions_asleep", "events_put_aside",
)  # fmt: skip


def told(fold, copying_pid=None):
    return memory.memory([fold], asyncio.run(tally.taken([fold], FairScheduler())), copying_pid)


def sealed() -> tuple[World, int]:
    """Return two user partitions asleep, of ten segments and of one, and the size of their file."""
    world = World()
    for n in range(10):
        world.upload(n, 10 * n, 10 * n + 9)
    world.put(add(70, 0, 9, partition=BAR), update(70, FINISHED, partition=BAR))
    header = sealing.header_of(
        world.fold, cluster_id="c", topic_id=TopicId(bytes(16)), created_at_ms=1
    )
    buffer = b"".join(sealing.write_chunks(world.fold, header))
    _, world.fold = unsealing.in_place(buffer)
    return world, len(buffer)


def counts(world) -> tuple[int, ...]:
    found = told(world.fold)
    return tuple(found[name] for name in COUNTED)


def test_each_count_is_of_what_is_there():
    world, size = sealed()
    assert counts(world) == (0, 11, 0, 2, 0)
    assert world.listed(0)[:2] == [0, 1]  # awake, and nothing changed
    assert counts(world) == (0, 11, 1, 1, 0)
    world.upload(10, 100, 109)
    world.upload(11, 110, 119)
    world.put(update(5, DELETE_STARTED))
    assert counts(world) == (3, 10, 1, 1, 0)
    world.remove(1)
    world.remove(11)
    world.remove(5)
    assert counts(world) == (1, 9, 1, 1, 0)
    world.upload(1, 10, 19)  # its id again, in a later life
    assert counts(world) == (2, 9, 1, 1, 0)
    for n in range(71, 74):
        world.put(add(n, 10, 19, partition=BAR))
    assert counts(world) == (2, 9, 1, 1, 3)
    found = told(world.fold)
    assert found["bytes_put_aside"] > 3 * len(FOO.topic)
    assert found["snapshot_bytes"] == size
    assert world.cache.segments_by_state[STARTED] == 0


def test_what_is_swapped_out_is_still_our_own(tmp_path, monkeypatch):
    world, _ = sealed()
    status = tmp_path / "self" / "status"
    status.parent.mkdir()
    status.write_text("VmRSS:\t 99 kB\nRssAnon:\t 20 kB\nRssFile:\t 30 kB\nVmSwap:\t 5 kB\n")
    monkeypatch.setattr(memory, "_PROC", tmp_path)
    found = told(world.fold)
    assert (found["private_bytes"], found["mapped_bytes"]) == (25 * 1024, 30 * 1024)
    assert found["bytes_per_segment"] == round(55 * 1024 / 11)
    monkeypatch.setattr(memory, "_PROC", tmp_path / "absent")
    found = told(world.fold)
    assert (found["private_bytes"], found["bytes_per_segment"]) == (None, None)


def test_what_the_process_for_copies_takes_stands_beside_ours(tmp_path, monkeypatch):
    world, _ = sealed()
    for name, kilobytes in (("self", 20), ("17", 9)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "status").write_text(f"RssAnon:\t {kilobytes} kB\n")
    monkeypatch.setattr(memory, "_PROC", tmp_path)
    for pid, expected in ((17, 9 * 1024), (None, 0), (18, None)):
        found = told(world.fold, pid)
        assert found["copying_process_private_bytes"] == expected
        assert found["private_bytes"] == 20 * 1024
