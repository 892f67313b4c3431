"""Forcing of a quorum's voters (`rlmm quorum force-voters`): on directories of stopped replicas."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.quorum.files.formatted import (
    TOPIC,
    forget_withheld,
    note_abandoned,
    require_not_abandoned,
    topic_id_of,
)
from rlmm_daemon.adapters.quorum.files.replica_files import ReplicaFiles
from rlmm_daemon.codec.kraft import log_batches
from rlmm_daemon.core.raft import forcing
from rlmm_daemon.core.raft.forcing import Forcing, Left
from rlmm_daemon.core.raft.inputs import SavedState
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.domain.errors import InvalidArgument, NotReady
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.offline.ownership import given_to_owner

#: For each address at which a voter might answer yet.
_ANSWER_SECONDS: Final = 2.0


class Forced(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, and what is to become of it."""

    cluster_id: str
    topic_id: bytes
    left: list[Left]
    plan: Forcing

    def told(self) -> dict[str, Any]:
        """Return it for machines."""
        plan = self.plan
        return {
            "cluster_id": self.cluster_id,
            "topic_id": uuid_text(self.topic_id),
            "read": [
                {
                    "directory": each.directory,
                    "id": each.key.id,
                    "directory_id": uuid_text(each.key.directory),
                    "epoch": each.last.epoch,
                    "end": each.last.end,
                    "counts": plan.before.holds(each.key),
                }
                for each in self.left
            ],
            "chosen": plan.chosen.key.id,
            "before": [key.id for key in plan.before.keys],
            "unread": [key.id for key in plan.unread],
            "new_epoch": plan.epoch,
        }


def force(
    directories: Sequence[str], listen: Endpoint, *, servers: Sequence[Endpoint], execute: bool
) -> Forced:
    """Make the newest of these logs the only voter's; without `execute`, only say which.

    Opening a log does what a start does: it trims a torn tail.

    Raises:
        InvalidArgument: a majority is there, or the directories are not of one quorum.
        NotReady: somebody answers at a voter's address, or at one of the servers.
        ConfigError: a directory is not formatted, or abandoned.
        InTheWay: another process has one.
        LogCorrupt, HistoryLost: one does not hold; leave it out to go on without it.
    """
    with given_to_owner(directories[0], *directories[1:]):
        return asyncio.run(_force(directories, listen, servers, execute=execute))


async def _force(
    directories: Sequence[str], listen: Endpoint, servers: Sequence[Endpoint], *, execute: bool
) -> Forced:
    disk = LocalDisk()
    try:
        topic_ids = {await _begun(disk, each) for each in directories}
        if len(topic_ids) > 1:
            raise InvalidArgument("the directories are of different logs")
        (topic_id,) = topic_ids
        async with _opened(disk, directories, topic_id) as opened:
            clusters = {files.cluster_id for files in opened.values()}
            if len(clusters) > 1:
                raise InvalidArgument(f"the directories are of different clusters: {clusters}")
            left = [_left(directory, files) for directory, files in opened.items()]
            plan = forcing.plan(left, listen)
            voters = [at for voter in plan.before.voters for at in voter.endpoints]
            await _require_silence([*voters, *servers])
            if execute:
                await _write(opened[plan.chosen.directory], plan)
                await forget_withheld(disk, plan.chosen.directory)
                for each in left:
                    if each is not plan.chosen:
                        await note_abandoned(disk, each.directory, plan.epoch)
            return Forced(cluster_id=clusters.pop(), topic_id=topic_id, left=left, plan=plan)
    finally:
        disk.close()


async def _begun(disk: LocalDisk, directory: str) -> bytes:
    await require_not_abandoned(disk, directory)
    return await topic_id_of(disk, directory)


@asynccontextmanager
async def _opened(
    disk: LocalDisk, directories: Sequence[str], topic_id: bytes
) -> AsyncIterator[dict[str, ReplicaFiles]]:
    """Have all of them locked, so that none starts meanwhile."""
    opened: dict[str, ReplicaFiles] = {}
    try:
        for each in dict.fromkeys(directories):
            opened[each] = await ReplicaFiles.open(disk, each, topic=TOPIC, topic_id=topic_id)
        yield opened
    finally:
        for files in opened.values():
            await files.close()


def _left(directory: str, files: ReplicaFiles) -> Left:
    last = files.log.last
    saved = 0 if files.saved is None else files.saved.epoch
    return Left(
        directory=directory,
        key=files.key,
        last=last,
        epoch=max(saved, last.epoch),
        voters=files.voters.newest,
    )


async def _require_silence(endpoints: Sequence[Endpoint]) -> None:
    """Refuse while anybody listens where a replica was: it may be one that was acknowledged by."""
    for host, port in dict.fromkeys((at.host, at.port) for at in endpoints):
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                _, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            continue
        writer.close()
        raise NotReady(
            f"somebody answers at {host}:{port}: stop that replica, and give its directory, or a "
            "copy of it, as well; a voter that can be started is not lost"
        )


async def _write(files: ReplicaFiles, plan: Forcing) -> None:
    """Have the epoch on the disk before the voters who count in it."""
    await files.save(SavedState(plan.epoch))
    batch = plan.batch()
    data = log_batches.build(batch, timestamp_ms=time.time_ns() // 1_000_000)
    await files.write(msgspec.structs.replace(batch, payload=data))
    await files.sync()
