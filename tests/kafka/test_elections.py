"""An unclean election takes back events that were acknowledged: noticed, named, and mended.

Replicas are frozen rather than killed, so that no process has to start: 2 falls out of the ISR, 1
alone takes the tail, 1 falls silent, and 2 is made leader without the tail.
"""

import asyncio
import time
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rlmm_daemon.core.readiness.states import FailureReason
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.domain.errors import HistoryLost
from tests.kafka.probe import ProbeError
from tests.kafka.rig import BROKER, P0, Writer, follower, segments, serving, tp_in, until
from tests.kafka.test_topic import failed
from tests.unit.daemon import events

#: Kafka itself may take half a minute for an election, where a frozen node led the controllers.
ELECTION_SECONDS = 120
pytestmark = pytest.mark.timeout(2 * ELECTION_SECONDS)

QUICK = {"event_log.kafka.fetch.request_timeout_ms": "1500"}
KEPT, LOST = 3, 3
#: Holds no replica.
BYSTANDER = 3


@pytest.fixture
def uneven(rig, cluster):
    if cluster.count == 1:
        pytest.skip("needs replicas")
    for _ in range(ELECTION_SECONDS):
        rig.create(placement=[[1, 2]] * 4)
        if led_by_1(rig):
            return rig
        # An earlier test had frozen 1, so 2 leads. It would say so for as long as it knows of
        # nothing newer, which is how it is frozen: only who never led can't be mistaken.
        rig.probe.ask("delete", topic=rig.topic)
        time.sleep(1)
    raise AssertionError("broker 1 leads no new topic")


def led_by_1(rig) -> bool:
    try:
        described = rig.probe.ask("describe", topic=rig.topic)
    except ProbeError as error:
        if "UnknownTopic" not in str(error):
            raise
        return False  # whoever was asked has not heard of it yet
    return all(each["leader"] == 1 for each in described["partitions"])


async def led_by_the_first(rig) -> int:
    """Return the epoch in which 1 leads with both in sync: 2 may lead, where 1 was started late."""
    async with asyncio.timeout(60):
        while sorted((await described(rig))["isr"]) != [1, 2]:
            await asyncio.to_thread(time.sleep, 0.2)
        while (await described(rig))["leader"] != 1:
            await asked(rig, "elect", partition=0)
            await asyncio.to_thread(time.sleep, 0.2)
        return int((await asked(rig, "end", partition=0))["epoch"])


def bystander(rig) -> str:
    return f"127.0.0.1:{rig.cluster.nodes[BYSTANDER].ports['PLAINTEXT']}"


async def asked(rig, op: str, **arguments: Any) -> dict[str, Any]:
    """Ask by way of the broker that is never frozen, again while that ends at one that is."""
    via = f"127.0.0.1:{rig.cluster.nodes[BYSTANDER].ports['PLAINTEXT']}"
    while True:
        try:
            return await asyncio.to_thread(rig.probe.ask, op, topic=rig.topic, via=via, **arguments)
        except ProbeError as error:
            if "Timeout" not in str(error):
                raise


async def described(rig) -> dict[str, Any]:
    return dict((await asked(rig, "describe"))["partitions"][0])


async def until_described(rig, name: str, value: object) -> None:
    async with asyncio.timeout(60):
        while (await described(rig))[name] != value:
            await asyncio.to_thread(time.sleep, 0.2)


@asynccontextmanager
async def only_one_in_sync(rig, cluster):
    """Let what is written meanwhile reach replica 1 alone; gives the epoch in which 1 leads."""
    epoch = await led_by_the_first(rig)
    cluster.freeze(2)
    await until_described(rig, "isr", [1])
    yield epoch
    cluster.freeze(1)
    cluster.thaw(2)


async def elect_the_other(rig, cluster, former: int) -> None:
    """Make replica 2 the leader, whatever it lacks; 1 comes back as its follower.

    Whoever is asked may be 2, and know of nothing since it was frozen: not of its last election
    either, of a time when it led and 1 was out of sync. An epoch beyond that in which 1 led tells
    the new one from it; had 1 come back before there was one, it would lead on.
    """
    async with asyncio.timeout(ELECTION_SECONDS):
        while (now := await described(rig))["leader"] != 2 or now["isr"] != [2]:
            await asked(rig, "elect", partition=0, unclean=True)
            await asyncio.sleep(0.2)
        while (await asked(rig, "end", partition=0))["epoch"] <= former:
            await asked(rig, "elect", partition=0, unclean=True)
            await asyncio.sleep(0.2)
        end = (await asked(rig, "end", partition=0))["offset"]
    assert end <= 2 * KEPT, "replica 2 has what was written while it was frozen"
    cluster.thaw(1)


async def mended(rig, manager, tp, writers: list[Writer], command: str) -> None:
    """Run the named command and hold what is there against what was acknowledged."""
    begun = time.perf_counter()
    if command == "repair":
        await Operator(manager).log_repair(P0)
    else:
        await Operator(manager).partition_accept_loss(P0, everything=False)
    await until(lambda: manager.lookups.is_ready(tp))
    rig.tell(f"{command}: ready after {time.perf_counter() - begun:.2f} s")
    known = segments(manager, tp)
    acknowledged = {events.segment_id(n) for writer in writers for n in writer.acknowledged}
    if command == "repair":
        assert known.keys() >= acknowledged
        assert set(known.values()) == {"COPY_SEGMENT_FINISHED"}
    else:
        assert len(acknowledged - known.keys()) == LOST
    again = Writer(manager, tp, base=500)
    await again.copy(0)
    await asyncio.to_thread(again.check, rig)


