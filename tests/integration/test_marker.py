"""A bucket whose marker is lost, damaged or replaced, at a start and while the daemon runs."""

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.codec import marker
from rlmm_daemon.config import load
from rlmm_daemon.core.disposal.holds import held_whole
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.ids import SegmentId, uuid_text
from rlmm_daemon.domain.segment import SegmentState
from rlmm_daemon.offline import marker_rebuilding
from tests.support import failures, markers
from tests.support.brisk import brisk
from tests.support.daemon_process import CONFIG
from tests.support.fork_server import ForkServer
from tests.support.recovery_walk import CONFIGURATION, configuration
from tests.support.stocked_daemon import Stocked, eventually, make, ran, restarts_clean

FINISHED = SegmentState.COPY_SEGMENT_FINISHED
#: Of every object, beyond any time that a test is run at.
HELD: dict[str, Any] = {"metadata_partition": None, "before_ms": 2**42, "broker_id": 1}


def marker_of(it: Stocked) -> Path:
    return it.daemon.remote / "_rlmm" / "marker.json"


def prefixes(path: Path) -> list[str]:
    return [row["prefix"] for row in json.loads(path.read_bytes())["layouts"]]


def objects(it: Stocked) -> set[str]:
    root = it.daemon.remote
    return {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and "_rlmm" not in path.parts and ".rlmm" not in str(path)
    }


def refuses(it: Stocked, reason: str) -> StorageUnavailable:
    """Copies, reads and deletes are refused with the whole story; metadata is served."""

    def ask() -> StorageUnavailable:
        with it.daemon.client(timeout_seconds=3.0) as client:
            try:
                fresh = SegmentId(os.urandom(16))  # one that was rolled back is used up
                segment = it.next(0)
                client.copy_segment(replace(segment.metadata, segment_id=fresh), segment.files)
            except StorageUnavailable as error:
                return error
        raise AssertionError("the copy was taken")

    error = eventually(ask, lambda error: error.fields.get("reason") == reason)
    assert error.fields["key"] == "_rlmm/marker.json"
    assert error.fields["bucket"].endswith("var/remote")
    assert "_rlmm/marker.json" in str(error)
    assert it.listed(0), "metadata is served"
    finished = next(iter(it.listed(0).values()))
    with it.daemon.client(timeout_seconds=3.0) as client:
        with pytest.raises(StorageUnavailable), client.fetch_log_segment(finished) as log:
            log.readall()
        assert client.list_remote_log_segments(it.orders[1])
    status = it.json("status")
    assert "_rlmm/marker.json" in status["storage"]["error"]
    assert it.rlmm("status").exit_code == 1
    assert "_rlmm/marker.json" in it.rlmm("explain", "orders-0").stdout
    return error


def tool(it: Stocked, *words: str) -> Any:
    """Run the tool with the daemon's own configuration, in its directory."""
    overrides = [f"--set={key}={value}" for key, value in it.daemon.settings.items()]
    return it.daemon.rlmm(*words, "--config", str(CONFIG), *overrides)


