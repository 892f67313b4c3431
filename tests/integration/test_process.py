"""The process as systemd, the broker and a monitoring system see it."""

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec import structs
from msgspec.structs import replace

from rlmm_daemon.client import Client
from rlmm_daemon.codec.api import SegmentFiles
from rlmm_daemon.domain.errors import (
    IllegalTransition,
    NotAssigned,
    NotLeader,
    NotReady,
    PathNotAllowed,
    RlmmError,
    SegmentNotFound,
    StorageUnavailable,
)
from rlmm_daemon.domain.ids import SegmentId
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState
from rlmm_daemon.ports.passes import LOST_REASON
from tests.support import kafka_segments
from tests.support.below import below
from tests.support.daemon_process import CONFIG
from tests.support.fork_server import ForkServer
from tests.support.processes import children, ended
from tests.support.stocked_daemon import Stocked, eventually, free_address, make, update

STARTED = SegmentState.COPY_SEGMENT_STARTED
FINISHED = SegmentState.COPY_SEGMENT_FINISHED
DELETING = SegmentState.DELETE_SEGMENT_STARTED
DELETED = SegmentState.DELETE_SEGMENT_FINISHED
#: Handed over as bytes, the others as paths.
NO_FILE = "leader_epoch_checkpoint"
BIG_BYTES = 192 * 1024 * 1024


@pytest.fixture
def it(tmp_path: Path, forks: ForkServer) -> Iterator[Stocked]:
    stocked = make(tmp_path, forks, {"admin.listen": free_address()})
    with stocked.daemon:
        yield stocked


# Signals.


def big_copy(it: Stocked) -> kafka_segments.KafkaSegment:
    last = it.placed[it.orders[0]][-1]
    return kafka_segments.enlarge(last, SegmentId(b"big copy segment"), BIG_BYTES)


def copies(it: Stocked) -> list[dict[str, object]]:
    found: list[dict[str, object]] = it.json("status")["copies"]
    return found


def in_hand(it: Stocked) -> dict[str, int]:
    """Return what `rlmm status` says of the process for copies."""
    found: dict[str, int] = it.json("status")["copying_process"]
    return found


@pytest.mark.parametrize("deadline_ms", [25_000, 50])
def test_sigterm_amid_a_copy_finishes_it_or_rolls_it_back(tmp_path, forks, deadline_ms):
    it = make(tmp_path, forks, {"daemon.drain_deadline_ms": deadline_ms})
    with it.daemon, ThreadPoolExecutor(1) as pool:
        it.announce()
        segment = big_copy(it)

        def copy() -> SegmentMetadata:
            with it.daemon.client() as client:
                return client.copy_segment(segment.metadata, segment.files)

        copying = pool.submit(copy)
        eventually(lambda: [job for job in copies(it) if job["phase"] == "upload"])
        assert it.daemon.stop() == 0
        error = copying.exception(20)
        assert error is None or isinstance(error, RlmmError)
        it.start()
        left = it.listed(0).get(segment.metadata.segment_id)
        if error is None:
            assert left is not None
            assert left.state is FINISHED
        if deadline_ms > 1_000:
            assert left is None or left.state is FINISHED, "there was time enough"
        if left is not None and left.state is not FINISHED:
            with it.daemon.client() as client:
                client.delete_segment(left.partition, left.segment_id)
            left = None
        stored = list(below(it.daemon.remote, "*.log"))
        assert len(stored) == (left is not None)
        assert it.daemon.stop() == 0


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_copies_are_made_by_a_process_of_their_own_which_ends_with_the_daemon(it, end):
    it.announce()
    segment = big_copy(it)
    assert it.daemon.process is not None
    assert it.json("status")["memory"]["copying_process_private_bytes"] == 0
    assert children(it.daemon.process.pid) == []
    with it.daemon.client() as client:
        client.copy_segment(segment.metadata, segment.files)
    assert it.json("status")["memory"]["copying_process_private_bytes"] > 1_000_000
    assert "in the process for copies" in it.daemon.rlmm("status").stdout
    (pid,) = children(it.daemon.process.pid)
    name = Path(f"/proc/{pid}/cmdline").read_bytes()
    assert b"rlmm_daemon.adapters.passes" in name
    getattr(it.daemon, end)()
    eventually(lambda: ended(pid))


