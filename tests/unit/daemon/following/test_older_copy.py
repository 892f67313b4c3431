"""An older copy of an embedded log in its place: what is appended then never passes for the rest.

The copy counts its generations on from an older number, and so in the lost tail's own.
"""

import asyncio
import json
import random
import shutil
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog, EmbeddedOptions
from rlmm_daemon.adapters.event_log.embedded.identity import GENERATIONS_SKIPPED
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec import marker
from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.readiness.states import PartitionState
from rlmm_daemon.core.storage.layout import Layout
from rlmm_daemon.daemon.bucket import bucket as daemon_bucket
from rlmm_daemon.daemon.bucket import presence
from rlmm_daemon.daemon.bucket.storage_keeper import StorageKeeper
from rlmm_daemon.daemon.following.bucket_record import BucketLog
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.metadata.manager import Manager, ManagerOptions
from rlmm_daemon.domain.ids import MetadataPartition, TopicIdPartition
from tests.contract.event_log import spawning
from tests.support.memory_storage import MemoryBucket, MemoryStorage
from tests.unit.daemon.events import TP, of, started, until, updated

NUMBER = of(TP)


class Bucket:
    """A bucket whose presence file says how far this daemon had read; it may answer late."""

    has_storage = True

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.known: BucketLog | None = None

    async def log(self) -> BucketLog | None:
        await self.answers.wait()
        return self.known

    async def accept_loss(self, *_: object) -> None:
        raise AssertionError("nothing is accepted here")


class Host:
    """One directory with a log and a state directory, and the daemons that live in it."""

    def __init__(self, root: Path, disk: LocalDisk, tasks: asyncio.TaskGroup) -> None:
        self.root, self.disk, self.tasks = root, disk, tasks
        self.bucket: Bucket | None = None
        #: Each life draws on: no process is given the luck of another.
        self.luck = random.Random(1)
        self.log_options = EmbeddedOptions()

    @asynccontextmanager
    async def daemon(self) -> AsyncIterator[tuple[Manager, Follower]]:
        clock = SystemClock()
        log = EmbeddedLog(
            disk=self.disk,
            clock=clock,
            spawn=lambda work, name: self.tasks.create_task(work, name=name),
            luck=self.luck,
            directory=str(self.root / "log"),
            partition_count=3,
            cluster_id="here",
            options=self.log_options,
        )
        manager = Manager(
            log=log,
            disk=self.disk,
            clock=clock,
            rng=random.Random(1),
            bucket=self.bucket,
            options=ManagerOptions(state_dir=str(self.root / "state")),
        )
        async with asyncio.TaskGroup() as group:
            running = group.create_task(manager.run())
            try:
                await until(lambda: manager.fleet.follow_set is not None)
                assert manager.fleet.follow_set is not None
                manager.fleet.follow_set.demand([NUMBER])
                await until(lambda: NUMBER in manager.fleet.followers)
                yield manager, manager.fleet.followers[NUMBER]
                await manager.fleet.noted.write()
            finally:
                running.cancel()
                await asyncio.wait({running})
                await log.close()

    async def lose_a_tail(self) -> Position:
        """Write in two lives, and put back the copy of the log that stood between them."""
        async with self.daemon() as (manager, follower):
            await until(lambda: follower.state is PartitionState.READY)
            await append(manager, started(1, 0, 9), updated(1))
        shutil.copytree(self.root / "log", self.root / "copy")
        async with self.daemon() as (manager, follower):
            await until(lambda: follower.state is PartitionState.READY)
            await append(manager, started(2, 10, 19), updated(2))
            await until(lambda: follower.fold.position == 4)
            at = follower.settled
        shutil.rmtree(self.root / "log")
        shutil.rmtree(self.root / "state" / "snapshots")
        (self.root / "copy").rename(self.root / "log")
        assert at is not None
        return at


async def append(manager: Manager, *events: bytes) -> None:
    for event in events:
        await manager.log.append(NUMBER, event)


