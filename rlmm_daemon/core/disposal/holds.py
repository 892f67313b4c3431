"""Holds: what nobody deletes by himself, since the log lost what may have made it needed.

Whoever accepts that events of a metadata partition are lost gives up the events, not the objects:
a COPY_SEGMENT_FINISHED may have been among them, so a segment that looks like an abandoned copy, or
an object that no event names, may be the data of an acknowledged segment. Every acceptance leaves a
hold in the bucket marker. It binds the cleaner of each daemon and the nightly job until an operator
ends it (`rlmm partition end-hold`). It does not bind whoever asks for that very segment to be
deleted, nor the removal of a topic that is proven gone.
"""

from collections.abc import Sequence

from rlmm_daemon.codec.marker import Hold

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
