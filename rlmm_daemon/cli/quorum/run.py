"""`rlmm quorum run`: one replica, as a process of its own."""

import sys
from typing import Any

import click

from rlmm_daemon.cli.quorum.addresses import ADDRESS, proof_options
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
@proof_options
@click.option(
    "--users",
    "users_file",
    metavar="FILE",
    help="Who may connect with a password: lines of rlmm quorum user.",
)
@click.option(
    "--token-keys",
    "token_keys_file",
    metavar="FILE",
    help="Public keys (JWKS) of who signs tokens with which members may connect.",
)
@click.option("--token-issuer", metavar="URL", help="The tokens' claim iss.")
@click.option("--token-audience", metavar="NAME", help="The tokens' claim aud.")
@click.option(
    "--voter-changer",
    "voter_changers",
    multiple=True,
    metavar="NAME",
    help="An operator that may add and remove voters, by its proven name; repeatable.",
)
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
    proof: dict[str, Any],
    voter_changers: tuple[str, ...],
    log_level: str,
    **belief: str | None,
) -> None:
    """Run one replica of a quorum until SIGTERM or Ctrl-C, which hand over first.

    DIR was made by rlmm quorum format. Each change of its role is a line of the log. Exit code 0
    after an order to stop; 78 if DIR is not formatted, if the certificate is not this replica's, or
    if HOST is beyond loopback and there is neither a certificate nor --insecure; 1 if another
    process has DIR, if its files are damaged or something of them is gone (the message says what to
    do), if the address can't be had, or if the disk failed.
    """
    logging.configure(level=log_level)
    # Imported late: it brings the rooms of the daemon along.
    from rlmm_daemon.wiring.quorum import QuorumProcess
    from rlmm_daemon.wiring.quorum import run as serve
    from rlmm_daemon.wiring.quorum_proof import Belief, Proof

    told = QuorumProcess(
        directory=directory,
        listen=listen,
        servers=servers,
        proof=Proof(**proof),
        belief=Belief(**belief),
        voter_changers=frozenset(voter_changers),
    )
    sys.exit(serve(told))
