"""A daemon's manager over the Kafka log, built as the daemon builds it, and its writers."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.dev.stack.kafka.cluster import PASSWORDS, Cluster
from rlmm_daemon import config
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec import records
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.following.fleet import FleetOptions
from rlmm_daemon.daemon.metadata.manager import Manager, ManagerOptions
from rlmm_daemon.domain.errors import OutcomeUnknown, RlmmError, UnavailableError
from rlmm_daemon.domain.ids import MetadataPartition, SegmentId, TopicId, TopicIdPartition
from rlmm_daemon.ports.event_log import EventLog
from rlmm_daemon.wiring import adapters
from tests.kafka.probe import Probe
from tests.unit.daemon import events

COUNT = 4
TOPIC_ID = TopicId(bytes(range(1, 17)))
BROKER = Caller.BROKER
RETRY_SECONDS = 0.02
#: Times to recover, in the order in which they were measured.
told: list[str] = []
#: Segments that any writer of this test asked something for.
tried_by_all: set[SegmentId] = set()


def tp_in(partition: int, count: int = COUNT, nth: int = 0) -> TopicIdPartition:
    """Return the nth user partition whose events are in this metadata partition."""
    numbers = (n for n in range(100_000) if metadata_partition(TOPIC_ID, n, count) == partition)
    number = next(n for place, n in enumerate(numbers) if place == nth)
    return TopicIdPartition(TOPIC_ID, "orders", number)


def security_toml(cluster: Cluster, listener: str, mechanism: str, user: str, home: Path) -> str:
    """Return [event_log.kafka.security] for a listener of the cluster."""
    keys = cluster.key_directory
    lines = ["[event_log.kafka.security]"]
    if listener in ("TLS", "MTLS", "SASLTLS"):
        lines.append(f'ca_file = "{keys}/ca.pem"')
    if listener == "MTLS":
        lines += [f'certificate_file = "{keys}/client.crt"', f'key_file = "{keys}/client.key"']
    if listener in ("SASL", "SASLTLS"):
        password = home / f"{user}.password"
        password.write_text(PASSWORDS[user])
        password.chmod(0o600)
        lines += [f'mechanism = "{mechanism}"', f'username = "{user}"']
        lines.append(f'password_file = "{password}"')
    protocol = {
        "PLAINTEXT": "PLAINTEXT",
        "PROXIED": "PLAINTEXT",
        "TLS": "SSL",
        "MTLS": "SSL",
        "SASL": "SASL_PLAINTEXT",
        "SASLTLS": "SASL_SSL",
    }[listener]
    return "\n".join([*lines, f'protocol = "{protocol}"'])


class KafkaRig:
    """Builds managers over one topic, one state directory each."""

    def __init__(self, cluster: Cluster, probe: Probe, home: Path, topic: str) -> None:
        self.cluster = cluster
        self.probe = probe
        self.home = home
        self.topic = topic
        self.disk = LocalDisk()
        self.replicas = min(3, cluster.count)

    def close(self) -> None:
        self.disk.close()

    def create(self, placement: list[list[int]] | None = None, **topic_config: str) -> str:
        """Make the topic beforehand, its replicas where the test wants them; return its id."""
        config = {"min.insync.replicas": "1", "retention.ms": "-1"} | {
            name.replace("_", "."): value for name, value in topic_config.items()
        }
        where: dict[str, Any] = {"partitions": COUNT, "replicas": self.replicas}
        if placement is not None:
            where = {"placement": placement}
        answer = self.probe.ask("create", topic=self.topic, config=config, **where)
        return str(answer["id"])

    def tell(self, text: str) -> None:
        """Keep a measured time for the end of the run, which shows all of them."""
        told.append(f"{self.topic}: {text}")

    def leader(self, partition: int) -> int:
        """Return the node that leads a metadata partition."""
        described = self.probe.ask("describe", topic=self.topic)
        return int(described["partitions"][partition]["leader"])

    def config(
        self,
        *,
        listener: str = "PLAINTEXT",
        mechanism: str = "PLAIN",
        user: str = "admin",
        count: int = COUNT,
        settings: dict[str, str] | None = None,
    ) -> config.Config:
        """Return a daemon's configuration."""
        bootstrap = self.cluster.bootstrap(listener).split(",")
        security = security_toml(self.cluster, listener, mechanism, user, self.home)
        text = f"""
[daemon]
broker_id = 1
state_dir = "{self.home}/state"
[event_log]
kind = "kafka"
[event_log.kafka]
bootstrap = {bootstrap}
topic = "{self.topic}"
[event_log.kafka.admin]
partition_count = {count}
replication_factor = {self.replicas}
{security}
"""
        overrides = [f"{key}={value}" for key, value in (settings or {}).items()]
        return config.parse(text, overrides)

    @asynccontextmanager
    async def log(self, **configured: Any) -> AsyncIterator[EventLog]:
        """The event log alone, closed; its tasks end with the context."""
        async with asyncio.TaskGroup() as group:
            log = adapters.event_log_of(
                self.config(**configured),
                self.disk,
                SystemClock(),
                random.Random(1),
                spawn=lambda work, name: group.create_task(work, name=name),
            )
            try:
                yield log
            finally:
                await log.close()

    @asynccontextmanager
    async def manager(
        self, name: str = "a", *, fleet: FleetOptions | None = None, **configured: Any
    ) -> AsyncIterator[Manager]:
        """A manager that runs; leaving the context ends it as SIGKILL would: nothing is drained."""
        async with self.log(**configured) as log:
            manager = Manager(
                log=log,
                disk=self.disk,
                clock=SystemClock(),
                rng=random.Random(2),
                options=ManagerOptions(
                    state_dir=f"{self.home}/{name}", fleet=fleet or FleetOptions()
                ),
            )
            async with asyncio.TaskGroup() as group:
                task = group.create_task(manager.run(), name="manager")
                try:
                    yield manager
                finally:
                    task.cancel()
                    await asyncio.wait({task})


