"""`rlmm segments`: what is stored of a partition."""

from datetime import UTC, datetime

import click
import msgspec

from rlmm_daemon.cli import completion
from rlmm_daemon.cli.asking import asking_log
from rlmm_daemon.cli.options import Target, daemon_options
from rlmm_daemon.cli.output import show_facts, show_json, show_table
from rlmm_daemon.codec import json
from rlmm_daemon.core import phrases
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState

_COLUMNS = ("offsets", "epochs", "state", "size", "segment id", "changed")
#: A table on a terminal has no room for Kafka's names.
_STATES = {
    SegmentState.COPY_SEGMENT_STARTED: "copying",
    SegmentState.COPY_SEGMENT_FINISHED: "finished",
    SegmentState.DELETE_SEGMENT_STARTED: "deleting",
    SegmentState.DELETE_SEGMENT_FINISHED: "deleted",
}
assert _STATES.keys() == set(SegmentState), "every state has its word"


@click.command("segments")
@click.argument("partition", metavar="TOPIC-PARTITION", shell_complete=completion.partitions)
@click.option("--epoch", type=click.IntRange(min=0), help="Only this epoch's, as Kafka lists.")
@daemon_options
def command(partition: str, *, epoch: int | None, target: Target) -> None:
    """List the segments of a partition: those that can be read, are being copied or deleted.

    TOPIC-PARTITION may also be a topic id, which lists every partition of the topic. With --json,
    one line a segment, in the form of rlmm decode.
    """
    with asking_log(target) as client:
        found = list(client.segments(partition, epoch))
    if target.json:
        for segment in found:
            show_json(msgspec.Raw(json.dumps(segment)))
        return
    show_table(_COLUMNS, [row(segment) for segment in found], fold=("epochs",))
    total = sum(segment.segment_size_bytes for segment in found)
    click.echo(f"{phrases.number(len(found), 'segment')}, {phrases.size(total)}")


def row(segment: SegmentMetadata) -> tuple[object, ...]:
    """Return a segment as a line of a table."""
    age = datetime.now(UTC).timestamp() - segment.event_timestamp_ms / 1000
    return (
        f"{segment.start_offset}..{segment.end_offset}",
        _epochs(segment),
        _STATES[segment.state],
        phrases.size(segment.segment_size_bytes),
        uuid_text(segment.segment_id),
        f"{phrases.duration(age)} ago",
    )


def _epochs(segment: SegmentMetadata) -> str:
    return " ".join(f"{e}@{start}" for e, start in sorted(segment.segment_leader_epochs.items()))


def facts(segment: SegmentMetadata) -> dict[str, object]:
    """Return a segment as names and values."""
    return {
        "partition": str(segment.partition),
        "segment id": uuid_text(segment.segment_id),
        "state": segment.state.name,
        "start offset": str(segment.start_offset),
        "end offset": str(segment.end_offset),
        "leader epochs": _epochs(segment),
        "size": phrases.size(segment.segment_size_bytes),
        "broker": segment.broker_id,
        "last event": phrases.moment(segment.event_timestamp_ms),
    }


def show(segment: SegmentMetadata, *, as_json: bool) -> None:
    """Print one segment."""
    if as_json:
        show_json(msgspec.Raw(json.dumps(segment)))
    else:
        show_facts(facts(segment))
