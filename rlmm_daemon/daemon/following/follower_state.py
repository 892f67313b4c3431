"""State of the follower of a metadata partition: what it has read, and what may be said of that."""

import asyncio
import gc
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.readiness.follower_inputs import Broken, Judged, Means
from rlmm_daemon.core.readiness.follower_roles import Following, Ordered, Ready, Starting, Stopped
from rlmm_daemon.core.readiness.states import (
    Failure,
    FailureReason,
    Freshness,
    PartitionState,
    state_now,
)
from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.daemon.base.os_errors import is_shortage
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.base.state_log import StateLog
from rlmm_daemon.daemon.following.confirmation import Confirmation
from rlmm_daemon.daemon.following.history import History
from rlmm_daemon.daemon.following.hooks import ManagerHooks
from rlmm_daemon.daemon.following.snapshots import NewerSnapshot, SnapshotStore
from rlmm_daemon.daemon.following.writer import Writer
from rlmm_daemon.domain.errors import (
    CorruptError,
    LogCorrupt,
    RefusedError,
    RlmmError,
    UnsupportedProtocol,
)
from rlmm_daemon.domain.ids import MetadataPartition, TopicId
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.event_log import EventLog, LogRange, ranges_joined, ranges_less

#: Measurements that wait to be taken.
_REPLAYS_KEPT: Final = 16
#: Of the gaps in a log, so many are named.
_GAPS_NAMED: Final = 5
_STRANGERS: Final = (
    " (but events of another metadata partition: first of all rlmm doctor, which says whether "
    "directories of the log changed places; then nothing is lost)"
)


class Trouble(msgspec.Struct):
    """The last error of a follower, for `explain`."""

    message: str
    at_ms: int
    consecutive: int = 1
    #: The file of this machine that can't be read or written, if that is it.
    file: str | None = None


