"""The smallest event log that keeps its promises: the machine's own test piece.

One file per partition, one line per record, one sync per append. The tests plant bugs in it and
see that the simulation finds each of them; what the product's log does better does not matter.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Collection, Mapping

from rlmm_daemon.domain.errors import Draining, OutcomeUnknown
from rlmm_daemon.domain.ids import MetadataPartition, TopicId
from rlmm_daemon.ports.disk import Disk, DiskFile
from rlmm_daemon.ports.event_log import EpochEnd, LogBatch, LogIdentity, LogMissing, LogRange

DIRECTORY = "/toy"


class ToyLog:
    """`ports.event_log.EventLog` as far as one process per life needs it."""

    def __init__(self, disk: Disk, partitions: int) -> None:
        self._disk = disk
        self._partitions = partitions
        self._files: dict[int, DiskFile] = {}
        self._lines: dict[int, list[tuple[int, bytes]]] = {}
        self._position: dict[int, int] = {}
        self._lock = asyncio.Lock()
        self._epoch = 0
        self._broken = False
        self.identity: LogIdentity | None = None

    async def open(self, *, create: bool) -> LogIdentity:
        if not create and not await self._disk.exists(f"{DIRECTORY}/epoch"):
            raise LogMissing
        await self._disk.make_directory(DIRECTORY)
        for partition in range(self._partitions):
            await self._recover(partition)
        known = [epoch for lines in self._lines.values() for epoch, _ in lines]
        self._epoch = max([*known, await self._stored_epoch()]) + 1
        await self._disk.write_atomically(f"{DIRECTORY}/epoch", str(self._epoch).encode())
        topic_id = TopicId(b"toy".ljust(16))
        self.identity = LogIdentity(
            cluster_id=None, topic_id=topic_id, partition_count=self._partitions
        )
        return self.identity

    async def _stored_epoch(self) -> int:
        try:
            return int(await self._disk.read(f"{DIRECTORY}/epoch"))
        except FileNotFoundError:
            return 0

    async def _recover(self, partition: int) -> None:
        path = f"{DIRECTORY}/{partition}"
        file = await self._disk.open(path, write=True, create=True)
        data = await self._disk.read(path)
        self._lines[partition], end = _parse(data)
        await self._write(file, 0, data[:end])  # what looks clean may never have landed
        await file.truncate(end)
        await file.fdatasync()
        await self._disk.fsync_directory(DIRECTORY)
        self._files[partition], self._position[partition] = file, end

    async def append(self, partition: MetadataPartition, value: bytes) -> int:
        return await asyncio.shield(self._spawn(self._append(partition, value)))

    def _spawn(self, work):
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _append(self, partition: MetadataPartition, value: bytes) -> int:
        async with self._lock:
            if self._broken or self.identity is None:
                raise Draining
            line = _line(self._epoch, value)
            try:
                await self._write(self._files[partition], self._position[partition], line)
                await self._files[partition].fdatasync()
            except OSError as error:
                self._broken = True  # a restart sorts it out
                raise OutcomeUnknown from error
            self._position[partition] += len(line)
            self._lines[partition].append((self._epoch, value))
            return len(self._lines[partition]) - 1

    async def _write(self, file: DiskFile, offset: int, data: bytes) -> None:
        written = 0
        while written < len(data):
            written += await file.pwrite(offset + written, data[written:])

    async def end_offsets(
        self, partitions: Collection[MetadataPartition]
    ) -> Mapping[MetadataPartition, LogRange]:
        return {each: self._range(each) for each in partitions}

    def _range(self, partition: MetadataPartition) -> LogRange:
        return LogRange(start=0, end=len(self._lines[partition]))

    async def epoch_end(self, partition: MetadataPartition, epoch: int) -> EpochEnd:
        offsets = [at for at, (each, _) in enumerate(self._lines[partition]) if each <= epoch]
        if not offsets:
            return EpochEnd(epoch=-1, end_offset=-1)
        return EpochEnd(epoch=self._lines[partition][offsets[-1]][0], end_offset=offsets[-1] + 1)

    async def follow(
        self, partition: MetadataPartition, from_offset: int, *, epoch: int
    ) -> AsyncGenerator[LogBatch, None]:
        while self.identity is not None:
            lines = self._lines[partition][from_offset : from_offset + 1]
            records = tuple(enumerate((value for _, value in lines), from_offset))
            from_offset += len(records)
            epoch = lines[-1][0] if lines else epoch
            yield LogBatch(
                next_offset=from_offset,
                leader_epoch=epoch,
                records=records,
                range=self._range(partition),
            )
            if not lines:
                await asyncio.sleep(0.01)
        raise Draining

    async def close(self) -> None:
        async with self._lock:
            self.identity = None


def _line(epoch: int, value: bytes) -> bytes:
    body = f"{epoch} ".encode() + value
    return f"{zlib.crc32(body):08x} ".encode() + body + b"\n"


def _parse(data: bytes) -> tuple[list[tuple[int, bytes]], int]:
    lines: list[tuple[int, bytes]] = []
    end = 0
    for line in data.splitlines(keepends=True):
        body = line[9:-1]
        if not line.endswith(b"\n") or line[:9] != f"{zlib.crc32(body):08x} ".encode():
            break
        epoch, _, value = body.partition(b" ")
        lines.append((int(epoch), value))
        end += len(line)
    return lines, end
