"""`rlmm log name` writes a name only for files that hold what was read of that very log."""

import asyncio
import json
import shutil

import pytest
from click.testing import CliRunner

from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.cli import main
from tests.unit.daemon.events import TP, of
from tests.unit.offline.test_stopped_daemon import _life

CONFIG = """
[daemon]
broker_id = 1
cluster_id = "{cluster}"
state_dir = "{home}"
log_dirs = ["{home}/logs"]

[event_log]
kind = "embedded"
single_broker = true

[storage]
kind = "none"
"""


@pytest.fixture
def home(tmp_path):
    asyncio.run(_life(tmp_path))
    config(tmp_path, "c")
    return tmp_path


def config(home, cluster):
    (home / "rlmm.toml").write_text(CONFIG.format(home=home, cluster=cluster))


def named(home, *words):
    return CliRunner().invoke(main, ["log", "name", "--config", str(home / "rlmm.toml"), *words])


def unnamed(home, damaged=b"{"):
    """Damage the log's name, and return it."""
    (home / "log" / "state.json").unlink()
    path = home / "log" / "identity.json"
    whole = json.loads(path.read_text())
    path.unlink() if damaged is None else path.write_bytes(damaged)
    return whole


def files(home):
    return {path.name: path.read_bytes() for path in (home / "log").glob("*.*")}


@pytest.mark.parametrize("damaged", [b"{", None])
def test_the_state_directory_gives_the_name_back_once_it_is_told_to(home, damaged):
    whole = unnamed(home, damaged)
    before = files(home)
    dry = named(home)
    assert dry.exit_code == 0, dry.output
    assert whole["topic_id"] in dry.stdout
    assert "nothing was done; --execute does it" in dry.stdout
    assert files(home) == before
    done = json.loads(named(home, "--execute", "--json").stdout)
    assert (done["written"], done["confirmed"], done["unconfirmed"]) == (True, [of(TP)], [])
    assert json.loads((home / "log" / "identity.json").read_text()) == whole
    if damaged is not None:
        assert (home / "log" / "identity.json.corrupt").read_bytes() == damaged
    again = named(home, "--execute")
    assert (again.exit_code, "named already" in again.stdout) == (0, True)


def _another_count(home):
    (home / "log" / "77").mkdir()


def _another_log(home):
    for path in (home / "log").glob(f"{of(TP)}/*.log"):
        path.write_bytes(b"")


def _no_positions(home):
    (home / "positions.json").unlink()


def _no_state(home):
    (home / "identity.json").unlink()


def _another_cluster(home):
    config(home, "another")


def _gone(home):
    shutil.rmtree(home / "log")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_another_count, "has only"),
        (_another_log, "nothing shows that the files"),
        (_no_positions, "nothing shows that the files"),
        (_no_state, "names the log of"),
        (_another_cluster, "is of cluster c"),
        (_gone, "holds no event log"),
    ],
)
def test_a_name_that_may_be_another_log_s_is_not_given(home, change, says):
    unnamed(home)
    change(home)
    before = files(home)
    run = named(home, "--execute")
    assert run.exit_code not in (0, 2), run.output
    assert says in " ".join(run.output.split())
    assert {name for name in files(home) if name != "lock"} == set(before)
    assert files(home).items() >= before.items()


def test_a_log_in_use_is_left_alone(home, monkeypatch):
    monkeypatch.setattr("rlmm_daemon.offline.log_naming._LOCK_SECONDS", 0.1)
    unnamed(home)
    before = files(home)

    async def attempt():
        disk = LocalDisk()
        lock = await disk.lock(str(home / "log" / "lock"))
        try:
            return await asyncio.to_thread(named, home, "--execute")
        finally:
            await lock.release()
            disk.close()

    run = asyncio.run(attempt())
    assert "another process has the event log" in run.output
    assert files(home) == before
