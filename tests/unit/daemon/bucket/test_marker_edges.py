"""The bucket marker at its edges: before the first look, among races, in what messages say."""

import asyncio
import random
from functools import partial
from typing import Any

import msgspec
import pytest
import structlog.testing

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.codec import marker
from rlmm_daemon.codec.marker import MARKER_KEY, Hold
from rlmm_daemon.core.storage.layout import Layout
from rlmm_daemon.daemon.bucket import acceptance
from rlmm_daemon.daemon.bucket import bucket as bucket_module
from rlmm_daemon.daemon.bucket.bucket import Bucket, PresenceFiles
from rlmm_daemon.domain.errors import Malformed, StorageUnavailable
from rlmm_daemon.ports.storage import Conflict
from tests.support.memory_storage import MemoryBucket, MemoryStorage
from tests.unit.daemon.bucket.test_bucket import bucket, recorded, shared
from tests.unit.daemon.bucket.test_marker_promises import loss, written
from tests.unit.daemon.bucket.test_recorded_log import read_by
from tests.unit.daemon.events import until
from tests.unit.daemon.segments import IDENTITY, metadata

__all__ = ["shared"]

OURS = IDENTITY.cluster_id


class Opened(MemoryStorage):
    """A storage that answers nobody who did not open it."""

    is_open = False

    async def open(self) -> None:
        self.is_open = True

    async def get_control(self, key: str) -> Any:
        if not self.is_open:
            raise StorageUnavailable("it is not open")
        return await super().get_control(key)


def unopened(shared: MemoryBucket, name: str = "") -> Bucket:
    storage = Opened(shared, clock=SystemClock())
    return Bucket(storage, layout=Layout(""), rng=random.Random(1), name=name)


async def test_an_order_or_a_look_before_the_start_reached_the_storage_opens_it(shared):
    await bucket(shared).open(IDENTITY)
    hold = Hold(metadata_partition=None, before_ms=1_000, broker_id=1)
    assert await unopened(shared).peek() == written(shared)
    assert await acceptance.name_log(unopened(shared), "another", cluster_id=OURS)
    assert await acceptance.name_log(unopened(shared), "a third", cluster_id=OURS, hold=hold)
    assert (written(shared).metadata_topic_id, len(written(shared).held)) == ("a third", 1)


async def test_a_log_that_is_named_without_a_hold_gets_none(shared):
    one = bucket(shared)
    await one.open(IDENTITY)
    assert await acceptance.name_log(one, "another", cluster_id=OURS)
    assert written(shared).held == ()


async def test_where_there_is_no_marker_no_log_is_named_and_nothing_held(shared):
    one = bucket(shared)
    hold = Hold(metadata_partition=None, before_ms=1_000, broker_id=1)
    assert not await acceptance.name_log(one, "another", cluster_id=OURS, hold=hold)
    assert MARKER_KEY not in shared.objects


async def test_who_waited_for_two_looks_that_failed_looks_for_himself(shared):
    one = bucket(shared)
    await one.open(IDENTITY)
    get_control, asked = one.storage.get_control, 0

    async def twice_away(key: str) -> Any:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        if asked <= 2:
            raise StorageUnavailable("away")
        return await get_control(key)

    one.storage.get_control = twice_away  # type: ignore[method-assign]  # fails twice

    async def refused() -> None:
        with pytest.raises(StorageUnavailable, match="away"):
            await one.confirm()

    async with asyncio.TaskGroup() as tasks:
        for each in (refused, refused, one.confirm):
            tasks.create_task(each())
    assert (asked, one.marker) == (3, written(shared))


async def test_what_is_wrong_is_said_with_the_place_once(shared):
    one = unopened(shared, "the-bucket")
    await one.open(IDENTITY)
    await one.storage.overwrite_control(MARKER_KEY, b"{")
    with pytest.raises(StorageUnavailable) as refused:
        await one.confirm()
    assert refused.value.message.count(MARKER_KEY) == 1
    assert f"bucket marker {MARKER_KEY} in the-bucket: " in refused.value.message
    nameless = bucket(MemoryBucket())
    await nameless.open(IDENTITY)
    await nameless.storage.overwrite_control(MARKER_KEY, b"{")
    with pytest.raises(StorageUnavailable, match=f"^bucket marker {MARKER_KEY}: "):
        await nameless.confirm()


