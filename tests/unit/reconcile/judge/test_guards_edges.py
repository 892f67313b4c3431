"""Guards at their edges: the moment itself, the partition behind, a value above and one below."""

import msgspec
import pytest

from rlmm_daemon.codec.marker import AcceptedLoss, BucketMarker, Hold
from rlmm_daemon.core.disposal.holds import with_hold, without_holds
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.ports.event_log import EpochEnd, LogRange
from rlmm_daemon.reconcile.judge.guards import SKEW_MS, Evidence, reasons, still
from rlmm_daemon.reconcile.read.log_reading import LogView
from tests.unit.reconcile.judge.test_guards import against, evidence, presence, view

SINCE = 1_000


def given_up(at_ms: int, *, hold: bool) -> Evidence:
    base = evidence().marker
    assert base is not None
    loss = AcceptedLoss(metadata_partition=0, topic_id="x", accepted_at_ms=at_ms, broker_id=2)
    held = Hold(metadata_partition=0, before_ms=at_ms, broker_id=2)
    change = {"holds": (held,)} if hold else {"accepted_losses": (loss,)}
    return evidence(marker=msgspec.structs.replace(base, **change))


@pytest.mark.parametrize(("hold", "told"), [(False, "a loss of events"), (True, "a hold was put")])
def test_a_loss_or_a_hold_of_the_time_of_the_run_ends_it_and_an_earlier_one_does_not(
    told: str, *, hold: bool
) -> None:
    assert still(given_up(SINCE - 1, hold=hold), SINCE) == []
    for at_ms in (SINCE, SINCE + 1):
        (reason,) = still(given_up(at_ms, hold=hold), SINCE)
        assert reason.startswith(told)
    assert any("no marker" in reason for reason in still(evidence(marker=None), SINCE))


@pytest.mark.parametrize("other", ["b", "d"])
def test_a_daemon_of_another_cluster_whatever_it_is_called(other: str) -> None:
    foreign = {"_rlmm/daemons/2.json": presence(cluster_id=other)}
    assert f"is of cluster '{other}'" in against(presences=foreign)
    assert f"cluster 'c', this is '{other}'" in against(cluster_id=other, presences={})


@pytest.mark.parametrize("topic_id", [bytes(16), bytes([255] * 16)])
@pytest.mark.parametrize("count", [1, 3])
def test_a_marker_of_another_log_or_count_whatever_they_are(topic_id: bytes, count: int) -> None:
    marker = BucketMarker(
        cluster_id="c", partition_count=count, metadata_topic_id=uuid_text(topic_id)
    )
    told = against(marker=marker)
    assert "recreated" in told
    assert f"has 2 partitions, the marker {count}" in told
    seen = {"_rlmm/daemons/1.json": presence(seen={"topic_id": uuid_text(topic_id)})}
    assert "is of topic id" in against(presences=seen)


@pytest.mark.parametrize("number", [None, 1])
def test_a_hold_that_a_daemon_knows_and_the_marker_lacks_ends_the_run(number: int | None) -> None:
    """An older marker was put back, and the run may read it before a daemon does."""
    base = evidence().marker
    assert base is not None
    hold = Hold(metadata_partition=number, before_ms=SINCE, broker_id=1)
    holding = with_hold(base, hold)
    knows = {"_rlmm/daemons/1.json": presence(holds=(hold,), written_at_ms=SINCE)}
    for marker in (holding, without_holds(holding, number)):
        assert reasons(evidence(marker=marker, presences=knows)) == []
    assert "knows of a hold that the marker lacks" in against(presences=knows)
    assert any("knows of a hold" in each for each in still(evidence(presences=knows), 0))
    lower = msgspec.structs.replace(hold, before_ms=SINCE - 1)
    assert "knows of a hold" in against(marker=with_hold(base, lower), presences=knows)
    for at_ms, over in ((SINCE + SKEW_MS, False), (SINCE + SKEW_MS + 1, True)):
        loss = AcceptedLoss(
            metadata_partition=None, topic_id="x", accepted_at_ms=at_ms, broker_id=2
        )
        given_up_all = msgspec.structs.replace(base, accepted_losses=(loss,))
        told = reasons(evidence(marker=given_up_all, presences=knows))
        assert bool(told) != over, "accepting the loss of all holds all"


def test_a_partition_that_tells_nothing_hides_no_other_one() -> None:
    log = LogView(identity=view().identity, ranges={1: LogRange(start=0, end=5)})
    told = against(log=log)
    assert "partition 0 did not tell its end" in told
    assert "partition 1 was read to 0, it ends at 5" in told


@pytest.mark.parametrize(
    ("end", "confirmed"),
    [
        (EpochEnd(epoch=3, end_offset=9), False),
        (EpochEnd(epoch=3, end_offset=10), True),
        (EpochEnd(epoch=3, end_offset=11), True),
        (EpochEnd(epoch=2, end_offset=11), False),
        (EpochEnd(epoch=4, end_offset=11), False),
    ],
)
def test_what_a_daemon_read_is_confirmed_by_its_own_epoch_alone(
    end: EpochEnd, *, confirmed: bool
) -> None:
    assert (reasons(evidence(epoch_ends={(0, 3): end})) == []) is confirmed


def test_epoch_0_is_an_epoch_that_has_to_be_confirmed() -> None:
    seen = {"_rlmm/daemons/1.json": presence(seen={"leader_epoch": 0})}
    assert "nobody leads it now" in against(presences=seen)
    known = {(0, 0): EpochEnd(epoch=0, end_offset=10)}
    assert reasons(evidence(presences=seen, epoch_ends=known)) == []


def test_a_position_in_no_epoch_is_where_the_log_begins() -> None:
    trimmed = view(_0=LogRange(start=4, end=10))

    def told(next_offset: int) -> list[str]:
        seen = presence(seen={"leader_epoch": -1, "next_offset": next_offset})
        return reasons(evidence(log=trimmed, presences={"_rlmm/daemons/1.json": seen}))

    assert told(3) == told(4) == []
    assert any("in no epoch" in reason for reason in told(5))


def test_pieces_that_were_read_count_in_whatever_order_and_not_behind_a_hole() -> None:
    assert reasons(evidence(read={0: [(4, 10), (0, 5)], 1: []})) == []
    assert reasons(evidence(read={0: [(0, 12)], 1: []})) == [], "it has grown since it was asked"
    assert "was read to 2, it ends at 10" in against(read={0: [(0, 2), (3, 4), (2, 2), (4, 10)]})


@pytest.mark.parametrize("seen", [{"live_segments": 132}, {"live_at": 9}])
def test_a_count_without_its_offset_or_the_other_way_round_says_nothing(
    seen: dict[str, int],
) -> None:
    counted = {"_rlmm/daemons/1.json": presence(seen=seen)}
    assert reasons(evidence(presences=counted, live={(0, 9): 2, (0, None): 2})) == []


def test_events_of_a_layout_that_the_marker_does_not_have() -> None:
    told = against(layouts_unknown=[7])
    assert "layout 7, which the marker does not have" in told
