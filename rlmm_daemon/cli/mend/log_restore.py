"""`rlmm log restore`: finished segments that snapshots know and the log lost, appended again."""

from contextlib import nullcontext

import click

from rlmm_daemon.cli.audit import order
from rlmm_daemon.cli.options import json_option
from rlmm_daemon.cli.output import show_json, show_table
from rlmm_daemon.config import load
from rlmm_daemon.core import phrases


@click.command("restore", short_help="Give a log the finished segments back that snapshots know.")
@click.option("--config", "file", required=True, metavar="FILE", help="The daemon's TOML file.")
@click.option(
    "--from-snapshots",
    "directories",
    required=True,
    multiple=True,
    metavar="DIR",
    help="A daemon's snapshots directory; repeat it for those of other brokers' daemons.",
)
@click.option("--to", "target", default="kafka", show_default=True, metavar="kafka|DIR")
@click.option("--accept-damaged", is_flag=True, help="Take older snapshots for unreadable ones.")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Restore a log that may lack what no snapshot had read.",
)
@click.option("--execute", is_flag=True, help="Append; without it nothing is written.")
@json_option
def restore(
    file: str,
    directories: tuple[str, ...],
    target: str,
    *,
    accept_damaged: bool,
    accept_loss: bool,
    execute: bool,
    as_json: bool,
) -> None:
    """Give a log back the finished segments that snapshots know and it does not.

    A dry run unless --execute. Of each such segment COPY_SEGMENT_STARTED and COPY_SEGMENT_FINISHED
    are appended, as they were; one whose COPY_SEGMENT_FINISHED is in the log is left alone, even
    if it was deleted since, and so is one of which the log holds a delete. For each metadata
    partition the snapshot that read on furthest counts; one that can't be read has to be accepted,
    and so has a loss of events that none had read: they may have deleted what would come back.
    Where storage is configured a segment comes back only if all its objects are there; without, a
    snapshot may be older than a deletion that the log lost too. A log that is gone is made anew,
    and if it is what [event_log] names, the state directory of a stopped daemon and the bucket's
    marker name it. The daemon whose own log it is has to be stopped. Asking twice appends nothing
    more.

    --json: an array of {metadata_partition, known, missing, deleted, objects_gone, appended}. Exit
    code 0 either way.
    """
    config = load(file)
    # Imported late: it brings the rooms of the daemon along.
    from rlmm_daemon.offline.log_restoring import known_to, run

    known = known_to(directories, accept_damaged=accept_damaged)
    for damaged in known.damaged:
        click.echo(f"taking an older snapshot for {damaged}, which can't be read", err=True)
    with order(from_snapshots=directories, to=target) if execute else nullcontext():
        rows = run(config, known, target, execute=execute, accept_loss=accept_loss)
    if as_json:
        show_json(rows)
        return
    columns = ("partition", "in snapshots", "deleted", "objects gone", "missing", "appended")
    show_table(
        columns,
        [
            (
                row.metadata_partition,
                row.known,
                row.deleted,
                row.objects_gone,
                row.missing,
                row.appended,
            )
            for row in rows
            if row.missing or row.deleted or row.objects_gone
        ],
    )
    missing = phrases.number(sum(row.missing for row in rows), "segment")
    if execute:
        click.echo(f"{missing} restored. Next: start the daemon; if it runs, rlmm partition")
        click.echo("      retry N; for a log that lost its head accept-loss N, and for a topic")
        click.echo("      that was made anew accept-loss --all")
    else:
        click.echo(f"{missing} missing; nothing was written. Next: the same with --execute")
