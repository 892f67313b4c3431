"""Helpers of commands that ask a daemon: a connection, one partition, a quiet Ctrl-C."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Final

import click

from rlmm_daemon.cli.audit import client_name
from rlmm_daemon.cli.options import Target
from rlmm_daemon.client import Client, ClientOptions
from rlmm_daemon.domain.errors import InvalidArgument, NotReady, PartitionFailed, SegmentNotFound
from rlmm_daemon.domain.ids import SegmentId, TopicIdPartition, uuid_bytes
from rlmm_daemon.domain.segment import SegmentMetadata

#: A daemon waits about as long for its event log before it says that it is not open.
DAEMON_WAITS_SECONDS: Final = 10.0
_ASK_AGAIN_SECONDS: Final = 0.1
#: What every command says of its first argument.


@contextmanager
def asking(target: Target) -> Iterator[Client]:
    """Hold a connection to the daemon; Ctrl-C ends it without a traceback."""
    options = ClientOptions(client=client_name(), timeout_seconds=target.timeout_seconds)
    try:
        with Client(target.socket, options) as client:
            yield client
    except (KeyboardInterrupt, BrokenPipeError):
        raise click.exceptions.Exit(130) from None


@contextmanager
def asking_log(target: Target) -> Iterator[Client]:
    """As `asking`, for what needs the event log open: jobs have longer deadlines than ours.

    The daemon itself waits some seconds for its log, and says then what is wrong with it.

    Raises:
        NotReady: the log is not open in time, and why.
    """
    with asking(target) as client:
        if target.timeout_seconds < DAEMON_WAITS_SECONDS:
            until = monotonic() + target.timeout_seconds
            while (trouble := log_trouble(client)) is not None:
                if monotonic() > until:
                    raise NotReady(trouble)
                sleep(_ASK_AGAIN_SECONDS)
        yield client


def log_trouble(client: Client) -> str | None:
    """Return why the event log is not open; None once it is, or failed as every answer tells."""
    log = client.status()["log"]
    if log["open"] or log["failure"]:
        return None
    return f"the event log is not open: {log['trouble']}"


def require_log(client: Client) -> None:
    """Raise what keeps the event log from being open.

    Raises:
        NotReady, PartitionFailed: as they say.
    """
    log = client.status()["log"]
    failure = log["failure"]
    if failure is not None:
        raise PartitionFailed(
            f"the event log failed ({failure['reason']}): {failure['evidence']}; "
            f"run: {failure['command']}"
        )
    if not log["open"]:
        raise NotReady(f"the event log is not open: {log['trouble']}")


def one_partition(client: Client, selector: str) -> TopicIdPartition:
    """Return the one user partition that a selector names.

    Raises:
        InvalidArgument: it names several.
        SegmentNotFound: it names nothing that is known.
    """
    found = client.resolve(selector)
    if len(found) > 1:
        forms = ", ".join(map(str, found[:8]))
        raise InvalidArgument(f"{selector} names {len(found)} partitions; one is wanted: {forms}")
    return found[0]


def segment_id_of(text: str) -> SegmentId:
    """Return a segment id as typed."""
    return SegmentId(uuid_bytes(text))


def one_segment(client: Client, partition: TopicIdPartition, segment_id: str) -> SegmentMetadata:
    """Return a live segment's metadata.

    Raises:
        SegmentNotFound: the partition has none of that id.
    """
    wanted = segment_id_of(segment_id)
    for segment in client.list_remote_log_segments(partition):
        if segment.segment_id == wanted:
            return segment
    raise SegmentNotFound(f"{partition} has no segment {segment_id}", segment_id=segment_id)
