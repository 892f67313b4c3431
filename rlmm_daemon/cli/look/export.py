"""`rlmm export`: every live segment, for other programs."""

from functools import partial
from pathlib import Path
from types import ModuleType

import click

from rlmm_daemon.cli import completion
from rlmm_daemon.cli.asking import asking_log
from rlmm_daemon.cli.options import Target, daemon_options, json_flag
from rlmm_daemon.cli.output import show_json
from rlmm_daemon.codec import json


@click.command("export")
@click.argument(
    "partition", metavar="[TOPIC-PARTITION]", required=False, shell_complete=completion.partitions
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "parquet"]),
    default="jsonl",
    show_default=True,
    help="A line of JSON for each segment, or a Parquet file (needs the extra [spark]).",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The Parquet file.",
)
@partial(daemon_options, form=json_flag)
def command(partition: str | None, *, form: str, output: Path | None, target: Target) -> None:
    """Print every live segment, of one partition or of the whole log, as rlmm decode prints it.

    What cannot be told whole is an error (exit code 1), never a shorter answer.
    """
    if (form == "parquet") != (output is not None):
        raise click.UsageError("--format parquet and --output FILE go together")
    if output is not None:
        if output.exists() and not output.is_file():  # it would be replaced, also by root /dev/null
            raise click.UsageError(f"{output} is no file")
        writer = _parquet()
        with asking_log(target) as client:
            count = writer.write(client.export(partition), output)
        if target.json:
            show_json({"path": str(output), "segments": count})
        else:
            click.echo(f"{count:,} segments in {output}")
        return
    with asking_log(target) as client:
        for segment in client.export(partition):
            click.echo(json.dumps(segment))


def _parquet() -> ModuleType:
    try:
        # Imported late: an extra brings it.
        from rlmm_daemon.offline import export_parquet
    except ImportError as error:
        raise click.ClickException(
            f"{error}; install the extra: pip install 'rlmm-daemon[spark]'"
        ) from error
    return export_parquet
