import asyncio
import functools
from pathlib import Path

import pytest

from rlmm_daemon.daemon.base.crash_guard import CrashGuard, PartitionCrash, blame, blamed
from rlmm_daemon.domain.errors import NotReady
from rlmm_daemon.domain.ids import MetadataPartition

SEVEN, EIGHT = MetadataPartition(7), MetadataPartition(8)


def crashed(path: Path, *at_ms: int, partition: MetadataPartition = SEVEN) -> None:
    for moment in at_ms:
        CrashGuard(path, functools.partial(int, moment)).note(partition)


@pytest.mark.parametrize(
    ("at_ms", "now_ms", "held"),
    [
        ((), 0, set()),
        ((0, 1), 2, set()),
        ((0, 1, 2), 3, {SEVEN}),
        ((0, 30_000, 60_000), 60_000, {SEVEN}),
        ((0, 30_000, 60_000), 60_001, set()),
    ],
)
def test_three_crashes_within_sixty_seconds_hold_a_partition_back(
    tmp_path: Path, at_ms, now_ms, held
):
    crashed(tmp_path / "c", *at_ms)
    assert CrashGuard(tmp_path / "c", lambda: now_ms).quarantined() == held


def test_crashes_of_two_partitions_are_not_added_up(tmp_path: Path):
    crashed(tmp_path / "c", 0, 1)
    crashed(tmp_path / "c", 2, 3, partition=EIGHT)
    assert CrashGuard(tmp_path / "c", lambda: 4).quarantined() == frozenset()


def test_a_held_partition_stays_held_until_it_is_forgiven(tmp_path: Path):
    crashed(tmp_path / "c", 0, 1, 2)
    CrashGuard(tmp_path / "c", lambda: 3).note(EIGHT)
    much_later = CrashGuard(tmp_path / "c", lambda: 10**9)
    assert much_later.quarantined() == {SEVEN}
    much_later.forgive(SEVEN)
    assert CrashGuard(tmp_path / "c", lambda: 10**9).quarantined() == frozenset()


@pytest.mark.parametrize("content", [b"", b"{", b'{"format":2,"notes":[],"held":[7]}', b'"\xff'])
def test_notes_that_cannot_be_read_guard_nothing_and_stop_nothing(tmp_path: Path, content: bytes):
    (tmp_path / "c").write_bytes(content)
    assert CrashGuard(tmp_path / "c", lambda: 0).quarantined() == frozenset()


def test_noting_never_raises_in_a_dying_process(tmp_path: Path):
    CrashGuard(tmp_path / "absent" / "c", lambda: 0).note(SEVEN)


def test_only_bugs_are_blamed_on_a_partition():
    with pytest.raises(PartitionCrash) as crash, blame(SEVEN):
        raise ZeroDivisionError
    assert blamed(ExceptionGroup("", [ExceptionGroup("", [crash.value])])) == {SEVEN}
    for other in (NotReady(), asyncio.CancelledError()):
        with pytest.raises(type(other)) as passed, blame(SEVEN):
            raise other
        assert blamed(passed.value) == set()
