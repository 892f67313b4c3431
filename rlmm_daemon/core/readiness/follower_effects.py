"""Effects of a follower's step: what its shell has to do, in the order that it is given."""

from typing import TypeAlias

import msgspec

from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.domain.ids import TopicId


class RestartTargets(msgspec.Struct, frozen=True):
    """Ask for every end offset anew."""


class GiveUpSnapshot(msgspec.Struct, frozen=True):
    """Set the damaged file aside and go on with a fold of nothing: the log is as it was."""

    why: str


class DropFold(msgspec.Struct, frozen=True):
    """Write down what the fold knows, if it says anything; then go on with a fold of nothing."""

    why: str
    written: bool
    #: What is read then is the log that was folded, whatever it lost.
    same_log: bool = True


class Reopen(msgspec.Struct, frozen=True):
    """Take up the log that stands under the known name now."""

    topic_id: TopicId


class ForgetHistory(msgspec.Struct, frozen=True):
    """Remove what was to be compared, and the snapshots that are older."""


class ForgetPosition(msgspec.Struct, frozen=True):
    """The lineage that was recorded is accounted for by what is written down."""


class KeepPosition(msgspec.Struct, frozen=True):
    """No record has it: it stays until its loss is accepted, or the log holds it again."""

    position: Position


class AskForEnd(msgspec.Struct, frozen=True):
    """Have the log asked where it ends."""


class Serve(msgspec.Struct, frozen=True):
    """It is ready from now on."""


Effect: TypeAlias = (
    RestartTargets
    | GiveUpSnapshot
    | DropFold
    | Reopen
    | ForgetHistory
    | ForgetPosition
    | KeepPosition
    | AskForEnd
    | Serve
)
