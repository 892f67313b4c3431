"""The events that a fold notes while a snapshot of it is drawn: all of them, up to a limit."""

import pytest

from rlmm_daemon.core.fold import fold as folds
from rlmm_daemon.core.fold.fold import Fold
from tests.unit.daemon.events import COUNT, NEIGHBOUR, TP, of, started, updated


def test_events_are_noted_by_user_partition_in_the_order_of_the_log() -> None:
    fold = Fold(of(TP), COUNT)
    fold.apply(0, started(1, 0, 9))
    fold.keep_journal()
    fold.apply(1, updated(1))
    fold.apply(2, started(2, 0, 9, NEIGHBOUR))
    fold.apply(3, b"garbage")
    fold.apply(4, None)
    fold.apply(5, updated(1))
    assert fold.journal == {
        TP: [(1, updated(1)), (5, updated(1))],
        NEIGHBOUR: [(2, started(2, 0, 9, NEIGHBOUR))],
    }


def test_a_journal_that_grows_beyond_its_limit_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk may hang; then the next snapshot is moved on to."""
    monkeypatch.setattr(folds, "JOURNAL_EVENTS_MAX", 3)
    fold = Fold(of(TP), COUNT)
    fold.apply(0, started(1, 0, 9))
    for _ in range(2):
        fold.keep_journal()
        first = fold.position
        for offset in range(first, first + 3):
            fold.apply(offset, updated(1))
            assert fold.journal is not None
        fold.apply(first + 3, updated(1))
        assert fold.journal is None


def test_runs_are_not_taken_while_a_journal_is_kept() -> None:
    rows = [(offset, started(offset, 10 * offset, 10 * offset + 9)) for offset in range(3)]
    fold = Fold(of(TP), COUNT)
    fold.apply(0, rows[0][1])
    assert fold.apply_run(rows, 1, 1) == 1
    fold.keep_journal()
    assert fold.apply_run(rows, 1, 3) == 1
    fold.journal = None
    assert fold.apply_run(rows, 1, 3) == 3
    assert (fold.position, fold.applied) == (3, 3)
