"""A copy that fails while somebody else writes COPY_SEGMENT_FINISHED of the same segment."""

import asyncio
from typing import Any

import pytest

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.codec import records
from rlmm_daemon.codec.marker import AcceptedLoss
from rlmm_daemon.core.explain.facts import CopyPhase
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.segment_log import update_record
from rlmm_daemon.daemon.bucket import acceptance
from rlmm_daemon.daemon.bucket.bucket import OTHER_DAEMON
from rlmm_daemon.domain.errors import HistoryLost, IllegalTransition, StorageUnavailable
from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, SegmentId
from rlmm_daemon.domain.segment import CustomMetadata, SegmentState
from rlmm_daemon.ports.storage import Progress
from tests.contract.storage import Buffer
from tests.support.memory_storage import MemoryStorage
from tests.unit.daemon.copying.copies import PATIENCE_SECONDS, World, running
from tests.unit.daemon.segments import PARTITION, metadata

S = SegmentState
ID = metadata().segment_id
FAULT = "the bucket is over its quota"


def finished(custom: bytes | None = None) -> bytes:
    return update_record(
        metadata(),
        S.COPY_SEGMENT_FINISHED,
        None if custom is None else CustomMetadata(custom),
        broker_id=BrokerId(2),
        now_ms=8,
    )


async def uploading(world: World) -> "asyncio.Task[Any]":
    """Return a copy that is at the storage and will fail there."""
    world.storage.uploads.clear()
    world.storage.fault = StorageUnavailable(FAULT)
    copy = world.copy()
    await world.told(CopyPhase.UPLOAD)
    return copy


async def stored(world: World) -> str:
    """Store an object under one of the segment's keys, as whoever finished it did."""
    place = world.bucket.place_for_new(metadata())
    kind, key = next(iter(place.keys.items()))
    theirs = MemoryStorage(world.storage.bucket, clock=SystemClock())
    await theirs.put_segment([(kind, key, Buffer(b"theirs"))], progress=Progress())
    return key


def state_of(world: World) -> SegmentState | None:
    cache = world.manager.gates.follower(PARTITION).fold.partitions.get(PARTITION)
    return None if cache is None else cache.state(ID)


async def test_a_segment_that_another_caller_finished_is_not_rolled_back(tmp_path):
    async with running(tmp_path) as world:
        key, copy = await stored(world), await uploading(world)
        await world.manager.events.update(finished(), Caller.BROKER)
        world.storage.uploads.set()
        error = await copy
        assert isinstance(error, StorageUnavailable)
        assert error.fields["rolled_back"] is False
        assert "finished" in str(error.fields["roll_back_error"])
        assert state_of(world) is S.COPY_SEGMENT_FINISHED
        assert key in world.storage.bucket.objects


async def test_that_its_objects_stay_is_an_alarm_until_the_segment_is_gone(tmp_path):
    async with running(tmp_path) as world:
        copy = await uploading(world)
        await world.manager.events.update(finished(), Caller.BROKER)
        world.storage.uploads.set()
        await copy
        assert world.copier.outcomes_of_roll_backs() == {"finished_elsewhere": 1}
        (row,) = (await world.standing.status())["unsettled_copies"]
        assert (row["partition"], row["segment_id"]) == (str(PARTITION), "AAAAAAAAAAAAAAAAAAAACQ")
        world.storage.fault = None
        assert await world.copy(segment_id=SegmentId(bytes(15) + b"\x08")) is None
        notices = {
            row["cause"]: row for row in (await world.standing.explain(str(PARTITION)))["also"]
        }
        assert notices["copy_unsettled"]["trouble"] is True
        assert notices["copy_unsettled"]["next_command"] == "rlmm storage verify"
        await world.copier.delete_segment(PARTITION, ID)
        assert (await world.standing.status())["unsettled_copies"] == []
        after = (await world.standing.explain(str(PARTITION)))["also"]
        assert "copy_unsettled" not in {row["cause"] for row in after}


async def test_a_copy_that_fails_alone_is_rolled_back_and_counted(tmp_path):
    async with running(tmp_path) as world:
        copy = await uploading(world)
        world.storage.uploads.set()
        error = await copy
        assert error.fields["rolled_back"] is True
        assert world.copier.outcomes_of_roll_backs() == {"ok": 1}
        assert (await world.standing.status())["unsettled_copies"] == []
        assert state_of(world) is None


