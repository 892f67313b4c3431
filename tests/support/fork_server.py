"""Daemon processes without their imports' second: forked off a process that has imported them.

A fork is a process like any other: own pid, own descriptors, killed like any other. Run as a
module this is the server: a JSON line on stdin is one daemon; its pid and then its exit code come
back as lines.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from msgspec.structs import asdict


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon is started with."""

    arguments: Sequence[str]
    directory: str
    environment: Mapping[str, str]
    #: Standard output and error are appended to it.
    output: str


class Forked:
    """The part of `subprocess.Popen` that a daemon process needs."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self._server = server
        self.pid = pid
        self.code: int | None = None

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def wait(self, timeout: float | None = None) -> int:  # noqa: ARG002 - pytest's timeout ends it
        if self.code is None:
            self.code = int(self._server.read_line())
        return self.code


class ForkServer:
    """Starts one daemon at a time."""

    def __enter__(self) -> Self:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fork_server"],
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()

    def __call__(self, launch: Launch) -> Forked:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(asdict(launch)).encode() + b"\n")
        self._server.stdin.flush()
        return Forked(self, int(self.read_line()))

    def read_line(self) -> bytes:
        assert self._server.stdout is not None
        return self._server.stdout.readline()


def serve() -> None:
    import rlmm_daemon.cli.run  # noqa: PLC0415 - the server's side only
    import rlmm_daemon.wiring.daemon  # noqa: F401, PLC0415 - the server's side only

    for line in sys.stdin.buffer:
        launch = Launch(**json.loads(line))
        pid = os.fork()
        if not pid:
            _become(launch)
        _say(pid)
        _, status = os.waitpid(pid, 0)
        _say(os.waitstatus_to_exitcode(status))


def _become(launch: Launch) -> None:
    """Be the daemon from here on; never returns."""
    from rlmm_daemon.cli import main  # noqa: PLC0415 - the server's side only
    from tests.support import brisk, full_disk  # noqa: PLC0415 - the server's side only

    code = 1
    try:
        os.chdir(launch.directory)
        os.environ.clear()
        os.environ.update(launch.environment)
        output = os.open(launch.output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, output), (2, output)):
            os.dup2(source, target)
        if full := launch.environment.get(full_disk.VARIABLE):
            full_disk.install(*full.split("="))
        if brisk.VARIABLE in launch.environment:
            brisk.install()
        main(list(launch.arguments))
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _say(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve()
