"""Facts that `explain` judges by: plain values of a running daemon or of its files.

None means "not known" wherever a field may be None. Times are milliseconds since 1970.
"""

import enum
from collections.abc import Mapping

import msgspec

from rlmm_daemon.core.disposal.observation import UnknownClock
from rlmm_daemon.core.disposal.steps import CopyStep, DeleteStep, PartitionStep
from rlmm_daemon.core.readiness.states import Failure, Freshness, PartitionState
from rlmm_daemon.domain.ids import TopicIdPartition
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentState


class AnnouncedRole(enum.Enum):
    """What the broker's last announcement made of a user partition."""

    LEADER = "leader"
    FOLLOWER = "follower"
    #: Announced by nobody.
    NONE = "none"


class CopyPhase(enum.Enum):
    """Where a copy stands that has not ended; the value is what the copier calls it."""

    QUEUED = "queued"
    OPEN = "open"
    APPLY = "apply"
    UPLOAD = "upload"
    CHECK = "check"
    FINISH = "finish"
    ROLL_BACK = "roll back"


class LastError(msgspec.Struct, frozen=True, kw_only=True):
    """Something that failed and is tried again."""

    message: str
    at_ms: int
    consecutive: int = 1
    #: The file of this machine that can't be read or written, if that is it.
    file: str | None = None


class BadRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record that changed nothing."""

    offset: int
    #: For example `tombstone`, or the wire name of the error that rejected an event.
    reason: str
    head_hex: str = ""


class CopyInFlight(msgspec.Struct, frozen=True, kw_only=True):
    """A copy that this daemon is working on."""

    segment_id: str
    phase: CopyPhase
    bytes_done: int = 0
    bytes_total: int = 0
    parts_done: int = 0
    #: The storage's own words for what it is doing.
    call: str = ""
    age_seconds: float = 0.0


class CopyFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The last copy of this partition that ended badly; a later success takes it away."""

    segment_id: str
    message: str
    at_ms: int


class UnsettledCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy that failed though somebody else finished its segment: was it ever stored whole?"""

    partition: str
    segment_id: str
    message: str
    at_ms: int


class SegmentFact(msgspec.Struct, frozen=True, kw_only=True):
    """One segment's part in one epoch."""

    segment_id: str
    state: SegmentState
    epoch: int
    #: In that epoch, both inclusive.
    start_offset: int
    end_offset: int
    broker_id: int
    event_at_ms: int


class OffsetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one offset: the question "why is there no segment for it?"."""

    offset: int
    #: None asks in every epoch.
    epoch: int | None
    #: The segment that a look-up answers.
    found: SegmentFact | None = None
    #: Hold the offset in the epoch asked for, but are not readable.
    unreadable: tuple[SegmentFact, ...] = ()
    #: Finished, and hold the offset in another epoch.
    elsewhere: tuple[SegmentFact, ...] = ()
    #: The nearest readable segments of the epoch asked for.
    before: SegmentFact | None = None
    after: SegmentFact | None = None
    #: Every epoch in which any segment has a part.
    epochs: tuple[int, ...] = ()


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """A metadata partition that is followed and not read to its end."""

    number: int
    state: PartitionState
    failure: Failure | None = None

    @property
    def words(self) -> str:
        """How it stands."""
        if self.failure is None:
            return self.state.value
        return f"{self.state.value}: {self.failure.reason.value}"


class SegmentCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many segments are in one state."""

    count: int = 0
    size_bytes: int = 0
    #: The segment whose last event is the oldest, and when that was; "" if there is none.
    oldest_id: str = ""
    oldest_at_ms: int = 0


class StuckFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Segments that the cleaner judged alike."""

    count: int
    oldest_id: str
    oldest_at_ms: int


class ObservedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The clock of a topic id that every live broker calls unknown."""

    clock: UnknownClock
    #: When it started, and when it has run out; None: it does not run.
    since_ms: int | None = None
    due_ms: int | None = None


class RemovalFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Where the cleaner stands with a user partition; only its owner can tell all of it."""

    #: None: not marked, or another daemon's to remove.
    step: PartitionStep | None = None
    since_ms: int = 0
    #: Segments whose deletion this daemon ended.
    deleted: int = 0
    error: LastError | None = None
    #: What ending a stuck copy, a stuck delete or an unlisted segment, or a purge last failed of.
    trouble: str | None = None
    #: The broker whose daemon removes and knows more; None: this one's, or not known.
    owner: int | None = None
    copies: Mapping[CopyStep, StuckFacts] = msgspec.field(default_factory=dict)
    deletes: Mapping[DeleteStep, StuckFacts] = msgspec.field(default_factory=dict)
    #: Set if every live broker calls its topic's id unknown, and the cluster is observed.
    observed: ObservedFacts | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `explain` may look at, about one user partition."""

    #: What the asker typed.
    selector: str
    #: None if the selector names nothing that is known.
    partition: TopicIdPartition | None
    now_ms: int

    # Files instead of a daemon.
    offline: bool = False
    #: When the newest of the files was written.
    facts_at_ms: int | None = None
    #: Whether the state directory was ever bound to a log.
    bound: bool = True
    #: What a check of the event log's files found.
    damage: str | None = None
    #: How far it was read before, as recorded.
    recorded_position: int | None = None

    #: What the follower's connection to its broker is doing, in words; None: it has none.
    connection: str | None = None

    # The daemon.
    draining: bool = False
    log_open: bool = True
    log_trouble: str | None = None
    #: What of the log's own settings may lose events, each in words.
    log_warnings: tuple[str, ...] = ()
    #: Why the log takes no writes; empty while it does.
    log_refusal: str = ""
    #: Why a quorum takes no writes from this daemon; empty if it does.
    leaderless: str = ""
    marker_trouble: str | None = None
    whole_failure: Failure | None = None
    #: If the selector names nothing that is known: what may yet name it.
    unread: tuple[Unread, ...] = ()
    #: `none`, `local`, ...
    storage_kind: str = "none"
    storage_error: LastError | None = None
    #: Median of its last answers; 0: not known.
    storage_answer_seconds: float = 0.0
    #: Another daemon that lives under this broker id, so that nothing is deleted.
    other_daemon: LastError | None = None
    copy_deadline_seconds: float = 600.0
    freshness: Freshness = msgspec.field(default_factory=Freshness)

    # The broker's word; None if it is not known.
    gate_open: bool | None = True
    role: AnnouncedRole | None = AnnouncedRole.LEADER

    # The metadata partition.
    metadata_partition: int | None = None
    state: PartitionState = PartitionState.UNASSIGNED
    failure: Failure | None = None
    #: What failed is that segments are held, of this user partition or of another one.
    alarmed: bool = False
    trouble: LastError | None = None
    position: int = 0
    target: int | None = None
    lag: int | None = None
    log_start: int | None = None
    log_end: int | None = None
    silent_seconds: float = 0.0
    confirmed: bool = False
    snapshot_at_ms: int | None = None
    snapshot_next_offset: int | None = None
    unreadable: Mapping[str, int] = msgspec.field(default_factory=dict)
    last_unreadable: BadRecord | None = None
    rejected: Mapping[str, int] = msgspec.field(default_factory=dict)
    last_rejected: BadRecord | None = None
    #: Finished segments that were known and that the log has not shown again.
    missing: int = 0
    #: The log lacks offsets that may have held acknowledged events, accepted or not.
    lacks_offsets: bool = False
    #: A hold keeps what may have been finished in events whose loss was accepted.
    on_hold: bool | None = False
    missing_reasons: tuple[str, ...] = ()

    # The user partition.
    #: Whether any event of it was ever applied.
    known: bool = False
    segments: Mapping[SegmentState, SegmentCount] = msgspec.field(default_factory=dict)
    third_set: int = 0
    delete_state: PartitionDeleteState | None = None
    last_event_at_ms: int | None = None
    #: Broker -> copies it finished although another broker had begun a later one.
    late_writers: Mapping[int, int] = msgspec.field(default_factory=dict)
    copies: tuple[CopyInFlight, ...] = ()
    #: Since when no copy of its topic begins, as an operator ordered; None: they do.
    paused_since_ms: int | None = None
    #: Why nobody can tell what is paused, so that no copy begins.
    pause_trouble: str | None = None
    copy_failure: CopyFailure | None = None
    #: The last of this partition first.
    unsettled: tuple[UnsettledCopy, ...] = ()
    removal: RemovalFacts = msgspec.field(default_factory=RemovalFacts)
    #: Held until `rlmm log repair` puts them back.
    held: int = 0
    question: OffsetFacts | None = None

    @property
    def history_in_doubt(self) -> bool:
        """Whether a segment may have been finished by an event that was not read, or is lost."""
        read = self.state in (PartitionState.READY, PartitionState.STALE)
        failed = self.failure is not None or self.whole_failure is not None
        lacks = self.missing > 0 or self.lacks_offsets or self.on_hold is not False
        return failed or not read or lacks

    def count(self, state: SegmentState) -> SegmentCount:
        """Return the segments in a state."""
        return self.segments.get(state, SegmentCount())
