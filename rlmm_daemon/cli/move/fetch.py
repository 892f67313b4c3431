"""`rlmm fetch`: bytes of a stored segment, or one of its indexes."""

import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

import click

from rlmm_daemon.cli import completion
from rlmm_daemon.cli.asking import asking_log, one_partition, one_segment
from rlmm_daemon.cli.options import KAFKA_UUID, Target, daemon_options, json_flag
from rlmm_daemon.client import BulkReader
from rlmm_daemon.core import phrases

INDEXES: Final = ("OFFSET", "TIMESTAMP", "TRANSACTION", "PRODUCER_SNAPSHOT", "LEADER_EPOCH")
_RANGE: Final = re.compile(r"(\d+):(\d*)")
_CHUNK_BYTES: Final = 1024 * 1024


def _range(_ctx: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, int | None]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise click.BadParameter("FIRST:LAST in bytes, both included, or FIRST: to the end")
    first, last = int(match[1]), int(match[2]) if match[2] else None
    if last is not None and last < first:
        raise click.BadParameter(f"{last} lies before {first}")
    return first, last


@click.command("fetch")
@click.argument("partition", metavar="TOPIC-PARTITION", shell_complete=completion.partitions)
@click.argument(
    "segment_id", metavar="SEGMENT_ID", type=KAFKA_UUID, shell_complete=completion.segment_ids
)
@click.option(
    "--range",
    "span",
    metavar="FIRST:LAST",
    default="0:",
    callback=_range,
    help="Bytes of the log to fetch, both ends included; all by default.",
)
@click.option("--index", type=click.Choice(INDEXES, case_sensitive=False), help="An index instead.")
@click.option(
    "-o", "--output", required=True, metavar="FILE", help="Where to; - is standard output."
)
@partial(daemon_options, form=json_flag)
def command(
    partition: str,
    segment_id: str,
    *,
    span: tuple[int, int | None],
    index: str | None,
    output: str,
    target: Target,
) -> None:
    """Fetch a segment's log, a range of it, or one of its indexes.

    FILE appears only when all of it has arrived; a device or pipe is written to.
    The ids are those of rlmm segments.
    """
    if output == "-" and sys.stdout.isatty():
        raise click.UsageError("a segment is binary, and this is a terminal: -o FILE, or a pipe")
    with asking_log(target) as client:
        segment = one_segment(client, one_partition(client, partition), segment_id)
        if index is not None:
            reader = client.fetch_index(segment, index.upper())
        else:
            reader = client.fetch_log_segment(segment, *span)
        with reader:
            if output == "-":
                _pour(reader, sys.stdout.buffer)
                return
            size = _save(reader, Path(output))
    click.echo(f"{phrases.size(size)} in {output}", err=True)


def _save(reader: BulkReader, path: Path) -> int:
    """Write to a temporary name beside the file, which replaces it when whole.

    A device or a pipe is written to: in its place a file would be everybody's /dev/null.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as sink:
                return _pour(reader, sink)
        return _save_whole(reader, path.resolve())  # a link stays one
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from error


def _save_whole(reader: BulkReader, path: Path) -> int:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("xb") as file:
            size = _pour(reader, file)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return size


def _pour(reader: BulkReader, sink: BinaryIO) -> int:
    size = 0
    while chunk := reader.read(_CHUNK_BYTES):
        sink.write(chunk)
        size += len(chunk)
    sink.flush()
    return size
