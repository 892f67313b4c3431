"""Why folds were dropped, and what is missing since."""

from types import SimpleNamespace
from typing import Any

import pytest

from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.following.history import History, finished
from rlmm_daemon.domain.errors import NotReady
from tests.unit.daemon.events import COUNT, NEIGHBOUR, TP, of, segment_id, started, updated
from tests.unit.daemon.following.test_history import Files


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


@pytest.mark.parametrize("same_log", [False, True])
@pytest.mark.parametrize("is_damaged", [False, True])
async def test_only_what_is_all_written_down_counts_as_read_in_its_own_log_or_another(
    same_log, is_damaged
):
    """Of a damaged table it is not known what was read; of this log it is not another's."""
    files = Files()
    history = History(of(TP), StateDirectory(files, "state"))
    fold = Fold(of(TP), COUNT)
    for value in (started(1, 0, 9), updated(1)):
        fold.apply(fold.position, value)
    fold.advance(fold.position, 3)
    given: Any = fold
    if is_damaged:
        given = SimpleNamespace(partitions=Unreadable.fromkeys([TP]), position=2, leader_epoch=3)
    assert await history.drop(given, "cut off", same_log=same_log) is not is_damaged
    here = [Position(2, 3)] if same_log and not is_damaged else []
    elsewhere = 0 if same_log or is_damaged else 2
    again = History(of(TP), StateDirectory(files, "state"))
    await again.load()
    for each in (history, again):
        assert (list(each.read), each.read_elsewhere) == (here, elsewhere)


class Unreadable(dict[Any, Any]):
    """User partitions of which none can be read."""

    def __getitem__(self, tp: Any) -> Any:
        raise NotReady


def test_a_partition_whose_table_is_damaged_hides_no_other_one():
    fold = Fold(of(TP), COUNT)
    for number, tp in ((1, TP), (2, NEIGHBOUR)):
        fold.apply(fold.position, started(number, 0, 9, tp))
        fold.apply(fold.position, updated(number, tp=tp))
    real = fold.partitions

    class Damaged(dict[Any, Any]):
        """Both, the first of which can't be read."""

        def __getitem__(self, tp: Any) -> Any:
            if tp == next(iter(self)):
                raise NotReady
            return real[tp]

    for order in ((TP, NEIGHBOUR), (NEIGHBOUR, TP)):
        damaged: Any = SimpleNamespace(partitions=Damaged.fromkeys(order))
        told = list[Any]()
        ((key, _),) = finished(damaged, told.append)
        assert told == [order[0]]
        assert key == real[order[1]].prefix + segment_id(1 if order[1] == TP else 2)
