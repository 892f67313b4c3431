"""The rows of `explain`: every cause, in the order in which they are tried."""

import enum
from collections.abc import Iterable
from typing import Final

from rlmm_daemon.core import phrases
from rlmm_daemon.core.explain import evidence
from rlmm_daemon.core.explain.facts import AnnouncedRole, Facts, Unread
from rlmm_daemon.core.explain.offline_causes import OFFLINE_CAUSES
from rlmm_daemon.core.explain.offset_causes import OFFSET_CAUSES
from rlmm_daemon.core.explain.removal_causes import REMOVAL_CAUSES, live
from rlmm_daemon.core.explain.verdict import Cause, Verdict
from rlmm_daemon.core.readiness.states import FAILURES, FailureReason, PartitionState
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.domain.segment import SegmentState

#: Of the metadata partitions that are not read, so many are named.
_UNREAD: Final = 5
S, P, R = SegmentState, PartitionState, FailureReason


def _failed(reason: FailureReason, sentence: str) -> Cause:
    def command(f: Facts) -> str:
        failure = evidence.failure(f)
        instead = None if failure is None else failure.instead
        return instead or FAILURES[reason].command.format(partition=evidence.number(f))

    def applies(f: Facts) -> bool:
        failure = evidence.failure(f)
        return failure is not None and failure.reason is reason

    return Cause(
        name=reason.value,
        verdict=Verdict.FAILED,
        applies=applies,
        sentence=lambda _: sentence,
        evidence=evidence.why_failed,
        command=command,
        covers=frozenset[enum.Enum]({reason, P.FAILED}),
    )


def _in(state: PartitionState, f: Facts) -> bool:
    return not f.offline and f.state is state


def _file(f: Facts) -> str | None:
    """Return the file of this machine that a partition waits for."""
    return None if f.trouble is None else f.trouble.file


def _is_snapshot(f: Facts) -> bool:
    return (_file(f) or "").endswith(".snapshot")


_LOG_FILE: Final = (
    " Of a file of the event log that its disk can't read any more, save what it can: stop the "
    "daemon, `dd if=FILE of=FILE.new bs=4096 conv=noerror,sync`, `chown --reference=FILE "
    "FILE.new`, move it to the name and start: what was lost is then log_corrupt "
    "or history_lost, and rlmm explain says what ends it."
)


def _unread(f: Facts) -> Iterable[str]:
    yield f"asked for: {f.selector}"
    for each in f.unread[:_UNREAD]:
        yield f"metadata partition {each.number} is {each.words}"


def _unread_failure(f: Facts) -> Unread | None:
    return next((each for each in f.unread if each.failure is not None), None)


def _end_unread_failure(f: Facts) -> str:
    failed = _unread_failure(f)
    assert failed is not None, "the row applies only then"
    assert failed.failure is not None, "as it was chosen"
    return failed.failure.command(MetadataPartition(failed.number))


def _no_segment(f: Facts) -> str:
    """Say why a partition has none, as far as that is known: what is lost may have named some."""
    if f.on_hold:
        return "The log names no segment; a hold keeps what lost events may have named."
    if f.lacks_offsets:
        return "The log names no live segment; events that are lost may have named some."
    if f.known:
        return "All segments that were ever copied are deleted."
    return "No segment was ever copied."


