"""A loss that is accepted while the configuration names another cluster's bucket."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from rlmm_daemon.codec import marker, scan
from rlmm_daemon.codec.marker import BucketMarker
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.domain.segment import SegmentState
from tests.integration.test_marker import marker_of, objects
from tests.support.fork_server import ForkServer
from tests.support.stocked_daemon import Stocked, eventually, flip, free_address, make, ran, update

#: Longer ago than any copy may live.
LONG_MS = 7_200_000


@pytest.fixture
def it(tmp_path: Path, forks: ForkServer) -> Iterator[Stocked]:
    settings = {"cleaner.interval_seconds": 1, "admin.listen": free_address()}
    stocked = make(tmp_path, forks, settings)
    with stocked.daemon:
        stocked.stock()
        yield stocked


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def copied_as_by_a_broker(it: Stocked) -> int:
    """Begin a copy long ago, by its event; return the offset of its COPY_SEGMENT_FINISHED."""
    segment = it.next(0)
    begun = replace(segment.metadata, event_timestamp_ms=now_ms() - LONG_MS)
    with it.broker() as metadata, it.broker("storage") as storage:
        metadata.add_remote_log_segment_metadata(begun)
        custom = storage.copy_log_segment_data(begun, segment.files)
        metadata.update_remote_log_segment_metadata(
            update(begun, SegmentState.COPY_SEGMENT_FINISHED, custom)
        )
    return int(it.row(0)["position"]) - 1


def damage_its_end(it: Stocked, offset: int) -> None:
    """Flip a bit in the batch that holds an event."""
    (file,) = it.log_files(0)
    batches = scan.walk(file.read_bytes(), 0).found
    (batch,) = (each for each in batches if each.base_offset <= offset < each.next_offset)
    flip(file, batch.position + batch.size - 1)


def foreign_bucket(directory: Path) -> str:
    theirs = BucketMarker(
        cluster_id="another", partition_count=3, metadata_topic_id=uuid_text(bytes(16))
    )
    file = directory / marker.MARKER_KEY
    file.parent.mkdir(parents=True)
    file.write_bytes(marker.encode(theirs))
    return str(directory)


def test_a_loss_that_was_accepted_beside_a_foreign_bucket_is_held_in_ours(it):
    """The hold went nowhere, and the cleaner then took what had been acknowledged."""
    offset = copied_as_by_a_broker(it)
    it.copy_new(0)
    before = objects(it)
    it.daemon.kill()
    damage_its_end(it, offset)
    it.daemon.settings["storage.directory"] = foreign_bucket(it.daemon.directory / "var" / "wrong")
    it.start()
    eventually(lambda: it.row(0), lambda row: row["state"] == "failed")
    number = str(it.number(0))
    ran(it, "log", "repair", number, code=1)
    ran(it, "partition", "accept-loss", number, "--yes")
    assert it.daemon.stop() == 0
    del it.daemon.settings["storage.directory"]
    it.daemon.start()
    born = now_ms()
    with it.broker(incarnation=born) as metadata, it.broker("storage", incarnation=born):
        metadata.replace_assignment(it.orders, [])
        eventually(lambda: it.json("cleanup"), lambda told: told["stuck"] or told["deleted"])
        told = eventually(lambda: it.json("cleanup"), lambda told: "loss_accepted" in str(told))
    assert not told["deleted"]
    assert objects(it) == before
    held = marker.decode_marker(marker_of(it).read_bytes()).held
    assert [hold.metadata_partition for hold in held] == [it.number(0)]
