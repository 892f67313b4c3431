"""Kafka's `quorum-state`: the epoch, its leader and the vote, as one line of JSON.

Version 1 goes with kraft.version 1, and is the one that remembers the directory that was voted for.
Source: FileQuorumStateStore, QuorumStateData.
"""

from typing import Final

import msgspec

from rlmm_daemon.core.raft.inputs import SavedState
from rlmm_daemon.core.raft.voters import NO_DIRECTORY, ReplicaKey
from rlmm_daemon.domain.errors import InvalidArgument, Malformed
from rlmm_daemon.domain.ids import uuid_bytes, uuid_text

FILE_NAME: Final = "quorum-state"
_NOBODY: Final = -1
_EPOCH_MAX: Final = 2**31 - 1


class _Voter(msgspec.Struct, forbid_unknown_fields=True):
    voterId: int  # noqa: N815 - Kafka's own names, in its order


class _Version0(msgspec.Struct, forbid_unknown_fields=True):
    clusterId: str  # noqa: N815
    leaderId: int  # noqa: N815
    leaderEpoch: int  # noqa: N815
    votedId: int  # noqa: N815
    appliedOffset: int  # noqa: N815
    currentVoters: list[_Voter] | None  # noqa: N815
    data_version: int


class _Version1(msgspec.Struct, forbid_unknown_fields=True):
    leaderId: int  # noqa: N815
    leaderEpoch: int  # noqa: N815
    votedId: int  # noqa: N815
    votedDirectoryId: str  # noqa: N815
    data_version: int


class _Any(msgspec.Struct):
    data_version: int


def encode(state: SavedState, *, voters: tuple[int, ...] | None = None) -> bytes:
    """Return the file's one line; with `voters` in version 0, which knows no directories."""
    leader = _NOBODY if state.leader is None else state.leader
    voted = state.voted or ReplicaKey(_NOBODY)
    if voters is not None:
        rows = [_Voter(each) for each in voters]
        return msgspec.json.encode(_Version0("", leader, state.epoch, voted.id, 0, rows, 0))
    directory = uuid_text(voted.directory)
    return msgspec.json.encode(_Version1(leader, state.epoch, voted.id, directory, 1))


def decode(data: bytes) -> SavedState:
    """Return the state; what is not one is refused, for a vote may have been in it.

    Raises:
        Malformed: neither version's form, or a number out of range.
    """
    try:
        version = msgspec.json.decode(data, type=_Any).data_version
        if version == 0:
            return _state(msgspec.json.decode(data, type=_Version0), NO_DIRECTORY)
        if version == 1:
            kept = msgspec.json.decode(data, type=_Version1)
            return _state(kept, uuid_bytes(kept.votedDirectoryId))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"no quorum state: {error}") from error
    except InvalidArgument as error:
        raise Malformed(f"no quorum state: {error.message}") from error
    raise Malformed(f"data_version is {version}: 0 and 1 are known")


def _state(kept: _Version0 | _Version1, directory: bytes) -> SavedState:
    if not 0 <= kept.leaderEpoch <= _EPOCH_MAX:
        raise Malformed(f"leaderEpoch is {kept.leaderEpoch}")
    if min(kept.leaderId, kept.votedId) < _NOBODY:
        raise Malformed(f"leaderId {kept.leaderId} or votedId {kept.votedId} is no replica's")
    if kept.votedId == _NOBODY and any(directory):
        raise Malformed("a directory was voted for, and no replica")
    return SavedState(
        epoch=kept.leaderEpoch,
        leader=None if kept.leaderId == _NOBODY else kept.leaderId,
        voted=None if kept.votedId == _NOBODY else ReplicaKey(kept.votedId, directory),
    )
