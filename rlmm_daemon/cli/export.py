"""`rlmm export`: every live segment, for other programs."""

import click

from rlmm_daemon.cli.asking import asking
from rlmm_daemon.cli.options import Target, daemon_options
from rlmm_daemon.codec import json


@click.command("export")
@click.argument("partition", metavar="[TOPIC-PARTITION]", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl"]),
    default="jsonl",
    show_default=True,
    help="A line of JSON for each segment.",
)
@daemon_options
def command(partition: str | None, *, form: str, target: Target) -> None:
    """Print every live segment, of one partition or of the whole log, as rlmm decode prints it.

    What cannot be told whole is an error (exit code 1), never a shorter answer.
    """
    del form  # one for now
    with asking(target) as client:
        for segment in client.export(partition):
            click.echo(json.dumps(segment))
