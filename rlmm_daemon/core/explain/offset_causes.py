"""The rows of `explain` about one offset: why a segment answers for it, or why none does."""

from collections.abc import Iterable
from typing import Final

from rlmm_daemon.core import phrases
from rlmm_daemon.core.explain import evidence
from rlmm_daemon.core.explain.facts import Facts, OffsetFacts, SegmentFact
from rlmm_daemon.core.explain.verdict import Cause, Verdict
from rlmm_daemon.domain.segment import SegmentState

S = SegmentState


def _asked(f: Facts) -> OffsetFacts:
    assert f.question is not None, "rows about an offset apply only if one was asked for"
    return f.question


def _place(f: Facts) -> str:
    asked = _asked(f)
    epoch = "" if asked.epoch is None else f" of leader epoch {asked.epoch}"
    return f"offset {asked.offset}{epoch}"


def _part(fact: SegmentFact, f: Facts) -> str:
    return (
        f"segment {fact.segment_id}: {fact.start_offset} to {fact.end_offset} in epoch "
        f"{fact.epoch}, {fact.state.name} by broker {fact.broker_id}, "
        f"{phrases.ago(fact.event_at_ms, f.now_ms)}"
    )


def _parts(f: Facts) -> Iterable[str]:
    asked = _asked(f)
    others = (*asked.unreadable, *asked.elsewhere, asked.before, asked.after)
    facts = others if asked.found is None else (asked.found,)
    yield from (_part(fact, f) for fact in facts if fact is not None)
    if asked.epochs:
        yield f"epochs with segments: {', '.join(map(str, asked.epochs))}"
    yield from evidence.where(f)


def _held_in(state: SegmentState, f: Facts) -> bool:
    return f.question is not None and any(s.state is state for s in f.question.unreadable)


def _elsewhere(f: Facts) -> bool:
    return f.question is not None and bool(f.question.elsewhere)


def _lookup(f: Facts) -> str:
    asked = _asked(f)
    epoch = asked.elsewhere[0].epoch if asked.elsewhere else asked.epoch or 0
    return f"rlmm lookup {evidence.argument(f)} {epoch} {asked.offset}"


def _segments(f: Facts) -> str:
    asked = f.question
    epoch = "" if asked is None or asked.epoch is None else f" --epoch {asked.epoch}"
    return f"rlmm segments {evidence.argument(f)}{epoch}"


#: Tried in this order; the last one always applies if an offset was asked for.
OFFSET_CAUSES: Final = (
    Cause(
        name="offset_found",
        verdict=Verdict.READY,
        applies=lambda f: f.question is not None and f.question.found is not None,
        sentence=lambda f: f"A finished segment holds {_place(f)}.",
        evidence=_parts,
        command=lambda f: (
            f"rlmm lookup {evidence.argument(f)} {_asked(f).found.epoch} {_asked(f).offset}"  # type: ignore[union-attr] # as `applies` has it
        ),
    ),
    Cause(
        name="offset_being_copied",
        verdict=Verdict.WAITING,
        applies=lambda f: _held_in(S.COPY_SEGMENT_STARTED, f),
        sentence=lambda f: (
            f"The segment that holds {_place(f)} is not copied yet: its copy was begun and "
            "COPY_SEGMENT_FINISHED has not come."
        ),
        evidence=_parts,
        command=_segments,
    ),
    Cause(
        name="offset_being_deleted",
        verdict=Verdict.REFUSED,
        applies=lambda f: _held_in(S.DELETE_SEGMENT_STARTED, f),
        sentence=lambda f: (
            f"The segment that held {_place(f)} is being deleted, so it is not read any more."
        ),
        evidence=_parts,
        command=_segments,
    ),
    Cause(
        name="offset_in_other_epoch",
        verdict=Verdict.REFUSED,
        applies=_elsewhere,
        sentence=lambda f: (
            f"No segment holds {_place(f)}, but one holds that offset in epoch "
            f"{_asked(f).elsewhere[0].epoch}: a look-up has to name that epoch."
        ),
        evidence=_parts,
        command=_lookup,
    ),
    Cause(
        name="offset_without_segments",
        verdict=Verdict.REFUSED,
        applies=lambda f: f.question is not None and not f.question.epochs,
        sentence=lambda f: (
            f"No segment holds {_place(f)}: the partition has no segment in remote storage at all."
        ),
        evidence=_parts,
        command=_segments,
    ),
    Cause(
        name="offset_epoch_unknown",
        verdict=Verdict.REFUSED,
        applies=lambda f: (
            f.question is not None
            and f.question.epoch is not None
            and f.question.epoch not in f.question.epochs
        ),
        sentence=lambda f: f"No segment holds {_place(f)}: none has a part in that epoch.",
        evidence=_parts,
        command=lambda f: f"rlmm segments {evidence.argument(f)}",
    ),
    Cause(
        name="offset_not_copied_yet",
        verdict=Verdict.WAITING,
        applies=lambda f: (
            f.question is not None and f.question.before is not None and f.question.after is None
        ),
        sentence=lambda f: (
            f"No segment reaches {_place(f)}: the last one ends before it. Either it was not "
            "copied yet (Kafka never copies the active segment), or the epoch ended earlier."
        ),
        evidence=_parts,
        command=_segments,
    ),
    Cause(
        name="offset_before_first",
        verdict=Verdict.REFUSED,
        applies=lambda f: (
            f.question is not None and f.question.before is None and f.question.after is not None
        ),
        sentence=lambda f: (
            f"No segment reaches back to {_place(f)}: the first one begins behind it. Retention "
            "deletes from the front, and data from before tiering was never copied."
        ),
        evidence=_parts,
        command=_segments,
    ),
    Cause(
        name="offset_in_gap",
        verdict=Verdict.REFUSED,
        applies=lambda f: f.question is not None,
        sentence=lambda f: (
            f"No segment holds {_place(f)}, although there are segments before and behind it: "
            "it was in another epoch, or its segment was deleted or never finished."
        ),
        evidence=_parts,
        command=lambda f: f"rlmm segments {evidence.argument(f)}",
    ),
)
