"""Holds: what nobody deletes by himself, since the log lost what may have made it needed.

Whoever accepts that events of a metadata partition are lost gives up the events, not the objects:
a COPY_SEGMENT_FINISHED may have been among them, so a segment that looks like an abandoned copy, or
an object that no event names, may be the data of an acknowledged segment. Every acceptance leaves a
hold in the bucket marker. It binds the cleaner of each daemon and the nightly job until an operator
ends it (`rlmm partition end-hold`). It does not bind whoever asks for that very segment to be
deleted, nor the removal of a topic that is proven gone.

A bucket that was copied says of each object when it was copied. Where nothing is as old as a hold,
that is what it looks like, and the hold keeps everything of its partition.
"""

import sys
from collections.abc import Iterable, Sequence

import msgspec

from rlmm_daemon.codec.marker import BucketMarker, Hold

Holds = Sequence[Hold]


def held(holds: Holds, metadata_partition: int | None, since_ms: int | None) -> Hold | None:
    """Return the hold that keeps a segment or an object, None if nothing does.

    `since_ms`: of a segment, when its last event was written; of an object that no event names,
    when the storage took it. None: not known, so it may be old enough. `metadata_partition` None:
    nobody can tell whose it is, so any hold may mean it.
    """
    for hold in holds:
        other = None not in (hold.metadata_partition, metadata_partition) and (
            hold.metadata_partition != metadata_partition
        )
        if not other and (since_ms is None or since_ms <= hold.before_ms):
            return hold
    return None


def by_times(holds: Holds, oldest_ms: int | None) -> tuple[Hold, ...]:
    """Return the holds as they bind where the oldest object is of `oldest_ms`; None: none is there.

    One that nothing is as old as keeps whatever there is: the times say nothing of what it meant.
    """
    return tuple(
        hold
        if oldest_ms is None or oldest_ms <= hold.before_ms
        else msgspec.structs.replace(hold, before_ms=sys.maxsize)
        for hold in holds
    )


def with_hold(holds: Iterable[Hold], hold: Hold) -> tuple[Hold, ...]:
    """Return the holds with one more: one of the same partition is never made to keep less."""
    same = [each for each in holds if each.metadata_partition == hold.metadata_partition]
    others = (each for each in holds if each not in same)
    return (*others, max(hold, *same, key=lambda each: each.before_ms) if same else hold)


def recounted(marker: BucketMarker, partition_count: int) -> BucketMarker:
    """Return a marker for a log of that many partitions, which keeps no less.

    A user partition is another metadata partition's by another count, so a hold on one of them may
    mean any.
    """
    if marker.partition_count == partition_count:
        return marker
    holds = tuple[Hold, ...]()
    for hold in marker.held:
        holds = with_hold(holds, msgspec.structs.replace(hold, metadata_partition=None))
    return msgspec.structs.replace(marker, partition_count=partition_count, holds=holds)


def joined(marker: BucketMarker, other: BucketMarker) -> BucketMarker:
    """Return a marker that accepts and keeps what the other one does, too."""
    holds = marker.held
    for hold in recounted(other, marker.partition_count).held:
        holds = with_hold(holds, hold)
    losses = dict.fromkeys((*marker.accepted_losses, *other.accepted_losses))
    gaps = dict.fromkeys((*marker.gaps, *other.gaps))
    return msgspec.structs.replace(
        marker, accepted_losses=tuple(losses), accepted_gaps=tuple(gaps), holds=holds
    )


def as_known(marker: BucketMarker, known: BucketMarker | None) -> BucketMarker:
    """Return a marker, with what `known` accepts and keeps if it is an older one that was put back.

    Accepted losses are only ever added, so one that lacks some is older, whatever holds were ended.
    """
    if known is None or set(known.accepted_losses) <= set(marker.accepted_losses):
        return marker
    # Which log it was, and of how many partitions, was accepted with them.
    whole = joined(recounted(marker, known.partition_count), known)
    return msgspec.structs.replace(whole, metadata_topic_id=known.metadata_topic_id)


def held_whole(marker: BucketMarker, now_ms: int, broker_id: int) -> BucketMarker:
    """Return a marker that keeps everything there is: nobody knows which losses were accepted."""
    hold = Hold(metadata_partition=None, before_ms=now_ms, broker_id=broker_id)
    return msgspec.structs.replace(marker, holds=with_hold(marker.held, hold))
