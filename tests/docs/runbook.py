"""Sections of `docs/runbook.md`: each failure as `rlmm explain` tells of it, and what ends it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rlmm_daemon.core.explain.causes import CAUSES
from rlmm_daemon.core.explain.explanation import explain
from rlmm_daemon.core.explain.facts import Facts, LastError, Unread
from rlmm_daemon.core.explain.runbook import RUNBOOK
from rlmm_daemon.core.explain.verdict import Explanation, Verdict
from rlmm_daemon.core.readiness.states import Failure, FailureReason, PartitionState
from rlmm_daemon.domain.ids import TopicId, TopicIdPartition
from tests.docs.tables import table
from tests.support.daemon_process import REPOSITORY

#: How failures of a real daemon were ended, step by step: what failed, and what was typed.
WALKS: Final = REPOSITORY / "tests" / "integration" / "recovery_walks.txt"
NOW_MS: Final = 1_800_000_000_000
_ORDERS: Final = TopicIdPartition(TopicId(bytes(range(16))), "orders", 0)
_STATE: Final = "/var/lib/rlmm"
#: What shows a failure, in the daemon's own words.
_EVIDENCE: Final = {
    FailureReason.HISTORY_LOST: "1 finished segment that this daemon knew is not in the log: "
    "the log lost its tail",
    FailureReason.LOG_CORRUPT: f"invalid batch in {_STATE}/log/7/00000000000000000000.log "
    "at byte 4096: the batch's CRC does not fit",
    FailureReason.LOG_MISSING: f"{_STATE}/log is not there",
    FailureReason.NO_TOPIC_ID: "the cluster gives __remote_log_metadata no topic id",
    FailureReason.PARTITION_COUNT_CHANGED: "the state directory says 50 partitions, the log has 51",
    FailureReason.CRASH_LOOP: "three crashes within a minute named it",
    FailureReason.NEWER_LOG: f"{_STATE}/log/identity.json was written by a newer daemon; "
    "it is left untouched",
    FailureReason.NEWER_STATE: "7.lost was written by a newer daemon; it is left untouched",
    FailureReason.NEWER_SNAPSHOT: "7-1200.snapshot was written by a newer daemon; "
    "it is left untouched",
    FailureReason.LOG_UNNAMED: f"{_STATE}/log/identity.json can't be read",
    FailureReason.LOG_FOREIGN: "the log is of cluster A, this daemon is of cluster B",
    FailureReason.PRESENCE_UNREAD: "can't be read: _rlmm/daemons/4.json",
}
#: Failures of the log as a whole, which each of its partitions shares.
_WHOLE: Final = (
    FailureReason.LOG_MISSING,
    FailureReason.NO_TOPIC_ID,
    FailureReason.PARTITION_COUNT_CHANGED,
    FailureReason.NEWER_LOG,
    FailureReason.LOG_UNNAMED,
    FailureReason.LOG_FOREIGN,
)
_STEP: Final = re.compile(
    r"  (?P<cause>\w+): (?:by hand: (?P<hand>.+)|(?P<command>rlmm .+) -> (?P<code>\d+))"
)
#: The exit code of a command that refused to begin, since the daemon still ran.
_CONFIG: Final = "78"


def failures() -> str:
    """Return a section for each failure."""
    return "\n\n".join(part for name in RUNBOOK for part in _section(name))


def others() -> str:
    """Return the causes that are no failures, as a table."""
    rows = [(f"`{cause.name}`", cause.verdict.value) for cause in CAUSES if not _failed(cause)]
    return table(("cause", "verdict"), rows)


def failed() -> set[str]:
    """Return the names of the causes that somebody has to end."""
    return {cause.name for cause in CAUSES if _failed(cause)}


def example(name: str) -> Explanation:
    """Return what `rlmm explain orders-0` says of such a failure."""
    told = explain(_facts(name))
    assert told.cause == name
    return told


def _failed(cause: Any) -> bool:
    return bool(cause.verdict is Verdict.FAILED)


def _section(name: str) -> Iterator[str]:
    told, section = example(name), RUNBOOK[name]
    yield f"## {name}"
    yield f"**What it means.** {told.sentence}"
    yield f"**What is safe.** {section.safe}"
    yield f"**Evidence to look at.** {section.look} For example:"
    evidence = "\n".join(f"- {each}" for each in told.evidence)
    yield f"```text\n{evidence}\n```"
    yield f"**Next command.** `{re.sub(r'(?<= )7$', 'N', told.next_command)}`"
    yield "**What ends it.**"
    if len(section.endings) == 1 and not section.endings[0].case:
        yield f"{_sentence(section.endings[0].steps)}."
    else:
        rows = [(each.case, each.steps) for each in section.endings]
        yield table(("where", "what ends it"), rows)
    walks = list(walked(name))
    if walks:
        yield "How such failures of a real daemon are ended, in its tests:"
        yield table(("what was done to it", "what ended it", "afterwards"), walks)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def walked(name: str) -> Iterator[tuple[str, str, str]]:
    """Return how a real daemon's failures that begin as this one were ended."""
    for walk in WALKS.read_text().strip().split("\n\n"):
        what, *lines = walk.splitlines()
        steps = [step for line in lines if (step := _STEP.fullmatch(line))]
        if not steps or steps[0]["cause"] != name:
            continue
        (listed,) = (line.partition(": ")[2] for line in lines if line.startswith("  ready: "))
        said = [step["hand"] or f"`{step['command']}`" for step in steps if step["code"] != _CONFIG]
        yield what, ", then ".join(said), listed


def _facts(name: str) -> Facts:
    reason = next((each for each in FailureReason if each.value == name), None)
    more: dict[str, Any] = {}
    if reason is not None:
        failure = Failure(reason, _EVIDENCE[reason], NOW_MS - 90_000)
        more = {"whole_failure" if reason in _WHOLE else "failure": failure}
    elif name == "segments_held":
        held = "1 finished segment marked for deletion by what was meant for a stuck copy; "
        failure = Failure(FailureReason.HISTORY_LOST, f"{held}nothing was deleted", NOW_MS - 90_000)
        more = {"failure": failure, "alarmed": True, "held": 1}
    elif name == "not_read_failed":
        failure = Failure(
            FailureReason.LOG_CORRUPT, _EVIDENCE[FailureReason.LOG_CORRUPT], NOW_MS - 90_000
        )
        unread = Unread(number=7, state=PartitionState.FAILED, failure=failure)
        more = {"partition": None, "unread": (unread,), "metadata_partition": None}
    elif name == "file_unusable":
        file = f"{_STATE}/snapshots/7-1200.snapshot"
        trouble = LastError(message=f"{file}: permission denied", at_ms=NOW_MS - 2_000, file=file)
        more = {"state": PartitionState.STARTING, "trouble": trouble}
    else:
        more = {"offline": True, "facts_at_ms": NOW_MS - 60_000, "recorded_position": 1_200}
        if name == "offline_log_corrupt":
            more |= {"damage": _EVIDENCE[FailureReason.LOG_CORRUPT], "log_end": 1_200}
        else:
            more |= {"log_end": 900}
    base: dict[str, Any] = {
        "selector": "orders-0",
        "partition": _ORDERS,
        "now_ms": NOW_MS,
        "metadata_partition": 7,
        "state": PartitionState.FAILED,
        "position": 1_200,
        "log_end": None if name in {each.value for each in _WHOLE} else 1_200,
    }
    return Facts(**(base | more))


def sections(page: Path) -> dict[str, str]:
    """Return the text below each heading of the second level."""
    parts = re.split(r"^## (.+)$", page.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
