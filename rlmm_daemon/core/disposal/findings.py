"""Findings: the differences between a listing and the log for one segment, and their verdicts.

The log is the truth. An object is condemned as an orphan only if no event names its segment (be it
one that the life cycle refuses), which is sound because COPY_SEGMENT_STARTED is applied before the
first byte is put, and the listing is older than the log that it is compared with. What is absent
from a listing is only a hint: a listing is a picture of minutes, so `Judged.confirm` asks for a
fresh read of the log and then of the object.

    the log's last word      an object that is there     an object that is not
    none                     orphan_object
    COPY_SEGMENT_STARTED     (stuck_copy when old)
    COPY_SEGMENT_FINISHED    size_mismatch if it is      missing_object (.log), partial_segment
    DELETE_SEGMENT_STARTED   (stuck_delete when old)
    DELETE_SEGMENT_FINISHED  deleted_but_present
"""

import enum
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from rlmm_daemon.codec.marker import Hold
from rlmm_daemon.core.disposal.holds import held
from rlmm_daemon.domain.segment import SegmentState

LOG: Final = ".log"
#: No run takes longer from its listing to its last look at the log.
FUTURE_MS: Final = 86_400_000


class Severity(enum.StrEnum):
    """How soon somebody should look: HIGH is data that consumers can't read."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Finding(enum.StrEnum):
    """Every way in which storage and log can disagree."""

    ORPHAN_OBJECT = "orphan_object"
    DELETED_BUT_PRESENT = "deleted_but_present"
    MISSING_OBJECT = "missing_object"
    PARTIAL_SEGMENT = "partial_segment"
    SIZE_MISMATCH = "size_mismatch"
    STUCK_COPY = "stuck_copy"
    STUCK_DELETE = "stuck_delete"
    DEAD_TOPIC = "dead_topic"
    INCOMPLETE_UPLOAD = "incomplete_upload"
    OVERLAP = "overlap"
    OFFSET_GAP = "offset_gap"
    UNKNOWN_KEY = "unknown_key"
    FOREIGN_CLUSTER = "foreign_cluster"
    NOT_CURRENT_VERSION = "not_current_version"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What a finding means to an operator, and whether anything may be deleted for it."""

    severity: Severity
    meaning: str
    #: What to do; a command where there is one.
    action: str
    #: Whether quarantine and deletion may act on it. Everything else is only reported.
    condemnable: bool = False


F, S = Finding, Severity
RULES: Final[Mapping[Finding, Rule]] = MappingProxyType({
    F.ORPHAN_OBJECT: Rule(
        severity=S.LOW, condemnable=True,
        meaning="no event of the log names this object's segment",
        action="rlmm reconcile run --execute quarantines it",
    ),
    F.DELETED_BUT_PRESENT: Rule(
        severity=S.LOW, condemnable=True,
        meaning="the segment is DELETE_SEGMENT_FINISHED, its object is still there",
        action="rlmm reconcile run --execute quarantines it",
    ),
    F.INCOMPLETE_UPLOAD: Rule(
        severity=S.LOW, condemnable=True,
        meaning="a multipart upload that nobody finishes any more",
        action="rlmm reconcile run --execute aborts it after its quarantine",
    ),
    F.MISSING_OBJECT: Rule(
        severity=S.HIGH,
        meaning="a live segment's .log is not in the storage",
        action="look for it in backups and in every bucket or directory a daemon ever had",
    ),
    F.PARTIAL_SEGMENT: Rule(
        severity=S.HIGH,
        meaning="a live segment lacks an index that was stored with it",
        action="look for it in backups and in every bucket or directory a daemon ever had",
    ),
    F.SIZE_MISMATCH: Rule(
        severity=S.HIGH,
        meaning="an object has another size than the one recorded",
        action="restore the object from a backup or an older version",
    ),
    F.STUCK_COPY: Rule(
        severity=S.MEDIUM,
        meaning="COPY_SEGMENT_STARTED for longer than any copy may live",
        action="the cleaner removes it; rlmm explain TOPIC-PARTITION says what it waits for",
    ),
    F.STUCK_DELETE: Rule(
        severity=S.MEDIUM,
        meaning="DELETE_SEGMENT_STARTED for over an hour",
        action="the cleaner ends it; rlmm explain TOPIC-PARTITION says what it waits for",
    ),
    F.DEAD_TOPIC: Rule(
        severity=S.MEDIUM,
        meaning="live segments of a topic id that the cluster does not know",
        action="rlmm purge TOPIC_ID",
    ),
    F.OVERLAP: Rule(
        severity=S.LOW,
        meaning="two live segments cover the same offsets of one epoch",
        action="none: readers are given the one that finished last",
    ),
    F.OFFSET_GAP: Rule(
        severity=S.MEDIUM,
        meaning="offsets within an epoch's lineage that no live segment covers",
        action="compare with the partition's deletes and compaction: rlmm segments TOPIC-PARTITION",
    ),
    F.UNKNOWN_KEY: Rule(
        severity=S.LOW,
        meaning="an object whose key no layout of the marker could have made",
        action="none: it is somebody else's; keep foreign objects out of the prefix",
    ),
    F.FOREIGN_CLUSTER: Rule(
        severity=S.MEDIUM,
        meaning="an object of another cluster",
        action="give each cluster a bucket or a directory of its own",
    ),
    F.NOT_CURRENT_VERSION: Rule(
        severity=S.LOW,
        meaning="an old version of an object, kept by the bucket's versioning",
        action="let a lifecycle rule expire noncurrent versions",
    ),
})  # fmt: skip
assert RULES.keys() == set(Finding), "every finding has a rule"
#: The only kinds that anything is ever deleted for.
CONDEMNABLE: Final = frozenset(kind for kind, rule in RULES.items() if rule.condemnable)


