"""Each command that changes something, against a real daemon of its own."""

import json
from pathlib import Path

from rlmm_daemon import __version__
from rlmm_daemon.domain.ids import uuid_text
from tests.support.daemon_process import CONFIG
from tests.support.stocked_daemon import COUNT, Stocked, eventually, flip, ran


def copy_words(it: Stocked) -> list[str]:
    """How `rlmm copy` is told of the next segment of orders-0."""
    segment = it.next(0)
    metadata = segment.metadata
    epochs = ",".join(f"{epoch}:{at}" for epoch, at in metadata.segment_leader_epochs.items())
    return [
        "copy",
        uuid_text(metadata.partition.topic_id),
        "orders-0",
        "--dir",
        str(Path(segment.stem).parent),
        "--start-offset",
        str(metadata.start_offset),
        "--end-offset",
        str(metadata.end_offset),
        "--epochs",
        epochs,
    ]


def test_a_copy_is_found_fetched_repeated_and_deleted(it: Stocked, tmp_path: Path):
    segment = it.next(0)
    words = copy_words(it)
    made = json.loads(ran(it, *words, "--json"))["data"]
    segment_id = made["remoteLogSegmentId"]["id"]
    assert made["remoteLogSegmentState"] == 1
    again = json.loads(ran(it, *words, "--segment-id", segment_id, "--json"))["data"]
    assert again["remoteLogSegmentId"]["id"] == segment_id
    assert len(it.listed(0)) == 4
    ran(it, "fetch", "orders-0", segment_id, "-o", str(tmp_path / "log"))
    assert (tmp_path / "log").read_bytes() == Path(f"{segment.stem}.log").read_bytes()
    refused = it.rlmm("delete", "orders-0", segment_id)
    assert (refused.exit_code, len(it.listed(0))) == (1, 4), "nobody said yes"
    done = json.loads(ran(it, "delete", "orders-0", segment_id, "--yes", "--json"))
    assert done["deleted"] == segment_id
    assert len(it.listed(0)) == 3
    gone = it.rlmm("delete", "orders-0", segment_id, "--yes")
    assert (gone.exit_code, "has no segment" in gone.stderr) == (1, True)


def test_a_copy_of_what_is_not_there_begins_nothing(it: Stocked):
    words = copy_words(it)
    words[words.index("--start-offset") + 1] = "77"
    assert it.rlmm(*words).exit_code == 1
    assert len(it.listed(0)) == 3
    words = copy_words(it)
    words[words.index("--epochs") + 1] = "zero"
    assert it.rlmm(*words).exit_code == 2


def test_a_segment_whose_bytes_are_wrong_is_not_finished_and_explain_says_where(it: Stocked):
    flip(Path(f"{it.next(0).stem}.log"), 5_000)
    refused = it.rlmm(*copy_words(it), "--json")
    assert refused.exit_code == 1
    assert json.loads(refused.stderr.splitlines()[-1])["error"] == "checksum_mismatch"
    answer = it.explain(0)
    (notice,) = [each for each in answer["also"] if each["cause"] == "copy_failed"]
    assert "position" in notice["sentence"]
    assert "offset" in notice["sentence"]
    assert it.rlmm("explain", "orders-0").exit_code == 1


def test_snapshots_are_written_checked_and_shown(it: Stocked):
    rows = json.loads(ran(it, "snapshot", "now", "--json"))
    assert {row["metadata_partition"] for row in rows if row["next_offset"]} == {1, 2}
    assert all(row["written"] for row in rows)
    assert json.loads(ran(it, "snapshot", "now", "1", "--json"))[0]["metadata_partition"] == 1
    checked = json.loads(ran(it, "snapshot", "verify", str(it.state_dir), "--json"))
    assert {row["error"] for row in checked} == {None}
    path = next(row["path"] for row in rows if row["metadata_partition"] == it.number(0))
    shown = json.loads(ran(it, "snapshot", "show", path, "--json"))
    assert shown["partitions"][0]["segments"]["COPY_SEGMENT_FINISHED"] == 3
    assert "orders-0" in ran(it, "snapshot", "show", path)
    flip(Path(path), 200)
    ran(it, "snapshot", "verify", path, code=1)
    ran(it, "snapshot", "show", path, code=1)
    ran(it, "snapshot", "now", "99", code=1)


