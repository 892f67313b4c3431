"""`make bench`: every figure beside its peer, measured in the same run, as a table and as JSON."""

import argparse
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec.structs import asdict
from rich.console import Console

from rlmm_daemon.observability import logging
from tests.benchmarks import announce, copy, daemon, lookup, small_copies, write
from tests.benchmarks.rows import Row, Scale, table
from tests.support.daemon_process import REPOSITORY, DaemonProcess

Group = Callable[[DaemonProcess, Scale], list[Row]]
GROUPS: Final[Mapping[str, Group]] = {
    "lookup": lookup.run,
    "write": write.run,
    "copy": copy.run,
    "small copies": small_copies.run,
    "announce": announce.run,
}
RESULTS: Final = REPOSITORY / "var" / "bench"


def measure(directory: Path, scale: Scale, groups: Sequence[str]) -> list[Row]:
    """Return the rows of these groups, measured on one daemon below `directory`."""
    process = DaemonProcess(directory, {"event_log.partition_count": daemon.PARTITION_COUNT})
    counts = {daemon.SMALL: scale.small_segments, daemon.LARGE: scale.large_segments}
    daemon.fill(directory / "var" / "state" / "log", counts)
    with process:
        begun = time.perf_counter()
        daemon.until_ready(process.socket_path, list(counts))
        replayed = time.perf_counter() - begun
        rows = [row for group in groups for row in GROUPS[group](process, scale)]
    started = process.started_seconds
    events = 2 * sum(counts.values())
    return [
        *rows,
        Row(group="start", what="process to READY=1, imports", value=started, unit="s"),
        Row(
            group="start",
            what=f"replay of {events:,} events to ready",
            value=events / replayed,
            unit="1/s",
        ),
    ]


def keep(rows: Sequence[Row], results: Path) -> Path:
    """Write the rows and where they were measured; return the file."""
    now = datetime.now(UTC)
    facts = {
        "measured_at": now.isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "rows": [asdict(row) | {"budget": row.budget, "met": row.met} for row in rows],
    }
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"{now:%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps(facts, indent=1) + "\n")
    return path


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.benchmarks.run", description=__doc__)
    options.add_argument("--only", action="append", choices=list(GROUPS), help="repeatable")
    options.add_argument("--quick", action="store_true", help="tiny, to see that it works")
    chosen = options.parse_args()
    logging.configure(level="warning", style="console")
    work = RESULTS / "work"  # on the checkout's disk: a temporary directory may be memory
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        scale = Scale.quick() if chosen.quick else Scale()
        rows = measure(work, scale, chosen.only or list(GROUPS))
    finally:
        shutil.rmtree(work)
    console.print(table(rows))
    console.print(f"kept in {keep(rows, RESULTS).relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