@pytest.mark.parametrize("whole", [True, False])
def test_a_copy_whose_process_is_killed_leaves_nothing_and_can_be_repeated(it, whole):
    it.announce()
    segment = big_copy(it)
    with it.daemon.client() as client, ThreadPoolExecutor(1) as pool:
        client.copy_segment(segment.metadata, segment.files)
        client.delete_segment(segment.metadata.partition, segment.metadata.segment_id)
        assert it.daemon.process is not None
        (pid,) = children(it.daemon.process.pid)
        again = replace(segment.metadata, segment_id=SegmentId(b"copied once more"))
        if not whole:
            client.add_remote_log_segment_metadata(again)
        copy = client.copy_segment if whole else client.copy_log_segment_data
        os.kill(pid, signal.SIGSTOP)  # so that it ends nothing that it is handed
        copying = pool.submit(copy, again, segment.files)
        # One that is killed before it was handed anything costs no copy: another takes its place.
        eventually(lambda: in_hand(it) == {"pid": pid, "in_hand": 2})
        os.kill(pid, signal.SIGKILL)
        error = copying.exception(20)
        assert isinstance(error, StorageUnavailable), error
        assert error.fields["reason"] == LOST_REASON
        assert error.fields["write_begun"]
        assert error.fields.get("rolled_back", not whole) is True
        assert not list(below(it.daemon.remote, "*.log"))
        if whole:  # it was rolled back
            with pytest.raises(IllegalTransition, match="under a new id"):
                copy(again, segment.files)
            again = replace(segment.metadata, segment_id=SegmentId(b"copied yet again"))
        assert copy(again, segment.files)
    assert len(list(below(it.daemon.remote, "*.log"))) == 1
    (fresh,) = children(it.daemon.process.pid)
    assert fresh != pid


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    "name", [name for name in SegmentFiles.__struct_fields__ if "epoch" not in name]
)
def test_a_nul_in_a_file_path_refuses_that_copy_and_ends_nothing(it, name, whole):
    it.announce()
    segment = it.next(0)
    assert it.daemon.process is not None
    pid = it.daemon.process.pid
    path = f"{segment.stem}\0.log"
    with it.daemon.client() as client:
        if not whole:
            client.add_remote_log_segment_metadata(segment.metadata)
        copy = client.copy_segment if whole else client.copy_log_segment_data
        with pytest.raises(PathNotAllowed):
            copy(segment.metadata, structs.replace(segment.files, **{name: path}))
        assert not ended(pid)
        assert copy(segment.metadata, segment.files)


def test_sighup_changes_the_log_level_of_a_running_daemon(tmp_path, forks):
    config = tmp_path / "rlmm.toml"
    plain = CONFIG.read_text()
    config.write_text(plain)
    it = make(tmp_path, forks, {"admin.listen": free_address()}, config)

    def reload(level: str, outcome: str, times: int) -> None:
        config.write_text(plain.replace('# level = "info"', f'level = "{level}"'))
        assert it.daemon.process is not None
        it.daemon.process.send_signal(signal.SIGHUP)
        name = f'rlmm_reloads_total{{outcome="{outcome}"}}'
        eventually(it.metrics, lambda found: found.get(name) == times)

    def hellos() -> int:
        before = len(it.lines("server.hello"))
        it.listed(0)
        return len(it.lines("server.hello")) - before

    with it.daemon:
        assert hellos()
        reload("error", "ok", 1)
        assert hellos() == 0
        reload("loud", "failed", 1)
        (refused,) = it.lines("reload refused, the old settings stay")
        assert "log.level" in refused["error"]
        assert hellos() == 0
        reload("info", "ok", 2)
        assert hellos()
        assert it.daemon.stop() == 0


# The broker's connections.


