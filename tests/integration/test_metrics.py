"""The admin port: what it says of a daemon that is well, and what moves when it is not."""

import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from rlmm_daemon.domain.errors import RlmmError, SegmentNotFound, StorageFull
from rlmm_daemon.domain.segment import (
    SegmentState,
)
from tests.support import full_disk
from tests.support.fork_server import ForkServer
from tests.support.stocked_daemon import Stocked, eventually, flip, free_address, make, update

FINISHED = SegmentState.COPY_SEGMENT_FINISHED


@pytest.fixture
def it(tmp_path: Path, forks: ForkServer) -> Iterator[Stocked]:
    stocked = make(tmp_path, forks, {"admin.listen": free_address()})
    with stocked.daemon:
        yield stocked


# Signals.


def test_health_readiness_and_metrics_tell_how_things_are(it):
    it.stock()
    assert it.admin("/healthz") == (200, "ok\n")
    status, body = it.admin("/readyz")
    assert status == 200
    assert msgspec.json.decode(body)["ready"] is True
    finished = 'rlmm_segments{state="COPY_SEGMENT_FINISHED"}'
    metrics = eventually(it.metrics, lambda found: found.get(finished) == 6)
    assert metrics["rlmm_ready"] == 1
    assert metrics['rlmm_metadata_partitions{state="ready"}'] >= 2
    assert metrics['rlmm_user_partitions_announced{role="leader"}'] == 2
    assert metrics['rlmm_events_total{outcome="applied"}'] == 12
    assert metrics['rlmm_copies_total{outcome="ok"}'] == 6
    assert metrics["rlmm_copy_bytes_total"] > 6 * 40_000
    assert metrics['rlmm_requests_total{method="copy_segment",outcome="ok"}'] == 6
    assert metrics["rlmm_connections_accepted_total"] >= 2
    assert metrics['rlmm_appends_total{outcome="ok"}'] == 12
    for name in ("rlmm_append_duration_seconds", "rlmm_apply_wait_duration_seconds"):
        assert metrics[f"{name}_count"] == 12
        assert metrics[f"{name}_sum"] > 0
    assert metrics["rlmm_log_sync_records_sum"] == 12
    assert 1 <= metrics["rlmm_log_sync_duration_seconds_count"] <= 12
    assert metrics["rlmm_log_writable"] == 1
    assert metrics["rlmm_apply_waiters"] == 0
    assert metrics["rlmm_replay_duration_seconds_count"] >= 2


def test_closed_segments_that_wait_to_be_copied_are_told_by_topic(it):
    it.stock()
    bytes_left = sum(
        each.metadata.segment_size_bytes for placed in it.placed.values() for each in placed[3:-1]
    )
    count = sum(len(placed[3:-1]) for placed in it.placed.values())
    assert count > 0, "the newest of each is not closed"
    segments = 'rlmm_topic_copy_lag_segments{topic="orders"}'
    metrics = eventually(it.metrics, lambda found: found.get(segments) == count)
    assert metrics['rlmm_topic_copy_lag_bytes{topic="orders"}'] == bytes_left
    assert metrics['rlmm_topic_copy_lag_seconds{topic="orders"}'] >= 0
    assert it.json("status")["copy_lag"]["segments"] == count
    assert "closed segments" in it.rlmm("top", "--count", "1", "--every", "0.1").stdout
    it.copy_new(0)
    eventually(it.metrics, lambda found: found[segments] == count - 1)


def test_the_log_is_writable_again_once_there_is_room_though_nobody_writes(tmp_path, forks):
    flag = tmp_path / "full"

    full = {full_disk.VARIABLE: f"{tmp_path}/var/state={flag}"}

    def spawn(launch):
        return forks(replace(launch, environment={**launch.environment, **full}))

    it = make(tmp_path, spawn, {"admin.listen": free_address()})
    with it.daemon:
        it.stock()
        it.daemon.kill()  # else the log has room in its files
        flag.touch()
        it.start()
        with pytest.raises(StorageFull):
            it.copy_new(0)
        eventually(it.metrics, lambda found: found["rlmm_log_writable"] == 0)
        flag.unlink()
        eventually(it.metrics, lambda found: found["rlmm_log_writable"] == 1)
        it.copy_new(0, 255)


def test_open_connections_are_counted_by_their_role(it):
    with it.daemon.client() as client:
        client.status()
        counted = 'rlmm_connections_open{role="operator"}'
        eventually(it.metrics, lambda found: found.get(counted) == 1)
    metrics = eventually(it.metrics, lambda found: found.get(counted) == 0)
    assert metrics['rlmm_connections_open{role="new"}'] == 0
    assert metrics["rlmm_buffered_bytes"] == 0


def test_trouble_moves_a_metric(it):
    it.stock()
    assert it.rlmm("snapshot", "now").exit_code == 0
    # A malformed frame, a refused write, a copy that fails.
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(it.daemon.socket_path)
        raw.sendall(b"\0\0\0\1\xc1")
        assert raw.recv(65_536)
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(it.daemon.socket_path)
        raw.sendall(b"\x7f\xff\xff\xff")
        assert raw.recv(65_536)
    segment = it.next(0)
    with it.daemon.client() as client:
        with pytest.raises(SegmentNotFound):
            client.update_remote_log_segment_metadata(update(segment.metadata, FINISHED))
        with pytest.raises(RlmmError):
            client.copy_segment(replace(segment.metadata, segment_size_bytes=1), segment.files)
    wanted = {
        "rlmm_frames_malformed_total",
        'rlmm_limit_reached_total{limit="frame_bytes_max"}',
        'rlmm_copies_total{outcome="invalid_argument"}',
        'rlmm_requests_total{method="copy_segment",outcome="invalid_argument"}',
        'rlmm_requests_total{method="update_remote_log_segment_metadata",outcome="segment_not_found"}',
        'rlmm_snapshots_total{outcome="written"}',
    }
    eventually(
        lambda: {name for name in wanted if not it.metrics().get(name)}, lambda left: not left
    )
    # A partition that failed, and a snapshot that was set aside.
    it.daemon.kill()
    flip(it.log_files(0)[0], 100)
    (other,) = (it.state_dir / "snapshots").glob(f"{it.number(1)}-*.snapshot")
    flip(other, other.stat().st_size // 2)
    it.start()
    failed = 'rlmm_metadata_partitions{state="failed"}'
    rejected = 'rlmm_snapshots_total{outcome="rejected"}'
    # Two metadata partitions: either may be the first to find what is wrong with it.
    metrics = eventually(
        it.metrics, lambda found: found.get(failed) == 1 and found.get(rejected) == 1
    )
    assert metrics["rlmm_ready"] == 0
    status, body = it.admin("/readyz")
    assert status == 503
    assert msgspec.json.decode(body)["partitions"][str(it.number(0))] == "failed"
    assert it.admin("/healthz")[0] == 200