@pytest.mark.parametrize("begun_before", [True, False])
async def test_a_repeat_that_fails_does_not_undo_what_an_accepted_loss_holds(
    tmp_path, begun_before
):
    """The log lost its COPY_SEGMENT_FINISHED, perhaps: the objects may be all there is of it."""
    async with running(tmp_path) as world:
        number = world.manager.gates.follow_set().of(PARTITION)
        if begun_before:
            world.store.put(MetadataPartition(number), records.encode(metadata()))
        key = await stored(world)
        loss = AcceptedLoss(metadata_partition=number, topic_id="t", accepted_at_ms=0, broker_id=1)
        await acceptance.accept_loss(world.bucket, loss, cluster_id=None)
        copy = await uploading(world)
        world.storage.uploads.set()
        error = await copy
        assert error.fields["rolled_back"] is not begun_before
        assert (key in world.storage.bucket.objects) is begun_before
        if begun_before:
            assert state_of(world) is S.COPY_SEGMENT_STARTED
            assert f"rlmm log recover {number}" in str(error.fields["roll_back_error"])


async def test_while_a_copy_is_rolled_back_nobody_finishes_its_segment(tmp_path):
    async with running(tmp_path) as world:
        copy = await uploading(world)
        world.storage.deletes.clear()
        world.storage.uploads.set()
        await world.told(CopyPhase.ROLL_BACK)
        with pytest.raises(IllegalTransition):
            await world.manager.events.update(finished(), Caller.BROKER)
        world.storage.deletes.set()
        assert (await copy).fields["rolled_back"] is True
        assert world.storage.bucket.objects.keys() == {"_rlmm/marker.json"}


async def test_a_finish_that_is_on_its_way_is_waited_for_before_anything_is_undone(tmp_path):
    async with running(tmp_path) as world:
        copy = await uploading(world)
        world.store.pause()
        finish = world.group.create_task(world.manager.events.update(finished(), Caller.BROKER))
        follower = world.manager.gates.follower(PARTITION)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not follower.writer.in_flight:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0)
        world.storage.uploads.set()
        await world.told(CopyPhase.ROLL_BACK)
        world.store.resume()
        await finish
        assert (await copy).fields["rolled_back"] is False
        assert state_of(world) is S.COPY_SEGMENT_FINISHED


async def test_another_daemons_finish_that_came_first_keeps_the_objects_and_is_held(tmp_path):
    """Nothing orders two daemons but the log: the delete is applied to what is finished by then."""
    async with running(tmp_path) as world:
        key, copy = await stored(world), await uploading(world)
        number = MetadataPartition(world.manager.gates.follow_set().of(PARTITION))
        real = world.manager.events.update_if

        async def overtaken(record: bytes, *args: Any, **kwargs: Any) -> Any:
            judged = args[0]

            def judge(cache: Any) -> bool:
                holds: bool = judged(cache)
                if getattr(records.decode(record), "state", None) is S.DELETE_SEGMENT_STARTED:
                    world.store.put(number, finished())
                return holds

            return await real(record, judge, *args[1:], **kwargs)

        world.manager.events.update_if = overtaken  # type: ignore[method-assign]
        world.storage.uploads.set()
        error = await copy
        assert error.fields["rolled_back"] is False
        assert key in world.storage.bucket.objects
        assert world.manager.events.is_held(PARTITION, ID)
        assert world.copier.outcomes_of_roll_backs() == {"finished_elsewhere": 1}
        with pytest.raises(HistoryLost, match="rlmm log repair"):
            await world.copier.delete_log_segment_data(records.encode(metadata()))


async def test_nothing_is_begun_while_another_daemon_has_this_broker_id(tmp_path):
    """It may have finished the segment in a log of its own."""

    async def refuse() -> None:
        raise StorageUnavailable("another daemon has broker id 1", reason=OTHER_DAEMON)

    async with running(tmp_path) as world:
        key, copy = await stored(world), await uploading(world)
        world.bucket.require_alone = refuse
        world.storage.uploads.set()
        error = await copy
        assert isinstance(error, StorageUnavailable)
        assert "another daemon" in str(error.fields["roll_back_error"])
        assert state_of(world) is S.COPY_SEGMENT_STARTED
        await world.manager.events.update(finished(), Caller.BROKER)
        with pytest.raises(StorageUnavailable, match="another daemon"):
            await world.copier.delete_segment(PARTITION, ID)
        assert state_of(world) is S.COPY_SEGMENT_FINISHED, "so it is read as before"
        (failed,) = set(map(str, (await world.bucket.delete([key])).values()))
        assert "another daemon" in failed
        assert key in world.storage.bucket.objects
