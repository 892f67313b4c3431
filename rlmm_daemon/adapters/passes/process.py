"""The passes, made by one child process whose interpreter the event loop does not share.

Started at the first pass over a large file; each pass has a socket of its own to it. It is given
open files, never names, and knows no secrets: its environment is empty but for where modules are.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from rlmm_daemon.adapters.passes import wire
from rlmm_daemon.domain.errors import StorageUnavailable, from_wire
from rlmm_daemon.ports.passes import Claims, Copied, Passes, Stopped
from rlmm_daemon.ports.storage import Source
from rlmm_daemon.ports.threads import COPY_NICE

#: What is no longer goes by faster in the thread that asks.
SMALL_BYTES: Final = 1024 * 1024
#: So often a pass that says nothing, on a disk that hangs, looks whether it is to stop.
STOP_SECONDS: Final = 0.2
START_SECONDS: Final = 10.0
#: After a start that failed, threads do the work for so long.
AGAIN_SECONDS: Final = 60.0
END_SECONDS: Final = 2.0
MODULE: Final = "rlmm_daemon.adapters.passes"

_log = structlog.get_logger(__name__)


class _Child:
    """A process that runs, and the socket on which it takes passes."""

    def __init__(self) -> None:
        """Start it and wait until it takes passes.

        Raises:
            OSError: it can't be started, or ended before it did.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # The main thread's niceness: who asks is a copying thread, which has ours already.
            nice = os.getpriority(os.PRIO_PROCESS, os.getpid()) + COPY_NICE
            self._control = ours
            self._control.settimeout(START_SECONDS)
            try:
                self.process = subprocess.Popen(  # noqa: S603 - our own interpreter
                    [sys.executable, "-P", "-m", MODULE, str(theirs.fileno()), str(nice)],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                )
            except BaseException:
                ours.close()
                raise
        try:
            if ours.recv(wire.MESSAGE_BYTES_MAX) != wire.READY:
                raise ConnectionResetError("it ended before it took any work")
        except BaseException:
            self.end()
            raise

    def hand_over(self, job: wire.Job, descriptors: Sequence[int]) -> socket.socket:
        """Have a pass begun; return the socket on which it is told of.

        Raises:
            OSError: the process is no longer there.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                message = json.dumps(job).encode()
                socket.send_fds(self._control, [message], [theirs.fileno(), *descriptors])
            except BaseException:
                ours.close()
                raise
        return ours

    def end(self) -> str:
        """Make an end of it, if it has not come to one itself; say how it ended."""
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        self.process.kill()
        try:
            code = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return "while a disk hangs"  # the kernel ends it when the disk answers
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


class OneProcess:
    """`ports.passes.Passes` in a child process, which is started anew when it ended."""

    def __init__(self, instead: Passes) -> None:
        """`instead` makes the passes over small files, and all while no process can be started."""
        self._instead = instead
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._closed = False
        self._not_before = 0.0

    @property
    def pid(self) -> int | None:
        """The process's id; None where none runs."""
        child = self._child
        return None if child is None else child.process.pid

    def copy(
        self,
        source: Source,
        target: int,
        *,
        reads: bool,
        stop: threading.Event,
        moved: Callable[[int], None],
    ) -> Copied:
        """Copy in the process."""
        job: wire.Job = {"do": "copy", "reads": reads}
        answer = self._asked(job, source, [target], stop, moved)
        if answer is None:
            return self._instead.copy(source, target, reads=reads, stop=stop, moved=moved)
        return Copied(written=answer["written"], read=answer["read"])

    def check(self, source: Source, claims: Claims | None, *, stop: threading.Event) -> int:
        """Read and check in the process."""
        told = claims and [claims.start_offset, claims.end_offset, claims.size_bytes]
        answer = self._asked({"do": "check", "claims": told}, source, [], stop, lambda _: None)
        if answer is None:
            return self._instead.check(source, claims, stop=stop)
        found: int = answer["found"]
        return found

    def close(self) -> None:
        """End the process; what it has in hand is lost, and so is told."""
        with self._lock:
            self._closed = True
            child, self._child = self._child, None
        if child is not None:
            child.end()

    def _asked(
        self,
        job: wire.Job,
        source: Source,
        more: Sequence[int],
        stop: threading.Event,
        moved: Callable[[int], None],
    ) -> dict[str, Any] | None:
        """Return the answer of a pass over a file, or None where it is not the process's."""
        descriptor = source.fileno()
        if descriptor is None or source.size <= SMALL_BYTES:
            return None
        child = self._running()
        if child is None:
            return None
        try:
            connection = child.hand_over(job | {"size": source.size}, [descriptor, *more])
        except OSError as error:
            raise self._lost(child) from error
        with connection:
            connection.settimeout(STOP_SECONDS)
            while not stop.is_set():
                try:
                    message = connection.recv(wire.MESSAGE_BYTES_MAX)
                except TimeoutError:
                    continue
                except ConnectionResetError:
                    message = b""
                if not message:
                    raise self._lost(child)
                answer: dict[str, Any] = json.loads(message)
                moved(answer.get("moved", 0))
                if "done" in answer:
                    done: dict[str, Any] = answer["done"]
                    return done
                _raise_if_failed(answer)
        # The end of the socket tells the process.
        raise Stopped

    def _running(self) -> _Child | None:
        with self._lock:
            if self._closed:
                raise StorageUnavailable("the daemon ends, and nothing is copied any more")
            if self._child is None and time.monotonic() >= self._not_before:
                try:
                    self._child = _Child()
                except OSError as error:
                    self._not_before = time.monotonic() + AGAIN_SECONDS
                    _log.warning(
                        "no process for copies; threads copy, and look-ups wait for them",
                        error=str(error) or type(error).__name__,
                        again_in_seconds=AGAIN_SECONDS,
                    )
                else:
                    _log.info("process for copies started", pid=self._child.process.pid)
            return self._child

    def _lost(self, child: _Child) -> StorageUnavailable:
        """Forget a process that ended; return what a pass that it had in hand came to."""
        with self._lock:
            first, closed = self._child is child, self._closed
            if first:
                self._child = None
        how = child.end() if first else "before"
        if first:
            _log.warning("process for copies ended", pid=child.process.pid, how=how)
        message = "the daemon ends" if closed else f"the process that copied ended {how}"
        return StorageUnavailable(f"{message}; the copy can be begun anew")


def _raise_if_failed(answer: dict[str, Any]) -> None:
    if "error" in answer:
        raise from_wire(*answer["error"])
    if "errno" in answer:
        raise OSError(answer["errno"], os.strerror(answer["errno"]))
    if "bug" in answer:
        raise RuntimeError(f"in the process for copies: {answer['bug']}")
