"""Counts of finished segments: never more than there are, whatever sleeps or moves on."""

from types import SimpleNamespace
from typing import Any

import pytest

from rlmm_daemon.core.fold.user_partitions import Sleeping
from rlmm_daemon.core.readiness.states import PartitionState
from rlmm_daemon.daemon.bucket import live_counts
from rlmm_daemon.daemon.bucket.live_counts import LiveCount, LiveCounts
from rlmm_daemon.domain.ids import MetadataPartition

NUMBER = MetadataPartition(3)


class Asleep(Sleeping):
    """A user partition as of a snapshot, and events of it put aside."""

    def __init__(self, finished: int, aside: int) -> None:
        self.finished = finished
        self.aside_events = aside

    @property
    def segments_by_state(self) -> list[int]:
        return [5, self.finished, 7, 0]


def awake(finished: int) -> Any:
    return SimpleNamespace(segments_by_state=[5, finished, 7, 0])


class Fold:
    """A log that moves on by `step` with each look at its position."""

    def __init__(self, caches: list[Any], step: int) -> None:
        self.partitions = SimpleNamespace(at_rest=lambda: caches)
        self._step, self._position = step, 40

    @property
    def position(self) -> int:
        self._position += self._step
        return self._position


def counts(
    caches: list[Any], *, step: int = 0, state: PartitionState = PartitionState.READY
) -> LiveCounts:
    follower = SimpleNamespace(partition=NUMBER, state=state, fold=Fold(caches, step))
    manager: Any = SimpleNamespace(followed=lambda: [follower])
    return LiveCounts(manager)


async def test_what_was_put_aside_may_have_ended_each_a_segment() -> None:
    found = counts([awake(10), Asleep(20, 3), Asleep(2, 200)])
    await found.count()
    assert found.known == {NUMBER: LiveCount(segments=27, next_offset=40)}


async def test_a_partition_that_is_not_ready_is_not_counted() -> None:
    found = counts([awake(10)], state=PartitionState.REPLAYING)
    await found.count()
    assert found.known == {}


@pytest.mark.parametrize(("step", "known"), [(0, {NUMBER: LiveCount(3, 40)}), (1, {})])
async def test_a_count_is_of_one_offset_or_there_is_none(
    monkeypatch: pytest.MonkeyPatch, step: int, known: dict[MetadataPartition, LiveCount]
) -> None:
    monkeypatch.setattr(live_counts, "COUNTED_AT_ONCE", 1)
    found = counts([awake(1), awake(1), awake(1)], step=step)
    await found.count()
    assert found.known == known


async def test_a_log_that_moves_on_behind_the_last_slice_spoils_no_count() -> None:
    found = counts([awake(4)], step=1)
    await found.count()
    assert found.known == {NUMBER: LiveCount(segments=4, next_offset=41)}
