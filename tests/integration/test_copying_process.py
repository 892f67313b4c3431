"""The process for copies as a process: how it begins, is lost, and ends."""

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from crc32c import crc32c

from rlmm_daemon.adapters.passes import __main__ as child
from rlmm_daemon.adapters.passes import process as passes_process
from rlmm_daemon.adapters.passes import wire
from rlmm_daemon.adapters.passes.in_threads import InThreads
from rlmm_daemon.adapters.passes.process import OneProcess
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.ports import sources
from rlmm_daemon.ports.passes import LOST_REASON, Copied, PassStopped
from rlmm_daemon.ports.sources import FileSource
from rlmm_daemon.ports.storage import SOURCE_UNREADABLE
from rlmm_daemon.ports.threads import COPY_NICE
from tests.support.processes import ended
from tests.support.stocked_daemon import eventually

BYTES = 4 * 1024 * 1024
PATIENCE_SECONDS = 30.0


@pytest.fixture
def passes():
    passes = OneProcess(instead=InThreads(), passes_max=8)
    yield passes
    passes.close()


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_bytes(os.urandom(BYTES))
    source = FileSource(os.open(path, os.O_RDONLY), str(path))
    yield source
    source.close()


class Copy:
    """A copy of a source that goes on for minutes: it is as long as a hole in a file is."""

    def __init__(self, passes: OneProcess, tmp_path: Path, pool: ThreadPoolExecutor) -> None:
        tmp_path.mkdir(exist_ok=True)
        path = tmp_path / "endless"
        with path.open("wb") as file:
            file.truncate(1 << 40)
        self.source = FileSource(os.open(path, os.O_RDONLY), str(path))
        self.stop = threading.Event()
        self.outcome: Future[int] = pool.submit(self._run, passes)

    def _run(self, passes: OneProcess) -> int:
        return passes.check(self.source, None, stop=self.stop)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def endless(passes, tmp_path, pool):
    copy = Copy(passes, tmp_path, pool)
    eventually(lambda: passes.pid is not None)
    yield copy
    copy.stop.set()
    copy.source.close()


