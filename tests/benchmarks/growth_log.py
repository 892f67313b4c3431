"""What grows with the segments that came and went in a day: the embedded log's bytes, and its work.

One metadata partition in which few segments live, however many are copied. Before there was any
compaction each of them left 640 bytes for ever.
"""

import asyncio
from typing import Final

from rlmm_daemon.core.snapshots.compaction import When
from tests.benchmarks.churned_log import DAY_SECONDS, churned
from tests.benchmarks.growth_curves import Cost, Growth, Watch

ALIVE: Final = 100
#: Small, so that every size has compactions.
WHEN: Final = When(bytes_min=32 * 1024)


def day_of_churn(size: int, watch: Watch) -> None:
    """Copy so many segments in a day, and delete all but the last of them."""
    each = DAY_SECONDS / size
    found = asyncio.run(churned(segments=size, alive=ALIVE, seconds_each=each, when=WHEN))
    watch.told("log bytes after a day of churn", Cost(found.log_bytes, unit="B"))
    watch.told("compact, all day", Cost(found.compaction_seconds))
    watch.told("replay after it", Cost(found.replay_seconds))


GROWTHS: Final = (
    Growth(
        of="segments that came and went", workload=day_of_churn, holds=False,
        sizes=(1_728, 17_280, 172_800), quick=(300, 3_000, 20_000),
    ),
)  # fmt: skip
