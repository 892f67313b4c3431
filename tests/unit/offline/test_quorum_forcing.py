"""`rlmm quorum force-voters` on directories: the newest log is taken, once and for all."""

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.quorum.files.formatted import (
    ABANDONED,
    TOPIC,
    note_withheld,
    require_may_run,
)
from rlmm_daemon.adapters.quorum.files.replica_files import ReplicaFiles
from rlmm_daemon.codec.kraft import log_batches
from rlmm_daemon.core.raft.forcing import FORCED_STEP
from rlmm_daemon.core.raft.inputs import SavedState
from rlmm_daemon.core.raft.log_facts import Batch, LogPoint
from rlmm_daemon.core.raft.turn import LeaderChange
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter, VotersAt, VoterSet
from rlmm_daemon.domain.errors import ConfigError, InvalidArgument, NotReady
from rlmm_daemon.offline import quorum_format
from rlmm_daemon.offline.quorum import forcing
from rlmm_daemon.offline.quorum.forcing import Forced

CLUSTER = "c2lkZWNhci1kZXYta2Fma2"
HERE = Endpoint("QUORUM", "127.0.0.1", 9393)
VOTERS = VoterSet.of(Voter(ReplicaKey(each, bytes([each]) * 16)) for each in (1, 2, 3))
TOPIC_ID = quorum_format.log_id(CLUSTER, VOTERS)


class Bench:
    """Directories of stopped replicas."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, node_id: int) -> str:
        return str(self._directory / str(node_id))

    def make(self, node_id: int, values: int, *, first: VoterSet | None = VOTERS) -> str:
        """Format a replica, and have so many records in its log."""
        quorum_format.write(
            quorum_format.plan(
                self.path(node_id),
                cluster_id=CLUSTER,
                node_id=node_id,
                directory_id=bytes([node_id]) * 16,
                topic_id=TOPIC_ID,
                first=first,
            )
        )
        asyncio.run(self._fill(node_id, values))
        return self.path(node_id)

    async def _fill(self, node_id: int, values: int) -> None:
        disk = LocalDisk()
        files = await self._open(disk, node_id)
        change = LeaderChange(3, (1, 2, 3), (2, 3), VotersAt(-1, VOTERS, 1))
        await files.save(SavedState(1))
        first = Batch(0, 3, 1, VOTERS, kraft_version=1, payload=change)
        for batch in (first, Batch(3, values, 1, payload=[(None, b"x")] * values)):
            data = log_batches.build(batch, timestamp_ms=0)
            await files.write(msgspec.structs.replace(batch, payload=data))
        await files.close()
        disk.close()

    async def _open(self, disk: LocalDisk, node_id: int) -> ReplicaFiles:
        return await ReplicaFiles.open(disk, self.path(node_id), topic=TOPIC, topic_id=TOPIC_ID)

    def found(self, node_id: int) -> tuple[LogPoint, VoterSet, int]:
        """Return a log's end, its voters, and the epoch in its state."""

        async def read() -> tuple[LogPoint, VoterSet, int]:
            disk = LocalDisk()
            files = await self._open(disk, node_id)
            await files.close()
            disk.close()
            assert files.saved is not None
            return files.log.last, files.voters.newest.voters, files.saved.epoch

        return asyncio.run(read())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def force(*directories: str, execute: bool = True, servers: Sequence[Endpoint] = ()) -> Forced:
    return forcing.force(directories, HERE, servers=servers, execute=execute)


def test_the_newest_log_goes_on_and_the_others_are_abandoned(bench):
    one, four = bench.make(1, 10), bench.make(4, 20, first=None)
    done = force(one, four)
    assert [key.id for key in done.plan.unread] == [2, 3]
    last, voters, epoch = bench.found(4)
    assert (last, epoch) == (LogPoint(FORCED_STEP, 26), FORCED_STEP)
    assert voters == VoterSet((Voter(ReplicaKey(4, b"\x04" * 16), (HERE,)),))
    assert (Path(one) / ABANDONED).exists()
    assert not (Path(four) / ABANDONED).exists()
    with pytest.raises(ConfigError, match="were forced"):
        force(one)


def test_the_last_log_that_has_what_voters_lost_may_go_on(bench):
    one, disk = bench.make(1, 10), LocalDisk()
    asyncio.run(note_withheld(disk, one, "the leader would have it cut"))
    with pytest.raises(ConfigError, match=f"force-voters {one}"):
        asyncio.run(require_may_run(disk, one))
    force(one, execute=False)
    with pytest.raises(ConfigError, match="the leader would have it cut"):
        asyncio.run(require_may_run(disk, one))
    force(one)
    asyncio.run(require_may_run(disk, one))
    disk.close()


def test_nothing_is_changed_before_it_is_said(bench):
    one, four = bench.make(1, 10), bench.make(4, 20, first=None)
    before = bench.found(1), bench.found(4)
    assert force(one, four, execute=False).plan.chosen.directory == four
    assert (bench.found(1), bench.found(4)) == before
    assert not (Path(one) / ABANDONED).exists()


def test_a_majority_that_is_there_is_started_instead(bench):
    one, two = bench.make(1, 10), bench.make(2, 5)
    with pytest.raises(InvalidArgument, match="they are a majority"):
        force(one, two)
    assert bench.found(1)[1] == VOTERS


def test_whoever_answers_is_not_lost(bench):
    one = bench.make(1, 10)
    with socket.create_server(("127.0.0.1", 0)) as other:
        there = Endpoint("QUORUM", "127.0.0.1", other.getsockname()[1])
        with pytest.raises(NotReady, match="somebody answers"):
            force(one, servers=[there])
    assert bench.found(1)[1] == VOTERS


def test_an_order_that_was_cut_short_can_be_given_again(bench, monkeypatch):
    one, four = bench.make(1, 10), bench.make(4, 5, first=None)

    async def dies(*_: object) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(ReplicaFiles, "write", dies)
        with pytest.raises(OSError, match="the disk is gone"):
            force(one, four)
    assert not (Path(four) / ABANDONED).exists(), "nobody gives up what may be the last log"
    assert bench.found(1)[1:] == (VOTERS, FORCED_STEP), "the epoch is there, and not the voters"
    assert force(one, four).plan.epoch == 2 * FORCED_STEP
    assert len(bench.found(1)[1].voters) == 1


def test_another_quorums_directory_is_refused(bench, tmp_path):
    one = bench.make(1, 10)
    other = str(tmp_path / "other")
    quorum_format.write(
        quorum_format.plan(
            other,
            cluster_id=CLUSTER,
            node_id=4,
            directory_id=None,
            topic_id=None,
            first=quorum_format.Alone(HERE),
        )
    )
    with pytest.raises(InvalidArgument, match="different logs"):
        force(one, other)
