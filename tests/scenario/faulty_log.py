"""A memory log that answers only some of what it is asked, as a log does on a bad day."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import EpochEnd, LogBatch, LogIdentity, LogRange, NoTopicId
from tests.support.memory_log import MemoryEventLog, MemoryLogStore


@dataclass(slots=True)
class Withheld:
    """What the log keeps back; it outlives the daemon."""

    #: Where each partition ends.
    ends: bool = False
    #: Where an epoch ends: the question is never answered.
    epochs: bool = False
    #: Records from this offset on; heartbeats come.
    records_from: int | None = None
    #: Whatever is read, with this reason.
    reads: str | None = None
    #: The topic's id.
    name: bool = False


class FaultyLog(MemoryEventLog):
    """One manager's connection to a store that withholds."""

    def __init__(self, store: MemoryLogStore, withheld: Withheld) -> None:
        super().__init__(store)
        self._withheld = withheld

    async def open(self, *, create: bool) -> LogIdentity:
        if self._withheld.name:
            raise NoTopicId("__remote_log_metadata")
        return await super().open(create=create)

    async def end_offsets(
        self, partitions: Collection[MetadataPartition]
    ) -> Mapping[MetadataPartition, LogRange]:
        return {} if self._withheld.ends else await super().end_offsets(partitions)

    async def epoch_end(self, partition: MetadataPartition, epoch: int) -> EpochEnd:
        if self._withheld.epochs:
            await asyncio.Event().wait()
        return await super().epoch_end(partition, epoch)

    async def follow(
        self, partition: MetadataPartition, from_offset: int, *, epoch: int
    ) -> AsyncGenerator[LogBatch, None]:
        if self._withheld.reads is not None:
            raise StorageUnavailable(self._withheld.reads)
        position = from_offset
        batches = super().follow(partition, from_offset, epoch=epoch)
        async with aclosing(batches):
            async for batch in batches:
                limit = self._withheld.records_from
                if limit is not None and batch.next_offset > limit:
                    position = max(position, limit)
                    yield LogBatch(
                        next_offset=position,
                        leader_epoch=batch.leader_epoch,
                        records=tuple(each for each in batch.records if each[0] < limit),
                        range=batch.range,
                    )
                    while self._withheld.records_from is not None:
                        await asyncio.sleep(1.0)
                        yield LogBatch(
                            next_offset=position,
                            leader_epoch=batch.leader_epoch,
                            records=(),
                            range=batch.range,
                        )
                    return
                position = batch.next_offset
                yield batch
