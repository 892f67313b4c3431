"""Inputs of a replica, and the effects that its shell has to obey.

The shell obeys effects one after the other: a state is on the disk before the next effect begins.
Only syncs of the log go on beside, and end in an input.
"""

from typing import TypeAlias

import msgspec

from rlmm_daemon.core.raft.log_facts import Batch, LogPoint
from rlmm_daemon.core.raft.messages import Answer, Request
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, VotersAt


class Moment(msgspec.Struct, frozen=True):
    """A monotonic time, and a number from [0, 1) that nobody foresaw."""

    ms: int
    luck: float


class Peer(msgspec.Struct, frozen=True):
    """Who asks, as its handshake proved."""

    #: None: any replica, where nobody proves anything (loopback only).
    id: int | None = None
    may_vote: bool = True
    may_change_voters: bool = True

    def is_allowed_as(self, key: ReplicaKey) -> bool:
        """Whether it may speak for that replica."""
        return self.may_vote and self.id in (None, key.id)


# Inputs.


class Tick(msgspec.Struct, frozen=True):
    """Time went by."""


class Asked(msgspec.Struct, frozen=True):
    """A request, to be answered under its token."""

    token: int
    request: Request
    peer: Peer = Peer()
    #: The cluster that it names.
    cluster_id: str | None = None


class Answered(msgspec.Struct, frozen=True):
    """The answer to what was sent under this serial."""

    serial: int
    answer: Answer


class Unanswered(msgspec.Struct, frozen=True):
    """There will be no answer to what was sent under this serial."""

    serial: int
    #: Nobody listens there, and what was connected before was reset: its process is gone.
    refused: bool = False


class Submitted(msgspec.Struct, frozen=True):
    """Records to be appended by the leader, whose bytes the shell holds under this token."""

    token: int
    count: int
    payload: object = None


class ReadAsked(msgspec.Struct, frozen=True):
    """Somebody asks how far the log is committed, by all that was acknowledged before."""

    token: int


class Synced(msgspec.Struct, frozen=True):
    """Everything that was written before `end` is on the disk.

    `cuts` is the number of cuts that the log had seen when the sync was ordered: what was written
    again behind a later one isn't there yet.
    """

    end: int
    cuts: int


class Reachable(msgspec.Struct, frozen=True):
    """A replica that is to become a voter answered, with the kraft.versions that it bears."""

    serial: int
    versions: tuple[int, int]


class SnapshotMade(msgspec.Struct, frozen=True):
    """A snapshot of this replica's own is complete and on the disk."""

    snapshot: LogPoint


class SnapshotInstalled(msgspec.Struct, frozen=True):
    """A fetched snapshot is on the disk, and the log begins behind it.

    `voters` are those that it names; None: what was fetched doesn't hold, and the log is as it was.
    """

    snapshot: LogPoint
    voters: VotersAt | None


class StartMoved(msgspec.Struct, frozen=True):
    """What lies before this snapshot's end may be removed."""

    oldest: LogPoint


class Resign(msgspec.Struct, frozen=True):
    """The process is about to end, or its disk failed: somebody else has to lead."""


class Outgrow(msgspec.Struct, frozen=True):
    """Records of this epoch were read that the log lacks: none of it may be written any more."""

    epoch: int


Input: TypeAlias = (
    Tick
    | Asked
    | Answered
    | Unanswered
    | Submitted
    | ReadAsked
    | Synced
    | Reachable
    | SnapshotMade
    | SnapshotInstalled
    | StartMoved
    | Resign
    | Outgrow
)


# Effects.


class SavedState(msgspec.Struct, frozen=True):
    """What a replica must never forget (Kafka's `quorum-state`)."""

    epoch: int = 0
    leader: int | None = None
    voted: ReplicaKey | None = None


class Save(msgspec.Struct, frozen=True):
    """Have this on the disk before the next effect."""

    state: SavedState


class Write(msgspec.Struct, frozen=True):
    """Write a batch at the log's end."""

    batch: Batch
    #: Of the submitted records; None for what was fetched, and for control records.
    token: int | None = None


class Truncate(msgspec.Struct, frozen=True):
    """Remove what stands at this offset or behind."""

    end: int


class StartSync(msgspec.Struct, frozen=True):
    """Sync the log beside all else; then `Synced`."""

    end: int
    cuts: int


class Send(msgspec.Struct, frozen=True):
    """Send a request; its answer comes under this serial."""

    serial: int
    #: The replica's id; None for any of the bootstrap servers.
    to: int | None
    request: Request
    #: Where the set of voters does not say it.
    endpoints: tuple[Endpoint, ...] = ()


class Probe(msgspec.Struct, frozen=True):
    """Ask a replica that is to become a voter for its versions; then `Reachable`."""

    serial: int
    to: ReplicaKey
    endpoints: tuple[Endpoint, ...]


class Reply(msgspec.Struct, frozen=True):
    """Answer what came under this token."""

    token: int
    answer: Answer


class ReplyRecords(msgspec.Struct, frozen=True):
    """Answer a fetch with the log from `offset` on, at most up to `end`."""

    token: int
    answer: Answer
    offset: int
    end: int


class ReplySnapshot(msgspec.Struct, frozen=True):
    """Answer with a piece of a snapshot, of its size and from that position on."""

    token: int
    answer: Answer
    snapshot: LogPoint
    position: int


class Accept(msgspec.Struct, frozen=True):
    """The submitted records of this token take these offsets."""

    token: int
    base: int
    epoch: int


class Refuse(msgspec.Struct, frozen=True):
    """The submitted records of this token were not taken: this replica does not lead."""

    token: int
    leader: int | None


class ReadAt(msgspec.Struct, frozen=True):
    """The read of this token sees everything that it must once all before this is applied."""

    token: int
    end: int


class ReadRefused(msgspec.Struct, frozen=True):
    """The read of this token is not answered: this replica does not lead, or can't show it."""

    token: int
    leader: int | None


class Commit(msgspec.Struct, frozen=True):
    """Everything before this offset holds for ever: apply it."""

    end: int


class StorePiece(msgspec.Struct, frozen=True):
    """Put a piece of a snapshot into its partial file; position 0 begins it anew."""

    snapshot: LogPoint
    position: int
    piece: bytes


class Install(msgspec.Struct, frozen=True):
    """The snapshot is whole: make it durable, then drop the log; then `SnapshotInstalled`."""

    snapshot: LogPoint


class Alarm(msgspec.Struct, frozen=True):
    """Something that no healthy quorum does: to be counted, logged and shown."""

    kind: str
    message: str


class Fail(msgspec.Struct, frozen=True):
    """Going on would lose what was acknowledged: serve nothing more until somebody looked."""

    message: str


Effect: TypeAlias = (
    Save
    | Write
    | Truncate
    | StartSync
    | Send
    | Probe
    | Reply
    | ReplyRecords
    | ReplySnapshot
    | Accept
    | Refuse
    | ReadAt
    | ReadRefused
    | Commit
    | StorePiece
    | Install
    | Alarm
    | Fail
)
