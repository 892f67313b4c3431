"""Whatever ends a run is told in one line, and a task's own reason is found in what Spark says."""

import pytest

from rlmm_daemon.domain.errors import RlmmError, StorageUnavailable
from rlmm_daemon.ports.event_log import LogMissing
from rlmm_daemon.reconcile.errors import Incomplete, plain

FROM_A_TASK = """An error occurred while calling o77.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 3 in stage 1.0 failed
Traceback (most recent call last):
  File "/opt/pyspark/worker.py", line 1, in main
botocore.exceptions.ClientError: An error occurred (503)

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/opt/rlmm_daemon/reconcile/read/listing.py", line 1, in _s3
    rlmm_daemon.not_an_error()
rlmm_daemon.reconcile.errors.Incomplete: listing 'a: b/' was cut short: 503

\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1)
"""
FROM_A_GROUP = """  + Exception Group Traceback (most recent call last):
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    | rlmm_daemon.domain.errors.NotReady: the log does not answer
    +------------------------------------
"""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError(FROM_A_TASK), "listing 'a: b/' was cut short: 503"),
        (RuntimeError(FROM_A_GROUP), "the log does not answer"),
        (ExceptionGroup("g", [ExceptionGroup("h", [StorageUnavailable("down")])]), "down"),
        (ExceptionGroup("g", [LogMissing("no topic")]), "LogMissing: no topic"),
        (TimeoutError(), "an answer took too long"),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
        (ValueError("first\nsecond"), "ValueError: first"),
        (KeyError(), "KeyError"),
    ],
)
def test_what_ends_a_run_is_one_line(error: Exception, message: str) -> None:
    assert plain(error).message == message


def test_an_error_of_ours_stays_itself() -> None:
    told: RlmmError = Incomplete("cut", seconds=1)
    assert plain(told) is told
    assert plain(ExceptionGroup("g", [told])) is told
