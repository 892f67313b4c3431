"""Answers on standard output, errors on standard error; every foreign string escaped."""

import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.observability.escape import escape, escape_lines

#: So that a table in a pipe is never folded or cut.
_PIPE_COLUMNS: Final = 1_000
#: Between two columns.
_GAP_COLUMNS: Final = 2
#: A column that may be folded is never narrower.
_FOLDED_COLUMNS_MIN: Final = 12


def show_json(value: Any, *, err: bool = False) -> None:
    """Print one JSON value on one line; bytes become base64. Or the same as a YAML document."""
    encoded = msgspec.json.encode(value)
    context = click.get_current_context(silent=True)
    if context is None or not context.meta.get("rlmm.yaml"):
        click.echo(encoded.decode(), err=err)
        return
    # Imported late, and with it PyYAML: few ask for it.
    from msgspec import yaml

    if not err:
        if context.meta.get("rlmm.shown"):
            click.echo("---")
        context.meta["rlmm.shown"] = True
    click.echo(yaml.encode(msgspec.json.decode(encoded)).decode(), nl=False, err=err)


def show_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    fold: Collection[str] = (),
) -> None:
    """Print a table: ruled and coloured on a terminal, aligned columns in a pipe.

    Nothing is ever cut. Where the terminal is too narrow, the columns of `fold` are folded as far
    as they can be; ids and numbers stay whole, so that they can be copied, at the price of a line
    that the terminal breaks.
    """
    # Imported late: a command that answers in JSON does without it.
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    lines = [[Text(cell(value)) for value in row] for row in rows]
    widths = [
        max([len(column), *(line[at].cell_len for line in lines)])
        for at, column in enumerate(columns)
    ]
    console = Console(file=sys.stdout, highlight=False, width=None if terminal else _PIPE_COLUMNS)
    if terminal:
        folded = [at for at, column in enumerate(columns) if column in fold]
        widths = _fitted(widths, folded, console.width - _GAP_COLUMNS * (len(columns) - 1))
        console.width = max(console.width, sum(widths) + _GAP_COLUMNS * len(columns))
    table = Table(
        *(
            Column(Text(column), overflow="fold", no_wrap=column not in fold, width=width)
            for column, width in zip(columns, widths, strict=True)
        ),
        box=box.SIMPLE_HEAD if terminal else None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for line in lines:
        table.add_row(*line)
    console.print(table, soft_wrap=True)


def _fitted(widths: list[int], folded: list[int], room: int) -> list[int]:
    """Return the widths with the folded columns made narrower until all have room, or at a floor.

    The widest gives way first.
    """
    fitted = list(widths)
    while sum(fitted) > room:
        narrowable = [at for at in folded if fitted[at] > _FOLDED_COLUMNS_MIN]
        if not narrowable:
            break
        fitted[max(narrowable, key=lambda at: fitted[at])] -= 1
    return fitted


def show_empty(count: int, words: str = "empty") -> None:
    """Print how many rows a table leaves out since nothing is in them; nothing for none."""
    if count:
        verb, them = ("is", "it") if count == 1 else ("are", "them")
        click.echo(f"{count:,} more {verb} {words.format(them=them)}")


def show_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one a line, aligned; a long value goes on below its beginning."""
    width = max(map(len, facts), default=0)
    room = shutil.get_terminal_size().columns - width - 2 if sys.stdout.isatty() else 0
    for name, value in facts.items():
        text = cell(value)
        if 0 < room < len(text):
            text = f"\n{'':<{width}}  ".join(textwrap.wrap(text, max(room, _FOLDED_COLUMNS_MIN)))
        click.echo(f"{name:<{width}}  {text}")


def show_error(error: RlmmError, *, as_json: bool = False) -> None:
    """Print an error of ours: its text for people, name and fields for machines."""
    if as_json:
        body = {"error": error.wire_name(), "message": error.message, "fields": error.fields}
        show_json(body, err=True)
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