def summed(passes: OneProcess, source: FileSource) -> int:
    return passes.check(source, None, stop=threading.Event())


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def open_in(passes: OneProcess, name: str) -> int:
    """How many files of that name the process has open."""
    if passes.pid is None:
        return 0
    found = 0
    for each in Path(f"/proc/{passes.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found += name in str(each.readlink())
    return found


def running(passes: OneProcess) -> int | None:
    return passes.pid


def test_it_is_started_for_a_large_file_and_not_before(passes, source, tmp_path):
    small = tmp_path / "small"
    small.write_bytes(b"few")
    few = FileSource(os.open(small, os.O_RDONLY), str(small))
    assert summed(passes, few) == crc32c(b"few")
    assert running(passes) is None
    assert summed(passes, source) == crc32c(Path(source.name).read_bytes())
    first = passes.pid
    assert first is not None
    summed(passes, source)
    assert passes.pid == first
    few.close()


def test_it_comes_behind_everybody_and_knows_nothing(passes, source, monkeypatch):
    monkeypatch.setenv("RLMM_TEST_SECRET", "in nobody's environment")
    summed(passes, source)
    assert os.getpriority(os.PRIO_PROCESS, passes.pid) == min(19, os.getpriority(0, 0) + COPY_NICE)
    entries = Path(f"/proc/{passes.pid}/environ").read_bytes().split(b"\0")
    assert {entry.partition(b"=")[0] for entry in entries} <= {b"PYTHONPATH", b"LC_CTYPE", b""}
    assert b"secret" not in Path(f"/proc/{passes.pid}/cmdline").read_bytes().lower()


def test_one_that_was_killed_ends_its_copies_and_the_next_has_another(passes, source, endless):
    summed(passes, source)
    lost = passes.pid
    os.kill(lost, signal.SIGKILL)
    with pytest.raises(StorageUnavailable, match="begun anew") as caught:
        endless.outcome.result(PATIENCE_SECONDS)
    assert caught.value.retriable
    assert caught.value.fields == {"reason": LOST_REASON}
    assert summed(passes, source) == crc32c(Path(source.name).read_bytes())
    assert passes.pid not in {lost, None}


def test_one_that_was_killed_while_idle_costs_no_copy(passes, source, pool):
    summed(passes, source)
    first = passes.pid
    os.kill(first, signal.SIGKILL)
    eventually(lambda: passes._child.process.poll() is not None)  # all its threads are gone, too
    found = set(pool.map(lambda _: summed(passes, source), range(8)))
    assert found == {crc32c(Path(source.name).read_bytes())}
    assert passes.pid not in {first, None}


def test_one_that_ends_before_it_did_anything_is_not_begun_again_at_once(passes, source, endless):
    os.kill(passes.pid, signal.SIGKILL)
    with pytest.raises(StorageUnavailable, match="begun anew"):
        endless.outcome.result(PATIENCE_SECONDS)
    assert summed(passes, source) == crc32c(Path(source.name).read_bytes())
    assert passes.pid is None


def test_one_that_takes_nothing_is_replaced(passes, source, monkeypatch):
    summed(passes, source)
    first = passes.pid
    os.kill(first, signal.SIGSTOP)
    monkeypatch.setattr(passes_process, "START_SECONDS", 0.5)
    with pytest.raises(StorageUnavailable, match="begun anew"):
        summed(passes, source)
    monkeypatch.undo()
    assert summed(passes, source) == crc32c(Path(source.name).read_bytes())
    assert passes.pid not in {first, None}


def test_where_no_more_files_can_be_open_the_process_is_left_alone(passes, source, monkeypatch):
    summed(passes, source)
    first = passes.pid

    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socketpair", full)
    with pytest.raises(StorageUnavailable, match="Too many open files"):
        summed(passes, source)
    monkeypatch.undo()
    assert summed(passes, source) == crc32c(Path(source.name).read_bytes())
    assert passes.pid == first


def test_one_of_another_version_is_not_worked_with(source, monkeypatch):
    monkeypatch.setattr(wire, "READY", b"ready 0.0.9")
    passes = OneProcess(instead=InThreads(), passes_max=8)
    assert summed(passes, source) == crc32c(Path(source.name).read_bytes())
    assert passes.pid is None
    passes.close()


@pytest.mark.parametrize("want", ["a turn", "a file"])
def test_a_pass_that_there_is_no_room_for_is_refused(source, want):
    """As if many hung on a disk, or the kernel had left out a file that can't be opened."""
    free = threading.BoundedSemaphore(1)
    if want == "a turn":
        free.acquire()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    job = {"do": "check" if want == "a turn" else "copy", "claims": None, "size": BYTES}
    handed = os.dup(source.fileno())
    child._take(json.dumps(job).encode(), [theirs.detach(), handed], free)
    assert json.loads(ours.recv(65_536)) == {"moved": 0}
    code, message, _ = json.loads(ours.recv(65_536))["error"]
    assert code == StorageUnavailable.code
    assert "full" in message
    assert ours.recv(1) == b""
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handed)
    ours.close()


def test_as_many_passes_as_may_be_go_on_and_one_more_is_refused(source, tmp_path, pool):
    passes = OneProcess(instead=InThreads(), passes_max=2)
    under_way = [Copy(passes, tmp_path / str(number), pool) for number in range(2)]
    try:
        eventually(lambda: open_in(passes, "endless") == 2)
        with pytest.raises(StorageUnavailable, match="full"):
            summed(passes, source)
        assert not any(copy.outcome.done() for copy in under_way)
    finally:
        for copy in under_way:
            copy.stop.set()
    for copy in under_way:
        assert isinstance(copy.outcome.exception(PATIENCE_SECONDS), PassStopped)
        copy.source.close()
    eventually(lambda: summed(passes, source) == crc32c(Path(source.name).read_bytes()))
    passes.close()


