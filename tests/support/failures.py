"""Failures of a real daemon: how each comes about, what it is called, what a person can do then."""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import pytest
from crc32c import crc32c

from rlmm_daemon.codec import marker
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.codec.state_files import lost_head
from rlmm_daemon.daemon.base.state_directory import OTHER_DAEMON
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.ids import SegmentId, uuid_text
from rlmm_daemon.domain.segment import SegmentState, SegmentUpdate
from tests.support import markers
from tests.support.below import below
from tests.support.recovery_walk import CONFIGURATION
from tests.support.stocked_daemon import Stocked, eventually, flip

S = SegmentState
Hands = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure, how it comes about, and what a person has means for then."""

    name: str
    #: What `rlmm explain` calls it; None: it ends by itself.
    cause: str | None
    #: What `rlmm explain` has to say before the first step.
    says: str = ""
    #: Makes it, and returns what a person can do by hand, by the words that name it.
    make: Callable[[Stocked], Hands | None]
    #: Commands that there are no means for.
    cannot: Sequence[str] = field(default=())
    #: Starts a daemon that has it again, on a copy of what it left behind; else as `make`.
    again: Callable[[Stocked], Hands | None] = Stocked.start


def without_snapshots(it: Stocked) -> None:
    shutil.rmtree(it.state_dir / "snapshots")


# The event log's files.


def damage_amid_the_newest_file(it: Stocked) -> None:
    assert it.rlmm("snapshot", "now").exit_code == 0
    it.daemon.kill()
    flip(it.log_files(0)[-1], 100)
    it.start()


def damage_that_no_snapshot_knows_of(it: Stocked) -> None:
    it.daemon.kill()
    without_snapshots(it)
    flip(it.log_files(0)[-1], 100)
    it.start()


def damage_of_a_sealed_file(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    assert it.rlmm("log", "seal", str(it.log_dir)).exit_code == 0
    sealed = it.log_files(0)[0]
    it.start()
    flip(sealed, sealed.stat().st_size // 2)
    assert it.rlmm("partition", "rebuild", str(it.number(0))).exit_code == 1


def damage_of_every_batch(it: Stocked) -> None:
    """Which is no torn tail, since all of it had been read."""
    eventually(lambda: position_of(it), lambda position: position >= 6)
    it.daemon.kill()
    without_snapshots(it)
    (path,) = it.log_files(0)
    path.write_bytes(bytes(byte ^ 0x55 for byte in path.read_bytes()))
    it.start()


def position_of(it: Stocked) -> int:
    path = it.state_dir / "positions.json"
    kept = json.loads(path.read_text())["partitions"] if path.exists() else {}
    offset = kept.get(str(it.number(0)), (0, 0))[0]
    return int(offset)


def finish_of(it: Stocked, segment_id: SegmentId) -> tuple[Path, int]:
    """Return where the batch stands that holds a segment's COPY_SEGMENT_FINISHED."""
    (path,) = it.log_files(0)
    data = path.read_bytes()
    started = data.index(segment_id)
    return path, data.index(segment_id, started + 1)


def damage_of_a_finish(it: Stocked) -> None:
    it.daemon.kill()
    without_snapshots(it)
    flip(*finish_of(it, it.copied(0)[0].metadata.segment_id))
    it.start()


def damage_of_a_finish_and_an_object_gone(it: Stocked) -> None:
    damage_of_a_finish(it)
    segment_id = uuid_text(it.copied(0)[0].metadata.segment_id)
    (index,) = below(it.daemon.remote, f"*{segment_id}.index")
    index.unlink()


