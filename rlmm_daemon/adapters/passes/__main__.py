"""The process for copies: `python -m rlmm_daemon.adapters.passes DESCRIPTOR NICENESS PASSES`.

Only the daemon starts it. It ends with the daemon, however that ends: its control socket is closed
then. Signals that a terminal or systemd send to all are left to the daemon, which has copies to
finish.
"""

import contextlib
import errno
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Final

from rlmm_daemon.adapters.passes import wire
from rlmm_daemon.adapters.passes.in_threads import InThreads
from rlmm_daemon.domain.errors import RlmmError, StorageUnavailable
from rlmm_daemon.ports.passes import Claims, PassStopped
from rlmm_daemon.ports.sources import FileSource

#: So often at most a pass says how far it is.
TOLD_SECONDS: Final = 0.02
#: Of an error's message on its way.
_TEXT_MAX: Final = 4096
_DESCRIPTORS_MAX: Final = 3


class _Caller:
    """The daemon's end of one pass."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._moved = 0
        self._told_at = time.monotonic()

    def is_set(self) -> bool:
        """Return whether it has left: the order to stop."""
        try:
            return self._connection.recv(1, socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def moved(self, count: int) -> None:
        """Count bytes, and tell of them now and then."""
        self._moved += count
        if time.monotonic() - self._told_at >= TOLD_SECONDS:
            self.tell({})

    def tell(self, message: dict[str, Any]) -> None:
        """Say this and what was not yet said; who has left hears nothing."""
        moved, self._moved, self._told_at = self._moved, 0, time.monotonic()
        with contextlib.suppress(OSError):
            self._connection.send(json.dumps({"moved": moved, **message}).encode())

    def close(self) -> None:
        """Let go of the daemon's end, who hears nothing more."""
        self._connection.close()


class _Given(FileSource):
    """The source as the daemon opened it, however long it is by now."""

    def __init__(self, descriptor: int, size: int) -> None:
        name = "the source"
        with contextlib.suppress(OSError):
            name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        super().__init__(descriptor, name)
        self._given = size

    @property
    def size(self) -> int:
        """Bytes when the daemon opened it."""
        return self._given


def _serve(
    job: wire.Job, descriptors: list[int], caller: _Caller, free: threading.BoundedSemaphore
) -> None:
    try:
        caller.tell(_outcome(job, descriptors, caller))
    finally:
        caller.close()
        free.release()


def _outcome(job: wire.Job, descriptors: list[int], caller: _Caller) -> dict[str, Any]:
    try:
        return {"done": _done(job, descriptors, caller)}
    except PassStopped:
        return {}
    except RlmmError as error:
        return _told(error)
    except OSError as error:
        return {"errno": error.errno or errno.EIO}
    except Exception as error:  # noqa: BLE001 - the daemon is told, and this process goes on
        traceback.print_exc()
        return {"bug": f"{type(error).__name__}: {error}"[:_TEXT_MAX]}
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _told(error: RlmmError) -> dict[str, Any]:
    return {"error": [error.code, error.message[:_TEXT_MAX], error.fields]}


def _done(job: wire.Job, descriptors: list[int], caller: _Caller) -> dict[str, int | None]:
    source = _Given(descriptors[0], job["size"])
    if job["do"] == "copy":
        target, reads = descriptors[1], job["reads"]
        copied = InThreads().copy(source, target, reads=reads, stop=caller, moved=caller.moved)
        return {"written": copied.written, "read": copied.read}
    claims = None
    if job["claims"] is not None:
        start, end, size = job["claims"]
        claims = Claims(start_offset=start, end_offset=end, size_bytes=size)
    return {"found": InThreads().check(source, claims, stop=caller)}


def _take(message: bytes, descriptors: list[int], free: threading.BoundedSemaphore) -> None:
    """Begin a pass in a thread of its own, or say why not."""
    if not descriptors:
        return  # no file could be opened for the daemon's end, which it hears of
    caller = _Caller(socket.socket(fileno=descriptors.pop(0)))
    caller.tell({})
    job: wire.Job = json.loads(message)
    reason = "as many files are open as may be"
    if len(descriptors) == wire.FILES[job["do"]]:
        reason = "as many passes are under way as may be, most of them on disks that hang"
        if free.acquire(blocking=False):
            try:
                threading.Thread(
                    target=_serve, args=(job, descriptors, caller, free), daemon=True
                ).start()
            except RuntimeError:
                free.release()
                reason = "no more threads can be started"
            else:
                return
    caller.tell(_told(StorageUnavailable(f"the process for copies is full: {reason}")))
    caller.close()
    for descriptor in descriptors:
        os.close(descriptor)


def main() -> None:
    """Take passes until the daemon is gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(OSError):  # it comes behind already, and may not come forward
        os.setpriority(os.PRIO_PROCESS, 0, int(sys.argv[2]))
    with contextlib.suppress(OSError):  # rather this process than the daemon, if memory runs out
        Path("/proc/self/oom_score_adj").write_text("0", encoding="ascii")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    free = threading.BoundedSemaphore(int(sys.argv[3]))
    control.send(wire.READY)
    while True:
        message, descriptors, _, _ = socket.recv_fds(
            control, wire.MESSAGE_BYTES_MAX, _DESCRIPTORS_MAX
        )
        if not message:
            os._exit(0)  # whatever its threads do: nobody is there to hear of it
        _take(message, descriptors, free)


if __name__ == "__main__":
    main()
