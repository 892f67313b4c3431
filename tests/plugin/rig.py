"""A broker, its daemon, and Kafka's own command line tools as producer, consumer and admin."""

import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from deploy.dev.stack.kafka.cluster import PASSWORDS, Cluster, java, quick
from tests.support.daemon_process import DaemonProcess

_PREFIX: Final = "remote.log"
#: What the plugin's settings for asking the cluster begin with.
CLIENT: Final = "remote.log.metadata.common.client."
_TOOL_SECONDS: Final = 60
_TOOLS: Final = "org.apache.kafka.tools"


def client_settings(
    keys: Path, protocol: str, mechanism: str = "", user: str = "rlmm"
) -> dict[str, str]:
    """Return what Kafka's clients need for a listener, but its address and its protocol."""
    settings = {}
    if protocol.endswith("SSL"):
        settings = {"ssl.truststore.type": "PEM", "ssl.truststore.location": f"{keys}/ca.pem"}
    if protocol.startswith("SASL"):
        module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
        settings |= {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": (
                f"org.apache.kafka.common.security.{module}LoginModule required"
                f' username="{user}" password="{PASSWORDS[user]}";'
            ),
        }
    return settings


def plugin_properties(jar: Path, socket: str, keys: Path) -> dict[str, str]:
    """Return what server.properties needs, as the plugin's README has it, and quick cycles.

    What asks how many brokers there are comes over TLS, as a user without any right.
    """
    asks = client_settings(keys, "SASL_SSL", "SCRAM-SHA-512")
    return {
        f"{_PREFIX}.storage.system.enable": "true",
        f"{_PREFIX}.metadata.manager.class.name": "rlmm.daemon.kafka.RlmmDaemonMetadataManager",
        f"{_PREFIX}.metadata.manager.class.path": str(jar),
        f"{_PREFIX}.metadata.manager.listener.name": "SASLTLS",
        **{f"rlmm.config.{CLIENT}{name}": value for name, value in asks.items()},
        f"{_PREFIX}.storage.manager.class.name": "rlmm.daemon.kafka.RlmmDaemonStorageManager",
        f"{_PREFIX}.storage.manager.class.path": str(jar),
        "rlmm.config.socket.path": socket,
        "rsm.config.socket.path": socket,
        f"{_PREFIX}.manager.task.interval.ms": "500",
    }


def until(holds: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)


class BrokerRig:
    """One node with the plugin; `daemon` stands beside it and may come and go."""

    def __init__(self, directory: Path, jar: Path) -> None:
        self.cluster = Cluster(directory=directory / "kafka", count=1)
        settings = {
            "daemon.cluster_id": self.cluster.cluster_id,
            "daemon.log_dirs": f'["{self.cluster.data(1)}"]',
            "event_log.partition_count": 5,
        }
        home = directory / "daemon"
        home.mkdir()
        self.daemon = DaemonProcess(home, settings)
        self.cluster.properties = plugin_properties(
            jar, self.daemon.socket_path, self.cluster.key_directory
        )

    def start(self) -> None:
        """Start the broker, then the daemon: neither needs the other to begin."""
        self.cluster.start()
        self.daemon.start()

    def end(self) -> None:
        self.daemon.kill()
        for node in self.cluster.nodes:
            self.cluster.kill(node)

    # ---- Kafka's tools

    def create(self, topic: str, **configs: object) -> None:
        settings = {
            "remote.storage.enable": "true",
            "segment.bytes": 1024 * 1024,
            "local.retention.ms": 1000,
            "retention.ms": 3_600_000,
        } | {name.replace("_", "."): value for name, value in configs.items()}
        chosen = [word for item in settings.items() for word in ("--config", "{}={}".format(*item))]
        self._tool(
            "TopicCommand", "--create", "--topic", topic, "--partitions", "1", *map(str, chosen)
        )

    def delete(self, topic: str) -> None:
        self._tool("TopicCommand", "--delete", "--topic", topic)

    def configure(self, topic: str, **configs: object) -> None:
        changes = ",".join(f"{name.replace('_', '.')}={value}" for name, value in configs.items())
        self._run(
            "kafka.admin.ConfigCommand", "--entity-type", "topics", "--entity-name", topic,
            "--alter", "--add-config", changes,
        )  # fmt: skip

    def produce(self, topic: str, lines: Iterable[str]) -> None:
        """Send lines as records; every one is acknowledged when this returns."""
        # Options that every release of the tool has.
        options = ("--request-required-acks", "all", "--batch-size", "65536", "--timeout", "5")
        self._run(f"{_TOOLS}.ConsoleProducer", "--topic", topic, *options, typed="\n".join(lines))

    def consume(self, topic: str, count: int, *options: str) -> list[str]:
        """Read that many records from offset 0; fails if they do not come."""
        said = self._run(
            f"{_TOOLS}.consumer.ConsoleConsumer",
            *("--topic", topic, "--partition", "0", "--offset", "0"),
            *("--max-messages", str(count), "--timeout-ms", "30000", *options),
        )
        return said.splitlines()

    def offset(self, topic: str, which: str) -> int:
        """Return one of earliest, earliest-local, latest-tiered, latest."""
        said = self._tool("GetOffsetShell", "--topic", topic, "--time", which)
        return int(said.strip().rsplit(":", 1)[1])

    def _tool(self, name: str, *arguments: str) -> str:
        return self._run(f"{_TOOLS}.{name}", *arguments)

    def _run(self, main: str, *arguments: str, typed: str = "") -> str:
        server = ("--bootstrap-server", self.cluster.bootstrap())
        done = subprocess.run(
            [*java("-Xmx256m", *quick()), main, *server, *arguments],
            input=typed,
            capture_output=True,
            text=True,
            timeout=_TOOL_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{main}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    # ---- what is where

    def stored(self, topic: str, suffix: str = "") -> list[Path]:
        """Return the files of a topic in the remote storage."""
        return [
            path
            for path in self.daemon.remote.rglob(f"*{suffix}")
            if path.is_file() and path.parent.name.startswith(f"{topic}-")
        ]

    def local_segments(self, topic: str) -> list[Path]:
        return sorted((self.cluster.data(1) / f"{topic}-0").glob("*.log"))

    def until_tiered(self, topic: str, count: int) -> None:
        """Wait until local retention deleted everything but the active segment."""

        def tiered() -> bool:
            segments = self.local_segments(topic)
            return len(segments) == 1 and int(segments[0].stem) >= count

        until(tiered, f"{topic} is tiered up to {count}")

    def broker_log(self) -> str:
        return self.cluster.log(1).read_text(errors="replace")
