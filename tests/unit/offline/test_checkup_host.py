"""`rlmm doctor` on the machine: each thing that is not as it has to be, and what to do about it."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from rlmm_daemon.config import S3Storage
from rlmm_daemon.config.exposure import Place
from rlmm_daemon.offline import checkup_host
from rlmm_daemon.offline.checkup_host import (
    INODES_MIN,
    Room,
    descriptors,
    owned,
    room,
    state_lock,
    storage_time,
    unit,
    versions,
)

GIB = 1 << 30
OURS = "1.2.0"


def status(version: str = OURS, **plugins: str) -> dict[str, object]:
    return {"version": version, "broker": {"plugins": plugins}}


@pytest.mark.parametrize(
    ("told", "verdict", "words"),
    [
        (None, "skipped", "no daemon answers"),
        (status(), "ok", "no plugin is connected"),
        (status(metadata=f"kafka-plugin {OURS}, Kafka 4.1.0"), "ok", f"metadata manager {OURS}"),
        (status(metadata="kafka-plugin 1.1.0, Kafka 4.1.0"), "warning", "metadata manager 1.1.0"),
        (status(storage="kafka-plugin, Kafka 4.1.0"), "warning", "of an earlier version"),
        (status(storage="somebody's own client"), "ok", "somebody's own client"),
        (status("1.1.0"), "warning", "daemon 1.1.0"),
        ({"version": OURS, "broker": {}}, "ok", "no plugin"),
    ],
)
def test_versions_that_differ_are_named(told, verdict, words):
    found = versions(told, OURS)
    assert (found.verdict, words in found.found) == (verdict, True), found
    assert bool(found.advice) is (verdict == "warning")


@pytest.mark.parametrize(
    ("most", "is_open", "verdict"),
    [(65_536, 40, "ok"), (65_536, None, "ok"), (1_024, 40, "warning"), (65_536, 60_000, "warning")],
)
def test_a_daemon_that_may_open_few_files_or_has_many_open_is_warned_of(most, is_open, verdict):
    assert descriptors(most, is_open).verdict == verdict


LOADED = {
    "LoadState": "loaded",
    "FragmentPath": "/usr/lib/systemd/system/rlmm-daemon.service",
    "NeedDaemonReload": "no",
    "UnitFileState": "enabled",
    "ActiveState": "active",
}


@pytest.mark.parametrize(
    ("changed", "verdict", "advice"),
    [
        ({}, "ok", ""),
        ({"FragmentPath": "/etc/systemd/system/rlmm-daemon.service"}, "warning", "drop-in"),
        ({"NeedDaemonReload": "yes"}, "warning", "daemon-reload"),
        ({"UnitFileState": "disabled"}, "warning", "systemctl enable"),
        ({"ActiveState": "failed", "Result": "exit-code"}, "warning", "journalctl"),
        ({"LoadState": "not-found"}, "skipped", ""),
    ],
)
def test_a_unit_that_is_not_as_packaged_is_named(changed, verdict, advice):
    found = unit(LOADED | changed)
    assert (found.verdict, advice in found.advice) == (verdict, True), found


@pytest.mark.parametrize(
    ("free", "inodes", "verdict"),
    [
        (50 * GIB, 10**6, "ok"),
        (GIB // 2, 10**6, "warning"),
        (1 << 20, 10**6, "failed"),
        (50 * GIB, 10, "failed"),
    ],
)
def test_a_disk_that_is_full_or_nearly_is_named(free, inodes, verdict):
    here = Room("/here", free=free, whole=100 * GIB, inodes=inodes)
    found = room([Room("/there", free=90 * GIB, whole=100 * GIB, inodes=10**6), here])
    assert (found.verdict, "/here" in found.found, bool(found.advice)) == (
        verdict,
        True,
        verdict != "ok",
    )


def test_a_small_disk_is_not_called_full_for_being_small():
    assert room([Room("/a", free=GIB // 4, whole=GIB // 2, inodes=INODES_MIN)]).verdict == "ok"


def test_what_another_user_owns_is_named(tmp_path):
    mine = tmp_path / "secret"
    mine.write_text("x")
    place = Place("storage.secret_access_key_file", str(mine))
    assert owned([place, Place("absent", "/no/such")], os.getuid()).verdict == "ok"
    if os.getuid() == 0:  # root's files are nobody else's: give it away
        os.chown(mine, 12_345, -1)
        found = owned([place], 0)
    else:
        found = owned([place], os.getuid() + 1)
    assert (found.verdict, str(mine) in found.found) == ("warning", True)


@pytest.mark.parametrize(
    ("apart", "verdict", "side"),
    [(0.5, "ok", ""), (-90.0, "warning", "behind"), (4_000.0, "failed", "ahead of")],
)
def test_a_clock_that_is_not_the_storages_is_named(apart, verdict, side):
    found = storage_time(apart)
    assert (found.verdict, side in found.found) == (verdict, True)


@contextmanager
def dated(date: str | None) -> Iterator[str]:
    """Serve refusals with this date in them."""

    class Refusing(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response_only(403)
            if date is not None:
                self.send_header("Date", date)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("date", "verdict"),
    [("Thu, 01 Jan 2015 00:00:00 GMT", "failed"), (None, "skipped"), ("yesterday", "skipped")],
)
async def test_any_answer_of_the_storage_tells_its_time(date, verdict):
    with dated(date) as endpoint:
        storage = S3Storage(bucket="tiered", endpoint=endpoint)
        found = await checkup_host._asked_time(storage, 10)
    assert found.verdict == verdict, found


async def test_a_storage_that_is_not_there_is_no_clock_that_is_wrong():
    with dated(None) as endpoint:
        pass
    found = await checkup_host._asked_time(S3Storage(bucket="tiered", endpoint=endpoint), 10)
    assert found.verdict == "skipped"


async def test_what_hangs_is_left_behind():
    let_go = threading.Event()
    found = await checkup_host._in_time(lambda: str(let_go.wait()), 0.05, "hangs")
    let_go.set()
    assert found == "hangs"
    await asyncio.sleep(0)


def test_what_holds_the_state_directory_is_named_without_what_was_typed_for_it(monkeypatch):
    """What doctor says goes into tickets."""
    waits = "print(flush=True); input()"
    typed = [sys.executable, "-c", waits, "--set", "storage.secret_access_key=hunter2"]
    with subprocess.Popen(typed, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()  # the kernel knows its words by now
        monkeypatch.setattr(checkup_host, "holder_of", lambda _: other.pid)
        found = state_lock("/state", None).found
        other.communicate(b"\n", timeout=30)
    assert f"pid {other.pid} (" in found
    assert "storage.secret_access_key=[hidden]" in found
    assert "hunter2" not in found