_DAEMON: Final = (
    _failed(
        R.LOG_MISSING,
        "The event log that this daemon knew is not there, so nothing can be said. See first that "
        "its disk is mounted and the configuration names the right one: it is looked for every few "
        "seconds. Else put a copy back, or use rlmm log restore. Only if neither is left, rlmm "
        "partition accept-loss --all begins an empty one.",
    ),
    _failed(
        R.NO_TOPIC_ID,
        "The cluster gives the metadata topic no id, so a topic that was deleted and created again "
        "could not be told from it. Upgrade the cluster's metadata.version.",
    ),
    _failed(
        R.PARTITION_COUNT_CHANGED,
        "The event log has another number of partitions than at first contact, so a partition's "
        "events can't be found by its hash any more.",
    ),
    Cause(
        name="segments_held",
        verdict=Verdict.FAILED,
        applies=lambda f: f.whole_failure is None and f.alarmed,
        sentence=lambda _: (
            "A copy was taken for stuck and marked for deletion after it had been finished. "
            "Nothing of it was deleted; until it is put back, nothing is answered about this "
            "metadata partition, since an empty answer would make brokers delete data."
        ),
        evidence=evidence.why_failed,
        command=lambda f: f"rlmm log repair {evidence.number(f)}",
    ),
    _failed(
        R.HISTORY_LOST,
        "Events that had been acknowledged are missing from the event log. Nothing is answered "
        "about this partition, since an empty answer would make brokers delete data.",
    ),
    _failed(
        R.LOG_CORRUPT,
        "The event log holds an invalid batch that no crash explains, so what stands behind it "
        "can't be trusted.",
    ),
    _failed(
        R.CRASH_LOOP,
        "The daemon crashed three times within a minute on this metadata partition; it is set "
        "aside so that the others serve.",
    ),
    _failed(
        R.NEWER_LOG,
        "A newer version of this program wrote the event log. Nothing of it is damaged or was "
        "touched; start that version again.",
    ),
    _failed(
        R.NEWER_STATE,
        "A newer version of this program wrote down which segments it missed in the event log. "
        "The list was not touched; start that version again.",
    ),
    _failed(
        R.NEWER_SNAPSHOT,
        "A newer version of this program wrote the snapshot, and left the event log whole. Start "
        "that version again; or give the snapshot up, and the log is replayed from its start.",
    ),
    _failed(
        R.LOG_UNNAMED,
        "The file that names the event log is damaged or gone, so nobody can tell whose events "
        "these are. They are not damaged themselves: keep the directory. The next command says "
        "whether the state directory remembers the name, and with --execute writes it; else a copy "
        "of that file has to be put back.",
    ),
    _failed(
        R.LOG_FOREIGN,
        "The event log that the configuration names is another cluster's. It was left as it is, "
        "and so was all that this daemon knows: name this cluster's own log in the configuration, "
        "or put its directory back in its place.",
    ),
    _failed(
        R.PRESENCE_UNREAD,
        "A daemon says in its presence file, in the bucket, how far it had read the event log. One "
        "can't be read, so the log may lack what that daemon acknowledged, and an empty answer "
        "would make brokers delete data. It ends by itself once the file can be read: another "
        "broker's daemon that runs writes its own anew within a minute; start the newer version "
        "that wrote it, or put a copy of it back. Else look for what the log lacks, then accept.",
    ),
    Cause(
        name="marker_unread",
        verdict=Verdict.WAITING,
        applies=lambda f: not f.offline and not f.log_open and f.marker_trouble is not None,
        sentence=lambda _: (
            "The remote storage's marker, which names the event log that belongs to it, was not "
            "read yet; until then nothing is answered."
        ),
        evidence=lambda f: (
            f.marker_trouble or "",
            *evidence.last_error(f.storage_error, f.now_ms),
        ),
        command=lambda _: "rlmm doctor",
    ),
    Cause(
        name="log_not_open",
        verdict=Verdict.WAITING,
        applies=lambda f: not f.offline and not f.log_open,
        sentence=lambda _: "The event log is not open yet; it is tried again and again.",
        evidence=lambda f: [] if f.log_trouble is None else [f.log_trouble],
        command=lambda _: "rlmm doctor",
    ),
    Cause(
        name="not_read_failed",
        verdict=Verdict.FAILED,
        applies=lambda f: f.partition is None and _unread_failure(f) is not None,
        sentence=lambda _: (
            "No event that was read names this partition, but a metadata partition failed, and "
            "whether it names it nobody can tell."
        ),
        evidence=_unread,
        command=_end_unread_failure,
    ),
    Cause(
        name="not_read_yet",
        verdict=Verdict.WAITING,
        applies=lambda f: f.partition is None and bool(f.unread),
        sentence=lambda f: (
            "No event that was read so far names this partition, but "
            f"{phrases.number(len(f.unread), 'metadata partition')} "
            f"{'is' if len(f.unread) == 1 else 'are'} not read to the end."
        ),
        evidence=_unread,
        command=lambda _: "rlmm partitions",
    ),
    Cause(
        name="unknown_partition",
        verdict=Verdict.UNKNOWN,
        applies=lambda f: f.partition is None,
        sentence=lambda _: "No event of the log names this partition, and nobody announced it.",
        evidence=lambda f: [f"asked for: {f.selector}"],
        command=lambda _: "rlmm partitions --users",
    ),
    Cause(
        name="draining",
        verdict=Verdict.WAITING,
        applies=lambda f: f.draining,
        sentence=lambda _: "The daemon is shutting down and takes no new work.",
        command=lambda _: "systemctl status rlmm-daemon",
    ),
)

