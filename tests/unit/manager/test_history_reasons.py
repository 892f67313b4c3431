"""Why folds were dropped, and how much is missing since."""

from rlmm_daemon.core.fold import Fold
from rlmm_daemon.daemon.history import History
from rlmm_daemon.daemon.state_directory import StateDirectory
from tests.unit.manager.events import COUNT, TP, of, started, updated
from tests.unit.manager.test_history import Files


async def test_each_reason_is_told_once_however_often_it_comes_in_a_row():
    files = Files()
    history = History(of(TP), StateDirectory(files, "state"))
    fold = Fold(of(TP), COUNT)
    for reason in ("a rebuild", "a rebuild", "a divergence", "a divergence", "a rebuild"):
        await history.drop(fold, reason)
    told = ["a rebuild", "a divergence", "a rebuild"]
    assert history.reasons == told
    again = History(of(TP), StateDirectory(files, "state"))
    await again.load()
    assert again.reasons == told


async def test_nothing_is_missing_before_anything_was_dropped():
    history = History(of(TP), StateDirectory(Files(), "state"))
    assert (history.comparing, history.missing_count, history.missing) == (False, 0, [])
    fold = Fold(of(TP), COUNT)
    fold.apply(0, started(1, 0, 9))
    await history.drop(fold, "a rebuild")
    assert (history.comparing, history.missing_count) == (True, 0)
    fold.apply(1, updated(1))
    await history.drop(fold, "a rebuild")
    assert (history.comparing, history.missing_count) == (True, 1)
