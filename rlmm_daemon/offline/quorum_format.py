"""Formatting of a replica's directory (`rlmm quorum format`)."""

import asyncio
import hashlib
import os
import time
from typing import Any, Final

import msgspec

from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.quorum.files.formatted import TOPIC
from rlmm_daemon.adapters.quorum.files.identity import format_replica
from rlmm_daemon.adapters.quorum.files.layout import Layout
from rlmm_daemon.codec.kraft import small_files
from rlmm_daemon.core.raft.log_facts import BEGINNING
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from rlmm_daemon.domain.errors import ConfigError, InTheWay, InvalidArgument
from rlmm_daemon.domain.ids import UUID_BYTES, uuid_text
from rlmm_daemon.offline.ownership import given_to_owner

#: Kafka keeps the first ones for directories that are lost, unknown or not there yet.
_RESERVED: Final = 100


class Alone(msgspec.Struct, frozen=True):
    """The only first voter, and where it listens."""

    endpoint: Endpoint


class FormatPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a directory is to become."""

    directory: str
    cluster_id: str
    key: ReplicaKey
    topic: str
    topic_id: bytes
    #: None: it joins a quorum that is there.
    voters: VoterSet | None

    @property
    def files(self) -> list[str]:
        """The files that it will hold."""
        layout = Layout(self.directory, self.topic)
        first = [] if self.voters is None else [layout.snapshot(BEGINNING)]
        rest = (layout.segment(0), layout.epochs, layout.recovery_point, layout.log_start)
        paths = [*first, *rest, layout.quorum_state, layout.partition, layout.meta]
        return [path.removeprefix(f"{self.directory}/") for path in paths]

    def told(self) -> dict[str, Any]:
        """Return it for machines."""
        voters = () if self.voters is None else self.voters.voters
        return {
            "directory": self.directory,
            "cluster_id": self.cluster_id,
            "node_id": self.key.id,
            "directory_id": uuid_text(self.key.directory),
            "topic_id": uuid_text(self.topic_id),
            "voters": [
                {
                    "id": voter.key.id,
                    "directory_id": uuid_text(voter.key.directory),
                    "listeners": [f"{at.host}:{at.port}" for at in voter.endpoints],
                }
                for voter in voters
            ],
            "files": self.files,
        }


def plan(
    directory: str,
    *,
    cluster_id: str,
    node_id: int,
    directory_id: bytes | None,
    topic_id: bytes | None,
    first: Alone | VoterSet | None,
) -> FormatPlan:
    """Return what would be written; nothing is.

    Raises:
        InvalidArgument: an id that is none, or a list of voters that is not this replica's.
        ConfigError: the directory is formatted already.
    """
    key = ReplicaKey(node_id, directory_id or _drawn(node_id, first))
    voters = VoterSet((Voter(key, (first.endpoint,)),)) if isinstance(first, Alone) else first
    small_files.encode_meta(
        small_files.MetaProperties(
            cluster_id=cluster_id, node_id=node_id, directory_id=key.directory
        )
    )
    _require_mine(key, voters)
    if topic_id is None:
        if voters is None:
            raise InvalidArgument(
                "--join needs --topic-id: format printed it for the first voters, and "
                f"{TOPIC}-0/{small_files.PARTITION_METADATA} in any replica's directory has it"
            )
        topic_id = log_id(cluster_id, voters)
    directory = directory.rstrip("/") or "/"
    meta = Layout(directory, TOPIC).meta
    if os.path.lexists(meta):
        raise ConfigError(f"{meta} is there: the directory is formatted already")
    return FormatPlan(
        directory=directory,
        cluster_id=cluster_id,
        key=key,
        topic=TOPIC,
        topic_id=topic_id,
        voters=voters,
    )


def write(plan: FormatPlan) -> None:
    """Make the directory.

    Raises:
        ConfigError: it is formatted, or holds a log.
        InTheWay: another process has it.
        InvalidArgument: an id that is none.
    """
    with given_to_owner(plan.directory):
        asyncio.run(_write(plan))


async def _write(plan: FormatPlan) -> None:
    disk = LocalDisk()
    try:
        await format_replica(
            disk,
            plan.directory,
            cluster_id=plan.cluster_id,
            node_id=plan.key.id,
            voters=plan.voters,
            topic=plan.topic,
            topic_id=plan.topic_id,
            directory_id=plan.key.directory,
            timestamp_ms=time.time_ns() // 1_000_000,
        )
    except BlockingIOError as error:
        raise InTheWay(f"{plan.directory}: another process has it open") from error
    finally:
        disk.close()


def log_id(cluster_id: str, voters: VoterSet) -> bytes:
    """Return the id of the log that these voters begin, the same on each of their machines.

    Directories have random ids, so a quorum that is formatted anew begins another log: what an old
    replica holds is never cut to what the new quorum has.
    """
    parts = [cluster_id, *(f"{key.id}@{key.directory.hex()}" for key in voters.keys)]
    drawn = hashlib.sha256("\n".join(["rlmm quorum", *parts]).encode()).digest()[:UUID_BYTES]
    assert int.from_bytes(drawn, "big") >= _RESERVED, "one in 2^121"
    return drawn


def _drawn(node_id: int, first: Alone | VoterSet | None) -> bytes:
    """Return the id that the list of voters has for this replica, else a random one."""
    mine = first.find(node_id) if isinstance(first, VoterSet) else None
    return os.urandom(UUID_BYTES) if mine is None else mine.key.directory


def _require_mine(key: ReplicaKey, voters: VoterSet | None) -> None:
    """Refuse a list of voters without this replica: it would wait for itself for ever."""
    if voters is None:
        return
    mine = voters.find(key.id)
    if mine is None:
        raise InvalidArgument(f"no --voter has the id {key.id}; an observer takes --join")
    if mine.key != key:
        raise InvalidArgument(
            f"--voter says that directory {uuid_text(mine.key.directory)} is replica {key.id}'s, "
            f"and --directory-id {uuid_text(key.directory)}"
        )