def test_a_lost_marker_is_not_made_anew_with_other_numbers_and_is_rebuilt_by_the_command(it):
    assert it.daemon.stop() == 0
    it.daemon.settings["storage.prefix"] = "moved"
    it.start()
    it.copy_new(0)
    assert prefixes(marker_of(it)) == ["", "moved"]
    before = marker_of(it).read_bytes()
    assert it.daemon.stop() == 0
    marker_of(it).unlink()
    it.start()
    error = refuses(it, "no_marker")
    assert "rlmm storage rebuild-marker" in str(error)
    assert not marker_of(it).exists()

    whole, victim = objects(it), it.copied(0)[0].metadata
    with it.daemon.client(timeout_seconds=3.0) as client, pytest.raises(StorageUnavailable):
        client.delete_segment(it.orders[0], victim.segment_id)
    assert objects(it) == whole, "nothing is deleted under a layout that nobody knows"
    assert it.listed(0)[victim.segment_id].state is FINISHED, "nor marked"

    verified = tool(it, "storage", "verify")
    assert verified.returncode != 0
    assert "rlmm delete" not in verified.stdout + verified.stderr
    assert "rlmm storage rebuild-marker" in verified.stderr
    doctored = tool(it, "doctor")
    assert doctored.returncode == 1
    assert "rlmm storage rebuild-marker" in doctored.stdout

    dry = tool(it, "storage", "rebuild-marker", "--json")
    assert dry.returncode == 0, dry.stderr
    assert [row["prefix"] for row in json.loads(dry.stdout)["layouts"]] == ["", "moved"]
    assert not marker_of(it).exists(), "a dry run writes nothing"
    (it.state_dir / "marker.json").unlink()  # the log and the bucket say it too
    told = tool(it, "storage", "rebuild-marker", "--execute")
    assert told.returncode == 0, told.stderr
    assert "rlmm partition end-hold --all" in told.stdout
    rebuilt = markers.content_of(marker_of(it).read_bytes())
    assert [hold["metadata_partition"] for hold in rebuilt.pop("holds")] == [None]
    assert rebuilt == markers.content_of(before)
    eventually(lambda: it.json("status"), lambda status: status["storage"]["error"] is None)
    with it.daemon.client() as client:
        client.delete_segment(it.orders[0], victim.segment_id)
    assert len(objects(it)) < len(whole)
    assert not [key for key in objects(it) if victim.segment_id.hex() in key]
    it.serves(1)
    assert tool(it, "storage", "verify").returncode == 0
    doctored = tool(it, "doctor")
    assert doctored.returncode == 0
    assert "1 hold" in doctored.stdout
    again = tool(it, "storage", "rebuild-marker", "--execute")
    assert "Nothing to do." in again.stdout


def test_a_directory_that_is_misspelt_is_told_as_such_and_gets_no_marker(it):
    """With one, new segments go there, and each side lacks what the other one has."""
    assert it.daemon.stop() == 0
    wrong = it.daemon.directory / "var" / "rmeote"
    wrong.mkdir()
    it.daemon.settings["storage.directory"] = "var/rmeote"
    it.start()
    error = eventually(lambda: it.json("status")["storage"]["error"], bool)
    assert re.search(r"var/rmeote: .*right bucket or directory", error)
    doctored = tool(it, "doctor")
    assert doctored.returncode == 1
    assert "right bucket or directory" in doctored.stdout
    for words in (("--execute",), ("--layout", "1=", "--execute"), ("--layout", "1=")):
        told = tool(it, "storage", "rebuild-marker", *words)
        assert told.returncode != 0
        assert "var/rmeote: is this the right" in told.stderr
    assert not (wrong / "_rlmm" / "marker.json").exists()
    gone = tool(it, "storage", "rebuild-marker", "--objects-are-gone", "--execute")
    assert gone.returncode == 0, gone.stderr
    verified = tool(it, "storage", "verify")
    assert verified.returncode == 1
    assert "rlmm delete" not in verified.stdout
    assert "var/rmeote lacks 6 of 6 finished segments" in verified.stdout


def test_a_storage_is_the_right_one_where_it_has_segments_that_the_log_lost(it):
    """They are on the daemon's list of missing ones, and `rlmm log recover` needs a marker."""
    assert it.daemon.stop() == 0
    shutil.rmtree(it.log_dir / str(it.number(0)))
    for key in objects(it):
        if key.startswith("orders-1"):
            (it.daemon.remote / key).unlink()
    marker_of(it).unlink()
    it.start()
    it.rlmm("log", "repair", str(it.number(0)))
    assert (it.state_dir / f"{it.number(0)}.lost").exists()
    told = tool(it, "storage", "rebuild-marker", "--execute")
    assert told.returncode == 0, told.stderr
    assert marker_of(it).exists()


