"""`rlmm delete`: a segment's objects and its metadata, the whole job."""

import click

from rlmm_daemon.cli import completion
from rlmm_daemon.cli.asking import asking_log, one_partition, one_segment
from rlmm_daemon.cli.options import KAFKA_UUID, Target, daemon_options
from rlmm_daemon.cli.output import show_json
from rlmm_daemon.core import phrases
from rlmm_daemon.domain.ids import uuid_text


@click.command("delete")
@click.argument("partition", metavar="TOPIC-PARTITION", shell_complete=completion.partitions)
@click.argument(
    "segment_id", metavar="SEGMENT_ID", type=KAFKA_UUID, shell_complete=completion.segment_ids
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@daemon_options
def command(partition: str, segment_id: str, *, yes: bool, target: Target) -> None:
    """Delete a segment: mark it in the log, remove its objects, remove it from the log.

    Nothing brings it back. The ids are those of rlmm segments.

    --json: {deleted: segment id, partition, bytes}.
    """
    with asking_log(target) as client:
        tp = one_partition(client, partition)
        segment = one_segment(client, tp, segment_id)
        size = phrases.size(segment.segment_size_bytes)
        if not yes:
            span = f"offsets {segment.start_offset} to {segment.end_offset}"
            click.confirm(f"Delete {span} of {tp}, {size}, for good?", abort=True, err=True)
        client.delete_segment(tp, segment.segment_id)
    if target.json:
        done = {"deleted": uuid_text(segment.segment_id), "partition": str(tp)}
        show_json({**done, "bytes": segment.segment_size_bytes})
    else:
        click.echo(f"deleted segment {uuid_text(segment.segment_id)}, {size}")
