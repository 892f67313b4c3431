"""A directory that is another log's by now: a daemon that runs never goes on with it."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from rlmm_daemon.adapters.quorum.files.identity import format_replica
from rlmm_daemon.adapters.quorum.files.replica_files import ReplicaFiles
from rlmm_daemon.core.raft.voters import VoterSet
from rlmm_daemon.domain.errors import HistoryLost, StorageUnavailable
from tests.contract.event_log import P0, read
from tests.support.quorum import CLUSTER_ID, TOPIC, Quorum, quorum_of_ours
from tests.unit.adapters.quorum.event_log.test_log import log_at, until


@contextmanager
def failing_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have no replica's disk sync anything as long as the block lasts."""

    async def fails(*_: object) -> None:
        raise OSError(errno.EIO, "the disk failed")

    with monkeypatch.context() as patch:
        patch.setattr(ReplicaFiles, "sync", fails)
        yield


async def replace(quorum: Quorum, number: int) -> None:
    """Format an empty disk anew in the place of a quorum of one, as a quorum of its own."""
    directory = quorum.directory(number)
    shutil.move(directory, directory.with_suffix(".old"))
    await format_replica(
        quorum.disk,
        str(directory),
        cluster_id=CLUSTER_ID,
        node_id=number,
        voters=VoterSet((quorum.voter(number),)),
        topic=TOPIC,
        topic_id=b"another quorum's",
        directory_id=quorum.key(number).directory,
    )


async def test_another_quorum_in_the_place_of_a_lost_disk_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with quorum_of_ours(tmp_path, voters=1) as quorum:
        await quorum.stop(1)
        async with log_at(quorum, 1) as log:
            own = log._replica
            own._options = msgspec.structs.replace(own._options, topic_id=None)
            await log.open(create=True)
            assert await log.append(P0, b"acknowledged") == 0
            with failing_disk(monkeypatch):
                told: list[object] = []
                log.begin_append(P0, b"on its way", told.append)
                await until(lambda: own.node is None)
                await replace(quorum, 1)
            await until(lambda: own.node is not None or "another log" in own.told())
            assert own.node is None
            with pytest.raises(StorageUnavailable, match="another log"):
                log.begin_append(P0, b"refused", lambda _: pytest.fail("it was refused"))
            directory = quorum.directory(1)
            shutil.rmtree(directory)
            shutil.move(directory.with_suffix(".old"), directory)
            await until(lambda: own.node is not None)
            await until(lambda: bool(told))
            assert told == [1]
            assert await read(log, P0, 0, 2) == [(0, b"acknowledged"), (1, b"on its way")]


async def test_an_older_copy_in_the_place_of_a_lost_disk_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was folded of the former log is none of its, as far as the offsets are the same."""
    async with quorum_of_ours(tmp_path, voters=1) as quorum:
        await quorum.stop(1)
        directory, backup = quorum.directory(1), tmp_path / "backup"
        async with log_at(quorum, 1) as log:
            await log.open(create=True)
        shutil.copytree(directory, backup)
        async with log_at(quorum, 1) as log:
            await log.open(create=False)
            for value in (b"acknowledged", b"so, too"):
                await log.append(P0, value)
            with failing_disk(monkeypatch):
                log.begin_append(P0, b"on its way", lambda _: None)
                await until(lambda: log._replica.node is None)
                shutil.move(directory, tmp_path / "lost")
            shutil.copytree(backup, directory)
            await until(lambda: log._replica.node is not None or log._replica._failure is not None)
            with pytest.raises(HistoryLost, match="an older copy"):
                await log.epoch_end(P0, 1)
            with pytest.raises(HistoryLost, match="an older copy"):
                log.begin_append(P0, b"refused", lambda _: pytest.fail("it was refused"))
        async with log_at(quorum, 1) as log:
            await log.open(create=False)
            assert await log.append(P0, b"anew") == 0


async def test_what_a_new_disk_was_not_given_again_yet_is_not_called_damaged(
    tmp_path: Path,
) -> None:
    """A partition that is read meanwhile goes on by itself, and not by an operator's word."""
    async with quorum_of_ours(tmp_path, voters=1) as quorum:
        await quorum.stop(1)
        async with log_at(quorum, 1) as log:
            await log.open(create=True)
            end = log._node.log.end
            with pytest.raises(OSError, match="again yet"):
                await log.folding._read(end, end + 1)