def test_a_rebuilt_marker_knows_the_layouts_of_segments_that_the_log_lost(it):
    """Nothing else names the former prefix any more: neither the log nor the copy of the marker."""
    with it.daemon.client() as client:
        for segment in it.copied(1):
            client.delete_segment(it.orders[1], segment.metadata.segment_id)
    assert it.daemon.stop() == 0
    it.daemon.settings["storage.prefix"] = "moved"
    it.start()
    it.copy_new(1)
    assert prefixes(marker_of(it)) == ["", "moved"]
    assert it.daemon.stop() == 0
    shutil.rmtree(it.log_dir / str(it.number(0)))
    marker_of(it).unlink()
    (it.state_dir / "marker.json").unlink()
    it.start()
    number = str(it.number(0))
    it.rlmm("log", "repair", number)
    assert (it.state_dir / f"{number}.lost").exists()
    told = tool(it, "storage", "rebuild-marker", "--execute")
    assert told.returncode == 0, told.stderr
    assert prefixes(marker_of(it)) == ["", "moved"]
    eventually(lambda: it.json("status"), lambda status: status["storage"]["error"] is None)
    assert it.rlmm("log", "recover", number, "--execute").exit_code == 0
    it.rlmm("partition", "accept-loss", number, "--yes")
    it.serves(0)


def test_a_segment_that_is_missing_alone_is_ended_by_the_command_that_is_named(it):
    lost = it.copied(0)[0].metadata
    for path in it.daemon.remote.rglob(f"*{uuid_text(lost.segment_id)}.log"):
        path.unlink()
    verified = tool(it, "storage", "verify")
    assert verified.returncode == 1
    assert "nowhere any more is ended by: rlmm delete TOPIC-PARTITION SEGMENT" in verified.stdout
    assert "every bucket or directory" in verified.stdout


def test_a_marker_that_is_removed_while_the_daemon_runs_refuses_storage_until_it_is_back(it):
    kept = marker_of(it).read_bytes()
    marker_of(it).unlink()
    refuses(it, "no_marker")
    assert it.json("status")["storage"]["error"]
    assert it.rlmm("status").exit_code == 1
    marker_of(it).write_bytes(kept)
    eventually(lambda: it.json("status"), lambda status: status["storage"]["error"] is None)
    it.serves(0)
    it.copy_new(0, serial=3)


def test_another_partition_count_ends_for_good_once_its_loss_was_accepted(it):
    """The metadata topic got more partitions, or a bit of the marker flipped."""
    assert it.daemon.stop() == 0
    whole = marker_of(it).read_bytes()
    marker_of(it).write_bytes(markers.edited(whole, b'_count": 3', b'_count": 7'))
    it.start()
    named = eventually(lambda: it.explain(0), lambda said: said["verdict"] == "failed")
    assert named["cause"] == "partition_count_changed"
    assert it.rlmm(*named["next_command"].split()[1:], "--yes").exit_code == 0
    eventually(lambda: it.row(0)["state"], lambda state: state == "ready")
    assert json.loads(marker_of(it).read_bytes())["partition_count"] == 3
    assert it.daemon.stop() == 0
    it.start()
    eventually(lambda: it.row(0)["state"], lambda state: state == "ready")
    it.serves(0)


def renamed(marker: bytes) -> bytes:
    """Return a marker of this very log that names another cluster."""
    return markers.edited(marker, b"rlmm-demo-cluster", b"rlmm-demo-cluspdr")


def foreign(marker: bytes) -> bytes:
    named = {"cluster_id": "another-cluster", "metadata_topic_id": "AAAAAAAAQACAAAAAAAAABg"}
    return markers.written(markers.content_of(marker) | named)


