"""Kafka's own tests of tiered storage: its brokers and its storage in one JVM, a daemon for each.

The metadata manager is this project's; the storage manager is not, so that no cleaner runs.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

from deploy.dev.stack.kafka import libs
from deploy.dev.stack.kafka.cluster import java
from tests.support.daemon_process import DaemonProcess
from tests.support.fork_server import ForkServer, Launch

_PACKAGE: Final = "org.apache.kafka.tiered.storage"
_SOURCE: Final = Path(__file__).parent / "java" / "KafkasOwnTest.java"
#: The tests' brokers are these.
_BROKERS: Final = 2
_SECONDS: Final = 240.0


class BesideOwn(DaemonProcess):
    """A daemon of one of the test's brokers, its log in a topic of theirs."""

    bootstrap = ""

    def __init__(self, directory: Path, broker_id: int, server: ForkServer) -> None:
        super().__init__(directory, spawn=server)
        self.broker_id = broker_id

    def _launch(self, notify: str) -> Launch:
        file = self.directory / "rlmm.toml"
        file.write_text(
            f"""
[daemon]
broker_id = {self.broker_id}
state_dir = "var/state"
log_dirs = ["{self.log_dir}"]
[socket]
path = "var/rlmm.sock"
[event_log]
kind = "kafka"
[event_log.kafka]
bootstrap = {self.bootstrap.split(",")}
[event_log.kafka.admin]
partition_count = 5
replication_factor = {_BROKERS}
[storage]
kind = "none"
[admin]
listen = "127.0.0.1:0"
"""
        )
        launch = super()._launch(notify)
        return Launch(
            arguments=["run", "--config", str(file)],
            directory=launch.directory,
            environment=launch.environment,
            output=launch.output,
        )


class OwnTest:
    """One of those tests while it runs."""

    def __init__(self, directory: Path, jar: Path, name: str) -> None:
        self.directory, self.output = directory, directory / "test.log"
        self._ends = ExitStack()
        self.daemons: list[BesideOwn] = []
        for broker_id in range(_BROKERS):
            home = directory / f"broker-{broker_id}"
            home.mkdir()
            server = self._ends.enter_context(ForkServer())
            self.daemons.append(BesideOwn(home, broker_id, server))
            self._ends.callback(self.daemons[-1].kill)
        self._name, self._jar = name, jar

    def __enter__(self) -> Self:
        command = java("-Xmx1g", f"-Drlmm.directory={self.directory}")
        command.insert(1, f"-Drlmm.test={_PACKAGE}.integration.{self._name}")
        command[-1] = f"{libs.own_tests()}/*:{self._jar}:{self._compiled()}"
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    *(*command, "org.junit.platform.console.ConsoleLauncher", "execute"),
                    *("--select-class", f"{_PACKAGE}.KafkasOwnTest", "--disable-banner"),
                ],
                stdout=output,
                stderr=output,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._ends.close()

    def begin(self) -> None:
        """Start the daemons beside the brokers, which run by now."""
        address = self._left("bootstrap")
        for daemon in self.daemons:
            daemon.bootstrap = address.read_text()
            daemon.start()

    def until_it_deletes(self) -> None:
        """Return when the next thing that the test does is to delete a topic."""
        self._left("deleting")

    def _left(self, name: str) -> Path:
        """Wait for a file that KafkasOwnTest.java leaves."""
        file = self.directory / name
        deadline = time.monotonic() + _SECONDS
        while not file.exists():
            assert self.runs(), self.said()
            assert time.monotonic() < deadline, f"no {name}: {self.said()}"
            time.sleep(0.005)
        return file

    def runs(self) -> bool:
        return self._process.poll() is None

    def passed(self) -> bool:
        """Wait for the end."""
        return self._process.wait(_SECONDS) == 0

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def _compiled(self) -> Path:
        classes = self.directory / "classes"
        path = f"{libs.own_tests()}/*"
        subprocess.run(
            ["javac", "-nowarn", "-d", str(classes), "-cp", path, str(_SOURCE)],
            check=True,
            capture_output=True,
            timeout=120,
        )
        return classes


@contextmanager
def own_test(directory: Path, jar: Path, name: str) -> Iterator[OwnTest]:
    with OwnTest(directory, jar, name) as test:
        test.begin()
        yield test
