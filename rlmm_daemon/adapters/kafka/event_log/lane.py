"""A metadata partition's way into the topic: what waits, what is under way, and as whom.

Each partition is an idempotent producer of its own, so that what ends one says nothing about its
neighbours. At most one batch of a lane is on its way; it keeps its producer id, epoch and sequence
through every retry, and the sequence moves on only when its fate is known to be "written".
"""

from collections import deque
from typing import Final

import msgspec
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from rlmm_daemon.domain.errors import OutcomeUnknown, RlmmError
from rlmm_daemon.domain.ids import MetadataPartition, TopicId
from rlmm_daemon.ports.event_log import Told

BATCH_RECORDS_MAX: Final = 5_000
_MAGIC: Final = 2
_SEQUENCES: Final = 2**31
#: What one record costs beyond its value, at most.
_RECORD_OVERHEAD: Final = 21


class ProducerIdentity(msgspec.Struct, frozen=True):
    """What the brokers know an idempotent producer by."""

    producer_id: int
    producer_epoch: int


class QueuedRecord(msgspec.Struct, eq=False):
    """One record and whoever is to be told of it."""

    value: bytes
    tell: Told
    #: On the loop's clock: when its fate has to be known.
    deadline: float


class QueuedBatch(msgspec.Struct, eq=False):
    """Records that share a fate."""

    data: bytes
    entries: list[QueuedRecord]
    #: Some attempt ended without the leader's word that nothing was written.
    maybe_written: bool = False

    @property
    def deadline(self) -> float:
        """When the oldest record's fate has to be known."""
        return self.entries[0].deadline


class Lane(msgspec.Struct, eq=False):
    """The records of one partition, in the order in which they were appended."""

    partition: MetadataPartition
    #: A topic that is created again gets new lanes: nothing meant for the old one enters it.
    topic_id: TopicId
    batch_bytes_max: int
    waiting: deque[QueuedRecord] = msgspec.field(default_factory=deque)
    batch: QueuedBatch | None = None
    identity: ProducerIdentity | None = None
    sequence: int = 0
    #: Queued at a sender, being sent, or waiting for another attempt or for more records.
    busy: bool = False
    #: Waiting for more records.
    gathering: bool = False
    failures: int = 0
    #: Behind the last batch that was written.
    end: int = 0
    #: How far a follower here has read and taken in; None: nobody follows.
    read: int | None = None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to be sent."""
        return self.batch is None and not self.waiting

    @property
    def ripe(self) -> bool:
        """Whether as much waits as was written and not read back yet.

        Writers come again once theirs was read back, in the pieces in which they hear of it. Sent
        one by one, the pieces stay as small for ever, and each costs a request, an answer to the
        follower and a wake-up of everybody. Like this, many writers fall into two halves: one on
        its way in, the other on its way back. One writer alone never waits.
        """
        return self.read is None or len(self.waiting) >= self.end - self.read

    def next_batch(self, now_ms: int) -> QueuedBatch | None:
        """Return the batch to send: the one under way again, else one of what waits."""
        if self.batch is None and self.waiting:
            assert self.identity is not None, "asked for before"
            entries = self._take()
            self.batch = QueuedBatch(self._encode(entries, self.identity, now_ms), entries)
        return self.batch

    def written(self, base_offset: int) -> None:
        """The leader named the offset of the batch's first record."""
        batch = self._leave()
        self.sequence = (self.sequence + len(batch.entries)) % _SEQUENCES
        self.end = base_offset + len(batch.entries)
        for index, entry in enumerate(batch.entries):
            entry.tell(base_offset + index)

    def refused(self, error: RlmmError) -> None:
        """Nothing of the batch was written, nor ever will be."""
        for entry in self._leave().entries:
            entry.tell(error)

    def lost(self, reason: str) -> None:
        """Nobody can tell what became of the batch: this producer ends here.

        The next batch comes from a new one; a late copy of this batch may still be written.
        """
        self.identity, self.sequence = None, 0
        for entry in self._leave().entries:
            entry.tell(OutcomeUnknown(reason))

    def restart(self) -> None:
        """Nothing of the batch was written, and its producer is used up: begin again as another."""
        assert self.batch is not None, "there is a batch under way"
        self.identity, self.sequence = None, 0
        self.put_back()

    def put_back(self) -> None:
        """Nothing of the batch was written: let it be cut anew."""
        self.waiting.extendleft(reversed(self._leave().entries))

    def expire(self, now: float) -> list[QueuedRecord]:
        """Take out and return what waited past its deadline and was never sent."""
        gone = []
        while self.waiting and self.waiting[0].deadline <= now:
            gone.append(self.waiting.popleft())
        return gone

    def _leave(self) -> QueuedBatch:
        batch, self.batch = self.batch, None
        assert batch is not None, "there is a batch under way"
        self.failures = 0
        return batch

    def _take(self) -> list[QueuedRecord]:
        entries = [self.waiting.popleft()]
        size = len(entries[0].value)
        while self.waiting and len(entries) < BATCH_RECORDS_MAX:
            size += len(self.waiting[0].value) + _RECORD_OVERHEAD
            if size > self.batch_bytes_max:
                break
            entries.append(self.waiting.popleft())
        return entries

    def _encode(
        self, entries: list[QueuedRecord], identity: ProducerIdentity, now_ms: int
    ) -> bytes:
        size = sum(len(entry.value) + 2 * _RECORD_OVERHEAD for entry in entries) + 1024
        builder = DefaultRecordBatchBuilder(
            _MAGIC, 0, 0, identity.producer_id, identity.producer_epoch, self.sequence, size
        )
        for index, entry in enumerate(entries):
            added = builder.append(index, timestamp=now_ms, key=None, value=entry.value, headers=[])
            assert added is not None, "the builder was given room for all"
        return bytes(builder.build())
