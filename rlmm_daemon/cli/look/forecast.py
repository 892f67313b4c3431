"""`rlmm forecast`: what topics hold, and their next thirty days in bytes, requests and money."""

from typing import Any

import click

from rlmm_daemon.cli.asking import asking
from rlmm_daemon.cli.options import Target, daemon_options
from rlmm_daemon.cli.output import show_empty, show_json, show_table
from rlmm_daemon.core import phrases
from rlmm_daemon.observability.escape import escape

_COLUMNS = ("topic", "now", "in a day", "held", "at the end", "writes", "reads")


@click.command("forecast")
@click.argument("topic", metavar="[TOPIC]", required=False)
@daemon_options
def command(topic: str | None, *, target: Target) -> None:
    """Say what topics hold, and what the next thirty days bring by a straight line.

    TOPIC is a name or an id; without one, the 200 largest. In a day: tiered, on average of the last
    28 whole days since a partition's first segment. A partition that still has offset 0 grows by
    that; another one loses as much as it gains. Held is the mean over the thirty days. Writes and
    reads are requests like those of this daemon since its start, which other daemons do not count
    in. Costs stand there if [prices] in the configuration names a price.

    Every segment is looked at, in turns with other work.

    \b
    --json: as_of_ms, rule, currency, priced, count, topics[{topic, topic_id, bytes, segments, days,
    tiered_bytes, tiered_segments, held_bytes, end_bytes, write_requests, read_requests, cost{held,
    writes, reads, total}}]; null is what is not known.
    """  # noqa: D301 - click's own mark
    with asking(target) as client:
        answer = client.forecast(topic)
    if target.json:
        show_json(answer)
        return
    rows, priced = answer["topics"], answer["priced"]
    show_table((*_COLUMNS, *((answer["currency"],) if priced else ())), [
        _row(row, priced=priced) for row in rows
    ], fold=("topic",))  # fmt: skip
    show_empty(answer["count"] - len(rows), "smaller")
    if rows and all(row["tiered_bytes"] is None for row in rows):
        click.echo("nothing has been tiered for a whole day yet: nothing is forecast")
    if topic is not None and not rows:
        click.echo(f"no event of the log names {escape(topic)}")


def _row(row: dict[str, Any], *, priced: bool) -> tuple[object, ...]:
    tiered, total = row["tiered_bytes"], row["cost"]["total"]
    known = tiered is not None
    return (
        escape(row["topic"]),
        phrases.size(row["bytes"]),
        phrases.size(round(tiered)) if known else None,
        phrases.size(round(row["held_bytes"])) if known else None,
        phrases.size(round(row["end_bytes"])) if known else None,
        _count(row["write_requests"]),
        _count(row["read_requests"]),
        *((None if total is None else f"{total:,.2f}",) if priced else ()),
    )


def _count(requests: float | None) -> str | None:
    return None if requests is None else f"{round(requests):,}"
