"""Faults of a daemon as a whole by the facts of `status`, each with what tells more."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from rlmm_daemon.core import phrases

#: A metadata partition's log is silent for less between two answers.
_QUIET_SECONDS: Final = 5.0
_DOCTOR: Final = "rlmm doctor"
_STATUS: Final = "rlmm status"


class Fault(msgspec.Struct, frozen=True):
    """What is wrong; commands stand between backticks in it."""

    text: str
    command: str | None = None


def faults(brief: Mapping[str, Any], partitions: Iterable[Mapping[str, Any]]) -> list[Fault]:
    """Return them, the gravest first; `partitions` are rows of metadata partitions."""
    return list(_of(brief, partitions))


def _of(brief: Mapping[str, Any], partitions: Iterable[Mapping[str, Any]]) -> Iterator[Fault]:
    if brief["draining"]:
        yield Fault("The daemon stops.")
    yield from _of_log(brief["log"], partitions)
    if trouble := brief["paused"]["trouble"]:
        yield Fault(trouble, _STATUS)
    yield from _of_storage(brief["storage"])
    bugs = brief["internal_errors"]
    if bugs["count"]:
        last = bugs["last"]
        text = f"{bugs['count']} bugs were met, the last in {last['where']}: {last['error']}"
        yield Fault(text)


def _of_log(log: Mapping[str, Any], partitions: Iterable[Mapping[str, Any]]) -> Iterator[Fault]:
    if not log["open"]:
        yield Fault(log["trouble"] or "The event log is not open.", _DOCTOR)
    yield from _silent([row for row in partitions if row["silent_seconds"] > _QUIET_SECONDS])
    if failure := log["failure"]:
        yield Fault(failure["evidence"], failure["command"])
    if log["unwritable"]:
        yield Fault(f"Writes are refused: {log['unwritable']}", _DOCTOR)
    yield from _of_quorum(log["quorum"])
    for warning in log["warnings"]:
        yield Fault(warning, _DOCTOR)


def _of_storage(storage: Mapping[str, Any]) -> Iterator[Fault]:
    if storage["error"]:
        yield Fault(f"The storage does not work as it should: {storage['error']}", _DOCTOR)
    if storage["slow"]:
        yield Fault(f"The storage is slow: {storage['slow']}.", _DOCTOR)
    if storage["other_daemon"]:
        yield Fault(storage["other_daemon"], _STATUS)


def _silent(rows: list[Mapping[str, Any]]) -> Iterator[Fault]:
    if rows:
        longest = phrases.duration(max(row["silent_seconds"] for row in rows))
        number = phrases.number(len(rows), "metadata partition")
        why = rows[0]["trouble"] or "no answer"
        yield Fault(f"The event log has not answered for {longest}, in {number}: {why}", _DOCTOR)


def _of_quorum(told: Mapping[str, Any] | None) -> Iterator[Fault]:
    """Yield whom a leader misses: only it hears of every voter."""
    if told is None or told["role"] != "leader":
        return
    if missed := sorted(set(told["voters"]) - set(told["heard"])):
        listed = ", ".join(map(str, missed))
        count = f"{len(told['heard'])} of {len(told['voters'])} voters are heard"
        yield Fault(
            f"The quorum's leader, this replica, misses {listed}: {count}, "
            f"{told['needed']} decide.",
            "rlmm quorum describe",
        )
