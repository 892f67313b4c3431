"""Condemn nothing of a topic of which nothing would be left, unless it is known to be gone."""

from typing import Any, Final

from rlmm_daemon.reconcile.judge import suspects
from rlmm_daemon.reconcile.schema import FINDINGS

#: Behind a finding's other facts.
REASON: Final = " all that the topic has"


def spare_live_topics(spark: Any, found: Any, *, objects: Any, unknown: Any) -> Any:
    """Return the findings with all of a topic's spared where they are all that it has, and told so.

    `objects` as listed; `unknown` the topic ids that the cluster does not know: empty where no
    cluster was asked, and then every topic counts as alive.
    """
    found.createOrReplaceTempView("found")
    # Only of topics that lose something: of these every key is read as text.
    topics = suspects.topics(suspects.keyed(spark, objects))
    doomed = found.where("condemned").select("topic_id").distinct()
    touched = topics.join(doomed, "topic_id", "left_semi").drop("topic_id")
    suspects.parsed(spark, touched).createOrReplaceTempView("objects_of_segments")
    unknown.createOrReplaceTempView("unknown_topics")
    changed = {"condemned", "facts"}
    others = ", ".join(f"found.{name}" for name in FINDINGS.names if name not in changed)
    return spark.sql(f"""
        WITH stored AS (
            SELECT topic_id, count(*) AS objects FROM objects_of_segments
            WHERE topic_id IS NOT NULL AND upload_id IS NULL AND NOT noncurrent
            GROUP BY topic_id
        ), doomed AS (
            SELECT topic_id, count(*) AS objects FROM found
            WHERE condemned AND upload_id IS NULL GROUP BY topic_id
        ), spared AS (
            SELECT topic_id FROM stored JOIN doomed USING (topic_id)
                LEFT ANTI JOIN unknown_topics USING (topic_id)
            WHERE doomed.objects >= stored.objects
        )
        SELECT {others},
            IF(condemned AND spared.topic_id IS NOT NULL, concat(facts, '{REASON}'), facts)
                AS facts,
            condemned AND spared.topic_id IS NULL AS condemned
        FROM found LEFT JOIN spared ON found.topic_id = spared.topic_id
    """).select(*FINDINGS.names)  # noqa: S608 - our own names and words
