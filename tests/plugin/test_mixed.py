"""A cluster moves from Kafka's own managers to this project's broker by broker, and back.

On the way every kind of broker leads, all of them at once over one topic and one storage: both of
ours, our metadata manager beside Kafka's LocalTieredStorage, our storage manager beside Kafka's
TopicBasedRemoteLogMetadataManager. What each of them lists is compared with what Kafka's manager
lists, record by record, and what each deletes is gone for all.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rlmm_daemon.codec import records
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import TopicId, TopicIdPartition, uuid_bytes
from tests.kafka.probe import user
from tests.plugin.conftest import PLUGIN
from tests.plugin.fleet import (
    KAFKAS,
    METADATA_ONLY,
    METADATA_PARTITIONS,
    OURS,
    STORAGE_ONLY,
    Fleet,
    Parts,
    until,
)

TOPIC = "journey"
STEP = 1500


@dataclass
class Journey:
    """A topic, who looks after it, and how far it is written."""

    fleet: Fleet
    partition: TopicIdPartition
    end: int = 0
    start: int = 0
    seen: list[str] = field(default_factory=list)

    def write_through(self, broker_id: int) -> None:
        """Let a broker lead, tier something, and read all there is through the tier."""
        self.fleet.lead_next(TOPIC, broker_id)
        self.end = self.fleet.write(TOPIC, STEP, first=self.end) + 1
        self.fleet.until_tiered(TOPIC, self.end, brokers=[broker_id])
        self.read()

    def read(self) -> None:
        found = self.fleet.read(TOPIC, offset=self.start)
        assert found.ranges == [[self.start, self.end - 1]]
        assert self.fleet.offset(TOPIC, "earliest") == self.start

    def compare(self) -> None:
        """Every daemon lists what Kafka's manager lists, for each epoch in its order."""
        for broker_id, daemon in self.fleet.daemons.items():
            if daemon.process is not None:
                until(lambda each=broker_id: self._same(each), f"daemon {broker_id} lists as Kafka")  # type: ignore[misc]  # a default binds the loop's value

    def _same(self, broker_id: int) -> bool:
        try:
            with self.fleet.daemons[broker_id].client() as client:
                ours = [
                    [records.encode(each) for each in client.list_remote_log_segments(*which)]
                    for which in self._listings()
                ]
        except RlmmError:  # not ready yet
            return False
        theirs = [self._kafkas(epoch) for _, epoch in self._listings()]
        return [sorted(ours[0]), *ours[1:]] == [sorted(theirs[0]), *theirs[1:]]

    def _listings(self) -> list[tuple[TopicIdPartition, int | None]]:
        return [(self.partition, None), *((self.partition, epoch) for epoch in range(12))]

    def _kafkas(self, epoch: int | None) -> list[bytes]:
        which = {} if epoch is None else {"epoch": epoch}
        rows = self.fleet.probe.ask("list", user=user(self.partition), **which)["records"]
        return [bytes.fromhex(each) for each in rows]

    def trim(self, broker_id: int) -> None:
        """Let a broker lead and delete what lies below a new log start; all see it gone."""
        self.fleet.lead_next(TOPIC, broker_id)
        starts = self.starts()
        self.start = starts[2]
        self.fleet.probe.ask("delete_records", topic=TOPIC, partition=0, before=self.start)
        until(lambda: self.starts() == starts[2:], "two segments are gone, and no others")
        self.compare()
        self.read()

    def starts(self) -> list[int]:
        return [int(path.name[:20]) for path in self.fleet.stored(TOPIC, ".log")]


@pytest.fixture
def journey() -> Iterator[Journey]:
    """Three brokers of Kafka's own kind, and a topic that they have begun to tier."""
    with tempfile.TemporaryDirectory(prefix="rlmm-mixed-", ignore_cleanup_errors=True) as directory:
        fleet = Fleet(Path(directory), PLUGIN)
        for broker_id in fleet.daemons:
            fleet.compose(broker_id, KAFKAS)
        try:
            fleet.start()
            topic_id = TopicId(uuid_bytes(fleet.create(TOPIC, [1, 2, 3])))
            journey = Journey(fleet, TopicIdPartition(topic_id, TOPIC, 0))
            fleet.probe.ask(
                "manager",
                user=user(journey.partition),
                count=METADATA_PARTITIONS,
                replicas=3,
                directory=directory,
            )
            yield journey
        finally:
            fleet.end()


@pytest.mark.timeout(900)
def test_a_cluster_moves_broker_by_broker_and_back(journey: Journey) -> None:
    fleet = journey.fleet
    journey.write_through(1)
    kinds: list[tuple[int, Parts]] = [(1, METADATA_ONLY), (2, OURS), (3, STORAGE_ONLY)]
    for broker_id, parts in kinds:
        fleet.restart(broker_id, parts)
        journey.write_through(broker_id)
        journey.compare()
    for broker_id in (1, 2, 3):
        fleet.lead_next(TOPIC, broker_id)
        journey.read()
        journey.trim(broker_id)
    for broker_id in (1, 2, 3):
        fleet.restart(broker_id, KAFKAS)
        fleet.lead_next(TOPIC, broker_id)
        journey.read()
    fleet.delete(TOPIC)
    until(lambda: not fleet.stored(TOPIC), "the storage is empty")
