"""Man pages of `rlmm` and of each of its commands, made of what `--help` says."""  # noqa: INP001 - a script, no package

import re
from collections.abc import Iterator
from pathlib import Path

import click

from rlmm_daemon import __version__
from rlmm_daemon.cli import main
from rlmm_daemon.cli.group import COMMANDS


def write(directory: Path) -> list[Path]:
    """Write all pages; returns their files."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in pages():
        file = directory / f"{name}.1"
        file.write_text(text)
        written.append(file)
    return written


def pages() -> Iterator[tuple[str, str]]:
    """Yield each page's name and text; commands below a command share its page."""
    context = click.Context(main, info_name="rlmm")
    listed = [
        f".TP\n.BR {_plain(f'rlmm-{name}')} (1)\n{_plain(row.help)}"
        for name, row in COMMANDS.items()
    ]
    body = [*_body(main, context), ".SH COMMANDS", *listed]
    yield "rlmm", _page("rlmm", "keep and question Kafka's remote log metadata", body)
    for name, row in COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None, name
        below = click.Context(command, info_name=name, parent=context)
        body = [*_body(command, below), *_subcommands(command, below)]
        also = [".SH SEE ALSO", ".BR rlmm (1)"]
        yield f"rlmm-{name}", _page(f"rlmm-{name}", row.help.rstrip("."), [*body, *also])


def _page(name: str, summary: str, body: list[str]) -> str:
    head = f'.TH "{name.upper()}" 1 "" "rlmm-daemon {__version__}" "RLMM daemon"'
    return "\n".join(
        [head, ".ad l", ".SH NAME", f"{_plain(name)} \\- {_plain(summary)}", *body, ""]
    )


def _subcommands(command: click.Command, context: click.Context) -> Iterator[str]:
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None, name
        inner = click.Context(below, info_name=name, parent=context)
        yield f'.SH "{_plain(inner.command_path.upper())}"'
        yield from _body(below, inner, ".SS")


def _body(command: click.Command, context: click.Context, head: str = ".SH") -> Iterator[str]:
    usage = " ".join(command.collect_usage_pieces(context))
    yield from (f"{head} SYNOPSIS", f".B {_plain(context.command_path)}", _plain(usage))
    if command.help:
        yield f"{head} DESCRIPTION"
        yield "\n.PP\n".join(
            _paragraph(each) for each in re.split(r"\n\s*\n", command.help.strip())
        )
    records = [each.get_help_record(context) for each in command.get_params(context)]
    if any(records):
        yield f"{head} OPTIONS"
        for record in filter(None, records):
            yield f".TP\n.B {_plain(record[0])}\n{_plain(record[1]) or chr(92) + '&'}"


def _paragraph(text: str) -> str:
    """Return a paragraph; one that click keeps as it stands stays so."""
    if text.lstrip().startswith("\b"):
        lines = text.replace("\b", "").strip("\n").splitlines()
        return "\n".join([".nf", *(_plain(each) for each in lines), ".fi"])
    return _plain(" ".join(text.split()))


def _plain(text: str) -> str:
    """Return a text in which nothing is a request of roff's."""
    safe = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    safe = safe.replace("\u2019", "'")
    return re.sub(r"(?m)^(?=[.'])", r"\\&", safe)
