"""Answers on standard output, errors on standard error; every foreign string escaped."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.observability.escape import escape, escape_lines

#: So that a table in a pipe is never folded or cut.
_PIPE_COLUMNS: Final = 1_000


def show_json(value: Any) -> None:
    """Print one JSON value on one line; bytes become base64."""
    click.echo(msgspec.json.encode(value).decode())


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None
) -> None:
    """Print a table: ruled and coloured on a terminal, aligned columns in a pipe."""
    # Imported late: a command that answers in JSON does without it.
    from rich import box  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Column, Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    terminal = sys.stdout.isatty()
    table = Table(
        *(Column(Text(column), overflow="fold") for column in columns),
        title=Text(title) if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD if terminal else None,
        pad_edge=False,
    )
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    console = Console(file=sys.stdout, highlight=False, width=None if terminal else _PIPE_COLUMNS)
    console.print(table)


def show_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one a line, aligned."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {cell(value)}")


def show_error(error: RlmmError, *, as_json: bool = False) -> None:
    """Print an error of ours: its text for people, name and fields for machines."""
    if as_json:
        body = {"error": error.wire_name(), "message": error.message, "fields": error.fields}
        click.echo(msgspec.json.encode(body).decode(), err=True)
    else:
        click.echo(f"rlmm: {escape_lines(error.message)}", err=True)


def cell(value: object) -> str:
    """Return how a value looks to a person: `-` for nothing, yes and no, numbers with commas."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return escape(str(value))
