"""Daemons beside the brokers of a real cluster, for the cleaner's tests."""

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from rlmm_daemon.client import Client, ClientOptions
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import BrokerId, SegmentId, TopicIdPartition
from tests.support import kafka_segments
from tests.support.daemon_process import DaemonProcess
from tests.support.fork_server import Launch
from tests.support.kafka_segments import KafkaSegment

PATIENCE_SECONDS = 150.0


def until(holds: Callable[[], object], what: str) -> None:
    deadline, last = time.monotonic() + PATIENCE_SECONDS, None
    while True:
        try:
            last = holds()
            if last:
                return
        except RlmmError as error:
            last = error
        assert time.monotonic() < deadline, f"not in time: {what}; {last!r}"
        time.sleep(0.3)


class OneDaemon(DaemonProcess):
    """A daemon beside one broker of the cluster."""

    def __init__(self, home: Path, broker_id: int, config: str) -> None:
        home.mkdir()
        super().__init__(home)
        self.broker_id = broker_id
        self.file = home / "rlmm.toml"
        self.file.write_text(config)
        self.segments = [s for each in kafka_segments.place(self.log_dir).values() for s in each]
        self.incarnation = 0
        self._broker: Client | None = None

    def _launch(self, notify: str) -> Launch:
        arguments = ["run", "--config", str(self.file)]
        return replace(super()._launch(notify), arguments=arguments)

    def hello(self, cluster_id: str) -> bool:
        """Its broker was started, says what it leads (nothing, here) and stays connected."""
        self.incarnation = int(time.time() * 1000)  # noqa: TID251 - a broker's clock
        options = ClientOptions(
            role="broker",
            part="metadata",
            cluster_id=cluster_id,
            broker_id=self.broker_id,
            broker_incarnation=self.incarnation,
        )
        self._say_goodbye()
        with Client(self.socket_path, replace(options, part="storage")) as storage:
            storage.hello()
        self._broker = Client(self.socket_path, options)
        self._broker.replace_assignment([], [])
        return True

    def kill(self) -> None:
        """Its broker's connection ends with it."""
        self._say_goodbye()
        super().kill()

    def _say_goodbye(self) -> None:
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    def at(self, partition: TopicIdPartition, luck: random.Random) -> KafkaSegment:
        """A segment of a partition, its files where the broker would have them."""
        found = luck.choice(self.segments)
        home = self.log_dir / f"{partition.topic}-{partition.partition}"
        home.mkdir(exist_ok=True)
        stem = home / Path(found.stem).name
        if not Path(f"{stem}.log").exists():
            for file in Path(found.stem).parent.glob(f"{Path(found.stem).name}.*"):
                shutil.copy(file, home / file.name)
        metadata = replace(
            found.metadata,
            partition=partition,
            segment_id=SegmentId(luck.randbytes(16)),
            broker_id=BrokerId(self.broker_id),
            event_timestamp_ms=int(time.time() * 1000),  # noqa: TID251 - a broker's clock
        )
        return replace(found, metadata=metadata, stem=str(stem))


def cluster_id_of(daemon: OneDaemon) -> str:
    told: list[str] = []

    def known() -> bool:
        with daemon.client() as client:
            told[:] = [str(client.status()["cluster_id"] or "")]
        return bool(told[0])

    until(known, "the cluster is known")
    return told[0]