def flipped(marker: bytes) -> bytes:
    """Return a marker after a bit of it flipped that leaves all of it names and numbers."""
    return marker.replace(b'"partition_count": 3', b'"partition_count": 7')


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (lambda data: data[: len(data) // 2], "bad_marker"),
        (lambda _: b"", "bad_marker"),
        (markers.newer, "newer_marker"),
        (renamed, "bad_marker"),
        (flipped, "bad_marker"),
        (foreign, "foreign_marker"),
    ],
    ids=["truncated", "empty", "newer", "renamed", "flipped", "foreign"],
)
def test_a_marker_that_cannot_be_used_at_the_start_ends_storage_and_nothing_else(
    it, damaged, reason
):
    assert it.daemon.stop() == 0
    whole = marker_of(it).read_bytes()
    marker_of(it).write_bytes(damaged(whole))
    present = marker_of(it).read_bytes()
    it.start()
    refuses(it, reason)
    assert marker_of(it).read_bytes() == present, "it is left as it is"
    marker_of(it).write_bytes(whole)
    eventually(lambda: it.json("status"), lambda status: status["storage"]["error"] is None)
    it.serves(0)


@pytest.mark.parametrize("damaged", [lambda data: data[:40], renamed, flipped])
def test_a_damaged_marker_is_rebuilt_and_the_former_one_is_kept_beside_it(it, damaged):
    assert it.daemon.stop() == 0
    whole = marker_of(it).read_bytes()
    marker_of(it).write_bytes(damaged(whole))
    it.start()
    refuses(it, "bad_marker")
    told = tool(it, "storage", "rebuild-marker", "--execute", "--json")
    outcome = json.loads(told.stdout)
    assert outcome["written"]
    assert (it.daemon.remote / outcome["former"]).read_bytes() == damaged(whole)
    assert marker_of(it).read_bytes() == whole
    eventually(lambda: it.json("status"), lambda status: status["storage"]["error"] is None)
    it.serves(0)


def test_a_foreign_or_newer_marker_is_never_rebuilt(it):
    whole = marker_of(it).read_bytes()
    for left_alone in (foreign(whole), markers.newer(whole)):
        marker_of(it).write_bytes(left_alone)
        present = marker_of(it).read_bytes()
        told = tool(it, "storage", "rebuild-marker", "--execute")
        assert told.returncode != 0
        assert marker_of(it).read_bytes() == present


def held(it: Stocked) -> list[tuple[int | None, int]]:
    holds = json.loads(marker_of(it).read_bytes()).get("holds", [])
    return [(hold["metadata_partition"], hold["before_ms"]) for hold in holds]


def hold_of(metadata_partition: int | None, before_ms: int) -> dict[str, Any]:
    return {"metadata_partition": metadata_partition, "before_ms": before_ms, "broker_id": 1}


def test_a_marker_is_not_given_to_the_cluster_of_a_log_in_the_wrong_place(tmp_path, forks):
    it = make(tmp_path, forks)
    with it.daemon:
        it.stock()
        failures.log_of_another_cluster(it)
        before = marker_of(it).read_bytes()
        told = tool(it, "storage", "rebuild-marker", "--execute")
        assert told.returncode == 1
        assert "is of cluster another-cluster, daemon.cluster_id is" in told.stderr
        assert marker_of(it).read_bytes() == before


def test_a_rebuilt_marker_holds_what_the_lost_one_may_have_held(it):
    """Whoever rebuilds it without a copy does not know which losses were accepted."""
    before_ms = time.time_ns() // 1_000_000
    assert it.daemon.stop() == 0
    marker = markers.content_of(marker_of(it).read_bytes())
    marker |= {"holds": [hold_of(0, before_ms)]}
    marker_of(it).write_bytes(markers.written(marker)[:-20])
    (it.state_dir / "marker.json").unlink()
    dry = tool(it, "storage", "rebuild-marker", "--json")
    assert json.loads(dry.stdout)["holds_all"]
    assert tool(it, "storage", "rebuild-marker", "--execute").returncode == 0
    [(which, until_ms)] = held(it)
    assert which is None
    assert until_ms >= before_ms
    it.start()
    one = eventually(lambda: it.json("partition", "end-hold", "0", "--execute"))
    assert [hold["metadata_partition"] for hold in one["holds"]] == [None], "it holds each of them"
    assert not one["executed"]
    dry, done = (it.rlmm("partition", "end-hold", "0", *how) for how in ((), ("--execute",)))
    assert "--all --execute ends it" in dry.stdout
    assert (dry.exit_code, done.exit_code) == (0, 1), "nothing was ended"
    assert len(held(it)) == 1
    assert [
        hold["metadata_partition"] for hold in it.json("partition", "end-hold", "--all")["holds"]
    ] == [None]
    assert it.rlmm("partition", "end-hold", "--all", "--execute").exit_code == 0
    assert held(it) == []


