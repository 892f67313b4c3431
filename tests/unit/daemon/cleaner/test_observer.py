"""What the observer reads and keeps: disks, its own memory; the scenarios hold the rest."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.core.disposal import observation
from rlmm_daemon.core.disposal.observation import SEEN_MAX, Observation, ObservationOptions
from rlmm_daemon.daemon.cleaner.directories import topic_ids_on_disk
from rlmm_daemon.daemon.cleaner.observer import ObserverOptions
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.ids import TopicId, uuid_text
from tests.simulation.cleaning import OPTIONS as CLEANING
from tests.simulation.cleaning import CleanWorld, partition_of, run, topic

ONE, TWO = TopicId(b"1" * 16), TopicId(b"2" * 16)
OPTIONS = ObserverOptions(interval_seconds=30.0, bounds=ObservationOptions(grace_ms=300_000))


@pytest.fixture
def disk():
    disk = LocalDisk()
    yield disk
    disk.close()


def directory(log_dir: Path, name: str, topic_id: TopicId | None) -> None:
    (log_dir / name).mkdir(parents=True)
    if topic_id is not None:
        text = f"version: 0\ntopic_id: {uuid_text(topic_id)}\n"
        (log_dir / name / "partition.metadata").write_text(text)


async def test_every_directory_of_every_log_dir_counts_even_one_that_is_being_deleted(
    disk, tmp_path
):
    directory(tmp_path / "a", "orders-0", ONE)
    directory(tmp_path / "a", "orders-1", ONE)
    directory(tmp_path / "b", "gone-0.8c1f3a-delete", TWO)
    directory(tmp_path / "b", "old-0", None)
    for name in ("a", "b"):
        (tmp_path / name / "meta.properties").write_text("version=1\n")
    found = await topic_ids_on_disk(disk, [str(tmp_path / "a"), str(tmp_path / "b")])
    assert found == {ONE, TWO}


@pytest.mark.parametrize("text", ["", "version: 0\n", "topic_id: not an id\n", "\xff\xfe"])
async def test_a_file_that_names_no_id_proves_nothing_absent(disk, tmp_path, text):
    directory(tmp_path, "orders-0", None)
    (tmp_path / "meta.properties").write_text("version=1\n")
    (tmp_path / "orders-0" / "partition.metadata").write_bytes(text.encode("latin-1"))
    with pytest.raises(StorageUnavailable, match="could not be read"):
        await topic_ids_on_disk(disk, [str(tmp_path)])


async def test_a_log_dir_that_is_not_there_proves_nothing_absent(disk, tmp_path):
    with pytest.raises(StorageUnavailable, match="could not be read"):
        await topic_ids_on_disk(disk, [str(tmp_path / "none")])


async def test_a_log_dir_whose_disk_is_not_mounted_proves_nothing_absent(disk, tmp_path):
    """The mount point is there, and empty."""
    with pytest.raises(StorageUnavailable, match="not mounted"):
        await topic_ids_on_disk(disk, [str(tmp_path)])


def test_more_ids_than_are_remembered_are_never_seen():
    watch = Observation()
    ids = [TopicId(number.to_bytes(16, "big")) for number in range(SEEN_MAX + 10)]
    watch.alive("c", frozenset(ids))
    assert len(watch.seen) == SEEN_MAX
    watch.alive("c", frozenset(ids))
    assert len(watch.seen) == SEEN_MAX


def stocked(world: CleanWorld) -> None:
    for number in range(1, 41):
        world.finished(number, partition_of(number))


def test_a_damaged_memory_is_begun_anew():
    async def scenario(world: CleanWorld) -> None:
        stocked(world)
        await world.disk.make_directory("/kept")
        await world.disk.write_atomically("/kept/observed.json", b"{damaged")
        observer = world.daemon(1, state_dir="/kept").observe(OPTIONS)
        await world.until(lambda: len(observer.observation.seen) == 40)
        assert b"damaged" not in await world.disk.read("/kept/observed.json")

    run(scenario)


def test_a_newer_memory_is_left_untouched_and_nothing_is_marked():
    async def scenario(world: CleanWorld) -> None:
        stocked(world)
        newer = b'{"format": 2, "cluster_id": "c1", "seen": []}'
        await world.disk.make_directory("/kept")
        await world.disk.write_atomically("/kept/observed.json", newer)
        observer = world.daemon(1, state_dir="/kept").observe(OPTIONS)
        await asyncio.sleep(600)
        world.facts.gone.add(topic(1))
        await asyncio.sleep(1200)
        assert observer.trouble is not None
        assert "newer daemon" in observer.trouble
        assert observer.marked == 0
        assert await world.disk.read("/kept/observed.json") == newer

    run(scenario)


def test_nothing_is_marked_before_every_metadata_partition_is_ready():
    async def scenario(world: CleanWorld) -> None:
        stocked(world)
        observer = world.daemon(1).observe(OPTIONS)
        await world.until(lambda: len(observer.observation.seen) == 40)
        world.facts.gone.add(topic(1))
        await asyncio.sleep(200)
        world.store.pause()  # no end offset is heard of: every partition goes stale
        await asyncio.sleep(1200)
        assert observer.trouble is not None
        assert "not ready" in observer.trouble
        assert observer.marked == 0
        world.store.resume()
        await world.until(lambda: observer.marked == 1, 1200)

    run(scenario)


def test_a_look_that_asks_in_vain_is_counted_and_told():
    async def scenario(world: CleanWorld) -> None:
        stocked(world)
        observer = world.daemon(1).observe(OPTIONS)
        await world.until(lambda: len(observer.observation.seen) == 40)
        world.facts.silent = True
        await world.until(lambda: observer.failures > 2)
        assert observer.rows()["trouble"] == "a broker does not answer"
        world.facts.silent = False
        await world.until(lambda: observer.trouble is None)

    run(scenario)


def test_what_one_daemon_left_for_a_person_the_next_one_leaves_too(monkeypatch):
    monkeypatch.setattr(observation, "HOUR_MS", 300_000)
    seldom = replace(CLEANING, interval_seconds=60.0)

    async def scenario(world: CleanWorld) -> None:
        stocked(world)
        first, second = (world.daemon(n, seldom).observe(OPTIONS) for n in (1, 2))
        await world.until(lambda: all(len(each.observation.seen) == 40 for each in (first, second)))
        gone = [topic(number) for number in (1, 2, 3)]
        world.facts.gone.update(gone)
        await world.until(lambda: first.marked == 2)  # 5 % of what there is
        await asyncio.sleep(500)
        world.facts.owners = dict.fromkeys(world.facts.owners, 2)
        await asyncio.sleep(500)
        assert second.rows()["watches"]
        assert (second.marked, second.observation.for_purge) == (0, {gone[2]})
        assert world.removal(partition_of(3)) is None

    run(scenario)


def test_what_is_unknown_to_every_broker_is_told_with_its_name():
    async def scenario(world: CleanWorld) -> None:
        stocked(world)
        observer = world.daemon(1).observe(OPTIONS)
        await world.until(lambda: len(observer.observation.seen) == 40)
        world.facts.gone.add(topic(7))
        await world.until(lambda: bool(observer.rows()["topics"]))
        (row,) = observer.rows()["topics"]
        assert (row["topic_id"], row["topic"]) == (uuid_text(topic(7)), "t7")

    run(scenario)
