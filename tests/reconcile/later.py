"""A night two days from now that deletes slowly, in a process of its own: one to be killed.

python -m tests.reconcile.later DAEMON_CONFIG OUTPUT_DIRECTORY MASTER
"""

import sys
import time

from rlmm_daemon.config import load
from rlmm_daemon.config.reconcile import Output, ReconcileConfig, Safety, Spark
from rlmm_daemon.reconcile.night import Run
from rlmm_daemon.reconcile.session import session
from tests.reconcile.world import DAY


def main() -> None:
    daemon, out, master = sys.argv[1:]
    here = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    config = ReconcileConfig(
        output=Output(directory=out),
        safety=Safety(batch_objects=1, deletes_per_second_max=1),
        spark=Spark(
            master=master,
            driver_memory="700m",
            executor_memory="1g",
            shuffle_partitions=4,
            settings=here,
        ),
    )
    with session(config.spark) as spark:
        now_ms = time.time_ns() // 1_000_000 + 2 * DAY
        run = Run(
            spark, config, load(daemon), execute=True, now_ms=now_ms, progress=lambda _stage: None
        )
        run.whole()


if __name__ == "__main__":
    main()
