"""`rlmm partitions`: every followed metadata partition, and the records that changed nothing."""

from typing import Any

import click

from rlmm_daemon.cli.asking import asking, require_log
from rlmm_daemon.cli.group import Exit
from rlmm_daemon.cli.options import Target, daemon_options
from rlmm_daemon.cli.output import show_empty, show_json, show_table
from rlmm_daemon.client import Client
from rlmm_daemon.codec.api import UserPartition
from rlmm_daemon.core import phrases
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.domain.segment import SegmentState
from rlmm_daemon.observability.escape import escape

_COLUMNS = (
    "N", "state", "position", "lag", "announced", "folded", "segments", "unreadable", "rejected",
)  # fmt: skip

_USER_COLUMNS = ("partition", "topic id", "N", "role", "segments", "size")


@click.command("partitions")
@click.option("--all", "everything", is_flag=True, help="Also those that are ready and empty.")
@click.option("--records", is_flag=True, help="Also show the last records that changed nothing.")
@click.option("--users", is_flag=True, help="List the user partitions instead.")
@click.option("--topic", metavar="TOPIC", help="With --users: those of one topic, by name or id.")
@daemon_options
def command(
    *, everything: bool, records: bool, users: bool, topic: str | None, target: Target
) -> None:
    """List the metadata partitions that are followed, with state, position and health.

    N is what rlmm partition and rlmm log take. Announced are the broker's user partitions, folded
    all that the log names.

    Exit code 1 if one failed.

    \b
    --json: an array of {metadata_partition, state, failure{reason, evidence, at_ms, command},
    position, target, lag, log_start, log_end, leader_epoch, silent_seconds, trouble, announced,
    user_partitions, segments, writes_in_flight, snapshot_at_ms, events_since_snapshot, missing,
    connection{state, position, leader_epoch, leader, pause_seconds, errors, last_error} or null,
    unreadable{reason: count}, rejected{reason: count}, recent[{kind, offset, reason, head}]}.

    \b
    --users --json: a line for each {topic_id, topic, partition, metadata_partition, role,
    segments{state: count}, size_bytes, delete_state}.
    """  # noqa: D301 - click's own mark
    if topic is not None and not users:
        raise click.UsageError("--topic goes with --users")
    if users:
        _users(target, topic)
        return
    with asking(target) as client:
        rows = client.partitions()
        if not rows:
            _show_none(client, as_json=target.json)
            return
    if target.json:
        show_json(rows)
    else:
        shown = rows if everything else [row for row in rows if _eventful(row)]
        show_table(_COLUMNS, [_row(row) for row in shown])
        show_empty(len(rows) - len(shown), "ready and empty (--all shows {them})")
        for row in rows:
            _show_trouble(row)
        if records:
            _show_records(rows)
    if any(row["failure"] for row in rows):
        raise click.exceptions.Exit(Exit.TROUBLE)


def _show_none(client: Client, *, as_json: bool) -> None:
    if as_json:
        show_json([])
    else:
        show_table(_COLUMNS, [])
        show_empty(0, "ready and empty (--all shows {them})")
    require_log(client)


def _users(target: Target, topic: str | None) -> None:
    with asking(target) as client:
        found = list(client.user_partitions(topic))
        _show_users(found, as_json=target.json)
        if not found:
            require_log(client)


def _show_users(found: list[UserPartition], *, as_json: bool) -> None:
    if as_json:
        for each in found:
            show_json(_as_json(each))
        return
    show_table(_USER_COLUMNS, [_user_row(each) for each in found], fold=("partition", "segments"))
    click.echo(phrases.number(len(found), "user partition"))


def _as_json(each: UserPartition) -> dict[str, Any]:
    return {
        "topic_id": uuid_text(each.partition.to_domain().topic_id),
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "metadata_partition": each.metadata_partition,
        "role": each.role,
        "segments": each.segments,
        "size_bytes": each.size_bytes,
        "delete_state": each.delete_state,
    }


def _user_row(each: UserPartition) -> tuple[object, ...]:
    counts, partition = each.segments, each.partition.to_domain()
    finished = counts.get(SegmentState.COPY_SEGMENT_FINISHED.name, 0)
    busy = (
        ("being copied", counts.get(SegmentState.COPY_SEGMENT_STARTED.name, 0)),
        ("being deleted", counts.get(SegmentState.DELETE_SEGMENT_STARTED.name, 0)),
    )
    return (
        f"{partition.topic}-{partition.partition}",
        uuid_text(partition.topic_id),
        each.metadata_partition,
        each.role,
        ", ".join([f"{finished:,}", *(f"{count:,} {word}" for word, count in busy if count)]),
        phrases.size(each.size_bytes),
    )


def _eventful(row: dict[str, Any]) -> bool:
    return bool(row["state"] != "ready" or row["position"] or row["announced"])


def _row(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        row["metadata_partition"],
        row["state"],
        str(row["position"]),
        row["lag"],
        row["announced"],
        row["user_partitions"],
        row["segments"],
        sum(row["unreadable"].values()) or None,
        sum(row["rejected"].values()) or None,
    )


def _show_trouble(row: dict[str, Any]) -> None:
    number, failure = row["metadata_partition"], row["failure"]
    if failure:
        click.echo(f"\n{number} failed, {failure['reason']}: {escape(failure['evidence'])}")
        click.echo(f"  Next: {failure['command']}")
    known = row.get("connection")
    if known and known["state"] != "fetching":
        click.echo(f"\n{number}: {escape(phrases.connection(known))}")


def _show_records(rows: list[dict[str, Any]]) -> None:
    found = [
        (row["metadata_partition"], str(each["offset"]), each["kind"], each["reason"], each["head"])
        for row in rows
        for each in row["recent"]
    ]
    if found:
        click.echo()
        show_table(
            ("partition", "offset", "kind", "reason", "first bytes"), found, fold=("first bytes",)
        )
