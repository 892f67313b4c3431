"""Three brokers with a daemon beside each, over one remote storage.

What a broker is made of may differ from its neighbours', and may change while it is down.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, Final, Self

from deploy.dev.stack.kafka import libs
from deploy.dev.stack.kafka.cluster import Cluster
from tests.kafka.probe import Probe, ProbeError
from tests.plugin.tiers import DirectoryTier, Tier
from tests.support.daemon_process import DaemonProcess
from tests.support.fork_server import Launch

#: Of a wait for something that takes seconds on an idle machine.
PATIENCE_SECONDS: Final = 120.0
#: Few enough that user partitions share them.
METADATA_PARTITIONS: Final = 5
#: The others open the daemon's files where the tier is a directory: consumers read both ways.
READS_THROUGH_THE_SOCKET: Final = 3
#: What LocalTieredStorage puts below the directory that it is given.
LOCAL_TIERED: Final = "kafka-tiered-storage"

_RLM: Final = "remote.log"
_TBRLMM: Final = (
    "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
)
_LTS: Final = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"


@dataclass(frozen=True, slots=True)
class Parts:
    """Which of the two managers of a broker are this project's; the other ones are Kafka's."""

    metadata: bool = True
    storage: bool = True


OURS: Final = Parts()
KAFKAS: Final = Parts(metadata=False, storage=False)
METADATA_ONLY: Final = Parts(storage=False)
STORAGE_ONLY: Final = Parts(metadata=False)


def until(
    holds: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS, every: float = 0.1
) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(every)


class BesideKafka(DaemonProcess):
    """`rlmm run` with its events in the cluster's own topic."""

    def __init__(self, directory: Path, broker_id: int, cluster: Cluster, tier: Tier) -> None:
        super().__init__(directory)
        self.broker_id, self.parts = broker_id, OURS
        self._cluster, self._tier = cluster, tier

    def configure(self) -> Path:
        """Write what the broker's parts need; its ports are known by now."""
        nodes = sorted(self._cluster.nodes.values(), key=lambda n: n.node_id != self.broker_id)
        bootstrap = ", ".join(f'"127.0.0.1:{node.ports["PLAINTEXT"]}"' for node in nodes)
        replicas = min(3, self._cluster.count)
        storage = '[storage]\nkind = "none"'
        if self.parts.storage:
            storage = self._tier.configure(self.directory)
        mode = "announced" if self.parts.metadata else "discover"
        file = self.directory / "rlmm.toml"
        file.write_text(
            f"""
[daemon]
broker_id = {self.broker_id}
state_dir = "var/state"
log_dirs = ["{self._cluster.data(self.broker_id)}"]
[socket]
path = "var/rlmm.sock"
[event_log]
kind = "kafka"
[event_log.kafka]
bootstrap = [{bootstrap}]
[event_log.kafka.admin]
partition_count = {METADATA_PARTITIONS}
replication_factor = {replicas}
[assignment]
mode = "{mode}"
{storage}
[admin]
listen = "127.0.0.1:0"
"""
        )
        return file

    def _launch(self, notify: str) -> Launch:
        launch = super()._launch(notify)
        return Launch(
            arguments=["run", "--config", str(self.configure())],
            directory=launch.directory,
            environment=launch.environment,
            output=launch.output,
        )


class EmbeddedDaemon(DaemonProcess):
    """What a fleet's broker must not use: a daemon with a log of its own, on the same socket."""

    def __init__(self, fleet: "Fleet", broker_id: int) -> None:
        home = fleet.directory / f"e{broker_id}"
        home.mkdir()
        settings = {
            "daemon.broker_id": broker_id,
            "daemon.cluster_id": fleet.cluster.cluster_id,
            "daemon.log_dirs": f'["{fleet.cluster.data(broker_id)}"]',
            "socket.path": fleet.daemons[broker_id].socket_path,
        }
        super().__init__(home, settings)


