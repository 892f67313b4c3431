"""A topic's remote data goes: a real daemon, its socket, its command line, real segments."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlmm_daemon.domain.errors import StorageNotConfigured
from rlmm_daemon.domain.ids import BrokerId
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from tests.support.below import below
from tests.support.daemon_process import CONFIG
from tests.support.fork_server import ForkServer
from tests.support.stocked_daemon import Stocked, eventually, free_address, make, topic_id

S = SegmentState


@pytest.fixture
def it(tmp_path: Path, forks: ForkServer) -> Iterator[Stocked]:
    stocked = make(tmp_path, forks, {"cleaner.interval_seconds": 1, "admin.listen": free_address()})
    with stocked.daemon:
        stocked.stock()
        yield stocked


def objects(it: Stocked) -> list[Path]:
    remote = it.daemon.directory / "var" / "remote"
    return [*below(remote, "*.log")]


def left(it: Stocked) -> int:
    with it.daemon.client() as client:
        return len(list(client.export()))


def deleted(it: Stocked) -> None:
    """The broker goes on without the topic."""
    with it.broker(incarnation=77) as broker:
        broker.replace_assignment([], [])


def test_a_deleted_topic_is_purged_whole(it):
    deleted(it)
    assert len(objects(it)) == 6
    dry = it.json("purge", topic_id(it))
    assert (dry["topic"], dry["segments"], dry["executed"]) == ("gone", 6, False)
    assert {row["action"] for row in dry["partitions"]} == {"mark"}
    assert it.rlmm("purge", topic_id(it), "--execute", "--yes").exit_code == 0
    eventually(lambda: left(it), lambda count: count == 0)
    eventually(lambda: objects(it), lambda found: found == [])
    eventually(lambda: it.explain(0)["cause"], lambda cause: cause == "delete_finished")
    cleanup = eventually(lambda: it.json("cleanup"), lambda found: not found["removals"])
    assert cleanup["deleted"] == {"partition_removed": 6}
    removed = 'rlmm_cleaner_segments_total{reason="partition_removed"}'
    eventually(it.metrics, lambda found: found.get(removed) == 6)


def test_a_removal_goes_on_after_a_kill(it):
    deleted(it)
    it.rlmm("purge", topic_id(it), "--execute", "--yes")
    it.daemon.kill()
    it.daemon.start()
    with it.broker(incarnation=77) as broker:
        broker.replace_assignment([], [])
    eventually(lambda: objects(it), lambda found: found == [])
    eventually(lambda: left(it), lambda count: count == 0)


def test_a_topic_that_exists_is_purged_only_if_that_is_meant(it):
    refused = it.rlmm("purge", topic_id(it), "--execute", "--yes")
    assert refused.exit_code == 1
    assert "--existing" in refused.output
    assert len(objects(it)) == 6
    run = it.rlmm("purge", topic_id(it), "--execute", "--existing", "--yes")
    assert run.exit_code == 0
    eventually(lambda: objects(it), lambda found: found == [])
    eventually(lambda: left(it), lambda count: count == 0)
    assert it.explain(0)["cause"] == "ready_empty"  # no mark: the topic goes on
    it.daemon.stop()


def test_a_mark_of_a_topic_that_exists_is_held_and_told_of(it):
    with it.daemon.client() as client:
        mark(client, it)
    held = eventually(
        lambda: it.json("cleanup"),
        lambda found: any(row["step"] == "topic_exists" for row in found["removals"]),
    )
    assert held["removals"][0]["held"]
    waiting = 'rlmm_cleaner_removals{step="topic_exists"}'
    eventually(it.metrics, lambda found: found.get(waiting) == 1)
    assert it.rlmm("cleanup").exit_code == 1
    assert len(objects(it)) == 6
    deleted(it)
    eventually(lambda: len(objects(it)), lambda count: count == 3)


def test_the_brokers_manager_is_ours_while_it_is_connected(it):
    """It may come back with Kafka's own, which DELETE_PARTITION_FINISHED could end."""
    file = it.daemon.directory / "var" / "remote" / "_rlmm" / "daemons" / "1.json"

    def written() -> str:
        return str(json.loads(file.read_text())["metadata_manager"])

    eventually(written, lambda found: found == "foreign")
    with it.broker(incarnation=77):
        eventually(written, lambda found: found == "rlmm")
    eventually(written, lambda found: found == "foreign")