def test_the_gate_is_shut_after_every_start_until_the_broker_announces(it):
    it.stock()
    assert it.daemon.stop() == 0
    it.daemon.start()
    orders = it.orders[0]
    with it.broker() as broker:
        with pytest.raises(NotReady) as refused:
            broker.list_remote_log_segments(orders, timeout_seconds=1)
        assert refused.value.fields["state"] == "unannounced"
        broker.replace_assignment([orders], [it.orders[1]])
        assert len(broker.list_remote_log_segments(orders)) == len(it.copied(0))
        with pytest.raises(NotLeader):
            broker.add_remote_log_segment_metadata(it.next(1).metadata)
        broker.replace_assignment([orders], [])
        with pytest.raises(NotAssigned):
            broker.list_remote_log_segments(it.orders[1])
    with it.broker() as again:
        assert len(again.list_remote_log_segments(orders)) == len(it.copied(0)), "the same broker"
    with it.broker(incarnation=78) as another, pytest.raises(NotReady):
        another.list_remote_log_segments(orders, timeout_seconds=1)
    it.announce(incarnation=78)
    with it.broker(incarnation=78) as another:
        assert len(another.list_remote_log_segments(orders)) == len(it.copied(0))


def test_hello_and_status_say_of_what_kind_the_event_log_is(it):
    with it.daemon.client() as client:
        assert client.hello().event_log == "embedded"
        assert client.status()["log"]["kind"] == "embedded"


def test_the_steps_of_kafkas_storage_interface_in_the_brokers_order(it):
    it.announce()
    segment = it.next(0)
    told = segment.metadata
    with it.broker() as metadata, it.broker("storage") as storage, ThreadPoolExecutor(1) as pool:
        eventually(lambda: metadata.is_ready(it.orders[0]))
        # The storage manager may be asked before the metadata manager's write has been applied.
        copying = pool.submit(storage.copy_log_segment_data, told, segment.files)
        eventually(lambda: [job for job in copies(it) if job["phase"] == "apply"])
        metadata.add_remote_log_segment_metadata(told)
        custom = copying.result(20)
        assert custom
        (seen,) = metadata.list_remote_log_segments(it.orders[0])
        assert seen.state is STARTED, "the broker writes the metadata"
        metadata.update_remote_log_segment_metadata(update(told, FINISHED, custom))
        with pytest.raises(IllegalTransition):
            storage.copy_log_segment_data(told, segment.files)
        found = metadata.remote_log_segment_metadata(
            it.orders[0], *next(iter(told.segment_leader_epochs.items()))
        )
        assert found is not None
        with storage.fetch_log_segment(found) as log:
            assert log.readall() == Path(f"{segment.stem}.log").read_bytes()
        # And the way out.
        deleting = pool.submit(storage.delete_log_segment_data, found)
        metadata.update_remote_log_segment_metadata(update(told, DELETING, custom))
        deleting.result(20)
        assert not list(below(it.daemon.remote, "*.log"))
        metadata.update_remote_log_segment_metadata(update(told, DELETED, custom))
        storage.delete_log_segment_data(found)  # once more: it is gone, which is what was asked
        assert metadata.list_remote_log_segments(it.orders[0]) == []
        with pytest.raises(SegmentNotFound):
            metadata.update_remote_log_segment_metadata(update(told, FINISHED, custom))


def test_a_broker_that_leaves_amid_a_copy_has_nothing_rolled_back(it):
    it.announce()
    segment = big_copy(it)
    told = segment.metadata
    with it.broker() as metadata:
        metadata.add_remote_log_segment_metadata(told)
        with it.broker("storage") as storage, ThreadPoolExecutor(1) as pool:
            copying = pool.submit(storage.copy_log_segment_data, told, segment.files)
            eventually(lambda: [job for job in copies(it) if job["phase"] == "upload"])
            hang_up(storage)
            assert copying.exception(20) is not None
        eventually(lambda: not copies(it))
        (seen,) = metadata.list_remote_log_segments(it.orders[0])
        assert seen.state is STARTED
        # The broker's own sequence is what cleans up.
        metadata.update_remote_log_segment_metadata(update(told, DELETING))
        with it.broker("storage") as storage:
            storage.delete_log_segment_data(told)
        metadata.update_remote_log_segment_metadata(update(told, DELETED))
        assert not list(below(it.daemon.remote, "*.log"))


def hang_up(client: Client) -> None:
    """Cut a client's connection under a call of another thread."""
    assert client._main is not None
    client._main.connection.wire.socket.shutdown(socket.SHUT_RDWR)
