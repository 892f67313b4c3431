"""Events that a command appends: in their order, and nothing behind one that was refused."""

import asyncio

import pytest

from rlmm_daemon.domain.errors import InvalidArgument, OutcomeUnknown, Overloaded
from rlmm_daemon.domain.ids import MetadataPartition, TopicId
from rlmm_daemon.offline.log_contents import append_all, opened
from tests.support.memory_log import MemoryEventLog, MemoryLogStore
from tests.unit.offline.test_log_moving import config_of

P = MetadataPartition(0)
VALUES = [b"%d" % number for number in range(200)]


class Picky(MemoryEventLog):
    """Refuses one value at once, or tells late that its outcome is not known."""

    refused: bytes | None = None
    unknown: bytes | None = None

    def begin_append(self, partition, value, told):
        if value == self.refused:
            raise Overloaded("no room")
        if value == self.unknown:
            asyncio.get_running_loop().call_soon(told, OutcomeUnknown())
            return
        super().begin_append(partition, value, told)


async def picky(**named) -> tuple[Picky, MemoryLogStore]:
    store = MemoryLogStore(topic_id=TopicId(bytes(range(16))), partition_count=1)
    log = Picky(store)
    await log.open(create=False)
    for name, value in named.items():
        setattr(log, name, value)
    return log, store


async def read(log: Picky, count: int) -> list[bytes | None]:
    found = list[bytes | None]()
    async for batch in log.follow(P, 0, epoch=-1):
        found += [value for _, value in batch.records]
        if len(found) >= count:
            break
    return found


async def test_all_come_in_their_order():
    log, _ = await picky()
    assert await append_all(log, P, VALUES) == set(range(200))
    assert await read(log, 200) == VALUES


@pytest.mark.parametrize("at", [0, 3, 70])
async def test_nothing_comes_behind_what_was_refused(at):
    log, _ = await picky(refused=VALUES[at])
    with pytest.raises(Overloaded):
        await append_all(log, P, VALUES)
    log.refused = None
    assert await append_all(log, P, VALUES[at:]) == set(range(at, 200))
    assert await read(log, 200) == VALUES


async def test_an_unknown_outcome_ends_it_when_those_in_flight_are_told():
    log, _ = await picky(unknown=VALUES[3])
    with pytest.raises(OutcomeUnknown):
        await append_all(log, P, VALUES)
    ranges = await log.end_offsets([P])
    assert ranges[P].end == 63, "as many as are in flight, but for that one"


async def test_no_log_is_made_among_a_brokers_partitions(tmp_path):
    """`rlmm log restore --to` a broker's log directory: it would not start on it again."""
    (broker := tmp_path / "kafka").mkdir()
    (broker / "meta.properties").write_text("version=1")
    with pytest.raises(InvalidArgument, match="is a broker's log directory"):
        async with opened(config_of(tmp_path), str(broker), 3):
            raise AssertionError
    assert [each.name for each in broker.iterdir()] == ["meta.properties"]
