"""`rlmm quorum user`: a line for the file of those who connect with a password."""

import click

from rlmm_daemon.adapters.quorum.authentication import scram
from rlmm_daemon.adapters.quorum.authentication.principals import NoPrincipal, read_member


@click.command("user", short_help="Print the line of one who connects with a password.")
@click.argument("member", metavar="MEMBER")
@click.password_option(help="Asked for where it is not given; others see what is given here.")
def user(member: str, password: str) -> None:
    """Print the line for MEMBER of the file that rlmm quorum run --users names.

    MEMBER is a node's id, or operator/NAME. The line lets a server check the password, and nobody
    prove it; replicas read the file again when it changed. Changes nothing.
    """
    try:
        known = read_member(member)
    except NoPrincipal as error:
        raise click.BadParameter(str(error), param_hint="MEMBER") from None
    click.echo(f"{known} {scram.encode(scram.verifier(password))}")
