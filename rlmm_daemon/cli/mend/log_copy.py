"""`rlmm log copy`: an event log's events into another log, in order, verified."""

from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from rlmm_daemon.cli.audit import order
from rlmm_daemon.cli.options import json_option
from rlmm_daemon.cli.output import show_json, show_table
from rlmm_daemon.config import load
from rlmm_daemon.core import phrases

if TYPE_CHECKING:
    from rlmm_daemon.offline.log_copying import CopiedPartition


@click.command("copy", short_help="Copy every event from one log to another.")
@click.option("--config", "file", required=True, metavar="FILE", help="The daemon's TOML file.")
@click.option("--from", "source", required=True, metavar="kafka|quorum|DIR", help="Where to read.")
@click.option("--to", "target", required=True, metavar="kafka|quorum|DIR", help="Where to append.")
@click.option(
    "--from-config",
    "source_file",
    metavar="FILE",
    help="The TOML file whose [event_log] is the source, if --config has another one.",
)
@click.option("--accept-loss", is_flag=True, help="Copy what is left of a log that lost events.")
@click.option("--execute", is_flag=True, help="Append; without it nothing is written.")
@json_option
def copy(
    file: str,
    source: str,
    target: str,
    *,
    source_file: str | None,
    accept_loss: bool,
    execute: bool,
    as_json: bool,
) -> None:
    """Copy every event from one log to another; `kafka` and `quorum` are the configuration's.

    A dry run unless --execute. The daemon must be stopped, and so must every other one that uses
    the source, by its presence file in the bucket; nor may the source grow meanwhile. In a quorum
    this command stands in for the daemon, in a dry run as well: it runs its replica, and votes. A
    target that is absent is made with as many partitions, but a quorum is formatted first. A copy
    that was cut short goes on where it ended, and one that is done changes nothing; a target that
    holds other events is refused before anything is written. At the end everything is read back
    and compared, event by event and as look-ups see it; then, if the target is what [event_log]
    names, the state directory and the bucket's marker name it too. Tombstones, garbage and
    rejected events are left behind. A source whose head is gone, that lacks records in between, or
    that lost what the daemon had read of it, is refused until that is accepted; then a hold keeps
    all objects.

    --json: an array of {metadata_partition, events, missing, appended, passed_over, lost_offsets,
    source_end, target_end}.
    """
    config = load(file)
    source_config = None if source_file is None else load(source_file)
    # Imported late: it brings the rooms of the daemon along.
    from rlmm_daemon.offline.log_adoption import is_configured
    from rlmm_daemon.offline.log_contents import NAMED
    from rlmm_daemon.offline.log_copying import run

    if source == target or not {source, target} & {*NAMED}:
        raise click.UsageError("one of --from and --to is kafka or quorum, the other another log")
    said = {"source": source, "to": target, "accept_loss": accept_loss}
    with order(**said) if execute else nullcontext():
        rows = run(
            config,
            source,
            target,
            accept_loss=accept_loss,
            source_config=source_config,
            execute=execute,
        )
    if as_json:
        show_json(rows)
        return
    _show_rows(rows, execute=execute)
    events = phrases.number(sum(row.events for row in rows), "event")
    lost = sum(row.lost_offsets for row in rows)
    adopts = is_configured(config, target)
    if not execute:
        missing = phrases.number(sum(row.missing for row in rows), "event")
        then = "then the state directory and the bucket's marker name it" if adopts else ""
        click.echo(
            f"{events} in {source}, {missing} to be copied to {target}"
            + (f"; {then}" if then else "")
        )
        click.echo("nothing was done; --execute does it")
        return
    if lost:
        click.echo(f"{events} compared and equal; {phrases.number(lost, 'offset')} of the source")
        click.echo("were lost before, as accepted: whatever stood there is not in the copy")
    else:
        click.echo(f"{events} compared, byte for byte equal")
    if adopts:
        click.echo("Next: start the daemon; its state directory and the marker name this log now")
    else:
        click.echo("Next: let [event_log] name the new log, start the daemon,")
        why = "what the source had lost stays lost" if lost else "nothing is lost: another log"
        click.echo(f"      then: rlmm partition accept-loss --all ({why})")


def _show_rows(rows: "list[CopiedPartition]", *, execute: bool) -> None:
    columns = (
        "partition",
        "events",
        "appended" if execute else "missing",
        "left behind",
        "lost offsets",
        "source ends",
        "target ends",
    )
    show_table(
        columns,
        [
            (
                row.metadata_partition,
                row.events,
                row.appended if execute else row.missing,
                row.passed_over,
                row.lost_offsets or None,
                row.source_end,
                row.target_end,
            )
            for row in rows
            if row.events or row.passed_over or row.lost_offsets
        ],
    )
