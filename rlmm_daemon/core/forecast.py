"""Forecast of a topic's next thirty days by a straight line: bytes, requests and cost.

The rule, in words, is `RULE`. Days are whole ones of UTC, by the clock of whoever wrote an event.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

DAY_MS: Final = 86_400_000
#: Whole days that the line is drawn through, at most.
DAYS_MAX: Final = 28
#: That are forecast: "next month".
MONTH_DAYS: Final = 30
#: Reads of a shorter life say nothing of a month.
UPTIME_SECONDS_MIN: Final = 3_600.0
GIB: Final = 2**30
RULE: Final = (
    "What was tiered in a day, on average of the last 28 whole days since a partition's first "
    "segment, goes on for 30 days. A partition whose first segment begins at offset 0 has lost "
    "nothing and grows by it; one that begins later loses as much as it gains. Held is the mean "
    "over the 30 days. Requests are those of this daemon since its start, by byte copied and by "
    "second."
)


class PartitionHistory(msgspec.Struct, kw_only=True):
    """The finished segments of a user partition that are there, by the day of their last event."""

    bytes: int = 0
    segments: int = 0
    #: The first offset that is there; 0 means that nothing was lost yet.
    first_offset: int | None = None
    #: Day of the oldest event, since 1970.
    first_day: int | None = None
    #: By days before today, yesterday first; of today and earlier days there is nothing here.
    bytes_by_day: list[int] = msgspec.field(default_factory=lambda: [0] * DAYS_MAX)
    segments_by_day: list[int] = msgspec.field(default_factory=lambda: [0] * DAYS_MAX)

    def add(self, *, today: int, event_ms: int, start_offset: int, size: int) -> None:
        """Count one segment."""
        day = event_ms // DAY_MS
        self.bytes += size
        self.segments += 1
        self.first_day = day if self.first_day is None else min(day, self.first_day)
        lowest = self.first_offset
        self.first_offset = start_offset if lowest is None else min(start_offset, lowest)
        if 0 < today - day <= DAYS_MAX:
            self.bytes_by_day[today - day - 1] += size
            self.segments_by_day[today - day - 1] += 1

    def days(self, today: int) -> int:
        """Return how many whole days there are to judge by; the first one was a part of one."""
        return 0 if self.first_day is None else max(0, min(DAYS_MAX, today - self.first_day - 1))


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What one daemon did since its start; requests are None where the storage counts none."""

    uptime_seconds: float = 0.0
    copied_bytes: int = 0
    write_requests: int | None = None
    read_requests: int | None = None
    #: Bytes read, of all topics and of this one.
    read_bytes: int = 0
    topic_read_bytes: int = 0


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """What a storage costs; None: nobody said."""

    gib_month: float | None = None
    thousand_writes: float | None = None
    thousand_reads: float | None = None


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Of thirty days; None where a price or an amount is not known, and not in the sum."""

    held: float | None
    writes: float | None
    reads: float | None
    total: float | None


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """One topic: what is there, and the next thirty days."""

    bytes: int
    segments: int
    #: Whole days of the longest history among its partitions.
    days: int
    #: In a day; None before any partition has a whole day.
    tiered_bytes: float | None
    tiered_segments: float | None
    #: Mean over the thirty days, and at their end; with no growth known, what is there now.
    held_bytes: float
    end_bytes: float
    write_requests: float | None
    read_requests: float | None
    cost: Cost


def forecast(
    histories: Iterable[PartitionHistory], today: int, traffic: Traffic, prices: Prices
) -> Forecast:
    """Return a topic's forecast; `today` is the day since 1970, which is not judged by."""
    known, held, segments = 0, 0, 0
    tiered = tiered_segments = growth = 0.0
    for each in histories:
        held += each.bytes
        segments += each.segments
        days = each.days(today)
        if days == 0:
            continue
        known = max(known, days)
        pace = _mean(each.bytes_by_day, days)
        tiered += pace
        tiered_segments += _mean(each.segments_by_day, days)
        if each.first_offset == 0:
            growth += pace
    mean = held + growth * MONTH_DAYS / 2
    writes = _writes(traffic, tiered * MONTH_DAYS) if known else None
    reads = _reads(traffic)
    return Forecast(
        bytes=held,
        segments=segments,
        days=known,
        tiered_bytes=tiered if known else None,
        tiered_segments=tiered_segments if known else None,
        held_bytes=mean,
        end_bytes=held + growth * MONTH_DAYS,
        write_requests=writes,
        read_requests=reads,
        cost=_cost(prices, mean, writes, reads),
    )


def _mean(by_day: Sequence[int], days: int) -> float:
    return sum(by_day[:days]) / days


def _writes(traffic: Traffic, tiered_bytes: float) -> float | None:
    """Return what writes of so many bytes take, as those since the start did."""
    if traffic.write_requests is None or traffic.copied_bytes <= 0:
        return None
    return tiered_bytes * traffic.write_requests / traffic.copied_bytes


def _reads(traffic: Traffic) -> float | None:
    """Return the topic's share of a month of reads at the pace since the start, by its bytes."""
    if traffic.read_requests is None or traffic.uptime_seconds < UPTIME_SECONDS_MIN:
        return None
    if traffic.read_bytes <= 0:
        return 0.0
    share = traffic.topic_read_bytes / traffic.read_bytes
    month_seconds = MONTH_DAYS * DAY_MS / 1000
    return traffic.read_requests * share * month_seconds / traffic.uptime_seconds


def _cost(prices: Prices, held: float, writes: float | None, reads: float | None) -> Cost:
    parts = (
        _of(prices.gib_month, held / GIB),
        _of(prices.thousand_writes, None if writes is None else writes / 1000),
        _of(prices.thousand_reads, None if reads is None else reads / 1000),
    )
    known = [part for part in parts if part is not None]
    total = sum(known) if known else None
    return Cost(held=parts[0], writes=parts[1], reads=parts[2], total=total)


def _of(price: float | None, amount: float | None) -> float | None:
    return None if price is None or amount is None else price * amount
