"""SIGKILL at random moments under load: what was acknowledged is there after every restart.

The daemons are real processes on real files. A round ends at a drawn number of acknowledgements
and some drawn microseconds, with eight writers and two copies in the middle of something.
"""

import asyncio
import random
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from rlmm_daemon.client import AsyncClient, Client, ClientOptions
from rlmm_daemon.domain.errors import DaemonUnreachable, OutcomeUnknown, ProtocolViolation, TimedOut
from rlmm_daemon.domain.ids import BrokerId, LeaderEpoch, Offset, SegmentId, TopicId
from rlmm_daemon.domain.ids import TopicIdPartition as Partition
from rlmm_daemon.domain.segment import (
    CustomMetadata,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
)
from tests.support import kafka_segments, quorum_daemons
from tests.support.daemon_process import DaemonProcess
from tests.support.fork_server import ForkServer
from tests.support.kafka_segments import KafkaSegment

ROUNDS: Final = 10
WRITERS: Final = 8
COPIERS: Final = 2
ACKNOWLEDGED_MAX: Final = 150
JITTER_SECONDS: Final = 0.003
SNAPSHOT_SHARE: Final = 0.02
STARTED = SegmentState.COPY_SEGMENT_STARTED
FINISHED = SegmentState.COPY_SEGMENT_FINISHED
DELETING = SegmentState.DELETE_SEGMENT_STARTED
#: What an operation of the writers makes of a segment; None: it is gone.
NEXT: Final = {None: STARTED, STARTED: FINISHED, FINISHED: DELETING, DELETING: None}
SETTINGS: Final = {
    "event_log.partition_count": 3,
    "event_log.segment_bytes": 1024 * 1024,
}


@dataclass(slots=True)
class Ledger:
    """What the daemon must know: the states that each segment may be in."""

    partitions: list[Partition]
    states: dict[SegmentId, set[SegmentState | None]] = field(default_factory=dict)
    segments: dict[SegmentId, SegmentMetadata] = field(default_factory=dict)
    copies: dict[SegmentId, KafkaSegment] = field(default_factory=dict)
    acknowledged: int = 0

    def compare(self, client: Client) -> None:
        """Hold what the daemon lists against it; what was seen once must stay."""
        seen = {
            segment.segment_id: segment
            for partition in self.partitions
            for segment in client.list_remote_log_segments(partition)
        }
        assert seen.keys() <= self.states.keys()
        for segment_id, allowed in self.states.items():
            found = seen.get(segment_id)
            state = None if found is None else found.state
            assert state in allowed, f"{segment_id.hex()} is {state}, not one of {allowed}"
            self.states[segment_id] = {state}
            if found is not None:
                self._compare_fields(found)

    def _compare_fields(self, found: SegmentMetadata) -> None:
        written = self.segments[found.segment_id]
        same = replace(
            found,
            state=written.state,
            event_timestamp_ms=written.event_timestamp_ms,
            custom_metadata=written.custom_metadata,
        )
        assert same == written
        if found.segment_id not in self.copies and found.state is not STARTED:
            assert found.custom_metadata == custom_of(found)


