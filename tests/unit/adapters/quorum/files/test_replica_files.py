"""A replica's directory through its lives: formatted, written, cut, synced, opened again."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.quorum.files.identity import format_replica
from rlmm_daemon.adapters.quorum.files.replica_files import ReplicaFiles
from rlmm_daemon.codec.kraft import log_batches
from rlmm_daemon.core.raft.inputs import SavedState
from rlmm_daemon.core.raft.log_facts import Batch, LogPoint
from rlmm_daemon.core.raft.turn import LeaderChange
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter, VotersAt, VoterSet
from rlmm_daemon.domain.errors import ConfigError

TOPIC = "__rlmm_quorum"
TOPIC_ID = bytes(15) + b"\x07"
CLUSTER = "c2lkZWNhci1kZXYta2Fma2"


def key(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id, bytes([node_id]) * 16)


def voter(node_id: int) -> Voter:
    return Voter(key(node_id), (Endpoint("QUORUM", f"host{node_id}", 9_000 + node_id),))


VOTERS = VoterSet.of(voter(node_id) for node_id in (1, 2, 3))


def built(batch: Batch) -> Batch:
    """Return a batch with its bytes, as it comes from the wire."""
    (read,) = log_batches.read(log_batches.build(batch, timestamp_ms=1_700_000_000_000))
    return read


def first(epoch: int, base: int = 0, leader: int = 1) -> Batch:
    """Return the batch that begins a leader's epoch."""
    bootstrap = VotersAt(-1, VOTERS, 1) if base == 0 else None
    change = LeaderChange(leader, (1, 2, 3), (1, 2), bootstrap)
    return built(Batch(base, 3 if base == 0 else 1, epoch, payload=change))


def data(base: int, epoch: int, *values: bytes) -> Batch:
    """Return a batch of values."""
    return built(Batch(base, len(values), epoch, payload=[(b"key", each) for each in values]))


class Bench:
    """A directory on the real disk."""

    def __init__(self, directory: Path) -> None:
        self.disk = LocalDisk()
        self.directory = directory
        self.log = directory / f"{TOPIC}-0"

    async def format(self, voters: VoterSet | None = VOTERS) -> ReplicaKey:
        return await format_replica(
            self.disk,
            str(self.directory),
            cluster_id=CLUSTER,
            node_id=1,
            voters=voters,
            topic=TOPIC,
            topic_id=TOPIC_ID,
            directory_id=key(1).directory,
        )

    async def open(self, **options: Any) -> ReplicaFiles:
        return await ReplicaFiles.open(
            self.disk, str(self.directory), topic=TOPIC, topic_id=TOPIC_ID, **options
        )

    async def write(self, files: ReplicaFiles, *batches: Batch) -> None:
        for batch in batches:
            await files.write(batch)
        await files.sync()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path / "quorum")
    yield bench
    bench.disk.close()


async def test_a_formatted_directory_is_a_replica_that_knows_its_first_voters(bench: Bench) -> None:
    assert await bench.format() == key(1)
    files = await bench.open()
    assert (files.key, files.cluster_id, files.saved) == (key(1), CLUSTER, SavedState())
    assert (files.log.start, files.log.end, files.log.last) == (0, 0, LogPoint(0, 0))
    assert files.voters.newest == VotersAt(-1, VOTERS, 1)
    await files.close()
    with pytest.raises(ConfigError, match="formatted already"):
        await bench.format()


async def test_what_was_saved_and_written_is_found_again(bench: Bench) -> None:
    await bench.format()
    files = await bench.open()
    state = SavedState(4, None, key(2))
    await files.save(state)
    batches = [first(4), data(3, 4, b"one", b"two"), first(6, 5), data(6, 6, b"three")]
    await bench.write(files, *batches)
    assert files.log.synced == files.log.end == 7
    read = await files.read(3, 7, 1 << 20)
    assert log_batches.read(read) == tuple(batches[1:])
    before = files.log, files.voters
    await files.close()
    again = await bench.open()
    assert (again.log, again.voters) == before
    assert again.saved == state
    assert again.voters.newest.offset == 0
    assert await again.read(4, 6, 1) == batches[1].payload
    await again.truncate(5)
    assert again.log.last == LogPoint(4, 5)
    await bench.write(again, data(5, 4, b"other"))
    await again.close()
    once_more = await bench.open()
    assert once_more.log == again.log
    assert once_more.log.epochs == ((4, 0),)
    await once_more.close()
