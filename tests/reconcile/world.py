"""A bucket and a log with every kind of disagreement, and what a run must say of each."""

import asyncio
import os
import random
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog, EmbeddedOptions
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec import custom_metadata, marker, records
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED, StoredFacts
from rlmm_daemon.codec.marker import BucketMarker, LayoutRow, Presence, PresencePartition
from rlmm_daemon.codec.record_writing import Record
from rlmm_daemon.config import Config, load
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.core.storage.layout import Layout, object_key
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataPartition,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
    uuid_text,
)
from rlmm_daemon.domain.segment import (
    CustomMetadata,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
)
from rlmm_daemon.ports.event_log import NO_EPOCH, EventLog
from rlmm_daemon.wiring import adapters

CLUSTER = "c2lkZWNhci1kZXYta2Fma2"
HOUR = 3_600_000
DAY = 24 * HOUR
INDEXES = {".index": 24, ".timeindex": 12, ".leader_epoch_checkpoint": 10}
LOG_SIZE = 100
PARTITIONS = 5
S = SegmentState

DAEMON = """
[daemon]
broker_id = 1
cluster_id = "{cluster}"
state_dir = "{home}/state"
log_dirs = ["{home}/kafka-logs"]
[socket]
path = "{home}/rlmm.sock"
[event_log]
kind = "embedded"
single_broker = true
directory = "{home}/log"
partition_count = {count}
{storage}
"""
DAEMON_OF_KAFKA = """
[daemon]
broker_id = 1
state_dir = "{home}/state"
log_dirs = ["{home}/kafka-logs"]
[socket]
path = "{home}/rlmm.sock"
[event_log]
kind = "kafka"
[event_log.kafka]
bootstrap = ["{bootstrap}"]
[event_log.kafka.admin]
partition_count = {count}
replication_factor = 1
{storage}
"""
S3 = """[storage]
kind = "s3"
bucket = "{bucket}"
endpoint = "{endpoint}"
addressing = "path"
access_key_id_file = "{home}/access_key_id"
secret_access_key_file = "{home}/secret_access_key"
"""
LOCAL = """[storage]
kind = "local"
directory = "{home}/remote"
"""


