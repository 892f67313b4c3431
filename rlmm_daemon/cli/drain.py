"""`rlmm drain`: let the daemon finish and end."""

import click

from rlmm_daemon.cli.asking import asking
from rlmm_daemon.cli.options import Target, daemon_options
from rlmm_daemon.cli.output import show_json


@click.command("drain")
@daemon_options
def command(*, target: Target) -> None:
    """Stop the daemon as SIGTERM does: finish or roll back copies, write snapshots, end.

    Returns at once. Under systemd the daemon is started again unless the unit is stopped.
    """
    with asking(target) as client:
        client.drain()
    if target.json:
        show_json({"draining": True})
    else:
        click.echo("draining")