def lacks_nearly_all(missing: int, finished: int) -> bool:
    """Return whether so many finished segments are missing that it may be the wrong storage."""
    return missing > 0 and 10 * missing >= 9 * finished


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What the log says of one segment. `state` None: no legal event ever named it."""

    state: SegmentState | None
    #: `state` None, and yet events name it, all of them refused: its COPY_SEGMENT_STARTED may be
    #: one of the records that nobody could read, so nothing is condemned for it.
    refused: bool = False
    #: When its last event was written; brokers' clocks, so only good for ages.
    event_ms: int = 0
    #: DELETE_SEGMENT_STARTED replaced a COPY_SEGMENT_FINISHED that its writer had not seen: the
    #: objects may be the only copy, and nothing touches them before `rlmm log repair`.
    held: bool = False
    #: Suffix -> bytes of what was stored; only `.log` where the custom metadata is not ours.
    sizes: Mapping[str, int] = msgspec.field(default_factory=dict)


class Present(msgspec.Struct, frozen=True, kw_only=True):
    """One listed object of the segment."""

    suffix: str
    size: int
    modified_ms: int


class Ages(msgspec.Struct, frozen=True, kw_only=True):
    """What counts as old at the moment of the listing; all in ms, times since 1970."""

    #: When the listing began.
    listed_ms: int
    #: At least 24 h and twice the largest recorded copy deadline.
    grace_ms: int
    #: The largest recorded copy deadline and the delivery timeout together.
    stuck_copy_ms: int
    stuck_delete_ms: int = 3_600_000
    #: How far the clocks of storage, brokers and this machine may be apart.
    skew_ms: int = 300_000
    #: When an operator last accepted that events of this segment's metadata partition are lost:
    #: what is older may be a live segment's, whatever the log that is left says. 0: never.
    loss_ms: int = 0
    #: What the marker keeps from being deleted, and which metadata partition this segment is of.
    holds: tuple[Hold, ...] = ()
    metadata_partition: int | None = None
    #: When the snapshot was made that stands for a head of that partition which is gone. What was
    #: passed over when it was folded, undecodable or refused, is not in it. 0: there is none.
    snapshot_ms: int = 0

    def spares(self, modified_ms: int) -> bool:
        """Return whether an object is older than an accepted loss."""
        return self.loss_ms > 0 and modified_ms <= self.loss_ms + self.skew_ms

    def holds_back(self, since_ms: int) -> bool:
        """Return whether a hold keeps what began then, by the storage's or its events' time."""
        return held(self.holds, self.metadata_partition, since_ms - self.skew_ms) is not None

    def holds_object(self, recorded: Recorded, modified_ms: int) -> bool:
        """Return whether a hold keeps an object that the storage took then.

        One of a segment that events name is as old as these, where it was rewritten since; one that
        no event names may be as old as can be.
        """
        if recorded.state is None:
            return held(self.holds, self.metadata_partition, None) is not None
        return self.holds_back(min(modified_ms, recorded.event_ms or modified_ms))

    def is_of_the_future(self, event_ms: int) -> bool:
        """Return whether no clock that is right can have written this before the listing was read.

        What is written while a run goes on may be a little younger than its listing.
        """
        return event_ms > self.listed_ms + FUTURE_MS

    def predates_snapshot(self, modified_ms: int) -> bool:
        """Return whether an object may be of a copy that began before the snapshot was made."""
        latest_ms = self.snapshot_ms + self.stuck_copy_ms + self.skew_ms
        return self.snapshot_ms > 0 and modified_ms <= latest_ms


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One disagreement. `suffix` "" means the segment as a whole."""

    kind: Finding
    suffix: str = ""
    #: For people: the numbers that prove it.
    facts: str = ""
    #: Whether absence or size must be seen again, after a fresh read of the log.
    confirm: bool = False
    #: Old enough, not held, and of a kind that may be condemned.
    condemned: bool = False


