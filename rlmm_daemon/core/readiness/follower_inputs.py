"""Inputs of a follower's step: orders of others, and what its own task did and found."""

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.readiness.follower_roles import Following
from rlmm_daemon.core.readiness.states import FailureReason
from rlmm_daemon.domain.ids import MetadataPartition, TopicId

ACCEPT_ALL: Final = "rlmm partition accept-loss --all"


# What others tell it, at any moment.


class Retry(msgspec.Struct, frozen=True):
    """Check everything anew."""


class Rebuild(msgspec.Struct, frozen=True):
    """Replay the log from its start, held against what had been known."""


class LossAccepted(msgspec.Struct, frozen=True):
    """An operator accepted the loss of what is missing, and that was written down."""


class OtherLog(msgspec.Struct, frozen=True):
    """The log is another one now, as another follower found."""

    topic_id: TopicId


class Damaged(msgspec.Struct, frozen=True):
    """A table of the snapshot that the fold stands on is damaged."""

    why: str


class Recheck(msgspec.Struct, frozen=True, kw_only=True):
    """Positions of earlier lives became known, or what the log was."""

    recorded: tuple[Position, ...]
    #: How far it has read itself.
    settled: Position | None
    #: The log is another one than was known.
    doubted: bool


class WrittenDown(msgspec.Struct, frozen=True):
    """What the fold knew was written down, and the fold given up, for a log that is mended."""

    #: How far it had read: whatever an earlier life had read beyond it is known by nothing else.
    at: Position


# What its task met.


def accepting(partition: MetadataPartition, *, doubted: bool) -> str:
    """Return what accepts a loss there; of a log that is another one, nothing does alone."""
    return ACCEPT_ALL if doubted else f"rlmm partition accept-loss {partition}"


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """What can be done about a loss, as of now."""

    #: Objects of segments that the log lost can be looked for.
    storage: bool
    #: They were.
    looked_for: bool
    #: The log is another one than was known.
    doubted: bool
    #: Positions that only other brokers' presence files say, and which files.
    said_by: Mapping[Position, str] = msgspec.field(default_factory=dict)

    def against_unknown(self, one: Following) -> str:
        """Return the command for what the log lost and nobody here knows: look, then accept."""
        return ACCEPT_ALL if self.doubted else self.against_missing(one)

    def against_missing(self, one: Following) -> str:
        """Return the command for what is known to be missing, and may be in any log: likewise."""
        if self.storage and not self.looked_for:
            return f"rlmm log recover {one.partition}"
        return accepting(one.partition, doubted=self.doubted)


class Obeyed(msgspec.Struct, frozen=True):
    """The task begins with what was ordered."""

    #: How far the fold has read.
    at: Position


class Refused(msgspec.Struct, frozen=True):
    """The snapshot that reached so far was cut off by the log, and is written down whole."""

    position: Position
    #: It was taken of this log; else of the one that stood here before.
    same_log: bool = True


class Doubted(msgspec.Struct, frozen=True, kw_only=True):
    """The task knows whether there is anything to hold another log against."""

    #: How the log is known to be another one, if it is.
    evidence: str | None
    comparing: bool


class PositionAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """The log was asked for a position of an earlier life."""

    position: Position
    confirmed: bool
    #: The offset that the fold has read up to.
    read: int
    #: Finished segments that are known to be missing.
    missing: int
    means: Means


class Checked(msgspec.Struct, frozen=True):
    """The past was checked: what there is to say of it is said."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The end was reached, and so many finished segments that had been known did not come."""

    missing: int
    #: So many that had been deleted came again.
    risen: int = 0
    why: str
    #: The log lacks offsets that nobody accepted, or a head that may have held their end.
    gaps: bool
    means: Means


class Forgotten(msgspec.Struct, frozen=True):
    """What was to be compared is removed: all of it came again."""

    means: Means


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A batch was applied, or the log said where it ends."""

    #: The position reached the end.
    reached: bool
    #: The position behind the last whole batch, if there was one.
    settled: Position | None
    #: What an earlier fold knew is still being looked for.
    comparing: bool
    #: Finished segments that a stuck copy's delete ended.
    held: int
    #: Offsets that may have held acknowledged events and do not, in words; empty: none.
    gaps: str
    #: Presence files whose daemons may have read further, and that can't be read.
    unheard: tuple[str, ...] = ()
    means: Means


class Trimmed(msgspec.Struct, frozen=True, kw_only=True):
    """The log's head is gone, and nobody accepted that."""

    position: int
    start: int
    doubted: bool


class Untrimmed(msgspec.Struct, frozen=True):
    """The log starts before the head whose loss was accepted: that says nothing of it any more."""


class Moved(msgspec.Struct, frozen=True):
    """The log is not the one that was folded."""

    why: str
    #: Of the log that took its place; None: it lost its tail.
    topic_id: TopicId | None


class Dropped(msgspec.Struct, frozen=True):
    """The fold was given up, after it was written down where it says anything."""

    #: How far it had read, where a damaged table was not written down with it.
    unwritten: Position | None = None


class Broken(msgspec.Struct, frozen=True):
    """It met what no reading mends."""

    reason: FailureReason
    evidence: str
    command: str | None


Order: TypeAlias = Retry | Rebuild | LossAccepted | OtherLog | Damaged | Recheck | WrittenDown
Finding: TypeAlias = (
    Doubted | PositionAnswered | Compared | Forgotten | Judged | Trimmed | Untrimmed | Broken
)
Deed: TypeAlias = Obeyed | Refused | Checked | Moved | Dropped
Input: TypeAlias = Order | Finding | Deed
