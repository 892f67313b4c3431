"""`rlmm run` with the processor time of each callback: what a look-up has to wait for in the loop.

Processor time says what the loop itself does, whatever else the machine is busy with. SIGUSR1 has
what was measured since the last one appended to the file that `HELD_FILE` names, as one JSON line.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from asyncio import events
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.rows import Row
from tests.support.daemon_process import REPOSITORY, DaemonProcess
from tests.support.fork_server import Launch

FILE: Final = "HELD_FILE"
#: The budget of a look-up's p99; what holds the loop longer is counted.
LONG_SECONDS: Final = 0.002
WAIT_SECONDS: Final = 30.0


class Held:
    """What callbacks took, by who they were."""

    def __init__(self) -> None:
        self._longest: dict[str, float] = {}
        self._long: dict[str, int] = {}

    def wrap(self, run: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return `Handle._run` with a look at the clock."""

        def timed(handle: Any) -> None:
            who, begun = _name(handle._callback), time.thread_time()
            run(handle)
            taken = time.thread_time() - begun
            if taken > self._longest.get(who, 0.0):
                self._longest[who] = taken
            if taken > LONG_SECONDS:
                self._long[who] = self._long.get(who, 0) + 1

        return timed

    def told(self) -> dict[str, Any]:
        """Return what was measured, and begin anew."""
        found = {"longest": self._longest, "long": self._long}
        self._longest, self._long = {}, {}
        return found


def _name(callback: Any) -> str:
    of = getattr(callback, "__self__", None)
    if isinstance(of, asyncio.Task):
        return getattr(of.get_coro(), "__qualname__", "a task")
    return getattr(callback, "__qualname__", "a callback")


def spawn(launch: Launch) -> "subprocess.Popen[bytes]":
    """Start a daemon that measures itself, for `DaemonProcess`."""
    with Path(launch.output).open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.held", *launch.arguments],
            cwd=launch.directory,
            env={**launch.environment, FILE: _file(launch.directory),
                 "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip


def _file(directory: str) -> str:
    return f"{directory}/held.json"


def ask(process: DaemonProcess) -> dict[str, Any]:
    """Return what a daemon measured since it was asked last."""
    assert process.process is not None, "it runs"
    file = Path(_file(str(process.directory)))
    before = _lines(file)
    process.process.send_signal(signal.SIGUSR1)
    until = time.monotonic() + WAIT_SECONDS
    while len(lines := _lines(file)) == len(before):
        assert time.monotonic() < until, "the daemon answers"
        time.sleep(0.02)  # between two looks: a file that grows tells nobody
    told: dict[str, Any] = json.loads(lines[-1])
    return told


def _lines(file: Path) -> list[str]:
    text = file.read_text() if file.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def row(name: str, told: dict[str, Any]) -> Row:
    """Return the longest hold of a phase, and who held longer than a look-up may take."""
    longest, long = told["longest"], told["long"]
    who = max(longest, key=longest.__getitem__, default="nobody")
    often = ", ".join(f"{count}x {each}" for each, count in sorted(long.items()))
    return Row(
        group="held", what=f"the loop's longest hold while {name}",
        value=1000 * longest.get(who, 0.0), unit="ms", note=f"{who}; over 2 ms: {often or 'none'}",
    )  # fmt: skip


def main() -> None:
    """Run `rlmm` on asyncio's own loop, whose callbacks can be looked at."""
    import uvloop  # noqa: PLC0415 - replaced before the daemon is loaded

    uvloop.new_event_loop = asyncio.new_event_loop  # type: ignore[assignment] # any loop does
    held, file = Held(), Path(os.environ[FILE])
    handle: Any = events.Handle  # asyncio has no hook for what each callback runs through
    handle._run = held.wrap(handle._run)

    def tell(*_: object) -> None:
        with file.open("a") as out:
            out.write(json.dumps(held.told()) + "\n")

    signal.signal(signal.SIGUSR1, tell)
    from rlmm_daemon.cli import main as rlmm  # noqa: PLC0415 - behind what was replaced

    rlmm()


if __name__ == "__main__":
    main()
