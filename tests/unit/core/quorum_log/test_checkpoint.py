"""A fold that begins with a checkpoint, beside one that read the whole log."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmm_daemon.codec.kraft import checkpoint_records
from rlmm_daemon.codec.kraft.checkpoint_records import (
    CheckpointRecord,
    EpochsOf,
    Event,
    Founded,
    PartitionAt,
    Starts,
    SubmitterAt,
)
from rlmm_daemon.core.quorum_log import checkpoint
from rlmm_daemon.core.quorum_log.checkpoint import counters, restored
from rlmm_daemon.core.quorum_log.fold import AcceptedEvent, LogFold, Passed
from rlmm_daemon.domain.errors import LogCorrupt
from tests.unit.core.quorum_log.test_fold import FOUNDED, SOUP, Entry, folded, granted, written


def begun_anew(fold: LogFold) -> LogFold:
    """Return the fold that another replica has of this one's checkpoint."""
    packed = [checkpoint_records.pack(each) for each in counters(fold, {})]
    return restored(checkpoint_records.read(*each) for each in packed).fold


def same(one: LogFold, other: LogFold) -> None:
    assert one.partition_count == other.partition_count
    assert one.ends == other.ends
    assert [each.entries for each in one.epochs] == [each.entries for each in other.epochs]
    assert one.submitters == other.submitters


@settings(max_examples=300)
@given(SOUP, st.integers(0, 60), st.integers(1, 5))
def test_what_follows_a_checkpoint_means_what_it_does_behind_the_whole_log(
    entries: list[Entry], cut: int, remembered: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlmm_daemon.core.quorum_log.fold.REMEMBERED", remembered)
        patch.setattr(checkpoint, "REMEMBERED", remembered)
        patch.setattr(checkpoint, "EPOCHS_MAX", 2)
        entries = [(at // 3, key, value) for at, (_, key, value) in enumerate(entries)]
        whole, said = folded([FOUNDED, *entries])
        part, before = folded([FOUNDED, *entries[:cut]])
        anew = begun_anew(part)
        same(anew, part)
        after = [anew.apply(*entry) for entry in entries[cut:]]
        assert before + after == said
        same(anew, whole)


def test_a_serial_is_known_with_its_incarnation() -> None:
    """Without it a replica that begins here would drop the next incarnation's first records."""
    fold, _ = folded([FOUNDED, granted(1, 1), written(1, 1), written(1, 2), granted(1, 2)])
    anew = begun_anew(fold)
    assert anew.apply(*written(2, 1)) == AcceptedEvent(0, 2)
    assert begun_anew(anew).apply(*written(2, 1, b"other")) is Passed.CONFLICTING


HEAD = [Founded(2), PartitionAt(0, 5, 0), PartitionAt(1, 0, 0)]
KNOWN = SubmitterAt(1, 1, bytes(16), 1, (bytes(16),))


@pytest.mark.parametrize(
    "records",
    [
        [],
        [Founded(2)],
        HEAD[1:],
        [Founded(2), *HEAD],
        HEAD[:2],
        [HEAD[0], HEAD[2], HEAD[1]],
        [*HEAD, PartitionAt(2, 0, 0)],
        [HEAD[0], PartitionAt(0, 5, 6, 1), HEAD[2]],
        [HEAD[0], PartitionAt(0, 5, 3, 4), HEAD[2]],
        [HEAD[0], PartitionAt(0, -1, 0), HEAD[2]],
        [HEAD[0], PartitionAt(0, 5, -1, -1), HEAD[2]],
        [*HEAD[:2], EpochsOf(1, ((1, 0),)), HEAD[2]],
        [*HEAD[:2], EpochsOf(0, ((1, 5),)), HEAD[2]],
        [*HEAD[:2], EpochsOf(0, ((1, 0), (1, 1))), HEAD[2]],
        [*HEAD[:2], EpochsOf(0, ((1, 0), (2, 0))), HEAD[2]],
        [*HEAD[:2], EpochsOf(0, ((1, 1),)), EpochsOf(0, ((2, 0),)), HEAD[2]],
        [*HEAD, KNOWN, EpochsOf(1, ())],
        [*HEAD[:2], KNOWN, HEAD[2]],
        [*HEAD, KNOWN, KNOWN],
        [*HEAD, SubmitterAt(1, 1, bytes(16), 2, (bytes(16),))],
        [*HEAD, SubmitterAt(1, 1, bytes(16), 0, (bytes(16),))],
        [*HEAD, Starts((0, 0))],
        [*HEAD, Event(0, 0, b"")],
    ],
)
def test_counters_that_no_log_has_are_refused(records: list[CheckpointRecord]) -> None:
    with pytest.raises(LogCorrupt):
        restored(records)
