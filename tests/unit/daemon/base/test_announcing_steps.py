"""Announcements over the socket: a long one is answered behind its last step, and in its order."""

import asyncio
from typing import Any

from rlmm_daemon.codec import api, frames
from rlmm_daemon.daemon.base.announcing import STEP
from tests.unit.daemon.socket.fakes import BROKER, CLUSTER, ORDERS, Raw, daemon, until


def some(first: int, count: int) -> list[api.Partition]:
    return [
        api.Partition.of(ORDERS._replace(partition=number))
        for number in range(first, first + count)
    ]


def turns_held(it: Any) -> asyncio.Event:
    """Let nobody have a turn before the event is set."""
    it.manager.turns.wait = (turn := asyncio.Event()).wait
    return turn


async def a_broker(path: str, incarnation: int = 77) -> Raw:
    raw = await Raw.connect(path, role=None)
    raw.send_hello(
        "broker",
        part="metadata",
        cluster_id=CLUSTER,
        broker_id=BROKER,
        broker_incarnation=incarnation,
    )
    assert (await raw.answer())[1] is None
    return raw


async def test_a_long_announcement_is_taken_up_whole_before_what_was_sent_behind_it(tmp_path):
    async with daemon(str(tmp_path / "s")) as it:
        raw = await a_broker(it.path)
        long, short = some(0, 3 * STEP + 1), some(5 * STEP, 1)
        raw.writer.write(
            frames.request_frame(
                2, "on_partition_leadership_changes", api.AssignmentParams(long, short)
            )
            + frames.request_frame(3, "on_stop_partitions", api.PartitionsParams(short))
            + frames.request_frame(4, "replace_assignment", api.AssignmentParams([], short))
        )
        assert [(await raw.answer())[0] for _ in range(3)] == [2, 3, 4]
        *taken, stopped, replaced = it.manager.announced
        leaders = [tp for word, leads, _ in taken for tp in leads]
        assert leaders == [each.to_domain() for each in long]
        assert all(len(leads) <= STEP for _, leads, _ in taken)
        assert stopped == ("stop", [each.to_domain() for each in short])
        assert replaced == ("replace", [], [each.to_domain() for each in short])
        raw.close()


async def test_an_announcement_that_waits_is_of_the_incarnation_that_sent_it(tmp_path):
    """Else it would open the gate for a later one, whose broker may have other partitions."""
    async with daemon(str(tmp_path / "s")) as it:
        turn = turns_held(it)
        raw = await a_broker(it.path)
        long, short = api.AssignmentParams(some(0, 3 * STEP), []), api.AssignmentParams([], [])
        raw.writer.write(
            frames.request_frame(2, "on_partition_leadership_changes", long)
            + frames.request_frame(3, "replace_assignment", short)
        )
        await until(lambda: it.server.stats.requests_now == 2)
        later = await a_broker(it.path, incarnation=78)
        await until(lambda: it.manager.incarnation_ms == 78)
        turn.set()
        await until(lambda: it.manager.replaced_for == [77])
        raw.close()
        later.close()


async def test_a_long_announcement_whose_connection_is_gone_is_taken_up_whole(tmp_path):
    async with daemon(str(tmp_path / "s")) as it:
        raw = await a_broker(it.path)
        long = some(0, 3 * STEP)
        turn = turns_held(it)
        announcement = api.AssignmentParams(long, [])
        raw.writer.write(frames.request_frame(2, "on_partition_leadership_changes", announcement))
        await until(lambda: it.server.stats.requests_now == 1)
        raw.close()
        await until(lambda: it.server.stats.requests_now == 0)
        turn.set()
        whole = [each.to_domain() for each in long]
        await until(lambda: [tp for _, leads, _ in it.manager.announced for tp in leads] == whole)
