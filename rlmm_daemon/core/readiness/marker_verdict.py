"""Verdicts on a bucket's marker: whether one may be made, and whether one that is there is ours.

Custom metadata names a layout by its number, and only the marker says which prefix that is. So a
marker that lost its rows is worse than none: reads miss live objects, and deletes succeed that
leave them. Where the log names layouts, a marker is rebuilt by an operator and never made anew.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from rlmm_daemon.codec.marker import BucketMarker

#: One row of a marker's table: kind and prefix; its number is its place, from 1.
Rows = Sequence[tuple[str, str]]

REBUILD: Final = "rlmm storage rebuild-marker --config FILE"
#: What to do where there is no marker; a misspelt bucket or a directory without its mount has none.
IF_NONE: Final = (
    "is this the right bucket or directory (storage in the configuration), and is it mounted? "
    f"If it is, restore the marker, or run: {REBUILD}"
)


class MarkerReason(enum.StrEnum):
    """The `reason` of a `storage_unavailable` that a marker is the cause of."""

    UNREAD = "no_marker_yet"
    NONE = "no_marker"
    FOREIGN = "foreign_marker"
    DAMAGED = "bad_marker"
    NEWER = "newer_marker"
    REMADE = "remade_marker"


class LogHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What the event log says of segments that were stored before."""

    #: Layout numbers that custom metadata of ours names; the first few found are enough.
    named: frozenset[int] = frozenset()
    #: Metadata partition -> why its whole past can't be read.
    unread: Mapping[int, str] = msgspec.field(default_factory=dict)


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Whose a marker is, or who asks."""

    cluster_id: str
    #: Of the metadata topic, in Kafka's text form.
    topic_id: str


def owner_of(marker: BucketMarker) -> Owner:
    """Return whom a marker names."""
    return Owner(cluster_id=marker.cluster_id, topic_id=marker.metadata_topic_id)


def why_not_ours(present: Owner, ours: Owner) -> tuple[MarkerReason, str] | None:
    """Return how a marker is not this cluster's; None if it is.

    Topic ids are drawn by luck, so no other cluster has ours: a marker that names it beside
    another cluster is our own, with damage in that name.
    """
    if present.cluster_id == ours.cluster_id:
        return None
    if present.topic_id == ours.topic_id:
        return MarkerReason.DAMAGED, (
            f"it names this event log, {ours.topic_id}, and the cluster {present.cluster_id!r}, "
            f"where this is {ours.cluster_id!r}: its cluster id is damaged"
        )
    return MarkerReason.FOREIGN, (
        f"the remote storage belongs to cluster {present.cluster_id!r}, this is {ours.cluster_id!r}"
    )


def why_not_made(history: LogHistory) -> str | None:
    """Return why a storage without a marker must not be given a fresh one; None if it may."""
    if history.named:
        numbers = ", ".join(str(number) for number in sorted(history.named))
        return f"the event log has segments under layout {numbers}"
    if history.unread:
        number, why = next(iter(sorted(history.unread.items())))
        return f"metadata partition {number} may name layouts: {why}"
    return None


def why_remade(known: Rows, present: Rows) -> str | None:
    """Return how a marker contradicts rows that were known; None if it only appended to them."""
    for number, (before, now) in enumerate(zip(known, present, strict=False), start=1):
        if before != now:
            return f"layout {number} was {_shown(before)} and is {_shown(now)} now"
    if len(present) < len(known):
        return f"it had {len(known)} layouts and has {len(present)} now"
    return None


def _shown(row: tuple[str, str]) -> str:
    return f"{row[1]!r}"
