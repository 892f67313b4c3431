"""The shipped unit under a real systemd, the first process of its own namespaces.

Nothing outside of them is touched: /etc, /opt, /run and /var/lib are the namespace's own. An
observer, itself a unit, stops the daemon's loop, waits for the watchdog and ends it cleanly; what
it saw it writes to a file. Skipped, and it says why, where namespaces or root are not to be had.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

import rlmm_daemon

ROOT = Path(rlmm_daemon.__file__).parents[1]
SYSTEMD = Path("/lib/systemd/systemd")
WAIT_SECONDS = 200.0
BARE_SECONDS = 60.0
NAMESPACES = (
    "unshare", "--pid", "--mount", "--cgroup", "--ipc", "--uts", "--fork", "--kill-child",
    "--mount-proc",
)  # fmt: skip
CGROUPS = "umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup"
MOUNTS = f"mount -t tmpfs tmpfs /run && {CGROUPS}"

CONFIG = """
[daemon]
broker_id = 1
cluster_id = "unit"
log_dirs = ["/var/lib/rlmm/kafka-logs"]
watchdog_lag_ms_max = 1000
[event_log]
kind = "embedded"
single_broker = true
[storage]
kind = "none"
"""
DROP_IN = """
[Service]
WatchdogSec=5s
StandardOutput=append:/opt/out/daemon.log
StandardError=append:/opt/out/daemon.log
"""
#: Units that others take for granted.
STUBS = ("sysinit", "basic", "shutdown", "network", "sockets", "timers", "paths", "slices")
TARGET = """
[Unit]
DefaultDependencies=no
Requires=observer.service
After=observer.service
"""
OBSERVER = """
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart={python} /opt/out/observer.py
StandardOutput=append:/opt/out/observer.log
StandardError=append:/opt/out/observer.log
"""
OBSERVER_PY = """
import json, os, signal, socket, subprocess, time

UNIT = "rlmm-daemon.service"
results = []


def shown():
    keys = "ActiveState,SubState,MainPID,NRestarts,Result,ExecMainStatus,StatusText"
    told = subprocess.run(["systemctl", "show", UNIT, "--property", keys],
                          capture_output=True, text=True, check=True).stdout
    return dict(line.split("=", 1) for line in told.splitlines())


def until(holds):
    until = time.monotonic() + 100
    while not holds(found := shown()):
        if found["Result"] not in results:
            results.append(found["Result"])
        assert time.monotonic() < until, found
        time.sleep(0.05)
    return found


def answers():
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        try:
            sock.connect("/run/rlmm/rlmm.sock")
        except OSError as error:
            return repr(error)
    return "yes"


seen = {}
subprocess.run(["systemctl", "start", UNIT], check=True)
seen["started"] = shown()
seen["socket"] = answers()
pid = int(seen["started"]["MainPID"])
seen["user"] = os.stat(f"/proc/{pid}").st_uid
seen["seccomp"] = [l.split()[1] for l in open(f"/proc/{pid}/status") if l.startswith("Seccomp:")][0]
os.kill(pid, signal.SIGSTOP)
results = seen["results"] = []
seen["restarted"] = until(
    lambda now: now["ActiveState"] == "active" and now["MainPID"] not in ("0", str(pid))
)
seen["socket again"] = answers()
subprocess.run(["systemctl", "stop", UNIT], check=True)
seen["stopped"] = shown()
with open("/opt/out/seen.json.part", "w") as out:
    json.dump(seen, out)
os.rename("/opt/out/seen.json.part", "/opt/out/seen.json")
"""

NOTHING_PY = """
import subprocess

subprocess.run(["systemctl", "show", "lab.target"], check=True)
with open("/opt/out/seen.json", "w") as out:
    out.write("{}")