def test_a_marker_rebuilt_by_a_clock_that_is_behind_holds_all_that_is_there(it, monkeypatch):
    """The storage's time counts, as for every other hold: nothing would be as old as that clock."""
    assert it.daemon.stop() == 0
    marker_of(it).unlink()
    (it.state_dir / "marker.json").unlink()
    taken_ms = max((it.daemon.remote / key).stat().st_mtime_ns for key in objects(it)) // 1_000_000
    monkeypatch.chdir(it.daemon.directory)
    monkeypatch.setattr(SystemClock, "now_ms", lambda _self: taken_ms - 2 * 86_400_000)
    config = load(str(CONFIG), [f"{key}={value}" for key, value in it.daemon.settings.items()])
    assert marker_rebuilding.run(config, {}, execute=True).holds_all
    [(which, until_ms)] = held(it)
    assert which is None
    assert until_ms >= taken_ms


def test_a_rebuilt_marker_holds_what_was_stored_while_the_storages_clock_was_ahead(it):
    assert it.daemon.stop() == 0
    marker_of(it).unlink()
    (it.state_dir / "marker.json").unlink()
    young_ms = time.time_ns() // 1_000_000 + 86_400_000
    for key in objects(it):
        os.utime(it.daemon.remote / key, (young_ms / 1000, young_ms / 1000))
    assert tool(it, "storage", "rebuild-marker", "--execute").returncode == 0
    [(which, until_ms)] = held(it)
    assert which is None
    assert abs(until_ms - young_ms) <= 1


def test_no_deletion_is_recommended_of_what_a_hold_keeps(tmp_path, forks):
    """The cleaner of whoever owns the metadata partition knows; this one has not looked yet."""
    settings = {"cleaner.interval_seconds": 3600, "copy.deadline_seconds": 1}
    it = make(tmp_path, forks, settings)
    with it.daemon:
        it.stock()
        assert it.daemon.stop() == 0
        path = marker_of(it)
        held = held_whole(marker.decode_marker(path.read_bytes()), 2**50, 1)
        path.write_bytes(marker.encode(held))
        it.daemon.start()
        with it.broker() as broker:
            broker.replace_assignment(it.orders, [])
            eventually(lambda: broker.is_ready(it.orders[0]))
            broker.add_remote_log_segment_metadata(it.next(0).metadata)
        named = eventually(
            lambda: {
                each["cause"]: each["next_command"]
                for each in it.explain(0)["also"]
                if each["cause"].startswith("copy_")
            }
        )
        assert named == {"copy_unfinished": f"rlmm log recover {it.number(0)}"}


def older_copies(it: Stocked, *, marker: bool) -> None:
    """Put state directory and bucket marker back as they were before all objects were held."""
    assert it.daemon.stop() == 0
    before = marker_of(it).read_bytes()
    shutil.copytree(it.state_dir, backup := it.daemon.directory / "backup")
    marker_of(it).write_bytes(markers.written(markers.content_of(before) | {"holds": [HELD]}))
    it.start()  # as it is behind a daemon of the same id that was met, or a log that was restored
    presence = it.daemon.remote / "_rlmm/daemons/1.json"
    eventually(lambda: json.loads(presence.read_bytes())["holds"])
    assert it.daemon.stop() == 0
    assert b'"holds"' in (it.state_dir / "marker.json").read_bytes()
    shutil.rmtree(it.state_dir)
    backup.rename(it.state_dir)
    if marker:
        marker_of(it).write_bytes(before)
    else:
        marker_of(it).unlink()


