"""The manager as copier and fetcher need it: a segment's state, and the three events of a job."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec.structs import replace

from rlmm_daemon.codec import records
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.outcome import Outcome
from rlmm_daemon.core.fold.validation import read_offered
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import BrokerId, SegmentId, TopicIdPartition
from rlmm_daemon.domain.segment import (
    CustomMetadata,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
)

DeleteStarted = Callable[[TopicIdPartition, SegmentId], None]


class SegmentLog(Protocol):
    """The manager's face towards storage. Waits are bounded by the caller's deadline."""

    #: Told of each DELETE_SEGMENT_STARTED that was applied.
    on_delete_started: list[DeleteStarted]
    #: Told of one whose user partition sleeps: it is applied once somebody asks for the partition.
    on_delete_put_aside: list[DeleteStarted]

    async def add(self, record: bytes, caller: Caller) -> None:
        """Append COPY_SEGMENT_STARTED and return after its apply; a repeat succeeds."""

    async def update(self, record: bytes, caller: Caller) -> None:
        """Append an update and return after its apply; a repeat succeeds."""

    async def update_if(
        self,
        record: bytes,
        holds: Callable[[PartitionCache], bool],
        timeout_seconds: float,
        *,
        inside: bool = False,
    ) -> Outcome | None:
        """Append an update if something holds just before; return what its apply came to."""

    def fence(
        self, tp: TopicIdPartition, segment_id: SegmentId, timeout_seconds: float
    ) -> AbstractAsyncContextManager[None]:
        """Refuse updates of a segment, but those `inside`, from a fold that holds all there is."""

    def keep_followed(self, tp: TopicIdPartition) -> AbstractAsyncContextManager[None]:
        """Keep the metadata partition followed meanwhile; waits until the log is open."""

    async def segment(
        self, tp: TopicIdPartition, segment_id: SegmentId
    ) -> tuple[SegmentState, bytes] | None:
        """Wait until the fold is ready; None: it holds no such segment."""

    async def until_state(
        self, tp: TopicIdPartition, segment_id: SegmentId, states: frozenset[SegmentState]
    ) -> tuple[SegmentState, bytes] | None:
        """Wait for one of the states, or one beyond them; None: the segment is gone."""

    def kept_custom_metadata(self, tp: TopicIdPartition, segment_id: SegmentId) -> bytes | None:
        """Return the last custom metadata that was not null."""

    def is_held(self, tp: TopicIdPartition, segment_id: SegmentId) -> bool:
        """Whether a segment's objects may not be deleted, whatever its state says."""


def decode_segment(record: bytes) -> SegmentMetadata:
    """Return the segment of an api key 0 record.

    Raises:
        Malformed: not a record.
        InvalidArgument: a record that describes no segment.
    """
    return _segment(records.decode(record))


def decode_new_segment(record: bytes) -> SegmentMetadata:
    """Return the segment of a record that is to be written, or was just now; bounded.

    What a log holds already may be larger, and is fetched and deleted all the same.

    Raises:
        Malformed, InvalidArgument: as `decode_segment`, and what `read_offered` refuses.
    """
    return _segment(read_offered(record)[0])


def _segment(decoded: records.Record) -> SegmentMetadata:
    if not isinstance(decoded, SegmentMetadata):
        raise InvalidArgument(f"a segment's metadata is wanted, not a {type(decoded).__name__}")
    return decoded


def update_record(
    metadata: SegmentMetadata,
    state: SegmentState,
    custom_metadata: CustomMetadata | None,
    *,
    broker_id: BrokerId,
    now_ms: int,
) -> bytes:
    """Return the record that moves a segment to `state`."""
    return records.encode(
        SegmentUpdate(
            partition=metadata.partition,
            segment_id=metadata.segment_id,
            broker_id=broker_id,
            event_timestamp_ms=now_ms,
            custom_metadata=custom_metadata,
            state=state,
        )
    )


def same_segment(one: SegmentMetadata, other: SegmentMetadata) -> bool:
    """Return whether two records describe one copy: equal but for what later events change."""
    return one == replace(
        other,
        broker_id=one.broker_id,
        event_timestamp_ms=one.event_timestamp_ms,
        custom_metadata=one.custom_metadata,
        state=one.state,
    )
