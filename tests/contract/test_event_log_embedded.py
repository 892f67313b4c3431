import asyncio
import errno
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog, EmbeddedOptions
from rlmm_daemon.adapters.event_log.embedded.repair import repair
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import EventLog, LogRange
from tests.contract.event_log import EventLogContract, spawning
from tests.unit.adapters.event_log.embedded.faulty_disk import FaultyDisk

OPTIONS = EmbeddedOptions(
    heartbeat_seconds=0.01, segment_bytes=1024, preallocate_bytes=512, probe_seconds=0.01
)


class EmbeddedHarness:
    def __init__(self, directory: Path, tasks: asyncio.TaskGroup, disk: LocalDisk) -> None:
        self.cannot = {
            "recreate": "the lock keeps anybody from recreating an open embedded log",
            "pass_over": "an embedded log holds events and nothing else",
        }
        self.directory = directory
        self.tasks = tasks
        self.disk = FaultyDisk(disk)
        self.log: EventLog = self._make()

    def _make(self, directory: Path | None = None) -> EmbeddedLog:
        return EmbeddedLog(
            disk=self.disk,
            clock=SystemClock(),
            spawn=lambda work, name: self.tasks.create_task(work, name=name),
            luck=random.Random(7),
            directory=str(directory or self.directory),
            partition_count=3,
            options=OPTIONS,
        )

    def files(self, partition: MetadataPartition) -> list[Path]:
        return sorted((self.directory / str(partition)).glob("*.log"))

    async def restart(self) -> None:
        await self.log.close()
        self.log = await self.second()

    async def second(self) -> EventLog:
        log = self._make()
        await log.open(create=True)
        return log

    def absent(self) -> EventLog:
        return self._make(self.directory.with_name("absent"))

    async def truncate(self, partition: MetadataPartition, end: int) -> None:
        """Cut it as a crash may: a clean stop would have left word of where it ended."""
        state = (self.directory / "state.json").read_bytes()
        await self.log.close()
        (self.directory / "state.json").write_bytes(state)
        kept = bytearray()
        for file in self.files(partition):
            data = file.read_bytes()
            while data and int.from_bytes(data[:8], "big") < end:
                size = 12 + int.from_bytes(data[8:12], "big")
                kept += data[:size]
                data = data[size:]
            file.unlink()
        (self.directory / str(partition) / f"{0:020}.log").write_bytes(kept)
        self.log = await self.second()

    async def trim(self, partition: MetadataPartition) -> int:
        await self.log.close()
        oldest, following, *_ = self.files(partition)
        oldest.unlink()
        self.log = await self.second()
        return int(following.stem)

    async def recreate(self) -> None:
        raise NotImplementedError

    async def put_tombstone(self, partition: MetadataPartition) -> int:
        await self.log.close()
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 10_000)
        builder.append(0, timestamp=1, key=None, value=None, headers=[])
        batch = bytearray(builder.build())
        batch[:8] = (1).to_bytes(8, "big")
        batch[12:16] = (1).to_bytes(4, "big")
        file = self.files(partition)[-1]
        file.write_bytes(file.read_bytes() + batch)
        self.log = await self.second()
        return 1

    async def lose(self, partition: MetadataPartition, offset: int) -> None:
        await self.log.close()
        for file in self.files(partition):
            data, at = bytearray(file.read_bytes()), 0
            while at < len(data):
                if int.from_bytes(data[at : at + 8], "big") == offset:
                    data[at + 70] ^= 1
                at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            file.write_bytes(data)
        log = self._make()
        await log.open(create=False)
        report = await repair(log, partition, [])
        assert report.lost == [LogRange(start=offset, end=offset + 1)]
        self.log = log

    async def pass_over(self, partition: MetadataPartition) -> None:
        raise NotImplementedError

    async def fail_next_append(self, partition: MetadataPartition) -> None:
        await self.log.append(partition, b"before")  # so that the next sync is a batch's
        self.disk.fail_next("fdatasync", errno.EIO)


class TestEmbeddedEventLog(EventLogContract):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[EmbeddedHarness]:
        disk = LocalDisk()
        async with spawning() as tasks:
            harness = EmbeddedHarness(tmp_path / "log", tasks, disk)
            await harness.log.open(create=True)
            yield harness
            await harness.log.close()
        disk.close()