def test_a_hold_that_marker_and_state_directory_forgot_is_known_by_the_presence_file(it):
    """Both are older copies. Without the hold the cleaner takes what it keeps for abandoned."""
    older_copies(it, marker=True)
    it.start()
    assert eventually(lambda: held(it)) == [(None, HELD["before_ms"])]
    assert it.rlmm("partition", "end-hold", "--all", "--execute").exit_code == 0
    restarts_clean(it)
    assert held(it) == [], "one that was ended stays so"


def test_an_older_marker_gives_no_number_that_segments_name_to_another_prefix(it):
    """No copy remembers the newer one. Verify took a live segment for lost, and named its end."""
    assert it.daemon.stop() == 0
    older = marker_of(it).read_bytes()
    it.daemon.settings["storage.prefix"] = "moved"
    it.start()
    moved = [(0, it.copy_new(0)), (1, it.copy_new(1))]
    assert it.daemon.stop() == 0
    marker_of(it).write_bytes(older)
    (it.state_dir / "marker.json").unlink()
    it.daemon.settings["storage.prefix"] = "again"
    it.start()
    error = refuses(it, "remade_marker")
    assert "segments under layout 2" in str(error)
    assert prefixes(marker_of(it)) == [""]
    verified = tool(it, "storage", "verify")
    assert verified.returncode != 0
    assert "rlmm delete" not in verified.stdout + verified.stderr
    rebuilt = tool(it, "storage", "rebuild-marker", "--execute")
    assert rebuilt.returncode == 0, rebuilt.stderr
    eventually(lambda: prefixes(marker_of(it)), lambda found: found == ["", "moved", "again"])

    # What is deleted names nothing any more: its number is free, as the command takes it to be.
    for partition, segment_id in moved:
        ended = it.rlmm("delete", f"orders-{partition}", uuid_text(segment_id), "--yes")
        assert ended.exit_code == 0, ended.output
    assert it.daemon.stop() == 0
    marker_of(it).write_bytes(older)
    (it.state_dir / "marker.json").unlink()
    it.start()
    eventually(lambda: prefixes(marker_of(it)), lambda found: found == ["", "again"])
    it.serves(0)
    it.serves(1)


def test_a_marker_that_is_rebuilt_of_an_older_copy_holds_what_presence_files_tell_of(it):
    older_copies(it, marker=False)
    dry = tool(it, "storage", "rebuild-marker", "--json")
    assert json.loads(dry.stdout)["holds_all"]
    assert tool(it, "storage", "rebuild-marker", "--execute").returncode == 0
    [(which, _)] = held(it)
    assert which is None


def test_what_the_copy_of_a_remade_marker_held_stays_held(it):
    assert it.daemon.stop() == 0
    marker = markers.content_of(marker_of(it).read_bytes())
    remade = marker | {"layouts": [{"number": 1, "kind": "local-tiered-storage", "prefix": "no"}]}
    remade |= {"format": 2, "holds": [hold_of(1, 7)]}
    copy = marker | {"format": 2, "holds": [hold_of(0, 9), hold_of(1, 5)]}
    (it.state_dir / "marker.json").write_bytes(markers.written(copy))
    marker_of(it).write_bytes(markers.written(remade))
    assert tool(it, "storage", "rebuild-marker", "--execute").returncode == 0
    assert prefixes(marker_of(it)) == [""]
    assert sorted(held(it)) == [(0, 9), (1, 7)]


def test_a_damaged_marker_is_rebuilt_though_no_segment_names_a_layout(tmp_path, forks):
    it = make(tmp_path, forks)
    with it.daemon:
        eventually(marker_of(it).exists)
        eventually((it.state_dir / "marker.json").exists)
        it.daemon.kill()
        (it.state_dir / "marker.json").unlink()
        marker_of(it).write_bytes(b"")
        assert tool(it, "storage", "rebuild-marker", "--execute").returncode == 0
        it.start()
        assert it.copy_new(0) in it.listed(0)
        assert prefixes(marker_of(it)) == [""]


