"""Forecasts of topics: their segments walked over in turns, what was asked of the storage, prices.

No history is kept: a segment's own event says when it was tiered.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import asdict, replace

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.config.model import Prices as Priced
from rlmm_daemon.core.forecast import DAY_MS, RULE, Forecast, PartitionHistory, Prices, Traffic
from rlmm_daemon.core.forecast import forecast as forecast_of
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.copying.copier import Copier
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.metadata.on_demand import ON_DEMAND_SECONDS
from rlmm_daemon.daemon.metadata.user_partitions import known
from rlmm_daemon.domain.ids import TopicIdPartition, uuid_text
from rlmm_daemon.domain.segment import SegmentState
from rlmm_daemon.ports.storage import Traffic as Requests

#: Of one answer; the largest come first.
TOPICS_MAX: Final = 200
#: Topics that are judged in one turn.
_AT_ONCE: Final = 32
_FINISHED: Final = SegmentState.COPY_SEGMENT_FINISHED
_ID_BYTES: Final = 16
#: Operations that are priced as reads; deletes cost nothing, and no other call is for a topic.
_READS: Final = frozenset({"GetObject"})
_WRITES: Final = frozenset(
    {"PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"}
)


class Forecasts:
    """What topics will hold and cost, as far as this daemon follows their metadata partitions."""

    def __init__(
        self,
        manager: Manager,
        *,
        copier: Copier,
        prices: Priced,
        requests: Callable[[], Requests] | None = None,
        fetched: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`fetched` tells bytes read by topic; without `requests` none are counted."""
        self._manager, self._copier, self._prices = manager, copier, prices
        self._requests, self._fetched = requests, fetched
        self._began = manager.clock.monotonic()

    async def of(self, named: str | None) -> dict[str, Any]:
        """Return forecasts of the topics of a name or an id, or of all, the largest first.

        Raises:
            NotReady, PartitionFailed and kin: a part of one could not be told whole.
        """
        now_ms = self._manager.clock.now_ms()
        found = dict[tuple[str, bytes], list[PartitionHistory]]()
        today = now_ms // DAY_MS
        for partition in sorted(await self._partitions(named)):
            history = await self._history(partition, today)
            found.setdefault((partition.topic, partition.topic_id), []).append(history)
        fetched, rows, prices = self._fetched(), list[dict[str, Any]](), self._prices
        traffic = self._traffic(fetched)
        for (topic, topic_id), histories in found.items():
            read = replace(traffic, topic_read_bytes=fetched.get(topic, 0))
            forecast = forecast_of(histories, today, read, _core(prices))
            rows.append(_row(topic, topic_id, forecast))
            if len(rows) % _AT_ONCE == 0:
                await asyncio.sleep(0)
        rows.sort(key=lambda row: (-row["bytes"], row["topic"]))
        return {
            "as_of_ms": now_ms,
            "rule": RULE,
            "currency": prices.currency,
            "priced": any(asdict(_core(prices)).values()),
            "count": len(rows),
            "topics": rows[:TOPICS_MAX],
        }

    async def _partitions(self, named: str | None) -> set[TopicIdPartition]:
        found = set[TopicIdPartition]()
        for some in known(self._manager):
            found |= {
                each
                for each in some
                if named is None or named in (each.topic, uuid_text(each.topic_id))
            }
            await asyncio.sleep(0)
        return found

    async def _history(self, partition: TopicIdPartition, today: int) -> PartitionHistory:
        history = PartitionHistory()
        behind = len(tails.ENVELOPE) + len(tails.prefix_of(partition)) + _ID_BYTES
        lookups = self._manager.lookups
        await lookups.until_readable(partition, Caller.OPERATOR, ON_DEMAND_SECONDS)
        for records in lookups.listing(partition, None, Caller.OPERATOR).pieces:
            for record in records:
                _add(history, record, behind, today)
            await asyncio.sleep(0)
        return history

    def _traffic(self, fetched: Mapping[str, int]) -> Traffic:
        """Return what was done for all topics; of one alone it tells nothing yet."""
        requests = self._requests and self._requests().requests
        return Traffic(
            uptime_seconds=self._manager.clock.monotonic() - self._began,
            copied_bytes=self._copier.bytes_copied,
            write_requests=None if requests is None else _sum(requests, _WRITES),
            read_requests=None if requests is None else _sum(requests, _READS),
            read_bytes=sum(fetched.values()),
        )


def _row(topic: str, topic_id: bytes, forecast: Forecast) -> dict[str, Any]:
    told = asdict(forecast)
    return {"topic": topic, "topic_id": uuid_text(topic_id), **told, "cost": asdict(told["cost"])}


def _add(history: PartitionHistory, record: bytes, behind: int, today: int) -> None:
    tail = record[behind:]
    if tails.state_of(tail) != _FINISHED:
        return
    history.add(
        today=today,
        event_ms=tails.event_ms_of(tail),
        start_offset=tails.start_of(tail),
        size=tails.size_of(tail),
    )


def _core(prices: Priced) -> Prices:
    return Prices(
        gib_month=prices.gib_month or None,
        thousand_writes=prices.thousand_writes or None,
        thousand_reads=prices.thousand_reads or None,
    )


def _sum(requests: Mapping[tuple[str, str], int], operations: frozenset[str]) -> int:
    return sum(count for (operation, _), count in requests.items() if operation in operations)
