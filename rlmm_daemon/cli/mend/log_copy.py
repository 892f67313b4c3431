"""`rlmm log copy`: an event log's events into another log, in order, verified."""

import click

from rlmm_daemon.cli.audit import order
from rlmm_daemon.cli.options import json_option
from rlmm_daemon.cli.output import show_json, show_table
from rlmm_daemon.config import load
from rlmm_daemon.core import phrases


@click.command("copy", short_help="Copy every event from one log to another.")
@click.option("--config", "file", required=True, metavar="FILE", help="The daemon's TOML file.")
@click.option("--from", "source", required=True, metavar="kafka|DIR", help="Where to read.")
@click.option("--to", "target", required=True, metavar="kafka|DIR", help="Where to append.")
@click.option("--accept-loss", is_flag=True, help="Copy what is left of a log that lost events.")
@json_option
def copy(file: str, source: str, target: str, *, accept_loss: bool, as_json: bool) -> None:
    """Copy every event from one log to another; `kafka` is the configuration's topic.

    The daemon must be stopped. A target that is absent is made with as many partitions. A copy
    that was cut short goes on where it ended, and one that is done changes nothing; a target that
    holds other events is refused before anything is written. At the end everything is read back
    and compared; then, if the target is what [event_log] names, the state directory and the
    bucket's marker name it too. Tombstones, garbage and rejected events are left behind. A source
    whose head is gone, that lacks records in between, or that lost what the daemon had read of it,
    is refused until that is accepted; then a hold keeps all objects.

    --json: an array of {metadata_partition, events, appended, passed_over, lost_offsets}.
    """
    config = load(file)
    # Imported late: it brings the rooms of the daemon along.
    from rlmm_daemon.offline.log_adoption import is_configured
    from rlmm_daemon.offline.log_contents import KAFKA
    from rlmm_daemon.offline.log_copying import run

    if source == target or KAFKA not in (source, target):
        raise click.UsageError("one of --from and --to is kafka, the other a directory")
    with order(source=source, to=target, accept_loss=accept_loss):
        rows = run(config, source, target, accept_loss=accept_loss)
    if as_json:
        show_json(rows)
        return
    columns = ("partition", "events", "appended", "left behind", "lost offsets")
    show_table(
        columns,
        [
            (
                row.metadata_partition,
                row.events,
                row.appended,
                row.passed_over,
                row.lost_offsets or None,
            )
            for row in rows
            if row.events or row.passed_over or row.lost_offsets
        ],
    )
    events = phrases.number(sum(row.events for row in rows), "event")
    lost = sum(row.lost_offsets for row in rows)
    if lost:
        click.echo(f"{events} compared and equal; {phrases.number(lost, 'offset')} of the source")
        click.echo("were lost before, as accepted: whatever stood there is not in the copy")
    else:
        click.echo(f"{events} compared, byte for byte equal")
    if is_configured(config, target):
        click.echo("Next: start the daemon; its state directory and the marker name this log now")
    else:
        click.echo("Next: let [event_log] name the new log, start the daemon,")
        why = "what the source had lost stays lost" if lost else "nothing is lost: another log"
        click.echo(f"      then: rlmm partition accept-loss --all ({why})")
