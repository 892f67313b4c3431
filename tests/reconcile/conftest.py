"""One Spark for the whole run; without the extra [spark] nothing is here: `make test-reconcile`."""

import os
from importlib.util import find_spec

import pytest

from rlmm_daemon.config.reconcile import Spark

#: Runs of seconds end before what C2 compiles pays.
QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}

if find_spec("pyspark") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def spark():
    from rlmm_daemon.reconcile.session import session  # noqa: PLC0415 - as above

    # Spark starts Pythons of its own: with compiled modules, as installed ones have them.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    options = Spark(master="local[2]", driver_memory="1g", shuffle_partitions=4, settings=QUICK)
    with session(options) as found:
        yield found
