"""`rlmm quorum describe`: leader, voters and observers, and how far each is."""

from typing import Any

import click

from rlmm_daemon.cli.group import Exit
from rlmm_daemon.cli.options import json_option
from rlmm_daemon.cli.output import show_facts, show_json, show_table
from rlmm_daemon.cli.quorum.addresses import Quorum, quorum_options
from rlmm_daemon.core import phrases


@click.command("describe", short_help="Show leader, voters and observers, and their lag.")
@quorum_options
@json_option
def describe(*, quorum: Quorum, as_json: bool) -> None:
    """Show a quorum as its leader sees it.

    Exit code 1 if a voter has not fetched for 10 s, or nothing is committed yet in this epoch; 3 if
    no leader answers. A replica's end is what it has on its disk.

    \b
    --json: {cluster_id, leader, epoch, forced, high_watermark, majority, tolerates, voters[{id,
    directory_id, leads, end, behind, fetched_ms_ago, caught_up_ms_ago, listeners[]}],
    observers[the same], trouble[]}.
    """  # noqa: D301 - click's own mark
    # Imported late: it brings the rooms of the daemon along.
    from rlmm_daemon.cli.quorum import seen
    from rlmm_daemon.cli.quorum.talking import described

    cluster_id, found = described(quorum)
    told = seen.told(cluster_id, found)
    if as_json:
        show_json(told)
    else:
        _show(told, seen.named(seen.voters_of(found)))
    if told["trouble"]:
        raise click.exceptions.Exit(Exit.TROUBLE)


def _show(told: dict[str, Any], voters: str) -> None:
    committed = told["high_watermark"]
    show_facts(
        {
            "cluster": told["cluster_id"],
            "leader": str(told["leader"]),
            "epoch": told["epoch"],
            "committed": "nothing yet" if committed is None else f"up to offset {committed:,}",
            "voters": voters,
            **({"forced": _forced(told["forced"])} if told["forced"] else {}),
            **({"trouble": "; ".join(told["trouble"])} if told["trouble"] else {}),
        }
    )
    click.echo()
    columns = ("replica", "counts", "end", "behind", "last fetch", "caught up", "listens")
    rows = [_row(each, "voter") for each in told["voters"]]
    rows += [_row(each, "observer") for each in told["observers"]]
    show_table((*columns, "directory id"), rows)


def _forced(times: int) -> str:
    often = "once" if times == 1 else f"{times} times"
    return f"the voters were forced {often}: what an older set had acknowledged may be lost"


def _row(each: dict[str, Any], kind: str) -> tuple[object, ...]:
    return (
        str(each["id"]),
        "leader" if each["leads"] and kind == "voter" else kind,
        each["end"],
        each["behind"],
        "-" if each["leads"] else _ago(each["fetched_ms_ago"]),
        "-" if each["leads"] else _ago(each["caught_up_ms_ago"]),
        ", ".join(each["listeners"]) or None,
        each["directory_id"],
    )


def _ago(ms: int | None) -> str:
    if ms is None:
        return "never"
    return f"{ms} ms ago" if ms < 1000 else f"{phrases.duration(ms / 1000)} ago"  # noqa: PLR2004 - a second
