"""`rlmm reconcile findings`: the disagreements of a run, one by one."""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from rlmm_daemon.cli.mend.reconcile_options import config_options
from rlmm_daemon.cli.output import show_json, show_table
from rlmm_daemon.config.loading import load_reconcile
from rlmm_daemon.core.disposal.findings import Finding
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.observability.escape import escape

COLUMNS: Final = (
    "severity", "kind", "topic", "topic_id", "partition", "segment_id", "key", "bytes", "age_ms",
    "condemned", "facts", "action",
)  # fmt: skip
_SHOWN: Final = ("kind", "topic", "partition", "segment_id", "key", "bytes", "facts")
_LIMIT: Final = 100


@click.command("findings")
@click.option("--run", "run_name", default="latest", show_default=True, help="A run's directory.")
@click.option("--kind", type=click.Choice([each.value for each in Finding]), help="Only this kind.")
@click.option("--topic", help="Only this topic, by its name or its id.")
@click.option("--csv", "as_csv", is_flag=True, help="All of them, as CSV with a header.")
@click.option("--limit", type=click.IntRange(min=1), default=_LIMIT, show_default=True,
              help="Rows of the table.")  # fmt: skip
@config_options
def findings(
    run_name: str,
    kind: str | None,
    topic: str | None,
    *,
    as_csv: bool,
    limit: int,
    file: str,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """List what a run has found: segments and keys.

    Exit code 1 if there is any.

    --json: one object a line, of all that match.
    """
    if as_csv and as_json:
        raise click.UsageError("either --csv or --json is wanted")
    home = Path(load_reconcile(file, overrides).output.directory)
    rows = _rows(home / run_name, kind, topic)
    if as_json:
        number = _json(rows)
    elif as_csv:
        number = _csv(rows)
    else:
        number = _table(rows, limit)
    if number:
        raise click.exceptions.Exit(1)


def _rows(run: Path, kind: str | None, topic: str | None) -> Iterator[dict[str, Any]]:
    """Return the findings of a run that match, a few at a time in memory.

    Raises:
        InvalidArgument: there is no such run, or it has left no findings.
    """
    import pyarrow.dataset as ds

    if not (run / "findings").is_dir():
        raise InvalidArgument(f"there is no {run / 'findings'}: no run has come so far yet")
    wanted: Any = None
    if kind is not None:
        wanted = ds.field("kind") == kind
    if topic is not None:
        named = (ds.field("topic") == topic) | (ds.field("topic_id") == topic)
        wanted = named if wanted is None else wanted & named
    found = ds.dataset(run / "findings", format="parquet", exclude_invalid_files=True)
    return (
        row
        for batch in found.to_batches(columns=list(COLUMNS), filter=wanted)
        for row in batch.to_pylist()
    )


def _json(rows: Iterator[dict[str, Any]]) -> int:
    number = 0
    for row in rows:
        show_json(row)
        number += 1
    return number


def _csv(rows: Iterator[dict[str, Any]]) -> int:
    plain = not sys.stdout.isatty()
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(COLUMNS)
    number = 0
    for row in rows:
        # A key may hold what a terminal obeys.
        out.writerow([row[name] if plain else escape(str(row[name])) for name in COLUMNS])
        number += 1
    return number


def _table(rows: Iterator[dict[str, Any]], limit: int) -> int:
    shown: list[list[object]] = []
    number = 0
    for row in rows:
        number += 1
        if number <= limit:
            shown.append([_text(row[name]) for name in _SHOWN])
    if not number:
        click.echo("no findings")
        return 0
    show_table(_SHOWN, shown, fold=("key", "facts"))
    if number > limit:
        click.echo(f"and {number - limit:,} more: --limit, --csv or --json")
    return number


def _text(value: object) -> object:
    return "-" if value is None else value
