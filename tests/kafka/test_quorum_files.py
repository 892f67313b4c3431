"""A replica's files and Kafka's own tools: it dumps ours, and ours opens what it formatted."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

from deploy.dev.stack.kafka.cluster import java, quick
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.quorum.files.identity import format_replica
from rlmm_daemon.adapters.quorum.files.replica_files import ReplicaFiles
from rlmm_daemon.codec import batches
from rlmm_daemon.codec.kraft import checkpoint, log_batches, small_files
from rlmm_daemon.codec.kraft.checkpoint_records import Event, Starts, pack
from rlmm_daemon.codec.kraft.record_key import FOUNDING, GRANT, RecordKey, pack_count
from rlmm_daemon.core.quorum_log.checkpoint import counters
from rlmm_daemon.core.quorum_log.fold import LogFold
from rlmm_daemon.core.raft.inputs import SavedState
from rlmm_daemon.core.raft.log_facts import BEGINNING, Batch, LogPoint
from rlmm_daemon.core.raft.turn import LeaderChange
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter, VotersAt, VoterSet
from rlmm_daemon.domain.ids import uuid_text
from tests.kafka.controllers_rig import controllers
from tests.unit.daemon import events

TOPIC: Final = "__cluster_metadata"
TOPIC_ID: Final = bytes(15) + b"\x01"
CLUSTER_ID: Final = "c2lkZWNhci1kZXYta2Fma2"
NOW_MS: Final = 1_700_000_000_000
VOTERS: Final = VoterSet.of(
    Voter(ReplicaKey(n, bytes([n]) * 16), (Endpoint("CONTROLLER", "localhost", 19_090 + n),))
    for n in (1, 2, 3)
)


def tool(main: str, *arguments: str) -> str:
    """Return what a tool of Kafka's prints."""
    command = [*java("-Xmx128m", *quick()), main, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def dumped(file: Path, *options: str) -> str:
    return tool("org.apache.kafka.tools.DumpLogSegments", *options, "--files", str(file))


def built(batch: Batch) -> Batch:
    (read,) = log_batches.read(log_batches.build(batch, timestamp_ms=NOW_MS))
    return read


def records_of(data: bytes) -> list[bytes]:
    """Return each batch but for its checksum and its times."""
    return [
        batch.payload[:6] + batch.payload[22:]  # attributes and last delta; producer to the end
        for batch in batches.split(data)
    ]


@pytest.fixture
async def ours(tmp_path: Path) -> Path:
    """A directory of ours: two epochs, two events, a change of voters, a snapshot."""
    disk, home = LocalDisk(), str(tmp_path / "ours")
    await format_replica(
        disk,
        home,
        cluster_id=CLUSTER_ID,
        node_id=1,
        voters=VOTERS,
        topic=TOPIC,
        topic_id=TOPIC_ID,
        directory_id=bytes([1]) * 16,
    )
    files = await ReplicaFiles.open(disk, home, topic=TOPIC, topic_id=TOPIC_ID)
    await files.save(SavedState(3, 1, ReplicaKey(1, bytes([1]) * 16)))
    rows = [(b"key", events.started(1, 0, 9)), (None, events.updated(1))]
    bootstrap = VotersAt(-1, VOTERS, 1)
    for batch in (
        Batch(0, 3, 3, payload=LeaderChange(1, (1, 2, 3), (1, 2), bootstrap)),
        Batch(3, 2, 3, payload=rows),
        Batch(5, 1, 3, payload=VOTERS.without(3)),
        Batch(6, 1, 4, payload=LeaderChange(2, (1, 2), (1, 2))),
    ):
        await files.write(built(batch))
    await files.sync()
    await files.make_snapshot(LogPoint(3, 6), rows, timestamp_ms=NOW_MS, last_timestamp_ms=NOW_MS)
    await files.close()
    disk.close()
    return Path(home) / f"{TOPIC}-0"


async def test_kafkas_dump_reads_our_log(ours: Path) -> None:
    said = dumped(ours / f"{0:020}.log", "--remote-log-metadata-decoder")
    assert "baseOffset: 0 lastOffset: 2 count: 3" in said
    assert said.count("isvalid: true") == said.count("baseOffset: ") == 4
    assert said.count("isControl: true") == 3
    assert "LeaderChange: {" in said
    assert '"leaderId":1,"voters":[{"voterId":1},{"voterId":2},{"voterId":3}]' in said
    assert 'KRaftVersion {"version":0,"kRaftVersion":1}' in said
    assert f'"voterDirectoryId":"{uuid_text(bytes([2]) * 16)}"' in said
    assert '"host":"localhost","port":19092' in said
    assert "RemoteLogSegmentMetadata{" in said
    assert "RemoteLogSegmentMetadataUpdate{" in said


async def test_kafkas_dump_reads_our_snapshot_and_our_bootstraps_checkpoint(ours: Path) -> None:
    said = dumped(ours / checkpoint.name(LogPoint(3, 6)), "--remote-log-metadata-decoder")
    assert f'SnapshotHeader {{"version":0,"lastContainedLogTimestamp":{NOW_MS}}}' in said
    assert "RemoteLogSegmentMetadata{" in said
    assert '"voterId":2' in said
    assert '"voterId":3' not in said
    assert 'SnapshotFooter {"version":0}' in said
    first = dumped(ours / checkpoint.name(BEGINNING), "--cluster-metadata-decoder")
    assert 'KRaftVersion {"version":0,"kRaftVersion":1}' in first
    assert '"voterId":3' in first


def test_kafkas_dump_reads_a_checkpoint_of_our_event_log(tmp_path: Path) -> None:
    """Its counters, which are no events, and the events behind them."""
    fold = LogFold()
    fold.apply(3, RecordKey(FOUNDING, 1, 0, 0), pack_count(2))
    fold.apply(3, RecordKey(GRANT, 1, 1, 0), bytes(16))
    rows = [events.started(1, 0, 9), events.updated(1), None]
    for serial, value in enumerate(rows, 1):
        fold.apply(3, RecordKey(0, 1, 1, serial), value)
    point = LogPoint(3, 9)
    builder = checkpoint.Builder(point, timestamp_ms=NOW_MS)
    data = builder.begin(VotersAt(-1, VOTERS, 1), last_timestamp_ms=NOW_MS)
    data += builder.data([pack(each) for each in counters(fold, {})])
    kept = [Event(0, offset, value) for offset, value in enumerate(rows)]
    data += builder.data([pack(Starts((0, 0))), *map(pack, kept)])
    file = tmp_path / checkpoint.name(point)
    file.write_bytes(data + builder.end())
    said = dumped(file, "--remote-log-metadata-decoder")
    assert said.count("isvalid: true") == said.count("baseOffset: ") == 4
    assert "RemoteLogSegmentMetadata{" in said
    assert "RemoteLogSegmentMetadataUpdate{" in said
    assert 'SnapshotFooter {"version":0}' in said


def test_kafkas_tool_takes_our_identity_for_a_formatted_directory(ours: Path) -> None:
    properties = ours.parents[1] / "server.properties"
    properties.write_text(
        f"process.roles=controller\nnode.id=1\nlog.dirs={ours.parent}\n"
        "controller.quorum.bootstrap.servers=localhost:19091\n"
        "listeners=CONTROLLER://localhost:19091\ncontroller.listener.names=CONTROLLER\n"
    )
    said = tool("kafka.tools.StorageTool", "info", "-c", str(properties))
    known = f"cluster.id={CLUSTER_ID}, directory.id={uuid_text(bytes([1]) * 16)}, node.id=1"
    assert f"Found metadata: {{{known}, version=1}}" in said
    assert "Found problem" not in said


async def test_ours_opens_what_kafkas_tool_formatted(tmp_path: Path) -> None:
    home = tmp_path / "theirs"
    properties = tmp_path / "server.properties"
    properties.write_text(
        f"process.roles=controller\nnode.id=2\nlog.dirs={home}\n"
        "controller.quorum.bootstrap.servers=localhost:19092\n"
        "listeners=CONTROLLER://localhost:19092\ncontroller.listener.names=CONTROLLER\n"
    )
    keys = {n: uuid_text(bytes([n]) * 16) for n in (1, 2, 3)}
    initial = ",".join(f"{n}@localhost:{19_090 + n}:{keys[n]}" for n in keys)
    options = ("-t", CLUSTER_ID, "--initial-controllers", initial, "-c", str(properties))
    tool("kafka.tools.StorageTool", "format", *options)
    first = (home / f"{TOPIC}-0" / checkpoint.name(BEGINNING)).read_bytes()
    said = checkpoint.read(first, BEGINNING).last_timestamp_ms
    assert records_of(first) == records_of(checkpoint.bootstrap(VOTERS, timestamp_ms=said))
    disk = LocalDisk()
    files = await ReplicaFiles.open(disk, str(home), topic=TOPIC, topic_id=TOPIC_ID)
    assert files.key == ReplicaKey(2, bytes([2]) * 16)
    assert (files.cluster_id, files.log.end) == (CLUSTER_ID, 0)
    assert files.voters.newest == VotersAt(-1, VOTERS, 1)
    await files.close()
    meta = small_files.decode_meta((home / "meta.properties").read_bytes())
    assert meta.node_id == 2
    again = await ReplicaFiles.open(disk, str(home), topic=TOPIC, topic_id=TOPIC_ID)
    assert again.voters == files.voters
    await again.close()
    disk.close()


async def test_ours_opens_what_a_killed_controller_left(tmp_path: Path) -> None:
    """A log, snapshots and a vote of Kafka's own, its index files beside them."""
    async with controllers(tmp_path) as quorum:
        await quorum.until(lambda: len(quorum.snapshots(1)) > 1, "it made snapshots")
        for number in (1, 2, 3):
            quorum.kill(number)
        home = tmp_path / "1/data"
        files = await ReplicaFiles.open(quorum.disk, str(home), topic=TOPIC, topic_id=TOPIC_ID)
        assert files.key == ReplicaKey(1, bytes([1]) * 16)
        assert files.saved is not None
        assert files.saved.epoch == files.log.last_epoch > 0
        assert {voter.key.id for voter in files.voters.newest.voters.voters} == {1, 2, 3}
        assert (files.voters.newest.offset, files.voters.newest.kraft_version) == (0, 1)
        assert len(files.log.snapshots) > 1
        at = files.log.start
        while at < files.log.end:
            at = log_batches.read(await files.read(at, files.log.end, 10_000))[-1].end
        log, voters = files.log, files.voters
        await files.begin_at(log.snapshots[-1])
        await files.close()
        again = await ReplicaFiles.open(quorum.disk, str(home), topic=TOPIC, topic_id=TOPIC_ID)
        assert (again.log.start, again.log.end) == (log.snapshots[-1].end, log.end)
        assert again.voters.newest.voters == voters.newest.voters
        await again.close()