class Runtime:
    """Runs what a keeper spawns, for ever; nothing drains."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self.group, self.tasks = group, list[asyncio.Task[Any]]()

    def spawn(self, name: str, work: Coroutine[Any, Any, Any], *, may_end: bool = False) -> None:
        del may_end
        self.tasks.append(self.group.create_task(work, name=name))

    def on_drain(self, name: str, _: object) -> None:
        pass


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    disk = LocalDisk()
    async with spawning() as tasks:
        yield Host(tmp_path, disk, tasks)
    disk.close()


async def test_what_is_put_back_into_an_older_copy_does_not_confirm_the_lost_tail(host: Host):
    await host.lose_a_tail()
    async with host.daemon() as (manager, follower):
        await until(lambda: follower.state is PartitionState.FAILED)
        await append(manager, started(3, 0, 9), updated(3), started(4, 10, 19), updated(4))
        follower.retry()
        await until(lambda: not follower.restarting)
        await until(lambda: follower.fold.position == 6)
        assert follower.state is PartitionState.FAILED
        assert follower.uncertain
    async with host.daemon() as (_, follower):
        await until(lambda: follower.fold.position == 6)
        assert follower.state is PartitionState.FAILED, "nor in a later life"


async def reached(follower: Follower, end: int) -> None:
    await until(lambda: follower.fold.position == end)


def generation_of(host: Host) -> int:
    return int(json.loads((host.root / "log" / "state.json").read_text())["generation"])


async def test_an_older_state_of_a_log_that_is_whole_loses_nothing(host: Host):
    """It says less than the log's batches, and that is named."""
    async with host.daemon() as (manager, follower):
        await until(lambda: follower.state is PartitionState.READY)
        await append(manager, started(0, 0, 9), updated(0))
    state = host.root / "log" / "state.json"
    older, before = state.read_bytes(), generation_of(host)
    number, end = 0, 2
    while generation_of(host) <= before + GENERATIONS_SKIPPED:
        number, end = number + 1, end + 2
        async with host.daemon() as (manager, follower):
            await until(lambda: follower.state is PartitionState.READY)
            await append(manager, started(number, 10 * number, 10 * number + 9), updated(number))
            await reached(follower, end)
    newest = generation_of(host)
    state.write_bytes(older)
    with structlog.testing.capture_logs() as logs:
        async with host.daemon() as (manager, follower):
            await until(lambda: follower.state is PartitionState.READY)
            assert follower.fold.position == end
            await append(manager, started(number + 1, 990, 999))
    assert [each["log_level"] for each in logs if "older_one" in each["event"]] == ["warning"]
    assert generation_of(host) > newest + GENERATIONS_SKIPPED


async def test_a_position_that_the_bucket_alone_knows_is_not_confirmed_by_what_comes_after(
    host: Host,
):
    """The state directory, with the log in it, was put back from an image of the machine."""
    at = await host.lose_a_tail()
    (host.root / "state" / "positions.json").unlink()
    host.bucket = Bucket()
    async with host.daemon() as (manager, follower):
        await until(lambda: follower.state is PartitionState.READY)
        identity = manager.fleet.identity
        assert identity is not None
        host.bucket.known = BucketLog(
            topic_id=identity.topic_id, partition_count=3, positions={NUMBER: at}
        )
        host.bucket.answers.set()
        await until(lambda: follower.state is PartitionState.FAILED)
        await append(manager, started(3, 0, 9), updated(3), started(4, 10, 19), updated(4))
        follower.retry()
        await until(lambda: follower.fold.position == 6 and not follower.restarting)
        assert follower.state is PartitionState.FAILED


async def test_what_is_appended_before_the_bucket_answers_confirms_no_position_of_another_life(
    host: Host,
):
    """The copy and the life that was lost each began a generation of their own."""
    at = await host.lose_a_tail()
    (host.root / "state" / "positions.json").unlink()
    host.bucket = Bucket()
    async with host.daemon() as (manager, follower):
        await until(lambda: follower.state is PartitionState.READY)
        await append(manager, started(3, 0, 9), updated(3), started(4, 10, 19), updated(4))
        await until(lambda: follower.fold.position == 6)
        identity = manager.fleet.identity
        assert identity is not None
        host.bucket.known = BucketLog(
            topic_id=identity.topic_id, partition_count=3, positions={NUMBER: at}
        )
        host.bucket.answers.set()
        await until(lambda: manager.fleet.marker_checked)
        await until(lambda: not follower.restarting)
        await until(lambda: follower.state is not PartitionState.STARTING)
        assert follower.state is PartitionState.FAILED
    (host.root / "state" / "positions.json").unlink()
    async with host.daemon() as (_, follower):
        await until(lambda: follower.fold.position == 6)
        await until(lambda: follower.state is PartitionState.FAILED)


