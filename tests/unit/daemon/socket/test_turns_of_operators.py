"""Many requests of operators at once: the loop is never theirs for long, nor the memory."""

import asyncio
import os

from rlmm_daemon.codec import api, frames
from rlmm_daemon.daemon.following.confirmation import ON_DEMAND_MAX, Confirmation
from rlmm_daemon.domain.ids import SegmentId, TopicIdPartition
from tests.unit.daemon.socket.fakes import ORDERS, Raw, daemon, until

MANY = 500


async def test_operators_writes_and_questions_begin_one_in_a_turn_of_the_loop(tmp_path):
    async with daemon(str(tmp_path / "s")) as it:
        begun, most, turns = [0], [0], [0]
        real = it.operator.status

        async def status():
            begun[0] += 1
            return await real()

        async def add(_record, _caller, _seconds):
            begun[0] += 1

        async def watch() -> None:
            """Look once in each turn how many began since the last."""
            before = 0
            while before < 2 * MANY:
                await asyncio.sleep(0)
                most[0], before = max(most[0], begun[0] - before), begun[0]
                turns[0] += 1

        it.operator.status, it.manager.add = status, add  # type: ignore[method-assign]
        raw = await Raw.connect(it.path)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch())
            for number in range(2, MANY + 2):
                record = api.RecordParams(b"r")
                raw.writer.write(
                    frames.request_frame(2 * number, "add_remote_log_segment_metadata", record)
                    + frames.request_frame(2 * number + 1, "status", api.NoParams())
                )
        assert most[0] == 1
        answered = {(await raw.answer())[0] for _ in range(2 * MANY)}
        assert answered == set(range(4, 2 * MANY + 4))
        raw.close()
        await until(lambda: it.server.stats.requests_now == 0)


async def test_only_what_computes_gives_up_the_processor_as_it_begins(tmp_path, monkeypatch):
    """A delete waits for its disk anyway; a loop that gave way on a busy machine comes late."""
    yielded: list[str] = []
    monkeypatch.setattr(os, "sched_yield", lambda: yielded.append("yield"))
    async with daemon(str(tmp_path / "s")) as it:
        raw = await Raw.connect(it.path)
        params = api.SegmentParams(api.Partition.of(ORDERS), SegmentId(bytes(16)))
        raw.writer.write(frames.request_frame(2, "delete_segment", params))
        await raw.answer()
        assert yielded == []
        raw.writer.write(frames.request_frame(3, "status", api.NoParams()))
        await raw.answer()
        assert yielded == ["yield"]
        raw.close()
        await until(lambda: it.server.stats.requests_now == 0)


def test_questions_about_partitions_that_nobody_announced_are_forgotten_oldest_first():
    confirmation = Confirmation()
    announced = [ORDERS._replace(topic="announced", partition=number) for number in range(10)]
    for partition in announced:
        confirmation.insert(partition)
    asked = [ORDERS._replace(partition=number) for number in range(3 * ON_DEMAND_MAX)]
    for number, partition in enumerate(asked):
        confirmation.insert_on_demand(partition)
        if number % 100 == 0:
            confirmation.answered(number, confirmation.question())
        if number % 300 == 0:
            confirmation.reached(number)

    def held() -> set[TopicIdPartition]:
        return {*confirmation.asking, *confirmation.waiting, *confirmation.confirmed}

    assert held() == {*announced, *asked[-ON_DEMAND_MAX:]}
    confirmation.restart()
    assert held() == {*announced, *asked[-ON_DEMAND_MAX:]}
    confirmation.insert(asked[-1])  # it is announced by now, so it stays
    for number in range(2 * ON_DEMAND_MAX):
        confirmation.insert_on_demand(ORDERS._replace(topic="later", partition=number))
    assert asked[-1] in confirmation
    assert len(held()) == len(announced) + 1 + ON_DEMAND_MAX
