"""A forecast is a straight line: what is there, what came lately, and nothing made up."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.core.forecast import (
    DAY_MS,
    DAYS_MAX,
    GIB,
    MONTH_DAYS,
    Forecast,
    PartitionHistory,
    Prices,
    Traffic,
    forecast,
)

TODAY = 20_000
DOLLARS = Prices(gib_month=0.02, thousand_writes=0.005, thousand_reads=0.0004)
BUSY = Traffic(
    uptime_seconds=86_400.0, copied_bytes=1_000, write_requests=50, read_requests=240,
    read_bytes=400, topic_read_bytes=100,
)  # fmt: skip
#: (day, start offset, size)
segments = st.lists(
    st.tuples(st.integers(TODAY - 60, TODAY + 3), st.integers(0, 10), st.integers(0, 2**31 - 1)),
    max_size=30,
)
topics = st.lists(segments, max_size=4)
amounts = st.integers(0, 2**50)
traffics = st.builds(
    Traffic,
    uptime_seconds=st.floats(0, 1e9),
    copied_bytes=amounts,
    write_requests=st.none() | amounts,
    read_requests=st.none() | amounts,
    read_bytes=amounts,
    topic_read_bytes=st.just(0),
)
price = st.none() | st.floats(0, 1e6)
some_prices = st.builds(Prices, gib_month=price, thousand_writes=price, thousand_reads=price)


def history(found: list[tuple[int, int, int]]) -> PartitionHistory:
    made = PartitionHistory()
    for day, start, size in found:
        made.add(today=TODAY, event_ms=day * DAY_MS + 7, start_offset=start, size=size)
    return made


def of(topic: list[list[tuple[int, int, int]]], traffic: Traffic = BUSY,
       prices: Prices = DOLLARS) -> Forecast:  # fmt: skip
    return forecast(map(history, topic), TODAY, traffic, prices)


def test_a_topic_that_never_lost_anything_grows_on():
    daily = [(TODAY - back, 0, GIB) for back in range(1, DAYS_MAX + 10)]
    found = of([daily])
    assert found.bytes == 37 * GIB
    assert (found.days, found.tiered_bytes, found.tiered_segments) == (DAYS_MAX, GIB, 1)
    assert (found.held_bytes, found.end_bytes) == ((37 + 15) * GIB, (37 + 30) * GIB)
    assert found.write_requests == MONTH_DAYS * GIB * 50 / 1_000
    assert found.read_requests == pytest.approx(240 * 30 / 4)
    assert found.cost.held == pytest.approx(0.02 * 52)
    assert found.cost.reads == pytest.approx(1.8 * 0.0004)


def test_a_topic_whose_beginning_is_gone_stays_as_large_as_it_is():
    found = of([[(TODAY - back, 500 - back, GIB) for back in range(1, 8)]])
    assert (found.days, found.tiered_bytes) == (6, GIB), "the first day was a part of one"
    assert found.held_bytes == found.end_bytes == found.bytes == 7 * GIB


@pytest.mark.parametrize("day", [TODAY - 1, TODAY, TODAY + 2])
def test_before_a_whole_day_nothing_is_said_of_the_pace(day):
    found = of([[(day, 0, GIB)]])
    assert (found.days, found.tiered_bytes, found.write_requests) == (0, None, None)
    assert found.held_bytes == found.bytes == GIB


def test_an_hour_of_reads_is_the_least_that_is_judged_by():
    young = Traffic(uptime_seconds=3_599.0, read_requests=9, read_bytes=9, topic_read_bytes=9)
    assert of([], young).read_requests is None
    idle = Traffic(uptime_seconds=3_600.0, read_requests=9)
    assert of([], idle).read_requests == 0


def test_without_prices_there_is_no_cost_and_a_price_alone_is_said_alone():
    daily = [[(TODAY - back, 0, GIB) for back in range(1, 9)]]
    assert of(daily, prices=Prices()).cost.total is None
    only = of(daily, prices=Prices(thousand_writes=1.0)).cost
    assert (only.held, only.reads) == (None, None)
    assert only.total == only.writes is not None


@given(topics, traffics, some_prices)
def test_nothing_is_negative_or_endless_and_a_sum_is_of_its_parts(topic, traffic, prices):
    found = of(topic, traffic, prices)
    assert found.bytes == sum(size for each in topic for _, _, size in each)
    assert found.segments == sum(map(len, topic))
    assert found.bytes <= found.held_bytes <= found.end_bytes
    parts = [found.cost.held, found.cost.writes, found.cost.reads]
    for each in (found.tiered_bytes, found.write_requests, found.read_requests, *parts):
        assert each is None or (each >= 0 and math.isfinite(each))
    known = [each for each in parts if each is not None]
    assert found.cost.total == (sum(known) if known else None)
    assert (found.cost.held is None) == (prices.gib_month is None)
    assert 0 <= found.days <= DAYS_MAX
    assert (found.tiered_bytes is None) == (found.days == 0)


@given(topics, topics)
def test_topics_side_by_side_add_up(one, other):
    both, first, second = of(one + other), of(one), of(other)
    assert both.bytes == first.bytes + second.bytes
    for name in ("held_bytes", "end_bytes"):
        assert getattr(both, name) == pytest.approx(getattr(first, name) + getattr(second, name))
    assert both.days == max(first.days, second.days)


@given(topics, st.integers(2, 9))
def test_everything_times_some_is_the_forecast_times_that(topic, times):
    found = of(topic)
    more = of([[(day, start, size * times) for day, start, size in each] for each in topic])
    assert more.end_bytes == pytest.approx(times * found.end_bytes)
    if found.cost.held is not None:
        assert more.cost.held == pytest.approx(times * found.cost.held)


@given(segments)
def test_the_order_of_segments_does_not_matter(found):
    assert history(found) == history(found[::-1])


@given(segments, st.integers(0, 2**31 - 1))
def test_what_comes_today_changes_no_pace(found, size):
    before, after = of([found]), of([[*found, (TODAY, 9, size)]])
    assert (after.tiered_bytes, after.days) == (before.tiered_bytes, before.days)
