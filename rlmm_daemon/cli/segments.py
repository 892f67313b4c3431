"""`rlmm segments`: what is stored of a partition."""

import click

from rlmm_daemon.cli.asking import asking
from rlmm_daemon.cli.options import Target, daemon_options
from rlmm_daemon.cli.output import show_facts, show_table
from rlmm_daemon.codec import json
from rlmm_daemon.core import phrases
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata

_COLUMNS = ("start", "end", "epochs", "state", "size", "segment id", "broker", "last event")


@click.command("segments")
@click.argument("partition", metavar="TOPIC-PARTITION")
@click.option("--epoch", type=click.IntRange(min=0), help="Only this epoch's, as Kafka lists.")
@daemon_options
def command(partition: str, *, epoch: int | None, target: Target) -> None:
    """List the segments of a partition: those that can be read, are being copied or deleted.

    TOPIC-PARTITION may also be a topic id, which lists every partition of the topic. With --json,
    one line a segment, in the form of rlmm decode.
    """
    with asking(target) as client:
        found = list(client.segments(partition, epoch))
    if target.json:
        for segment in found:
            click.echo(json.dumps(segment))
        return
    show_table(_COLUMNS, [row(segment) for segment in found])
    total = sum(segment.segment_size_bytes for segment in found)
    click.echo(f"{phrases.number(len(found), 'segment')}, {phrases.size(total)}")


def row(segment: SegmentMetadata) -> tuple[object, ...]:
    """Return a segment as a line of a table."""
    epochs = sorted(segment.segment_leader_epochs.items())
    return (
        segment.start_offset,
        segment.end_offset,
        " ".join(f"{epoch}@{start}" for epoch, start in epochs),
        segment.state.name,
        phrases.size(segment.segment_size_bytes),
        uuid_text(segment.segment_id),
        segment.broker_id,
        phrases.moment(segment.event_timestamp_ms),
    )


def facts(segment: SegmentMetadata) -> dict[str, object]:
    """Return a segment as names and values."""
    names = ("start offset", "end offset", "leader epochs", "state", "size", "segment id")
    return {
        "partition": str(segment.partition),
        **dict(zip(names, row(segment), strict=False)),
        "broker": segment.broker_id,
        "last event": phrases.moment(segment.event_timestamp_ms),
    }


def show(segment: SegmentMetadata, *, as_json: bool) -> None:
    """Print one segment."""
    if as_json:
        click.echo(json.dumps(segment))
    else:
        show_facts(facts(segment))