class Fleet:
    """Brokers, their daemons, and one JVM of Kafka's clients; `end` it whatever happens."""

    def __init__(
        self,
        directory: Path,
        jar: Path,
        count: int = 3,
        tier: Tier | None = None,
        properties: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Store in a shared directory where no tier is given."""
        self.directory, self._jar = directory, jar
        self.cluster = Cluster(directory=directory / "kafka", count=count)
        self.cluster.properties = _quick(count) | dict(properties)
        #: The directory that LocalTieredStorage is given, and the one below it that it uses.
        self.storage_root = directory / "remote"
        self.remote = self.storage_root / LOCAL_TIERED
        self.remote.mkdir(parents=True)
        self.tier = tier or DirectoryTier(self.remote)
        self.daemons = {id_: self._daemon(id_) for id_ in range(1, count + 1)}
        for broker_id in self.daemons:
            self.compose(broker_id, OURS)
        self._probe: Probe | None = None

    def _daemon(self, broker_id: int) -> BesideKafka:
        home = self.directory / f"d{broker_id}"
        home.mkdir()
        return BesideKafka(home, broker_id, self.cluster, self.tier)

    # ---- life

    def compose(self, broker_id: int, parts: Parts) -> None:
        """Say what a broker is made of; it and its daemon have to be started anew for it."""
        self.daemons[broker_id].parts = parts
        socket = self.directory / "d%{broker.id}" / "var" / "rlmm.sock"
        properties = _pasted("tiering", self._jar, socket)
        properties |= _metadata(parts, self._jar, socket) | _storage(parts, self._jar, socket)
        if not parts.storage:
            properties |= {"rsm.config.dir": str(self.storage_root)}
        elif broker_id == READS_THROUGH_THE_SOCKET:
            properties |= {"rsm.config.fetch.open.files": "false"}
        self.cluster.node_properties[broker_id] = properties

    def start(self) -> Self:
        """Start the brokers, then the daemons: neither needs the other to begin."""
        self.cluster.start()
        for daemon in self.daemons.values():
            if daemon.parts != KAFKAS:
                daemon.start()
        return self

    def restart(self, broker_id: int, parts: Parts) -> None:
        """Stop a broker and its daemon cleanly, and start them as something else."""
        daemon = self.daemons[broker_id]
        self.cluster.stop([broker_id])
        if daemon.process is not None:
            assert daemon.stop() == 0, daemon.last_words()
        self.compose(broker_id, parts)
        if parts != KAFKAS:
            daemon.start()
        self.cluster.start_nodes([broker_id])

    def heal(self) -> None:
        """Start whatever a test ended."""
        self.tier.heal()
        for broker_id, daemon in self.daemons.items():
            if daemon.process is not None:
                daemon.thaw()
            elif daemon.parts != KAFKAS:
                daemon.start()
            self.cluster.thaw(broker_id)
        self.cluster.start_nodes(self.cluster.nodes)

    def end(self) -> None:
        if self._probe is not None:
            self._probe.__exit__()
        for daemon in self.daemons.values():
            daemon.kill()
        for node_id in self.cluster.nodes:
            self.cluster.kill(node_id)
        self.tier.end()

    # ---- Kafka's clients

    @property
    def probe(self) -> Probe:
        if self._probe is None:
            output = self.directory / "probe.log"
            self._probe = Probe(self.cluster.bootstrap(), output, answer_seconds=600)
        return self._probe

    def create(self, topic: str, *placement: list[int], **configs: object) -> str:
        """Make a tiered topic of small segments, one list of replicas for each partition."""
        settings = {
            "remote.storage.enable": "true",
            "segment.bytes": 1024 * 1024,
            "local.retention.ms": 1000,
            "retention.ms": 3_600_000,
            "min.insync.replicas": 1,
        } | {name.replace("_", "."): value for name, value in configs.items()}
        created = self.probe.ask(
            "create",
            topic=topic,
            placement=list(placement),
            config={name: str(value) for name, value in settings.items()},
        )
        return str(created["id"])

    def delete(self, topic: str) -> None:
        self.probe.ask("delete", topic=topic)

    def configure(self, topic: str, **configs: object) -> None:
        changes = {name.replace("_", "."): str(value) for name, value in configs.items()}
        self.probe.ask("config", topic=topic, set=changes)

    def write(self, topic: str, count: int, *, first: int = 0, **how: Any) -> int:
        """Write numbered records to partition 0; return the last one's offset."""
        where = {"topic": topic, "partition": 0} | how
        answer = self.probe.ask("write", first=first, count=count, size=1000, **where)
        return int(answer["last_offset"])

    def read(self, topic: str, **how: Any) -> "Read":
        """Read partition 0 from offset 0 (or `offset`, `timestamp`) to its end; never reset."""
        where = {"topic": topic, "partition": 0} | how
        answer = self.probe.ask("read", **where)
        assert answer["wrong"] == 0, f"{answer['wrong']} records are not as they were written"
        return Read(answer["first_offset"], answer["next_offset"], answer["ranges"])

    def offset(self, topic: str, which: str, partition: int = 0) -> int:
        """Return one of earliest, earliest-local, latest-tiered, latest."""
        answer = self.probe.ask("offset", topic=topic, partition=partition, which=which)
        return int(answer["offset"])

    def partitions(self, topic: str) -> list[dict[str, Any]]:
        """Describe a topic's partitions; a broker hears of a new one a moment after its maker."""
        found: list[dict[str, Any]] = []

        def known() -> bool:
            try:
                found[:] = self.probe.ask("describe", topic=topic)["partitions"]
            except ProbeError as error:
                if not str(error).startswith("UnknownTopicOrPartitionException"):
                    raise
                return False
            return True

        until(known, f"the broker that is asked has heard of {topic}")
        return found

    def describe(self, topic: str) -> dict[str, Any]:
        return self.partitions(topic)[0]

    def leader(self, topic: str) -> int:
        return int(self.describe(topic)["leader"])

    def place(self, topic: str, replicas: list[int]) -> None:
        """Move partition 0 to these brokers and wait until all are in sync; the first leads."""
        self.probe.ask("place", topic=topic, partition=0, replicas=replicas)

        def moved() -> bool:
            now = self.describe(topic)
            return now["replicas"] == replicas and set(now["isr"]) == set(replicas)

        until(moved, f"{topic} is on {replicas} and in sync")
        self.lead(topic, replicas[0])

    def lead(self, topic: str, broker_id: int) -> None:
        """Wait until the preferred leader, which this broker has to be, leads."""

        def leads() -> bool:
            self.probe.ask("elect", topic=topic, partition=0)
            return self.leader(topic) == broker_id

        until(leads, f"broker {broker_id} leads {topic}", every=0.5)

    def lead_next(self, topic: str, broker_id: int) -> None:
        """Make a replica of partition 0 its leader, and wait until all are in sync."""
        replicas = self.describe(topic)["replicas"]
        self.place(topic, [broker_id, *(each for each in replicas if each != broker_id)])

    # ---- what is where

    def stored(self, topic: str, suffix: str = "") -> list[PurePath]:
        """Return a topic's files in the remote storage."""
        return self.tier.files(topic, suffix)

    def local_start(self, topic: str, broker_id: int) -> int:
        """Return where a broker's local log begins; -1 if there is none."""
        logs = sorted((self.cluster.data(broker_id) / f"{topic}-0").glob("*.log"))
        return int(logs[0].stem) if logs else -1

    def until_tiered(self, topic: str, end: int, brokers: Iterable[int] = ()) -> None:
        """Wait until local retention left these brokers, or the leader, nothing below `end`."""
        for broker_id in brokers or [self.leader(topic)]:
            until(
                lambda each=broker_id: self.local_start(topic, each) >= end,  # type: ignore[misc]  # a default binds the loop's value
                f"{topic} is tiered up to {end}, and deleted on broker {broker_id}",
            )

    def log(self, broker_id: int) -> str:
        return self.cluster.log(broker_id).read_text(errors="replace")


@dataclass(frozen=True, slots=True)
class Read:
    """What a consumer got: numbers as ranges, in the order in which they came."""

    first_offset: int
    next_offset: int
    ranges: list[list[int]]


def _quick(count: int) -> dict[str, str]:
    """Return what makes a broker's cycles short."""
    return {
        f"{_RLM}.manager.task.interval.ms": "500",
        "log.initial.task.delay.ms": "500",
        "replica.fetch.backoff.ms": "200",
        # Of Kafka's own manager; the plugin ignores them.
        "rlmm.config.remote.log.metadata.topic.num.partitions": str(METADATA_PARTITIONS),
        "rlmm.config.remote.log.metadata.topic.replication.factor": str(min(3, count)),
        "rlmm.config.remote.log.metadata.topic.min.isr": "1",
    }


def _metadata(parts: Parts, jar: Path, socket: Path) -> dict[str, str]:
    if not parts.metadata:
        return {f"{_RLM}.metadata.manager.class.name": _TBRLMM}
    return _pasted("metadata", jar, socket)


def _storage(parts: Parts, jar: Path, socket: Path) -> dict[str, str]:
    if not parts.storage:
        return {f"{_RLM}.storage.manager.class.name": _LTS}
    return _pasted("segments", jar, socket)


def _pasted(block: str, jar: Path, socket: Path) -> dict[str, str]:
    """Return the lines of one block of deploy/kafka/rlmm.properties, as somebody would paste it."""
    text = (libs.REPOSITORY / "deploy" / "kafka" / "rlmm.properties").read_text()
    chosen = text.split(f"\n# --- {block}.", 1)[1].partition("\n# ---")[0]
    lines = [line for line in chosen.splitlines()[1:] if line and not line.startswith("#")]
    ours = {"class.path": str(jar), "socket.path": str(socket)}
    pairs = (line.split("=", 1) for line in lines)
    return {key: ours.get(".".join(key.split(".")[-2:]), value) for key, value in pairs}
