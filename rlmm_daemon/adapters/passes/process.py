"""The passes, made by one child process whose interpreter the event loop does not share.

Started at the first pass over a large file; each pass has a socket of its own to it. It is given
open files, never names, and knows no secrets: its environment is empty but for where modules are.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import structlog

from rlmm_daemon.adapters.passes import wire
from rlmm_daemon.domain.errors import StorageUnavailable, from_wire
from rlmm_daemon.ports.passes import LOST_REASON, Claims, Copied, Passes, PassStopped, Stop
from rlmm_daemon.ports.storage import Source
from rlmm_daemon.ports.threads import COPY_NICE

#: What is no longer goes by faster in the thread that asks.
SMALL_BYTES: Final = 1024 * 1024
#: So often a pass that says nothing, on a disk that hangs, looks whether it is to stop.
STOP_SECONDS: Final = 0.2
#: For a process to begin, and for one that runs to take a pass.
START_SECONDS: Final = 10.0
#: After a start that failed, or a process that ended before it had done anything, threads do the
#: work for so long.
AGAIN_SECONDS: Final = 60.0
END_SECONDS: Final = 2.0
MODULE: Final = "rlmm_daemon.adapters.passes"
#: What an interpreter may need to run at all.
_ENVIRONMENT: Final = ("PYTHONHOME", "LD_LIBRARY_PATH")
#: What sending to a process that is gone, or that takes nothing, comes to.
_GONE: Final = (BrokenPipeError, ConnectionResetError, TimeoutError)

_log = structlog.get_logger(__name__)


class _Child:
    """A process that runs, and the socket on which it takes passes."""

    def __init__(self, passes_max: int) -> None:
        """Start it and wait until it takes passes.

        One of another version, which an upgrade has put in our place, is none.

        Raises:
            OSError: it can't be started, or ended before it did.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # The main thread's niceness: who asks is a copying thread, which has ours already.
            nice = os.getpriority(os.PRIO_PROCESS, os.getpid()) + COPY_NICE
            #: Held to send and to close: nobody sends on what was closed, and is another file now.
            self._sending = threading.Lock()
            arguments = map(str, (theirs.fileno(), nice, passes_max))
            self._control = ours
            self._control.settimeout(START_SECONDS)
            try:
                self.process = subprocess.Popen(  # noqa: S603 - our own interpreter
                    [sys.executable, "-P", "-m", MODULE, *arguments],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    env=_environment(),
                )
            except BaseException:
                ours.close()
                raise
        #: Whether it ever did what was asked of it.
        self.useful = False
        try:
            if ours.recv(wire.MESSAGE_BYTES_MAX) != wire.READY:
                raise ConnectionResetError(
                    "it ended before it took any work, or is of another version"
                )
        except BaseException:
            self.end()
            raise

    def hand_over(self, job: wire.Job, descriptors: Sequence[int]) -> socket.socket:
        """Have a pass begun; return the socket on which it is told of.

        Raises:
            BrokenPipeError, ConnectionResetError, TimeoutError: the process is no longer there, or
                takes nothing; the pass was not begun.
            OSError: no more files can be open, or a descriptor is not.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                message = json.dumps(job).encode()
                with self._sending:
                    if self._control.fileno() < 0:
                        raise BrokenPipeError("its end was found by another pass")
                    socket.send_fds(self._control, [message], [theirs.fileno(), *descriptors])
            except BaseException:
                ours.close()
                raise
        return ours

    def end(self) -> str:
        """Make an end of it, if it has not come to one itself; say how it ended."""
        with self._sending:
            self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        self.process.kill()
        try:
            code = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return "while a disk hangs"  # the kernel ends it when the disk answers
        return f"by signal {-code}" if code < 0 else f"with exit code {code}"


class OneProcess:
    """`ports.passes.Passes` in a child process, which is started anew when it ended."""

    def __init__(self, instead: Passes, *, passes_max: int) -> None:
        """`instead` makes the passes over small files, and all while no process can be started.

        Beyond `passes_max` at once a pass is refused: those on a disk that hangs outlast their
        callers.
        """
        self._instead, self._passes_max = instead, passes_max
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._closed = False
        self._not_before = 0.0
        self._in_hand = 0

    @property
    def pid(self) -> int | None:
        """The process's id; None where none runs."""
        child = self._child
        return None if child is None else child.process.pid

    @property
    def in_hand(self) -> int:
        """Passes that were handed to the process and have not ended."""
        return self._in_hand

    def copy(
        self,
        source: Source,
        target: int,
        *,
        reads: bool,
        stop: Stop,
        moved: Callable[[int], None],
    ) -> Copied:
        """Copy in the process."""
        job: wire.Job = {"do": "copy", "reads": reads}
        answer = self._asked(job, source, [target], stop, moved=moved)
        if answer is None:
            return self._instead.copy(source, target, reads=reads, stop=stop, moved=moved)
        return Copied(written=answer["written"], read=answer["read"])

    def check(self, source: Source, claims: Claims | None, *, stop: Stop) -> int:
        """Read and check in the process."""
        told = claims and [claims.start_offset, claims.end_offset, claims.size_bytes]
        try:
            answer = self._asked(
                {"do": "check", "claims": told}, source, [], stop, moved=lambda _: None
            )
        except OSError as error:
            raise StorageUnavailable(f"the source can't be checked: {error.strerror}") from error
        if answer is None:
            return self._instead.check(source, claims, stop=stop)
        found: int = answer["found"]
        return found

    def close(self) -> None:
        """End the process, blocking for a moment; what it has in hand is lost, and so is told."""
        self._closed = True
        # One that is just being started sees that its daemon ends.
        if self._lock.acquire(timeout=END_SECONDS):
            child, self._child = self._child, None
            self._lock.release()
            if child is not None:
                child.end()

    def _asked(
        self,
        job: wire.Job,
        source: Source,
        more: Sequence[int],
        stop: Stop,
        *,
        moved: Callable[[int], None],
    ) -> dict[str, Any] | None:
        """Return the answer of a pass over a file, or None where it is not the process's."""
        if source.fileno() is None or source.size <= SMALL_BYTES:
            return None
        begun = self._begun(job | {"size": source.size}, source, more, stop)
        if begun is None:
            return None
        child, connection = begun
        with connection, self._counted():
            connection.settimeout(STOP_SECONDS)
            taken, until = False, time.monotonic() + START_SECONDS
            while not stop.is_set():
                try:
                    message = connection.recv(wire.MESSAGE_BYTES_MAX)
                except TimeoutError:
                    if not taken and time.monotonic() > until:
                        raise self._lost(child) from None
                    continue
                except ConnectionResetError:
                    message = b""
                if not message:
                    raise self._lost(child)
                taken = True
                answer: dict[str, Any] = json.loads(message)
                moved(answer.get("moved", 0))
                if "done" in answer:
                    child.useful = True
                    done: dict[str, Any] = answer["done"]
                    return done
                _raise_if_failed(answer)
        # The end of the socket tells the process.
        raise PassStopped

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self._in_hand += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_hand -= 1

    def _begun(
        self, job: wire.Job, source: Source, more: Sequence[int], stop: Stop
    ) -> tuple[_Child, socket.socket] | None:
        """Hand a pass over, to another process if the first has ended; None where none runs."""
        for last in (False, True):
            child = self._running(stop)
            # Only now: while a process was started, whoever asked may have left and closed it.
            descriptor = source.fileno()
            if child is None or descriptor is None:
                return None
            try:
                return child, child.hand_over(job, [descriptor, *more])
            except _GONE as error:
                lost = self._lost(child)
                if last:
                    raise lost from error
        raise AssertionError("the last try returns or raises")

    def _running(self, stop: Stop) -> _Child | None:
        while not self._lock.acquire(timeout=STOP_SECONDS):
            if stop.is_set():
                raise PassStopped
        try:
            if stop.is_set():
                raise PassStopped
            if self._closed:
                raise StorageUnavailable("the daemon ends, and nothing is copied any more")
            if self._child is None and time.monotonic() >= self._not_before:
                self._child = self._started()
            return self._child
        finally:
            self._lock.release()

    def _started(self) -> _Child | None:
        try:
            child = _Child(self._passes_max)
        except OSError as error:
            self._not_before = time.monotonic() + AGAIN_SECONDS
            _log.warning(
                "no process for copies; threads copy, and look-ups wait for them",
                error=str(error) or type(error).__name__,
                again_in_seconds=AGAIN_SECONDS,
            )
            return None
        _log.info("process for copies started", pid=child.process.pid)
        return child

    def _lost(self, child: _Child) -> StorageUnavailable:
        """Forget a process that ended; return what a pass that it had in hand came to."""
        with self._lock:
            first = self._child is child
            if first:
                self._child = None
                if not child.useful:
                    self._not_before = time.monotonic() + AGAIN_SECONDS
        if first:
            how = child.end()
            _log.warning("process for copies ended", pid=child.process.pid, how=how)
        message = "the daemon ends" if self._closed else "the process that copied has ended"
        return StorageUnavailable(f"{message}; the copy can be begun anew", reason=LOST_REASON)


def _environment() -> dict[str, str]:
    """Return where modules are, and nothing that is secret."""
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _raise_if_failed(answer: dict[str, Any]) -> None:
    if "error" in answer:
        raise from_wire(*answer["error"])
    if "errno" in answer:
        raise OSError(answer["errno"], os.strerror(answer["errno"]))
    if "bug" in answer:
        raise RuntimeError(f"in the process for copies: {answer['bug']}")
