"""What goes wrong on a real machine, and what an operator sees and types then."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from rlmm_daemon.client import Client
from rlmm_daemon.domain.errors import (
    HistoryLost,
    LogCorrupt,
    PartitionFailed,
    StorageFull,
    StorageUnavailable,
    UnavailableError,
)
from rlmm_daemon.domain.ids import LeaderEpoch, Offset, SegmentId, uuid_text
from rlmm_daemon.domain.segment import SegmentState
from tests.support import failures, full_disk, markers
from tests.support.below import below
from tests.support.daemon_process import CONFIG
from tests.support.fork_server import Forked, ForkServer, Launch
from tests.support.stocked_daemon import Stocked, eventually, fails_of, flip, make, restarts_clean

DELETING = SegmentState.DELETE_SEGMENT_STARTED


def repaired(it: Stocked) -> None:
    """Repair, look for what was lost, accept the rest: each command is the one that is named."""
    number = str(it.number(0))
    run = it.rlmm("log", "repair", number)
    assert run.exit_code == 1, run.output  # what was cut out stays unknown
    assert f"Next: rlmm log recover {number}" in run.stdout
    fails_of(it, "history_lost")
    assert it.explain(0)["next_command"] == f"rlmm log recover {number}"
    assert it.rlmm("log", "recover", number, "--execute").exit_code == 0
    eventually(
        lambda: it.explain(0)["next_command"],
        lambda command: command == f"rlmm partition accept-loss {number}",
    )
    assert it.rlmm("partition", "accept-loss", number, "--yes").exit_code == 0
    eventually(lambda: it.row(0)["state"], lambda state: state == "ready")


# Damage in the event log's files.


def test_damage_before_a_snapshot_is_no_failure_and_repair_says_what_makes_it_one(it):
    """The daemon goes on from its snapshot, and reads nothing of what is damaged."""
    assert it.rlmm("snapshot", "now").exit_code == 0
    assert it.daemon.stop() == 0
    flip(it.log_files(0)[0], 100)
    it.start()
    number = str(it.number(0))
    run = it.rlmm("log", "repair", number)
    assert run.exit_code == 0, run.output
    assert "nothing has failed" in run.stdout
    assert f"rlmm partition rebuild {number}" in run.stdout.replace("\n", " ")
    assert it.rlmm("partition", "rebuild", number).exit_code == 1
    assert it.explain(0)["next_command"] == f"rlmm log repair {number}"
    repaired(it)
    it.serves(0)


def test_damage_amid_the_newest_log_file_fails_one_partition_until_it_is_repaired(it):
    assert it.rlmm("snapshot", "now").exit_code == 0
    it.daemon.kill()
    (newest,) = it.log_files(0)
    flip(newest, 100)
    verified = it.rlmm("log", "verify", str(it.log_dir))
    assert verified.exit_code == 1
    assert str(newest) in verified.stdout
    it.start()
    with it.daemon.client() as client, pytest.raises(LogCorrupt):
        client.list_remote_log_segments(it.orders[0])
    fails_of(it, "log_corrupt")
    assert str(newest) in "".join(it.explain(0)["evidence"])
    assert it.explain(0)["next_command"] == f"rlmm log repair {it.number(0)}"
    repaired(it)
    it.serves(0)
    assert Path(f"{newest}.corrupt").exists()
    restarts_clean(it)
    shutil.rmtree(it.state_dir / "snapshots")
    it.daemon.kill()
    it.start()
    it.serves(0)


def test_damage_in_a_sealed_file_shows_when_it_is_read_and_is_repaired_from_what_is_known(it):
    assert it.daemon.stop() == 0
    assert it.rlmm("log", "seal", str(it.log_dir)).exit_code == 0
    sealed, _ = it.log_files(0)
    it.start()
    it.serves(0)
    flip(sealed, sealed.stat().st_size // 2)
    assert it.rlmm("partition", "rebuild", str(it.number(0))).exit_code == 1
    fails_of(it, "log_corrupt")
    repaired(it)
    it.serves(0)
    assert Path(f"{sealed}.corrupt").exists()
    restarts_clean(it)


def finish_of(it: Stocked, segment_id: SegmentId) -> tuple[Path, int]:
    """Return where the batch stands that holds a segment's COPY_SEGMENT_FINISHED."""
    for path in it.log_files(0):
        data = path.read_bytes()
        places = [at for at in range(len(data)) if data.startswith(segment_id, at)]
        if len(places) > 1:
            return path, places[1]  # behind the one of its COPY_SEGMENT_STARTED
    raise AssertionError("the log does not hold it")