@pytest.mark.parametrize("command", ["repair", "accept-loss"])
async def test_a_tail_that_an_election_lost_is_noticed_and_mended(uneven, cluster, command):
    rig, tp = uneven, tp_in(0)
    async with rig.manager(settings=QUICK) as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        for number in range(KEPT):
            await writer.copy(number)
        async with only_one_in_sync(rig, cluster) as epoch:
            for number in range(KEPT, KEPT + LOST):
                await writer.copy(number)
        begun = time.perf_counter()
        await elect_the_other(rig, cluster, epoch)
        await failed(manager, FailureReason.HISTORY_LOST, seconds=60)
        rig.tell(f"tail lost: noticed after {time.perf_counter() - begun:.1f} s")
        with pytest.raises(HistoryLost, match=f"{LOST} finished segments .*rlmm log repair 0"):
            manager.lookups.list_remote_log_segments(tp, None, BROKER)
        assert not manager.lookups.is_ready(tp)
        await mended(rig, manager, tp, [writer], command)


def cut_off(proxies) -> None:
    for proxy in proxies.values():
        proxy.refuse = True
        for seen in proxy.connections:
            seen.cut()


async def overwrite(rig, tp, position: int) -> None:
    """Write to the new leader what covers the lost tail and more."""
    overwriting = [
        value
        for number in range(100, 100 + 2 * LOST)
        for value in (
            events.started(number, number * 10, number * 10 + 9, tp),
            events.updated(number, tp=tp),
        )
    ]
    # Before it has heard of the election the former leader might take what comes.
    async with asyncio.timeout(ELECTION_SECONDS):
        while (now := await described(rig))["leader"] != 2 or sorted(now["isr"]) != [1, 2]:
            await asyncio.to_thread(time.sleep, 0.2)
    to_the_other = {"via": bystander(rig)}
    offsets = await asyncio.to_thread(rig.probe.produce, rig.topic, 0, overwriting, **to_the_other)
    assert offsets[0] < position <= offsets[-1]


async def test_a_lost_range_that_was_overwritten_beyond_our_position_is_noticed(
    uneven, cluster, proxies
):
    """The log's end says nothing then: only the epoch of what was read last does."""
    rig, tp = uneven, tp_in(0)
    async with rig.manager(listener="PROXIED", settings=QUICK) as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        for number in range(KEPT):
            await writer.copy(number)
        async with only_one_in_sync(rig, cluster) as epoch:
            for number in range(KEPT, KEPT + LOST):
                await writer.copy(number)
            position = follower(manager, P0).fold.position
            cut_off(proxies)
        await elect_the_other(rig, cluster, epoch)
        await overwrite(rig, tp, position)
        begun = time.perf_counter()
        for proxy in proxies.values():
            proxy.heal()
        await failed(manager, FailureReason.HISTORY_LOST, seconds=60)
        rig.tell(f"overwritten: noticed after {time.perf_counter() - begun:.1f} s")
        with pytest.raises(HistoryLost, match=f"{LOST} finished segments"):
            manager.lookups.list_remote_log_segments(tp, None, BROKER)
        await mended(rig, manager, tp, [writer], "repair")
        assert events.segment_id(100) in segments(manager, tp), "and theirs are there too"


async def test_a_quiet_partition_followed_from_a_snapshot_notices_that_it_was_overwritten(
    uneven, cluster, proxies
):
    """Nothing was read since the start: only the snapshot knows the epoch of the last batch."""
    rig, tp = uneven, tp_in(0)
    async with rig.manager() as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        for number in range(KEPT):
            await writer.copy(number)
        epoch = await led_by_the_first(rig)
        cluster.freeze(2)
        await until_described(rig, "isr", [1])
        for number in range(KEPT, KEPT + LOST):
            await writer.copy(number)
        assert await Operator(manager).snapshot_now(P0)
        position = follower(manager, P0).fold.position
    async with rig.manager(listener="PROXIED", settings=QUICK) as manager:
        await serving(manager, tp)
        assert follower(manager, P0).fold.position == position
        cut_off(proxies)
        cluster.freeze(1)
        cluster.thaw(2)
        await elect_the_other(rig, cluster, epoch)
        await overwrite(rig, tp, position)
        for proxy in proxies.values():
            proxy.heal()
        await failed(manager, FailureReason.HISTORY_LOST, seconds=60)
        with pytest.raises(HistoryLost, match=f"{LOST} finished segments"):
            manager.lookups.list_remote_log_segments(tp, None, BROKER)


async def test_a_tail_that_was_lost_behind_the_snapshot_of_a_killed_daemon_is_noticed(
    uneven, cluster
):
    rig, tp = uneven, tp_in(0)
    async with rig.manager() as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        for number in range(KEPT):
            await writer.copy(number)
        async with only_one_in_sync(rig, cluster) as epoch:
            for number in range(KEPT, KEPT + LOST):
                await writer.copy(number)
            written = await Operator(manager).snapshot_now(P0)
            assert written
    await elect_the_other(rig, cluster, epoch)
    async with rig.manager(settings=QUICK) as manager:
        manager.replace_assignment([tp], [])
        await failed(manager, FailureReason.HISTORY_LOST, seconds=60)
        with pytest.raises(HistoryLost):
            manager.lookups.list_remote_log_segments(tp, None, BROKER)
        await until(lambda: len(follower(manager, P0).history.missing) == LOST)
        await mended(rig, manager, tp, [writer], "repair")
