"""`rlmm top`: the daemon's work as it goes."""

import itertools
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from rlmm_daemon.cli.asking import asking
from rlmm_daemon.cli.look.status import waiting_words
from rlmm_daemon.cli.options import Target, daemon_options
from rlmm_daemon.cli.output import show_json, show_table
from rlmm_daemon.core import phrases
from rlmm_daemon.observability.escape import escape

_CLEAR = "\x1b[H\x1b[2J\x1b[3J"
#: How often a view is made anew.
EVERY_SECONDS = 2.0


@click.command("top")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=EVERY_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks.",
)
@click.option("--count", type=click.IntRange(min=1), help="End after so many views.")
@daemon_options
def command(*, every: float, count: int | None, target: Target) -> None:
    """Show the daemon's work as it goes, until Ctrl-C: copies with their rate and what is left.

    Rates are between two looks, so the first view comes after the second look. In a pipe one view
    follows another.

    \b
    --json: a line each, {at_seconds, draining, copied_per_second, storage_error, log_trouble,
    paused[], metadata_partitions{state: count}, segments{state: count}, segment_bytes,
    copy_lag{segments, bytes, seconds, topics[{topic, segments, bytes, seconds}],
    untold_partitions} or null (closed segments of the broker that the tier does not have),
    copies[{partition, segment_id, phase, bytes_done, bytes_total, per_second, left_seconds,
    age_seconds, call}]}.
    """  # noqa: D301 - click's own mark
    with asking(target) as client:
        before, at = client.status(), time.monotonic()
        for _ in itertools.count() if count is None else range(count):
            time.sleep(every)
            now, then = client.status(), time.monotonic()
            seen = view(before, now, then - at)
            before, at = now, then
            if target.json:
                show_json(seen)
            else:
                _show(seen)


def view(before: Mapping[str, Any], now: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return what two looks, so far apart, tell together."""
    former = {job["segment_id"]: job["bytes_done"] for job in before["copies"]}
    copies = [
        _copy(job, former.get(job["segment_id"], 0), min(seconds, job["age_seconds"] or seconds))
        for job in sorted(now["copies"], key=lambda job: -job["age_seconds"])
    ]
    paused = now.get("paused") or {"topics": ()}  # a daemon from before says nothing of it
    return {
        "at_seconds": now["uptime_seconds"],
        "draining": now["draining"],
        "copied_per_second": sum(copy["per_second"] for copy in copies),
        "storage_error": now["storage"]["error"],
        "log_trouble": now["log"]["trouble"] or now["log"].get("unwritable"),
        "paused": [each["topic"] for each in paused["topics"]],
        "metadata_partitions": now["metadata_partitions"],
        "segments": now["segments"],
        "segment_bytes": now["segment_bytes"],
        "copy_lag": now.get("copy_lag"),
        "copies": copies,
    }


def _copy(job: Mapping[str, Any], former: int, seconds: float) -> dict[str, Any]:
    """Return a copy with its rate; of a part that failed bytes are taken back, which is no rate."""
    rate = max(0.0, (job["bytes_done"] - former) / seconds) if seconds else 0.0
    left = job["bytes_total"] - job["bytes_done"]
    names = ("partition", "segment_id", "phase", "bytes_done", "bytes_total", "age_seconds", "call")
    return {
        **{name: job[name] for name in names},
        "per_second": round(rate),
        "left_seconds": round(left / rate, 1) if rate and left > 0 else None,
    }


def _show(seen: dict[str, Any]) -> None:
    if sys.stdout.isatty():
        click.echo(_CLEAR, nl=False)
    for line in _lines(seen):
        click.echo(line)
    if seen["copies"]:
        columns = ("copy of", "phase", "done", "rate", "left", "age", "call in flight")
        rows = [
            (
                copy["partition"].partition(":")[2],
                copy["phase"],
                f"{phrases.size(copy['bytes_done'])} of {phrases.size(copy['bytes_total'])}",
                f"{phrases.size(copy['per_second'])}/s",
                None if copy["left_seconds"] is None else phrases.duration(copy["left_seconds"]),
                phrases.duration(copy["age_seconds"]),
                copy["call"] or None,
            )
            for copy in seen["copies"]
        ]
        show_table(columns, rows, fold=("copy of", "phase", "call in flight"))
    else:
        click.echo("no copy runs or waits")


def _lines(seen: dict[str, Any]) -> Iterator[str]:
    segments = seen["segments"]
    states = ", ".join(f"{n:,} {state}" for state, n in seen["metadata_partitions"].items())
    up = phrases.duration(seen["at_seconds"]) + (", draining" if seen["draining"] else "")
    yield f"up {up}; metadata partitions: {states or 'none followed'}"
    yield (
        f"{segments['COPY_SEGMENT_FINISHED']:,} segments, {phrases.size(seen['segment_bytes'])}; "
        f"{segments['COPY_SEGMENT_STARTED']:,} being copied, "
        f"{segments['DELETE_SEGMENT_STARTED']:,} being deleted; "
        f"copying {phrases.size(seen['copied_per_second'])}/s"
    )
    if (waits := waiting_words(seen)) is not None:
        yield f"not copied yet: {escape(waits)}"
    if seen["paused"]:
        yield f"paused: {escape(', '.join(seen['paused']))}"
    for trouble in (seen["log_trouble"], seen["storage_error"]):
        if trouble:
            yield f"trouble: {escape(trouble)}"