def mark(client, it) -> None:
    client.put_remote_partition_delete_metadata(
        PartitionDelete(
            partition=it.orders[0],
            broker_id=BrokerId(1),
            event_timestamp_ms=1,
            state=PartitionDeleteState.DELETE_PARTITION_MARKED,
        )
    )


def test_an_unknown_topic_id_is_not_found(it):
    answer = it.rlmm("purge", "AAAAAAAAAAAAAAAAAAAAAQ")
    assert answer.exit_code == 1
    assert "no event of the log" in answer.output


@pytest.fixture
def metadata_alone(tmp_path: Path, forks: ForkServer) -> Iterator[Stocked]:
    config = tmp_path / "none.toml"
    config.write_text(re.sub(r"(?s)\n\[storage\].*?(?=\n\[copy\])", "\n", CONFIG.read_text()))
    stocked = make(tmp_path, forks, config=config)
    with stocked.daemon:
        yield stocked


def test_metadata_alone_removes_nothing_and_nobody_would(metadata_alone):
    it = metadata_alone
    it.announce()
    eventually(lambda: it.rlmm("cleanup").exit_code, lambda code: code == 0)
    with it.daemon.client() as client:
        tasks = {str(task["name"]) for task in client.status()["tasks"]}
        with pytest.raises(StorageNotConfigured):
            client.purge(it.orders[0].topic_id, execute=True)
    assert tasks
    assert not {name for name in tasks if name.startswith("cleaner")}


def test_what_a_deletion_that_broke_off_left_beside_anothers_storage_is_told_of(metadata_alone):
    it = metadata_alone
    it.announce()
    first, second = (segment.metadata for segment in it.copied(0)[:2])
    with it.broker(incarnation=77) as broker:
        broker.replace_assignment(it.orders, [])
        eventually(lambda: broker.is_ready(it.orders[0]), lambda is_ready: is_ready)
        for segment in (first, second):
            broker.add_remote_log_segment_metadata(segment)
            broker.update_remote_log_segment_metadata(updated(segment, S.COPY_SEGMENT_FINISHED))
        assert it.json("cleanup")["left"] == [], "its topic is there"
        broker.update_remote_log_segment_metadata(updated(first, S.DELETE_SEGMENT_STARTED))
        broker.on_stop_partitions(it.orders)
    told = eventually(lambda: it.json("cleanup"), lambda found: not found["not_ready"])
    assert told["left"] == [
        {
            "topic": "orders",
            "topic_id": topic_id(it),
            "gone": True,
            "partitions": 1,
            "segments": 2,
            "deletes_begun": 1,
            "bytes": first.segment_size_bytes + second.segment_size_bytes,
        }
    ]
    shown = it.rlmm("cleanup")
    assert shown.exit_code == 1
    assert topic_id(it) in shown.output
    assert "removes nothing" in shown.output
    with it.broker(incarnation=77) as broker:
        broker.replace_assignment([it.orders[0]], [])
        eventually(lambda: broker.is_ready(it.orders[0]), lambda is_ready: is_ready)
        for segment in (first, second):
            for state in (S.DELETE_SEGMENT_STARTED, S.DELETE_SEGMENT_FINISHED):
                broker.update_remote_log_segment_metadata(updated(segment, state))
        broker.on_stop_partitions(it.orders)
    done = eventually(lambda: it.json("cleanup"), lambda found: not found["not_ready"])
    assert done["left"] == []


def updated(segment: SegmentMetadata, state: SegmentState) -> SegmentUpdate:
    return SegmentUpdate(
        partition=segment.partition,
        segment_id=segment.segment_id,
        broker_id=BrokerId(1),
        event_timestamp_ms=segment.event_timestamp_ms,
        custom_metadata=None,
        state=state,
    )
