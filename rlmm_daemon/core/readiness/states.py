"""States of a metadata partition, and which questions each one allows.

"Not ready" never looks like "empty": an empty answer makes a broker reset consumers or delete the
only copy of a segment, so every question that the present state cannot answer truthfully is an
error with the state as a field.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from rlmm_daemon.domain.errors import (
    HistoryLost,
    LogCorrupt,
    NotReady,
    PartitionFailed,
    RlmmError,
)
from rlmm_daemon.domain.ids import MetadataPartition


class PartitionState(enum.Enum):
    """Where a metadata partition stands; `UNASSIGNED` has no follower at all."""

    UNASSIGNED = "unassigned"
    STARTING = "starting"
    REPLAYING = "replaying"
    READY = "ready"
    STALE = "stale"
    FAILED = "failed"


class FailureReason(enum.Enum):
    """Why a metadata partition is `FAILED`; `FAILURES` says how each one ends."""

    HISTORY_LOST = "history_lost"
    LOG_CORRUPT = "log_corrupt"
    LOG_MISSING = "log_missing"
    NO_TOPIC_ID = "no_topic_id"
    PARTITION_COUNT_CHANGED = "partition_count_changed"
    CRASH_LOOP = "crash_loop"
    #: The log's own files are of a newer format.
    NEWER_LOG = "newer_log"
    #: A list of lost segments is of a newer format; it can't be read, and is not given up.
    NEWER_STATE = "newer_state"
    #: A snapshot is of a newer format: it can be given up, since the log holds all that it holds.
    NEWER_SNAPSHOT = "newer_snapshot"
    #: Which log this is can't be read, while its segment files are whole.
    LOG_UNNAMED = "log_unnamed"
    #: The log is another cluster's; nothing of it or of ours is damaged.
    LOG_FOREIGN = "log_foreign"
    #: How far some daemon had read the log nobody knows; it ends by itself once that can be read.
    PRESENCE_UNREAD = "presence_unread"


class TroubleKind(enum.Enum):
    """Why the event log as a whole is not in use yet; each passes by itself, and may come again."""

    NOT_OPENED = "not_opened"
    LOG_AWAY = "log_away"
    STATE_AWAY = "state_away"
    MARKER_UNREAD = "marker_unread"
    ACCEPTANCE_UNWRITTEN = "acceptance_unwritten"


class LogTrouble(msgspec.Struct, frozen=True):
    """A trouble of the event log as a whole, in words too."""

    kind: TroubleKind
    message: str

    def __str__(self) -> str:
        return self.message


class Remedy(msgspec.Struct, frozen=True):
    """How a failure is answered, and which command ends it (`{partition}` is filled in)."""

    error: type[RlmmError]
    command: str
    sentence: str


R = FailureReason
FAILURES: Final[Mapping[FailureReason, Remedy]] = MappingProxyType(
    {
        R.HISTORY_LOST: Remedy(
            HistoryLost,
            "rlmm log repair {partition}",
            "acknowledged events are missing from the event log",
        ),
        R.LOG_CORRUPT: Remedy(
            LogCorrupt,
            "rlmm log repair {partition}",
            "the event log holds an invalid batch that is not a torn tail",
        ),
        R.LOG_MISSING: Remedy(
            PartitionFailed,
            "rlmm doctor",
            "the event log that this daemon knew is not there: see first that its disk is mounted "
            "and the configuration names the right one, for it is looked for every few seconds; "
            "else put a copy back, or use rlmm log restore; only if neither is left, rlmm "
            "partition accept-loss --all begins an empty one",
        ),
        R.NO_TOPIC_ID: Remedy(
            PartitionFailed,
            "rlmm doctor",
            "the cluster gives the metadata topic no id, so a recreated one could not be noticed",
        ),
        R.PARTITION_COUNT_CHANGED: Remedy(
            PartitionFailed,
            "rlmm partition accept-loss --all",
            "the event log has another partition count than at first contact",
        ),
        R.CRASH_LOOP: Remedy(
            PartitionFailed,
            "rlmm partition retry {partition}",
            "the daemon crashed three times in a minute on this partition",
        ),
        R.NEWER_LOG: Remedy(
            PartitionFailed,
            "rlmm --version",
            "the event log is whole, but a newer version of this program wrote it; start that "
            "version again",
        ),
        R.NEWER_STATE: Remedy(
            PartitionFailed,
            "rlmm --version",
            "a newer version of this program wrote down what it missed in the event log; start "
            "that version again",
        ),
        R.NEWER_SNAPSHOT: Remedy(
            PartitionFailed,
            "rlmm partition rebuild {partition}",
            "a newer version of this program wrote the snapshot; the event log is whole, so start "
            "that version again, or have the log replayed without the snapshot",
        ),
        R.LOG_UNNAMED: Remedy(
            PartitionFailed,
            "rlmm log name",
            "the event log's segment files are not damaged, but the file that names it is damaged "
            "or gone; the state directory may remember the name, else a copy of that file does",
        ),
        R.LOG_FOREIGN: Remedy(
            PartitionFailed,
            "rlmm doctor",
            "the event log is another cluster's, and was left as it is; let the configuration name "
            "this cluster's own log (event_log, daemon.cluster_id) and state directory, and start "
            "the daemon again",
        ),
        R.PRESENCE_UNREAD: Remedy(
            PartitionFailed,
            "rlmm log recover {partition}",
            "a presence file in the bucket can't be read, so nobody knows how far its daemon had "
            "read the event log, which may lack what was acknowledged",
        ),
    }
)
assert FAILURES.keys() == set(FailureReason), "every failure names the command that ends it"


class Failure(msgspec.Struct, frozen=True):
    """A reason and the evidence for it."""

    reason: FailureReason
    evidence: str
    at_ms: int
    #: The command, where the reason's own would not help.
    instead: str | None = None

    def command(self, partition: MetadataPartition) -> str:
        """Return the command that ends this failure."""
        return self.instead or FAILURES[self.reason].command.format(partition=partition)

    def error(self, partition: MetadataPartition) -> RlmmError:
        """Return the error that every question to this partition is answered with."""
        remedy = FAILURES[self.reason]
        command = self.command(partition)
        return remedy.error(
            f"metadata partition {partition} failed: {remedy.sentence} ({self.evidence}); "
            f"run: {command}",
            reason=self.reason.value,
            command=command,
            metadata_partition=partition,
        )


class Question(enum.Enum):
    """What a caller wants to know, as far as readiness differs."""

    #: A segment that holds an offset: one that is there is true even in an old fold.
    LOOKUP = "lookup"
    #: Highest offsets, which delete local data when they are wrong: a short leash.
    HIGHEST = "highest"
    #: Anything that an absent event could make wrong.
    WHOLE = "whole"
    #: A change, which is validated against the fold and then judged by its own apply.
    WRITE = "write"


class Permit(enum.Enum):
    """How a question may be answered."""

    ANY = "any"
    #: Only if the answer is a hit.
    POSITIVE_ONLY = "positive_only"
    NONE = "none"


class Freshness(msgspec.Struct, frozen=True):
    """Seconds without a successful fetch answer after which a fold is stale."""

    stale_after_seconds: float = 60.0
    #: For `is_ready` and `highest_offset_for_epoch`.
    strict_after_seconds: float = 5.0


def state_now(state: PartitionState, silent_seconds: float, freshness: Freshness) -> PartitionState:
    """Return the state as of now: `READY` turns `STALE` by silence alone, and back by an answer."""
    if state is PartitionState.READY and silent_seconds > freshness.stale_after_seconds:
        return PartitionState.STALE
    return state


def permit(
    question: Question,
    state: PartitionState,
    *,
    confirmed: bool,
    silent_seconds: float,
    freshness: Freshness,
) -> Permit:
    """Return how `question` may be answered in `state`.

    `confirmed` says that the position reached an end offset asked for after the user partition was
    inserted; a write needs no confirmation, because its own apply is its answer.
    """
    now = state_now(state, silent_seconds, freshness)
    if now is PartitionState.STALE:
        return Permit.POSITIVE_ONLY if question is Question.LOOKUP else Permit.NONE
    if now is not PartitionState.READY:
        return Permit.NONE
    if question is Question.WRITE:
        return Permit.ANY
    if question is Question.HIGHEST and silent_seconds > freshness.strict_after_seconds:
        return Permit.NONE
    if not confirmed:
        return Permit.POSITIVE_ONLY if question is Question.LOOKUP else Permit.NONE
    return Permit.ANY


def not_ready(partition: MetadataPartition, state: PartitionState, lag: int | None) -> NotReady:
    """Return the error for a question that `state` cannot answer; `lag` in events, None unknown."""
    behind = "" if lag is None else f", {lag} events behind"
    return NotReady(
        f"metadata partition {partition} is {state.value}{behind}",
        state=state.value,
        metadata_partition=partition,
        lag=lag,
    )


def not_sure(
    partition: MetadataPartition,
    *,
    position: int,
    end: int | None,
    confirmed: bool,
    silent_seconds: float,
) -> NotReady:
    """Return the error for a question that `READY` cannot answer in full; it says what is awaited.

    `end` is the offset at which a user partition that was inserted is confirmed, None while the log
    was not asked for it or has not answered.
    """
    state = PartitionState.REPLAYING
    if confirmed:
        state = PartitionState.STALE
        waits = f"the event log has not answered for {silent_seconds:.0f} s"
    elif end is None:
        waits = "this partition waits for the log to say where it ends"
    else:
        waits = f"this partition waits until offset {end} is read"
    lag = None if end is None else max(0, end - position)
    return NotReady(
        f"metadata partition {partition} was read up to offset {position}; {waits}",
        state=state.value,
        metadata_partition=partition,
        lag=lag,
        waits_for=end,
    )
