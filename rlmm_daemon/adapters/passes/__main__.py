"""The process for copies: `python -m rlmm_daemon.adapters.passes DESCRIPTOR NICENESS`.

Only the daemon starts it. It ends with the daemon, however that ends: its control socket is closed
then. Signals that a terminal or systemd send to all are left to the daemon, which has copies to
finish.
"""

import contextlib
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
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.ports.passes import Claims, Stopped
from rlmm_daemon.ports.sources import FileSource

#: So often at most a pass says how far it is.
TOLD_SECONDS: Final = 0.05
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


class _Given(FileSource):
    """The source as the daemon opened it, however long it is by now."""

    def __init__(self, descriptor: int, size: int) -> None:
        super().__init__(descriptor, str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        self._given = size

    @property
    def size(self) -> int:
        """Bytes when the daemon opened it."""
        return self._given


def _serve(message: bytes, descriptors: list[int]) -> None:
    with socket.socket(fileno=descriptors[0]) as connection:
        caller = _Caller(connection)
        caller.tell(_outcome(json.loads(message), descriptors[1:], caller))


def _outcome(job: wire.Job, descriptors: list[int], caller: _Caller) -> dict[str, Any]:
    try:
        return {"done": _done(job, descriptors, caller)}
    except Stopped:
        return {}
    except RlmmError as error:
        return {"error": [error.code, error.message, error.fields]}
    except OSError as error:
        return {"errno": error.errno}
    except Exception as error:  # noqa: BLE001 - the daemon is told, and this process goes on
        traceback.print_exc()
        return {"bug": f"{type(error).__name__}: {error}"}
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


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


def main() -> None:
    """Take passes until the daemon is gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    os.setpriority(os.PRIO_PROCESS, 0, int(sys.argv[2]))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    control.send(wire.READY)
    while True:
        message, descriptors, _, _ = socket.recv_fds(
            control, wire.MESSAGE_BYTES_MAX, _DESCRIPTORS_MAX
        )
        if not message:
            os._exit(0)  # whatever its threads do: nobody is there to hear of it
        threading.Thread(target=_serve, args=(message, descriptors), daemon=True).start()


if __name__ == "__main__":
    main()
