"""Forced voters: a quorum begun anew from one replica's log, after a majority is lost for good.

An operator's last resort, and outside of the consensus: what the lost majority had acknowledged
without the replicas that are left is gone. Of these, the one with the newest log becomes the only
voter, in an epoch that no election leads to. By that step every replica of the abandoned set knows
what has happened, and goes no further: to follow would cut what it alone may hold.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from rlmm_daemon.core.raft.elections import EPOCH_STEP_MAX, FORCED_STEP_MIN
from rlmm_daemon.core.raft.inputs import Answered, Input
from rlmm_daemon.core.raft.log_facts import Batch, LogPoint
from rlmm_daemon.core.raft.roles import Replica
from rlmm_daemon.core.raft.turn import LeaderChange
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter, VotersAt, VoterSet
from rlmm_daemon.domain.errors import InvalidArgument

#: Forced epochs are multiples of it, so that an epoch tells for ever how often that was done; a new
#: replica, which begins with epoch 0, still takes the word of one that was forced seven times.
FORCED_STEP: Final = 2 * FORCED_STEP_MIN
assert FORCED_STEP + FORCED_STEP_MIN < EPOCH_STEP_MAX, "else its word is taken for an attack"


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that is left, by its files."""

    directory: str
    key: ReplicaKey
    #: Where its log ends.
    last: LogPoint
    #: The newest that it knows.
    epoch: int
    voters: VotersAt


class Forcing(msgspec.Struct, frozen=True, kw_only=True):
    """A quorum that is to begin anew."""

    chosen: Left
    before: VoterSet
    after: VoterSet
    #: Greater than every epoch that is known, by a step that no election makes.
    epoch: int
    #: Voters that nobody could read: what only they had is lost.
    unread: tuple[ReplicaKey, ...]

    def batch(self) -> Batch:
        """Return what has to stand at the end of the chosen log."""
        me = self.chosen.key.id
        change = LeaderChange(me, (me,), (me,), VotersAt(-1, self.after, 1))
        return Batch(
            self.chosen.last.end, 3, self.epoch, self.after, kraft_version=1, payload=change
        )


def times_forced(epoch: int) -> int:
    """Return how often the voters were forced before this epoch."""
    return epoch // FORCED_STEP


def plan(left: Sequence[Left], listen: Endpoint) -> Forcing:
    """Return the quorum that begins anew with the newest of these logs.

    Raises:
        InvalidArgument: nothing was lost yet that would need it, or it can't be done.
    """
    keys = [each.key for each in left]
    if not keys:
        raise InvalidArgument("no directory is given")
    if len(set(keys)) < len(keys):
        raise InvalidArgument("two of the directories are one replica's: give the newer one alone")
    chosen = max(left, key=lambda each: (each.last, each.voters.voters.holds(each.key), each.key))
    before = chosen.voters.voters
    if chosen.last.end == 0:
        raise InvalidArgument("none of these logs holds anything: format a new quorum instead")
    if chosen.voters.kraft_version == 0:
        raise InvalidArgument("with kraft.version 0 no voters are recorded, so none can be forced")
    unread = tuple(key for key in before.keys if key not in keys)
    read = len(before.voters) - len(unread)
    if before.voters and read >= before.majority:
        raise InvalidArgument(
            f"{read} of {len(before.voters)} voters can be read: they are a majority, so start them"
        )
    newest = max(max(each.epoch, each.last.epoch) for each in left)
    steps = (newest + FORCED_STEP_MIN + FORCED_STEP - 1) // FORCED_STEP
    return Forcing(
        chosen=chosen,
        before=before,
        after=VoterSet((Voter(chosen.key, (listen,)),)),
        epoch=steps * FORCED_STEP,
        unread=unread,
    )


def is_abandoned(replica: Replica, happened: Input) -> bool:
    """Whether an answer says that the voters were forced while this replica was away.

    Only the answer to a question of its own does: nobody stops a replica by a request.
    """
    if not isinstance(happened, Answered) or happened.serial not in replica.sent:
        return False
    ahead = happened.answer.epoch - replica.epoch
    return replica.log.end > 0 and FORCED_STEP_MIN <= ahead <= EPOCH_STEP_MAX