def log_that_lost_its_head(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    assert it.rlmm("log", "seal", str(it.log_dir)).exit_code == 0
    it.log_files(0)[0].unlink()
    without_snapshots(it)
    it.start()


def log_that_lost_its_head_and_was_cut_before(it: Stocked) -> None:
    """A list of lost segments is there, of which the rest of the log shows some."""
    list_of_lost_segments(it)
    assert it.rlmm("log", "seal", str(it.log_dir)).exit_code == 0
    it.log_files(0)[0].unlink()
    it.start()


def log_replaced_by_an_older_copy(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    older = it.daemon.directory / "older"
    shutil.copytree(it.log_dir, older)
    it.start()
    it.copy_new(0)
    assert it.daemon.stop() == 0
    shutil.rmtree(it.log_dir)
    older.rename(it.log_dir)


def older_copy_and_a_snapshot(it: Stocked) -> None:
    log_replaced_by_an_older_copy(it)
    it.start()


def older_copy_and_no_snapshot(it: Stocked) -> None:
    log_replaced_by_an_older_copy(it)
    without_snapshots(it)
    it.start()


def log_of_another_life(it: Stocked) -> None:
    """A directory that was made anew, as after a restore of the machine from an image."""
    assert it.daemon.stop() == 0
    replace_log(it)
    it.start()


def replace_log(it: Stocked) -> None:
    names = json.loads((it.log_dir / "identity.json").read_text())
    shutil.rmtree(it.log_dir)
    it.log_dir.mkdir()
    names.pop("crc32c", None)
    names["topic_id"] = "AAAAAAAAQACAAAAAAAAABg"
    (it.log_dir / "identity.json").write_text(json.dumps(names))
    (it.log_dir / "state.json").write_text('{"format": 1, "generation": 0, "clean": {}}')


def log_of_another_life_without_snapshots(it: Stocked) -> None:
    log_of_another_life(it)
    it.daemon.kill()
    without_snapshots(it)
    for lost in it.state_dir.glob("*.lost"):
        lost.unlink()
    it.start()


def log_not_mounted(it: Stocked) -> Hands:
    assert it.daemon.stop() == 0
    away = it.daemon.directory / "away"
    it.log_dir.rename(away)
    it.start()

    def mount() -> None:
        shutil.rmtree(it.log_dir, ignore_errors=True)
        away.rename(it.log_dir)

    return {"mount its disk": mount}


def log_gone(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    shutil.rmtree(it.log_dir)
    it.start()


def log_gone_without_snapshots(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    shutil.rmtree(it.log_dir)
    without_snapshots(it)
    it.start()


def log_without_a_name(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    (it.log_dir / "identity.json").write_bytes(b"{")
    (it.log_dir / "state.json").unlink()
    it.start()


def log_that_nobody_can_name(it: Stocked) -> Hands:
    """The disk of the state directory was replaced, and the log's own is damaged."""
    assert it.daemon.stop() == 0
    (it.state_dir / "identity.json").unlink()
    whole = (it.log_dir / "identity.json").read_bytes()
    (it.log_dir / "identity.json").write_bytes(b"{")
    (it.log_dir / "state.json").unlink()
    it.start()
    return {
        "put that file back from a copy": lambda: (it.log_dir / "identity.json").write_bytes(whole)
    }


def log_of_another_cluster(it: Stocked) -> Hands:
    """Two brokers' directories were mixed up: theirs is whole, and so is ours, elsewhere."""
    assert it.daemon.stop() == 0
    ours = it.daemon.directory / "ours"
    shutil.copytree(it.log_dir, ours)
    for name in ("identity.json", "state.json"):
        path = it.log_dir / name
        text = path.read_text().replace("rlmm-demo-cluster", "another-cluster")
        path.write_text(text.replace("crc32c", "unknown"))

    def events() -> list[bytes]:
        """Who seals it by its name cuts the room that was made ahead, and changes nothing else."""
        files = sorted(it.log_dir.glob("*/*.log"))
        whole = (path.read_bytes().rstrip(b"\0") for path in files)
        return [(it.log_dir / "identity.json").read_bytes(), *filter(None, whole)]

    theirs = events()
    it.start()

    def put_ours_back() -> None:
        assert theirs == events(), "theirs was left as it is"
        assert it.rlmm("partition", "accept-loss", "--all", "--yes").exit_code == 1
        doctored = it.daemon.rlmm("doctor", "--config", str(it.daemon.directory / CONFIGURATION))
        assert doctored.returncode == 1
        assert "another-cluster" in doctored.stdout
        assert not [each for each in ("accept-loss", "repair") if each in doctored.stdout]
        it.daemon.kill()
        shutil.rmtree(it.log_dir)
        ours.rename(it.log_dir)
        it.start()

    return {"put its directory back in its place": put_ours_back}


def log_without_a_state(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    start_without_the_log_s_state(it)


def start_without_the_log_s_state(it: Stocked) -> None:
    (it.log_dir / "state.json").unlink()
    it.start()


def log_with_another_count(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    path = it.state_dir / "identity.json"
    names = json.loads(path.read_text())
    names.pop("crc32c", None)
    path.write_text(json.dumps(names | {"partition_count": 2}))
    it.start()


def newer(path: Path) -> Hands:
    """Have a newer version write a file; by hand, start that version, which reads it."""
    whole = path.read_bytes()
    text = whole.replace(b'"format":1', b'"format":9').replace(b": 1,", b": 9,", 1)
    path.write_bytes(text.replace(b"crc32c", b"unknown"))
    assert path.read_bytes() != whole
    return {"start that version": lambda: path.write_bytes(whole)}


def log_of_a_newer_version(it: Stocked) -> Hands:
    assert it.daemon.stop() == 0
    hands = newer(it.log_dir / "identity.json")
    it.start()
    return hands


# What the daemon keeps beside the log.


def snapshot_of_a_newer_version(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    (path,) = (it.state_dir / "snapshots").glob(f"{it.number(0)}-*.snapshot")
    with path.open("r+b") as file:
        file.seek(8)
        file.write((9).to_bytes(4, "little"))
    it.start()


def three_crashes(it: Stocked) -> None:
    it.daemon.kill()
    note = {"partition": it.number(0), "at_ms": time.time_ns() // 1_000_000}
    crashes = {"format": 1, "notes": [note] * 3, "held": []}
    (it.state_dir / "crashes.json").write_text(json.dumps(crashes))
    it.start()


def finished_segment_that_is_held(it: Stocked) -> None:
    """Somebody ended as a stuck copy what had been finished a moment before."""
    segment = it.copied(0)[0].metadata
    update = SegmentUpdate(
        partition=segment.partition,
        segment_id=segment.segment_id,
        broker_id=segment.broker_id,
        event_timestamp_ms=segment.event_timestamp_ms,
        custom_metadata=ONLY_IF_STARTED,
        state=S.DELETE_SEGMENT_STARTED,
    )
    with it.daemon.client() as client:
        client.update_remote_log_segment_metadata(update)


def list_of_lost_segments(it: Stocked) -> Path:
    """Leave what a dropped fold knew, as a comparison that is not over does."""
    log_replaced_by_an_older_copy(it)
    it.start()
    eventually(lambda: it.row(0)["state"], lambda state: state == "failed")
    it.daemon.kill()
    (path,) = it.state_dir.glob(f"{it.number(0)}.lost")
    return path


def list_of_a_newer_version(it: Stocked) -> Hands:
    path = list_of_lost_segments(it)
    whole = path.read_bytes()
    body = msgspec.msgpack.decode(whole[len(lost_head(0)) :])
    body["format"] = 9
    packed = msgspec.msgpack.encode(body)
    path.write_bytes(lost_head(crc32c(packed)) + packed)
    it.start()

    def start_that_version() -> None:
        it.daemon.kill()
        path.write_bytes(whole)
        it.start()

    return {"start that version": start_that_version}


def list_that_is_damaged(it: Stocked) -> None:
    path = list_of_lost_segments(it)
    flip(path, path.stat().st_size // 2)
    it.start()


def state_file(name: str) -> Callable[[Stocked], None]:
    """Damage a file of the state directory while no daemon runs."""

    def make_it(it: Stocked) -> None:
        assert it.daemon.stop() == 0
        half_of(name)(it)

    return make_it


def half_of(name: str) -> Callable[[Stocked], None]:
    def have_it(it: Stocked) -> None:
        path = it.state_dir / name
        half = path.read_bytes()[: path.stat().st_size // 2]
        path.write_bytes(half)
        it.start()
        if name == "marker.json":  # it is written anew in a while, once the bucket's is
            eventually(lambda: path.read_bytes() != half)

    return have_it


# The log as a whole.


def log_in_use_elsewhere(it: Stocked) -> Hands:
    assert it.daemon.stop() == 0
    return start_beside_a_lock(it)


#: The lock of the last daemon that was started beside one.
_LOCKS: Final[list[int]] = []


def start_beside_a_lock(it: Stocked) -> Hands:
    free_log()
    _LOCKS.append(os.open(it.log_dir / "lock", os.O_RDWR))
    fcntl.flock(_LOCKS[0], fcntl.LOCK_EX)
    it.start()
    return {"another process has the event log": free_log}


def free_log() -> None:
    while _LOCKS:
        os.close(_LOCKS.pop())


def log_whose_disk_hangs(it: Stocked) -> Hands:
    """A read that does not come back, as of a file system over a network that is away."""
    assert it.daemon.stop() == 0
    path = it.log_dir / "identity.json"
    whole = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    it.start()
    return {"not opened yet": lambda: path.write_bytes(whole)}


def away(it: Stocked) -> Callable[[], object]:
    """Take the storage's root away; return how it comes back."""
    unmounted = it.daemon.remote.with_name("unmounted")
    it.daemon.remote.rename(unmounted)

    def back() -> None:
        shutil.rmtree(it.daemon.remote, ignore_errors=True)
        unmounted.rename(it.daemon.remote)

    return back


def marker_that_cannot_be_read(it: Stocked) -> Hands:
    assert it.daemon.stop() == 0
    (it.state_dir / "identity.json").unlink()
    (it.state_dir / "positions.json").unlink()
    back = away(it)
    it.start()
    return {"storage root": back}


def acceptance_that_cannot_be_written(it: Stocked) -> Hands:
    log_gone_without_snapshots(it)
    back = away(it)
    accept_all(it)
    return {"storage root": back}


def accept_once_more(it: Stocked) -> None:
    """A daemon that was killed meanwhile has made a log, and asks again."""
    shutil.rmtree(it.log_dir)
    it.start()
    accept_all(it)


def accept_all(it: Stocked) -> None:
    eventually(lambda: it.explain(0)["cause"], lambda cause: cause == "log_missing")
    run = it.rlmm("partition", "accept-loss", "--all", "--yes")
    assert run.exit_code == 0, run.output


# The bucket.


def marker_of(it: Stocked) -> Path:
    return it.daemon.remote / "_rlmm" / "marker.json"


def marker_removed(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    marker_of(it).unlink()
    it.start()


def marker_damaged(it: Stocked) -> None:
    assert it.daemon.stop() == 0
    marker_of(it).write_bytes(marker_of(it).read_bytes()[:40])
    it.start()


def marker_renamed(it: Stocked) -> None:
    """A bit flipped in its cluster's name."""
    assert it.daemon.stop() == 0
    whole = marker_of(it).read_bytes()
    marker_of(it).write_bytes(whole.replace(b"rlmm-demo-cluster", b"rlmm-demo-clustep"))
    assert marker_of(it).read_bytes() != whole
    it.start()


def marker_of_another_cluster(marker: bytes) -> bytes:
    foreign = {"cluster_id": "another-cluster", "metadata_topic_id": "AAAAAAAAQACAAAAAAAAABg"}
    return markers.written(markers.content_of(marker) | foreign)


def marker_replaced(change: Callable[[bytes], bytes], words: str) -> Callable[[Stocked], Hands]:
    def make_it(it: Stocked) -> Hands:
        assert it.daemon.stop() == 0
        whole = marker_of(it).read_bytes()
        marker_of(it).write_bytes(change(whole))
        assert marker_of(it).read_bytes() != whole
        it.start()
        return {words: lambda: marker_of(it).write_bytes(whole)}

    return make_it


def marker_removed_meanwhile(it: Stocked) -> None:
    shutil.copy2(marker_of(it), it.daemon.directory / "marker.json")
    remove_marker(it)


def start_and_remove_marker(it: Stocked) -> None:
    shutil.copy2(it.daemon.directory / "marker.json", marker_of(it))
    it.start()
    remove_marker(it)


def remove_marker(it: Stocked) -> None:
    marker_of(it).unlink()
    segment = it.next(1)
    fresh = msgspec.structs.replace(segment.metadata, segment_id=SegmentId(os.urandom(16)))
    with it.daemon.client(timeout_seconds=3.0) as client, pytest.raises(StorageUnavailable):
        client.copy_segment(fresh, segment.files)


def storage_not_mounted(it: Stocked) -> Hands:
    assert it.daemon.stop() == 0
    back = away(it)
    it.start()
    return {"storage root": back}


def daemon_of_the_same_id(it: Stocked) -> Hands:
    """As it is after the other one was met; with its end, the time passes that it is waited for."""
    file = it.daemon.remote / marker.presence_key(1)

    def told(other: marker.OtherDaemon | None) -> None:
        assert it.daemon.stop() == 0
        last = marker.decode_presence(file.read_bytes())
        file.write_bytes(marker.encode(msgspec.structs.replace(last, other=other)))
        if other is None:
            (it.state_dir / OTHER_DAEMON).unlink()
        it.start()

    told(marker.OtherDaemon(who="elsewhere, pid 7", met=True))
    return {"Stop one of them": lambda: told(None)}


def presence_file_that_cannot_be_read(it: Stocked) -> None:
    """Of a broker that is gone."""
    assert it.daemon.stop() == 0
    (it.daemon.remote / marker.presence_key(7)).write_bytes(b"{")
    start_and_hold(it)


def start_and_hold(it: Stocked) -> None:
    """Start, and wait until the hold is whole: the daemon's own presence file comes after it."""
    own = it.daemon.remote / marker.presence_key(1)
    own.unlink(missing_ok=True)
    it.start()
    eventually(own.exists)


FAILURES: Sequence[Failure] = (
    Failure(
        name="damage amid the newest file of the log",
        cause="log_corrupt",
        make=damage_amid_the_newest_file,
    ),
    Failure(
        name="damage that no snapshot knows of",
        cause="log_corrupt",
        make=damage_that_no_snapshot_knows_of,
    ),
    Failure(
        name="damage of a sealed file of the log", cause="log_corrupt", make=damage_of_a_sealed_file
    ),
    Failure(name="damage of every batch", cause="history_lost", make=damage_of_every_batch),
    Failure(name="damage of a COPY_SEGMENT_FINISHED", cause="log_corrupt", make=damage_of_a_finish),
    Failure(
        name="damage of a COPY_SEGMENT_FINISHED, and an object is gone too",
        cause="log_corrupt",
        make=damage_of_a_finish_and_an_object_gone,
    ),
    Failure(name="a log that lost its head", cause="history_lost", make=log_that_lost_its_head),
    Failure(
        name="a log that lost its head, and a list of lost segments",
        cause="history_lost",
        says="the log starts at",
        make=log_that_lost_its_head_and_was_cut_before,
    ),
    Failure(
        name="an older copy of the log, and a snapshot that knows more",
        cause="history_lost",
        make=older_copy_and_a_snapshot,
    ),
    Failure(
        name="an older copy of the log, and no snapshot",
        cause="history_lost",
        make=older_copy_and_no_snapshot,
    ),
    Failure(
        name="another log in its place",
        cause="history_lost",
        make=log_of_another_life,
    ),
    Failure(
        name="another log in its place, and no snapshots",
        cause="history_lost",
        make=log_of_another_life_without_snapshots,
    ),
    Failure(
        name="a finished segment that is held",
        cause="segments_held",
        make=finished_segment_that_is_held,
    ),
    Failure(name="a log that is not mounted", cause="log_missing", make=log_not_mounted),
    Failure(name="a log that is gone, and snapshots of it", cause="log_missing", make=log_gone),
    Failure(
        name="a log that is gone, and no snapshots",
        cause="log_missing",
        make=log_gone_without_snapshots,
        cannot=["rlmm log restore"],
    ),
    Failure(name="a log that lost its name", cause="log_unnamed", make=log_without_a_name),
    Failure(name="a log that nobody can name", cause="log_unnamed", make=log_that_nobody_can_name),
    Failure(
        name="another cluster's log in its place", cause="log_foreign", make=log_of_another_cluster
    ),
    Failure(name="a log that lost its state", cause=None, make=log_without_a_state),
    Failure(
        name="another number of partitions",
        cause="partition_count_changed",
        make=log_with_another_count,
    ),
    Failure(name="a log of a newer version", cause="newer_log", make=log_of_a_newer_version),
    Failure(
        name="a snapshot of a newer version",
        cause="newer_snapshot",
        make=snapshot_of_a_newer_version,
    ),
    Failure(name="three crashes within a minute", cause="crash_loop", make=three_crashes),
    Failure(
        name="a log that another process has",
        cause="log_not_open",
        says="another process",
        make=log_in_use_elsewhere,
        again=start_beside_a_lock,
    ),
    Failure(
        name="a log whose disk hangs",
        cause="log_not_open",
        says="not opened yet",
        make=log_whose_disk_hangs,
    ),
    Failure(
        name="a marker that cannot be read at the start",
        cause="marker_unread",
        make=marker_that_cannot_be_read,
    ),
    Failure(
        name="an accepted loss that cannot be written down",
        cause="log_not_open",
        says="accepted loss",
        make=acceptance_that_cannot_be_written,
        again=accept_once_more,
    ),
    Failure(
        name="a list of lost segments of a newer version",
        cause="newer_state",
        make=list_of_a_newer_version,
    ),
    Failure(
        name="a list of lost segments that is damaged",
        cause="history_lost",
        make=list_that_is_damaged,
    ),
    *(
        Failure(name=f"a damaged {name}", cause=None, make=state_file(name), again=half_of(name))
        for name in ("positions.json", "announced.json", "marker.json")
    ),
    Failure(
        name="a bucket of another cluster",
        cause="storage_trouble",
        make=marker_replaced(marker_of_another_cluster, "of its own"),
    ),
    Failure(
        name="a bucket of a newer version",
        cause="storage_trouble",
        make=marker_replaced(markers.newer, "newer version"),
    ),
    Failure(
        name="a bucket whose layouts are others",
        cause="storage_trouble",
        make=marker_replaced(
            lambda marker: markers.edited(marker, b'"prefix": ""', b'"prefix": "x"'),
            "restore the former one",
        ),
    ),
    Failure(
        name="a storage that is not mounted", cause="storage_trouble", make=storage_not_mounted
    ),
    Failure(
        name="a marker that is removed meanwhile",
        cause="storage_trouble",
        make=marker_removed_meanwhile,
        again=start_and_remove_marker,
    ),
    Failure(name="a bucket whose marker is gone", cause="storage_trouble", make=marker_removed),
    Failure(name="a bucket whose marker is damaged", cause="storage_trouble", make=marker_damaged),
    Failure(
        name="another daemon of the same broker id",
        cause="other_daemon",
        make=daemon_of_the_same_id,
    ),
    Failure(
        name="a presence file that cannot be read",
        cause="presence_unread",
        make=presence_file_that_cannot_be_read,
        again=start_and_hold,
    ),
    Failure(
        name="a bucket whose marker names another cluster by a flipped bit",
        cause="storage_trouble",
        make=marker_renamed,
    ),
)
