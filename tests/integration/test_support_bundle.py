"""A support bundle beside a daemon that runs, one that hangs and one that is gone."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.planted import PLANTED, planted
from tests.support.stocked_daemon import Stocked

#: Asked of a daemon that does not answer, which is what is tried.
QUICK = ("--timeout", "1")
EVERYTHING = {
    "index.txt", "versions.json", "configuration.toml", "status.json", "partitions.json",
    "cleanup.json", "user-partitions.jsonl", "explain.json", "metrics.txt", "process.txt",
    "doctor.json", "units.txt", "journal.txt", "log.txt", "state-directory.txt",
    "state-files.txt", "disks.txt",
}  # fmt: skip


@pytest.fixture
def plant(it: Stocked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Secrets wherever people leave them; returns the daemon's configuration."""
    programs = tmp_path / "programs"
    programs.mkdir()
    secrets = tmp_path / "planted"
    secrets.write_text(planted())
    for name in ("systemctl", "journalctl"):
        (programs / name).write_text(f"#!/bin/sh\ncat {secrets}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("SOME_PASSWORD", "of-this-environment")
    monkeypatch.chdir(tmp_path)
    (it.state_dir / "notes.json").write_text(json.dumps({"known": "of-this-environment"}))
    (it.state_dir / "left.txt").write_text(planted())
    with it.daemon.output.open("a") as log:
        log.write(planted() + "\n")
    config = tmp_path / "rlmm.toml"
    text = it.daemon.config.read_text()  # type: ignore[attr-defined]  # a stocked daemon has its own
    home = it.daemon.directory
    config.write_text(text.replace('"var/', f'"{home}/var/'))
    return config


def made(it: Stocked, config: Path, *words: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what the command said, and the files of the bundle."""
    log = str(it.daemon.output)
    run = it.rlmm(
        "support-bundle", "--config", str(config), "-o", "bundle.tar.gz", "--log", log, "--json",
        *words,
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    said = json.loads(run.stdout)
    path = Path(said["path"])
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        members = {member.name.partition("/")[2]: member for member in archive.getmembers()}
        files = {name: archive.extractfile(each) for name, each in members.items()}
        return said, {name: file.read().decode() for name, file in files.items() if file}


def test_none_of_forty_kinds_of_secrets_is_in_it(it: Stocked, plant: Path):
    said, files = made(it, plant)
    assert files.keys() | {"metrics.txt"} == EVERYTHING
    everything = "\n".join([*files.values(), json.dumps(said)])
    assert [each.kind for each in PLANTED if each.secret in everything] == []
    assert "of-this-environment" not in everything
    assert "[hidden]" in files["journal.txt"]
    assert "[hidden]" in files["log.txt"]
    assert "[hidden]" in files["state-files.txt"]


def test_what_a_maintainer_asks_for_is_in_it(it: Stocked, plant: Path):
    said, files = made(it, plant)
    status = json.loads(files["status.json"])
    assert status["segments"]["COPY_SEGMENT_FINISHED"] == len(it.acknowledged)
    assert {row["metadata_partition"] for row in json.loads(files["partitions.json"])}
    assert json.loads(files["explain.json"])[0]["verdict"] == "ready"
    assert len(files["user-partitions.jsonl"].splitlines()) == 2
    assert "[event_log]" in files["configuration.toml"]
    assert json.loads(files["versions.json"])["rlmm"] == status["version"]
    assert json.loads(files["doctor.json"])[0]["check"] == "event log"
    assert it.daemon.process is not None
    assert f"pid {it.daemon.process.pid}," in files["process.txt"]
    assert "Max open files" in files["process.txt"]
    assert "identity.json" in files["state-directory.txt"]
    assert '"partition_count": 3' in files["state-files.txt"]
    assert "inodes" in files["disks.txt"]
    for each in said["files"]:
        assert each["name"] in files["index.txt"]


@pytest.mark.parametrize("daemon", ["hangs", "is gone"])
def test_a_daemon_that_does_not_answer_keeps_nothing_else_back(
    it: Stocked, plant: Path, daemon: str
):
    if daemon == "hangs":
        it.daemon.freeze()
    else:
        it.daemon.kill()
    _, files = made(it, plant, *QUICK)
    it.daemon.kill()
    assert "status.json" not in files
    assert "status.json" in files["index.txt"]
    assert files["log.txt"]
    assert {"state-directory.txt", "doctor.json", "configuration.toml"} <= files.keys()
    assert ("process.txt" in files) is (daemon == "hangs")


def test_a_configuration_that_cannot_be_used_is_in_it_with_its_mistake(it: Stocked, plant: Path):
    plant.write_text(f"{plant.read_text()}\n[nonsense]\npassword = 'hunter2hunter2'\n")
    _, files = made(it, plant, "--socket", it.daemon.socket_path)
    assert "nonsense" in files["configuration.toml"]
    assert "can't be used" in files["configuration.toml"]
    assert "hunter2hunter2" not in "\n".join(files.values())
    assert "status.json" in files


def test_nothing_is_overwritten(it: Stocked, plant: Path):
    Path("bundle.tar.gz").write_text("mine")
    run = it.rlmm("support-bundle", "--config", str(plant), "-o", "bundle.tar.gz")
    assert (run.exit_code, "is there already" in run.stderr) == (2, True)
    assert Path("bundle.tar.gz").read_text() == "mine"
