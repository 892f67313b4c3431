"""Rows of `explain` for a daemon that does not run: what the files of its state directory say."""

from typing import Final

from rlmm_daemon.core.explain import evidence
from rlmm_daemon.core.explain.facts import Facts
from rlmm_daemon.core.explain.verdict import START, Cause, Verdict

OFFLINE_CAUSES: Final = (
    Cause(
        name="offline_unbound",
        verdict=Verdict.UNKNOWN,
        applies=lambda f: f.offline and not f.bound,
        sentence=lambda _: "This state directory was never bound to an event log.",
        command=lambda _: "rlmm run --config FILE",
    ),
    Cause(
        name="offline_log_corrupt",
        verdict=Verdict.FAILED,
        applies=lambda f: f.offline and f.damage is not None,
        sentence=lambda _: "The event log's files are damaged behind a place that was durable.",
        evidence=lambda f: (f.damage or "", *evidence.recorded(f)),
        command=lambda f: f"{START} && rlmm log repair {evidence.number(f)}",
    ),
    Cause(
        name="offline_history_lost",
        verdict=Verdict.FAILED,
        applies=lambda f: f.offline and (f.missing > 0 or _cut_short(f)),
        sentence=lambda _: (
            "Events that had been acknowledged are missing from the event log: the daemon will "
            "refuse to answer about this partition."
        ),
        evidence=lambda f: (*evidence.missing(f), *evidence.recorded(f)),
        command=lambda f: f"{START} && rlmm log repair {evidence.number(f)}",
    ),
)


def _cut_short(f: Facts) -> bool:
    """Whether the log ends before what was read of it."""
    read = max(f.recorded_position or 0, f.snapshot_next_offset or 0)
    return f.log_end is not None and f.log_end < read
