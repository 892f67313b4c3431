"""Events of another metadata partition in an embedded log's directory: they were mixed up."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from rlmm_daemon.adapters.event_log.embedded.records import records_of
from rlmm_daemon.codec import records
from rlmm_daemon.codec.scan import FoundBatch
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.domain.errors import LogCorrupt, Malformed
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.domain.segment import SegmentSnapshot

#: What a person does about misplaced files.
MISPLACED: Final = (
    "directories were mixed up: stop the daemon, rename each to the number of the metadata "
    "partition that its events are of, and start it; no repair mends that"
)


def owner_of(buffer: bytes, found: FoundBatch, partition_count: int) -> MetadataPartition | None:
    """Return whose the first event of a batch is, for all of one are the same partition's."""
    with suppress(LogCorrupt):
        for _, value in records_of(buffer, found, position=0):
            with suppress(Malformed):
                event = None if value is None else records.decode(value)
                if event is not None and not isinstance(event, SegmentSnapshot):
                    name = event.partition
                    return metadata_partition(name.topic_id, name.partition, partition_count)
    return None


def require_own(
    path: str,
    buffer: bytes,
    batches: Sequence[FoundBatch],
    partition: MetadataPartition,
    *,
    partition_count: int,
) -> None:
    """Raise LogCorrupt, which no repair ends, if a file begins with another partition's events."""
    owners = (owner_of(buffer, batch, partition_count) for batch in batches)
    owner = next((each for each in owners if each is not None), partition)
    if owner != partition:
        reason = f"its events are of metadata partition {owner}"
        raise LogCorrupt(
            f"{path}: {reason}; {MISPLACED}", file=path, reason=reason, command="rlmm doctor"
        )
