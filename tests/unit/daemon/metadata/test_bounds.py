"""What no caller may have written: it is refused before it is decoded, and folded where it is."""

import asyncio

import pytest
from msgspec.structs import replace

from rlmm_daemon.codec import record_reading, records
from rlmm_daemon.core.fold.cache import EPOCHS_AT_ONCE
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.validation import LEADER_EPOCHS_MAX, RECORD_BYTES_MAX, read_offered
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.segment_log import decode_new_segment
from rlmm_daemon.domain.errors import InvalidArgument, Malformed
from rlmm_daemon.domain.ids import LeaderEpoch, Offset
from rlmm_daemon.domain.segment import CustomMetadata, SegmentMetadata
from tests.unit.daemon.events import TP, of, segment_id, started, until, updated


def segment(end: int) -> SegmentMetadata:
    decoded = records.decode(started(1, 0, end))
    assert isinstance(decoded, SegmentMetadata)
    return decoded


def of_epochs(count: int) -> bytes:
    epochs = {LeaderEpoch(epoch): Offset(10 * epoch) for epoch in range(count)}
    return records.encode(replace(segment(10 * count), segment_leader_epochs=epochs))


LARGE = of_epochs(100_000)
MANY = of_epochs(LEADER_EPOCHS_MAX + 1)
OVER_SIZE = rf"{len(LARGE)} bytes is over the limit of {RECORD_BYTES_MAX}"
OVER_COUNT = rf"{LEADER_EPOCHS_MAX + 1} leader epochs is over the limit of {LEADER_EPOCHS_MAX}"


@pytest.fixture
def decodings(monkeypatch) -> list[int]:
    """Sizes of the values whose records were read."""
    sizes: list[int] = []
    read_any = record_reading.read_any

    def noted(value):
        sizes.append(len(value))
        return read_any(value)

    monkeypatch.setattr(records, "read_any", noted)
    return sizes


@pytest.mark.parametrize(("record", "why"), [(LARGE, OVER_SIZE), (MANY, OVER_COUNT)])
async def test_what_is_too_large_is_refused_before_it_is_decoded(rig, decodings, record, why):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        decodings.clear()
        for write in (
            manager.events.add(record, Caller.BROKER),
            manager.events.add(record, Caller.OPERATOR),
            manager.events.update(record, Caller.BROKER),
            manager.events.put_partition_delete(record, Caller.BROKER),
            manager.events.update_if(record, lambda _: True, 1.0),
        ):
            with pytest.raises(InvalidArgument, match=why):
                await write
        with pytest.raises(InvalidArgument, match=why):
            manager.events.begin_add(record, 1.0, lambda _: None)
        with pytest.raises(InvalidArgument, match=why):
            manager.events.begin_update(record, 1.0, lambda _: None)
        with pytest.raises(InvalidArgument, match=why):
            decode_new_segment(record)
        assert decodings == []
        assert manager.fleet.followers[of(TP)].fold.position == 0


async def test_what_a_log_holds_is_folded_whatever_it_holds(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        await manager.log.append(of(TP), MANY)
        await manager.log.append(of(TP), updated(1))
        cache = manager.fleet.followers[of(TP)].fold.partitions
        await until(lambda: cache.get(TP) is not None and cache[TP].segments_by_state[1] == 1)
        found = manager.lookups.remote_log_segment_metadata(
            TP, LEADER_EPOCHS_MAX, 10 * LEADER_EPOCHS_MAX, Caller.BROKER
        )
        assert found is not None
        assert segment_id(1) in found


async def test_a_follower_puts_an_event_of_many_epochs_into_some_of_them_at_a_time(
    rig, monkeypatch
):
    beats, steps, settle = 0, list[int](), Fold.settle

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    def noted(self: Fold, epochs_max: int) -> bool:
        if self.partitions.get(TP) is not None and self.partitions[TP].epochs.due:
            steps.append(beats)
        assert epochs_max <= EPOCHS_AT_ONCE
        return settle(self, epochs_max)

    monkeypatch.setattr(Fold, "settle", noted)
    async with asyncio.TaskGroup() as group, rig.manager() as manager:
        beating = group.create_task(beat())
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        fold = manager.fleet.followers[of(TP)].fold
        await manager.log.append(of(TP), MANY)
        await until(
            lambda: fold.partitions.get(TP) is not None and not fold.partitions[TP].epochs.due
        )
        beating.cancel()
    assert len(steps) >= LEADER_EPOCHS_MAX // EPOCHS_AT_ONCE
    assert len(set(steps)) == len(steps), "others have their turn between two steps"


def test_the_largest_that_may_be_written_is_read():
    assert read_offered(of_epochs(LEADER_EPOCHS_MAX))[0] == records.decode(
        of_epochs(LEADER_EPOCHS_MAX)
    )


def test_many_bytes_alone_are_no_many_epochs():
    custom = CustomMetadata(bytes(500_000))
    wide = records.encode(replace(segment(9), custom_metadata=custom))
    wide_update = updated(1, custom=custom)
    assert read_offered(wide)[1] == wide
    assert read_offered(wide_update)[1] == wide_update


def test_a_count_that_the_bytes_cannot_hold_is_malformed():
    claimed = bytearray(MANY[:-LEADER_EPOCHS_MAX])
    with pytest.raises(Malformed, match="claims"):
        read_offered(bytes(claimed))
