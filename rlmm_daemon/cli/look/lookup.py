"""`rlmm lookup`: which segment holds an offset."""

import click

from rlmm_daemon.cli import completion
from rlmm_daemon.cli.asking import asking_log, one_partition
from rlmm_daemon.cli.group import Exit
from rlmm_daemon.cli.look.segments import show
from rlmm_daemon.cli.options import Target, daemon_options
from rlmm_daemon.cli.output import show_json


@click.command("lookup")
@click.argument("partition", metavar="TOPIC-PARTITION", shell_complete=completion.partitions)
@click.argument("epoch", type=click.IntRange(min=0))
@click.argument("offset", type=click.IntRange(min=0))
@daemon_options
def command(partition: str, epoch: int, offset: int, *, target: Target) -> None:
    """Print the finished segment that holds OFFSET in leader EPOCH.

    Exit code 1 if there is none; then rlmm explain says why. With --json, the segment in the form
    of rlmm decode, or null.
    """
    with asking_log(target) as client:
        found = client.remote_log_segment_metadata(one_partition(client, partition), epoch, offset)
    if found is not None:
        show(found, as_json=target.json)
        return
    if target.json:
        show_json(None)
    else:
        click.echo(f"No segment holds offset {offset} of leader epoch {epoch}.")
        click.echo(f"Why: rlmm explain {partition} --epoch {epoch} --offset {offset}")
    raise click.exceptions.Exit(Exit.TROUBLE)
