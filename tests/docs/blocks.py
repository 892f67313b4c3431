"""Blocks of the documents that can be run: each command in them ends as it is said to.

A block of which the first line is `console run` is typed in a checkout; one of `console run daemon`
in the directory of a daemon that has copied the test segments. A command ends with exit code 0
unless its comment says another. A block of `python run`, with or without `daemon`, is a program.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from rlmm_daemon.domain.ids import uuid_text
from tests.support import kafka_segments
from tests.support.daemon_process import CONFIG, REPOSITORY, DaemonProcess, environment

_BLOCK: Final = re.compile(
    r"(?ms)^```(?P<language>console|python) run(?P<daemon> daemon)?\n(?P<text>.*?)^```"
)
_SAID: Final = re.compile(r"#.*exit code (\d+)")
_SECONDS: Final = 60


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Commands of a page, in their order."""

    page: Path
    daemon: bool
    commands: tuple[str, ...]


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page that can be run."""
    return [
        Block(
            page=page,
            daemon=bool(found["daemon"]),
            commands=tuple(_commands(found["language"], found["text"])),
        )
        for found in _BLOCK.finditer(page.read_text())
    ]


def _commands(language: str, text: str) -> Iterator[str]:
    if language == "python":
        yield shlex.join((sys.executable, "-W", "error", "-c", text))
    else:
        yield from (line[2:] for line in text.splitlines() if line.startswith("$ "))


def run(page: Path) -> tuple[int, list[str]]:
    """Run a page's blocks; returns how many commands there were, and what ended otherwise."""
    found = blocks(page)
    wrong = [each for block in found if not block.daemon for each in _in_checkout(block)]
    beside = [block for block in found if block.daemon]
    if beside:
        with tempfile.TemporaryDirectory(prefix="rlmm-docs-") as home:
            wrong += _beside_a_daemon(beside, Path(home))
    return sum(len(block.commands) for block in found), wrong


def _in_checkout(block: Block) -> Iterator[str]:
    for command in block.commands:
        yield from _run(block, command, REPOSITORY, dict(os.environ))


def _beside_a_daemon(found: list[Block], home: Path) -> list[str]:
    """Run them beside a daemon that has copied segments, in the order in which they are read."""
    wrong: list[str] = []
    with DaemonProcess(home) as daemon:
        placed = kafka_segments.place(daemon.log_dir)
        with daemon.client() as client:
            client.replace_assignment(placed, [])
            partition, segments = next(iter(placed.items()))
            client.list_remote_log_segments(partition)  # waits until it can be answered
            for segment in segments:
                client.copy_segment(segment.metadata, segment.files)
            first = client.list_remote_log_segments(partition)[0]
        real = {
            "/etc/rlmm/rlmm.toml": str(CONFIG),
            "/var/lib/rlmm": str(home / "var" / "state"),
            # None lies where it is looked for by default.
            "rlmm doctor ": f"rlmm doctor --config {CONFIG} ",
            "SEGMENT_ID": uuid_text(first.segment_id),
        }
        environ = environment() | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RLMM_SOCKET": str(daemon.socket_path),
        }
        for block in found:
            for told in block.commands:
                command = _with(real, told)
                wrong += _run(block, command, home, environ)
                if command.startswith("rlmm drain"):
                    daemon.ended()
    return wrong


def _with(real: dict[str, str], command: str) -> str:
    """Return a command with what stands there on this machine."""
    for told, there in real.items():
        command = command.replace(told, there)
    return command


def _run(block: Block, command: str, where: Path, environ: dict[str, str]) -> Iterator[str]:
    said = _SAID.search(command)
    ended = subprocess.run(
        ["bash", "-c", command],
        cwd=where,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if ended.returncode != (int(said[1]) if said else 0):
        words = f"{ended.stdout}{ended.stderr}".strip()
        page = block.page.relative_to(REPOSITORY)
        yield f"{page}: {command}: exit code {ended.returncode}\n{words}"
