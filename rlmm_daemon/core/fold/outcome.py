"""Outcomes of records that were applied, and of writes that would be: two closed unions.

An outcome is made for every record of a replay, so it holds the bytes and decodes only when asked.
"""

import msgspec

from rlmm_daemon.codec import records
from rlmm_daemon.codec.record_writing import Record
from rlmm_daemon.domain.errors import RefusedError
from rlmm_daemon.domain.ids import TopicIdPartition
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentState

State = SegmentState | PartitionDeleteState


class _OfEvent(msgspec.Struct, frozen=True, gc=False):
    value: bytes
    partition: TopicIdPartition

    @property
    def event(self) -> Record:
        """What the record says."""
        return records.decode(self.value)


class Applied(_OfEvent, frozen=True, gc=False):
    """The event changed the fold."""

    #: Of the segment or of the partition's deletion; None if there was none.
    previous_state: State | None


class Repeated(_OfEvent, frozen=True, gc=False):
    """The event is legal and changed nothing."""


class Rejected(_OfEvent, frozen=True, gc=True):
    """The event was read and dropped, as every broker drops it."""

    error: RefusedError


class Unreadable(msgspec.Struct, frozen=True):
    """The record is no event of this metadata partition; it was passed over."""

    #: A key of the fold's counter, for example `tombstone`.
    reason: str
    #: The first bytes; empty for a tombstone.
    head_hex: str


class Deferred(_OfEvent, frozen=True, gc=False):
    """The record is about a user partition that sleeps; it is applied when somebody asks."""


Outcome = Applied | Deferred | Repeated | Rejected | Unreadable


class Accept(msgspec.Struct, frozen=True):
    """The write is legal now: append it."""


class Repeat(msgspec.Struct, frozen=True):
    """The fold holds this already: answer success, append nothing."""


Verdict = Accept | Repeat
ACCEPT = Accept()
REPEAT = Repeat()
