"""Holds: what nobody deletes by himself, since the log lost what may have made it needed.

Whoever accepts that events of a metadata partition are lost gives up the events, not the objects:
a COPY_SEGMENT_FINISHED may have been among them, so a segment that looks like an abandoned copy, or
an object that no event names, may be the data of an acknowledged segment. Every acceptance leaves a
hold in the bucket marker. It binds the cleaner of each daemon and the nightly job until an operator
ends it (`rlmm partition end-hold`). It does not bind whoever asks for that very segment to be
deleted, nor the removal of a topic that is proven gone.

Times only tell apart what events name. A copy is begun in the log before its first byte is stored,
so an object that no event names is of what was lost, or of events that were dropped since: its
storage says of it when it was put there last, which a clock that was ahead, or a bucket that was
copied or rewritten in place, makes younger than the loss. So a hold keeps each of its partition.

What a marker accepts, holds and has ended is only ever added to, of each partition the most. So an
older marker that is put back is seen by what it lacks, and whatever daemons know of is joined in
any order. A number of its own for each write would not tell: two daemons that go on from an older
marker, of which one knew less, both count on.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from rlmm_daemon.codec.marker import BucketMarker, Hold, Presence

Holds = Sequence[Hold]
#: How much longer a hold is where nobody knows how young what it keeps is: clocks that were ahead
#: by more are not reckoned with. Not for ever, for what is put on behind it outlasts it.
UNKNOWN_MS: Final = 366 * 86_400_000


def held(holds: Holds, metadata_partition: int | None, since_ms: int | None) -> Hold | None:
    """Return the hold that keeps a segment or an object, None if nothing does.

    `since_ms`: of a segment, when its last event was written, or when the storage took what it has
    of it. None: not known, or of an object that no event names, so it may be old enough.
    `metadata_partition` None: nobody can tell whose it is, so any hold may mean it.
    """
    for hold in holds:
        other = None not in (hold.metadata_partition, metadata_partition) and (
            hold.metadata_partition != metadata_partition
        )
        if not other and (since_ms is None or since_ms <= hold.before_ms):
            return hold
    return None


def with_hold(marker: BucketMarker, hold: Hold) -> BucketMarker:
    """Return the marker with one more hold: one of the same partition is never made to keep less.

    It is put on now, so it outlasts whatever was ended, also by a clock that is behind.
    """
    ended_ms = _reach(marker.ended).get(hold.metadata_partition, -1)
    before_ms = max(hold.before_ms, ended_ms + 1)
    hold = msgspec.structs.replace(hold, before_ms=before_ms)
    return msgspec.structs.replace(marker, holds=_most([*marker.held, hold]))


def without_holds(marker: BucketMarker, metadata_partition: int | None) -> BucketMarker:
    """Return the marker with the hold of one metadata partition ended, or (None) every one."""
    over = [h for h in marker.held if metadata_partition in (None, h.metadata_partition)]
    return msgspec.structs.replace(
        marker,
        holds=tuple(hold for hold in marker.held if hold not in over),
        ended_holds=_most([*marker.ended, *over]),
    )


def recounted(marker: BucketMarker, partition_count: int) -> BucketMarker:
    """Return a marker for a log of that many partitions, which keeps no less.

    A user partition is another metadata partition's by another count, so a hold on one of them may
    mean any, and one that was ended says nothing of the partition that has its number now.
    """
    if marker.partition_count == partition_count:
        return marker
    many = msgspec.structs.replace(
        marker,
        partition_count=partition_count,
        holds=(),
        ended_holds=tuple(each for each in marker.ended if each.metadata_partition is None),
    )
    for hold in marker.held:
        many = with_hold(many, msgspec.structs.replace(hold, metadata_partition=None))
    return many


def joined(marker: BucketMarker, other: BucketMarker) -> BucketMarker:
    """Return a marker that accepts and keeps what the other one does, too, but what was ended."""
    whole = msgspec.structs.replace(
        marker,
        format=max(marker.format, other.format),
        accepted_losses=tuple(dict.fromkeys((*marker.accepted_losses, *other.accepted_losses))),
        accepted_gaps=tuple(dict.fromkeys((*marker.gaps, *other.gaps))),
    )
    if other.partition_count != marker.partition_count:
        return with_holds_of(whole, other)  # which of them were ended, no number says
    ended = _most([*marker.ended, *other.ended])
    over, holds = _reach(ended), _most([*marker.held, *other.held])
    return msgspec.structs.replace(
        whole,
        ended_holds=ended,
        holds=tuple(h for h in holds if h.before_ms > over.get(h.metadata_partition, -1)),
    )


def with_holds_of(marker: BucketMarker, other: BucketMarker) -> BucketMarker:
    """Return the marker with the other one's holds, as they are put on now."""
    for hold in recounted(other, marker.partition_count).held:
        marker = with_hold(marker, hold)
    return marker