@dataclass
class World:
    """Builds events and files; `finish` writes log, marker and presence."""

    home: Path
    now_ms: int
    topic: str = "orders"
    seed: int = 7
    #: Of the embedded log's files.
    segment_bytes: int = 1 << 20
    events: list[tuple[TopicIdPartition, bytes]] = field(default_factory=list)
    objects: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: (kind, segment id or key) -> condemned
    expected: dict[tuple[str, str], bool] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    #: Of each metadata partition's last batch.
    epochs: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.layout, self.layout_number = Layout(), 1
        self.topic_id = TopicId(self.rng.randbytes(16))
        self.partition = TopicIdPartition(self.topic_id, self.topic, 0)
        self.at = 0
        self.log_topic_id = TopicId(self.rng.randbytes(16))

    # Segments

    def segment(self, *, start: int | None = None, epoch: int = 3) -> SegmentMetadata:
        first = self.at if start is None else start
        self.at = first + 100
        return SegmentMetadata(
            partition=self.partition,
            segment_id=SegmentId(self.rng.randbytes(16)),
            start_offset=Offset(first),
            end_offset=Offset(first + 99),
            broker_id=BrokerId(1),
            max_timestamp_ms=self.now_ms - 2 * DAY,
            event_timestamp_ms=self.now_ms - 2 * DAY,
            segment_leader_epochs={LeaderEpoch(epoch): Offset(first)},
            segment_size_bytes=LOG_SIZE,
        )

    def say(self, record: Record) -> None:
        assert isinstance(record, SegmentMetadata | SegmentUpdate)
        self.events.append((record.partition, records.encode(record)))

    def update(
        self,
        segment: SegmentMetadata,
        state: SegmentState,
        *,
        age_ms: int = 2 * DAY,
        meant: CustomMetadata | None = None,
    ) -> None:
        facts = StoredFacts(layout_number=self.layout_number, log_crc32c=1, sizes=INDEXES)
        self.say(
            SegmentUpdate(
                partition=segment.partition,
                segment_id=segment.segment_id,
                broker_id=BrokerId(1),
                event_timestamp_ms=self.now_ms - age_ms,
                custom_metadata=meant or custom_metadata.encode(facts),
                state=state,
            )
        )

    def store(
        self,
        segment: SegmentMetadata,
        *,
        age_ms: int = 2 * DAY,
        but: Mapping[str, int | None] = {},
    ) -> list[str]:
        keys = []
        for suffix, size in {**INDEXES, ".log": LOG_SIZE, **but}.items():
            if size is None:
                continue
            key = object_key(
                self.layout,
                segment.partition,
                segment.start_offset,
                segment.segment_id,
                suffix=suffix,
            )
            self.objects[key] = (size, self.now_ms - age_ms)
            keys.append(key)
        return keys

    def live(self, **where: int) -> SegmentMetadata:
        segment = self.segment(**where)
        self.say(segment)
        self.update(segment, S.COPY_SEGMENT_FINISHED)
        return segment

    def expect(self, kind: str, what: SegmentMetadata | str, *, condemned: bool = False) -> None:
        name = what if isinstance(what, str) else uuid_text(what.segment_id)
        self.expected[kind, name] = condemned

    # Every kind

    def everything(self) -> None:
        """Add one of each, between plain segments."""
        for _ in range(60):
            self.store(self.live())
        self.expect("orphan_object", self._orphan(2 * DAY), condemned=True)
        self.expect("orphan_object", self._orphan(HOUR))
        self.expect("deleted_but_present", self._deleted(2 * DAY), condemned=True)
        self.expect("deleted_but_present", self._deleted(2 * HOUR))
        gone = self.live()
        self.update(gone, S.DELETE_SEGMENT_STARTED)
        self.update(gone, S.DELETE_SEGMENT_FINISHED)
        self.at -= 100  # so that it leaves no gap
        missing = self.live()
        self.expect("missing_object", missing)
        self.expect("partial_segment", missing)
        partial = self.live()
        self.store(partial, but={".index": None})
        self.expect("partial_segment", partial)
        wrong = self.live()
        self.store(wrong, but={".timeindex": 13})
        self.expect("size_mismatch", wrong)
        self._unfinished()
        overlap = self.live(start=self.at - 50)
        self.store(overlap)
        self.expect("overlap", overlap)
        behind = self.live(start=self.at + 500)
        self.store(behind)
        self.expect("offset_gap", behind)
        self._lineages()
        self._forgotten()
        for key in ("stray.txt", f"{self.topic}-0/x.log", f"{self.topic}-0-<script>/[red]\x1b.log"):
            self.objects[key] = (5, self.now_ms - 9 * DAY)
            self.expect("unknown_key", key)

    def _lineages(self) -> None:
        """Add segments of several epochs, which follow each other within each, but for one gap."""
        first = self.at + 10_000
        for start, epochs, gap in (
            (0, {6: 0, 7: 50}, False),
            (50, {6: 50}, False),  # of the leader before, which had more of its epoch
            (100, {7: 100, 8: 150}, False),
            (300, {8: 300}, True),
        ):
            segment = msgspec.structs.replace(
                self.segment(start=first + start),
                segment_leader_epochs={
                    LeaderEpoch(epoch): Offset(first + at) for epoch, at in epochs.items()
                },
            )
            self.say(segment)
            self.update(segment, S.COPY_SEGMENT_FINISHED)
            self.store(segment)
            if gap:
                self.expect("offset_gap", segment)

    def _orphan(self, age_ms: int) -> SegmentMetadata:
        orphan = self.segment()
        self.at -= 100
        self.store(orphan, age_ms=age_ms)
        return orphan

    def _forgotten(self) -> None:
        """Add old orphans that are all that a topic has: a run never takes all of a topic."""
        known, self.partition = (
            self.partition,
            TopicIdPartition(TopicId(self.rng.randbytes(16)), "forgotten", 0),
        )
        self.expect("orphan_object", self._orphan(9 * DAY))
        self.partition = known

    def _deleted(self, age_ms: int) -> SegmentMetadata:
        deleted = self.live()
        self.at -= 100
        self.update(deleted, S.DELETE_SEGMENT_STARTED, age_ms=age_ms)
        self.update(deleted, S.DELETE_SEGMENT_FINISHED, age_ms=age_ms)
        self.store(deleted)
        return deleted

    def _unfinished(self) -> None:
        stuck = self.segment()
        self.at -= 100
        self.say(stuck)
        self.store(stuck, but={".log": None})
        self.expect("stuck_copy", stuck)
        deleting = self.live()
        self.at -= 100
        self.update(deleting, S.DELETE_SEGMENT_STARTED)
        self.store(deleting)
        self.expect("stuck_delete", deleting)
        held = self.live()
        self.at -= 100
        self.update(held, S.DELETE_SEGMENT_STARTED, meant=ONLY_IF_STARTED)
        self.update(held, S.DELETE_SEGMENT_FINISHED)
        self.store(held)
        self.expect("deleted_but_present", held)

    # Writing it down

    def write_log(self) -> None:
        asyncio.run(self._write_log())

    async def _write_log(self) -> None:
        disk = LocalDisk()
        try:
            async with asyncio.TaskGroup() as group:
                log = EmbeddedLog(
                    disk=disk,
                    clock=SystemClock(),
                    spawn=lambda work, name: group.create_task(work, name=name),
                    luck=self.rng,
                    directory=str(self.home / "log"),
                    partition_count=PARTITIONS,
                    cluster_id=CLUSTER,
                    options=EmbeddedOptions(segment_bytes=self.segment_bytes),
                )
                identity = await log.open(create=True)
                self.log_topic_id = identity.topic_id
                await self._append_all(log)
                await log.close()
        finally:
            disk.close()

    def write_kafka(self, bootstrap: str, storage: str) -> Path:
        """Write the log to a topic of a real broker, and return the daemon's configuration."""
        config = self.home / "rlmm.toml"
        text = DAEMON_OF_KAFKA.format(
            cluster=CLUSTER, home=self.home, count=PARTITIONS, bootstrap=bootstrap, storage=storage
        )
        config.write_text(text)
        asyncio.run(self._write_kafka(load(config)))
        return config

    async def _write_kafka(self, config: Config) -> None:
        disk = LocalDisk()
        async with asyncio.TaskGroup() as group:
            log = adapters.event_log_of(
                config,
                disk,
                SystemClock(),
                self.rng,
                spawn=lambda work, name: group.create_task(work, name=name),
            )
            self.log_topic_id = (await log.open(create=True)).topic_id
            await self._append_all(log)
            await log.close()
        disk.close()

    async def _append_all(self, log: EventLog) -> None:
        for partition, value in self.events:
            number = metadata_partition(partition.topic_id, partition.partition, PARTITIONS)
            self.ends[number] = await log.append(number, value) + 1
        for each, end in self.ends.items():
            async with aclosing(
                log.follow(MetadataPartition(each), end - 1, epoch=NO_EPOCH)
            ) as stream:
                async for answer in stream:
                    if answer.next_offset >= end:
                        self.epochs[each] = answer.leader_epoch
                        break

    def write_s3(self, client: Any, bucket: str) -> None:
        """Put the objects, the marker and the presence file through a blocking S3 client."""
        for key, (size, _) in self.objects.items():
            client.put_object(Bucket=bucket, Key=key, Body=bytes(size))
        for name, value in (
            ("marker.json", marker.encode(self.marker())),
            ("daemons/1.json", marker.encode(self.presence())),
        ):
            client.put_object(Bucket=bucket, Key=f"_rlmm/{name}", Body=value)

    def marker(self) -> BucketMarker:
        return BucketMarker(
            cluster_id=CLUSTER,
            partition_count=PARTITIONS,
            metadata_topic_id=uuid_text(self.log_topic_id),
            layouts=(LayoutRow(number=1, kind=self.layout.kind, prefix=self.layout.prefix),),
        )

    def presence(self, *, state: str = "ready", ahead: int = 0, epochs: int = 0) -> Presence:
        return Presence(
            cluster_id=CLUSTER,
            broker_id=1,
            incarnation=1,
            started_at_ms=self.now_ms,
            written_at_ms=self.now_ms,
            copy_deadline_seconds=1200.0,
            lease_end_ms=None,
            metadata_manager="rlmm",
            partitions={
                number: PresencePartition(
                    state=state,
                    topic_id=uuid_text(self.log_topic_id),
                    leader_epoch=self.epochs[number] + epochs,
                    next_offset=end + ahead,
                )
                for number, end in self.ends.items()
            },
        )

    def write_local(self) -> Path:
        """Write the storage as local files, and return the daemon's configuration."""
        root = self.home / "remote"
        for key, (size, modified_ms) in self.objects.items():
            path = root / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(size))
            os.utime(path, (modified_ms / 1000, modified_ms / 1000))
        lock = root / ".rlmm" / "locks" / "left by whoever wrote a control object"
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
        self.write_control("marker.json", marker.encode(self.marker()))
        self.write_control("daemons/1.json", marker.encode(self.presence()))
        config = self.home / "rlmm.toml"
        config.write_text(
            DAEMON.format(
                cluster=CLUSTER,
                home=self.home,
                count=PARTITIONS,
                storage=LOCAL.format(home=self.home),
            )
        )
        return config

    def write_control(self, name: str, data: bytes) -> None:
        path = self.home / "remote" / "_rlmm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(
            path, (self.now_ms / 1000, self.now_ms / 1000)
        )  # the storage's time is the world's

    def random(self, segments: int) -> None:
        """Add segments of any history and any damage; ages far from every bound."""
        luck = self.rng
        for _ in range(segments):
            segment = self.segment()
            age_ms = luck.choice([2 * HOUR, 3 * DAY])
            if luck.random() < 0.85:
                self.say(self._aged(segment, age_ms))
                for state in (
                    S.COPY_SEGMENT_FINISHED, S.DELETE_SEGMENT_STARTED, S.DELETE_SEGMENT_FINISHED
                )[: luck.choice([0, 1, 1, 1, 1, 2, 3])]:  # fmt: skip
                    stuck = state is S.DELETE_SEGMENT_STARTED and luck.random() < 0.1
                    meant = ONLY_IF_STARTED if stuck else None
                    self.update(segment, state, age_ms=age_ms, meant=meant)
            damage: dict[str, int | None] = {
                suffix: luck.choice([None, size + 1])
                for suffix, size in {**INDEXES, ".log": LOG_SIZE}.items()
                if luck.random() < 0.03
            }
            if luck.random() < 0.9:
                self.store(segment, age_ms=luck.choice([2 * HOUR, 3 * DAY]), but=damage)

    def _aged(self, segment: SegmentMetadata, age_ms: int) -> SegmentMetadata:
        return msgspec.structs.replace(segment, event_timestamp_ms=self.now_ms - age_ms)
