"""Notices that `explain` gives besides the cause: copies under way, and what is out of order."""

from collections.abc import Iterable
from typing import Final

from rlmm_daemon.core import phrases
from rlmm_daemon.core.explain import evidence
from rlmm_daemon.core.explain.facts import CopyPhase, Facts
from rlmm_daemon.core.explain.removal_causes import REMOVAL_NOTICES
from rlmm_daemon.core.explain.verdict import NoticeRow
from rlmm_daemon.core.storage.pace import slow_words
from rlmm_daemon.domain.segment import SegmentState

S = SegmentState
#: A delete that takes longer than this is worth a word.
DELETE_SECONDS_MAX: Final = 3600
#: A pause that is older was perhaps forgotten: the broker's disk fills meanwhile.
PAUSE_SECONDS_MAX: Final = 12 * 3600


_PHASES: Final = {
    CopyPhase.QUEUED: "waits for its turn",
    CopyPhase.OPEN: "is opening the segment's files",
    CopyPhase.APPLY: "waits until COPY_SEGMENT_STARTED is applied here",
    CopyPhase.UPLOAD: "is writing to the remote storage",
    CopyPhase.CHECK: "is checking what the remote storage holds",
    CopyPhase.FINISH: "is publishing COPY_SEGMENT_FINISHED",
    CopyPhase.ROLL_BACK: "failed and is being rolled back",
}
assert _PHASES.keys() == set(CopyPhase), "every phase of a copy has its words"


def _phase(phase: CopyPhase, words: str) -> NoticeRow:
    def sentence(f: Facts) -> str:
        copies = [copy for copy in f.copies if copy.phase is phase]
        copy = max(copies, key=lambda each: each.age_seconds)
        more = f" (and {len(copies) - 1} more)" if len(copies) > 1 else ""
        done = f"{phrases.size(copy.bytes_done)} of {phrases.size(copy.bytes_total)}"
        parts = f", {phrases.number(copy.parts_done, 'part')}" if copy.parts_done else ""
        call = f", in {copy.call}" if copy.call else ""
        return (
            f"The copy of segment {copy.segment_id} {words}{more}: {done}{parts}{call}, for "
            f"{phrases.duration(copy.age_seconds)}."
        )

    return NoticeRow(
        name=f"copy_{phase.value.replace(' ', '_')}",
        applies=lambda f: any(copy.phase is phase for copy in f.copies),
        sentence=sentence,
        command=lambda _: "rlmm status",
        trouble=phase is CopyPhase.ROLL_BACK,
        covers=frozenset({phase}),
    )


def _paused(f: Facts) -> str:
    return (
        "Copies of this topic were paused at this daemon "
        f"{phrases.ago(f.paused_since_ms or 0, f.now_ms)}: the broker asks again and again, "
        "and keeps on its own disk what is not copied. Reads and deletes go on."
    )


def _paused_for_long(f: Facts) -> bool:
    since_ms = f.paused_since_ms
    return since_ms is not None and f.now_ms - since_ms > PAUSE_SECONDS_MAX * 1000


def _copy_failed(f: Facts) -> str:
    failed = f.copy_failure
    assert failed is not None, "the row applies only then"
    return (
        f"The last copy, of segment {failed.segment_id}, failed, "
        f"{phrases.ago(failed.at_ms, f.now_ms)}: {failed.message.rstrip('.')}."
    )


def _unsettled(f: Facts) -> str:
    last = f.unsettled[0]
    more = f" (and {len(f.unsettled) - 1} more)" if len(f.unsettled) > 1 else ""
    return (
        f"The copy of segment {last.segment_id}{more} failed here, "
        f"{phrases.ago(last.at_ms, f.now_ms)}, while somebody else reported the segment as "
        f"finished: nothing was deleted, and its objects may not be whole."
    )


def _unfinished(f: Facts) -> bool:
    at = f.count(S.COPY_SEGMENT_STARTED)
    working = {copy.segment_id for copy in f.copies}
    too_old = f.now_ms - at.oldest_at_ms > f.copy_deadline_seconds * 1000
    return at.count > 0 and at.oldest_id not in working and too_old


