"""Which hold keeps what, and that no hold is ever made to keep less by another one."""

import msgspec
import pytest

from rlmm_daemon.codec.marker import AcceptedGap, AcceptedLoss, BucketMarker, Hold, as_written
from rlmm_daemon.core.disposal.holds import (
    as_known,
    held,
    held_whole,
    joined,
    recounted,
    with_hold,
    without_holds,
)

AT = 1_000
MARKER = BucketMarker(cluster_id="c", partition_count=5, metadata_topic_id="t")


def hold(number: int | None, before_ms: int = AT) -> Hold:
    return Hold(metadata_partition=number, before_ms=before_ms, broker_id=1)


def loss(number: int) -> AcceptedLoss:
    return AcceptedLoss(metadata_partition=number, topic_id="t", accepted_at_ms=AT, broker_id=1)


def gap(start: int) -> AcceptedGap:
    return AcceptedGap(topic_id="t", metadata_partition=1, start=start, end=start + 1)


@pytest.mark.parametrize(
    ("of_hold", "of_object", "keeps"),
    [(1, 1, True), (1, 2, False), (None, 2, True), (1, None, True), (None, None, True)],
)
@pytest.mark.parametrize(
    ("since_ms", "old"), [(None, True), (AT - 1, True), (AT, True), (AT + 1, False)]
)
def test_a_hold_keeps_what_may_be_of_its_partition_and_time(
    of_hold: int | None, of_object: int | None, since_ms: int | None, *, keeps: bool, old: bool
) -> None:
    found = held([hold(of_hold)], of_object, since_ms)
    assert found == (hold(of_hold) if keeps and old else None)


def test_the_first_of_several_holds_that_keeps_it_is_told() -> None:
    holds = [hold(2), hold(1, AT - 5), hold(1), hold(None)]
    assert held(holds, 1, AT) == hold(1)
    assert held(holds, 3, AT) == hold(None)
    assert held([], 1, None) is None


@pytest.mark.parametrize("later_ms", [AT - 1, AT, AT + 1])
def test_one_more_hold_keeps_no_less_than_there_was(later_ms: int) -> None:
    three = msgspec.structs.replace(MARKER, holds=(hold(1), hold(2), hold(None)))
    found = with_hold(three, hold(1, later_ms)).held
    kept = {each.metadata_partition: each.before_ms for each in found}
    assert kept == {1: max(AT, later_ms), 2: AT, None: AT}
    assert len(found) == 3
    assert with_hold(MARKER, hold(1)).held == (hold(1),)


def test_a_marker_that_takes_another_one_in_accepts_and_keeps_what_both_do() -> None:
    def marker(*, losses: list[int], gaps: list[int], holds: list[Hold]) -> BucketMarker:
        return msgspec.structs.replace(
            MARKER,
            accepted_losses=tuple(map(loss, losses)),
            accepted_gaps=tuple(map(gap, gaps)),
            holds=tuple(holds),
        )

    one = marker(losses=[1, 2], gaps=[1], holds=[hold(1), hold(2)])
    other = marker(losses=[2, 3], gaps=[1, 5], holds=[hold(1, AT + 9), hold(3)])
    found = joined(one, other)
    assert found.accepted_losses == tuple(map(loss, (1, 2, 3)))
    assert found.gaps == (gap(1), gap(5))
    kept = {each.metadata_partition: each.before_ms for each in found.held}
    assert kept == {1: AT + 9, 2: AT, 3: AT}
    assert joined(MARKER, one).held == one.held
    assert as_written(joined(one, MARKER)) == as_written(one)


def test_a_marker_of_which_nobody_knows_the_holds_keeps_everything() -> None:
    found = held_whole(msgspec.structs.replace(MARKER, holds=(hold(1),)), AT + 5, 7)
    everything = Hold(metadata_partition=None, before_ms=AT + 5, broker_id=7)
    assert set(found.held) == {hold(1), everything}
    assert held(found.held, 4, AT + 5) == everything


def test_a_hold_on_one_of_so_many_partitions_may_mean_any_of_another_count() -> None:
    """By another count a user partition's events lie in another metadata partition."""
    few = msgspec.structs.replace(MARKER, holds=(hold(1, AT - 1), hold(4, AT + 1)))
    assert recounted(few, 5) is few
    fewer, many = recounted(few, 3), recounted(few, 7)
    assert (fewer.partition_count, fewer.held) == (3, (hold(None, AT + 1),))
    assert (many.partition_count, many.held) == (7, (hold(None, AT + 1),))
    assert joined(msgspec.structs.replace(MARKER, partition_count=7), few).held == many.held
    assert joined(MARKER, few).held == few.held


def test_an_older_marker_that_is_put_back_gets_the_count_that_was_accepted_since() -> None:
    older = msgspec.structs.replace(MARKER, partition_count=3, holds=(hold(1),))
    known = msgspec.structs.replace(
        MARKER, metadata_topic_id="u", accepted_losses=(loss(2),), holds=(hold(2),)
    )
    whole = as_known(older, known)
    assert (whole.partition_count, whole.metadata_topic_id) == (5, "u")
    assert set(whole.held) == {hold(None), hold(2)}
    assert as_known(known, older) is known


def test_a_hold_that_was_ended_stays_so_and_one_that_was_not_comes_back_in_any_order() -> None:
    """Two daemons knew different things when an older marker was put back."""
    one, other = with_hold(MARKER, hold(1)), with_hold(with_hold(MARKER, hold(1)), hold(2))
    ended = without_holds(one, 1)
    for whole in (joined(ended, other), joined(other, ended)):
        assert whole.held == (hold(2),)
        assert whole.ended == (hold(1),)
    assert as_known(one, ended).held == (), "an older one, in which it was not ended yet"
    assert as_known(ended, one) is ended
    assert as_known(MARKER, other).held == other.held, "no loss tells of it"
    assert as_known(ended, other).held == (hold(2),)


@pytest.mark.parametrize("which", [None, 1])
def test_only_what_there_is_ends(which) -> None:
    ended = without_holds(with_hold(with_hold(MARKER, hold(1)), hold(2)), which)
    assert {each.metadata_partition for each in ended.held} == ({2} if which else set())
    assert {each.metadata_partition for each in ended.ended} == ({1} if which else {1, 2})
    late = joined(ended, with_hold(MARKER, hold(1, AT + 1)))
    assert hold(1, AT + 1) in late.held, "who ended the hold had not seen this one"


def test_a_hold_by_a_clock_that_is_behind_outlasts_one_that_was_ended() -> None:
    again = with_hold(without_holds(with_hold(MARKER, hold(1)), 1), hold(1, AT - 500))
    assert again.held == (hold(1, AT + 1),)
    assert as_known(MARKER, again).held == again.held


def test_of_a_copy_that_does_not_tell_which_holds_were_ended_only_losses_count() -> None:
    older_version = msgspec.structs.replace(with_hold(MARKER, hold(1)), format=2)
    assert as_known(MARKER, older_version) is MARKER
    lost = msgspec.structs.replace(older_version, accepted_losses=(loss(1),))
    assert as_known(MARKER, lost).held == (hold(1),)


def test_a_hold_that_was_ended_says_nothing_of_a_partition_of_another_count() -> None:
    ended = without_holds(with_hold(MARKER, hold(1)), None)
    many = recounted(ended, 7)
    assert many.ended == ()
    assert with_hold(many, hold(1, AT - 1)).held == (hold(1, AT - 1),)
    everything = without_holds(with_hold(many, hold(None)), None)
    assert joined(everything, with_hold(MARKER, hold(1))).held == (hold(None, AT + 1),)
