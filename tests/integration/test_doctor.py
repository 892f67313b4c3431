"""`rlmm doctor` and `rlmm storage doctor` around a daemon of one broker with real files."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rlmm_daemon import __version__
from rlmm_daemon.cli import main
from rlmm_daemon.offline import answers, checkup
from tests.support import failures
from tests.support.daemon_process import CONFIG
from tests.support.fork_server import ForkServer
from tests.support.stocked_daemon import CLUSTER, Stocked, eventually, make, pid_of


@pytest.fixture
def it(tmp_path: Path, forks: ForkServer) -> Iterator[Stocked]:
    """A daemon that was stocked and stopped, so that only its files are left."""
    stocked = make(tmp_path, forks)
    with stocked.daemon:
        stocked.stock()
        assert stocked.daemon.stop() == 0
        properties = stocked.daemon.log_dir / "meta.properties"
        properties.write_text(f"version=1\nnode.id=1\ncluster.id={CLUSTER}\n")
        yield stocked


def tool(it: Stocked, *words: str) -> Any:
    overrides = [f"--set={key}={value}" for key, value in it.daemon.settings.items()]
    return it.daemon.rlmm(*words, "--config", str(CONFIG), *overrides, "--json")


def examined(it: Stocked) -> dict[str, dict[str, str]]:
    run = tool(it, "doctor")
    found = {each["check"]: each for each in json.loads(run.stdout)}
    failed = any(each["verdict"] == "failed" for each in found.values())
    assert run.returncode == (1 if failed else 0), run.stderr
    return found


WHOLE = dict.fromkeys(("event log", "log directories", "bucket marker", "access", "owners"), "ok")
#: As this machine happens to be: `unit/offline/test_checkup_host.py` has each of them.
OF_THE_MACHINE = {"versions", "state directory", "unit", "descriptors", "free disk"}


def verdicts(it: Stocked) -> dict[str, str]:
    found = examined(it)
    assert found.keys() >= OF_THE_MACHINE
    return {name: row["verdict"] for name, row in found.items() if name not in OF_THE_MACHINE}


def failing(it: Stocked) -> dict[str, str]:
    """Return the one check that fails."""
    (failed,) = [each for each in examined(it).values() if each["verdict"] == "failed"]
    assert failed["advice"]
    return failed


def test_what_is_as_it_has_to_be_is_all_ok(it):
    assert verdicts(it) == WHOLE
    it.start()
    assert verdicts(it) == WHOLE


def test_beside_a_daemon_its_version_and_its_descriptors_are_looked_at(it):
    found = examined(it)
    assert {found[check]["verdict"] for check in ("versions", "descriptors")} == {"skipped"}
    it.start()
    found = examined(it)
    assert f"daemon {__version__}" in found["versions"]["found"]
    assert "may have" in found["descriptors"]["found"]
    with it.broker() as broker:
        broker.is_ready(it.orders[0])
        assert "metadata manager" in examined(it)["versions"]["found"]


def test_a_second_daemon_on_the_state_directory_says_so_and_the_first_is_named(it, tmp_path):
    """systemd would start it again and again, and nothing told of the other one."""
    it.start()
    held = examined(it)["state directory"]
    assert (held["verdict"], f"pid {pid_of(it)}" in held["found"]) == ("ok", True)
    settings = {**it.daemon.settings, "socket.path": f"{tmp_path}/s", "admin.listen": ""}
    beside = ["--config", str(CONFIG), *(f"--set={key}={settings[key]}" for key in settings)]
    run = it.daemon.rlmm("run", *beside)
    assert run.returncode == 1
    (line,) = [json.loads(line) for line in run.stderr.splitlines() if '"critical"' in line]
    assert "another daemon uses the state directory" in line["message"]
    assert "rlmm doctor" in line["look"]
    told = json.loads(it.daemon.rlmm("doctor", *beside, "--json").stdout)
    (row,) = [each for each in told if each["check"] == "state directory"]
    assert row["verdict"] == "failed"
    for words in (f"held by pid {pid_of(it)} (", "no daemon answers", "again and again"):
        assert words in row["found"]


def test_a_log_that_the_daemon_had_and_that_is_not_there_fails(it):
    shutil.rmtree(it.log_dir)
    failed = failing(it)
    assert (failed["check"], "this daemon had one" in failed["found"]) == ("event log", True)
    assert failed["advice"].startswith("mount its disk")


def test_a_log_without_the_partitions_that_the_daemon_read_is_not_called_whole(it):
    shutil.rmtree(it.log_dir / str(it.number(0)))
    failed = failing(it)
    assert failed["check"] == "event log"
    assert f"/{it.number(0)}/" in failed["found"]
    assert "when it was stopped, and what is there ends with 0" in failed["found"]


def test_a_log_that_lost_its_head_is_not_called_whole_until_that_is_accepted(it):
    it.start()
    failures.log_that_lost_its_head(it)
    eventually(lambda: it.row(0)["state"], lambda state: state == "failed")
    number = it.number(0)
    found = failing(it)
    assert found["check"] == "event log"
    assert f"absent: partition {number} begins at 6" in found["found"]
    assert "rlmm explain" in found["advice"]
    assert it.rlmm("partition", "accept-loss", str(number), "--yes").exit_code == 0
    told = it.explain(0)
    assert told["cause"] == "ready_empty"
    assert "a hold keeps what lost events may have named" in told["sentence"]
    assert verdicts(it) == WHOLE


def test_directories_of_the_log_that_changed_places_are_not_called_whole(it):
    mine = it.log_dir / str(it.number(0))
    other = it.log_dir / str((it.number(0) + 1) % 3)
    if other.exists():
        other.rename(it.log_dir / "away")
    mine.rename(other)
    if (it.log_dir / "away").exists():
        (it.log_dir / "away").rename(mine)
    failed = failing(it)
    assert failed["check"] == "event log"
    assert "on are of partition" in failed["found"]
    assert failed["advice"].startswith("directories were mixed up: stop the daemon")


def test_another_log_than_the_daemon_had_is_not_called_whole(it):
    for name in ("identity.json", "state.json"):
        file = it.log_dir / name
        known = json.loads((it.log_dir / "identity.json").read_text())
        other = file.read_text().replace(known["topic_id"], "AAAAAAAAAAAAAAAAAAAAAQ")
        file.write_text(other.replace("crc32c", "of another"))
    failed = failing(it)
    assert failed["check"] == "event log"
    assert "this is log" in failed["found"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("node.id=2", "is of broker 2, daemon.broker_id is 1"),
        ("broker.id=3", "is of broker 3, daemon.broker_id is 1"),
        ("node.id=1\ncluster.id=another", "is of cluster another, daemon.cluster_id is"),
    ],
)
def test_log_directories_of_another_broker_or_cluster_fail(it, line, said):
    (it.daemon.log_dir / "meta.properties").write_text(f"#made by Kafka\nversion=1\n{line}\n")
    failed = failing(it)
    assert (failed["check"], said in failed["found"]) == ("log directories", True)


def test_log_directories_that_are_absent_or_no_brokers_fail(it):
    (it.daemon.log_dir / "meta.properties").unlink()
    assert "has no meta.properties" in failing(it)["found"]
    shutil.rmtree(it.daemon.log_dir)
    assert "is not there" in failing(it)["found"]


def test_a_storage_that_is_absent_or_not_mounted_fails(it):
    kept = it.daemon.remote.rename(it.daemon.remote.parent / "elsewhere")
    absent = examined(it)["bucket marker"]
    assert (absent["verdict"], "is not there" in absent["found"]) == ("failed", True)
    it.daemon.remote.mkdir()
    assert f"there is none in {it.daemon.remote}" in failing(it)["found"]
    it.daemon.remote.rmdir()
    kept.rename(it.daemon.remote)
    assert verdicts(it)["bucket marker"] == "ok"


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_a_directory_passes_the_storage_doctor_which_leaves_nothing(it):
    before = tree(it.daemon.remote)
    run = tool(it, "storage", "doctor")
    assert (run.returncode, run.stderr) == (0, "")
    steps = json.loads(run.stdout)["steps"]
    tried = {name for name in steps if not name.startswith("write ")}
    assert tried == {"write", "read", "list", "delete"}
    written = ("marker.json", "daemons/1.json", "reconcile/clock")
    assert {f"write _rlmm/{key}" for key in written} < steps.keys()
    assert set(steps.values()) == {None}
    assert tree(it.daemon.remote) == before


def test_an_empty_directory_passes_the_storage_doctor_and_stays_empty(it):
    shutil.rmtree(it.daemon.remote)
    it.daemon.remote.mkdir()
    assert tool(it, "storage", "doctor").returncode == 0
    assert tree(it.daemon.remote) == []


def test_a_directory_that_is_not_there_fails_the_storage_doctor_by_its_name(it):
    shutil.rmtree(it.daemon.remote)
    run = tool(it, "storage", "doctor")
    assert run.returncode == 1
    assert f"{it.daemon.remote} is not there" in json.loads(run.stdout)["steps"]["open"]["message"]
    assert not it.daemon.remote.exists()


@contextmanager
def somebody_else(directory: Path) -> Iterator[None]:
    """Be a user who may not look into the directory."""
    if os.geteuid() == 0:
        directory.chmod(0o700)
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)
        return
    directory.chmod(0)
    try:
        yield
    finally:
        directory.chmod(0o700)


@pytest.fixture
def readable() -> Iterator[Path]:
    """A configuration that every user may read, wherever this project lies."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        yield Path(shutil.copy(CONFIG, directory))


def test_another_user_is_told_which_file_it_may_not_read_and_what_to_do(it, readable):
    assert {checkup.__name__, answers.__name__} <= sys.modules.keys(), "read before, as root"
    for line in (
        f"explain orders-0 --state-dir {it.state_dir}",
        f"log verify {it.state_dir}/log",
        f"log seal {it.state_dir}/log",
        f"snapshot verify {it.state_dir}",
        f"doctor --config {readable} --set=daemon.state_dir={it.state_dir}",
    ):
        CliRunner().invoke(main, [*line.split()[:1], "--help"])  # its modules are read
        with somebody_else(it.state_dir):
            run = CliRunner().invoke(main, line.split())
        assert isinstance(run.exception, SystemExit), (line, run.exception)
        assert run.exit_code == 1
        told = " ".join(run.output.split())
        assert str(it.state_dir) in told, line
        assert "permission denied" in told
        assert "as the user that the daemon runs as, or as root" in told