async def until(condition: Callable[[], object], seconds: float = 60, what: str = "") -> float:
    """Wait for a condition; return how long it took."""
    begun = time.perf_counter()
    while not condition():
        if time.perf_counter() - begun > seconds:
            raise AssertionError(f"not within {seconds} s: {what or condition}")
        await asyncio.sleep(0.01)
    return time.perf_counter() - begun


async def serving(manager: Manager, *partitions: TopicIdPartition, seconds: float = 60) -> float:
    """Announce partitions and wait until all of them are ready."""
    manager.replace_assignment(partitions, [])
    return await until(
        lambda: all(manager.lookups.is_ready(tp) for tp in partitions),
        seconds,
        f"ready: {[str(tp) for tp in partitions]}",
    )


def follower(manager: Manager, partition: int) -> Any:
    """Return the follower of a metadata partition."""
    return next(each for each in manager.followed() if each.partition == partition)


def segments(manager: Manager, tp: TopicIdPartition) -> dict[SegmentId, str]:
    """Return the state of each listed segment."""
    found = [records.decode(r) for r in manager.lookups.list_remote_log_segments(tp, None, BROKER)]
    return {each.segment_id: each.state.name for each in found}  # type: ignore[union-attr]  # listed


def segment_of(value: bytes) -> SegmentId:
    """Return the segment that an event speaks of."""
    segment_id: SegmentId = records.decode(value).segment_id  # type: ignore[union-attr]  # of one
    return segment_id


@dataclass(slots=True)
class Writer:
    """Copies segments one after another, as a broker does: it asks again until it is told."""

    manager: Manager
    tp: TopicIdPartition
    #: Where its segment ids begin, so that writers don't meet.
    base: int = 0
    #: Which segment of its partition it copies first, so that later writers go on behind it.
    first: int = 0
    acknowledged: list[int] = field(default_factory=list)
    #: The values that were sent, with how often.
    tried: dict[bytes, int] = field(default_factory=dict)
    errors: list[RlmmError] = field(default_factory=list)
    #: How often nobody could say what became of a value.
    unknown: dict[bytes, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    async def copy(self, number: int) -> None:
        """Write both events of a segment, asking again as long as that is allowed."""
        await self._put(events.started(self.base + number, number * 10, number * 10 + 9, self.tp))
        await self._put(events.updated(self.base + number, tp=self.tp))
        self.acknowledged.append(self.base + number)

    async def _put(self, value: bytes) -> None:
        add = records.peek(value) == records.ApiKey.SEGMENT_METADATA
        while True:
            self.tried[value] = self.tried.get(value, 0) + 1
            tried_by_all.add(segment_of(value))
            begun = time.perf_counter()
            try:
                async with asyncio.timeout(15):
                    await (self.manager.events.add if add else self.manager.events.update)(
                        value, BROKER
                    )
            except (UnavailableError, TimeoutError) as error:
                if isinstance(error, RlmmError):
                    self.errors.append(error)
                if isinstance(error, OutcomeUnknown | TimeoutError):
                    self.unknown[value] = self.unknown.get(value, 0) + 1
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self.seconds.append(time.perf_counter() - begun)
                return

    async def forever(self) -> None:
        """Copy until cancelled."""
        number = self.first + len(self.acknowledged)
        while True:
            await self.copy(number)
            number += 1

    @asynccontextmanager
    async def writing(self) -> AsyncIterator["Writer"]:
        """Copy in the background."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.forever())
            try:
                yield self
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def more(self, count: int, seconds: float = 60) -> float:
        """Wait until so many further segments are acknowledged; return how long it took."""
        goal = len(self.acknowledged) + count
        return await until(
            lambda: len(self.acknowledged) >= goal, seconds, f"{count} more acknowledged copies"
        )

    def check(self, rig: KafkaRig) -> None:
        """All that was acknowledged is there, once; what is unknown is there as often as asked.

        And nothing is there that nobody asked for.
        """
        known = segments(self.manager, self.tp)
        for number in self.acknowledged:
            assert known.get(events.segment_id(number)) == "COPY_SEGMENT_FINISHED", number
        written: dict[bytes, int] = {}
        for partition, offset, value in rig.probe.dump(rig.topic):
            if value in self.tried:
                written[value] = written.get(value, 0) + 1
            elif value is not None and value not in rig.probe.produced:
                # Repairs write in their own words; of whose segments, is what counts.
                ghost = f"a ghost at {partition}/{offset}: {value.hex()}"
                assert segment_of(value) in tried_by_all, ghost
        for value, times in written.items():
            assert times <= 1 + self.unknown.get(value, 0), f"{value.hex()} is there {times} times"


def in_partition(rig: KafkaRig, partition: int) -> list[bytes | None]:
    """Return the values of one metadata partition."""
    return [value for number, _, value in rig.probe.dump(rig.topic) if number == partition]


P0, P1, P2, P3 = (MetadataPartition(number) for number in range(COUNT))
