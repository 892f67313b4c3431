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


class _Voter(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    voter_id: int


class _Version0(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Kafka's fields, in its order."""

    cluster_id: str
    leader_id: int
    leader_epoch: int
    voted_id: int
    applied_offset: int
    current_voters: list[_Voter] | None
    data_version: int = msgspec.field(name="data_version")


class _Version1(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    leader_id: int
    leader_epoch: int
    voted_id: int
    voted_directory_id: str
    data_version: int = msgspec.field(name="data_version")


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
            return _state(kept, uuid_bytes(kept.voted_directory_id))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"no quorum state: {error}") from error
    except InvalidArgument as error:
        raise Malformed(f"no quorum state: {error.message}") from error
    raise Malformed(f"data_version is {version}: 0 and 1 are known")


def _state(kept: _Version0 | _Version1, directory: bytes) -> SavedState:
    if not 0 <= kept.leader_epoch <= _EPOCH_MAX:
        raise Malformed(f"leaderEpoch is {kept.leader_epoch}")
    if min(kept.leader_id, kept.voted_id) < _NOBODY:
        raise Malformed(f"leaderId {kept.leader_id} or votedId {kept.voted_id} is no replica's")
    if kept.voted_id == _NOBODY and any(directory):
        raise Malformed("a directory was voted for, and no replica")
    return SavedState(
        epoch=kept.leader_epoch,
        leader=None if kept.leader_id == _NOBODY else kept.leader_id,
        voted=None if kept.voted_id == _NOBODY else ReplicaKey(kept.voted_id, directory),
    )