class FollowerContext(msgspec.Struct, frozen=True, kw_only=True):
    """What all followers share."""

    log: EventLog
    state: StateDirectory
    snapshots: SnapshotStore
    clock: Clock
    rng: random.Random
    freshness: Freshness
    partition_count: int
    #: Rung when an end offset should be asked for.
    target_wanted: Broadcast
    #: Called when a fold was written down and dropped.
    on_dropped: Callable[[MetadataPartition, Sequence[Position]], None]
    #: Called with a position that the log does not confirm and that no file but a snapshot had.
    on_unrecorded: Callable[[MetadataPartition, Position], None]
    #: Called when all that was known is found again, with where the log starts.
    on_accounted: Callable[[MetadataPartition, int], Awaitable[None]]
    #: Called when the log turned out to be another one, after the fold was dropped.
    reopen: Callable[[TopicId], Awaitable[None]]
    #: Told of each applied record, after the fold and before the writer.
    hooks: ManagerHooks
    #: For slices of a replay, and whatever else takes long.
    turns: FairScheduler


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a metadata partition when it is followed, and whom to ask for the rest."""

    #: How far it had been read: the log has to confirm each before that is believed.
    recorded: Collection[Position]
    failure: Failure | None
    #: How the log is known to be another one than before, if it is.
    foreign_evidence: Callable[[], str | None]
    #: Positions that only other brokers' presence files say, and which files.
    said_by: Callable[[], Mapping[Position, str]]
    #: Where the log started when an operator accepted the loss of its head.
    accepted_start: int
    accepted_gaps: Callable[[], Sequence[LogRange]]
    #: Presence files that can't be read, of daemons that may have read further.
    unheard: Callable[[], Sequence[str]] = tuple
    #: Objects of segments that the log lost can be looked for.
    has_storage: bool


class FollowerState:
    """What others ask of a follower; what its task changes."""

    def __init__(
        self,
        partition: MetadataPartition,
        context: FollowerContext,
        writer: Writer,
        begin: Beginning,
    ) -> None:
        self.partition = partition
        self.fold = Fold(partition, context.partition_count)
        self.writer = writer
        self.confirmation = Confirmation()
        self.history = History(partition, context.state)
        self.trouble: Trouble | None = None
        self.states = StateLog(partition, context.clock.monotonic)
        self.range: LogRange | None = None
        #: Rung whenever the fold, the state or a target changed.
        self.changed = Broadcast()
        #: Held while a batch is applied, so that a snapshot is taken between batches.
        self.steady = asyncio.Lock()
        self.applied_since_snapshot = 0
        #: Set for good when nobody follows this partition here any more.
        self.retired = False
        self.snapshot_at_ms: int | None = None
        #: When the disk did not take a snapshot; None since one was written.
        self.snapshot_failed_ms: int | None = None
        self.followed_since_ms = context.clock.now_ms()
        self.context = context
        self.following = Following(
            partition=partition,
            role=Starting() if begin.failure is None else Stopped(started=False),
            failure=begin.failure,
            unconfirmed=tuple(begin.recorded),
            accepted_start=begin.accepted_start,
        )
        self._foreign_evidence, self._said_by = begin.foreign_evidence, begin.said_by
        self._answered_at = context.clock.monotonic()
        #: When it began to start; None since it was ready.
        self._began: float | None = self._answered_at
        #: Records that were read while not ready.
        self.replayed = 0
        #: Seconds from starting to ready, until whoever measures takes them.
        self.replays: deque[float] = deque(maxlen=_REPLAYS_KEPT)
        self._accepted_gaps, self._has_storage = begin.accepted_gaps, begin.has_storage
        #: Presence files that can't be read, of daemons that may have read the log further.
        self.unheard = begin.unheard
        #: Objects of segments that the log lost were looked for.
        self.looked_for = False
        #: Offsets that the fold passed over and nobody vouches for, accepted or not.
        self._gaps: tuple[LogRange, ...] = ()
        #: Events of another metadata partition stand among them.
        self.strangers = False
        #: The position behind the last whole batch, with that batch's epoch; or of the snapshot.
        self.settled: Position | None = None
        #: How far the snapshot had read that the fold went on from; 0: it was read from the start.
        self.went_on_from = 0
        #: What the fold knew is being written down: nobody else knows it until then.
        self.dropping = False

    @property
    def silent_seconds(self) -> float:
        """Seconds since the log last answered."""
        return self.context.clock.monotonic() - self._answered_at

    @property
    def failure(self) -> Failure | None:
        """Why it is `failed`, if it is."""
        return self.following.failure

    @property
    def alarmed(self) -> bool:
        """Whether what failed is that finished segments are held, and nothing else."""
        return self.following.alarmed

    @property
    def accepted_start(self) -> int:
        """Where the log started when an operator accepted the loss of its head."""
        return self.following.accepted_start

    @property
    def state(self) -> PartitionState:
        """The state as of now."""
        return state_now(self.following.state, self.silent_seconds, self.context.freshness)

    @property
    def answers_hits(self) -> bool:
        """Whether a segment that is found may be answered: true in `ready` and in `stale`."""
        return isinstance(self.following.role, Ready) and not self.retired

    @property
    def lag(self) -> int | None:
        """Events between the position and the furthest known end; None if no end is known."""
        ends = [end for end in (self.confirmation.target, self.range and self.range.end) if end]
        return max(0, max(ends) - self.fold.position) if ends else None

    @property
    def wants_target(self) -> bool:
        """Whether an end offset should be asked for."""
        asked = self.confirmation
        unknown = asked.target is None or bool(asked.asking) or asked.short
        return self.following.started and unknown

    @property
    def position_confirmed(self) -> bool:
        """Whether positions of earlier lives were reached, so that they may be rewritten."""
        return self.following.started and not self.following.unread

    @property
    def read_all(self) -> Position | None:
        """The position, if this daemon acknowledged nothing beyond it as of now; else None."""
        whole = self.answers_hits and not (self.lag or self.writer.in_flight)
        return self.settled if whole else None

    @property
    def restarting(self) -> bool:
        """Whether it was told to start over and has not begun to."""
        return isinstance(self.following.role, Ordered)

    @property
    def waits_for_order(self) -> bool:
        """Whether it failed of what no reading mends, so that it is not read on."""
        return isinstance(self.following.role, Stopped)

    @property
    def read_to_end(self) -> bool:
        """Whether the fold has reached the log's end, ready or not."""
        target = self.confirmation.target
        return target is not None and self.fold.position >= target

    def lack(self, gaps: Iterable[LogRange]) -> None:
        """Offsets that may have held acknowledged events hold nothing."""
        self._gaps = ranges_joined([*self._gaps, *gaps])

    @property
    def open_gaps(self) -> tuple[LogRange, ...]:
        """Offsets that may have held acknowledged events and do not, as nobody accepted yet."""
        return ranges_less(self._gaps, self._accepted_gaps()) if self._gaps else ()

    @property
    def lacks_offsets(self) -> bool:
        """Whether the log lacks offsets that may have held acknowledged events, accepted or not."""
        return bool(self._gaps or self._accepted_gaps())

    @property
    def uncertain(self) -> bool:
        """Whether the log lost what nobody here knows: it may have held the end of a segment."""
        unknown = self.following.unread or self.unheard() or self._head_unknown
        return bool(self.open_gaps or unknown)

    @property
    def _head_unknown(self) -> bool:
        """Whether what is known to be missing may have been ended in a head that was accepted."""
        return self.history.comparing and self.accepted_start > 0

    @property
    def head_alone(self) -> bool:
        """Whether what can be accepted now is the lost head of the log, and nothing else yet.

        There is a list of segments that were known, and the rest of the log may hold them.
        """
        return self.following.trimmed_to is not None and self.history.comparing

    @property
    def lacking(self) -> bool:
        """Whether something is missing, or may be, whose loss can be accepted.

        Segments that are held are not: nothing of them is lost, and repair ends it.
        """
        failed = self.failure is not None and self.failure.reason is FailureReason.HISTORY_LOST
        known = self.open_gaps or self.history.comparing or self.unheard()
        return bool(known or (failed and not self.following.alarmed))

    # For its task.

    @property
    def _means(self) -> Means:
        """What can be done about a loss, as of now."""
        return Means(
            storage=self._has_storage,
            looked_for=self.looked_for,
            doubted=self._foreign_evidence() is not None,
            said_by=self._said_by(),
        )

    @property
    def _gives_up(self) -> str:
        """The command that goes on without what is lost."""
        return replace(self._means, looked_for=True).against_unknown(self.following)

    def _judged(self) -> Judged:
        """Return what there is to judge readiness by."""
        gaps = self.open_gaps
        strangers = _STRANGERS if self.strangers else ""
        return Judged(
            reached=self.read_to_end,
            settled=self.settled,
            comparing=self.history.comparing,
            held=len(self.fold.held_records()) if self.fold.holding else 0,
            gaps=offsets(gaps) + strangers if gaps else "",
            unheard=tuple(self.unheard()),
            means=self._means,
        )

    def _measured(self) -> None:
        """It is ready: keep how long that took."""
        if self._began is not None:
            self.replays.append(self.context.clock.monotonic() - self._began)
            self._began = None
        gc.freeze()  # a walk over all that was replayed holds the loop for many milliseconds

    def _troubled(self, error: Exception) -> None:
        """Keep an error that may pass, and how often it came."""
        before = self.trouble.consecutive if self.trouble else 0
        message = error.message if isinstance(error, RlmmError) else str(error)
        file = error.fields.get("file") if isinstance(error, RlmmError) else None
        if isinstance(error, OSError) and not is_shortage(error):
            file = error.filename
        self.trouble = Trouble(message, self.context.clock.now_ms(), before + 1, file)
        self.changed.ring()


def broken_of(error: CorruptError | RefusedError, gives_up: str) -> Broken:
    """Return what it broke of; `gives_up` is the command that goes on without what is lost."""
    if isinstance(error, LogCorrupt):
        command = error.fields.get("command")
        return Broken(FailureReason.LOG_CORRUPT, error.message, command)
    if isinstance(error, NewerSnapshot):
        return Broken(FailureReason.NEWER_SNAPSHOT, error.message, None)
    if isinstance(error, UnsupportedProtocol):
        return Broken(FailureReason.NEWER_STATE, error.message, None)
    # Nothing is read meanwhile, so nothing can be looked for before.
    why = f"{error.message}; put it back from a copy, or go on without what it names"
    return Broken(FailureReason.HISTORY_LOST, why, gives_up)


def offsets(ranges: Sequence[LogRange]) -> str:
    """Return ranges in words, the first few of many."""
    named = [
        f"offset {each.start}"
        if each.end == each.start + 1
        else f"offsets {each.start} to {each.end - 1}"
        for each in ranges[:_GAPS_NAMED]
    ]
    more = len(ranges) - len(named)
    behind = f" and {more} more {'range' if more == 1 else 'ranges'}" if more else ""
    return ", ".join(named) + behind
