"""`rlmm log copy` as a process on real files: whole, or killed at each step and repeated."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.daemon_process import environment

SECONDS: Final = 90.0
_COPYING: Final = "rlmm_daemon.offline.log_copying"
_CONTENTS: Final = "rlmm_daemon.offline.log_contents"
_ADOPTION: Final = "rlmm_daemon.offline.log_adoption"
_SUBMITTER: Final = "rlmm_daemon.adapters.quorum.event_log.submitter"
#: The first events are committed in a quorum, and its copier was not told yet.
COMMITTED: Final = f"{_SUBMITTER}:Submitter.hear:5"
#: In the order in which a copy comes to them; before the call.
STEPS: Final = (
    f"{_COPYING}:_append:1",  # the target is made
    f"{_CONTENTS}:begun:6",  # some events are on their way
    f"{_COPYING}:require_still:1",  # all are there
    f"{_COPYING}:adopt:1",  # nobody wrote to the source
    f"{_ADOPTION}:owe:1",  # the marker names it
    f"{_ADOPTION}:_note_ends:1",  # the state directory does
)


def copy(home: Path, *words: str, kill: str | None = None) -> "subprocess.CompletedProcess[str]":
    """Run `rlmm log copy WORDS`; `kill` is the step before which it is killed."""
    tool = ["rlmm_daemon"] if kill is None else ["tests.support.killed_command", kill]
    return subprocess.run(
        [sys.executable, "-m", *tool, "log", "copy", *words],
        cwd=home,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def copied(home: Path, *words: str, kills: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Have a copy killed at each of these steps, let the last one end; return its answer."""
    for step in kills:
        killed = copy(home, *words, "--execute", kill=step)
        assert killed.returncode == -signal.SIGKILL, (step, killed.stdout, killed.stderr)
    done = copy(home, *words, "--execute", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def planned(home: Path, *words: str) -> list[dict[str, Any]]:
    """Return what a dry run says."""
    said = copy(home, *words, "--json")
    assert said.returncode == 0, said.stderr + said.stdout
    rows: list[dict[str, Any]] = json.loads(said.stdout)
    return rows
