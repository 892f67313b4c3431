"""Options that every command of `rlmm reconcile` takes."""

from collections.abc import Callable
from typing import Any, Final

import click

from rlmm_daemon.cli.options import json_option

CONFIG_DEFAULT: Final = "/etc/rlmm/reconcile.toml"


def config_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --config, --set and --json."""
    for option in (
        click.option(
            "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Of this file's keys."
        ),
        click.option("--config", "file", default=CONFIG_DEFAULT, show_default=True, metavar="FILE"),
        json_option,
    ):
        function = option(function)
    return function


execute_option = click.option(
    "--execute", is_flag=True, help="Do it; without this it is only said what would be done."
)
reason_option = click.option("--reason", default="", help="Why; kept beside who asked.")