async def test_a_storage_that_hangs_is_named(shared, monkeypatch):
    monkeypatch.setattr(bucket_module, "ANSWER_SECONDS", 0.01)
    one = unopened(shared, "the-bucket")

    async def hangs() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(one.storage, "open", hangs)
    async with asyncio.TaskGroup() as tasks:
        opening = tasks.create_task(one.open(IDENTITY))
        await until(lambda: one.away is not None)
        opening.cancel()
    assert one.away is not None
    assert one.away.message.startswith("the-bucket has not answered")


async def test_each_bucket_knows_of_its_own_deletes(shared):
    one, other = bucket(shared), bucket(shared)
    id_ = metadata().segment_id
    with one.removing.these([id_]):
        assert (id_ in one.removing, id_ in other.removing) == (True, False)


async def test_nothing_is_deleted_while_another_daemon_may_know_better(shared):
    one = bucket(shared)
    await one.open(IDENTITY)
    shared.objects["d/a.log"] = shared.objects[MARKER_KEY]

    async def another() -> None:
        raise StorageUnavailable("another daemon", reason="other_daemon")

    one.require_alone = another
    (outcome,) = (await one.delete(["d/a.log"])).values()
    assert isinstance(outcome, StorageUnavailable)
    assert "d/a.log" in shared.objects


async def test_a_presence_file_that_can_not_be_read_has_the_marker_hold_everything(shared):
    await bucket(shared).open(IDENTITY)
    one = bucket(shared)

    async def unread() -> PresenceFiles:
        return PresenceFiles(unread={"_rlmm/daemons/2.json": 0})

    one.presences = unread
    assert [hold.metadata_partition for hold in (await one.open(IDENTITY)).held] == [None]


async def test_a_start_among_others_reads_again_at_once_and_not_for_ever(shared, monkeypatch):
    monkeypatch.setattr(bucket_module, "RACES_MAX", 3)
    one, races = bucket(shared), 2
    put_control = one.storage.put_control

    async def contested(*given: Any, **more: Any) -> str:
        nonlocal races
        races -= 1
        if races >= 0:
            raise Conflict(MARKER_KEY)
        return await put_control(*given, **more)

    monkeypatch.setattr(one.storage, "put_control", contested)
    assert await one._settle(IDENTITY) == written(shared)
    del shared.objects[MARKER_KEY]
    another = bucket(shared)
    monkeypatch.setattr(another.storage, "put_control", contested)
    races = 3
    with pytest.raises(StorageUnavailable, match="written by others 3 times"):
        await another._settle(IDENTITY)


async def test_a_marker_of_our_log_and_another_cluster_is_damaged_and_not_anothers(shared):
    await bucket(shared).open(IDENTITY)
    flipped = msgspec.structs.replace(written(shared), cluster_id="d1")
    one = bucket(shared)
    await one.storage.overwrite_control(MARKER_KEY, marker.encode(flipped))
    with pytest.raises(Malformed, match="its cluster id is damaged"):
        await one.open(IDENTITY)


async def test_layouts_that_are_known_are_not_asked_for_again(shared):
    await bucket(shared, "old").open(IDENTITY)
    one = bucket(shared, "new")
    await one.open(IDENTITY)
    shared.available = False
    for number in (1, 2):
        (place,) = await one.places(metadata(custom_metadata=recorded(number)))
        assert place.layout_number == number
    with pytest.raises(StorageUnavailable):
        await one.places(metadata(custom_metadata=recorded(3)))


async def test_that_a_marker_was_an_older_one_is_told_and_only_then(shared):
    one = bucket(shared)

    def words() -> str:
        return " ".join(line["event"] for line in lines)

    with structlog.testing.capture_logs() as lines:
        await one.open(IDENTITY)
        older = shared.objects[MARKER_KEY]
        await acceptance.accept_loss(one, loss(), cluster_id=OURS)
        await one.confirm()
        await bucket(shared).open(IDENTITY)
    assert "older one" not in words()
    hold = written(shared).held[0]
    shared.objects[MARKER_KEY] = older
    with structlog.testing.capture_logs() as lines:
        await one.confirm()
    assert "bucket marker is an older one" in words()
    shared.objects[MARKER_KEY] = older
    another = bucket(shared)
    another.presences = partial(_told_of, hold)
    with structlog.testing.capture_logs() as lines:
        assert [each.metadata_partition for each in (await another.open(IDENTITY)).held] == [2]
    assert "a hold that a presence file tells of" in words()


async def _told_of(hold: Hold) -> PresenceFiles:
    return PresenceFiles(told=[msgspec.structs.replace(read_by(2), holds=(hold,))])
