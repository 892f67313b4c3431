"""Section of `docs/cli.md`: what `--help` of every command prints."""

from collections.abc import Iterator

import click
from click.testing import CliRunner

from rlmm_daemon.cli import main

_WIDTH = 80


def helps() -> str:
    """Return a section for each command, in the order of `rlmm --help`."""
    return "\n\n".join(_sections(main, ("rlmm",)))


def _sections(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    done = CliRunner().invoke(main, [*path[1:], "--help"], terminal_width=_WIDTH, prog_name="rlmm")
    assert done.exit_code == 0, done.output
    yield f"{'##' if len(path) < 3 else '###'} {' '.join(path)}"
    yield f"```text\n{done.output.strip()}\n```"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _sections(below, (*path, name))