def _undeleted(f: Facts) -> bool:
    at = f.count(S.DELETE_SEGMENT_STARTED)
    return at.count > 0 and f.now_ms - at.oldest_at_ms > DELETE_SECONDS_MAX * 1000


def _pending(f: Facts, state: SegmentState) -> str:
    at = f.count(state)
    return f"oldest: segment {at.oldest_id}, {phrases.ago(at.oldest_at_ms, f.now_ms)}"


def _delete(f: Facts, state: SegmentState) -> str:
    """Return how to end the oldest, but never a delete of what may have been finished."""
    if f.storage_kind == "none":  # whoever stored it deletes it
        return f"rlmm segments {evidence.argument(f)}"
    if f.on_hold:
        return f"rlmm log recover {evidence.number(f)}"
    if f.history_in_doubt:
        return "rlmm cleanup"
    return f"rlmm delete {evidence.argument(f)} {f.count(state).oldest_id}"


def _lookups(f: Facts) -> str:
    """What a side without a majority answers: what it had read before, and nothing else."""
    if f.log_open:
        return "Look-ups are answered as long as what was read is fresh enough"
    return (
        "No look-up is answered before a leader says what this daemon, which started meanwhile, "
        "has to have read"
    )


def _reasons(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in sorted(counts))


#: Said besides the cause, in this order.
NOTICES: Final = (
    *(_phase(phase, words) for phase, words in _PHASES.items()),
    NoticeRow(
        name="copies_paused",
        applies=lambda f: f.paused_since_ms is not None and not _paused_for_long(f),
        sentence=_paused,
        command=lambda f: f"rlmm resume {evidence.topic(f)}",
        trouble=False,
    ),
    NoticeRow(
        name="pause_forgotten",
        applies=_paused_for_long,
        sentence=lambda f: f"{_paused(f)} Is that still meant to be?",
        command=lambda f: f"rlmm resume {evidence.topic(f)}",
    ),
    NoticeRow(
        name="pauses_unknown",
        applies=lambda f: f.pause_trouble is not None,
        sentence=lambda f: f"Nobody can tell which topics are paused: {f.pause_trouble}.",
        command=lambda f: f"rlmm resume {evidence.topic(f)}",
    ),
    NoticeRow(
        name="copy_failed",
        applies=lambda f: f.copy_failure is not None,
        sentence=_copy_failed,
        command=lambda f: f"rlmm segments {evidence.argument(f)}",
    ),
    NoticeRow(
        name="copy_unsettled",
        applies=lambda f: bool(f.unsettled),
        sentence=_unsettled,
        command=lambda _: "rlmm storage verify",
    ),
    NoticeRow(
        name="copy_unfinished",
        applies=lambda f: _unfinished(f) and not f.removal.copies,
        sentence=lambda f: (
            f"{phrases.number(f.count(S.COPY_SEGMENT_STARTED).count, 'copy', 'copies')} begun and "
            f"not finished within the deadline; {_pending(f, S.COPY_SEGMENT_STARTED)}. No copy of "
            "it runs here."
        ),
        command=lambda f: _delete(f, S.COPY_SEGMENT_STARTED),
        covers=frozenset({S.COPY_SEGMENT_STARTED}),
    ),
    NoticeRow(
        name="delete_unfinished",
        applies=lambda f: _undeleted(f) and not f.removal.deletes,
        sentence=lambda f: (
            f"{phrases.number(f.count(S.DELETE_SEGMENT_STARTED).count, 'delete')} begun and not "
            f"finished; {_pending(f, S.DELETE_SEGMENT_STARTED)}."
        ),
        command=lambda f: _delete(f, S.DELETE_SEGMENT_STARTED),
        covers=frozenset({S.DELETE_SEGMENT_STARTED}),
    ),
    NoticeRow(
        name="held",
        applies=lambda f: f.held > 0,
        sentence=lambda f: (
            f"{phrases.number(f.held, 'segment')} of this partition "
            f"{'is' if f.held == 1 else 'are'} held: finished, then marked for deletion as a stuck "
            "copy. Nothing deletes what is held; putting it back makes it finished again."
        ),
        command=lambda f: f"rlmm log repair {evidence.number(f)}",
    ),
    *REMOVAL_NOTICES,
    NoticeRow(
        name="log_may_lose_events",
        applies=lambda f: bool(f.log_warnings),
        sentence=lambda f: (
            f"The metadata topic is not set to keep every event: {'; '.join(f.log_warnings)}."
        ),
        command=lambda _: "rlmm doctor",
    ),
    NoticeRow(
        name="log_takes_no_writes",
        applies=lambda f: bool(f.log_refusal),
        sentence=lambda f: (
            f"The event log takes no writes: {f.log_refusal}. Reads are answered; copies and "
            "deletes hear storage_full until its disk has room for one, which needs no restart."
        ),
        command=lambda _: "rlmm doctor",
    ),
    NoticeRow(
        name="quorum_takes_no_writes",
        applies=lambda f: bool(f.leaderless),
        sentence=lambda f: (
            f"The quorum takes no writes here: {f.leaderless}. {_lookups(f)}; copies and deletes "
            "hear storage_unavailable until most voters hear each other again, which needs no "
            "restart."
        ),
        command=lambda _: "rlmm status",
    ),
    NoticeRow(
        name="storage_trouble",
        applies=lambda f: f.storage_error is not None,
        sentence=lambda f: (
            f"The remote storage ({f.storage_kind}) does not work as it should; "
            f"{next(iter(evidence.last_error(f.storage_error, f.now_ms)))}."
        ),
        command=lambda _: "rlmm doctor",
    ),
    NoticeRow(
        name="storage_slow",
        applies=lambda f: slow_words(f.storage_answer_seconds) is not None,
        sentence=lambda f: (
            f"The remote storage ({f.storage_kind}) is slow: "
            f"{slow_words(f.storage_answer_seconds)}. Copies and reads take longer; nothing is "
            "lost, and all is as before once it is quick again."
        ),
        command=lambda _: "rlmm doctor",
    ),
    NoticeRow(
        name="other_daemon",
        applies=lambda f: f.other_daemon is not None,
        sentence=lambda f: (
            "Two daemons run under one broker id, and neither knows what the other acknowledges; "
            f"{next(iter(evidence.last_error(f.other_daemon, f.now_ms)))}."
        ),
        command=lambda _: "rlmm status",
    ),
    NoticeRow(
        name="shadowed",
        applies=lambda f: f.third_set > 0,
        sentence=lambda f: (
            f"{phrases.number(f.third_set, 'finished segment')} replaced by a shorter one of the "
            "same start: look-ups still use it, listings leave it out as Kafka does, so retention "
            "will not delete it. The cleaner does once listed segments hold all its offsets."
        ),
        command=lambda f: f"rlmm segments {evidence.argument(f)}",
    ),
    NoticeRow(
        name="two_writers",
        applies=lambda f: bool(f.late_writers),
        sentence=lambda f: (
            "Copies were finished by a broker after another one had begun to copy: "
            f"{_reasons((f'broker {broker}', count) for broker, count in f.late_writers.items())}. "
            "Usual after a change of leaders; if the number grows, two brokers copy at once."
        ),
        command=lambda f: f"rlmm segments {evidence.argument(f)}",
        trouble=False,
    ),
    NoticeRow(
        name="rejected_events",
        applies=lambda f: bool(f.rejected),
        sentence=lambda f: (
            f"Metadata partition {evidence.number(f)} holds events that the life cycle forbids; "
            f"they changed nothing: {_reasons(f.rejected.items())}."
            + (f" The last one is at offset {f.last_rejected.offset}." if f.last_rejected else "")
        ),
        command=lambda f: _tail(f, f.last_rejected.offset if f.last_rejected else None),
    ),
    NoticeRow(
        name="unreadable_records",
        applies=lambda f: bool(f.unreadable),
        sentence=lambda f: (
            f"Metadata partition {evidence.number(f)} holds records that are no events; they were "
            f"passed over: {_reasons(f.unreadable.items())}."
            + (
                f" The last one is at offset {f.last_unreadable.offset}."
                if f.last_unreadable
                else ""
            )
        ),
        command=lambda f: _tail(f, f.last_unreadable.offset if f.last_unreadable else None),
    ),
)


def _tail(f: Facts, offset: int | None) -> str:
    start = "" if offset is None else f" --from {offset}"
    return f"rlmm tail --partition {evidence.number(f)}{start}"
