"""A daemon that compacts its log: up to its oldest snapshot, and right for whoever is behind it."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from rlmm_daemon.adapters.event_log.embedded import EmbeddedOptions
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.core.readiness.states import PartitionState
from rlmm_daemon.core.snapshots.compaction import When
from rlmm_daemon.daemon.following import compactor as compactor_module
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.segment import SegmentState
from rlmm_daemon.ports.event_log import Compacted
from tests.contract.event_log import spawning
from tests.unit.core.snapshots.test_compaction import state_of
from tests.unit.daemon.events import started, until, updated
from tests.unit.daemon.following.test_older_copy import NUMBER, Host, append

OFTEN = EmbeddedOptions(
    heartbeat_seconds=0.05,
    segment_bytes=4096,
    preallocate_bytes=1024,
    compaction=When(factor=1.2, bytes_min=1),
)
DELETES = (SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED)
ALIVE = 3


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    disk = LocalDisk()
    async with spawning() as tasks:
        host = Host(tmp_path, disk, tasks)
        host.log_options = OFTEN
        yield host
    disk.close()


async def churn(manager: Manager, follower: Follower, first: int, count: int) -> None:
    """Copy segments in a row, each of which makes an old one go."""
    await until(lambda: follower.state is PartitionState.READY)
    for n in range(first, first + count):
        await append(manager, started(n, 10 * n, 10 * n + 9), updated(n))
        if n >= ALIVE:
            await append(manager, *[updated(n - ALIVE, state) for state in DELETES])
    end = (await manager.log.end_offsets([NUMBER]))[NUMBER].end
    await until(lambda: follower.fold.position == end)


async def compact(manager: Manager, follower: Follower) -> Compacted | None:
    assert manager.compactor is not None
    return await manager.compactor.compact(follower)


async def snapshots(manager: Manager, follower: Follower) -> None:
    """Write as many as are kept, the same fold in each."""
    for _ in range(2):
        assert await manager.snapshotter.write(follower) is not None


def log_bytes(host: Host) -> int:
    return sum(path.stat().st_size for path in (host.root / "log" / str(NUMBER)).glob("*.log"))


async def test_a_log_is_compacted_up_to_the_oldest_snapshot_and_read_as_before(host: Host):
    async with host.daemon() as (manager, follower):
        await churn(manager, follower, 0, 40)
        assert await compact(manager, follower) is None, "there is no snapshot"
        assert await manager.snapshotter.write(follower) is not None
        behind = follower.fold.position
        await churn(manager, follower, 40, 40)
        assert await manager.snapshotter.write(follower) is not None
        done = await compact(manager, follower)
        assert done is not None
        assert done.until <= behind
        before, known = log_bytes(host), state_of(follower.fold)
        await snapshots(manager, follower)
        done = await compact(manager, follower)
        assert done is not None
        assert done.until > behind
        assert log_bytes(host) < before
        assert manager.compactor is not None
        assert manager.compactor.counts.done == 2
    shutil.rmtree(host.root / "state" / "snapshots")
    async with host.daemon() as (_, follower):
        await until(lambda: follower.state is PartitionState.READY)
        assert state_of(follower.fold) == known


async def test_a_snapshot_that_is_older_than_what_was_dropped_is_given_up(host: Host):
    """It knows segments as live whose end was dropped; the log from its start says what is true."""
    async with host.daemon() as (manager, follower):
        await churn(manager, follower, 0, 40)
        await snapshots(manager, follower)
    shutil.copytree(host.root / "state", host.root / "old state")
    async with host.daemon() as (manager, follower):
        await churn(manager, follower, 40, 60)
        await snapshots(manager, follower)
        assert await compact(manager, follower) is not None
        await churn(manager, follower, 100, 5)
        known = state_of(follower.fold)
    shutil.rmtree(host.root / "state")
    (host.root / "old state").rename(host.root / "state")
    async with host.daemon() as (manager, follower):
        await until(lambda: follower.state is PartitionState.READY)
        assert state_of(follower.fold) == known
        assert manager.snapshots.rejected == 2
        assert not follower.history.comparing
        assert follower.failure is None


async def test_while_a_fold_is_compared_with_an_earlier_one_nothing_is_dropped(host: Host):
    # A heartbeat has the follower judge the comparison, which would fail it.
    host.log_options = replace(OFTEN, heartbeat_seconds=3600.0)
    async with host.daemon() as (manager, follower):
        await churn(manager, follower, 0, 40)
        await snapshots(manager, follower)
        await follower.history.drop(follower.fold, "a test")
        assert follower.history.comparing
        assert await compact(manager, follower) is None
        await follower.history.forget()
        assert await compact(manager, follower) is not None


async def test_a_fold_that_is_dropped_meanwhile_keeps_the_log_as_it_is(host: Host, monkeypatch):
    async with host.daemon() as (manager, follower):
        await churn(manager, follower, 0, 40)
        await snapshots(manager, follower)
        before = log_bytes(host)
        going = asyncio.Event()
        assert manager.compactor is not None
        monkeypatch.setattr(manager.compactor, "_turns", type("Held", (), {"wait": going.wait}))
        async with asyncio.TaskGroup() as group:
            work = group.create_task(compact(manager, follower))
            await asyncio.sleep(0)
            follower.rebuild()
            await until(lambda: follower.history.comparing or follower.fold.position == 0)
            going.set()
            assert await work is None
        await until(lambda: follower.state is PartitionState.READY)
        assert log_bytes(host) == before


async def test_a_failure_is_told_and_tried_again_later(host: Host, monkeypatch):
    async with host.daemon() as (manager, follower):
        await churn(manager, follower, 0, 40)
        await snapshots(manager, follower)
        assert manager.compactor is not None

        async def refused(*_: object, **__: object) -> None:
            raise StorageUnavailable("no room")

        with monkeypatch.context() as patched:
            patched.setattr(type(manager.log), "compact", refused)
            assert await manager.compactor.try_compact(follower) is None
        counts = manager.compactor.counts
        assert (counts.failed, counts.trouble) == (1, "no room")
        monkeypatch.setattr(compactor_module, "POLL_SECONDS", 0.01)
        assert await manager.compactor.try_compact(follower) is not None
        assert (counts.failed, counts.done, counts.trouble) == (1, 1, None)