_ASSIGNMENT: Final = (
    Cause(
        name="gate_closed",
        verdict=Verdict.WAITING,
        applies=lambda f: (
            not f.offline
            and f.question is None
            and f.gate_open is False
            and f.delete_state is None  # whoever asks about a topic that goes asks why it is there
        ),
        sentence=lambda _: (
            "The broker has not announced its partitions since it, or this daemon, started. Until "
            "it does, its reads hear not_ready; operators are answered."
        ),
        evidence=lambda f: (*live(f), *evidence.where(f)),
        command=lambda _: "rlmm status",
    ),
    Cause(
        name="not_announced",
        verdict=Verdict.REFUSED,
        applies=lambda f: (
            not f.offline
            and f.question is None
            and f.role is AnnouncedRole.NONE
            and f.delete_state is None  # a topic that goes is announced by nobody
        ),
        sentence=lambda _: (
            "The broker did not announce this partition, so it hears not_assigned; operators are "
            "answered. Another broker may lead it."
        ),
        evidence=lambda f: (*live(f), *evidence.where(f)),
        command=lambda f: (
            f"kafka-topics.sh --bootstrap-server HOST:PORT --describe --topic {evidence.topic(f)}"
        ),
    ),
)

_STATES: Final = (
    Cause(
        name="not_followed",
        verdict=Verdict.WAITING,
        applies=lambda f: _in(P.UNASSIGNED, f),
        sentence=lambda f: f"Metadata partition {evidence.number(f)} is about to be followed.",
        evidence=evidence.role,
        command=lambda f: f"rlmm explain {evidence.argument(f)}",
        covers=frozenset({P.UNASSIGNED}),
    ),
    Cause(
        name="file_unusable",
        verdict=Verdict.FAILED,
        applies=lambda f: (_in(P.STARTING, f) or _in(P.REPLAYING, f)) and _file(f) is not None,
        sentence=lambda f: (
            f"{_file(f)}, which metadata partition {evidence.number(f)} needs, can't be used. Let "
            "the daemon's user read and write it, mend the disk, or put it back from a copy: it is "
            "tried again and again."
            + (
                " A snapshot can be given up as well: the log is read from its start instead."
                if _is_snapshot(f)
                else ""
            )
            + (_LOG_FILE if (_file(f) or "").endswith(".log") else "")
        ),
        evidence=lambda f: (*evidence.last_error(f.trouble, f.now_ms), *evidence.where(f)),
        command=lambda f: (
            f"rlmm partition rebuild {evidence.number(f)}"
            if _is_snapshot(f)
            else f"ls -l {_file(f)}"
        ),
        covers=frozenset({P.STARTING, P.REPLAYING}),
    ),
    Cause(
        name="log_unreachable",
        verdict=Verdict.WAITING,
        applies=lambda f: (_in(P.STARTING, f) or _in(P.REPLAYING, f)) and f.trouble is not None,
        sentence=lambda f: (
            f"Metadata partition {evidence.number(f)} can't be read at the moment; it is tried "
            "again and again."
        ),
        evidence=lambda f: (*evidence.silence(f), *evidence.where(f)),
        command=lambda _: "rlmm doctor",
        covers=frozenset({P.STARTING, P.REPLAYING}),
    ),
    Cause(
        name="starting",
        verdict=Verdict.WAITING,
        applies=lambda f: _in(P.STARTING, f),
        sentence=lambda f: (
            f"Metadata partition {evidence.number(f)} is starting: its snapshot and what had been "
            "read before are held against the log."
        ),
        evidence=lambda f: (*evidence.where(f), *evidence.snapshot(f)),
        command=lambda f: f"rlmm explain {evidence.argument(f)}",
        covers=frozenset({P.STARTING}),
    ),
    Cause(
        name="end_unknown",
        verdict=Verdict.WAITING,
        applies=lambda f: _in(P.REPLAYING, f) and f.target is None,
        sentence=lambda f: (
            f"Metadata partition {evidence.number(f)} is being replayed, and the log has not said "
            "where it ends, so nobody can tell whether that is all."
        ),
        evidence=lambda f: (*evidence.where(f), *evidence.silence(f)),
        command=lambda _: "rlmm doctor",
        covers=frozenset({P.REPLAYING}),
    ),
    Cause(
        name="replaying",
        verdict=Verdict.WAITING,
        applies=lambda f: _in(P.REPLAYING, f),
        sentence=lambda f: (
            f"Metadata partition {evidence.number(f)} is being replayed: "
            f"{phrases.number(f.lag or 0, 'event')} to go."
        ),
        evidence=lambda f: (*evidence.where(f), *evidence.snapshot(f)),
        command=lambda f: f"rlmm explain {evidence.argument(f)}",
        covers=frozenset({P.REPLAYING}),
    ),
    Cause(
        name="stale",
        verdict=Verdict.STALE,
        applies=lambda f: _in(P.STALE, f),
        sentence=lambda f: (
            f"The event log has not answered for {phrases.duration(f.silent_seconds)}. A segment "
            "that is there is still found; every other answer is not_ready."
        ),
        evidence=lambda f: (*evidence.last_error(f.trouble, f.now_ms), *evidence.where(f)),
        command=lambda _: "rlmm doctor",
        covers=frozenset({P.STALE}),
    ),
    Cause(
        name="quiet",
        verdict=Verdict.STALE,
        applies=lambda f: _in(P.READY, f) and f.silent_seconds > f.freshness.strict_after_seconds,
        sentence=lambda f: (
            f"The event log has not answered for {phrases.duration(f.silent_seconds)}. Highest "
            "offsets and is_ready wait for it; look-ups and listings are answered."
        ),
        evidence=lambda f: (*evidence.last_error(f.trouble, f.now_ms), *evidence.where(f)),
        command=lambda _: "rlmm doctor",
        covers=frozenset({P.READY}),
    ),
    Cause(
        name="unconfirmed",
        verdict=Verdict.WAITING,
        applies=lambda f: _in(P.READY, f) and not f.confirmed,
        sentence=lambda _: (
            "The partition was announced a moment ago: a segment that is there is found; every "
            "other answer waits until the log's end, asked for since then, is reached."
        ),
        evidence=lambda f: (*evidence.role(f), *evidence.where(f)),
        command=lambda f: f"rlmm explain {evidence.argument(f)}",
        covers=frozenset({P.READY}),
    ),
)

