"""The Spark session: the one that spark-submit made, or one by the configuration."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import SparkSession

from rlmm_daemon.config.reconcile import Spark
from rlmm_daemon.reconcile.read import sources

#: How the joins run.
SETTINGS: Final = {
    # Hash joins were twice as fast as sorted ones over these rows (measured at 2 M).
    "spark.sql.join.preferSortMergeJoin": "false",
    # Its first level has 65,536 places, and there are as many groups as segments: most rows are
    # looked for there in vain first.
    "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
    # HotSpot never compiles a method beyond this, and interprets what Spark made for a whole stage.
    "spark.sql.codegen.hugeMethodLimit": "8000",
}
_SETTINGS: Final = {
    **SETTINGS,
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.enabled": "false",
}
#: Whatever a cluster or an operator's `settings` say: a file of events that is passed over makes
#: each live segment in it an orphan.
_NEVER: Final = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
#: spark-submit sets it; then master and memory are its to say.
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"


@contextmanager
def session(options: Spark) -> Iterator[Any]:
    """Yield a session; one that was there before is left running."""
    found = SparkSession.getActiveSession()
    if found is not None:
        _prepare(found)
        yield found
        return
    # Executors must be able to import what the driver does.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("rlmm-reconcile")
    settings = {
        **_SETTINGS,
        "spark.sql.shuffle.partitions": str(options.shuffle_partitions),
        **options.settings,
    }
    if _SUBMITTED not in os.environ:
        builder = builder.master(options.master)
        settings["spark.driver.memory"] = options.driver_memory
        settings["spark.executor.memory"] = options.executor_memory
        if options.master.startswith("local"):
            settings.setdefault("spark.driver.host", "127.0.0.1")
            settings.setdefault("spark.driver.bindAddress", "127.0.0.1")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        _prepare(spark)
        spark.sparkContext.setLogLevel("ERROR")
        yield spark
    finally:
        spark.stop()


def _prepare(spark: Any) -> None:
    for name in _NEVER:
        spark.conf.set(name, "false")
    sources.register(spark)