@dataclass(slots=True)
class Load:
    """One round's writers and copiers."""

    ledger: Ledger
    client: AsyncClient
    luck: random.Random
    enough: int
    pattern: list[KafkaSegment]
    done: asyncio.Event = field(default_factory=asyncio.Event)
    #: A copy was finished, and is not deleted again.
    kept: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self) -> None:
        """Take segments through their life, one operation after another, until the daemon dies."""
        mine: list[SegmentId] = []
        while True:
            if self.luck.random() < SNAPSHOT_SHARE:
                await self.client.snapshot_now()
            segment_id = self.luck.choice([*mine[-5:], None])
            if segment_id is None or self.ledger.states[segment_id] == {None}:
                segment_id = self._new()
                mine.append(segment_id)
            (state,) = self.ledger.states[segment_id]
            if state is FINISHED and self.luck.random() < 0.7:
                continue
            target = NEXT[state]
            async with self._operation(segment_id, {target}):
                await self._step(segment_id, target)

    async def repeat(self, segment_id: SegmentId) -> None:
        """Ask again for the state that a segment is in: it succeeds and changes nothing."""
        (state,) = self.ledger.states[segment_id]
        async with self._operation(segment_id, {state}):
            await self._step(segment_id, state)

    async def copy(self) -> None:
        """Copy and delete real segments, whole jobs."""
        while True:
            segment = self._new_copy()
            segment_id = segment.metadata.segment_id
            async with self._operation(segment_id, {STARTED, FINISHED}, certain=FINISHED):
                await self.client.copy_segment(segment.metadata, segment.files)
            if self.luck.random() < 0.5:
                async with self._operation(segment_id, {DELETING, None}, certain=None):
                    await self.client.delete_segment(segment.metadata.partition, segment_id)
            else:
                self.kept.set()

    @asynccontextmanager
    async def _operation(
        self,
        segment_id: SegmentId,
        targets: set[SegmentState | None],
        certain: SegmentState | None = STARTED,
    ) -> AsyncIterator[None]:
        before = self.ledger.states[segment_id]
        self.ledger.states[segment_id] = before | targets
        try:
            yield
        except DaemonUnreachable:
            self.ledger.states[segment_id] = before  # nothing was sent
            raise
        self.ledger.states[segment_id] = targets if len(targets) == 1 else {certain}
        self.ledger.acknowledged += 1
        self.enough -= 1
        if self.enough <= 0:
            self.done.set()

    def _step(self, segment_id: SegmentId, target: SegmentState | None) -> Awaitable[None]:
        segment = self.ledger.segments[segment_id]
        if target is STARTED:
            return self.client.add_remote_log_segment_metadata(segment)
        return self.client.update_remote_log_segment_metadata(
            SegmentUpdate(
                partition=segment.partition,
                segment_id=segment_id,
                broker_id=segment.broker_id,
                event_timestamp_ms=segment.event_timestamp_ms + 1,
                custom_metadata=custom_of(segment),
                state=SegmentState.DELETE_SEGMENT_FINISHED if target is None else target,
            )
        )

    def _new(self) -> SegmentId:
        number = len(self.ledger.states)
        segment = SegmentMetadata(
            partition=self.luck.choice(self.ledger.partitions),
            segment_id=SegmentId(self.luck.randbytes(16)),
            start_offset=Offset(number * 100),
            end_offset=Offset(number * 100 + 99),
            broker_id=BrokerId(1),
            max_timestamp_ms=number,
            event_timestamp_ms=_now_ms(),
            segment_leader_epochs={LeaderEpoch(number // 50): Offset(number * 100)},
            segment_size_bytes=1000 + number,
        )
        return self._enter(segment)

    def _new_copy(self) -> KafkaSegment:
        pattern = self.luck.choice(self.pattern)
        fresh = SegmentId(self.luck.randbytes(16))
        # An epoch of its own: where another copy holds the same offsets the cleaner may end one.
        epoch = LeaderEpoch(1_000 + len(self.ledger.copies))
        metadata = replace(
            pattern.metadata,
            segment_id=fresh,
            event_timestamp_ms=_now_ms(),
            segment_leader_epochs={epoch: pattern.metadata.start_offset},
        )
        segment = replace(pattern, metadata=metadata)
        self.ledger.copies[self._enter(segment.metadata)] = segment
        return segment

    def _enter(self, segment: SegmentMetadata) -> SegmentId:
        self.ledger.segments[segment.segment_id] = segment
        self.ledger.states[segment.segment_id] = {None}
        return segment.segment_id


def custom_of(segment: SegmentMetadata) -> CustomMetadata:
    return CustomMetadata(segment.segment_id[:4])


async def load_and_kill(
    daemon: DaemonProcess, ledger: Ledger, luck: random.Random, pattern: list[KafkaSegment]
) -> None:
    options = ClientOptions(reconnect_seconds=0.01, timeout_seconds=30)
    async with AsyncClient(daemon.socket_path, options) as client:
        load = Load(ledger, client, luck, luck.randint(1, ACKNOWLEDGED_MAX), pattern)
        alive = [key for key, states in ledger.states.items() if states != {None}]
        plain = [key for key in alive if key not in ledger.copies]
        for segment_id in luck.sample(plain, min(5, len(plain))):
            await load.repeat(segment_id)
        copies = [load.copy] * COPIERS if pattern else []
        async with asyncio.TaskGroup() as tasks:
            for work in [load.write] * WRITERS + copies:
                tasks.create_task(dies_with_the_daemon(work()))
            await load.done.wait()
            if copies and not copied_for_good(ledger):
                await load.kept.wait()  # so that there is one to fetch in the end
            await asyncio.sleep(luck.uniform(0, JITTER_SECONDS))  # any moment will do
            daemon.kill()


async def dies_with_the_daemon(work: Awaitable[None]) -> None:
    with suppress(DaemonUnreachable, OutcomeUnknown, ProtocolViolation, TimedOut):
        await work


@pytest.mark.parametrize(
    ("seed", "kind"), [*((seed, "embedded") for seed in range(5)), (0, "quorum")]
)
def test_what_was_acknowledged_survives_every_kill(
    seed: int, kind: str, tmp_path: Path, forks: ForkServer
) -> None:
    luck = random.Random(f"crash-{seed}")
    settings = SETTINGS if kind == "embedded" else quorum_daemons.of_one(tmp_path)
    daemon = DaemonProcess(tmp_path, settings, forks)
    placed = kafka_segments.place(daemon.log_dir)
    synthetic = [Partition(TopicId(bytes([n] * 16)), "events", n) for n in range(1, 5)]
    ledger = Ledger([*placed, *synthetic])
    pattern = [segment for several in placed.values() for segment in several]
    try:
        for _ in range(ROUNDS):
            daemon.start()
            with daemon.client() as client:
                ledger.compare(client)
            asyncio.run(load_and_kill(daemon, ledger, luck, pattern))
        daemon.start()
        with daemon.client() as client:
            ledger.compare(client)
            fetch_copies(client, ledger)
    finally:
        daemon.kill()
    assert ledger.acknowledged > ROUNDS * 10
    restarts_agree(daemon, ledger)


def copied_for_good(ledger: Ledger) -> list[SegmentId]:
    return [key for key in ledger.copies if ledger.states[key] == {FINISHED}]


def fetch_copies(client: Client, ledger: Ledger) -> None:
    """What was copied and not deleted comes back whole."""
    finished = copied_for_good(ledger)
    assert finished
    for segment_id in finished[-5:]:
        wanted = ledger.copies[segment_id]
        (stored,) = (
            segment
            for segment in client.list_remote_log_segments(wanted.metadata.partition)
            if segment.segment_id == segment_id
        )
        with client.fetch_log_segment(stored) as log:
            assert log.readall() == Path(f"{wanted.stem}.log").read_bytes()


def restarts_agree(daemon: DaemonProcess, ledger: Ledger) -> None:
    """Snapshot and tail come to what the whole log comes to."""
    snapshots = daemon.directory / "var" / "state" / "snapshots"
    assert list(snapshots.iterdir()), "no snapshot was written under load"
    assert b"snapshot rejected" not in daemon.output.read_bytes()
    answers = []
    for _ in ("with snapshots", "without"):
        daemon.start()
        with daemon.client() as client:
            answers.append([client.list_remote_log_segments(each) for each in ledger.partitions])
        daemon.kill()
        shutil.rmtree(snapshots)
    assert answers[0] == answers[1]


def test_a_process_started_from_the_command_line_survives_a_kill_too(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path, SETTINGS)
    partition = Partition(TopicId(bytes(range(16))), "events", 0)
    ledger = Ledger([partition])
    with daemon:
        with daemon.client() as client:
            ledger.compare(client)
        asyncio.run(load_and_kill(daemon, ledger, random.Random("crash"), []))
        daemon.start()
        assert isinstance(daemon.process, subprocess.Popen)
        with daemon.client() as client:
            ledger.compare(client)
        assert daemon.stop() == 0


def _now_ms() -> int:
    """As of now: the cleaner goes on with a delete that hung for an hour."""
    return time.time_ns() // 1_000_000
