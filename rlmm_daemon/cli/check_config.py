"""`rlmm check-config`: every mistake at once, or what would be in force."""

import click
import msgspec

from rlmm_daemon.cli.options import json_option
from rlmm_daemon.cli.output import show_json
from rlmm_daemon.config import effective_toml, load


@click.command("check-config")
@click.argument("file")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="As in rlmm run.")
@json_option
def command(file: str, overrides: tuple[str, ...], *, as_json: bool) -> None:
    """Check FILE and print the configuration in force, defaults included, secrets hidden.

    Exit code 78 if it can't be used; each mistake is named with its key.
    """
    config = load(file, overrides)
    if as_json:
        show_json(msgspec.to_builtins(config))
    else:
        click.echo(effective_toml(config), nl=False)
