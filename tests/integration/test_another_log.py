"""Another event log than the known one, and snapshots that are older than what had been read."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result

from rlmm_daemon.codec import marker
from rlmm_daemon.domain.errors import HistoryLost
from tests.support.failures import replace_log
from tests.support.fork_server import ForkServer
from tests.support.recovery_walk import CONFIGURATION, configuration
from tests.support.stocked_daemon import Stocked, eventually, make


@pytest.fixture
def it(tmp_path: Path, forks: ForkServer) -> Iterator[Stocked]:
    stocked = make(tmp_path, forks, config=configuration(tmp_path))
    with stocked.daemon:
        stocked.stock()
        yield stocked


def stop_with_older_snapshots(it: Stocked) -> None:
    """Stop the daemon behind one more copy, of which no snapshot knows."""
    assert it.rlmm("snapshot", "now").exit_code == 0
    older = it.daemon.directory / "older"
    shutil.copytree(it.state_dir / "snapshots", older)
    it.copy_new(0)
    assert it.daemon.stop() == 0
    shutil.rmtree(it.state_dir / "snapshots")
    older.rename(it.state_dir / "snapshots")


def fails(it: Stocked, partition: int, command: str) -> None:
    """Hold that nothing is answered, and that this command is named next."""
    eventually(lambda: it.row(partition)["state"], lambda state: state == "failed")
    eventually(lambda: it.explain(partition)["next_command"], lambda named: named == command)
    with pytest.raises(HistoryLost):
        it.listed(partition)


def serves(it: Stocked, partition: int) -> None:
    eventually(lambda: it.row(partition)["state"], lambda state: state == "ready")
    it.serves(partition)


def test_what_no_snapshot_knows_of_the_former_log_has_to_be_accepted(it):
    """The copies that the snapshots know were put back, and then the last one was "empty"."""
    stop_with_older_snapshots(it)
    replace_log(it)
    it.start()
    fails(it, 0, f"rlmm log recover {it.number(0)}")
    fails(it, 1, f"rlmm log repair {it.number(1)}")
    assert it.rlmm("log", "repair", str(it.number(1))).exit_code == 0
    serves(it, 1)
    assert it.rlmm("log", "recover", str(it.number(0)), "--execute").exit_code == 0
    fails(it, 0, "rlmm partition accept-loss --all")
    assert it.daemon.stop() == 0
    it.start()
    fails(it, 0, "rlmm partition accept-loss --all")
    run = it.rlmm("partition", "accept-loss", "--all", "--yes")
    assert run.exit_code == 0, run.output
    for partition in (0, 1):
        serves(it, partition)
    assert marker.decode_marker((it.daemon.remote / marker.MARKER_KEY).read_bytes()).held


def restored(it: Stocked, snapshots: Path, target: str, *more: str) -> Result:
    config = str(it.daemon.directory / CONFIGURATION)
    words = ("--config", config, "--from-snapshots", str(snapshots), "--to", target, "--execute")
    return it.rlmm("log", "restore", *words, *more)


def test_a_log_is_the_configured_one_however_its_directory_is_typed(it):
    """With a slash at its end, as a shell completes it, nothing was held against what was read."""
    stop_with_older_snapshots(it)
    shutil.rmtree(it.log_dir)
    run = restored(it, it.state_dir / "snapshots", f"{it.log_dir}/")
    assert run.exit_code == 1, run.output
    assert "up to offset 8, the snapshots up to 6" in run.output
    assert not it.log_dir.exists()
    run = restored(it, it.state_dir / "snapshots", f"{it.log_dir}/../log", "--accept-loss")
    assert run.exit_code == 0, run.output
    it.start()
    serves(it, 0)
    assert marker.decode_marker((it.daemon.remote / marker.MARKER_KEY).read_bytes()).held


def test_a_log_that_is_lost_behind_a_kill_is_restored_only_where_that_is_accepted(it):
    """What was acknowledged since positions were noted last is in no file that is left."""
    assert it.rlmm("snapshot", "now").exit_code == 0
    eventually((it.state_dir / "positions.json").exists)
    it.daemon.kill()
    shutil.rmtree(it.log_dir)
    run = restored(it, it.state_dir / "snapshots", str(it.log_dir))
    assert run.exit_code == 1, run.output
    assert "the daemon did not stop by itself" in run.output
    assert not it.log_dir.exists()
    run = restored(it, it.state_dir / "snapshots", str(it.log_dir), "--accept-loss")
    assert run.exit_code == 0, run.output
    it.start()
    serves(it, 0)
    assert marker.decode_marker((it.daemon.remote / marker.MARKER_KEY).read_bytes()).held


def test_a_state_directory_that_is_gone_too_leaves_the_bucket_to_say_what_had_been_read(it):
    """The disk is lost, and of what was on it there are last night's snapshots."""
    assert it.rlmm("snapshot", "now").exit_code == 0
    nightly = it.daemon.directory / "nightly"
    shutil.copytree(it.state_dir / "snapshots", nightly)
    it.copy_new(0)
    assert it.daemon.stop() == 0
    shutil.rmtree(it.state_dir)
    doctored = it.rlmm("doctor", "--config", str(it.daemon.directory / CONFIGURATION), "--json")
    (found,) = [each for each in json.loads(doctored.stdout) if each["check"] == "event log"]
    assert found["verdict"] == "failed"
    assert "rlmm log restore" in found["advice"]
    run = restored(it, nightly, str(it.log_dir))
    assert run.exit_code == 1, run.output
    assert "up to offset 8, the snapshots up to 6" in run.output
    assert not it.log_dir.exists()


def test_a_log_that_is_gone_with_the_marker_is_restored_behind_the_marker(it):
    """Each of the two commands asked for what the other one makes; what was left gave all up."""
    assert it.daemon.stop() == 0
    (it.daemon.remote / marker.MARKER_KEY).unlink()
    shutil.rmtree(it.log_dir)
    target = str(it.log_dir)
    refused = restored(it, it.state_dir / "snapshots", target)
    assert refused.exit_code == 1, refused.output
    assert "run: rlmm storage rebuild-marker --config FILE" in refused.output
    config = str(it.daemon.directory / CONFIGURATION)
    run = it.rlmm("storage", "rebuild-marker", "--config", config, "--execute")
    assert run.exit_code == 0, run.output
    made = marker.decode_marker((it.daemon.remote / marker.MARKER_KEY).read_bytes())
    assert [row.prefix for row in made.layouts] == [""]
    assert [hold.metadata_partition for hold in made.held] == [None], "nobody knows its last events"
    done = restored(it, it.state_dir / "snapshots", target)
    assert done.exit_code == 0, done.output
    it.start()
    for partition in (0, 1):
        serves(it, partition)


def test_no_marker_is_made_for_a_log_that_is_gone_where_nothing_is_stored(it):
    """A misspelt directory, most likely."""
    assert it.daemon.stop() == 0
    shutil.rmtree(it.log_dir)
    empty = it.daemon.directory / "var" / "empty"
    empty.mkdir()
    config = str(it.daemon.directory / CONFIGURATION)
    words = ("storage", "rebuild-marker", "--config", config, "--execute")
    run = it.rlmm(*words, f"--set=storage.directory={empty}")
    assert run.exit_code == 1, run.output
    assert "is this the right bucket or directory" in run.output
    assert not (empty / marker.MARKER_KEY).exists()
    run = it.rlmm(*words)
    assert run.exit_code == 1, "this marker is in order"
    assert "holds no event log" in run.output