"""


def unavailable() -> str:
    if os.geteuid() != 0:
        return "needs root for namespaces"
    if not SYSTEMD.exists() or shutil.which("unshare") is None:
        return "needs systemd and unshare: apt-get install systemd util-linux"
    tried = subprocess.run(
        [*NAMESPACES, "bash", "-c", MOUNTS], capture_output=True, text=True, check=False
    )
    return f"namespaces are forbidden here: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.mark.timeout(400)
def test_the_unit_gets_ready_is_killed_when_its_loop_stands_and_stops_clean(tmp_path: Path):
    if reason := unavailable():
        pytest.skip(reason)
    bare = tmp_path / "bare"
    if why := booted(bare, NOTHING_PY, BARE_SECONDS):
        pytest.skip(f"not even a bare systemd runs in namespaces here: {why}")
    whole = tmp_path / "whole"
    why = booted(whole, OBSERVER_PY, WAIT_SECONDS)
    assert not why, why
    seen = json.loads((whole / "out" / "seen.json").read_text())
    assert seen["started"]["ActiveState"] == "active", "Type=notify: READY=1 was sent"
    assert seen["socket"] == seen["socket again"] == "yes"
    assert seen["user"] != 0
    assert seen["seccomp"] == "2", "the unit's SystemCallFilter is in force"
    assert int(seen["restarted"]["NRestarts"]) >= 1
    assert "watchdog" in seen["results"]
    assert seen["stopped"]["ActiveState"] == "inactive"
    assert (seen["stopped"]["Result"], seen["stopped"]["ExecMainStatus"]) == ("success", "0")


def booted(scratch: Path, observer: str, seconds: float) -> str:
    """Run a systemd of its own until its observer has written; return why not, or nothing."""
    out, console = scratch / "out", scratch / "console.log"
    out.mkdir(parents=True)
    out.chmod(0o777)
    for path in (out, *out.parents):  # the daemon's user appends its log there
        if path.is_relative_to(Path("/tmp")) and path != Path("/tmp"):
            path.chmod(path.stat().st_mode | 0o011)
    (out / "observer.py").write_text(observer)
    script = scratch / "init.sh"
    script.write_text(init(scratch, out))
    with console.open("wb") as log:
        process = subprocess.Popen(
            [*NAMESPACES, "bash", str(script)], stdout=log, stderr=log, start_new_session=True
        )
    try:
        until = time.monotonic() + seconds
        while not (out / "seen.json").exists():
            if (
                process.poll() is not None
                or "Traceback" in told(out, console)
                or time.monotonic() > until
            ):
                return told(out, console) or "it said nothing"
            time.sleep(0.2)
    finally:
        # With it goes the namespace's first process, and with that everything in it.
        process.send_signal(signal.SIGKILL)
        process.wait()
    return ""


def told(out: Path, console: Path) -> str:
    logs = [console, out / "observer.log", out / "daemon.log"]
    return "\n".join(f"{p.name}: {p.read_text()[-3_000:]}" for p in logs if p.exists())


def init(scratch: Path, out: Path) -> str:
    """Return what the namespace's first process does before it becomes systemd."""
    units = scratch / "units"
    (units / "rlmm-daemon.service.d").mkdir(parents=True)
    (units / "rlmm-daemon.service.d" / "test.conf").write_text(DROP_IN)
    shutil.copy(ROOT / "deploy" / "systemd" / "rlmm-daemon.service", units)
    base = Path(sys.base_prefix)
    private = not base.is_relative_to("/usr")
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = f"{'/opt/python' if private else base}/bin/{name}"
    (units / "observer.service").write_text(OBSERVER.format(python=python))
    (units / "lab.target").write_text(TARGET)
    for stub in STUBS:
        (units / f"{stub}.target").write_text("[Unit]\nDefaultDependencies=no\n")
    (scratch / "rlmm.toml").write_text(CONFIG)
    site = sysconfig.get_paths()["purelib"]
    where = "PYTHONPATH=/opt/src:/opt/site"
    if private:
        where += " LD_LIBRARY_PATH=/opt/python/lib"  # not this machine's own libpython
    (scratch / "rlmm").write_text(f'#!/bin/sh\nexec env {where} {python} -m rlmm_daemon "$@"\n')
    (scratch / "rlmm").chmod(0o755)

    return f"""set -eu
{MOUNTS}
mkdir -p /run/systemd /run/lock /run/etc
cp -a /etc/passwd /etc/group /etc/ld.so.cache /run/etc/
echo 'rlmm:x:64999:64999::/var/lib/rlmm:/usr/sbin/nologin' >> /run/etc/passwd
echo 'rlmm:x:64999:' >> /run/etc/group
echo 00000000000000000000000000000001 > /run/etc/machine-id
mkdir -p /run/etc/rlmm && cp {scratch}/rlmm.toml /run/etc/rlmm/
chmod 0755 /run/etc /run/etc/rlmm && chmod 0644 /run/etc/rlmm/rlmm.toml
mkdir -p /run/units && cp -r {units}/. /run/units/
cp {scratch}/rlmm /run/rlmm-command
mkdir -p /run/mounts/out /run/mounts/src /run/mounts/site /run/mounts/python
mount --bind {out} /run/mounts/out
mount --bind {ROOT} /run/mounts/src
mount --bind {site} /run/mounts/site
mount --bind {base} /run/mounts/python
mount -t tmpfs -o mode=0755 tmpfs /opt
mkdir -p /opt/rlmm/bin /opt/out /opt/src /opt/site /opt/python
cp /run/rlmm-command /opt/rlmm/bin/rlmm
for each in out src site python; do mount --move /run/mounts/$each /opt/$each; done
mount -t tmpfs -o mode=0755 tmpfs /var/lib
mount --bind /run/etc /etc
export container=lxc SYSTEMD_UNIT_PATH=/run/units
exec {SYSTEMD} --system --unit=lab.target --log-target=console
"""
