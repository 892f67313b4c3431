"""Rows of `explain` about removals, stuck copies and deletes: why something is not deleted.

Each step that waits has its words here; the tables are asserted total, so a step that nobody can
explain is an import error.
"""

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from rlmm_daemon.core import phrases
from rlmm_daemon.core.disposal.observation import UnknownClock
from rlmm_daemon.core.disposal.steps import HOLDS, CopyStep, DeleteStep, PartitionStep
from rlmm_daemon.core.explain import evidence
from rlmm_daemon.core.explain.facts import Facts, StuckFacts
from rlmm_daemon.core.explain.verdict import Cause, NoticeRow, Verdict
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentState

D, S = PartitionDeleteState, SegmentState
P = PartitionStep
_Command = Callable[[Facts], str]


def live(f: Facts) -> Iterable[str]:
    """Say how many segments are in which state."""
    words = {
        S.COPY_SEGMENT_FINISHED: "finished",
        S.COPY_SEGMENT_STARTED: "being copied",
        S.DELETE_SEGMENT_STARTED: "being deleted",
    }
    counted = [(f.count(state), word) for state, word in words.items()]
    parts = [
        f"{at.count:,} {word} ({phrases.size(at.size_bytes)})" for at, word in counted if at.count
    ]
    if parts:
        yield f"segments: {', '.join(parts)}"


def _cleanup(_: Facts) -> str:
    return "rlmm cleanup"


def _status(_: Facts) -> str:
    return "rlmm status"


def _repair(f: Facts) -> str:
    return f"rlmm log repair {evidence.number(f)}"


def _recover(f: Facts) -> str:
    return f"rlmm log recover {evidence.number(f)}"


def _segments(f: Facts) -> str:
    return f"rlmm segments {evidence.argument(f)}"


def _purge(f: Facts) -> str:
    if f.history_in_doubt:
        return _cleanup(f)
    return f"rlmm purge {'TOPIC_ID' if f.partition is None else uuid_text(f.partition.topic_id)}"


def _describe(f: Facts) -> str:
    topic_id = "TOPIC_ID" if f.partition is None else uuid_text(f.partition.topic_id)
    return f"kafka-topics.sh --bootstrap-server HOST:PORT --describe --topic-id {topic_id}"


_ALIVE: Final = (
    "its topic still exists: a broker knows the id, announces it or has a directory of it"
)
_UNANSWERED: Final = (
    "not every live broker has said whether its topic is gone or, beside an embedded log, the "
    "broker has not announced its partitions, or its log_dirs cannot be read"
)
_PEERS: Final = (
    "a registered broker may run Kafka's own metadata manager, which the last mark would end. "
    "Every object is deleted; only DELETE_PARTITION_FINISHED waits until each broker's daemon "
    "has its broker's plugin connected, or cleaner.jvm_peers = false"
)
_UNPROVEN: Final = (
    "is old, but nothing proves yet that its broker gave it up: a restart of the broker, a "
    "later copy of its partition, or its being unregistered would"
)
_REPORTED: Final = (
    "is old; the broker's metadata and storage managers are not both connected. Once they are, "
    "this daemon judges; if either is another one, only retention deletes it"
)
_FOREIGN: Final = (
    "is another storage manager's to end, which stored it and alone knows where its objects are"
)
_LOSS: Final = "is kept: its COPY_SEGMENT_FINISHED may be among the events whose loss was accepted"
_HELD: Final = "is held: it was finished when it was deleted as a stuck copy"
#: Why a removal waits, and what to type.
_HOLDS: Final[Mapping[PartitionStep, tuple[str, _Command]]] = {
    P.HOLD_ALIVE: (_ALIVE, _describe),
    P.HOLD_UNPROVEN: (_UNANSWERED, _status),
    P.HOLD_PEERS: (_PEERS, _cleanup),
}
#: The same where the answer is that its metadata partition failed.
_HOLDS_BESIDE: Final[Mapping[PartitionStep, tuple[str, _Command]]] = {
    P.HOLD_FAILED: ("its metadata partition failed, and nothing is judged by its fold", _status),
    P.HOLD_HELD_SEGMENT: ("a held segment has to be put back first", _repair),
}
assert _HOLDS.keys() | _HOLDS_BESIDE.keys() == HOLDS, "every reason to wait has its words"


def _hold(step: PartitionStep) -> Cause:
    words, command = _HOLDS[step]
    return Cause(
        name=f"removal_{step.value}",
        verdict=Verdict.WAITING,
        applies=lambda f: _is_marked(f) and f.removal.step is step,
        sentence=lambda _: f"The partition is marked for removal, and waits: {words}.",
        evidence=lambda f: (*_since(f), *live(f), *evidence.where(f)),
        command=command,
        covers=frozenset[enum.Enum]({step}),
    )


