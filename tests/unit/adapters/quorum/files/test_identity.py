"""Formatting of a directory, once; and what has to be there ever after."""

import errno
from pathlib import Path
from typing import Any

import pytest

from rlmm_daemon.adapters.quorum.files.identity import format_replica
from rlmm_daemon.codec.kraft import checkpoint, small_files
from rlmm_daemon.core.raft.inputs import SavedState
from rlmm_daemon.core.raft.log_facts import BEGINNING
from rlmm_daemon.core.raft.voters import NO_DIRECTORY, VotersAt, VoterSet
from rlmm_daemon.domain.errors import (
    ConfigError,
    HistoryLost,
    InTheWay,
    InvalidArgument,
    LogCorrupt,
)
from tests.unit.adapters.event_log.embedded.faulty_disk import FaultyDisk
from tests.unit.adapters.quorum.files.test_replica_files import (
    CLUSTER,
    TOPIC,
    TOPIC_ID,
    VOTERS,
    Bench,
    bench,
    data,
    first,
    key,
)

__all__ = ["bench"]

ARGUMENTS: dict[str, Any] = {
    "cluster_id": CLUSTER,
    "node_id": 1,
    "voters": VOTERS,
    "topic": TOPIC,
    "topic_id": TOPIC_ID,
    "directory_id": key(1).directory,
}


@pytest.mark.parametrize(
    "changed",
    [
        {"cluster_id": ""},
        {"node_id": -1},
        {"directory_id": NO_DIRECTORY},
        {"directory_id": bytes(15) + b"\x01"},
        {"directory_id": b"short"},
        {"directory_id": key(2).directory},
        {"topic": "a/b"},
    ],
    ids=str,
)
async def test_nothing_is_made_of_what_is_no_identity(
    bench: Bench, changed: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument):
        await format_replica(bench.disk, str(bench.directory), **ARGUMENTS | changed)
    assert not bench.directory.exists()


async def test_a_directory_that_joins_knows_nobody_and_never_leads(bench: Bench) -> None:
    await bench.format(voters=None)
    assert not list(bench.log.glob("*.checkpoint"))
    files = await bench.open()
    assert files.voters.newest == VotersAt(-1, VoterSet(), 1)
    await files.close()


async def test_a_format_that_failed_is_repeated(bench: Bench) -> None:
    steps = 0
    while not (bench.directory / "meta.properties").exists():
        disk = FaultyDisk(bench.disk)
        disk.fail_at(steps, errno.ENOSPC)
        steps += 1
        try:
            await format_replica(disk, str(bench.directory), **ARGUMENTS)
        except OSError:
            assert not (bench.directory / "meta.properties").exists()
    assert steps > 10
    files = await bench.open()
    assert files.voters.newest == VotersAt(-1, VOTERS, 1)
    await files.close()


async def test_a_log_without_an_identity_is_not_formatted_over(bench: Bench) -> None:
    await bench.format()
    files = await bench.open()
    await bench.write(files, first(1))
    await files.close()
    (bench.directory / "meta.properties").unlink()
    with pytest.raises(ConfigError, match="holds a log"):
        await bench.format()
    with pytest.raises(ConfigError, match="not formatted for a quorum"):
        await bench.open()


async def test_one_process_at_a_time_has_it(bench: Bench) -> None:
    await bench.format()
    files = await bench.open()
    with pytest.raises(InTheWay, match="another process has it"):
        await bench.open()
    await files.close()
    await (await bench.open()).close()


async def test_another_topics_directory_is_refused(bench: Bench) -> None:
    await bench.format()
    path = bench.log / "partition.metadata"
    path.write_bytes(small_files.encode_partition(bytes(15) + b"\x08"))
    with pytest.raises(LogCorrupt, match="AAAAAAAAAAAAAAAAAAAACA, not AAAAAAAAAAAAAAAAAAAABw"):
        await bench.open()


def formatted_by_kafka(directory: Path, log: Path) -> None:
    """What `kafka-storage format --initial-controllers` leaves."""
    log.mkdir(parents=True)
    meta = b"#\n#Thu Nov 26 04:33:50 UTC 2026\nnode.id=1\ndirectory.id=AQEBAQEBAQEBAQEBAQEBAQ\n"
    meta += b"version=1\ncluster.id=c2lkZWNhci1kZXYta2Fma2\n"
    (directory / "meta.properties").write_bytes(meta)
    (directory / "bootstrap.checkpoint").write_bytes(b"not the quorum's")
    voters = checkpoint.bootstrap(VOTERS, timestamp_ms=1)
    (log / checkpoint.name(BEGINNING)).write_bytes(voters)


async def test_what_kafkas_tool_formatted_becomes_a_replica(bench: Bench) -> None:
    formatted_by_kafka(bench.directory, bench.log)
    files = await bench.open()
    assert (files.key, files.saved) == (key(1), SavedState())
    assert files.voters.newest == VotersAt(-1, VOTERS, 1)
    await files.save(SavedState(1, None, key(1)))
    await bench.write(files, first(1))
    await files.close()
    again = await bench.open()
    assert again.log.end == 3
    await again.close()


async def test_an_opening_of_what_kafkas_tool_formatted_may_fail_anywhere(bench: Bench) -> None:
    formatted_by_kafka(bench.directory, bench.log)
    whole, steps = bench.disk, 0
    while True:
        faulty = FaultyDisk(whole)
        faulty.fail_at(steps, errno.EIO)
        steps += 1
        bench.disk = faulty  # type: ignore[assignment] # a disk by its methods
        try:
            files = await bench.open()
        except OSError:
            continue
        finally:
            bench.disk = whole
        faulty.heal()
        await files.close()
        break
    assert steps > 20


@pytest.mark.parametrize("gone", ["partition.metadata", "quorum-state", "00000000000000000000.log"])
async def test_a_replica_that_lost_its_log_or_its_vote_is_refused(bench: Bench, gone: str) -> None:
    await bench.format()
    files = await bench.open()
    await files.save(SavedState(5, None, key(2)))
    await bench.write(files, first(5), data(3, 5, b"one"))
    await files.close()
    (bench.log / gone).unlink()
    with pytest.raises(HistoryLost, match="format it anew"):
        await bench.open()


async def test_a_quorum_without_directories_keeps_its_vote_in_the_old_form(bench: Bench) -> None:
    await bench.format(voters=None)
    files = await bench.open(static_voters=VOTERS)
    assert files.voters.newest == VotersAt(-1, VOTERS, 0)
    await files.save(SavedState(2, None, key(3)))
    await files.close()
    line = (bench.log / "quorum-state").read_bytes().splitlines()[0]
    assert line == (
        b'{"clusterId":"","leaderId":-1,"leaderEpoch":2,"votedId":3,"appliedOffset":0,'
        b'"currentVoters":[{"voterId":1},{"voterId":2},{"voterId":3}],"data_version":0}'
    )
    again = await bench.open(static_voters=VOTERS)
    assert again.saved is not None
    assert again.saved.voted is not None
    assert (again.saved.epoch, again.saved.voted.id) == (2, 3)
    await again.close()