def test_a_flipped_bit_in_an_acknowledged_finish_costs_no_object_and_the_segment_comes_back(
    tmp_path, forks
):
    """No snapshot knows of it: to the repaired log it is an abandoned copy."""
    it = make(tmp_path, forks, {"cleaner.interval_seconds": 1, "copy.deadline_seconds": 1})
    with it.daemon:
        it.stock()
        segment_id = it.copied(0)[0].metadata.segment_id
        it.daemon.kill()
        for snapshot in it.snapshots:
            snapshot.unlink()
        flip(*finish_of(it, segment_id))
        it.start()
        fails_of(it, "log_corrupt")
        name = uuid_text(segment_id)

        def objects() -> int:
            return sum(name in path.name for path in below(it.daemon.remote, "*"))

        assert objects() == 5
        number = str(it.number(0))
        run = it.rlmm("log", "repair", number)
        assert run.exit_code == 1, run.output
        fails_of(it, "history_lost")
        with it.daemon.client() as client, pytest.raises(HistoryLost):
            client.remote_log_segment_metadata(it.orders[0], 0, 0)
        assert "rlmm delete" not in json.dumps(it.explain(0))
        assert it.rlmm("partition", "accept-loss", number, "--yes").exit_code == 0
        eventually(lambda: it.row(0)["state"], lambda state: state == "ready")
        it.announce(incarnation=2_000_000_000_000)  # the broker was started anew since
        kept = eventually(
            lambda: [row for row in it.json("cleanup")["stuck"] if row["step"] == "loss_accepted"]
        )
        assert [row["segments"] for row in kept] == [1]
        assert "rlmm delete" not in json.dumps(it.explain(0))
        held = it.json("partition", "end-hold", number)
        assert [row["segments"] for hold in held["holds"] for row in hold["kept"]] == [1]
        assert objects() == 5
        looked = it.json("log", "recover", number)
        assert [row["segment_id"] for row in looked["can_be_put_back"]] == [name]
        assert it.rlmm("log", "recover", number, "--execute").exit_code == 0
        it.serves(0)
        assert it.daemon.stop() == 0
        it.start()
        it.serves(0)


def test_a_loss_that_was_accepted_without_a_storage_holds_its_objects_once_there_is_one(
    tmp_path, forks
):
    """Metadata alone was served for a while, beside a bucket that nobody could write to."""
    settings = {"cleaner.interval_seconds": 1, "copy.deadline_seconds": 1}
    config, stored = tmp_path / "rlmm.toml", CONFIG.read_text("utf-8")
    alone = stored.replace('kind = "local"\ndirectory = "var/remote"\n', 'kind = "none"\n')
    config.write_text(stored, "utf-8")
    it = make(tmp_path, forks, settings, config)
    with it.daemon:
        it.stock()
        segment_id = it.copied(0)[0].metadata.segment_id
        it.daemon.kill()
        for snapshot in it.snapshots:
            snapshot.unlink()
        flip(*finish_of(it, segment_id))
        config.write_text(alone, "utf-8")
        it.start()
        number = str(it.number(0))
        eventually(lambda: it.explain(0)["cause"], lambda cause: cause == "log_corrupt")
        assert it.rlmm("log", "repair", number).exit_code == 1
        eventually(lambda: it.explain(0)["cause"], lambda cause: cause == "history_lost")
        assert it.rlmm("partition", "accept-loss", number, "--yes").exit_code == 0
        eventually(lambda: it.row(0)["state"], lambda state: state == "ready")
        assert it.daemon.stop() == 0
        config.write_text(stored, "utf-8")
        it.daemon.start()
        anew = 2_000_000_000_000  # the broker was started anew since, and gave up all its copies
        with it.broker(incarnation=anew) as broker, it.broker("storage", anew):
            broker.replace_assignment(it.orders, [])
            cleaner = eventually(
                lambda: it.json("cleanup"), lambda told: told["stuck"] or told["deleted"]
            )
        assert [row["step"] for row in cleaner["stuck"]] == ["loss_accepted"]
        name = uuid_text(segment_id)
        assert sum(name in path.name for path in below(it.daemon.remote, "*")) == 5
        assert it.rlmm("log", "recover", number, "--execute").exit_code == 0
        it.serves(0)


