"""Long listings and sizes leave the loop to others between their pieces."""

import asyncio

from rlmm_daemon.client import AsyncClient
from rlmm_daemon.codec import api, frames, records
from rlmm_daemon.core.fold.walks import Walk
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.daemon.socket import handlers
from tests.unit.daemon.socket.fakes import ORDERS, Raw, daemon, segment

LISTED = 1_000


async def turns_of(walks, one) -> list[int]:
    """Return how many pieces were drawn in each turn of the loop, while all are drawn."""
    drawn, turns = 0, []

    async def draw(walk):
        nonlocal drawn
        async for _ in handlers.drawn(walk, one):
            drawn += 1

    async def tick():
        nonlocal drawn
        while True:
            turns.append(drawn)
            drawn = 0
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        ticking = tasks.create_task(tick())
        async with asyncio.TaskGroup() as drawing:
            for walk in walks:
                drawing.create_task(draw(walk))
        ticking.cancel()
    return [*turns, drawn]


async def test_of_several_long_answers_one_piece_is_drawn_in_a_turn():
    walks = [Walk(range(1, 50), is_long=True) for _ in range(3)]
    turns = await turns_of(walks, FairScheduler())
    assert max(turns) == 1
    assert sum(turns) == 3 * 49


async def test_a_look_up_overtakes_a_long_listing_and_a_long_size(tmp_path):
    path = str(tmp_path / "rlmm.sock")
    partition = api.Partition.of(ORDERS)
    async with daemon(path) as it:
        it.manager.records = [records.encode(segment(number)) for number in range(1, LISTED + 1)]
        assert sum(map(len, it.manager.records)) < frames.PAGE_BYTES, "a page"
        it.manager.long = True
        raw = await Raw.connect(path)
        asked = [
            ("list_remote_log_segments", api.EpochParams(partition, 5)),
            ("remote_log_size", api.EpochParams(partition, 5)),
            ("remote_log_segment_metadata", api.EpochOffsetParams(partition, 5, 150)),
        ]
        raw.writer.write(
            b"".join(frames.request_frame(2 + at, *what) for at, what in enumerate(asked))
        )
        answers = [await raw.answer() for _ in asked]
        assert answers[0][0] == 4
        listed, size = sorted(answers[1:])
        assert (listed[0], len(listed[2][0]), listed[2][1]) == (2, LISTED, False)
        assert (size[0], size[2]) == (3, 12345)
        raw.close()


async def test_a_long_listing_that_had_to_wait_comes_whole(tmp_path):
    path = str(tmp_path / "rlmm.sock")
    async with daemon(path) as it, AsyncClient(path) as client:
        many = [segment(number) for number in range(1, 6_000)]
        it.manager.records = [records.encode(each) for each in many]
        it.manager.ready, it.manager.long = False, True
        async with asyncio.TaskGroup() as tasks:
            listed = tasks.create_task(client.list_remote_log_segments(ORDERS))
            size = tasks.create_task(client.remote_log_size(ORDERS, 5))
            for _ in range(2):
                await it.manager.entered.acquire()
            it.manager.ready = True
            it.manager.becomes_ready.set()
        assert listed.result() == many
        assert size.result() == 12345
