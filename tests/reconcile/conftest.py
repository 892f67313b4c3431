"""One Spark for the whole run; without the extra [spark] nothing is here: `make test-reconcile`."""

import os
from importlib.util import find_spec

import pytest

from rlmm_daemon.config.reconcile import Spark

#: Runs of seconds end before what C2 compiles pays. Without it HotSpot has room for 48 MiB of code,
#: which some five nights fill; it compiles nothing from then on, and some calls fail.
CODE_CACHE = "-XX:ReservedCodeCacheSize=512m"
QUICK = {"spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 {CODE_CACHE}"}

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
        assert not full_pools_of_code(found), "the JVM compiles nothing any more"


def full_pools_of_code(spark) -> list[str]:
    """Return where HotSpot has no room left for what it compiles."""
    pools = spark._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    usages = {pool.getName(): pool.getUsage() for pool in pools}
    code = {name: usage for name, usage in usages.items() if name.startswith("Code")}
    assert code, "each JVM has them"
    return [name for name, usage in code.items() if usage.getUsed() > 0.9 * usage.getMax()]