def _hold_beside(step: PartitionStep) -> NoticeRow:
    words, command = _HOLDS_BESIDE[step]
    return NoticeRow(
        name=f"removal_{step.value}",
        applies=lambda f: _is_marked(f) and f.removal.step is step,
        sentence=lambda _: f"The partition is marked for removal, and waits: {words}.",
        command=command,
        covers=frozenset[enum.Enum]({step}),
    )


def _is_marked(f: Facts) -> bool:
    return f.delete_state in (D.DELETE_PARTITION_MARKED, D.DELETE_PARTITION_STARTED)


def _since(f: Facts) -> Iterable[str]:
    if f.removal.step is not None:
        yield f"so since {phrases.ago(f.removal.since_ms, f.now_ms)}"


def _elsewhere(f: Facts) -> Iterable[str]:
    if f.removal.step is None and f.removal.owner is not None:
        yield (
            f"metadata partition {evidence.number(f)} is broker {f.removal.owner}'s: its daemon "
            "removes, and says what it waits for"
        )


def _progress(f: Facts) -> Iterable[str]:
    if f.removal.step is not None:
        deleted = phrases.number(f.removal.deleted, "segment")
        yield f"now: {f.removal.step.value}; {deleted} deleted by this daemon"


REMOVAL_CAUSES: Final = (
    *(_hold(step) for step in _HOLDS),
    Cause(
        name="removal_no_cleaner",
        verdict=Verdict.WAITING,
        applies=lambda f: _is_marked(f) and not f.offline and f.storage_kind == "none",
        sentence=lambda _: (
            "The partition is marked for removal; this daemon keeps metadata only, so another "
            "one has to remove it."
        ),
        evidence=lambda f: (*live(f), *evidence.where(f)),
        command=_segments,
    ),
    Cause(
        name="removal_failed",
        verdict=Verdict.WAITING,
        applies=lambda f: _is_marked(f) and f.removal.error is not None,
        sentence=lambda _: "The partition's removal met an error; it is tried again and again.",
        evidence=lambda f: (
            *evidence.last_error(f.removal.error, f.now_ms),
            *_progress(f),
            *live(f),
            *evidence.where(f),
        ),
        command=_cleanup,
    ),
    Cause(
        name="delete_marked",
        verdict=Verdict.WAITING,
        applies=lambda f: f.delete_state is D.DELETE_PARTITION_MARKED,
        sentence=lambda _: "The partition is marked for removal; nothing was deleted yet.",
        evidence=lambda f: (*_elsewhere(f), *live(f), *evidence.where(f)),
        command=_segments,
        covers=frozenset({D.DELETE_PARTITION_MARKED}),
    ),
    Cause(
        name="delete_started",
        verdict=Verdict.WAITING,
        applies=lambda f: f.delete_state is D.DELETE_PARTITION_STARTED,
        sentence=lambda _: "The partition's removal is under way: its segments are being deleted.",
        evidence=lambda f: (*_elsewhere(f), *_progress(f), *live(f), *evidence.where(f)),
        command=_segments,
        covers=frozenset({D.DELETE_PARTITION_STARTED}),
    ),
    Cause(
        name="delete_finished",
        verdict=Verdict.READY,
        applies=lambda f: f.delete_state is D.DELETE_PARTITION_FINISHED,
        sentence=lambda _: "The partition was removed: every segment and highest offset is gone.",
        evidence=evidence.where,
        command=_segments,
        covers=frozenset({D.DELETE_PARTITION_FINISHED}),
    ),
)

#: Why a copy that was begun is still there; whether it should not be so; what to type.
_COPIES: Final[Mapping[CopyStep, tuple[str, bool, _Command]]] = {
    CopyStep.LIVE: ("may be running still", False, _segments),
    CopyStep.NOT_OURS: ("is another broker's, whose own daemon judges it", False, _cleanup),
    CopyStep.REPORT: (
        _REPORTED,
        True,
        _segments,
    ),
    CopyStep.UNPROVEN: (_UNPROVEN, True, _segments),
    CopyStep.FAILED: ("waits for its metadata partition, which failed", True, _status),
    CopyStep.HOLD: (_LOSS, True, _recover),
    CopyStep.REMOVE: ("was given up by its broker and is being removed", False, _cleanup),
}
assert _COPIES.keys() == set(CopyStep), "every step of a copy has its words"

