"""The two lanes of `.ci/run`: how a failure ends them, with stages that only pretend."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: A server that has a session of its own is what would outlive the lane.
MAKE = """#!/usr/bin/env bash
case $1 in
  {served}) setsid sleep 300 & echo $! >{home}/server; wait ;;
  {failing})
    until [ -s {home}/server ]; do sleep 0.01; done
    echo "the words of {failing}"
    exit 7 ;;
  *) echo "the words of $1" ;;
esac
"""
TOOLS = ("redis-server", "systemd-analyze", "javac", "mvn", "openssl")


@pytest.mark.parametrize(
    ("served", "failing"), [("test-s3", "sim"), ("sim", "demo-s3")], ids=["computing", "serving"]
)
def test_the_first_stage_that_fails_is_named_and_the_other_lane_ends_with_its_servers(
    tmp_path: Path, served: str, failing: str
):
    done = run(tmp_path, MAKE.format(home=tmp_path, served=served, failing=failing))
    assert done.returncode == 1, done.stdout
    assert done.stdout.endswith(f"failed: {failing} (exit code 7)\n")
    assert done.stdout.count(f"== {failing}\nthe words of {failing}\n{failing} ") == 1
    assert f"== {served}" not in done.stdout, "it was stopped, it did not fail"
    assert not is_alive(int((tmp_path / "server").read_text()))


def test_each_stage_of_both_lanes_is_printed_whole_and_counted(tmp_path: Path):
    done = run(tmp_path, MAKE.format(home=tmp_path, served="-", failing="-"))
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("all stages passed\n")
    stages = [line[3:] for line in done.stdout.splitlines() if line.startswith("== ")]
    assert {"lint", "test", "test-reconcile", "test-s3", "test-cleaner"} <= {*stages}
    _, _, table = done.stdout.partition(" minutes\n")
    assert [line.split()[0] for line in table.splitlines()[:-2]] == [*stages, "together"]


def run(home: Path, make: str) -> subprocess.CompletedProcess[str]:
    """Run it with another `make`, and with nothing that would have to be installed."""
    tools = home / "tools"
    tools.mkdir()
    for name in ("make", *TOOLS):
        (tools / name).write_text(make)
        (tools / name).chmod(0o755)
    return subprocess.run(
        [ROOT / ".ci" / "run"],
        env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def is_alive(pid: int) -> bool:
    """Return whether it runs; one that ended and that nobody waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