@pytest.mark.parametrize("known", ["by nothing else", "as begun"])
def test_damage_of_the_very_last_batch_is_no_torn_tail_where_it_had_been_read(it, known):
    """A clean stop vouches for the end, and no snapshot knows the finish that stands in it."""
    kept = it.daemon.directory / "kept"
    if known == "as begun":
        assert it.rlmm("snapshot", "now").exit_code == 0
        shutil.copytree(it.state_dir / "snapshots", kept)
        it.copy_new(0)
    assert it.daemon.stop() == 0
    shutil.rmtree(it.state_dir / "snapshots")
    if kept.exists():
        shutil.copytree(kept, it.state_dir / "snapshots")
    last = it.acknowledged[-1] if kept.exists() else it.copied(0)[-1].metadata.segment_id
    newest, at = finish_of(it, last)
    flip(newest, at)
    it.start()
    fails_of(it, "log_corrupt")
    number = str(it.number(0))
    (row,) = it.json("log", "repair", number)["repaired"]
    assert (row["state"], row["next"]) == ("failed", f"rlmm log recover {number}")
    assert Path(f"{newest}.corrupt").exists()
    assert it.daemon.stop() == 0
    it.start()
    fails_of(it, "history_lost")
    assert it.rlmm("log", "recover", number, "--execute").exit_code == 0
    assert it.rlmm("partition", "accept-loss", number, "--yes").exit_code == 0
    it.serves(0)
    assert it.listed(0)[last].state is SegmentState.COPY_SEGMENT_FINISHED
    restarts_clean(it)


@pytest.mark.parametrize("stopped", [False, True])
def test_an_older_marker_that_is_put_back_ends_no_hold(tmp_path, forks, stopped):
    """A damaged marker says "restore it": a copy from before the acceptance knows of no hold."""
    it = make(tmp_path, forks, {"cleaner.interval_seconds": 1, "copy.deadline_seconds": 1})
    marker = it.daemon.remote / "_rlmm" / "marker.json"
    with it.daemon:
        it.stock()
        older = marker.read_bytes()
        segment_id = it.copied(0)[0].metadata.segment_id
        it.daemon.kill()
        for snapshot in it.snapshots:
            snapshot.unlink()
        flip(*finish_of(it, segment_id))
        it.start()
        fails_of(it, "log_corrupt")
        number = str(it.number(0))
        assert it.rlmm("log", "repair", number).exit_code == 1
        assert it.rlmm("partition", "accept-loss", number, "--yes").exit_code == 0
        eventually(lambda: it.row(0)["state"], lambda state: state == "ready")
        if stopped:
            assert it.daemon.stop() == 0
        marker.write_bytes(older)
        if stopped:
            it.start()
        reborn = 2_000_000_000_000  # so the copy looks given up
        with it.broker(incarnation=reborn) as broker, it.broker("storage", reborn):
            broker.replace_assignment(it.orders, [])
            eventually(lambda: json.loads(marker.read_bytes()).get("holds"))
            eventually(
                lambda: it.json("cleanup")["stuck"],
                lambda rows: [row["step"] for row in rows] == ["loss_accepted"],
            )
        assert json.loads(marker.read_bytes())["accepted_losses"]
        assert sum(uuid_text(segment_id) in path.name for path in below(it.daemon.remote, "*")) == 5
        assert it.lines("bucket marker is an older one; what was accepted since is written again")


def test_a_segment_that_is_not_whole_is_not_put_back(it):
    segment_id = it.copied(0)[0].metadata.segment_id
    it.daemon.kill()
    for snapshot in it.snapshots:
        snapshot.unlink()
    flip(*finish_of(it, segment_id))
    (index,) = below(it.daemon.remote, f"*{uuid_text(segment_id)}.index")
    index.unlink()
    it.start()
    fails_of(it, "log_corrupt")
    number = str(it.number(0))
    it.rlmm("log", "repair", number)
    run = it.rlmm("log", "recover", number, "--execute")
    assert run.exit_code == 1
    assert "not there: .index" in " ".join(run.stdout.split())
    assert it.rlmm("partition", "accept-loss", number, "--yes").exit_code == 0
    left = {segment.metadata.segment_id for segment in it.copied(0)} - {segment_id}
    found = eventually(lambda: it.listed(0))
    finished = SegmentState.COPY_SEGMENT_FINISHED
    assert {i for i, each in found.items() if each.state is finished} == left


def test_a_repair_does_not_bring_back_what_was_deleted(it):
    gone = it.copied(0)[0].metadata.segment_id
    with it.daemon.client() as client:
        client.delete_segment(it.orders[0], gone)
        client.snapshot_now()
    it.daemon.kill()
    flip(it.log_files(0)[0], 700)
    it.start()
    fails_of(it, "log_corrupt")
    repaired(it)
    left = {segment.metadata.segment_id for segment in it.copied(0)} - {gone}
    assert it.listed(0).keys() == left


# A log that is gone, or is older than what was read of it.