#: The same of a delete that was begun.
_DELETES: Final[Mapping[DeleteStep, tuple[str, bool, _Command]]] = {
    DeleteStep.WAIT: ("is left to the broker, whose own expiration repeats it", False, _segments),
    DeleteStep.NOT_OURS: ("is the metadata partition's owner's to end", False, _cleanup),
    DeleteStep.HELD: (_HELD, True, _repair),
    DeleteStep.FAILED: ("waits for its metadata partition, which failed", True, _status),
    DeleteStep.HOLD: (_LOSS, True, _recover),
    DeleteStep.FOREIGN: (_FOREIGN, True, _segments),
    DeleteStep.OBJECTS: ("waits until no copy can put objects any more", False, _cleanup),
    DeleteStep.FINISH: ("is being ended by this daemon", False, _cleanup),
}
assert _DELETES.keys() == set(DeleteStep), "every step of a delete has its words"


def _stuck(
    name: str,
    noun: str,
    step: CopyStep | DeleteStep,
    row: tuple[str, bool, _Command],
    *,
    found: Callable[[Facts], StuckFacts | None],
) -> NoticeRow:
    words, trouble, command = row

    def sentence(f: Facts) -> str:
        at = found(f)
        assert at is not None, "the row applies only then"
        more = f" (and {at.count - 1:,} more)" if at.count > 1 else ""
        began = phrases.ago(at.oldest_at_ms, f.now_ms)
        return f"The {noun} of segment {at.oldest_id}{more}, begun {began}, {words}."

    return NoticeRow(
        name=name,
        applies=lambda f: found(f) is not None,
        sentence=sentence,
        command=command,
        trouble=trouble,
        covers=frozenset[enum.Enum]({step}),
    )


def _copy(step: CopyStep) -> NoticeRow:
    name = f"copy_is_{step.name.lower()}"
    return _stuck(name, "copy", step, _COPIES[step], found=lambda f: f.removal.copies.get(step))


def _delete(step: DeleteStep) -> NoticeRow:
    name = f"delete_is_{step.name.lower()}"
    return _stuck(name, "delete", step, _DELETES[step], found=lambda f: f.removal.deletes.get(step))


_GRACE: Final = "it is marked for removal once that lasted the whole grace period"
#: A topic id that every live broker calls unknown: how its clock stands, whether it takes a person.
_CLOCKS: Final[Mapping[UnknownClock, tuple[str, bool, _Command]]] = {
    UnknownClock.RUNNING: (_GRACE, False, _cleanup),
    UnknownClock.LOOK_FAILED: (
        "the last look at the cluster failed, so its clock starts over",
        False,
        _cleanup,
    ),
    UnknownClock.TOO_FEW: (
        "only one of several brokers is live, so its clock does not run",
        False,
        _status,
    ),
    UnknownClock.NEVER_SEEN: (
        "this daemon never heard a broker know it, so it is never marked unasked",
        True,
        _purge,
    ),
    UnknownClock.ON_DISK: ("the broker's disks still hold a directory of it", False, _cleanup),
    UnknownClock.TOO_MANY: (
        "too many topics are unknown at once, which looks like a disaster; nothing is marked",
        True,
        _cleanup,
    ),
    UnknownClock.FOR_PURGE: (
        "its time was up beyond the hourly cap, so it takes a person",
        True,
        _purge,
    ),
}
assert _CLOCKS.keys() == set(UnknownClock), "every clock has its words"


def _observed(clock: UnknownClock) -> NoticeRow:
    words, trouble, command = _CLOCKS[clock]

    def sentence(f: Facts) -> str:
        observed = f.removal.observed
        assert observed is not None, "the row applies only then"
        when = ""
        if observed.since_ms is not None and observed.due_ms is not None:
            since = phrases.ago(observed.since_ms, f.now_ms)
            when = f" So since {since}; due {phrases.moment(observed.due_ms)}."
        return f"Every live broker calls the topic's id unknown: {words}.{when}"

    return NoticeRow(
        name=f"observed_{clock.name.lower()}",
        applies=lambda f: (
            f.removal.observed is not None
            and f.removal.observed.clock is clock
            and not _is_marked(f)
        ),
        sentence=sentence,
        command=command,
        trouble=trouble,
        covers=frozenset[enum.Enum]({clock}),
    )


#: What is not deleted yet, said beside the answer.
REMOVAL_NOTICES: Final = (
    *(_hold_beside(step) for step in _HOLDS_BESIDE),
    *(_observed(clock) for clock in UnknownClock),
    *(_copy(step) for step in CopyStep),
    *(_delete(step) for step in DeleteStep),
    NoticeRow(
        name="cleaning_fails",
        applies=lambda f: f.removal.trouble is not None,
        sentence=lambda f: (
            f"What this daemon deletes of the partition met an error: {f.removal.trouble}. It is "
            "tried again and again."
        ),
        command=_cleanup,
    ),
)