_READY: Final = (
    Cause(
        name="offline",
        verdict=Verdict.UNKNOWN,
        applies=lambda f: f.offline,
        sentence=lambda f: (
            f"The files show nothing wrong with metadata partition {evidence.number(f)}. Whether "
            "it is ready only a running daemon can say."
        ),
        evidence=lambda f: (*evidence.recorded(f), *live(f), *evidence.last_event(f)),
        command=lambda _: "systemctl status rlmm-daemon",
        harmless=True,
    ),
    Cause(
        name="ready_empty",
        verdict=Verdict.READY,
        applies=lambda f: not any(at.count for at in f.segments.values()),
        sentence=lambda f: f"Every question is answered. {_no_segment(f)}",
        evidence=lambda f: (*evidence.role(f), *evidence.where(f), *evidence.snapshot(f)),
        command=lambda f: f"rlmm segments {evidence.argument(f)}",
        covers=frozenset({P.READY, S.DELETE_SEGMENT_FINISHED}),
    ),
    Cause(
        name="ready",
        verdict=Verdict.READY,
        applies=lambda _: True,
        sentence=lambda f: (
            "Every question is answered. "
            f"{phrases.number(f.count(S.COPY_SEGMENT_FINISHED).count, 'segment')} can be read."
        ),
        evidence=lambda f: (
            *live(f),
            *evidence.last_event(f),
            *evidence.role(f),
            *evidence.where(f),
            *evidence.snapshot(f),
        ),
        command=lambda f: f"rlmm segments {evidence.argument(f)}",
        covers=frozenset({P.READY, S.COPY_SEGMENT_FINISHED}),
    ),
)

#: Tried from the top; the last one always applies.
CAUSES: Final = (
    *OFFLINE_CAUSES,
    *_DAEMON,
    *_ASSIGNMENT,
    *_STATES,
    *OFFSET_CAUSES,
    *REMOVAL_CAUSES,
    *_READY,
)