def test_a_log_that_is_gone_is_made_anew_only_when_its_loss_was_accepted(it):
    assert it.daemon.stop() == 0
    shutil.rmtree(it.log_dir)
    it.start()
    status = eventually(lambda: it.json("status"), lambda answer: answer["log"]["failure"])
    assert status["log"]["failure"]["reason"] == "log_missing"
    answer = it.explain(0)
    assert (answer["verdict"], answer["cause"]) == ("failed", "log_missing")
    with it.daemon.client() as client, pytest.raises(PartitionFailed):
        client.list_remote_log_segments(it.orders[0])
    assert not (it.log_dir / "identity.json").exists()
    assert answer["next_command"] == "rlmm doctor"  # its disk may just not be mounted
    assert "see first that its disk is mounted" in answer["sentence"].lower()
    marker = it.daemon.remote / "_rlmm" / "marker.json"
    before = marker.read_bytes()
    assert it.rlmm("partition", "accept-loss", "--all").exit_code == 1  # nobody said yes
    refused = it.rlmm("partition", "accept-loss", "--all", "--yes")
    assert refused.exit_code == 1
    assert "rlmm log restore puts back what they know" in refused.stderr
    assert len(it.snapshots) == 2
    words = ("partition", "accept-loss", "--all", "--without-looking", "--yes")
    assert it.rlmm(*words).exit_code == 0
    eventually(lambda: it.json("status"), lambda answer: answer["log"]["open"])
    assert it.listed(0) == {}
    added = it.copy_new(0)
    assert marker.read_bytes() != before
    assert it.daemon.stop() == 0
    it.start()
    assert it.listed(0).keys() == {added}
    assert it.rlmm("status").exit_code == 0


def test_a_count_of_partitions_that_was_accepted_fails_no_later_start(it):
    """As of a metadata topic that got more of them: the bucket's marker names the former count."""
    assert it.daemon.stop() == 0
    marker = it.daemon.remote / "_rlmm" / "marker.json"
    whole = marker.read_bytes()
    marker.write_bytes(markers.edited(whole, b'"partition_count": 3', b'"partition_count": 2'))
    it.start()
    eventually(lambda: it.explain(0)["cause"], lambda cause: cause == "partition_count_changed")
    assert it.explain(0)["next_command"] == "rlmm partition accept-loss --all"
    assert it.rlmm("partition", "accept-loss", "--all", "--yes").exit_code == 0
    eventually(lambda: it.row(0)["state"], lambda state: state == "ready")
    presence = marker.with_name("daemons") / "1.json"
    before = presence.read_bytes()
    restarts_clean(it)
    # Once the log was held against the marker.
    eventually(presence.read_bytes, lambda now: now != before)
    assert len(it.lines("event log failed")) == 1, "before it was accepted, and not again"
    it.serves(0)


@pytest.mark.parametrize("lost", [["identity.json"], ["identity.json", "state.json"]])
def test_a_log_that_was_only_not_mounted_or_lost_its_names_is_taken_up_whole(it, lost):
    assert it.daemon.stop() == 0
    away = it.daemon.directory / "away"
    it.log_dir.rename(away)
    it.start()
    status = eventually(lambda: it.json("status"), lambda answer: answer["log"]["failure"])
    assert status["log"]["failure"]["reason"] == "log_missing"
    kept = {name: (away / name).read_bytes() for name in lost}
    for name in lost:
        (away / name).unlink()
    shutil.rmtree(it.log_dir)
    it.daemon.kill()
    away.rename(it.log_dir)
    it.start()
    if len(lost) > 1:
        answer = eventually(lambda: it.explain(0), lambda found: found["cause"] == "log_unnamed")
        assert answer["next_command"] == "rlmm log name"
        (it.log_dir / "identity.json").write_bytes(kept["identity.json"])
        eventually(lambda: it.json("status"), lambda answer: answer["log"]["open"])
        it.announce()
    eventually(lambda: it.row(0)["state"], lambda state: state == "ready")
    it.serves(0)
    it.serves(1)


@pytest.mark.parametrize("remedy", ["repair", "accept-loss"])
def test_a_log_replaced_by_an_older_copy_of_itself_is_noticed(it, remedy):
    assert it.daemon.stop() == 0
    shutil.copytree(it.log_dir, it.daemon.directory / "older")
    it.start()
    it.serves(0)
    added = [it.copy_new(0, serial) for serial in range(3)]
    assert it.daemon.stop() == 0
    shutil.rmtree(it.log_dir)
    shutil.copytree(it.daemon.directory / "older", it.log_dir)
    it.start()
    with it.daemon.client() as client, pytest.raises(HistoryLost):
        client.list_remote_log_segments(it.orders[0])
    fails_of(it, "history_lost")
    if remedy == "repair":
        it.run_next(0)
        assert it.listed(0).keys() >= set(added)
    else:
        words = ["partition", "accept-loss", str(it.number(0)), "--yes"]
        assert it.rlmm(*words).exit_code == 1  # all of it is there yet
        assert it.rlmm(*words, "--without-looking").exit_code == 0
        eventually(lambda: it.row(0), lambda row: row["state"] == "ready")
        assert not set(added) & it.listed(0).keys()
    restarts_clean(it)