async def test_another_partitions_files_in_the_place_of_ones_own_are_no_history_without_segments(
    host: Host,
):
    """Directories were mixed up, as a copy was put back: each holds as many offsets as was read."""
    other = MetadataPartition((NUMBER + 1) % 3)
    async with host.daemon() as (manager, follower):
        await until(lambda: follower.state is PartitionState.READY)
        await append(manager, started(1, 0, 9), updated(1))
        await until(lambda: follower.fold.position == 2)
    log = host.root / "log"
    (log / str(NUMBER)).rename(log / str(other))
    async with host.daemon() as (manager, _):
        assert manager.fleet.follow_set is not None
        manager.fleet.follow_set.demand([other])
        await until(lambda: other in manager.fleet.followers)
        follower = manager.fleet.followers[other]
        await until(lambda: follower.fold.position == 2)
        await until(lambda: follower.state is PartitionState.FAILED)
        assert follower.open_gaps
        assert follower.failure is not None
        assert "first of all rlmm doctor" in follower.failure.evidence
        await manager.fleet.acceptance.accept(follower)
        await until(lambda: follower.state is PartitionState.READY)


async def test_nor_are_they_where_a_snapshot_had_read_as_far(host: Host):
    """Nothing is read of what stands there, and what is written next would follow it."""
    other = MetadataPartition((NUMBER + 1) % 3)
    their = next(
        tp for n in range(1, 100) if of(tp := TopicIdPartition(TP.topic_id, "orders", n)) == other
    )
    async with host.daemon() as (manager, follower):
        await until(lambda: follower.state is PartitionState.READY)
        assert manager.fleet.follow_set is not None
        manager.fleet.follow_set.demand([other])
        await until(lambda: other in manager.fleet.followers)
        await append(manager, started(1, 0, 9), updated(1))
        for value in (started(2, 0, 9, their), updated(2, tp=their)):
            await manager.log.append(other, value)
        theirs = manager.fleet.followers[other]
        await until(lambda: theirs.fold.position == follower.fold.position == 2)
        both = (follower, theirs)
        await until(lambda: {each.state for each in both} == {PartitionState.READY})
        for each in both:
            assert await manager.snapshotter.write(each)
    places = [host.root / "log" / str(number) for number in (NUMBER, other)]

    def change_places() -> None:
        away = host.root / "log" / "away"
        places[0].rename(away)
        places[1].rename(places[0])
        away.rename(places[1])

    change_places()
    async with host.daemon() as (_, follower):
        await until(lambda: follower.state is PartitionState.FAILED)
        assert follower.went_on_from == 2
        assert follower.failure is not None
        assert "first of all rlmm doctor" in follower.failure.evidence
    change_places()
    async with host.daemon() as (_, follower):
        await until(lambda: follower.state is PartitionState.READY)


@asynccontextmanager
async def keeping(manager: Manager, storage: MemoryStorage) -> AsyncIterator[StorageKeeper]:
    """Run a keeper of this storage, and what it spawns."""
    async with asyncio.TaskGroup() as group:
        runtime: Any = Runtime(group)
        keeper = StorageKeeper(
            storage,
            daemon_bucket.Bucket(storage, layout=Layout(), rng=random.Random(1)),
            manager,
            runtime,
            broker_id=1,
            cluster_id="here",
            copy_deadline_seconds=1.0,
            trouble_by_cluster=lambda: None,
        )
        runtime.spawn("keeper", keeper.run())
        try:
            yield keeper
        finally:
            for task in runtime.tasks:
                task.cancel()


async def test_the_presence_file_is_not_rewritten_before_what_it_says_was_taken_up(host: Host):
    storage = MemoryStorage(MemoryBucket(), clock=SystemClock())
    key = marker.presence_key(1)
    async with host.daemon():
        pass  # a state directory that knows its log waits for no bucket
    host.bucket = Bucket()
    async with host.daemon() as (manager, _), keeping(manager, storage):
        await until(lambda: marker.MARKER_KEY in storage.bucket.objects)
        for _turn in range(100):
            await asyncio.sleep(0)
        assert key not in storage.bucket.objects
        host.bucket.answers.set()
        await until(lambda: key in storage.bucket.objects)


async def test_the_presence_file_follows_positions_that_move(
    host: Host, monkeypatch: pytest.MonkeyPatch
):
    """Whoever starts from an older state directory is told by it what was read meanwhile."""
    monkeypatch.setattr(presence, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(presence, "MOVED_SECONDS", 0.0)
    monkeypatch.setattr(presence, "REWRITE_SECONDS", 3_600.0)
    storage = MemoryStorage(MemoryBucket(), clock=SystemClock())
    key = marker.presence_key(1)

    def told() -> int:
        seen = marker.decode_presence(storage.bucket.objects[key].body).partitions.get(NUMBER)
        return -1 if seen is None else seen.next_offset

    async with host.daemon() as (manager, follower), keeping(manager, storage):
        await until(lambda: follower.state is PartitionState.READY)
        await until(lambda: key in storage.bucket.objects and told() == 0)
        await append(manager, started(1, 0, 9))
        await until(lambda: told() == 1)
        await append(manager, updated(1))
        await until(lambda: told() == 2)
