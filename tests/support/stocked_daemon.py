"""A daemon process with real segments in it, questions to it, and a day to go wrong."""

import json
import os
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.error import HTTPError

from click.testing import CliRunner, Result
from msgspec.structs import replace

from deploy.dev.stack.ports import free_ports
from rlmm_daemon.cli import main
from rlmm_daemon.client import Client, ClientOptions
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import SegmentId, TopicIdPartition, uuid_text
from rlmm_daemon.domain.segment import (
    CustomMetadata,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
)
from tests.support import kafka_segments
from tests.support.daemon_process import CONFIG, DaemonProcess
from tests.support.fork_server import Forked, Launch
from tests.support.kafka_segments import KafkaSegment

COUNT: Final = 3
CLUSTER: Final = "rlmm-demo-cluster"
#: How long a state that comes by itself is waited for; nothing here takes a tenth of it.
PATIENCE_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.02
#: Segments of each partition that a stocked daemon has copied.
_STOCK: Final = 3

T = TypeVar("T")


@dataclass(slots=True)
class Stocked:
    """A daemon, and what is known of it without asking."""

    daemon: DaemonProcess
    #: What Kafka wrote, by partition; the first few of each are copied.
    placed: dict[TopicIdPartition, list[KafkaSegment]]
    #: Every segment whose COPY_SEGMENT_FINISHED was acknowledged.
    acknowledged: list[SegmentId] = field(default_factory=list)
    #: The one that its log is of.
    cluster_id: str = CLUSTER

    @property
    def orders(self) -> list[TopicIdPartition]:
        """orders-0 and orders-1, whose events lie in two metadata partitions."""
        return sorted(self.placed, key=lambda each: each.partition)

    def number(self, partition: int) -> int:
        """The metadata partition of orders-PARTITION."""
        return metadata_partition(self.orders[partition].topic_id, partition, COUNT)

    def copied(self, partition: int) -> list[KafkaSegment]:
        return self.placed[self.orders[partition]][:_STOCK]

    def next(self, partition: int) -> KafkaSegment:
        """A segment that nobody has copied yet."""
        return self.placed[self.orders[partition]][_STOCK]

    @property
    def state_dir(self) -> Path:
        return self.daemon.directory / "var" / "state"

    @property
    def log_dir(self) -> Path:
        return self.state_dir / "log"

    @property
    def snapshots(self) -> list[Path]:
        return sorted((self.state_dir / "snapshots").glob("*.snapshot"))

    def log_files(self, partition: int) -> list[Path]:
        """The event log's files that hold the events of orders-PARTITION, oldest first."""
        return sorted((self.log_dir / str(self.number(partition))).glob("*.log"))

    def start(self) -> None:
        """Start the daemon, and its broker says what it leads."""
        self.daemon.start()
        self.announce()

    def announce(self, incarnation: int = 77) -> None:
        """Say what the broker says when it starts: it leads both partitions."""
        with self.broker(incarnation=incarnation) as broker:
            broker.replace_assignment(self.orders, [])

    def stock(self) -> None:
        """Announce both partitions and copy the first few segments of each."""
        self.announce()
        with self.daemon.client() as client:
            for partition in (0, 1):
                for segment in self.copied(partition):
                    client.copy_segment(segment.metadata, segment.files)
                    self.acknowledged.append(segment.metadata.segment_id)

    def rlmm(self, *words: str) -> Result:
        """Run the command line tool in this process: the same code without its start."""
        environment = {"RLMM_SOCKET": self.daemon.socket_path}
        return CliRunner().invoke(main, words, env=environment)

    def json(self, *words: str) -> Any:
        """Return what `rlmm WORDS --json` prints, whatever its exit code."""
        run = self.rlmm(*words, "--json")
        assert run.stdout, run.output
        return json.loads(run.stdout)

    def explain(self, partition: int, *words: str) -> dict[str, Any]:
        answer = self.json("explain", f"orders-{partition}", *words)
        assert isinstance(answer, dict)
        return answer

    def run_next(self, partition: int) -> str:
        """Type the command that `rlmm explain` names; return what it printed."""
        command = self.explain(partition)["next_command"]
        name, *words = command.split()
        assert name == "rlmm", command
        run = self.rlmm(*words)
        assert run.exit_code == 0, f"{command}: {run.output}"
        return run.stdout

    def row(self, partition: int) -> dict[str, Any]:
        """Return the row of `rlmm partitions` that holds orders-PARTITION."""
        rows: dict[int, dict[str, Any]] = {
            row["metadata_partition"]: row for row in self.json("partitions")
        }
        return rows.get(self.number(partition), {"state": "unassigned"})

    def listed(self, partition: int) -> dict[SegmentId, SegmentMetadata]:
        with self.daemon.client() as client:
            found = client.list_remote_log_segments(self.orders[partition])
        return {segment.segment_id: segment for segment in found}

    def serves(self, partition: int) -> None:
        """Hold that every copied segment is finished, found by a look-up, and fetched whole."""
        finished = SegmentState.COPY_SEGMENT_FINISHED
        listed = self.listed(partition)
        with self.daemon.client() as client:
            for segment in self.copied(partition):
                found = listed[segment.metadata.segment_id]
                assert found.state is finished
                epoch, offset = next(iter(found.segment_leader_epochs.items()))
                answer = client.remote_log_segment_metadata(found.partition, epoch, offset)
                assert answer == found
                with client.fetch_log_segment(found) as log:
                    assert log.readall() == Path(f"{segment.stem}.log").read_bytes()

    def copy_new(self, partition: int, serial: int = 0) -> SegmentId:
        """Copy one more segment; return its id, a new one for each serial number."""
        segment = self.next(partition)
        fresh = SegmentId(bytes([*segment.metadata.segment_id[:15], serial]))
        with self.daemon.client() as client:
            done = client.copy_segment(replace(segment.metadata, segment_id=fresh), segment.files)
        self.acknowledged.append(done.segment_id)
        return done.segment_id

    def broker(self, part: str = "metadata", incarnation: int = 77) -> Client:
        """A connection such as the broker's plugin makes."""
        options = ClientOptions(
            role="broker",
            part=part,
            cluster_id=self.cluster_id,
            broker_id=1,
            broker_incarnation=incarnation,
        )
        return Client(self.daemon.socket_path, options)

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Return the daemon's log lines of one event, over all its starts."""
        text = self.daemon.output.read_text(errors="replace").splitlines()
        found = [json.loads(line) for line in text if line.startswith("{")]
        return [line for line in found if line["event"] == event]

    @property
    def holds(self) -> int:
        """How often the daemon put a hold on everything, over all its starts."""
        return self.daemon.output.read_text(errors="replace").count("all objects are held")

    # The admin port.

    def admin(self, path: str) -> tuple[int, str]:
        """GET from the admin port; return status and body."""
        port = self.daemon.settings["admin.listen"].rpartition(":")[2]  # type: ignore[attr-defined]  # text
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self) -> dict[str, float]:
        """Return every sample of /metrics by its name and labels, as printed."""
        status, body = self.admin("/metrics")
        assert status == 200
        rows = [line.rpartition(" ") for line in body.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in rows}


