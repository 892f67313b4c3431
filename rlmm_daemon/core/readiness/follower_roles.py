"""Roles of the follower of a metadata partition, and the facts that outlive them.

A failure is a fact beside the role: one that only says what is missing does not end the following,
since it may come back. `stale` is not stored: it is `ready` seen after too long a silence.
"""

from typing import TypeAlias, assert_never

import msgspec
from msgspec.structs import replace

from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.readiness.states import Failure, FailureReason, PartitionState
from rlmm_daemon.domain.ids import MetadataPartition, TopicId


class Starting(msgspec.Struct, frozen=True):
    """What is known has to be held against the log before it is read."""


class Replaying(msgspec.Struct, frozen=True):
    """It reads the log, and is not ready: the end is far, or something is missing."""


class Ready(msgspec.Struct, frozen=True):
    """It has read all that was there when it asked, and nothing is known to be missing."""


class Stopped(msgspec.Struct, frozen=True):
    """It failed of something that no reading mends: it waits for an order."""

    #: The past had been checked before.
    started: bool


class Ordered(msgspec.Struct, frozen=True, kw_only=True):
    """It was told to start over, and its task has not begun to; a failure stands until then."""

    started: bool
    #: Check everything anew; a rebuild and a damaged snapshot are orders to do so, too.
    over: bool = False
    #: Give up the fold, and hold the log against it.
    rebuild: bool = False
    #: The log that took the place of the one that was folded.
    other_log: TopicId | None = None
    #: Why the snapshot that the fold stands on cannot be trusted.
    damage: str | None = None


Role: TypeAlias = Starting | Replaying | Ready | Stopped | Ordered


class Following(msgspec.Struct, frozen=True, kw_only=True):
    """A role, and what outlives it."""

    partition: MetadataPartition
    role: Role = Starting()
    failure: Failure | None = None
    #: What failed is that finished segments are held, and nothing else.
    alarmed: bool = False
    #: Positions of earlier lives, until the log has confirmed them.
    unconfirmed: tuple[Position, ...] = ()
    #: Those that the log has confirmed, until the fold has reached them: it may lose its tail yet.
    ahead: tuple[Position, ...] = ()
    #: Those that it confirmed for this fold, reached or not: what lies before one of them in its
    #: epoch is confirmed, too.
    confirmed: tuple[Position, ...] = ()
    #: As far as what an earlier life had read of this log is written down, for the comparison.
    written: Position | None = None
    #: The fold was held against what an earlier one knew, and lacks nothing of it.
    accounted: bool = False
    #: The fold is of another log than was known: to compare with it would find nothing missing.
    doubted: bool = False
    #: The last other log for which the fold was written down and dropped.
    dropped_for: TopicId | None = None
    #: Where the log starts since its head was lost, until that is accepted.
    trimmed_to: int | None = None
    #: Where the log started when an operator accepted the loss of its head.
    accepted_start: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.role, Ready):
            assert self.failure is None, "what failed is not ready"
            assert not self.unread, "every position was reached, or its loss accepted"
            assert not self.doubted, "another log proves nothing of the one that was known"
        if isinstance(self.role, Stopped):
            assert self.failure is not None, "it says what it waits for"

    @property
    def unread(self) -> tuple[Position, ...]:
        """Positions of earlier lives that the fold has not reached, confirmed or not."""
        return self.unconfirmed + self.ahead

    @property
    def started(self) -> bool:
        """Whether the past had been checked, so that the fold may be read on from there."""
        match self.role:
            case Starting():
                return False
            case Replaying() | Ready():
                return True
            case Stopped(started=started) | Ordered(started=started):
                return started
            case _:
                assert_never(self.role)

    @property
    def crash_loops(self) -> bool:
        """Whether only an operator may have it tried again."""
        return self.failure is not None and self.failure.reason is FailureReason.CRASH_LOOP

    @property
    def state(self) -> PartitionState:
        """What others are told of the role."""
        if self.failure is not None:
            return PartitionState.FAILED
        if isinstance(self.role, Ready):
            return PartitionState.READY
        return PartitionState.REPLAYING if self.started else PartitionState.STARTING

    def ordered(
        self,
        *,
        over: bool = False,
        rebuild: bool = False,
        other_log: TopicId | None = None,
        damage: str | None = None,
    ) -> "Following":
        """Return it with one more order, beside those that its task has not begun with."""
        before = self.role if isinstance(self.role, Ordered) else Ordered(started=self.started)
        orders = Ordered(
            started=before.started and other_log is None,
            over=before.over or over,
            rebuild=before.rebuild or rebuild,
            other_log=other_log or before.other_log,
            damage=damage or before.damage,
        )
        return replace(self, role=orders)
