"""A person's order about a topic that exists: all of it goes, whatever fails on the way."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from rlmm_daemon.codec import records
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.cleaner import purge
from rlmm_daemon.daemon.cleaner.purge import Purge
from rlmm_daemon.domain.errors import InvalidArgument, NotReady, RlmmError, TimedOut
from rlmm_daemon.domain.ids import BrokerId
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentState as S
from tests.simulation.cleaning import (
    CUSTOM,
    OPTIONS,
    CleanWorld,
    SimDaemon,
    partition_of,
    run,
    segment,
)

AT = partition_of(2)
FAILS_FOR = 3


async def stocked(world: CleanWorld) -> SimDaemon:
    daemon = world.daemon()
    await asyncio.sleep(3)
    for number in (1, 2, 3):
        world.finished(number, AT, 100 * number)
    await asyncio.sleep(2)
    return daemon


async def order(daemon: SimDaemon) -> None:
    answer = await Purge(daemon.cleaner).purge(AT.topic_id, execute=True, existing=True)
    assert answer["executed"]


def failing(daemon: SimDaemon, error: RlmmError, times: int) -> None:
    """Let the next appends about the second segment fail."""
    manager, failed = daemon.manager, list[int]()
    update_if = manager.events.update_if

    async def flaky(record: bytes, *args: Any, **named: Any) -> Any:
        if bytes(segment(2)) in record and len(failed) < times:
            failed.append(1)
            raise error
        return await update_if(record, *args, **named)

    manager.events.update_if = flaky  # type: ignore[method-assign] # with errors before it


def test_a_segment_whose_delete_failed_is_tried_again_until_it_is_gone():
    async def scenario(world: CleanWorld) -> None:
        daemon = await stocked(world)
        failing(daemon, TimedOut("once"), FAILS_FOR)
        await order(daemon)
        await world.until(lambda: daemon.report.told(AT).trouble == "once")
        await world.until(lambda: not world.stored(AT))
        assert {world.state(number, AT) for number in (1, 2, 3)} == {None}
        await world.until(lambda: not daemon.report.rows()["orders"])
        assert daemon.report.told(AT).trouble is None

    run(scenario)


def test_a_moment_in_which_nothing_can_be_judged_does_not_end_the_order(monkeypatch):
    async def scenario(world: CleanWorld) -> None:
        daemon = await stocked(world)
        tools, unready = daemon.cleaner.tools, list[int]()
        cache = type(tools).cache

        def flaky(self: Any, partition: Any) -> Any:
            if daemon.report.rows()["orders"] and len(unready) < FAILS_FOR:
                unready.append(1)
                raise NotReady("stale")
            return cache(self, partition)

        monkeypatch.setattr(type(tools), "cache", flaky)
        await order(daemon)
        await world.until(lambda: not world.stored(AT))

    run(scenario)


HOUR_MS = 3_600_000


def finished_by(world: CleanWorld, number: int, ahead_ms: int) -> None:
    """A whole copy by a broker whose clock is off."""
    world.put(world.started(number, AT, 100 * number))
    world.place(number, AT, 100 * number)
    event = world.updated(number, AT, S.COPY_SEGMENT_FINISHED, CUSTOM)
    world.put(replace(event, event_timestamp_ms=event.event_timestamp_ms + ahead_ms))


def test_what_a_clock_that_was_ahead_had_finished_goes_too():
    """The order ended without it, and nothing said so."""

    async def scenario(world: CleanWorld) -> None:
        daemon = await stocked(world)
        finished_by(world, 4, HOUR_MS)
        await asyncio.sleep(2)
        await order(daemon)
        await world.until(lambda: not world.stored(AT))
        assert world.state(4, AT) is None

    run(scenario)


@pytest.mark.parametrize("behind_ms", [0, HOUR_MS])
def test_what_finishes_after_the_order_stays_though_its_clock_is_behind(behind_ms):
    async def scenario(world: CleanWorld) -> None:
        daemon = await stocked(world)
        failing(daemon, TimedOut("once"), FAILS_FOR)
        await order(daemon)
        await asyncio.sleep(1)
        finished_by(world, 4, -behind_ms)
        await world.until(lambda: world.state(2, AT) is None)
        await world.until(lambda: not daemon.report.rows()["orders"])
        assert world.state(4, AT) is S.COPY_SEGMENT_FINISHED
        assert sorted(world.stored(AT)) == sorted(world.keys(4, AT, 400))

    run(scenario)


def test_a_second_order_adds_to_one_that_is_under_way():
    async def scenario(world: CleanWorld) -> None:
        daemon = await stocked(world)
        failing(daemon, TimedOut("once"), FAILS_FOR)
        await order(daemon)
        await asyncio.sleep(1)
        world.finished(4, AT, 400)
        await asyncio.sleep(1)
        assert world.state(2, AT) is S.COPY_SEGMENT_FINISHED
        await order(daemon)
        await world.until(lambda: not world.stored(AT))
        await world.until(lambda: not daemon.report.rows()["orders"])
        assert world.state(4, AT) is None
        assert daemon.cleaner.ordered == {}

    run(scenario)


def test_what_never_succeeds_is_given_up_in_the_end_and_stays_told_of(monkeypatch):
    monkeypatch.setattr(purge, "PURGE_SECONDS_MAX", 600.0)

    async def scenario(world: CleanWorld) -> None:
        daemon = await stocked(world)
        failing(daemon, TimedOut("for ever"), 10**9)
        await order(daemon)
        await asyncio.sleep(600 + 2 * OPTIONS.backoff_seconds_max)
        assert daemon.report.rows()["orders"] == []
        assert "given up" in str(daemon.report.told(AT).trouble)
        assert world.state(2, AT) is S.COPY_SEGMENT_FINISHED

    run(scenario)


FORBIDDEN = ["a/b", "", ".", "..", "../../etc", "nul\0", "x" * 300, "café"]


@pytest.mark.parametrize("name", FORBIDDEN)
@pytest.mark.parametrize("end", ["purge", "mark"])
def test_a_partition_whose_name_kafka_forbids_can_be_ended(name, end):
    async def scenario(world: CleanWorld) -> None:
        odd = AT._replace(topic=name)
        daemon = await stocked(world)
        world.put(world.started(7, odd, 700))
        world.put(world.updated(7, odd, S.COPY_SEGMENT_FINISHED, CUSTOM))
        if end == "mark":
            world.put(world.started(8, odd, 800))
            world.put(world.updated(8, odd, S.DELETE_SEGMENT_STARTED))
        await asyncio.sleep(2)
        if end == "mark":
            world.facts.gone.add(odd.topic_id)
            world.mark(odd)
        else:
            await order(daemon)
        await world.until(lambda: world.state(7, odd) is None)
        await world.until(lambda: world.state(8, odd) is None)
        await world.until(lambda: not daemon.report.rows()["orders"])
        assert daemon.report.told(odd).trouble is None

    run(scenario)


def test_no_segment_begins_under_a_name_that_kafka_forbids_and_none_is_marked():
    async def scenario(world: CleanWorld) -> None:
        daemon = await stocked(world)
        for name in FORBIDDEN:
            odd = AT._replace(topic=name)
            daemon.manager.assignment.add([odd], [])
            record = records.encode(world.started(7, odd, 700))
            for caller in Caller:
                with pytest.raises(InvalidArgument, match=r"1 to 249 of \[a-zA-Z0-9._-\]"):
                    await daemon.manager.events.add(record, caller)
            mark = PartitionDelete(
                partition=odd,
                broker_id=BrokerId(1),
                event_timestamp_ms=1,
                state=PartitionDeleteState.DELETE_PARTITION_MARKED,
            )
            with pytest.raises(InvalidArgument, match="no topic name"):
                await daemon.manager.events.put_partition_delete(
                    records.encode(mark), Caller.OPERATOR
                )
            assert daemon.manager.fleet.follow_set is not None
            assert world.state(7, odd) is None

    run(scenario)
