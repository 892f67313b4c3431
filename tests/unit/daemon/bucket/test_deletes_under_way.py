"""A copy that is repeated under its segment id while a delete of its former life goes on."""

import asyncio

from rlmm_daemon.daemon.bucket.deletes_under_way import DeletesUnderWay
from rlmm_daemon.domain.errors import IllegalTransition
from rlmm_daemon.domain.ids import SegmentId
from tests.unit.daemon.copying.copies import World, running
from tests.unit.daemon.reading.read_calls import until
from tests.unit.daemon.segments import PARTITION, metadata

ID = metadata().segment_id


async def copied(world: World) -> None:
    assert await world.copy() is None


def keys(world: World) -> list[str]:
    return [key for key in world.storage.bucket.objects if not key.startswith("_rlmm/")]


async def test_the_slower_of_two_deletes_takes_nothing_of_a_copy_that_was_repeated(tmp_path):
    async with running(tmp_path) as world, asyncio.TaskGroup() as group:
        await copied(world)
        stored = keys(world)
        assert stored
        slow = world.storage.deletes = asyncio.Event()
        slower = group.create_task(world.copier.delete_segment(PARTITION, ID))
        await until(lambda: ID in world.bucket.removing)
        world.storage.deletes = asyncio.Event()
        world.storage.deletes.set()
        await world.copier.delete_segment(PARTITION, ID)
        assert keys(world) == []
        refused = await world.copy()
        assert isinstance(refused, IllegalTransition)
        assert refused.fields["reason"] == "segment_id_used"
        assert refused.fields["write_begun"] is False
        another = SegmentId(bytes(15) + b"\x55")
        assert await world.copy(segment_id=another) is None
        whole = keys(world)
        assert len(whole) == len(stored)
        slow.set()
        await slower
        assert keys(world) == whole


def test_a_segment_is_being_removed_until_the_last_of_those_who_do_has_ended():
    removing, one, other = DeletesUnderWay(), SegmentId(bytes(16)), SegmentId(b"\x01" * 16)
    with removing.these([one]):
        with removing.these([one, other]):
            assert one in removing
            assert other in removing
        assert one in removing
        assert other not in removing
    assert one not in removing
