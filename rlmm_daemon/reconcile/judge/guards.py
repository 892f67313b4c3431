"""Safety guards: reasons against condemning anything in this run. Pure: facts in, reasons out.

Every guard fails closed: what is not known counts against. A run that is refused still reports what
it found. peers.md's lesson, and ours: a log that ends early makes every live object look orphaned.
"""

import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from rlmm_daemon.codec.marker import COMPARING, BucketMarker, Presence, PresencePartition
from rlmm_daemon.core.disposal.holds import forgotten
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.ports.event_log import EpochEnd, LogRange
from rlmm_daemon.reconcile.read.log_reading import LogView

#: How far the daemons' clocks and this machine's may be apart.
SKEW_MS: Final = 300_000


class UnreadableRecord(msgspec.Struct, frozen=True):
    """A record of the log that is no event, by place and by its bytes' SHA-256."""

    metadata_partition: int
    offset: int
    sha256: str
    reason: str


class LostOffsets(msgspec.Struct, frozen=True):
    """Offsets of one metadata partition that hold no record, and nobody vouches for them."""

    metadata_partition: int
    #: The first of these ranges, how many there are, and how many offsets they hold.
    first: LogRange
    ranges: int
    offsets: int


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that speaks for or against the completeness of what was read."""

    marker: BucketMarker | None
    #: When the storage took it, so that nothing in it was accepted later; None: not known.
    marker_ms: int | None = None
    #: What the daemon's configuration and the brokers call the cluster; None: not known.
    cluster_id: str | None
    log: LogView
    #: Metadata partition -> slices [begin, reached) that tasks say they have read, from the log or
    #: from a snapshot that the log confirms.
    read: Mapping[int, Iterable[tuple[int, int]]]
    unreadable: Iterable[UnreadableRecord] = ()
    #: By metadata partition; losses that an operator accepted are left out.
    lost: Iterable[LostOffsets] = ()
    #: Layouts that events name and that the marker does not have.
    layouts_unknown: tuple[int, ...] = ()
    #: Why control objects can't be read: one may say that something is to be left alone.
    damaged: tuple[str, ...] = ()
    #: (metadata partition, offset) -> at most so many segments live there by what was read; for
    #: counts of daemons that can be held against it.
    live: Mapping[tuple[int, int], int] = msgspec.field(default_factory=dict)
    accepted: frozenset[tuple[int, int, str]] = frozenset()
    #: Key -> content; None: it could not be read.
    presences: Mapping[str, Presence | None] = msgspec.field(default_factory=dict)
    #: (metadata partition, epoch) -> what the log says of it; for every presence's epoch. One that
    #: is missing here did not answer.
    epoch_ends: Mapping[tuple[int, int], EpochEnd] = msgspec.field(default_factory=dict)


def reasons(evidence: Evidence) -> list[str]:
    """Return why nothing may be condemned; empty: it may."""
    found = [*_whose(evidence), *_policy(evidence), *_complete(evidence), *_readable(evidence)]
    return [*found, *_presences(evidence), *_damaged(evidence)]


def still(evidence: Evidence, since_ms: int) -> list[str]:
    """Return what speaks by now against a run that `reasons` let pass; `read` is not looked at.

    `since_ms` is when the run began: what it condemned takes no later loss into account.
    """
    found = [*_whose(evidence), *_policy(evidence), *_presences(evidence)]
    return [*found, *_given_up(evidence, since_ms), *_damaged(evidence)]


def _damaged(evidence: Evidence) -> Iterable[str]:
    for reason in evidence.damaged:
        yield (
            f"{reason}: what it spared is not known; remove it, and what it named then begins its"
            " quarantine anew: hold or restore again what was. An older version of it lacks the"
            " last of these words, and its objects may be due at once"
        )


def _given_up(evidence: Evidence, since_ms: int) -> Iterable[str]:
    if evidence.marker_ms is not None and evidence.marker_ms < since_ms:
        return  # by whatever clock they were: the marker is as it was then
    for loss in evidence.marker.accepted_losses if evidence.marker else ():
        if loss.accepted_at_ms >= since_ms:
            yield "a loss of events was accepted since the run began: the next one knows of it"
    for hold in evidence.marker.held if evidence.marker else ():
        if hold.before_ms >= since_ms:
            yield "a hold was put on objects since the run began: the next one knows of it"


def _whose(evidence: Evidence) -> Iterable[str]:
    marker, identity = evidence.marker, evidence.log.identity
    if marker is None:
        yield "the storage has no marker (_rlmm/marker.json): no daemon has ever used it"
        return
    if evidence.cluster_id != marker.cluster_id:
        yield (
            f"the storage belongs to cluster {marker.cluster_id!r}, this is {evidence.cluster_id!r}"
        )
    if uuid_text(identity.topic_id) != marker.metadata_topic_id:
        yield (
            f"the log's topic id {uuid_text(identity.topic_id)} is not the marker's"
            f" {marker.metadata_topic_id}: it was recreated (rlmm partition accept-loss)"
        )
    if identity.partition_count != marker.partition_count:
        yield (
            f"the log has {identity.partition_count} partitions, the marker"
            f" {marker.partition_count}"
        )


def _policy(evidence: Evidence) -> Iterable[str]:
    if "compact" in evidence.log.cleanup_policy:
        yield (
            f"the metadata topic's cleanup.policy is {evidence.log.cleanup_policy}: its events have"
            " no keys, so compaction deletes them; set it to delete"
        )


def _complete(evidence: Evidence) -> Iterable[str]:
    for number in range(evidence.log.identity.partition_count):
        known = evidence.log.ranges.get(number)
        if known is None:
            yield f"metadata partition {number} did not tell its end"
            continue
        reached = 0
        for begin, end in sorted(evidence.read.get(number, ())):
            if begin > reached:
                break
            reached = max(reached, end)
        if reached < known.start:
            yield (
                f"metadata partition {number} begins at {known.start}: its head is gone, and no"
                " snapshot covers it (snapshots = [...] names directories of them)"
            )
        elif reached < known.end:
            yield f"metadata partition {number} was read to {reached}, it ends at {known.end}"
    for number in evidence.layouts_unknown:
        yield (
            f"events name layout {number}, which the marker does not have: it is not the one that"
            " the daemons wrote (rlmm storage doctor)"
        )
    for lost in evidence.lost:
        yield (
            f"metadata partition {lost.metadata_partition}: {lost.offsets:,} offsets in"
            f" {lost.ranges:,} ranges hold no record, from {lost.first.start} to {lost.first.end}"
            " first (by compaction, lost files or a repair): the segments that they named would"
            f" look like nobody's (rlmm partition accept-loss {lost.metadata_partition} accepts it)"
        )


def _readable(evidence: Evidence) -> Iterable[str]:
    for each in evidence.unreadable:
        if (each.metadata_partition, each.offset, each.sha256) not in evidence.accepted:
            yield (
                f"the record at offset {each.offset} of metadata partition"
                f" {each.metadata_partition} is no event ({each.reason}): look at it, then rlmm"
                f" reconcile accept-record {each.metadata_partition} {each.offset} {each.sha256}"
            )


def _presences(evidence: Evidence) -> Iterable[str]:
    if evidence.marker is not None and not evidence.presences:
        yield "no daemon has left a presence file (_rlmm/daemons/): none has run here"
    for key, presence in evidence.presences.items():
        if presence is None:
            yield f"{key} can't be read"
        elif presence.cluster_id != evidence.cluster_id:
            yield f"{key} is of cluster {presence.cluster_id!r}"
        elif presence.other is not None:
            yield (
                f"{key}: beside the daemon that wrote it another one"
                f" {'runs' if presence.other.met else 'may run'} under broker id"
                f" {presence.broker_id}: {presence.other.who} (written {_written(presence)}; rlmm"
                " status there; if neither will ever run again, remove the file)"
            )
        else:
            yield from _presence(key, presence, evidence)
            yield from _forgotten(key, presence, evidence.marker)


def _forgotten(key: str, presence: Presence, marker: BucketMarker | None) -> Iterable[str]:
    """Yield that a daemon knows of a hold that the marker lacks."""
    if marker is not None and forgotten(marker, presence, SKEW_MS):
        yield (
            f"{key}: its daemon knows of a hold that the marker lacks (written"
            f" {_written(presence)}): an older marker was put back, which that daemon mends while"
            " it runs; if it never will again, remove the file, and the hold goes with it"
        )


def _presence(key: str, presence: Presence, evidence: Evidence) -> Iterable[str]:
    losses = evidence.marker.accepted_losses if evidence.marker else ()
    latest_ms = sys.maxsize if evidence.marker_ms is None else evidence.marker_ms
    for number, seen in presence.partitions.items():
        # It is of a log that was given up since, and whose objects are spared. A daemon that lives
        # says by now what it reads; one whose broker was scrapped would speak for ever.
        over = any(
            loss.metadata_partition in (None, number)
            and presence.written_at_ms < min(loss.accepted_at_ms, latest_ms) - SKEW_MS
            for loss in losses
        )
        reason = "" if over else _against(number, seen, evidence)
        if reason:
            yield f"{key}: metadata partition {number} {reason} (written {_written(presence)})"


def _written(presence: Presence) -> str:
    at = datetime.fromtimestamp(presence.written_at_ms / 1000, tz=UTC)
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _against(number: int, seen: PresencePartition, evidence: Evidence) -> str:
    """Return why what a daemon has seen of a partition is not what was read; "": it is."""
    if seen.state.startswith("failed"):
        compared = "compared with what its daemon had read before"
        word = compared if seen.state == COMPARING else seen.state
        return f"is {word} (rlmm explain says what ends it)"
    topic_id = uuid_text(evidence.log.identity.topic_id)
    if seen.topic_id != topic_id:
        return f"is of topic id {seen.topic_id}, the log is {topic_id}"
    known = evidence.log.ranges.get(number)
    if known is None or known.end < seen.next_offset:
        end = "unknown" if known is None else known.end
        return f"was read to {seen.next_offset}, the log ends at {end}"
    if seen.leader_epoch < 0:
        # No batch was ever read: the position is where the log begins, also after a loss.
        if seen.next_offset > known.start:
            return f"was read to {seen.next_offset} in no epoch that could be confirmed"
        return ""
    unconfirmed = _unconfirmed(seen, evidence.epoch_ends.get((number, seen.leader_epoch)))
    return unconfirmed or _uncounted(number, seen, evidence)


def _uncounted(number: int, seen: PresencePartition, evidence: Evidence) -> str:
    if seen.live_segments is None or seen.live_at is None:
        return ""
    found = evidence.live.get((number, seen.live_at))
    if found is None or found >= seen.live_segments:
        return ""
    return (
        f"had {seen.live_segments:,} live segments at offset {seen.live_at}, the log that was read"
        f" names {found:,}: events are missing"
    )


def _unconfirmed(seen: PresencePartition, end: EpochEnd | None) -> str:
    if end is None:
        return f"was read in epoch {seen.leader_epoch}: nobody leads it now who could confirm that"
    if end.epoch == seen.leader_epoch and end.end_offset >= seen.next_offset:
        return ""
    return f"was read in epoch {seen.leader_epoch}, which the log has otherwise"
