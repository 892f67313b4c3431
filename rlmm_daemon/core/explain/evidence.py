"""The lines of evidence, and the names in sentences, that several rows of `explain` share."""

from collections.abc import Iterable

from rlmm_daemon.core import phrases
from rlmm_daemon.core.explain.facts import AnnouncedRole, Facts, LastError
from rlmm_daemon.core.readiness.states import Failure, FailureReason


def argument(f: Facts) -> str:
    """Return the partition as an argument."""
    return f.selector if f.partition is None else phrases.argument(f.partition)


def topic(f: Facts) -> str:
    """Return the topic's name."""
    return "TOPIC" if f.partition is None else f.partition.topic


def number(f: Facts) -> str:
    """Return the metadata partition's number, or what stands for it."""
    return "N" if f.metadata_partition is None else str(f.metadata_partition)


def where(f: Facts) -> Iterable[str]:
    """Say where the metadata partition stands."""
    if f.metadata_partition is None:
        return
    text = f"metadata partition {f.metadata_partition} was read up to offset {f.position}"
    if f.log_start is not None and f.log_end is not None:
        text += f"; its log spans {f.log_start} to {f.log_end}"
    elif f.log_end is not None:
        text += f"; its log ends at {f.log_end}"
    yield text
    if f.target is not None and f.position < f.target:
        yield f"complete once offset {f.target} is reached"
    if f.connection is not None:
        yield f.connection


def silence(f: Facts) -> Iterable[str]:
    """Say when the log last answered, and what it said instead."""
    yield f"the log last answered {phrases.duration(f.silent_seconds)} ago"
    yield from last_error(f.trouble, f.now_ms)


def last_error(error: LastError | None, now_ms: int) -> Iterable[str]:
    """Say what failed last."""
    if error is not None:
        times = "" if error.consecutive <= 1 else f", {error.consecutive} times in a row"
        yield f"last error{times}, {phrases.ago(error.at_ms, now_ms)}: {error.message}"


def role(f: Facts) -> Iterable[str]:
    """Say what the broker announced."""
    if f.role is AnnouncedRole.LEADER:
        yield "the broker announced that it leads the partition"
    elif f.role is AnnouncedRole.FOLLOWER:
        yield "the broker announced that it follows the partition"


def snapshot(f: Facts) -> Iterable[str]:
    """Say how old the snapshot is."""
    if f.snapshot_at_ms is not None:
        offset = "" if f.snapshot_next_offset is None else f" up to offset {f.snapshot_next_offset}"
        yield f"last snapshot{offset}: {phrases.ago(f.snapshot_at_ms, f.now_ms)}"


def last_event(f: Facts) -> Iterable[str]:
    """Say when the partition last changed."""
    if f.last_event_at_ms is not None:
        yield f"last event of a live segment: {phrases.ago(f.last_event_at_ms, f.now_ms)}"


def missing(f: Facts) -> Iterable[str]:
    """Say what the log has not shown again."""
    if f.missing:
        yield (
            f"{phrases.number(f.missing, 'finished segment')} that had been known "
            f"{'is' if f.missing == 1 else 'are'} not in the log"
        )
    if f.missing_reasons:
        yield f"compared since: {f.missing_reasons[-1]}"


def failure(f: Facts) -> Failure | None:
    """Return what failed, the whole log first."""
    return f.whole_failure or f.failure


def why_failed(f: Facts) -> Iterable[str]:
    """Say what shows the failure, and since when."""
    found = failure(f)
    if found is not None:
        yield found.evidence
        yield f"since {phrases.ago(found.at_ms, f.now_ms)}"
    lost = found is not None and found.reason is FailureReason.HISTORY_LOST
    # The comparison's own evidence counts them already.
    if found is not None and lost and "not in the log" not in found.evidence:
        yield from missing(f)
    if f.whole_failure is None:
        yield from where(f)


def recorded(f: Facts) -> Iterable[str]:
    """Yield what files say of a daemon that does not run."""
    if f.recorded_position is not None:
        yield f"positions.json: read up to offset {f.recorded_position}"
    if f.log_end is not None:
        yield f"the log's files end at offset {f.log_end}"
    yield from snapshot(f)
