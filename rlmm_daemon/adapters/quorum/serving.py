"""Answers that take bytes from the files: records of the log, and pieces of snapshots."""

from typing import Final

import msgspec

from rlmm_daemon.adapters.quorum.files.replica_files import ReplicaFiles
from rlmm_daemon.adapters.quorum.wire import FETCH_BYTES_MAX, SNAPSHOT_BYTES_MAX
from rlmm_daemon.core.raft import inputs
from rlmm_daemon.core.raft.log_facts import Batch
from rlmm_daemon.core.raft.messages import Answer, Code, FetchAnswer, FetchSnapshotAnswer
from rlmm_daemon.domain.errors import SnapshotGone

#: No file system has a file of that size, and no call takes such a position.
_POSITION_MAX: Final = 1 << 48


async def with_records(files: ReplicaFiles, answer: Answer, offset: int, end: int) -> Answer:
    """Return a fetch's answer with the log from `offset` on, up to `end` at most.

    Raises:
        LogCorrupt: the log does not hold there.
        OSError: it can't be read.
    """
    assert isinstance(answer, FetchAnswer), "records answer a fetch"
    data = await files.read(offset, end, FETCH_BYTES_MAX)
    batch = Batch(offset, max(1, end - offset), answer.epoch, payload=data)
    return msgspec.structs.replace(answer, batches=(batch,) if data else ())


async def with_piece(files: ReplicaFiles, answer: Answer, effect: inputs.ReplySnapshot) -> Answer:
    """Return an answer with a piece of a snapshot, or that it is gone, or ends before there."""
    assert isinstance(answer, FetchSnapshotAnswer), "a piece answers a snapshot's fetch"
    if effect.position > _POSITION_MAX:
        return msgspec.structs.replace(answer, error=Code.POSITION_OUT_OF_RANGE)
    try:
        size, piece = await files.read_piece(effect.snapshot, effect.position, SNAPSHOT_BYTES_MAX)
    except SnapshotGone:
        return msgspec.structs.replace(answer, error=Code.SNAPSHOT_NOT_FOUND)
    if not 0 <= effect.position < size:
        return msgspec.structs.replace(answer, error=Code.POSITION_OUT_OF_RANGE)
    return msgspec.structs.replace(
        answer, snapshot=effect.snapshot, size=size, position=effect.position, piece=piece
    )