def test_a_source_that_cant_even_be_looked_at_is_its_disks_fault(source, monkeypatch):
    def stale(*_: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(sources, "_version", stale)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    job = {"do": "check", "claims": None, "size": BYTES}
    free = threading.BoundedSemaphore(1)
    child._take(json.dumps(job).encode(), [theirs.detach(), os.dup(source.fileno())], free)
    assert json.loads(ours.recv(65_536)) == {"moved": 0}
    code, _, fields = json.loads(ours.recv(65_536))["error"]
    assert (code, fields["reason"]) == (StorageUnavailable.code, SOURCE_UNREADABLE)
    assert fields["retry"] is False
    ours.close()


def test_signals_to_all_are_the_daemons_to_answer(passes, source, endless):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(passes.pid, number)
    first = passes.pid
    assert summed(passes, source) == crc32c(Path(source.name).read_bytes())
    assert passes.pid == first
    assert not endless.outcome.done()


def test_a_stop_is_heard_even_while_the_process_hangs(passes, endless):
    os.kill(passes.pid, signal.SIGSTOP)
    endless.stop.set()
    with pytest.raises(PassStopped):
        endless.outcome.result(PATIENCE_SECONDS)
    os.kill(passes.pid, signal.SIGCONT)


def test_a_pass_whose_caller_left_ends_and_leaves_no_file_open(passes, source, endless):
    files, before = Path(f"/proc/{passes.pid}/fd"), open_files()
    endless.stop.set()
    with pytest.raises(PassStopped):
        endless.outcome.result(PATIENCE_SECONDS)
    eventually(lambda: open_in(passes, "endless") == 0)
    for _ in range(20):
        summed(passes, source)
    eventually(lambda: len(list(files.iterdir())) <= 6)
    assert open_files() <= before


def test_closing_ends_it_and_what_it_has_in_hand(passes, source, endless):
    pid = passes.pid
    passes.close()
    with pytest.raises(StorageUnavailable, match="the daemon ends"):
        endless.outcome.result(PATIENCE_SECONDS)
    assert ended(pid)
    with pytest.raises(StorageUnavailable, match="the daemon ends"):
        summed(passes, source)


def test_it_ends_with_a_daemon_that_was_killed(tmp_path):
    body = f"""
import os, threading, sys
from rlmm_daemon.adapters.passes.in_threads import InThreads
from rlmm_daemon.adapters.passes.process import OneProcess
from rlmm_daemon.ports.sources import FileSource
from rlmm_daemon.ports.storage import SOURCE_UNREADABLE
with open({str(tmp_path / "endless")!r}, "wb") as file:
    file.truncate(1 << 40)
passes = OneProcess(InThreads(), passes_max=8)
source = FileSource(os.open(file.name, os.O_RDONLY), "endless")
stop = dict(stop=threading.Event())
thread = threading.Thread(target=passes.check, args=(source, None), kwargs=stop)
thread.start()
while passes.pid is None:
    pass
print(passes.pid, file=sys.stderr, flush=True)
thread.join()
"""
    with subprocess.Popen(
        [sys.executable, "-c", body], stderr=subprocess.PIPE, text=True
    ) as daemon:
        assert daemon.stderr is not None
        pid = int(daemon.stderr.readline())
        assert not ended(pid)
        daemon.kill()
    eventually(lambda: ended(pid))


@pytest.mark.parametrize("how", ["absent", "dies", "silent"])
def test_where_none_can_be_started_threads_copy(source, tmp_path, monkeypatch, how):
    """And not every copy tries: a start may take seconds until it fails."""
    starts = tmp_path / "starts"
    script = tmp_path / "python"
    ends = {"dies": "exit 3", "silent": "exec sleep 60"}
    script.write_text(f"#!/bin/sh\necho >> {starts}\n{ends.get(how, '')}\n")
    if how != "absent":
        script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(passes_process, "START_SECONDS", 0.5)
    passes = OneProcess(instead=InThreads(), passes_max=8)
    for _ in range(3):
        assert summed(passes, source) == crc32c(Path(source.name).read_bytes())
    target = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT)
    copied = passes.copy(source, target, reads=False, stop=threading.Event(), moved=lambda _: None)
    assert copied == Copied(written=crc32c(Path(source.name).read_bytes()), read=None)
    assert running(passes) is None
    assert how == "absent" or len(starts.read_text().splitlines()) == 1
    monkeypatch.undo()
    passes._not_before = 0.0
    summed(passes, source)
    assert passes.pid is not None
    passes.close()
    os.close(target)
