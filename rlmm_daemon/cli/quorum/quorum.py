"""`rlmm quorum`: format, run, show and change a quorum of daemons."""

import click

from rlmm_daemon.cli.quorum.describe import describe
from rlmm_daemon.cli.quorum.force import force_voters
from rlmm_daemon.cli.quorum.format import format_command
from rlmm_daemon.cli.quorum.run import run
from rlmm_daemon.cli.quorum.user import user
from rlmm_daemon.cli.quorum.voters import add, remove


@click.group("quorum")
def command() -> None:
    """Format, run, show and change a quorum of daemons: three or five replicas of one log."""


command.add_command(format_command)
command.add_command(run)
command.add_command(describe)
command.add_command(add)
command.add_command(remove)
command.add_command(force_voters)
command.add_command(user)
