"""`rlmm quorum add` and `remove`: one voter more, or one less."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from rlmm_daemon.cli.audit import order
from rlmm_daemon.cli.options import json_option
from rlmm_daemon.cli.output import show_facts, show_json
from rlmm_daemon.cli.quorum.addresses import ADDRESS, UUID, Quorum, quorum_options
from rlmm_daemon.core.raft.voters import Endpoint

if TYPE_CHECKING:
    from rlmm_daemon.cli.quorum.changing import Change


def _voter_options(whose: str) -> Callable[..., Any]:
    """Add what names a replica, whom to ask, and `--execute`."""

    def options(command: Callable[..., Any]) -> Callable[..., Any]:
        for each in (
            json_option,
            click.option(
                "--execute", is_flag=True, help="Do it; without this, only say what would be."
            ),
            quorum_options,
            click.option(
                "--directory-id",
                type=UUID,
                metavar="ID",
                help=f"The {whose}'s directory; by default the one that is known.",
            ),
            click.option(
                "--node-id",
                type=click.IntRange(min=0),
                required=True,
                metavar="N",
                help=f"The {whose}'s id.",
            ),
        ):
            command = each(command)
        return command

    return options


@click.command("add", short_help="Have an observer that has caught up count as a voter.")
@click.option("--listen", type=ADDRESS, required=True, metavar="HOST:PORT", help="Its address.")
@_voter_options("observer")
def add(
    *,
    node_id: int,
    directory_id: bytes | None,
    listen: Endpoint,
    quorum: Quorum,
    execute: bool,
    as_json: bool,
) -> None:
    """Have an observer that has caught up count as a voter.

    It was formatted with --join and runs. One change at a time: the next one is refused until this
    one is committed. Refused where too few of the new voters are there to commit anything.

    --json: {before{voters[{id, directory_id}], majority, tolerates}, after{the same}, cautions[],
    executed}.
    """
    # Imported late: it brings the rooms of the daemon along.
    from rlmm_daemon.cli.quorum.changing import added

    with order(node_id=node_id) if execute else nullcontext():
        change = added(quorum, node_id, directory_id, listen)
        _change(quorum, change, execute=execute, as_json=as_json)


@click.command("remove", short_help="Have a voter count no more.")
@_voter_options("voter")
def remove(
    *,
    node_id: int,
    directory_id: bytes | None,
    quorum: Quorum,
    execute: bool,
    as_json: bool,
) -> None:
    """Have a voter count no more; it goes on as an observer until it is stopped.

    A leader that is removed hands over once that is committed. The last voter can't go. Refused
    where too few of those that are left are there to commit anything.

    --json: {before{voters[{id, directory_id}], majority, tolerates}, after{the same}, cautions[],
    executed}.
    """
    # Imported late: it brings the rooms of the daemon along.
    from rlmm_daemon.cli.quorum.changing import removed

    with order(node_id=node_id) if execute else nullcontext():
        change = removed(quorum, node_id, directory_id)
        _change(quorum, change, execute=execute, as_json=as_json)


def _change(quorum: Quorum, change: "Change", *, execute: bool, as_json: bool) -> None:
    from rlmm_daemon.cli.quorum import changing, seen

    if not as_json:
        facts = {"voters now": seen.named(change.before), "voters then": seen.named(change.after)}
        show_facts(facts | ({"mind": "; ".join(change.cautions)} if change.cautions else {}))
    if execute:
        changing.carry_out(quorum, change)
    if as_json:
        show_json(change.told() | {"executed": execute})
    else:
        click.echo(
            "done: committed by the new voters"
            if execute
            else "nothing was done; --execute does it"
        )
