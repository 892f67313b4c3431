"""`rlmm tail`: the metadata topic's events, each with what its apply came to."""

from typing import Any

import click
import msgspec

from rlmm_daemon.cli.asking import asking_log
from rlmm_daemon.cli.options import Target, daemon_options
from rlmm_daemon.cli.output import show_json
from rlmm_daemon.codec import formatter, json, records
from rlmm_daemon.codec.api import TailEvent
from rlmm_daemon.core import phrases
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.domain.partition_delete import PartitionDelete
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentUpdate
from rlmm_daemon.observability.escape import escape


@click.command("tail")
@click.option("--partition", "number", type=click.IntRange(min=0), help="One metadata partition.")
@click.option("--from", "start", type=click.IntRange(min=0), help="From this offset on.")
@click.option("--follow", "-f", is_flag=True, help="Go on until Ctrl-C.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["rlmm", "kafka"]),
    default="rlmm",
    help="kafka: the lines of Kafka's RemoteLogMetadataFormatter.",
)
@daemon_options
def command(
    *, number: int | None, start: int | None, follow: bool, form: str, target: Target
) -> None:
    """Show the last events of the metadata log, oldest first.

    --json: a line each, {metadata_partition, offset, outcome, record}; record is in the form of
    rlmm decode, null where there is none to read. Outcomes: applied, repeated, rejected: REASON,
    unreadable: REASON, unknown (read long ago).
    """
    if start is not None and number is None:
        raise click.UsageError("--from needs --partition: each has offsets of its own")
    with asking_log(target) as client:
        for event in client.tail(number, start, follow=follow):
            if target.json:
                show_json(_as_json(event))
            elif form == "kafka":
                click.echo(formatter.line(event.metadata_partition, event.offset, event.value))
            else:
                click.echo(_line(event))


def _as_json(event: TailEvent) -> dict[str, Any]:
    record = _decoded(event)
    return {
        "metadata_partition": event.metadata_partition,
        "offset": event.offset,
        "outcome": event.outcome,
        "record": None if record is None else msgspec.Raw(json.dumps(record)),
    }


def _decoded(event: TailEvent) -> records.Record | None:
    if event.value is None:
        return None
    try:
        return records.decode(event.value)
    except RlmmError:
        return None


def _line(event: TailEvent) -> str:
    return escape(
        f"{event.metadata_partition:>4} {event.offset:>10}  {event.outcome:<10}  {_words(event)}"
    ).rstrip()


def _words(event: TailEvent) -> str:
    record = _decoded(event)
    match record:
        case SegmentMetadata():
            span = f"{record.start_offset}..{record.end_offset}"
            size = phrases.size(record.segment_size_bytes)
            what = f"{record.state.name} {uuid_text(record.segment_id)} {span} {size}"
        case SegmentUpdate():
            what = f"{record.state.name} {uuid_text(record.segment_id)}"
        case PartitionDelete():
            what = record.state.name
        case _:
            return "" if event.value is None else event.value[:32].hex()
    at = phrases.moment(record.event_timestamp_ms)
    return f"{at}  broker {record.broker_id}  {record.partition}  {what}"
