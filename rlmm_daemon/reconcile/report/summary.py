"""Summary of a run: printed, written, and compared with later ones."""

from typing import Any, Final

import msgspec

from rlmm_daemon.core.disposal.findings import Finding
from rlmm_daemon.reconcile.schema import RowKind

OFFENDERS: Final = 50
#: Of each kind.
EXAMPLES: Final = 10


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One finding, by its segment and key."""

    kind: str
    #: `topic-partition`, or as much of it as is known.
    where: str
    segment_id: str
    key: str
    bytes: int
    age_ms: int
    facts: str


class Night(msgspec.Struct, kw_only=True):
    """A run in numbers."""

    run: str
    cluster: str
    listed_at_ms: int
    execute: bool
    objects: int = 0
    object_bytes: int = 0
    events: int = 0
    #: kind -> (number, bytes)
    findings: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    #: (kind, topic, number, bytes, oldest ms), the largest first.
    offenders: list[tuple[str, str, int, int, int]] = msgspec.field(default_factory=list)
    #: Of each kind the first few, by size.
    examples: list[Example] = msgspec.field(default_factory=list)
    condemned: int = 0
    condemned_bytes: int = 0
    #: Why nothing was condemned; empty: it might have been.
    refused: list[str] = msgspec.field(default_factory=list)
    #: What the run could not look for.
    notes: list[str] = msgspec.field(default_factory=list)
    #: Why the run did not come to its end, though findings were there already.
    broken_off: str = ""
    quarantined: int = 0
    #: Of these, how many have a tag that says so.
    tagged: int = 0
    manifests: list[str] = msgspec.field(default_factory=list)
    deleted: int = 0
    deleted_bytes: int = 0
    failed: int = 0
    dropped: dict[str, int] = msgspec.field(default_factory=dict)
    left: int = 0
    #: Manifest -> (objects, bytes) that are due and that the caps will never let go by themselves.
    needs_approval: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    #: When the quarantine of anything is over next; None: nothing is quarantined.
    next_deletion_ms: int | None = None
    seconds: dict[str, float] = msgspec.field(default_factory=dict)


def count(night: Night, spark: Any, *, objects: Any, events: Any, found: Any) -> None:
    """Fill in how much there was and what was found, by kind and by topic."""
    there = objects.where("upload_id IS NULL AND NOT noncurrent")
    total = there.selectExpr("count(*)", "coalesce(sum(size), 0)").take(1)[0]
    night.objects, night.object_bytes = int(total[0]), int(total[1])
    night.events = events.where(f"kind NOT IN ({int(RowKind.READ)}, {int(RowKind.LOST)})").count()
    found.createOrReplaceTempView("found")
    kinds = spark.sql("SELECT kind, count(*), sum(bytes) FROM found GROUP BY kind")
    night.findings = {row[0]: (int(row[1]), int(row[2] or 0)) for row in kinds.take(len(Finding))}
    worst = spark.sql("""
        SELECT kind, coalesce(topic, ''), count(*) AS n, sum(bytes) AS b, max(age_ms)
        FROM found GROUP BY kind, topic ORDER BY b DESC, n DESC, kind
    """).take(OFFENDERS)
    night.offenders = [(r[0], r[1], int(r[2]), int(r[3] or 0), int(r[4] or 0)) for r in worst]
    night.examples = _examples(spark)
    doomed = spark.sql("SELECT count(*), sum(bytes) FROM found WHERE condemned").take(1)
    night.condemned, night.condemned_bytes = int(doomed[0][0]), int(doomed[0][1] or 0)


def _examples(spark: Any) -> list[Example]:
    """Return the largest findings of each kind."""
    rows = spark.sql(f"""
        SELECT kind, topic, partition, segment_id, key, bytes, age_ms, facts FROM (
            SELECT *, row_number() OVER (PARTITION BY kind ORDER BY bytes DESC, key) AS place
            FROM found
        ) WHERE place <= {EXAMPLES} ORDER BY kind, place
    """).take(EXAMPLES * len(Finding))  # noqa: S608 - our own number
    return [
        Example(
            kind=row["kind"],
            where="-".join(
                str(row[name]) for name in ("topic", "partition") if row[name] is not None
            ),
            segment_id=row["segment_id"] or "",
            key=row["key"] or "",
            bytes=int(row["bytes"] or 0),
            age_ms=int(row["age_ms"] or 0),
            facts=row["facts"] or "",
        )
        for row in rows
    ]