@pytest.mark.parametrize("kept", ["positions"])
def test_a_position_that_the_log_lost_is_enough_to_notice(it, kept):
    """Without any snapshot, and with only one of the two places that hold positions."""
    assert it.daemon.stop() == 0
    shutil.copytree(it.log_dir, it.daemon.directory / "older")
    it.start()
    it.copy_new(0)
    assert it.daemon.stop() == 0
    shutil.rmtree(it.log_dir)
    shutil.copytree(it.daemon.directory / "older", it.log_dir)
    shutil.rmtree(it.state_dir / "snapshots")
    presence = it.daemon.remote / "_rlmm" / "daemons" / "1.json"
    (presence if kept == "positions" else it.state_dir / "positions.json").unlink()
    it.start()
    with it.daemon.client() as client, pytest.raises(HistoryLost):
        client.list_remote_log_segments(it.orders[0])


# Snapshots.


def test_a_damaged_snapshot_is_set_aside_and_replayed_instead(it):
    assert it.daemon.stop() == 0
    for path in it.snapshots:
        flip(path, path.stat().st_size // 2)
    assert it.rlmm("snapshot", "verify", str(it.state_dir)).exit_code == 1
    it.start()
    it.serves(0)
    it.serves(1)
    assert len(list((it.state_dir / "snapshots").glob("*.rejected"))) == 2
    assert it.json("status")["snapshots"]["rejected"] == 2
    assert it.rlmm("status").exit_code == 0, "nothing was lost, so nothing is wrong"


@pytest.mark.parametrize("name", ["accepted.json", "announced.json"])
def test_a_state_file_that_cannot_be_read_is_left_out_as_a_damaged_one_is(it, name):
    """A bad sector, or what somebody else put back under his own name."""
    assert it.daemon.stop() == 0
    (it.state_dir / name).unlink(missing_ok=True)
    (it.state_dir / name).mkdir()
    it.start()
    eventually(lambda: it.lines("state file ignored"))
    it.serves(0)
    (it.state_dir / name).rmdir()
    restarts_clean(it)


@pytest.mark.parametrize("name", ["identity.json", "positions.json"])
def test_a_guard_that_cannot_be_read_is_told_in_a_line(it, name):
    assert it.daemon.stop() == 0
    guard = it.state_dir / name
    guard.rename(it.daemon.directory / "kept")
    guard.mkdir()
    it.daemon.start()
    assert it.daemon.ended() == 78  # which systemd does not start again
    assert f"{guard}: Is a directory; let the daemon's user read" in it.daemon.last_words(1)
    guard.rmdir()
    (it.daemon.directory / "kept").rename(guard)
    it.start()
    it.serves(0)


def test_a_snapshot_of_a_newer_daemon_is_refused_untouched(it):
    assert it.daemon.stop() == 0
    (path,) = (it.state_dir / "snapshots").glob(f"{it.number(0)}-*.snapshot")
    newer = bytearray(path.read_bytes())
    newer[8:12] = (9).to_bytes(4, "little")
    path.write_bytes(newer)
    it.start()
    row = eventually(lambda: it.row(0), lambda row: row["state"] == "failed")
    answer = it.explain(0)
    assert answer["trouble"]
    assert (
        answer["next_command"]
        == row["failure"]["command"]
        == f"rlmm partition rebuild {it.number(0)}"
    )
    assert "snapshot format" in " ".join(answer["evidence"])
    it.serves(1)
    assert path.read_bytes() == newer
    assert it.daemon.stop() == 0
    assert path.read_bytes() == newer


# A full disk.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    path = tmp_path / "var" / "state"
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system of our own: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_full_disk_refuses_writes_only_and_ends_without_a_restart(tmp_path, forks, small_disk):
    it = make(tmp_path, forks)
    with it.daemon:
        it.stock()
        filler = small_disk / "filler"
        fill(filler)
        # What was preallocated is used up first.
        with pytest.raises(StorageFull), it.daemon.client() as client:
            fill_the_log(client, it)
        it.serves(0)
        it.serves(1)
        filler.unlink()
        eventually(lambda: it.copy_new(0, 255))
        it.daemon.kill()
        it.start()
        it.serves(0)
        assert it.daemon.stop() == 0


@dataclass(frozen=True, slots=True)
class Room:
    """The room in the state directory's file system, which can be taken and given back."""

    it: Stocked
    take: Callable[[], None]
    give: Callable[[], None]


def fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.fixture
def mounted_room(tmp_path: Path, forks: ForkServer, small_disk: Path) -> Room:
    filler = small_disk / "filler"
    return Room(make(tmp_path, forks), lambda: fill(filler), filler.unlink)


@pytest.fixture
def ordered_room(tmp_path: Path, forks: ForkServer) -> Room:
    flag = tmp_path / "full"

    def spawn(launch: Launch) -> Forked:
        full = {full_disk.VARIABLE: f"{tmp_path}/var/state={flag}"}
        return forks(replace(launch, environment={**launch.environment, **full}))

    return Room(make(tmp_path, spawn), flag.touch, flag.unlink)


def becomes_ready(it: Stocked, partition: int) -> None:
    eventually(lambda: it.row(partition)["state"], lambda state: state == "ready")


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("room", ["mounted_room", "ordered_room"])
def test_a_start_on_a_full_disk_answers_reads_and_takes_writes_once_there_is_room(
    room, killed, request
):
    """No file system of our own is needed by the second: it always runs."""
    here: Room = request.getfixturevalue(room)
    it = here.it
    with it.daemon:
        it.stock()
        if killed:
            it.daemon.kill()
        else:
            assert it.daemon.stop() == 0
        here.take()
        it.start()
        for partition in (0, 1):
            becomes_ready(it, partition)
            it.serves(partition)
        here.take()  # what had been preallocated when it was killed is free now
        with pytest.raises(StorageFull):
            it.copy_new(0)
        it.serves(0)
        told = it.rlmm("status")
        assert told.exit_code == 1
        assert "takes no writes: No space left on device" in told.stdout
        notices = {notice["cause"]: notice["sentence"] for notice in it.explain(0)["also"]}
        assert "No space left on device" in notices["log_takes_no_writes"]
        here.give()
        # Nobody writes, and it is told all the same that somebody could.
        eventually(lambda: it.rlmm("status").exit_code, lambda code: code == 0)
        assert "log_takes_no_writes" not in {each["cause"] for each in it.explain(0)["also"]}
        fresh = eventually(lambda: it.copy_new(0, 255))
        assert fresh in it.listed(0)
        it.daemon.kill()
        it.start()
        assert fresh in it.listed(0)
        it.serves(0)
        assert it.rlmm("status").exit_code == 0
        assert it.daemon.stop() == 0


def fill_the_log(client: Client, it: Stocked) -> None:
    """Add segments until the log takes no more: each with as many epochs as a record may hold."""
    segment = it.next(0).metadata
    epochs = {LeaderEpoch(epoch): Offset(segment.start_offset) for epoch in range(5_000)}
    for serial in range(1_000):
        fresh = SegmentId(serial.to_bytes(16, "big"))
        client.add_remote_log_segment_metadata(
            replace(segment, segment_id=fresh, segment_leader_epochs=epochs)
        )


# The bucket.


def test_a_foreign_bucket_takes_no_copies_while_metadata_is_served(it):
    assert it.daemon.stop() == 0
    path = it.daemon.remote / "_rlmm" / "marker.json"
    content = markers.content_of(path.read_bytes())
    foreign = {"cluster_id": "another-cluster", "metadata_topic_id": "AAAAAAAAQACAAAAAAAAABg"}
    path.write_bytes(markers.written(content | foreign))
    before = path.read_bytes()
    it.start()
    assert len(it.listed(0)) == len(it.copied(0))
    segment = it.next(0)
    with it.daemon.client() as client, pytest.raises(StorageUnavailable, match="another-cluster"):
        client.copy_segment(segment.metadata, segment.files)
    assert segment.metadata.segment_id not in it.listed(0), "nothing was begun in the log"
    run = it.rlmm("status")
    assert run.exit_code == 1
    assert "another-cluster" in run.stdout
    told = {notice["cause"]: notice for notice in it.explain(0)["also"]}
    notice = told["storage_trouble"]
    assert notice["trouble"]
    assert notice["sentence"].startswith(
        "The remote storage (local) does not work as it should; last error, "
    )
    assert "another-cluster" in notice["sentence"]
    assert notice["next_command"] == "rlmm doctor"
    assert it.daemon.stop() == 0
    assert path.read_bytes() == before


def test_a_storage_root_may_vanish_and_come_back(it):
    away = it.daemon.remote.with_name("unmounted")
    it.daemon.remote.rename(away)
    with pytest.raises(StorageUnavailable, match="storage root"):
        it.copy_new(0, 1)
    stored = next(iter(it.listed(0).values()))
    with it.daemon.client(timeout_seconds=1.0) as client, pytest.raises(UnavailableError):
        client.fetch_log_segment(stored)
    it.announce(incarnation=78)  # a change that the presence file would tell
    eventually(lambda: "storage_trouble" in {each["cause"] for each in it.explain(0)["also"]})
    assert it.rlmm("status").exit_code == 1
    it.daemon.remote.mkdir()  # what an unmounted file system leaves behind: empty, and not it
    with pytest.raises(UnavailableError):
        it.copy_new(0, 2)
    it.daemon.remote.rmdir()
    away.rename(it.daemon.remote)
    it.serves(0)
    it.copy_new(0, 3)
    # What could not be rolled back is seen, and ends with the command that explain names.
    left = [each for each in it.listed(0).values() if each.state is DELETING]
    for segment in left:
        run = it.rlmm("delete", "orders-0", uuid_text(segment.segment_id), "--yes")
        assert run.exit_code == 0, run.output
    assert len(it.listed(0)) == len(it.copied(0)) + 1
    it.announce(incarnation=79)
    eventually(lambda: it.rlmm("status").exit_code == 0)


# A second daemon.


@pytest.mark.parametrize(
    ("shared", "own", "words"),
    [
        ("state", {"socket.path": "two.sock"}, "another daemon uses the state directory"),
        ("socket", {"daemon.state_dir": "two"}, "another daemon answers on"),
    ],
)
def test_a_second_daemon_is_refused_and_the_first_untouched(it, shared, own, words):
    settings = it.daemon.settings | own
    command = [f"--set={key}={value}" for key, value in settings.items()]
    run = it.daemon.rlmm("run", "--config", str(CONFIG), *command)
    assert run.returncode == 1, shared  # systemd tries again: the first may be about to end
    assert words in run.stderr
    assert "Traceback" not in run.stderr
    it.serves(0)
    it.copy_new(0)
    assert it.daemon.stop() == 0


def test_a_second_daemon_on_the_same_event_log_waits_and_says_why(it, tmp_path, forks):
    other = make(
        tmp_path / "two",
        forks,
        {"event_log.directory": str(it.log_dir), "storage.directory": str(tmp_path / "r")},
    )
    (tmp_path / "r").mkdir()
    with ForkServer() as server:
        other.daemon = type(other.daemon)(tmp_path / "two", other.daemon.settings, server)
        with other.daemon:
            trouble = eventually(
                lambda: other.json("status")["log"]["trouble"], lambda trouble: "another" in trouble
            )
            assert "another process has the event log" in trouble
            assert other.rlmm("status").exit_code == 1
            answer = other.explain(0)
            assert answer["cause"] == "log_not_open"
            assert "another process" in " ".join(answer["evidence"])
            it.serves(0)
            it.copy_new(0)
            assert it.daemon.stop() == 0
            eventually(lambda: other.json("status")["log"]["open"])
            it.start()


def older_log(it: Stocked, added: int) -> list[SegmentId]:
    """Kill the daemon after it copied, and put an older copy of its log in place; no snapshot."""
    assert it.daemon.stop() == 0
    shutil.copytree(it.log_dir, it.daemon.directory / "older")
    it.start()
    ids = [it.copy_new(0, serial) for serial in range(added)]
    eventually(lambda: position_of(it), lambda at: at >= 2 * (3 + added))
    it.daemon.kill()
    shutil.rmtree(it.log_dir)
    shutil.copytree(it.daemon.directory / "older", it.log_dir)
    return ids


def position_of(it: Stocked) -> int:
    kept = json.loads((it.state_dir / "positions.json").read_text())["partitions"]
    offset = kept.get(str(it.number(0)), (0, 0))[0]
    return int(offset)


def test_an_unconfirmed_position_ends_by_the_commands_that_are_named(it):
    older_log(it, 2)
    it.start()
    fails_of(it, "history_lost")
    number = str(it.number(0))
    assert it.explain(0)["next_command"] == f"rlmm log recover {number}"
    assert it.rlmm("log", "recover", number, "--execute").exit_code == 0
    eventually(
        lambda: it.explain(0)["next_command"],
        lambda command: command == f"rlmm partition accept-loss {number}",
    )
    assert it.rlmm("partition", "accept-loss", number, "--yes").exit_code == 0
    it.serves(0)
    restarts_clean(it)


def test_what_may_have_been_ended_in_the_damaged_batch_is_put_back_by_recover_alone(it):
    """A snapshot knows the segment, a batch behind it is lost, and with it maybe its delete."""
    segment_id = it.copied(0)[0].metadata.segment_id
    assert it.rlmm("snapshot", "now").exit_code == 0
    it.daemon.kill()
    flip(*finish_of(it, segment_id))
    it.start()
    number = str(it.number(0))
    it.rlmm("partition", "rebuild", number)
    fails_of(it, "log_corrupt")
    (row,) = it.json("log", "repair", number)["repaired"]
    assert (row["appended"], row["state"]) == (0, "failed")
    assert row["may_have_ended"] == 1
    assert row["next"] == f"rlmm log recover {number}"
    looked = it.rlmm("log", "recover", number)
    assert "a deletion of them may have stood in what was lost" in " ".join(looked.stdout.split())
    assert it.rlmm("log", "recover", number, "--execute").exit_code == 0
    assert it.rlmm("partition", "accept-loss", number, "--yes").exit_code == 0
    it.serves(0)


def log_with_a_loss_that_a_snapshot_knows(it: Stocked) -> str:
    """Damage and repair the log behind a snapshot; return the metadata partition that failed."""
    assert it.rlmm("snapshot", "now").exit_code == 0
    it.daemon.kill()
    flip(*finish_of(it, it.copied(0)[0].metadata.segment_id))
    it.start()
    number = str(it.number(0))
    it.rlmm("partition", "rebuild", number)
    fails_of(it, "log_corrupt")
    assert it.rlmm("log", "repair", number).exit_code == 1
    return number


def test_a_loss_is_not_accepted_before_its_objects_were_looked_for_unless_that_is_said(it):
    """What only a snapshot knew would be given up, though it is all there."""
    number = log_with_a_loss_that_a_snapshot_knows(it)
    for which in (number, "--all"):
        refused = it.rlmm("partition", "accept-loss", which, "--yes")
        assert refused.exit_code == 1
        assert f"rlmm log recover {number}" in " ".join(refused.stderr.split())
    assert it.rlmm("log", "recover", number, "--execute").exit_code == 0
    assert it.rlmm("partition", "accept-loss", number, "--yes").exit_code == 0
    it.serves(0)


def test_a_loss_is_accepted_without_a_look_where_that_is_said(it):
    number = log_with_a_loss_that_a_snapshot_knows(it)
    words = ["partition", "accept-loss", number, "--yes", "--without-looking"]
    assert it.rlmm(*words).exit_code == 0
    eventually(lambda: it.row(0)["state"], lambda state: state == "ready")
    assert len(it.listed(0)) == 3
    assert it.lines("loss accepted")[-1]["without_looking"] is True


def test_what_a_repair_finds_no_objects_of_ends_by_the_command_that_is_named(it):
    """Repaired again it would be named again, for ever."""
    assert it.daemon.stop() == 0
    shutil.copytree(it.log_dir, it.daemon.directory / "older")
    it.start()
    gone, kept = (it.copy_new(0, serial) for serial in range(2))
    assert it.daemon.stop() == 0
    shutil.rmtree(it.log_dir)
    shutil.copytree(it.daemon.directory / "older", it.log_dir)
    (index,) = below(it.daemon.remote, f"*{uuid_text(gone)}.index")
    index.unlink()
    it.start()
    fails_of(it, "history_lost")
    number = str(it.number(0))
    refused = it.rlmm("partition", "accept-loss", number, "--yes")
    assert refused.exit_code == 1
    assert f"rlmm log repair {number}" in " ".join(refused.stderr.split())
    assert it.rlmm("log", "repair", number).exit_code == 1
    fails_of(it, "history_lost")
    assert it.explain(0)["next_command"] == f"rlmm partition accept-loss {number}"
    assert it.rlmm("partition", "accept-loss", number, "--yes").exit_code == 0
    eventually(lambda: it.row(0)["state"], lambda state: state == "ready")
    assert kept in it.listed(0)
    assert gone not in it.listed(0)
    it.serves(0)


# Who else is on this machine.


def test_a_state_directory_that_others_may_write_in_is_named_at_the_start_and_by_doctor(it):
    assert it.daemon.stop() == 0
    assert it.lines("exposed") == []
    it.state_dir.chmod(0o777)
    it.start()
    (line,) = it.lines("exposed")
    assert (line["level"], line["check"]) == ("warning", "own directories")
    assert f"{it.state_dir.relative_to(it.daemon.directory)} (daemon.state_dir)" in line["found"]
    assert line["advice"].startswith("chmod 0750")
    it.serves(0)


def test_a_copy_of_a_clock_that_was_ahead_is_looked_for_as_any_other(it):
    """By its event it may still run for another year, and so it was left out without a word."""
    segment = it.next(0)
    ahead_ms = segment.metadata.event_timestamp_ms + 40 * 366 * 86_400_000
    ahead = replace(segment.metadata, event_timestamp_ms=ahead_ms)
    with it.daemon.client() as client:
        client.copy_segment(ahead, segment.files)
    it.copy_new(0)
    it.daemon.kill()
    failures.without_snapshots(it)
    flip(*finish_of(it, ahead.segment_id))
    it.start()
    number = str(it.number(0))
    it.rlmm("log", "repair", number)
    fails_of(it, "history_lost")
    looked = it.json("log", "recover", number)
    assert [row["segment_id"] for row in looked["can_be_put_back"]] == [uuid_text(ahead.segment_id)]
    assert it.rlmm("log", "recover", number, "--execute").exit_code == 0
    assert it.rlmm("partition", "accept-loss", number, "--yes").exit_code == 0
    it.serves(0)
    assert it.listed(0)[ahead.segment_id].state is SegmentState.COPY_SEGMENT_FINISHED
