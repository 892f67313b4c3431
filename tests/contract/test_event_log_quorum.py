"""The event-log contract on a quorum, over real sockets: of one, of three, and behind them."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.quorum.event_log import QuorumLog, QuorumLogOptions
from rlmm_daemon.adapters.quorum.files.replica_files import ReplicaFiles
from rlmm_daemon.adapters.quorum.replica import ReplicaOptions
from rlmm_daemon.adapters.quorum.submitting import Record
from rlmm_daemon.codec import batches
from rlmm_daemon.codec.kraft.record_key import read_key
from rlmm_daemon.core.quorum_log.fold import AcceptedEvent, LogFold
from rlmm_daemon.core.raft.roles import Timing
from rlmm_daemon.domain.errors import OutcomeUnknown
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import EventLog
from tests.contract.event_log import EventLogContract, spawning
from tests.support.quorum import LISTENER, TOPIC, TOPIC_ID, Quorum

#: Soon elected, and not again because the machine has other things to do.
TIMING = Timing(election=100, fetch=20_000)
OPTIONS = QuorumLogOptions(
    heartbeat_seconds=0.01,
    retry_seconds=0.01,
    chunk_bytes=256,
    cache_bytes=512,
)
#: A checkpoint is made after each record, if the one before is done by then.
CHECKPOINTS = msgspec.structs.replace(OPTIONS, checkpoint_bytes_min=1, checkpoint_factor=0.0)


class QuorumHarness:
    """The log of one replica; the other ones run beside it, and nothing more."""

    def __init__(
        self,
        quorum: Quorum,
        mine: int,
        tasks: asyncio.TaskGroup,
        options: QuorumLogOptions = OPTIONS,
    ) -> None:
        self.cannot = {
            "trim": "a quorum's log begins at 0 for good",
            "recreate": "a replica belongs to one log; what is formatted anew is another directory",
            "lose": "what a replica's disk lost others have: it refuses, and is made anew",
            "pass_over": "a partition's offsets count its events, whatever else the log holds",
        }
        if options is CHECKPOINTS:
            self.cannot["truncate"] = "what a checkpoint holds can be cut out of no log"
        self.options = options
        self.quorum = quorum
        self.mine = mine
        self.tasks = tasks
        #: Of one, formatted, whose log nobody began.
        self.other = Quorum(quorum.home / "other", 1, 0, TIMING)
        self.log: EventLog = self._make(mine)

    def _make(self, number: int) -> QuorumLog:
        return self._of(self.quorum, number)

    def _of(self, quorum: Quorum, number: int) -> QuorumLog:
        others = [n for n in range(1, quorum.count + 1) if n != number]
        return QuorumLog(
            disk=quorum.disk,
            clock=SystemClock(),
            spawn=lambda work, name: self.tasks.create_task(work, name=name),
            luck=random.Random(),
            replica=ReplicaOptions(
                directory=str(quorum.directory(number)),
                topic=TOPIC,
                topic_id=TOPIC_ID,
                port=quorum.ports[number],
                listener=LISTENER,
                bootstrap=tuple(quorum.address(n) for n in others),
                timing=quorum.timing,
            ),
            partition_count=3,
            options=self.options,
        )

    async def open(self) -> None:
        for number in self.quorum.ports:
            await self.quorum.format(number)
        await self.other.format(1)
        await self.start_others()
        await self.log.open(create=True)

    async def start_others(self) -> None:
        for number in range(1, self.quorum.count + 1):
            if number != self.mine:
                await self.quorum.start(number)

    async def close(self) -> None:
        await self.log.close()
        await self.other.close()

    async def restart(self) -> None:
        await self.log.close()
        self.log = self._make(self.mine)
        await self.log.open(create=False)

    async def second(self) -> EventLog:
        observer = self._make(max(self.quorum.ports))
        await observer.open(create=False)
        return observer

    def absent(self) -> EventLog:
        return self._of(self.other, 1)

    async def truncate(self, partition: MetadataPartition, end: int) -> None:
        """As if most disks had lost what they acknowledged: every replica's log is cut there."""
        await self.log.close()
        numbers = [self.mine, *self.quorum.nodes]
        for number in tuple(self.quorum.nodes):
            await self.quorum.stop(number)
        for number in numbers:
            await self._cut(str(self.quorum.directory(number)), partition, end)
        await self.start_others()
        self.log = self._make(self.mine)
        await self.log.open(create=False)

    async def _cut(self, directory: str, partition: MetadataPartition, end: int) -> None:
        files = await ReplicaFiles.open(self.quorum.disk, directory, topic=TOPIC, topic_id=TOPIC_ID)
        fold, at = LogFold(), 0
        while at < files.log.end:
            for batch in batches.split(await files.read(at, files.log.end, 1 << 20)):
                at = batch.base_offset + batch.last_offset_delta + 1
                for offset, key, value in batches.keyed_records_of(batch):
                    outcome = None
                    if not batch.is_control:
                        outcome = fold.apply(batch.leader_epoch, read_key(key), value)
                    if outcome == AcceptedEvent(partition, end):
                        await files.truncate(offset)
                        await files.close()
                        return
        raise AssertionError("it has that many events")

    async def trim(self, partition: MetadataPartition) -> int:
        raise NotImplementedError

    async def recreate(self) -> None:
        raise NotImplementedError

    async def lose(self, partition: MetadataPartition, offset: int) -> None:
        raise NotImplementedError

    async def pass_over(self, partition: MetadataPartition) -> None:
        raise NotImplementedError

    async def put_tombstone(self, partition: MetadataPartition) -> int:
        assert isinstance(self.log, QuorumLog)
        told: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.log.submitter.begin(partition, None, told.set_result)
        offset = await told
        assert isinstance(offset, int)
        return offset

    async def fail_next_append(self, partition: MetadataPartition) -> None:  # noqa: ARG002 - all are one log
        """What is sent is held up until it was given up; then it arrives before all else."""
        assert isinstance(self.log, QuorumLog)
        submitter, leader = self.log.submitter, self.log._leader
        assert leader is not None
        submitter._options = msgspec.structs.replace(self.options, delivery_timeout_seconds=0.2)
        submit, begin, held = leader.submit, submitter.begin, list[Sequence[Record]]()
        given_up = asyncio.Event()

        async def held_up(records: Sequence[Record]) -> int:
            if not given_up.is_set():
                held.append(records)
                raise OutcomeUnknown("its answer was lost")
            while held:
                with suppress(OutcomeUnknown):
                    await submit(held.pop(0))
            return await submit(records)

        def begun(partition: int, value: bytes | None, told: object) -> None:
            assert callable(told)
            submitter.begin = begin  # type: ignore[method-assign]  # one is enough

            def heard(outcome: object) -> None:
                submitter._options = self.options
                given_up.set()
                told(outcome)

            begin(partition, value, heard)

        leader.submit = held_up  # type: ignore[method-assign]  # the wire, on a bad day
        submitter.begin = begun  # type: ignore[method-assign]  # to see it given up


