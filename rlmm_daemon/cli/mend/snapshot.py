"""`rlmm snapshot`: write one now, or look at the files without a daemon."""

from pathlib import Path
from typing import Any

import click

from rlmm_daemon.cli.asking import asking_log
from rlmm_daemon.cli.group import Exit
from rlmm_daemon.cli.options import Target, daemon_options, json_option
from rlmm_daemon.cli.output import show_empty, show_facts, show_json, show_table
from rlmm_daemon.core import phrases
from rlmm_daemon.domain.errors import InvalidArgument, RlmmError
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.domain.segment import SegmentState
from rlmm_daemon.observability.escape import escape


@click.group("snapshot")
def command() -> None:
    """Write snapshots, or check and show their files."""


@command.command("now", short_help="Write a snapshot of a metadata partition, or of all.")
@click.argument("number", metavar="[N]", type=click.IntRange(min=0), required=False)
@daemon_options
def now(number: int | None, *, target: Target) -> None:
    """Write a snapshot of metadata partition N, or of all that are followed.

    Exit code 1 if one could not be written: a partition that is not ready is never snapshotted.

    --json: an array of {metadata_partition, state, written, path, next_offset, bytes, seconds}.
    """
    with asking_log(target) as client:
        rows = client.snapshot_now(number)
    if target.json:
        show_json(rows)
    else:
        columns = ("partition", "state", "next offset", "size", "ms", "file")
        shown = [row for row in rows if row["next_offset"] or not row["written"]]
        show_table(columns, [_row(row) for row in shown], fold=("file",))
        for directory in sorted({str(Path(row["path"]).parent) for row in rows if row["path"]}):
            click.echo(f"in {escape(directory)}")
        show_empty(len(rows) - len(shown))
    if not all(row["written"] for row in rows):
        raise click.exceptions.Exit(Exit.TROUBLE)


def _row(row: dict[str, Any]) -> tuple[object, ...]:
    if not row["written"]:
        return row["metadata_partition"], row["state"], None, None, None, "not written"
    return (
        row["metadata_partition"],
        row["state"],
        str(row["next_offset"]),
        phrases.size(row["bytes"]),
        round(row["seconds"] * 1000),
        Path(row["path"]).name,
    )


@command.command("verify")
@click.argument("paths", nargs=-1, required=True, metavar="FILE|DIR...")
@json_option
def verify(paths: tuple[str, ...], *, as_json: bool) -> None:
    """Check snapshot files, or all of a directory, without a daemon.

    Exit code 1 if one is damaged. A daemon replays the log where a snapshot is.

    --json: an array of {path, error, metadata_partition, next_offset, segments}; error is null
    where the file is whole.
    """
    rows = [_verified(path) for name in paths for path in _files(Path(name))]
    if as_json:
        show_json(rows)
    else:
        columns = ("file", "partition", "next offset", "segments", "verdict")
        show_table(
            columns,
            [
                (
                    Path(row["path"]).name,
                    row["metadata_partition"],
                    None if row["next_offset"] is None else str(row["next_offset"]),
                    row["segments"],
                    row["error"] or "whole",
                )
                for row in rows
                if row["error"] or row["next_offset"]
            ],
            fold=("file", "verdict"),
        )
        whole = sum(row["error"] is None for row in rows)
        click.echo(f"{whole} of {phrases.number(len(rows), 'file')} whole; empty ones not shown")
    if any(row["error"] for row in rows):
        raise click.exceptions.Exit(Exit.TROUBLE)


@command.command("show")
@click.argument("path", metavar="FILE")
@json_option
def show(path: str, *, as_json: bool) -> None:
    """Show what a snapshot file holds, without a daemon.

    --json: {path, cluster_id, topic_id, metadata_partition, partition_count, next_offset,
    leader_epoch, created_at_ms, partitions[{partition, segments{state: count}, bytes}]}.
    """
    facts = _shown(Path(path))
    if as_json:
        show_json(facts)
        return
    partitions = facts.pop("partitions")
    created = facts.pop("created_at_ms")
    show_facts(
        {name.replace("_", " "): value for name, value in facts.items()}
        | {"created": phrases.moment(created)}
    )
    click.echo()
    columns = ("partition", "copying", "finished", "deleting", "size")
    show_table(
        columns,
        [
            (
                row["partition"],
                *(row["segments"][state.name] for state in _SHOWN),
                phrases.size(row["bytes"]),
            )
            for row in partitions
        ],
    )


_SHOWN = tuple(state for state in SegmentState if state is not SegmentState.DELETE_SEGMENT_FINISHED)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(path.glob("*.snapshot")) or sorted(path.glob("snapshots/*.snapshot"))
        if not found:
            raise InvalidArgument(f"{path} holds no snapshots", path=str(path))
        return found
    return [path]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from error


def _verified(path: Path) -> dict[str, Any]:
    from rlmm_daemon.core.snapshots import unsealing

    row: dict[str, Any] = {
        "path": str(path),
        "error": None,
        "metadata_partition": None,
        "next_offset": None,
        "segments": None,
    }
    try:
        header, fold = unsealing.load(_read(path))
    except RlmmError as error:
        return {**row, "error": error.message}
    segments = sum(len(cache.segments) for cache in fold.partitions.values())
    return {
        **row,
        "metadata_partition": header.metadata_partition,
        "next_offset": header.next_offset,
        "segments": segments,
    }


def _shown(path: Path) -> dict[str, Any]:
    from rlmm_daemon.core.snapshots import unsealing

    header, fold = unsealing.load(_read(path))
    return {
        "path": str(path),
        "cluster_id": header.cluster_id,
        "topic_id": uuid_text(header.topic_id),
        "metadata_partition": header.metadata_partition,
        "partition_count": header.partition_count,
        "next_offset": header.next_offset,
        "leader_epoch": header.leader_epoch,
        "created_at_ms": header.created_at_ms,
        "partitions": [
            {
                "partition": str(partition),
                "segments": {state.name: cache.segments_by_state[state] for state in _SHOWN},
                "bytes": cache.bytes_by_state[SegmentState.COPY_SEGMENT_FINISHED],
            }
            for partition, cache in sorted(fold.partitions.items())
        ],
    }
