"""The command line tool in a terminal of a known width, as a person sees it."""

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.support.daemon_process import environment

_LINES: Final = 40
#: What differs from run to run, and what is compared instead.
_VARYING: Final = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"), "TIME"),
    (re.compile(r"\b\d+ (s|min) ago"), "AGE"),
    (re.compile(r"up \d+ (s|min)"), "up AGE"),
    (re.compile(r"(?m)^(tasks +)\d+$"), r"\1N"),
    (re.compile(r"(?m)^(memory +).*$"), r"\1M"),
    (re.compile(r"─+"), "─"),
    (re.compile(r"(?m) +$"), ""),
    (re.compile(r"(?<=\S) {2,}"), "  "),
)


def in_terminal(
    columns: int, words: Sequence[str], *, directory: Path, variables: Mapping[str, str]
) -> tuple[int, str]:
    """Run `rlmm WORDS` on a terminal so wide; return the exit code and the text without colours."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, columns, 0, 0))
    surroundings = {name: text for name, text in environment().items() if name != "COLUMNS"}
    process = subprocess.Popen(
        [sys.executable, "-m", "rlmm_daemon", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=directory,
        env=surroundings | {"TERM": "xterm-256color"} | dict(variables),
    )
    os.close(theirs)
    shown = bytearray()
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:
        pass  # how a terminal ends whose other side is closed
    finally:
        os.close(ours)
    code = process.wait(60)
    plain = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", bytes(shown))
    return code, plain.decode().replace("\r\n", "\n")


def steady(text: str, names: Mapping[str, str]) -> str:
    """Return a text with what differs from run to run replaced."""
    for found, name in names.items():
        text = text.replace(found, name)
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return text