def test_a_marker_whose_topic_id_is_none_is_rebuilt_for_a_daemon_without_an_identity(it):
    assert it.daemon.stop() == 0
    whole = markers.content_of(marker_of(it).read_bytes())
    spoilt = whole | {"metadata_topic_id": "!" + whole["metadata_topic_id"][1:]}
    marker_of(it).write_bytes(markers.written(spoilt))
    (it.state_dir / "identity.json").unlink()
    it.daemon.start()
    eventually(lambda: it.rlmm("status").stdout, lambda told: "rlmm storage rebuild-marker" in told)
    it.daemon.kill()
    assert "is not a Kafka uuid" in tool(it, "storage", "rebuild-marker").stdout
    assert tool(it, "storage", "rebuild-marker", "--execute").returncode == 0
    it.start()
    assert it.copy_new(0) in it.listed(0)
    assert json.loads(marker_of(it).read_bytes())["metadata_topic_id"] == whole["metadata_topic_id"]


def test_an_older_marker_beside_a_copy_that_cannot_be_read_holds_all_there_is(it):
    """Nobody can tell any more that it is an older one."""
    assert it.daemon.stop() == 0
    copy = it.state_dir / "marker.json"
    copy.write_bytes(copy.read_bytes().replace(b'"prefix": ""', b'"prefix": "x"'))
    doctored = tool(it, "doctor")
    assert "the daemon's copy of the marker can't be read" in doctored.stdout
    verified = tool(it, "storage", "verify")
    assert verified.returncode != 0
    assert "the daemon's copy of the marker can't be read" in verified.stderr
    assert "can't be read" in tool(it, "storage", "rebuild-marker").stdout
    it.start()
    [(which, _)] = eventually(lambda: held(it))
    assert which is None
    assert tool(it, "storage", "verify").returncode == 0
    assert "can't be read" not in tool(it, "doctor").stdout
    assert it.rlmm("partition", "end-hold", "--all", "--execute").exit_code == 0
    assert it.daemon.stop() == 0
    it.start()
    it.serves(0)
    assert held(it) == [], "told once"


@pytest.fixture
def unstocked(tmp_path: Path, forks: ForkServer) -> Iterator[Stocked]:
    stocked = make(tmp_path, brisk(forks), config=configuration(tmp_path))
    with stocked.daemon:
        yield stocked


def test_an_empty_directory_in_the_place_of_one_that_was_known_gets_no_marker(unstocked: Stocked):
    """Though nothing was copied yet: what is, would be hidden once the mount is back."""
    it = unstocked
    eventually((it.daemon.remote / marker.MARKER_KEY).exists)
    eventually((it.state_dir / "marker.json").exists)
    assert it.daemon.stop() == 0
    mounted = it.daemon.remote.rename(it.daemon.directory / "mounted")
    it.daemon.remote.mkdir()
    it.start()
    error = eventually(lambda: it.json("status")["storage"]["error"])
    assert "is it mounted?" in error
    assert "rlmm storage rebuild-marker" in error
    assert not (it.daemon.remote / marker.MARKER_KEY).exists()
    it.daemon.remote.rename(it.daemon.directory / "mount point")
    mounted.rename(it.daemon.remote)
    eventually(lambda: it.json("status")["storage"]["error"], lambda error: error is None)
    assert it.daemon.stop() == 0
    # Emptied on purpose: a command says so.
    shutil.rmtree(it.daemon.remote)
    it.daemon.remote.mkdir()
    it.start()
    eventually(lambda: it.json("status")["storage"]["error"])
    config = str(it.daemon.directory / CONFIGURATION)
    ran(it, "storage", "rebuild-marker", "--config", config, "--execute")
    eventually(lambda: it.json("status")["storage"]["error"], lambda error: error is None)
