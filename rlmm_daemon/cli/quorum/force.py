"""`rlmm quorum force-voters`: a quorum begun anew after its majority is lost for good."""

from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from rlmm_daemon.cli.audit import order
from rlmm_daemon.cli.options import json_option
from rlmm_daemon.cli.output import show_facts, show_json, show_table
from rlmm_daemon.cli.quorum.addresses import ADDRESS
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.domain.ids import uuid_text

if TYPE_CHECKING:
    from rlmm_daemon.offline.quorum.forcing import Forced


@click.command("force-voters", short_help="Go on without a majority that is lost for good.")
@click.argument("directories", metavar="DIR...", nargs=-1, required=True)
@click.option(
    "--listen",
    type=ADDRESS,
    required=True,
    metavar="HOST:PORT",
    help="Where the only voter will listen.",
)
@click.option(
    "--server",
    "servers",
    type=ADDRESS,
    multiple=True,
    metavar="HOST:PORT",
    help="Where another replica of the quorum may run, an observer too; repeatable.",
)
@click.option("--execute", is_flag=True, help="Do it; without this, only say what would be.")
@json_option
def force_voters(
    directories: tuple[str, ...],
    *,
    listen: Endpoint,
    servers: tuple[Endpoint, ...],
    execute: bool,
    as_json: bool,
) -> None:
    """Make the newest log that is left the only voter's, after a majority is lost for good.

    The last resort: what the lost voters had acknowledged without the ones that are left is gone.
    DIR are the directories of all replicas that are left, observers too, stopped; those of other
    hosts as copies, whose originals are never started again. Each is read as a start reads it: a
    torn end of its log is cut. The one with the newest log is taken. Refused while a majority can
    be read, or anybody answers at a voter's address or at a --server. All others, and voters of
    the old set that come back, refuse to serve once they hear of it: format them anew, with --join.

    --json: {cluster_id, topic_id, read[{directory, id, directory_id, epoch, end, counts}], chosen,
    before[], unread[], new_epoch, executed}.
    """
    # Imported late: it brings the rooms of the daemon along.
    from rlmm_daemon.offline.quorum.forcing import force

    with order(directories=directories) if execute else nullcontext():
        found = force(directories, listen, servers=servers, execute=execute)
    if as_json:
        show_json(found.told() | {"executed": execute})
        return
    _show(found)
    chosen = found.plan.chosen
    if execute:
        click.echo("done. Next, on the host of that directory:")
        click.echo(f"  rlmm quorum run {chosen.directory} --listen {listen.host}:{listen.port}")
        click.echo("then format each other replica anew and let it join:")
        click.echo(f"  rlmm quorum format DIR --join --topic-id {uuid_text(found.topic_id)} ...")
    else:
        click.echo("nothing was done; --execute does it")


def _show(found: "Forced") -> None:
    plan = found.plan
    rows = [
        (
            str(each.key.id),
            "voter" if plan.before.holds(each.key) else "observer",
            each.last.epoch,
            each.last.end,
            "taken" if each is plan.chosen else "left behind",
            each.directory,
        )
        for each in sorted(found.left, key=lambda each: each.last, reverse=True)
    ]
    show_table(("replica", "counts", "epoch", "end", "", "directory"), rows, fold=("directory",))
    click.echo()
    show_facts(
        {
            "voters until now": ", ".join(str(key.id) for key in plan.before.keys) or "none",
            "not to be read": ", ".join(str(key.id) for key in plan.unread) or "none",
            "voters then": f"{plan.chosen.key.id} alone, from epoch {plan.epoch} on",
            "may be lost": "whatever was acknowledged behind offset "
            f"{plan.chosen.last.end - 1}; nobody can say whether anything was",
            "may appear": "records at the end of that log whose writers were never answered",
        }
    )