class _OwnConfig(DaemonProcess):
    """A daemon process with a configuration file of its own."""

    config = CONFIG

    def _launch(self, notify: str) -> Launch:
        launch = super()._launch(notify)
        own = [str(self.config) if word == str(CONFIG) else word for word in launch.arguments]
        return replace(launch, arguments=own)


def make(
    directory: Path,
    forks: Callable[[Launch], Forked] | None = None,
    settings: Mapping[str, object] | None = None,
    config: Path = CONFIG,
) -> Stocked:
    """Return a daemon that was not started yet, with Kafka's segments in its log directory.

    A setting of None leaves one out that is made here.
    """
    wanted = {"event_log.partition_count": COUNT} | dict(settings or {})
    wanted = {key: value for key, value in wanted.items() if value is not None}
    daemon = _OwnConfig(directory, wanted, forks)
    daemon.config = config
    return Stocked(daemon, kafka_segments.place(daemon.log_dir))


def free_address() -> str:
    """Return an address for the admin port that nobody else is given, also while it is down."""
    return f"127.0.0.1:{free_ports(1)[0]}"


def eventually(ask: Callable[[], T], wanted: Callable[[T], bool] = bool) -> T:
    """Ask until the answer is the wanted one; return it, or fail with the last answer.

    An error of ours is an answer that is not wanted.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    nothing = threading.Event()
    while True:
        answer: Any
        try:
            answer = ask()
        except RlmmError as error:
            answer = error
        else:
            if wanted(answer):
                return answer  # type: ignore[no-any-return]  # as `ask` returned it
        if time.monotonic() > until:
            raise AssertionError(f"it never came; the last answer was {answer!r}")
        nothing.wait(_POLL_SECONDS)


def flip(path: Path, position: int) -> None:
    """Flip one bit in place."""
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))
        os.fsync(file.fileno())


def pid_of(it: Stocked) -> int:
    assert it.daemon.process is not None
    return it.daemon.process.pid


def topic_id(it: Stocked) -> str:
    return uuid_text(it.orders[0].topic_id)


def ran(it: Stocked, *words: str, code: int = 0) -> str:
    """Return what a command says that ends with this code."""
    run = it.rlmm(*words)
    assert run.exit_code == code, (words, run.output)
    return run.stdout


def fails_of(it: Stocked, reason: str) -> None:
    """orders-0 failed of this, orders-1 serves, and everybody is told so."""
    row = eventually(lambda: it.row(0), lambda row: row["state"] == "failed")
    assert row["failure"]["reason"] == reason
    answer = it.explain(0)
    assert (answer["verdict"], answer["cause"]) == ("failed", reason)
    assert answer["next_command"] == row["failure"]["command"]
    assert it.rlmm("explain", "orders-0").exit_code == 1
    assert it.rlmm("status").exit_code == 1
    it.serves(1)


def restarts_clean(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    it.start()
    it.serves(0)
    it.serves(1)


def update(
    segment: SegmentMetadata, state: SegmentState, custom: bytes | None = None
) -> SegmentUpdate:
    """Return the event that brings a segment to a state."""
    return SegmentUpdate(
        partition=segment.partition,
        segment_id=segment.segment_id,
        broker_id=segment.broker_id,
        event_timestamp_ms=segment.event_timestamp_ms + 1,
        custom_metadata=None if custom is None else CustomMetadata(custom),
        state=state,
    )
