"""The codec tools: records between bytes and JSON, line by line, and where a partition's events go.

They need no daemon and no configuration. One line in, one line out, in order; blank lines are
passed over, without a line of their own. A line that fails prints
`{"error": name, "message": ...}` in its place and makes the exit code 1 at the end.
"""

import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

import click
import msgspec

from rlmm_daemon.codec import json, records
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.domain.errors import InvalidArgument, Malformed, RlmmError
from rlmm_daemon.domain.ids import TopicId, uuid_bytes

#: A record is at most Kafka's `max.message.bytes` (1 MiB unless raised), twice that in hex.
LINE_BYTES_MAX: Final = 32 * 1024 * 1024
_FAILED: Final = 1

_hex = click.option("--hex", "as_hex", is_flag=True, help="Records are hex (the default).")
_base64 = click.option("--base64", "as_base64", is_flag=True, help="Records are standard base64.")


@click.command("decode")
@_hex
@_base64
def decode(*, as_hex: bool, as_base64: bool) -> None:
    """Print each record on stdin as one line of JSON.

    Reads one metadata record a line. A line that does not decode prints {"error": ...}, and the
    exit code is then 1. Blank lines are passed over.
    """
    parse = _parse_base64 if _is_base64(as_hex=as_hex, as_base64=as_base64) else _parse_hex
    _stream(lambda line: json.dumps(records.decode(parse(line))))


@click.command("encode")
@_hex
@_base64
def encode(*, as_hex: bool, as_base64: bool) -> None:
    """Print the record that each line of JSON on stdin describes, byte for byte Kafka's.

    The inverse of decode. A line that is no record prints {"error": ...}, and the exit code is then
    1. Blank lines are passed over.
    """
    form = b64encode if _is_base64(as_hex=as_hex, as_base64=as_base64) else _hex_text
    _stream(lambda line: form(records.encode(json.loads(line))))


@click.command("partition-of", context_settings={"ignore_unknown_options": True})
@click.option(
    "--partitions",
    "count",
    type=click.IntRange(min=1, max=2**31 - 1),
    required=True,
    help="How many partitions the metadata topic has.",
)
@click.argument("topic_id")
@click.argument("partition", type=click.IntRange(min=0, max=2**31 - 1))
def partition_of(count: int, topic_id: str, partition: int) -> None:
    """Print the metadata partition that holds the events of a partition of TOPIC_ID."""
    try:
        identity = TopicId(uuid_bytes(topic_id))
    except InvalidArgument as error:
        raise click.BadParameter(error.message, param_hint="TOPIC_ID") from error
    click.echo(metadata_partition(identity, partition, count))


def _is_base64(*, as_hex: bool, as_base64: bool) -> bool:
    if as_hex and as_base64:
        raise click.UsageError("--hex and --base64 exclude each other")
    return as_base64


def _stream(convert: Callable[[bytes], bytes]) -> None:
    """Convert stdin to stdout line by line.

    A reader that goes away ends it quietly, with code 1: click sees to that.
    """
    source, target = sys.stdin.buffer, sys.stdout.buffer
    live = target.isatty()
    failed = False
    for line in _lines(source):
        converted, good = _convert(convert, line)
        failed |= not good
        target.write(converted + b"\n")
        if live:
            target.flush()
    target.flush()
    if failed:
        raise click.exceptions.Exit(_FAILED)


def _lines(source: BinaryIO) -> Iterator[bytes | None]:
    """Yield the lines that are not blank; None stands for one that is too long."""
    while line := source.readline(LINE_BYTES_MAX + 1):
        if len(line) > LINE_BYTES_MAX:
            while line and not line.endswith(b"\n"):
                line = source.readline(LINE_BYTES_MAX)
            yield None
        elif stripped := line.strip():
            yield stripped


def _convert(convert: Callable[[bytes], bytes], line: bytes | None) -> tuple[bytes, bool]:
    try:
        if line is None:
            raise InvalidArgument(f"the line is longer than {LINE_BYTES_MAX} bytes")
        return convert(line), True
    except RlmmError as error:
        failure = {"error": error.wire_name(), "message": error.message}
        return msgspec.json.encode(failure), False


def _hex_text(value: bytes) -> bytes:
    return value.hex().encode("ascii")


def _parse_hex(line: bytes) -> bytes:
    try:
        return bytes.fromhex(line.decode("ascii"))
    except ValueError as error:
        raise Malformed("the line is not hex") from error


def _parse_base64(line: bytes) -> bytes:
    try:
        return b64decode(line, validate=True)
    except ValueError as error:
        raise Malformed("the line is not standard base64") from error
