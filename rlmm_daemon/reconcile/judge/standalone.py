"""Findings that stand by themselves, without a look at the log: old versions, foreign daemons."""

from collections.abc import Mapping
from typing import Any

from rlmm_daemon.codec.marker import Presence
from rlmm_daemon.core.disposal.findings import RULES, Finding
from rlmm_daemon.reconcile.judge import suspects
from rlmm_daemon.reconcile.schema import FINDINGS, ddl, literal


def old_versions(spark: Any, objects: Any, *, cluster: str, listed_at_ms: int) -> Any:
    """Return a `not_current_version` finding for each old version among keyed objects."""
    suspects.parsed(spark, objects.where("noncurrent")).createOrReplaceTempView("old_versions")
    rule = RULES[Finding.NOT_CURRENT_VERSION]
    return spark.sql(f"""
        SELECT '{Finding.NOT_CURRENT_VERSION}' AS kind, '{rule.severity}' AS severity,
            {literal(cluster)} AS cluster, topic, topic_id, partition, segment_id,
            key, size AS bytes, {listed_at_ms} - modified_ms AS age_ms, '' AS facts,
            {literal(rule.action)} AS action, etag, modified_ms, upload_id, FALSE AS confirm,
            FALSE AS condemned, CAST(NULL AS BIGINT) AS recorded_bytes
        FROM old_versions
    """)  # noqa: S608 - our own constants


def foreign(
    spark: Any, presences: Mapping[str, Presence | None], *, cluster: str, listed_at_ms: int
) -> Any:
    """Return a `foreign_cluster` finding per presence file of another cluster's daemon."""
    rule = RULES[Finding.FOREIGN_CLUSTER]
    rows = [
        tuple(
            {
                "kind": Finding.FOREIGN_CLUSTER.value,
                "severity": rule.severity.value,
                "cluster": presence.cluster_id,
                "key": key,
                "bytes": 0,
                "age_ms": listed_at_ms - presence.written_at_ms,
                "facts": f"broker_id={presence.broker_id}",
                "action": rule.action,
                "confirm": False,
                "condemned": False,
            }.get(name)
            for name in FINDINGS.names
        )
        for key, presence in presences.items()
        if presence is not None and presence.cluster_id != cluster
    ]
    return spark.createDataFrame(rows, ddl(FINDINGS))
