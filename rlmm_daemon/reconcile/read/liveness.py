"""Topic ids that the cluster does not know, though the log holds live segments of them.

Asked of every live broker, by one task: an answer that is not complete is an error, and then no
topic is called dead.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from rlmm_daemon.config import Config
from rlmm_daemon.core.disposal.findings import RULES, Finding
from rlmm_daemon.domain.ids import TopicId, uuid_bytes, uuid_text
from rlmm_daemon.domain.segment import SegmentState as S
from rlmm_daemon.reconcile.read import log_reading
from rlmm_daemon.reconcile.schema import literal
from rlmm_daemon.wiring import adapters

ASK_SECONDS: Final = 120.0
#: Of a broker that does not answer, until it is called dead by the cluster or a night ends by it.
PATIENCE_SECONDS: Final = 60.0
UNKNOWN: Final = pa.schema([pa.field("topic_id", pa.string())])


class Unknown:
    """Keeps the topic ids that no live broker knows."""

    def __init__(self, config: Config) -> None:
        self._config = msgspec.json.encode(config)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield unknown ids, as `mapInArrow` wants it."""
        config = msgspec.json.decode(self._config, type=Config)
        for batch in batches:
            ids = frozenset(TopicId(uuid_bytes(text)) for text in batch["topic_id"].to_pylist())
            unknown = asyncio.run(_unknown(config, ids)) if ids else frozenset()
            texts = [uuid_text(topic_id) for topic_id in sorted(unknown)]
            yield pa.RecordBatch.from_pydict({"topic_id": texts}, schema=UNKNOWN)


def unknown_topics(config: Config, *topic_ids: Any) -> Any:
    """Return those of some frames' topic ids that the cluster does not know."""
    every = topic_ids[0]
    for more in topic_ids[1:]:
        every = every.union(more)
    return every.distinct().repartition(1).mapInArrow(Unknown(config), "topic_id string")


def findings(spark: Any, events: Any, unknown: Any, cluster: str) -> Any:
    """Return a `dead_topic` finding per unknown topic that has live segments."""
    events.createOrReplaceTempView("events_of_segments")
    unknown.createOrReplaceTempView("unknown_topics")
    rule = RULES[Finding.DEAD_TOPIC]
    return spark.sql(f"""
        WITH last AS (
            SELECT e.topic_id, max_by(state, offset) AS state, max(log_size) AS log_size,
                max(topic) AS topic, max(event_ms) AS event_ms
            FROM events_of_segments e LEFT SEMI JOIN unknown_topics USING (topic_id)
            GROUP BY h, e.topic_id
        )
        SELECT '{Finding.DEAD_TOPIC}' AS kind, '{rule.severity}' AS severity,
            {literal(cluster)} AS cluster, max(topic) AS topic, topic_id,
            CAST(NULL AS INT) AS partition, CAST(NULL AS STRING) AS segment_id,
            CAST(NULL AS STRING) AS key,
            sum(log_size) AS bytes, CAST(NULL AS BIGINT) AS age_ms,
            concat('live segments=', count(*)) AS facts,
            replace({literal(rule.action)}, 'TOPIC_ID', topic_id) AS action,
            CAST(NULL AS STRING) AS etag, CAST(NULL AS BIGINT) AS modified_ms,
            CAST(NULL AS STRING) AS upload_id, FALSE AS confirm, FALSE AS condemned,
            CAST(NULL AS BIGINT) AS recorded_bytes
        FROM last WHERE state < {int(S.DELETE_SEGMENT_STARTED)} GROUP BY topic_id
    """)  # noqa: S608 - our own constants


async def _unknown(config: Config, topic_ids: frozenset[TopicId]) -> frozenset[TopicId]:
    async with asyncio.timeout(ASK_SECONDS), log_reading.opened(config) as log:
        cluster = adapters.cluster_of(config, log)
        # A broker that died counts as live until its session ends.
        until = time.monotonic() + PATIENCE_SECONDS
        return await log_reading.answered(lambda: cluster.topic_ids_unknown(topic_ids), until)
