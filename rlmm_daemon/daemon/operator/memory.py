"""Memory of the process: its own, mapped snapshots, and what lies over them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.daemon.metadata.tally import Tally

_PROC: Final = Path("/proc")


class CopyingProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The process for copies."""

    #: None while none runs.
    pid: int | None = None
    #: Passes over files that it was handed and has not ended.
    in_hand: int = 0


def memory(folds: Iterable[Fold], tally: Tally, copying_pid: int | None = None) -> dict[str, Any]:
    """Return bytes and counts, as `rlmm status` shows them, of folds and their tally.

    `private_bytes` is memory that nobody can take back, swapped out or not; `mapped_bytes` is what
    of mapped files (snapshots, and the program itself) happens to be in memory; both are None where
    the kernel does not say. `bytes_per_segment` is their sum, interpreter and all, by segment.
    `copying_process_private_bytes` is of the process for copies, 0 where none runs.
    """
    private, mapped = _resident("self")
    copying = 0 if copying_pid is None else _resident(str(copying_pid))[0]
    images = {id(f.image): len(f.image.buffer) for f in folds if f.image is not None}
    total = sum(tally.segments)
    known = private is not None and mapped is not None and total
    return {
        "private_bytes": private,
        "mapped_bytes": mapped,
        "copying_process_private_bytes": copying,
        "snapshot_bytes": sum(images.values()),
        "segments_in_memory": tally.in_memory,
        "segments_in_snapshots": total - tally.in_memory,
        "user_partitions_awake": tally.user_partitions - tally.asleep,
        "user_partitions_asleep": tally.asleep,
        "events_put_aside": tally.aside_events,
        "bytes_put_aside": tally.aside_bytes,
        "bytes_per_segment": round(((private or 0) + (mapped or 0)) / total) if known else None,
    }


def _resident(process: str) -> tuple[int | None, int | None]:
    """Return anonymous bytes and resident file-backed ones, as the kernel counts them."""
    found: dict[str, int] = {}
    try:
        lines = (_PROC / process / "status").read_text().splitlines()
    except OSError:  # not Linux, no /proc, or the process is gone
        return None, None
    for line in lines:
        name, _, rest = line.partition(":")
        if name in {"RssAnon", "RssFile", "VmSwap"}:
            found[name] = int(rest.split()[0]) * 1024
    private, mapped = found.get("RssAnon"), found.get("RssFile")
    return None if private is None else private + found.get("VmSwap", 0), mapped