def test_a_partition_is_retried_and_rebuilt_and_no_loss_is_accepted_where_there_is_none(
    it: Stocked,
):
    number = str(it.number(0))
    assert json.loads(ran(it, "partition", "retry", number, "--json")) == {
        "retried": [],
        "failed": [],
        "next": [],
    }
    assert json.loads(ran(it, "partition", "rebuild", number, "--json")) == {
        "rebuilding": [it.number(0)],
        "state": "ready",
        "next": None,
    }
    it.serves(0)
    for form in ([], ["--json"]):
        refused = it.rlmm("partition", "accept-loss", number, "--yes", *form)
        assert refused.exit_code == 1
        assert "nothing is missing" in refused.stderr
    it.serves(0)
    for order in ("retry", "rebuild"):
        ran(it, "partition", order, "99", code=1)
        ran(it, "partition", order, "many", code=2)


def test_a_damaged_log_is_verified_repaired_and_sealed(it: Stocked):
    repaired = json.loads(ran(it, "log", "repair", "--json"))
    assert repaired == {"repaired": [], "not_known": [], "not_read": []}
    ran(it, "snapshot", "now")
    it.daemon.kill()
    ran(it, "log", "verify", str(it.log_dir))
    flip(it.log_files(0)[0], 100)
    ran(it, "log", "verify", str(it.log_dir), code=1)
    offline = it.explain(0, "--state-dir", str(it.state_dir))
    assert (offline["cause"], offline["verdict"]) == ("offline_log_corrupt", "failed")
    it.start()
    eventually(lambda: it.row(0), lambda row: row["state"] == "failed")
    ran(it, "explain", "orders-0", code=1)
    ran(it, "partition", "retry", str(it.number(0)), code=1)
    number = str(it.number(0))
    (row,) = json.loads(ran(it, "log", "repair", number, "--json", code=1))["repaired"]
    assert (row["reason"], row["state"]) == ("log_corrupt", "failed")
    assert row["next"] == f"rlmm log recover {number}"
    ran(it, "log", "recover", number, "--execute")
    accepted = json.loads(ran(it, "partition", "accept-loss", number, "--yes", "--json"))
    assert accepted == {"accepted": [it.number(0)], "missing": 0, "next": []}
    it.serves(0)
    assert "goes on" not in ran(it, "partition", "accept-loss", number, "--yes", code=1)
    ran(it, "drain")
    assert it.daemon.process is not None
    assert it.daemon.process.wait(30) == 0
    it.daemon.kill()
    ran(it, "log", "seal", str(it.log_dir))
    ran(it, "log", "verify", str(it.log_dir))
    it.start()
    it.serves(0)
    sealed = it.rlmm("log", "seal", str(it.log_dir))
    assert sealed.exit_code == 1, "a daemon holds the log"


def test_drain_ends_the_process_cleanly_and_the_files_still_explain(it: Stocked):
    assert json.loads(ran(it, "drain", "--json")) == {"draining": True}
    assert it.daemon.process is not None
    assert it.daemon.process.wait(30) == 0
    it.daemon.kill()
    ran(it, "status", code=3)
    answer = it.explain(0, "--state-dir", str(it.state_dir))
    assert (answer["cause"], answer["trouble"]) == ("offline", False)
    found = it.explain(0, "--offset", "5", "--state-dir", str(it.state_dir))
    assert found["cause"] == "offset_found"
    it.start()
    it.serves(0)


def test_storage_verify_beside_the_daemon_leaves_alone_what_it_is_copying(it, monkeypatch):
    monkeypatch.chdir(it.daemon.directory)
    [owner] = (it.daemon.remote / ".rlmm" / "attempts").iterdir()
    attempt = owner / "alive"
    attempt.mkdir()
    (attempt / "0").write_bytes(b"half")
    found = json.loads(ran(it, "storage", "verify", "--config", str(CONFIG), "--json"))
    assert (found["findings"], found["segments"]) == ([], 6)
    assert (attempt / "0").read_bytes() == b"half"
    assert list((it.daemon.remote / ".rlmm" / "attempts").iterdir()) == [owner]


def test_a_start_is_told_in_one_line_and_so_is_when_it_is_ready(it: Stocked):
    (starting,) = it.lines("starting")
    assert starting["version"] == __version__
    assert starting["socket"].endswith("rlmm.sock")
    assert (starting["event_log"], starting["storage"]) == ("embedded", "local")
    assert starting["event_log_at"].endswith("/state/log")
    assert starting["storage_at"].endswith("/remote")
    assert starting["admin"] == "127.0.0.1:0"
    (ready,) = eventually(lambda: it.lines("ready"))
    assert ready["metadata_partitions"] <= COUNT
