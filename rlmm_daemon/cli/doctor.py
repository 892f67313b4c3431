"""`rlmm doctor`: is everything around the daemon as it has to be, and if not, what to do."""

from collections.abc import Sequence
from typing import Final

import click

from rlmm_daemon.cli.group import Exit
from rlmm_daemon.cli.options import config_option, json_option
from rlmm_daemon.cli.output import show_json, show_table
from rlmm_daemon.config import load

#: Of each check.
SECONDS: Final = 10.0


@click.command("doctor")
@config_option
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="As in rlmm run.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Of each check.",
)
@json_option
def command(file: str, overrides: tuple[str, ...], timeout: float, *, as_json: bool) -> None:
    """Check event log, broker and storage as configured; beside a daemon or without one.

    The event log has all that the daemon read of it, the log directories are this broker's, the
    storage answers and has its marker, and nobody else may read or change what is the daemon's.
    On the machine: versions of daemon and plugin, the unit, descriptors, free disk, owners, the
    storage's clock. Nothing is written or created. With Kafka: connection, identity, rights, the
    topic's settings, on how many disks an event is, every leader, reading, clocks, and, where they
    are asked for, discovery and observation.

    Exit code 1 if a check failed; a warning is not a failure.

    --json: an array of {check, verdict, found, advice}; verdict is ok, warning, failed or skipped.
    """
    if report(file, overrides, seconds=timeout, as_json=as_json):
        raise click.exceptions.Exit(Exit.TROUBLE)


def report(
    file: str, overrides: Sequence[str] = (), *, seconds: float = SECONDS, as_json: bool = False
) -> bool:
    """Print every check's finding; returns whether one failed."""
    config = load(file, overrides)
    # Imported late: it brings the rooms of the daemon along.
    from rlmm_daemon.offline import checkup

    findings = [
        *checkup.examine(config, seconds=seconds),
        *checkup.access(config, file),
        *checkup.machine(config, file, seconds=seconds),
    ]
    if as_json:
        show_json(findings)
    else:
        columns = ("check", "verdict", "found")
        show_table(
            columns, [(each.check, each.verdict, each.found) for each in findings], fold=columns
        )
        for each in findings:
            if each.advice:
                click.echo(f"{each.check}: {each.advice}")
    return any(each.verdict == "failed" for each in findings)
