"""Connections that are cut, go silent, are slow, and lose an answer, through a proxy of ours."""

import asyncio
import statistics
import time

from rlmm_daemon.daemon.operator.standing import Standing
from tests.kafka.proxy import GROUP_APIS, PRODUCE, Proxy, fetches_partition
from tests.kafka.rig import BROKER, COUNT, Writer, segments, serving, tp_in, until

FETCH_SETTINGS = {"event_log.kafka.fetch.request_timeout_ms": "1500"}


def fetching(proxies: dict[int, Proxy]) -> int:
    return sum(len(proxy.fetching) for proxy in proxies.values())


async def test_there_is_one_connection_per_followed_partition_and_no_group(rig, proxies):
    rig.create()
    partitions = [tp_in(number) for number in range(COUNT)]
    async with rig.manager(listener="PROXIED") as manager:
        await serving(manager, *partitions)
        await until(lambda: fetching(proxies) == COUNT)
        for tp in partitions:
            await Writer(manager, tp).copy(0)
        assert fetching(proxies) == COUNT
        manager.on_stop_partitions(partitions[1:])
        await until(
            lambda: fetching(proxies) == 1, what="connections of partitions left are closed"
        )
        assert manager.lookups.is_ready(partitions[0])
    seen = [each for proxy in proxies.values() for each in proxy.connections]
    asked = set().union(*(each.requests for each in seen))
    assert not asked & GROUP_APIS, asked
    assert PRODUCE in asked


async def test_copies_go_on_over_connections_that_are_cut(rig, proxies):
    rig.create()
    tp = tp_in(0)
    async with rig.manager(listener="PROXIED") as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        async with writer.writing():
            for _ in range(10):
                await writer.more(3)
                for proxy in proxies.values():
                    for seen in proxy.connections:
                        seen.cut()
            await writer.more(3)
        await until(lambda: manager.lookups.is_ready(tp))
        await asyncio.to_thread(writer.check, rig)


async def test_a_silent_connection_is_given_up_and_another_one_made(rig, proxies):
    rig.create()
    tp = tp_in(0)
    async with rig.manager(listener="PROXIED", settings=FETCH_SETTINGS) as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        await writer.copy(0)
        silent = [seen for proxy in proxies.values() for seen in proxy.fetching]
        for proxy in proxies.values():
            proxy.half_open = lambda seen: seen in silent
        begun = time.perf_counter()
        await writer.copy(1)
        rig.tell(f"half open: the next copy took {time.perf_counter() - begun:.1f} s")
        await until(lambda: manager.lookups.is_ready(tp))
        await asyncio.to_thread(writer.check, rig)


async def test_an_event_whose_answer_is_lost_is_there_once(rig, proxies):
    rig.create()
    tp = tp_in(0)
    async with rig.manager(listener="PROXIED") as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        await writer.copy(0)
        lost = 0

        def lose(seen) -> bool:
            nonlocal lost
            due = lost < 5 and bool(seen.newest) and seen.newest[4:6] == b"\x00\x00"
            lost += due
            return due

        for proxy in proxies.values():
            proxy.lose_answer = lose
        for number in range(1, 10):
            await writer.copy(number)
        assert lost == 5
        assert not writer.errors, "the same producer, epoch and sequence: the outcome is known"
        values = [value for _, _, value in await asyncio.to_thread(rig.probe.dump, rig.topic)]
        assert len(values) == len(set(values)) == 20
        await asyncio.to_thread(writer.check, rig)


async def test_a_slow_link_makes_writes_slow_and_nothing_wrong(rig, proxies):
    rig.create()
    tp = tp_in(0)
    async with rig.manager(listener="PROXIED", settings=FETCH_SETTINGS) as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        await writer.copy(0)
        for proxy in proxies.values():
            proxy.delay_seconds, proxy.delayed = 0.4, lambda _: True
        writer.seconds.clear()
        begun = time.perf_counter()
        for number in range(1, 4):
            await writer.copy(number)
            await until(
                lambda: manager.lookups.is_ready(tp), what="an answer that comes late is fresh too"
            )
        rig.tell(f"0.4 s on each answer: {(time.perf_counter() - begun) / 6:.2f} s a write")
        assert min(writer.seconds) >= 0.4, "the link is slow"
        for proxy in proxies.values():
            proxy.heal()
        await writer.copy(4)
        await asyncio.to_thread(writer.check, rig)


async def latencies(writers: list[Writer], count: int) -> list[float]:
    for writer in writers:
        writer.seconds.clear()
    begin = max((len(writer.acknowledged) for writer in writers), default=0)
    for number in range(begin, begin + count):
        for writer in writers:
            await writer.copy(number)
    return sorted(each for writer in writers for each in writer.seconds)


def p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


async def test_a_slow_partition_does_not_slow_the_others(rig, proxies):
    rig.create(placement=[[1]] * COUNT)
    partitions = [tp_in(number) for number in range(COUNT)]
    async with rig.manager(listener="PROXIED") as manager:
        await serving(manager, *partitions)
        others = [Writer(manager, tp) for tp in partitions[1:]]
        await latencies(others, 10)
        quiet = await latencies(others, 60)
        slow = proxies[1]
        slow.delay_seconds, slow.delayed = 0.5, fetches_partition(0)
        beside = Writer(manager, partitions[0])
        async with beside.writing():
            await beside.more(1)
            beside.seconds.clear()
            disturbed = await latencies(others, 60)
            await beside.more(1)
        delayed = [seconds for seconds in beside.seconds if seconds > 0.2]
        rig.tell(f"p99 quiet {p99(quiet) * 1e3:.1f} ms, beside it {p99(disturbed) * 1e3:.1f} ms")
        assert delayed, "the proxy delays the slow partition"
        # Not one of the 360 writes waited for the slow partition's answers.
        assert p99(disturbed) < min(delayed) / 2
        assert statistics.median(disturbed) < statistics.median(quiet) * 3
        assert segments(manager, partitions[1])


async def test_a_hit_is_answered_while_no_connection_can_be_made(rig, proxies):
    rig.create()
    tp = tp_in(0)
    async with rig.manager(listener="PROXIED") as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        await writer.copy(0)
        standing = Standing(manager, log_facts=manager.log.facts)
        (row,) = [each for each in await standing.partitions() if each["connection"]]
        assert row["connection"]["state"] == "fetching"
        assert "fetching from broker" in str(await standing.explain(str(tp)))
        for proxy in proxies.values():
            proxy.refuse = True
            for seen in proxy.connections:
                seen.cut()
        await until(lambda: not manager.lookups.is_ready(tp), 30, "staleness is noticed")
        assert manager.lookups.remote_log_segment_metadata(tp, 0, 5, BROKER) is not None
        assert "last error" in str(await standing.explain(str(tp)))
        for proxy in proxies.values():
            proxy.heal()
        rig.tell(f"healed: ready after {await until(lambda: manager.lookups.is_ready(tp)):.1f} s")
        await writer.copy(1)
