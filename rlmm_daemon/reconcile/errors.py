"""Errors that end the nightly job, with their exit codes."""

import re
from typing import Final

from rlmm_daemon.domain.errors import RlmmError

#: The line in a task's traceback, as Spark hands it on, that says what went wrong: an error of this
#: project, also within a group of several.
_OURS: Final = re.compile(r"^[ |]*rlmm_daemon\.[\w.]+: (?P<message>.+)$", re.MULTILINE)


class Incomplete(RlmmError):
    """A part of the input could not be read, so nothing is said about it."""


class Refused(RlmmError):
    """A guard speaks against deleting or quarantining anything."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class RunStopped(SystemExit):
    """The run was told to stop; no handler of errors takes it for one."""


def plain(error: BaseException) -> RlmmError:
    """Return what ended a run as one error with one message.

    What opens several things at once raises a group; what a task raised comes from Spark with
    stack traces of three languages; a log that is gone or out of reach is no error of ours.
    """
    first = error
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if isinstance(first, RlmmError):
        return first
    if isinstance(first, RunStopped):
        return Incomplete("it was told to stop")
    name, text = type(first).__name__, str(first).strip()
    if isinstance(first, TimeoutError):
        return Incomplete(f"an answer took too long{f': {text}' if text else ''}")
    found = _OURS.findall(text)
    if found:
        return Incomplete(found[-1].strip())
    return Incomplete(f"{name}: {text.partition(chr(10))[0]}" if text else name)
