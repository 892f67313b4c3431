"""The daemon as a process: started from `config/rlmm.toml`, waited for, killed, started again."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from rlmm_daemon.client import Client, ClientOptions
from tests.support.fork_server import Forked, Launch

REPOSITORY: Final = Path(__file__).resolve().parents[2]
CONFIG: Final = REPOSITORY / "config" / "rlmm.toml"
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 40.0


class DaemonProcess:
    """`rlmm run` with `directory` as its working directory; one process at a time.

    It is waited for as systemd does it: by the READY=1 that it sends.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, object] | None = None,
        spawn: Callable[[Launch], "subprocess.Popen[bytes] | Forked"] | None = None,
        *,
        config: Path = CONFIG,
    ) -> None:
        self.directory = directory
        self._config = config
        self._spawn = spawn or _spawn
        self.settings: dict[str, object] = {"admin.listen": "127.0.0.1:0"} | dict(settings or {})
        #: From the start of the process to READY=1, of the last start.
        self.started_seconds = 0.0
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self._told: socket.socket | None = None
        for each in (self.remote, self.log_dir):
            each.mkdir(parents=True, exist_ok=True)
        (self.log_dir / "meta.properties").write_text("version=1\n")  # as in a broker's own

    @property
    def socket_path(self) -> str:
        return str(self.directory / "var" / "rlmm.sock")

    @property
    def remote(self) -> Path:
        """The storage's root."""
        return self.directory / "var" / "remote"

    @property
    def log_dir(self) -> Path:
        """What the daemon takes for the broker's log directory."""
        return self.directory / "var" / "kafka-logs"

    @property
    def output(self) -> Path:
        """Everything that the process wrote, over all its starts."""
        return self.directory / "daemon.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Return once READY=1 came; raise with the process's last words if it ended instead."""
        assert self.process is None, "it runs already"
        notify = self.directory / "notify.sock"
        notify.unlink(missing_ok=True)
        self._told = told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            told.bind(str(notify))
            begun = time.perf_counter()
            self.process = self._spawn(self._launch(str(notify)))
            self._await_ready(told, begun + START_SECONDS)
        except BaseException:
            self.kill()
            raise
        self.started_seconds = time.perf_counter() - begun

    def kill(self) -> None:
        """SIGKILL; fine if it is gone."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self._gone()

    def freeze(self) -> None:
        """SIGSTOP: it takes connections and requests, and answers nothing."""
        assert self.process is not None, "it does not run"
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        assert self.process is not None, "it does not run"
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM, which drains; return the exit code."""
        assert self.process is not None, "it does not run"
        self.process.terminate()
        code = self.process.wait(STOP_SECONDS)
        self._gone()
        return code

    def ended(self) -> int:
        """Return the exit code of a daemon that was told to end in another way."""
        assert self.process is not None, "it does not run"
        code = self.process.wait(STOP_SECONDS)
        self._gone()
        return code

    def _gone(self) -> None:
        self.process = None
        if self._told is not None:
            self._told.close()
            self._told = None

    def client(self, **options: float) -> Client:
        return Client(self.socket_path, ClientOptions(**options))  # type: ignore[arg-type]  # seconds

    def rlmm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command line tool against this daemon."""
        return subprocess.run(
            [sys.executable, "-m", "rlmm_daemon", *arguments],
            cwd=self.directory,
            env=environment() | {"RLMM_SOCKET": self.socket_path},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def _launch(self, notify: str) -> Launch:
        overrides = [f"--set={key}={value}" for key, value in self.settings.items()]
        return Launch(
            arguments=["run", "--config", str(self._config), *overrides],
            directory=str(self.directory),
            environment=environment() | {"NOTIFY_SOCKET": notify},
            output=str(self.output),
        )

    def _await_ready(self, told: socket.socket, until: float) -> None:
        assert self.process is not None
        ended = os.pidfd_open(self.process.pid)
        try:
            while True:
                left = max(0.0, until - time.perf_counter())
                readable, _, _ = select.select([told.fileno(), ended], [], [], left)
                if told.fileno() in readable:
                    if b"READY=1" in told.recv(4096):
                        return
                elif ended in readable or not readable:
                    what = "ended" if readable else "is not ready in time"
                    raise RuntimeError(f"the daemon {what}:\n{self.last_words()}")
        finally:
            os.close(ended)

    def last_words(self, lines: int = 20) -> str:
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])


def _spawn(launch: Launch) -> subprocess.Popen[bytes]:
    with Path(launch.output).open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "rlmm_daemon", *launch.arguments],
            cwd=launch.directory,
            env=launch.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


def environment() -> dict[str, str]:
    """Return an environment in which `python -m rlmm_daemon` is this checkout's."""
    # With compiled modules kept, as an installed daemon has them.
    ours = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONDONTWRITEBYTECODE" and not name.startswith("RLMM_")
    }
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return ours | {"PYTHONPATH": os.pathsep.join(paths)}
