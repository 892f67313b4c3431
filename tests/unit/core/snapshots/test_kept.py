"""What a compacted checkpoint keeps: it folds to the same, also for whoever knew less before."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rlmm_daemon.codec import records
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.snapshots import kept as module
from rlmm_daemon.core.snapshots.kept import Kept
from rlmm_daemon.daemon.following.history import History, _Known, finished
from rlmm_daemon.domain.ids import MetadataPartition
from tests.unit.core.snapshots.test_compaction import STEPS, folded, life, rows_of, same_from_here
from tests.unit.core.world import DELETE_FINISHED, DELETE_STARTED, FINISHED, add, update

P0 = MetadataPartition(0)


def kept_of(rows):
    kept = Kept(P0, 1)
    for offset, value in rows:
        kept.take(offset, value)
    list(kept.settle())
    return [row for row in rows if row[0] in kept]


def rows_from(steps):
    values = [records.encode(event) for step in steps for event in step]
    return list(enumerate(values))


def seen_by(dropped, position, rows):
    """Return what is missing and what has risen, to a daemon that replays these rows.

    It had a fold of all before `position`, by its snapshot or its list of lost segments.
    """
    history = History(P0, None)  # type: ignore[arg-type] # nothing is written down here
    known = _Known()
    for key, record in finished(dropped, lambda _damaged: None):
        known.put(key, record)
    history._missing, history.common_end = known, position
    fold = Fold(P0, 1)
    for offset, value in rows:
        history.applied(fold.apply(offset, value), offset)
    return sorted(history.missing), sorted(history._risen)


def test_of_a_segment_that_is_gone_its_last_event_stays():
    rows = rows_of([*life(1, 0, 9), *life(2, 10, 19, upto=FINISHED)])
    assert [offset for offset, _ in kept_of(rows)] == [6, 8, 10]


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=25), st.lists(STEPS, max_size=8))
def test_what_is_kept_and_any_tail_fold_to_what_all_and_that_tail_do(before, behind):
    rows = rows_from(before)
    kept = kept_of(rows)
    assert kept_of(kept) == kept, "it is compact"
    tail = [records.encode(event) for step in behind for event in step]
    same_from_here(folded(rows, len(rows)), folded(kept, len(rows)), tail)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(STEPS, max_size=10), min_size=2, max_size=4), st.lists(STEPS, max_size=5))
def test_checkpoints_of_checkpoints_change_nothing_either(parts, behind):
    rows: list[tuple[int, bytes]] = []
    kept: list[tuple[int, bytes]] = []
    for part in parts:
        more = [(len(rows) + at, value) for at, value in rows_from(part)]
        rows += more
        kept = kept_of(kept + more)
    tail = [records.encode(event) for step in behind for event in step]
    same_from_here(folded(rows, len(rows)), folded(kept, len(rows)), tail)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=15), st.lists(st.integers(1, 6), max_size=4))
def test_whoever_knew_less_before_misses_nothing_and_sees_nothing_rise(steps, gone):
    """A snapshot, a list of lost segments: they are older than the checkpoint, by anything."""
    ends = [[update(n, DELETE_STARTED), update(n, DELETE_FINISHED)] for n in gone]
    rows = rows_from([*steps, *ends, [add(7, 90, 99)]])
    kept = kept_of(rows)
    for position in range(len(rows) + 1):
        dropped = folded(rows[:position], position)
        full, compacted = (seen_by(dropped, position, each) for each in (rows, kept))
        assert not set(compacted[0]) - set(full[0]), "taken for lost"
        assert not set(compacted[1]) - set(full[1]), "taken for risen"


def test_without_the_last_events_whoever_knew_less_takes_the_gone_for_lost(monkeypatch):
    """What the test above is for: it is red where they go."""
    monkeypatch.setattr(module, "ended_by", lambda _outcome: False)
    rows = rows_of([*life(1, 0, 9), *life(2, 10, 19, upto=FINISHED)])
    dropped = folded(rows[:2], 4)
    assert seen_by(dropped, 4, rows) == ([], [])
    missing, _ = seen_by(dropped, 4, kept_of(rows))
    assert len(missing) == 1
