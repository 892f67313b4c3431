"""A Spark standalone cluster of separate processes on loopback: one master, one worker, free ports.

Needs the extra [spark] and a JDK. Both are stopped by their pids.
"""  # noqa: INP001 - a script, no package

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.dev.stack.ports import free_ports

READY_SECONDS: Final = 120.0
STOP_SECONDS: Final = 20.0
_HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkCluster:
    """A master that has a worker."""

    master: str
    home: Path
    environment: dict[str, str]

    @property
    def submit(self) -> str:
        """The path of its spark-submit."""
        return str(self.home / "bin" / "spark-submit")


@contextlib.contextmanager
def running(*, cores: int = 2, memory: str = "2g") -> Iterator[SparkCluster]:
    """Start both, wait until the worker is registered, stop both."""
    import pyspark  # noqa: PLC0415 - only this cluster needs it

    home = Path(pyspark.__file__).parent
    with tempfile.TemporaryDirectory(prefix="rlmm-spark-") as directory:
        port, page, worker_port, worker_page = free_ports(4)
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_LOCAL_DIRS": f"{directory}/local",
            "SPARK_WORKER_DIR": f"{directory}/work",
            "SPARK_DAEMON_MEMORY": "256m",
            # Short-lived ones start sooner without the optimising compiler.
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        }
        cluster = SparkCluster(master=f"spark://{_HOST}:{port}", home=home, environment=environment)
        daemons = "org.apache.spark.deploy"
        with (
            _process(
                [str(home / "bin" / "spark-class"), f"{daemons}.master.Master", "--host", _HOST,
                 "--port", str(port), "--webui-port", str(page)],
                environment, Path(directory) / "master.log",
            ),
            _process(
                [str(home / "bin" / "spark-class"), f"{daemons}.worker.Worker", "--host", _HOST,
                 "--port", str(worker_port), "--webui-port", str(worker_page), "--cores",
                 str(cores), "--memory", memory, cluster.master],
                environment, Path(directory) / "worker.log",
            ),
        ):  # fmt: skip
            _until_alive(f"http://{_HOST}:{page}/json/")
            yield cluster


@contextlib.contextmanager
def _process(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        # spark-class replaces itself by the JVM, so the pid is the JVM's.
        process = subprocess.Popen(  # noqa: S603 - our own command line
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_alive(url: str) -> None:
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until:
        if _has_worker(url):
            return
        time.sleep(0.2)
    raise RuntimeError("the Spark cluster did not come up")


def _has_worker(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own server
            return b'"aliveworkers" : 1' in answer.read()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
