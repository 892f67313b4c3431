"""`rlmm quorum run`: one replica, as a process of its own."""

import sys

import click

from rlmm_daemon.cli.quorum.addresses import ADDRESS, insecure_option
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.observability import logging


@click.command("run", short_help="Run one replica in the foreground.")
@click.argument("directory", metavar="DIR")
@click.option(
    "--listen",
    type=ADDRESS,
    required=True,
    metavar="HOST:PORT",
    help="Where it listens, and what the others are told.",
)
@click.option(
    "--server",
    "servers",
    type=ADDRESS,
    multiple=True,
    metavar="HOST:PORT",
    help="Another replica, to be asked who leads; repeatable.",
)
@insecure_option
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    metavar="LEVEL",
    help="debug, info, warning or error: from which level on lines are written.",
)
def run(
    directory: str,
    *,
    listen: Endpoint,
    servers: tuple[Endpoint, ...],
    insecure: bool,
    log_level: str,
) -> None:
    """Run one replica of a quorum until SIGTERM or Ctrl-C, which hand over first.

    DIR was made by rlmm quorum format. Each change of its role is a line of the log. Exit code 0
    after an order to stop; 78 if DIR is not formatted or in use, or HOST is beyond loopback
    without --insecure; 1 if its files are damaged or something of them is gone (the message says
    what to do), if the address can't be had, or if the disk failed.
    """
    logging.configure(level=log_level)
    # Imported late: it brings the rooms of the daemon along.
    from rlmm_daemon.wiring.quorum import QuorumProcess
    from rlmm_daemon.wiring.quorum import run as serve

    sys.exit(
        serve(QuorumProcess(directory=directory, listen=listen, servers=servers, insecure=insecure))
    )