def judge(recorded: Recorded, present: Mapping[str, Present], ages: Ages) -> Iterator[Judged]:
    """Yield how one segment's events and its listed objects (by suffix) disagree."""
    match recorded.state:
        case None:
            yield from _unwanted(F.ORPHAN_OBJECT, recorded, present, ages)
        case SegmentState.COPY_SEGMENT_STARTED:
            yield from _stuck(F.STUCK_COPY, recorded, ages, ages.stuck_copy_ms)
        case SegmentState.COPY_SEGMENT_FINISHED:
            yield from _incomplete(recorded, present)
        case SegmentState.DELETE_SEGMENT_STARTED:
            yield from _stuck(F.STUCK_DELETE, recorded, ages, ages.stuck_delete_ms)
        case SegmentState.DELETE_SEGMENT_FINISHED:
            yield from _unwanted(F.DELETED_BUT_PRESENT, recorded, present, ages)


def judge_upload(recorded: Recorded, initiated_ms: int, ages: Ages) -> Judged | None:
    """Return a finding if an incomplete upload is too old for any copy to finish it."""
    age_ms = ages.listed_ms - initiated_ms
    if age_ms <= ages.grace_ms:
        return None
    # A segment that is being copied may have begun its upload anew just now.
    condemned = not (recorded.held or recorded.refused)
    condemned = condemned and recorded.state is not SegmentState.COPY_SEGMENT_STARTED
    unproven = recorded.state is None and ages.predates_snapshot(initiated_ms)
    spared = ages.spares(initiated_ms) or ages.holds_back(initiated_ms)
    condemned = condemned and not (unproven or spared)
    return Judged(kind=F.INCOMPLETE_UPLOAD, facts=f"age_ms={age_ms}", condemned=condemned)


def _unwanted(
    kind: Finding, recorded: Recorded, present: Mapping[str, Present], ages: Ages
) -> Iterator[Judged]:
    wrong = ages.is_of_the_future(recorded.event_ms)
    if recorded.event_ms > ages.listed_ms - ages.skew_ms and not wrong:
        return  # deleted since the listing: then it was rightly there
    for suffix, found in present.items():
        # An event from a clock that runs ahead makes the object younger, never older.
        said_ms = 0 if wrong else recorded.event_ms
        age_ms = ages.listed_ms - max(found.modified_ms, said_ms)
        reason = _spared(recorded, found, ages)
        clock = f" event_ms={recorded.event_ms} is of the future" if wrong else ""
        yield Judged(
            kind=kind,
            suffix=suffix,
            facts=f"age_ms={age_ms}{clock}{reason}",
            condemned=age_ms > ages.grace_ms and not reason,
        )


def _spared(recorded: Recorded, found: Present, ages: Ages) -> str:
    if recorded.held:
        return " held"
    if recorded.refused:
        return " an event that was refused names it"
    if ages.spares(found.modified_ms):
        return " older than an accepted loss"
    if ages.holds_object(recorded, found.modified_ms):
        return " held since a loss was accepted (rlmm partition end-hold)"
    if recorded.state is None and ages.predates_snapshot(found.modified_ms):
        return " older than the snapshot that stands for the log's head"
    return ""


def _stuck(kind: Finding, recorded: Recorded, ages: Ages, age_ms: int) -> Iterator[Judged]:
    if recorded.held:
        facts = "held until rlmm log repair puts it back"
        yield Judged(kind=kind, facts=facts)
    elif ages.is_of_the_future(recorded.event_ms):
        yield Judged(kind=kind, facts=f"event_ms={recorded.event_ms} is of the future")
    elif recorded.event_ms < ages.listed_ms - age_ms:
        yield Judged(kind=kind, facts=f"event_ms={recorded.event_ms}")


def _incomplete(recorded: Recorded, present: Mapping[str, Present]) -> Iterator[Judged]:
    for suffix, size in recorded.sizes.items():
        found = present.get(suffix)
        if found is None:
            kind = F.MISSING_OBJECT if suffix == LOG else F.PARTIAL_SEGMENT
            yield Judged(kind=kind, suffix=suffix, facts=f"recorded={size}", confirm=True)
        elif found.size != size:
            facts = f"recorded={size} stored={found.size}"
            yield Judged(kind=F.SIZE_MISMATCH, suffix=suffix, facts=facts, confirm=True)