def as_known(marker: BucketMarker, known: BucketMarker | None) -> BucketMarker:
    """Return a marker, with what `known` accepts and keeps if it is an older one that was put back.

    So is one that lacks something. Of a `known` that does not tell which holds were ended, only
    losses say that.
    """
    if known is None or not _lacks(marker, known):
        return marker
    # Which log it is, and of how many partitions, was accepted with what it lacks.
    return msgspec.structs.replace(joined(known, marker), layouts=marker.layouts)


def covers(marker: BucketMarker, holds: Holds) -> bool:
    """Whether a marker has these holds, be it that they were ended."""
    reach = _reach([*marker.held, *marker.ended])
    return all(hold.before_ms <= reach.get(hold.metadata_partition, -1) for hold in holds)


def forgotten(marker: BucketMarker, said: Presence, skew_ms: int = 0) -> Holds:
    """Return the holds that a presence file tells of, and that a marker neither has nor has ended.

    None of a file behind which, by `skew_ms`, the loss of everything was accepted: what that leaves
    holds all of it.
    """
    over = any(
        loss.metadata_partition is None and said.written_at_ms < loss.accepted_at_ms - skew_ms
        for loss in marker.accepted_losses
    )
    return () if over else [hold for hold in said.holds if not covers(marker, [hold])]


def with_told(marker: BucketMarker, presences: Iterable[Presence]) -> BucketMarker:
    """Return the marker with what it has forgotten and this cluster's presence files tell of."""
    for said in presences:
        if said.cluster_id == marker.cluster_id:
            for hold in forgotten(marker, said):
                marker = with_hold(marker, hold)
    return marker


def _lacks(marker: BucketMarker, known: BucketMarker) -> bool:
    if not set(known.accepted_losses) <= set(marker.accepted_losses):
        return True
    if not known.tells_ended or marker.partition_count != known.partition_count:
        return False
    ended = msgspec.structs.replace(marker, holds=())
    return not (covers(marker, known.held) and covers(ended, known.ended))


def _most(holds: Iterable[Hold]) -> tuple[Hold, ...]:
    """Return of each metadata partition the hold that keeps most, the first of several."""
    found = dict[int | None, Hold]()
    for hold in holds:
        known = found.setdefault(hold.metadata_partition, hold)
        if hold.before_ms > known.before_ms:
            found[hold.metadata_partition] = hold
    return tuple(found.values())


def _reach(holds: Iterable[Hold]) -> dict[int | None, int]:
    """Return until when the holds on each metadata partition reach."""
    return {hold.metadata_partition: hold.before_ms for hold in _most(holds)}


def held_whole(marker: BucketMarker, now_ms: int, broker_id: int) -> BucketMarker:
    """Return a marker that keeps everything there is: nobody knows which losses were accepted."""
    hold = Hold(metadata_partition=None, before_ms=now_ms, broker_id=broker_id)
    return with_hold(marker, hold)
