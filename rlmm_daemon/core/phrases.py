"""Formats of numbers, times and names in `explain`: one each, so that texts can be compared."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from rlmm_daemon.domain.ids import TopicIdPartition, uuid_text

_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")
_KIB: Final = 1024
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400
#: Names that a shell and an option parser leave alone.
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*")
_MS_MAX: Final = 253_402_300_799_000


def size(count: int) -> str:
    """Return bytes as a person reads them: `512 B`, `1.5 GiB`."""
    if count < _KIB:
        return f"{count} B"
    value, unit = float(count), "B"
    for unit in _UNITS:  # noqa: B007 - the unit at which the loop stops is the answer
        value /= _KIB
        if value < _KIB:
            break
    return f"{value:.1f} {unit}"


def number(count: int, noun: str, plural: str | None = None) -> str:
    """Return `1 segment`, `12,000 segments`."""
    word = noun if count == 1 else plural or f"{noun}s"
    return f"{count:,} {word}"


def duration(seconds: float) -> str:
    """Return a span of time in its two leading units at most: `4 s`, `3 min`, `2 h 5 min`."""
    whole = max(0, int(seconds))
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min"
    if whole < _DAY:
        hours, rest = divmod(whole, _HOUR)
        return f"{hours} h {rest // _MINUTE} min" if rest >= _MINUTE else f"{hours} h"
    days, rest = divmod(whole, _DAY)
    return f"{days} d {rest // _HOUR} h" if rest >= _HOUR else f"{days} d"


def moment(at_ms: int) -> str:
    """Return a time in UTC to the second; a number that is no time is shown as it is."""
    if not 0 <= at_ms <= _MS_MAX:
        return f"{at_ms} ms"
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def ago(at_ms: int, now_ms: int) -> str:
    """Return a time and how long ago it was."""
    if at_ms > now_ms:
        return f"{moment(at_ms)} (in the future)"
    return f"{moment(at_ms)} ({duration((now_ms - at_ms) / 1000)} ago)"


def argument(partition: TopicIdPartition) -> str:
    """Return what to type for a partition: its name, or its id where the name is not plain."""
    if _PLAIN_NAME.fullmatch(partition.topic):
        return f"{partition.topic}-{partition.partition}"
    return f"{uuid_text(partition.topic_id)}-{partition.partition}"


def connection(known: Mapping[str, Any]) -> str:
    """Return what a follower's connection to its broker is doing."""
    leader, error = known["leader"], known["last_error"]
    if known["state"] == "backing_off":
        text = f"its connection backs off for {known['pause_seconds']:.2g} s"
    elif known["state"] == "fetching" and leader:
        return f"fetching from {leader}"
    else:
        text = f"its connection is {known['state'].replace('_', ' ')}"
    return text + (f"; last error: {error}" if error else "")
