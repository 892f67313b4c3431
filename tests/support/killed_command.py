"""`rlmm` as a process that is killed at a step: before the N-th call of one of its functions.

python -m tests.support.killed_command MODULE:FUNCTION:N log copy ...
"""

import functools
import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from rlmm_daemon.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable


def kill_before(module: str, function: str, nth: int) -> None:
    """Have this process killed when that function is called for the n-th time."""
    home = importlib.import_module(module)
    owner, _, name = function.rpartition(".")
    where: Any = getattr(home, owner) if owner else home
    real: Callable[..., Any] = getattr(where, name)
    calls = 0

    @functools.wraps(real)
    def counted(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given, **named)

    setattr(where, name, counted)


if __name__ == "__main__":
    step, *words = sys.argv[1:]
    named, called, number = step.split(":")
    kill_before(named, called, int(number))
    main(words)