@asynccontextmanager
async def harnessed(
    home: Path,
    *,
    voters: int,
    mine: int,
    observers: int = 1,
    options: QuorumLogOptions = OPTIONS,
) -> AsyncIterator[QuorumHarness]:
    quorum = Quorum(home, voters, observers, TIMING)
    async with spawning() as tasks:
        harness = QuorumHarness(quorum, mine, tasks, options)
        try:
            await harness.open()
            yield harness
        finally:
            await harness.close()
            await quorum.close()


class TestQuorumOfOne(EventLogContract):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[QuorumHarness]:
        async with harnessed(tmp_path, voters=1, mine=1) as harness:
            yield harness


class TestQuorumOfThree(EventLogContract):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[QuorumHarness]:
        async with harnessed(tmp_path, voters=3, mine=2) as harness:
            yield harness


class TestObserverOfThree(EventLogContract):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[QuorumHarness]:
        async with harnessed(tmp_path, voters=3, mine=4, observers=2) as harness:
            yield harness


class TestQuorumOfOneWithCheckpoints(EventLogContract):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[QuorumHarness]:
        async with harnessed(tmp_path, voters=1, mine=1, options=CHECKPOINTS) as harness:
            yield harness


class TestObserverOfThreeWithCheckpoints(EventLogContract):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[QuorumHarness]:
        how = {"voters": 3, "mine": 4, "observers": 2}
        async with harnessed(tmp_path, **how, options=CHECKPOINTS) as harness:
            yield harness
