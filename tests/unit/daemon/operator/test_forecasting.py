"""Forecasts of a manager's topics: by their segments' events, and not walked for too often."""

import asyncio
from typing import Any

import pytest

from rlmm_daemon.config.model import Prices
from rlmm_daemon.core.forecast import DAY_MS
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.operator import forecasting as module
from rlmm_daemon.daemon.operator.forecasting import Forecasts
from rlmm_daemon.daemon.operator.page import forecast as page_module
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.ports.storage import Traffic
from tests.support.page import HOSTILE, Copies, fill, served
from tests.unit.daemon.events import NEIGHBOUR, TP, copied, started, until
from tests.unit.daemon.following.test_mapped import NEVER
from tests.unit.daemon.operator.test_page import asked

TOPIC = uuid_text(TP.topic_id)
#: Events of `tests.unit.daemon.events` are of the first day of 1970.
DAYS = 5


class At:
    """A clock some days behind those events."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_ms(self) -> int:
        return DAYS * DAY_MS

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
async def manager(rig):
    async with rig.manager(snapshots=NEVER) as running:
        running.replace_assignment([TP, NEIGHBOUR], [])
        await until(lambda: running.lookups.is_ready(TP))
        for number in range(3):
            await copied(running, number, 10 * number, 10 * number + 9)
        await running.events.add(started(7, 70, 79), Caller.BROKER)
        yield running


def requests() -> Traffic:
    return Traffic(
        requests={("PutObject", "ok"): 20, ("UploadPart", "slow"): 10, ("GetObject", "ok"): 8,
                  ("DeleteObjects", "ok"): 99, ("ListObjectsV2", "ok"): 99},
        retries={}, retry_budget=0.0, throttled=0, in_flight={}, in_flight_max={}, uploads_left=0,
    )  # fmt: skip


def made(manager: Any, **more: Any) -> tuple[Forecasts, At]:
    clock = At()
    copies: Any = Copies()
    manager.clock = clock
    copies.bytes_copied = 1_000
    return Forecasts(manager, copier=copies, prices=Prices(**more), requests=requests), clock


async def test_finished_segments_alone_are_summed_by_their_events_day(manager):
    forecasts, _ = made(manager)
    (row,) = (await forecasts.of("orders"))["topics"]
    held = sum(cache.bytes_by_state[1] for cache in manager.followed()[0].fold.partitions.values())
    assert (row["topic"], row["topic_id"]) == ("orders", TOPIC)
    assert (row["segments"], row["bytes"], row["days"]) == (3, held, DAYS - 1)
    assert row["tiered_bytes"] == 0, "the first day was a part of one, and nothing came since"
    assert row["write_requests"] == 0
    assert row["cost"] == {"held": None, "writes": None, "reads": None, "total": None}


async def test_writes_are_counted_without_lists_and_deletes_and_reads_after_an_hour(manager):
    forecasts, clock = made(manager, gib_month=1.0, currency="EUR")
    forecasts._fetched = lambda: {"orders": 3, "other": 1}
    traffic = forecasts._traffic(forecasts._fetched())
    assert (traffic.write_requests, traffic.read_requests) == (30, 8)
    assert (traffic.read_bytes, traffic.topic_read_bytes) == (4, 0)
    clock.seconds = 7_200.0
    answer = await forecasts.of(TOPIC)
    assert (answer["currency"], answer["priced"]) == ("EUR", True)
    assert answer["topics"][0]["read_requests"] == pytest.approx(8 * 3 / 4 * 360)


async def test_all_topics_come_the_largest_first_and_nobody_for_a_stranger(manager):
    fill(manager, HOSTILE)
    forecasts, _ = made(manager)
    answer = await forecasts.of(None)
    assert answer["count"] == len(HOSTILE) + 1
    assert answer["topics"][0]["topic"] == "orders"
    assert {row["topic"] for row in answer["topics"]} == {"orders", *HOSTILE}
    assert (await forecasts.of("nobody"))["topics"] == []


async def test_what_all_topics_read_is_summed_once_and_others_get_turns(manager, monkeypatch):
    """Of 10,000 topics that were read, once for each held the loop for seconds."""
    fill(manager, HOSTILE)
    forecasts, _ = made(manager)
    asked_for, turns, row = list[None](), list[int](), module._row

    def fetched() -> dict[str, int]:
        asked_for.append(None)
        return {"orders": 3}

    def counted(*of: Any) -> dict[str, Any]:
        turns.append(loop_turns)
        return row(*of)

    loop_turns = 0

    async def count() -> None:
        nonlocal loop_turns
        while True:
            loop_turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(module, "_row", counted)
    monkeypatch.setattr(module, "_AT_ONCE", 1)
    forecasts._fetched = fetched
    async with asyncio.TaskGroup() as group:
        counting = group.create_task(count())
        await forecasts.of(None)
        counting.cancel()
    assert len(asked_for) == 1
    assert len(set(turns)) == len(turns) == len(HOSTILE) + 1


async def test_the_page_walks_once_for_many_looks_and_not_over_too_many(manager, monkeypatch):
    async with served(manager) as page:
        first = await asked(page, "forecast", id=TOPIC)
        assert (first["status"], first["topics"][0]["segments"]) == (200, 3)
        listing = manager.lookups.listing
        monkeypatch.setattr(manager.lookups, "listing", lambda *_: pytest.fail("once more"))
        assert await asked(page, "forecast", id=TOPIC) == first
        assert (await asked(page, "forecast", id="nobody"))["status"] == 404
        monkeypatch.setattr(page_module, "KEPT_SECONDS", 0.0)
        with monkeypatch.context() as slow:
            slow.setattr(page_module, "WALK_SECONDS", 0.0)
            told = await asked(page, "forecast", id=TOPIC)
            assert told["why"] == f"it takes long: ask `rlmm forecast {TOPIC}`"
        monkeypatch.setattr(page_module, "SEGMENTS_MAX", 2)
        many = await asked(page, "forecast", id=TOPIC)
        assert (many["status"], many["why"]) == (
            503, f"it has many segments: ask `rlmm forecast {TOPIC}`"
        )  # fmt: skip
        monkeypatch.setattr(manager.lookups, "listing", listing)


async def test_two_walks_at_once_are_one_and_a_refusal(manager, monkeypatch):
    async with served(manager) as page:
        going, on = asyncio.Event(), asyncio.Event()

        async def slow(_self: Any, _named: str | None) -> dict[str, Any]:
            going.set()
            await on.wait()
            return {"topics": []}

        monkeypatch.setattr(Forecasts, "of", slow)
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            first = group.create_task(asked(page, "forecast", id=TOPIC))
            await going.wait()
            assert (await asked(page, "forecast", id=TOPIC))["status"] == 503
            on.set()
        assert first.result()["status"] == 200
