"""Which segments that a log lost one order looks for."""

from types import SimpleNamespace
from typing import Any, cast

from rlmm_daemon.codec import records
from rlmm_daemon.daemon.operator import recovering
from rlmm_daemon.daemon.operator.recovering import MaybeFinished, Recovery, RecoveryOptions
from rlmm_daemon.domain.ids import BrokerId
from rlmm_daemon.domain.segment import CustomMetadata, SegmentMetadata
from tests.unit.daemon.events import started

NOBODY: Any = None


class Ours:
    """A bucket whose marker is in order."""

    async def until_judged(self, timeout_seconds: float) -> None:
        pass

    async def confirm(self) -> None:
        pass


class Looking(Recovery):
    """One that finds the objects of the last segment only."""

    def __init__(self) -> None:
        options = RecoveryOptions(broker_id=BrokerId(1), started_at_ms=0, patience_ms=0)
        super().__init__(NOBODY, cast("Any", Ours()), options, is_running=lambda _: False)

    async def _look(self, segment: SegmentMetadata) -> CustomMetadata | str:
        found = segment.start_offset == 40
        return CustomMetadata(b"") if found else "none of its objects is there"


async def test_what_was_lacking_and_is_missing_once_more_is_looked_for_first(monkeypatch):
    """Put back and lost again: what an earlier look showed of it is past."""
    monkeypatch.setattr(recovering, "SEGMENTS_MAX", 1)
    follower: Any = SimpleNamespace(partition=1)
    first, second = (
        MaybeFinished(segment=cast("SegmentMetadata", records.decode(started(n, 0, 9))), state=None)
        for n in (1, 2)
    )
    recovery = Looking()
    for candidates in ([first], [second]):
        await recovery.look(follower, candidates)
    ((found, _),) = (await recovery.look(follower, [second, first])).lacking
    assert found is first


async def test_what_is_whole_is_found_behind_more_than_one_order_looks_for(monkeypatch):
    monkeypatch.setattr(recovering, "SEGMENTS_MAX", 2)
    follower: Any = SimpleNamespace(partition=1)
    begun = [records.decode(started(n, 10 * n, 10 * n + 9)) for n in range(5)]
    candidates = [
        MaybeFinished(segment=cast("SegmentMetadata", each), state=None) for each in begun
    ]
    recovery = Looking()
    looks = [await recovery.look(follower, candidates) for _ in range(4)]
    assert [look.left for look in looks] == [3, 1, 0, 0]
    assert [len(look.whole) for look in looks] == [0, 0, 1, 1]
