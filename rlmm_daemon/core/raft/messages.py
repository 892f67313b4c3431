"""Requests and answers between replicas, by what they say; the codec knows their bytes."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from rlmm_daemon.core.raft.log_facts import Batch, LogPoint
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter

#: Of a replica that need not be told of high watermarks (before KIP-1166).
NO_HURRY: Final = (1 << 63) - 1
#: A high watermark that nobody knows yet.
UNKNOWN: Final = -1


class Code(IntEnum):
    """Kafka's error codes, as far as they are used between replicas."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    INCONSISTENT_CLUSTER_ID = 104
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127


class VoteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for a vote in `epoch`, or whether one would be granted in the next (KIP-996)."""

    #: The epoch that the vote is for; of a pre-vote, the asker's own, which it has not raised.
    epoch: int
    candidate: ReplicaKey
    last: LogPoint
    #: Whom it asks; None for anybody.
    voter: ReplicaKey | None = None
    pre_vote: bool = False


class BeginEpochRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Says that this leader was elected."""

    epoch: int
    leader: ReplicaKey
    voter: ReplicaKey | None = None
    endpoints: tuple[Endpoint, ...] = ()


class EndEpochRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Says that this leader goes, and who should follow it, the best first."""

    epoch: int
    leader: ReplicaKey
    successors: tuple[ReplicaKey, ...] = ()


class FetchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the log from an offset on, and says that all before it is on the asker's disk."""

    epoch: int
    replica: ReplicaKey
    #: Where it goes on, and the epoch of the record before.
    point: LogPoint
    high_watermark: int = NO_HURRY
    wait_ms: int = 0


class FetchSnapshotRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for a piece of a snapshot."""

    epoch: int
    replica: ReplicaKey
    snapshot: LogPoint
    position: int


class AddVoterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks the leader to count one replica more."""

    voter: Voter
    #: Answer when the new majority has committed it; else once it is appended.
    when_committed: bool = True


class RemoveVoterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks the leader to count one replica less."""

    voter: ReplicaKey


class UpdateVoterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A voter's own word on where it listens, and which versions it bears."""

    epoch: int
    voter: Voter


Request: TypeAlias = (
    VoteRequest
    | BeginEpochRequest
    | EndEpochRequest
    | FetchRequest
    | FetchSnapshotRequest
    | AddVoterRequest
    | RemoveVoterRequest
    | UpdateVoterRequest
)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What every answer says: how it went, and who leads as far as the answerer knows."""

    error: Code
    epoch: int
    #: The leader's id; None where none is known.
    leader: int | None = None
    endpoints: tuple[Endpoint, ...] = ()


class VoteAnswer(Answer, frozen=True, kw_only=True):
    """Whether the vote, or the pre-vote, was granted."""

    granted: bool = False


class FetchAnswer(Answer, frozen=True, kw_only=True):
    """Records, or where to cut, or the snapshot to fetch first."""

    high_watermark: int = UNKNOWN
    start: int = 0
    batches: tuple[Batch, ...] = ()
    diverging: LogPoint | None = None
    snapshot: LogPoint | None = None


class FetchSnapshotAnswer(Answer, frozen=True, kw_only=True):
    """A piece of a snapshot."""

    snapshot: LogPoint | None = None
    size: int = 0
    position: int = 0
    piece: bytes = b""


_ANSWERS: Final[Mapping[type[Request], type[Answer]]] = MappingProxyType(
    {
        VoteRequest: VoteAnswer,
        FetchRequest: FetchAnswer,
        FetchSnapshotRequest: FetchSnapshotAnswer,
    }
)


def answer_to(request: Request) -> type[Answer]:
    """Return the kind of answer that this request gets."""
    return _ANSWERS.get(type(request), Answer)
