"""Presence files of other daemons in a bucket that lets nobody list them."""

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.codec import marker
from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.daemon.bucket.presence_files import PresenceReader
from rlmm_daemon.daemon.bucket.storage_keeper import StorageKeeper
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.process.runtime import Runtime
from rlmm_daemon.domain.errors import StorageUnavailable
from tests.support.memory_storage import MemoryBucket, MemoryStorage
from tests.unit.daemon.bucket.test_recorded_log import bucket, identity, read_by, recorded

__all__ = ["bucket"]


class Denied(MemoryStorage):
    """A bucket whose policy allows no listing; as S3, it calls what is not there denied, too."""

    lists = False

    async def list(self, prefix: str) -> AsyncGenerator[Any, None]:
        if not self.lists:
            raise StorageUnavailable("access denied", reason="denied", retry=False)
        async for page in super().list(prefix):
            yield page

    async def get_control(self, key: str) -> Any:
        found = await super().get_control(key)
        if found is None and key.startswith(marker.PRESENCE_PREFIX):
            raise StorageUnavailable("access denied", reason="denied", retry=False)
        return found


@pytest.fixture
async def storage() -> Denied:
    storage = Denied(MemoryBucket(), clock=SystemClock())
    for broker_id in (1, 2, 3):
        key = marker.presence_key(broker_id)
        await storage.overwrite_control(key, marker.encode(read_by(broker_id)))
    return storage


async def test_files_of_brokers_that_the_cluster_names_are_read_without_a_listing(storage, bucket):
    await bucket.open(identity())
    presences = PresenceReader(storage, 1)
    presences.named = lambda: [1, 2, 4]
    log = await recorded(storage, bucket, presences=presences).log()
    assert log is not None
    assert log.others == {1: {Position(9, 4): marker.presence_key(2)}}
    assert log.positions == {1: Position(9, 4)}
    assert log.unread == {}
    assert presences.unseen is not None
    for words in ("can't be listed", "3 brokers", marker.presence_key(4), "rlmm storage doctor"):
        assert words in presences.unseen


async def test_one_of_them_that_cannot_be_asked_for_now_is_not_taken_for_absent(
    storage, bucket, monkeypatch
):
    """S3 refuses every call of a machine whose clock is off, and calls it final."""
    await bucket.open(identity())
    presences = PresenceReader(storage, 1)
    presences.named = lambda: [1, 2]
    get_control = storage.get_control

    async def skewed(key: str) -> Any:
        if key == marker.presence_key(2):
            raise StorageUnavailable("refuses its calls", reason="clock_skew", retry=False)
        return await get_control(key)

    monkeypatch.setattr(storage, "get_control", skewed)
    with pytest.raises(StorageUnavailable, match="refuses its calls"):
        await recorded(storage, bucket, presences=presences).log()


async def test_one_of_them_that_cannot_be_read_is_known_for_what_it_is(storage, bucket):
    await bucket.open(identity())
    presences = PresenceReader(storage, 1)
    presences.named = lambda: [1, 2]
    for broker_id in (1, 2):
        await storage.overwrite_control(marker.presence_key(broker_id), b"{")
    log = await recorded(storage, bucket, presences=presences).log()
    assert log is not None
    assert log.unread[1] == [marker.presence_key(1), marker.presence_key(2)]
    assert log.own_unread


async def test_until_the_cluster_has_named_its_brokers_nothing_is_taken_for_all(storage, bucket):
    await bucket.open(identity())
    presences = PresenceReader(storage, 1)
    presences.named = lambda: None
    ours = recorded(storage, bucket, presences=presences)
    log = await ours.log()
    assert log is not None
    assert set(log.unread) == {0, 1, 2}
    assert all("which brokers it has" in why for (why,) in log.unread.values())
    with pytest.raises(StorageUnavailable, match="which brokers it has"):
        await presences.read_named()
    await ours.accept_loss(None, ours_of(log), {})
    log = await ours.log()
    assert log is not None
    assert log.unread, "nobody knows what was accepted"
    presences.named = lambda: [1]
    log = await ours.log()
    assert log is not None
    assert log.unread == {}


def ours_of(log: Any) -> Any:
    return SimpleNamespace(cluster_id="c1", topic_id=log.topic_id, partition_count=3)


async def test_what_is_not_seen_is_told_once_and_until_the_listing_is_allowed(storage):
    presences = PresenceReader(storage, 1)
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            assert [each.broker_id for each in (await presences.read()).told] == [1]
    assert len(lines) == 1
    assert presences.unseen is not None
    assert "of no other broker" in presences.unseen
    storage.lists = True
    assert len((await presences.read()).told) == 3
    assert presences.unseen is None


@pytest.mark.parametrize("private_log", [False, True])
def test_it_is_a_trouble_of_the_storage_where_others_share_the_log(storage, bucket, private_log):
    presences = PresenceReader(storage, 1)
    presences.unseen = "not seen"
    clock: Any = SimpleNamespace(now_ms=lambda: 7)
    manager: Any = SimpleNamespace(clock=clock, fleet=SimpleNamespace(others=NO_DOUBT))
    keeper = StorageKeeper(
        storage,
        bucket,
        stand_in(manager),
        NO_RUNTIME,
        broker_id=1,
        cluster_id=None,
        copy_deadline_seconds=1.0,
        trouble_by_cluster=lambda: None,
        private_log=private_log,
        presences=presences,
    )
    told = keeper.trouble()
    assert (told and told.message) == (None if private_log else "not seen")


NO_DOUBT: Any = SimpleNamespace(own_unread=False)
NO_RUNTIME: Runtime = SimpleNamespace()  # type: ignore[assignment]  # nothing is run


def stand_in(manager: Any) -> Manager:
    return manager  # type: ignore[no-any-return]  # what the keeper asks of one
