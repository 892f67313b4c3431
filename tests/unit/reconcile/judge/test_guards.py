"""Each guard, got past in turn: what speaks against condemning anything."""

from typing import Any

import msgspec
import pytest

from rlmm_daemon.codec.marker import (
    COMPARING,
    AcceptedLoss,
    BucketMarker,
    Hold,
    OtherDaemon,
    Presence,
    PresencePartition,
)
from rlmm_daemon.domain.ids import TopicId, uuid_text
from rlmm_daemon.ports.event_log import EpochEnd, LogIdentity, LogRange
from rlmm_daemon.reconcile.judge.guards import (
    SKEW_MS,
    Evidence,
    LostOffsets,
    UnreadableRecord,
    reasons,
    still,
)
from rlmm_daemon.reconcile.read.log_reading import LogView

TOPIC_ID = TopicId(bytes(range(16)))
SHA = "ab" * 32
HOUR = 3_600_000


def evidence(**changes: Any) -> Evidence:
    base = Evidence(
        marker=BucketMarker(
            cluster_id="c", partition_count=2, metadata_topic_id=uuid_text(TOPIC_ID)
        ),
        cluster_id="c",
        log=view(),
        read={0: [(0, 4), (4, 10)], 1: []},
        presences={"_rlmm/daemons/1.json": presence()},
        epoch_ends={(0, 3): EpochEnd(epoch=3, end_offset=10)},
    )
    return msgspec.structs.replace(base, **changes)


def view(**ranges: LogRange) -> LogView:
    known = {0: LogRange(start=0, end=10), 1: LogRange(start=0, end=0)}
    known |= {int(name[1:]): each for name, each in ranges.items()}
    identity = LogIdentity(cluster_id="c", topic_id=TOPIC_ID, partition_count=2)
    return LogView(identity=identity, ranges=known)


def presence(**changes: Any) -> Presence:
    seen = {"state": "ready", "topic_id": uuid_text(TOPIC_ID), "leader_epoch": 3, "next_offset": 10}
    whole = Presence(
        cluster_id="c",
        broker_id=1,
        incarnation=None,
        started_at_ms=0,
        written_at_ms=0,
        copy_deadline_seconds=1,
        lease_end_ms=None,
        metadata_manager="rlmm",
        partitions={0: PresencePartition(**{**seen, **changes.pop("seen", {})})},
    )
    return msgspec.structs.replace(whole, **changes)


def against(**changes: Any) -> str:
    found = reasons(evidence(**changes))
    assert found
    return "\n".join(found)


def test_a_complete_log_of_the_right_cluster_has_nothing_against_it() -> None:
    assert reasons(evidence()) == []


def test_whose_storage_it_is() -> None:
    assert "no marker" in against(marker=None)
    assert "belongs to cluster 'c'" in against(cluster_id="other", presences={})
    assert "belongs to cluster" in against(cluster_id=None, presences={})
    other = BucketMarker(cluster_id="c", partition_count=2, metadata_topic_id=uuid_text(bytes(16)))
    assert "recreated" in against(marker=other)
    fewer = msgspec.structs.replace(other, partition_count=3, metadata_topic_id=uuid_text(TOPIC_ID))
    assert "has 2 partitions, the marker 3" in against(marker=fewer)


def test_a_log_that_is_not_whole() -> None:
    without = LogView(identity=view().identity, ranges={0: LogRange(start=0, end=10)})
    assert "partition 1 did not tell its end" in against(log=without)
    trimmed = view(_0=LogRange(start=2, end=10))
    assert "its head is gone" in against(log=trimmed, read={0: [(2, 10)], 1: []})
    assert "its head is gone" in against(log=trimmed, read={0: [(0, 1), (2, 10)], 1: []})
    covered = evidence(log=trimmed, read={0: [(0, 5), (5, 10)], 1: []})
    assert reasons(covered) == []


def test_records_that_are_gone_out_of_the_middle_of_a_log() -> None:
    lost = LostOffsets(0, LogRange(start=3, end=9), 2, 7)
    assert "7 offsets in 2 ranges hold no record, from 3 to 9" in against(lost=[lost])


def test_control_objects_that_can_not_be_read() -> None:
    damaged = ("_rlmm/reconcile/manifests/a.json is empty",)
    told = against(damaged=damaged)
    assert "a.json is empty: what it spared is not known; remove it" in told
    assert "An older version of it lacks the last of these words" in told
    assert still(evidence(damaged=damaged), since_ms=0)


def test_a_daemon_that_has_more_live_segments_than_the_log_names() -> None:
    counted = {"_rlmm/daemons/1.json": presence(seen={"live_segments": 132, "live_at": 9})}
    found = against(presences=counted, live={(0, 9): 2})
    assert "had 132 live segments at offset 9, the log that was read names 2" in found
    for live in ({(0, 9): 132}, {(0, 9): 133}, {(0, 8): 2}, {}):
        assert reasons(evidence(presences=counted, live=live)) == []
    assert still(evidence(presences=counted), since_ms=0) == [], "it is not read again"


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_metadata_topic_that_compacts(policy: str) -> None:
    compacting = msgspec.structs.replace(view(), cleanup_policy=policy)
    assert f"cleanup.policy is {policy}" in against(log=compacting)
    assert still(evidence(log=compacting), since_ms=0)
    kept = msgspec.structs.replace(view(), cleanup_policy="delete")
    assert reasons(evidence(log=kept)) == still(evidence(log=kept), since_ms=0) == []


@pytest.mark.parametrize("read", [[], [(0, 9)], [(1, 10)], [(0, 4), (5, 10)]])
def test_a_log_that_was_not_read_whole(read: list[tuple[int, int]]) -> None:
    assert "it ends at 10" in against(read={0: read})


def test_an_unreadable_record_until_it_is_accepted() -> None:
    odd = UnreadableRecord(0, 7, SHA, "garbage")
    assert f"accept-record 0 7 {SHA}" in against(unreadable=[odd])
    assert reasons(evidence(unreadable=[odd], accepted=frozenset({(0, 7, SHA)}))) == []
    assert "accept-record" in against(unreadable=[odd], accepted=frozenset({(0, 7, "cd" * 32)}))


def test_a_daemon_that_saw_more_or_other_than_the_log_has() -> None:
    def seen(**changes: Any) -> dict[str, Presence]:
        return {"_rlmm/daemons/1.json": presence(seen=changes)}

    assert "read to 11, the log ends at 10" in against(presences=seen(next_offset=11))
    assert "which the log has otherwise" in against(
        epoch_ends={(0, 3): EpochEnd(epoch=2, end_offset=10)}
    )
    assert "which the log has otherwise" in against(
        epoch_ends={(0, 3): EpochEnd(epoch=3, end_offset=9)}
    )
    assert "nobody leads it now" in against(epoch_ends={})
    assert "in no epoch that could be confirmed" in against(presences=seen(leader_epoch=-1))
    began = seen(leader_epoch=-1, next_offset=0)
    assert reasons(evidence(presences=began)) == [], "it has read nothing yet"
    assert "is failed" in against(presences=seen(state="failed"))
    assert "is compared with what" in against(presences=seen(state=COMPARING))
    assert "is of topic id" in against(presences=seen(topic_id=uuid_text(bytes(16))))


def test_a_presence_file_that_is_missing_unreadable_or_foreign() -> None:
    assert "no daemon has left a presence file" in against(presences={})
    assert "can't be read" in against(presences={"_rlmm/daemons/2.json": None})
    foreign = {"_rlmm/daemons/2.json": presence(cluster_id="d")}
    assert "is of cluster 'd'" in against(presences=foreign)


@pytest.mark.parametrize(("met", "words"), [(True, "another one runs"), (False, "may run")])
def test_two_daemons_of_one_broker_id_and_nobody_knows_what_both_acknowledged(
    *, met: bool, words: str
) -> None:
    other = OtherDaemon(who="host b, pid 7", met=met)
    two = {"_rlmm/daemons/1.json": presence(other=other)}
    assert words in against(presences=two)
    # Of a broker that was scrapped nobody ever says otherwise.
    assert "if neither will ever run again, remove the file" in against(presences=two)
    assert "host b, pid 7" in "".join(still(evidence(presences=two), since_ms=0))


@pytest.mark.parametrize("number", [None, 0])
@pytest.mark.parametrize(
    "seen",
    [
        {"topic_id": uuid_text(bytes(16))},
        {"next_offset": 11},
        {"leader_epoch": 2},
        {"state": "failed(history lost)"},
    ],
)
def test_what_a_daemon_saw_before_a_loss_was_accepted_speaks_against_nothing_for_ever(
    number: int | None, seen: dict[str, Any]
) -> None:
    """A broker that was scrapped never writes its file again; of the others each does."""

    def found(*, written_at_ms: int, lost: int | None) -> list[str]:
        loss = AcceptedLoss(metadata_partition=lost, topic_id="x", accepted_at_ms=HOUR, broker_id=2)
        marker = BucketMarker(
            cluster_id="c",
            partition_count=2,
            metadata_topic_id=uuid_text(TOPIC_ID),
            accepted_losses=(loss,),
        )
        gone = {"_rlmm/daemons/1.json": presence(seen=seen, written_at_ms=written_at_ms)}
        return reasons(evidence(marker=marker, presences=gone))

    assert found(written_at_ms=HOUR - SKEW_MS - 1, lost=number) == []
    assert found(written_at_ms=HOUR - SKEW_MS, lost=number), "the clocks may differ by as much"
    assert found(written_at_ms=HOUR + 1, lost=number)
    assert found(written_at_ms=0, lost=1), "of another partition"


def test_a_loss_that_a_clock_ahead_accepted_silences_no_file_that_was_written_after_the_marker():
    """The marker is as old as the storage says, so nothing in it was accepted later."""
    loss = AcceptedLoss(
        metadata_partition=None, topic_id="x", accepted_at_ms=9_000 * HOUR, broker_id=2
    )
    marker = BucketMarker(
        cluster_id="c",
        partition_count=2,
        metadata_topic_id=uuid_text(TOPIC_ID),
        accepted_losses=(loss,),
    )

    def found(written_at_ms: int, marker_ms: int | None) -> list[str]:
        seen = {
            "_rlmm/daemons/1.json": presence(seen={"state": "failed"}, written_at_ms=written_at_ms)
        }
        return reasons(evidence(marker=marker, marker_ms=marker_ms, presences=seen))

    assert found(HOUR - SKEW_MS - 1, HOUR) == []
    assert found(HOUR - SKEW_MS, HOUR)
    assert found(2 * HOUR, HOUR)
    assert found(9_000 * HOUR, None)


def test_a_loss_and_a_hold_of_a_clock_ahead_are_none_of_this_run_if_the_marker_is_older() -> None:
    ahead = 9_000 * HOUR
    marker = BucketMarker(
        cluster_id="c",
        partition_count=2,
        metadata_topic_id=uuid_text(TOPIC_ID),
        accepted_losses=(
            AcceptedLoss(metadata_partition=0, topic_id="x", accepted_at_ms=ahead, broker_id=2),
        ),
        holds=(Hold(metadata_partition=0, before_ms=ahead, broker_id=2),),
    )
    for marker_ms, count in ((HOUR - 1, 0), (HOUR, 2), (HOUR + 1, 2), (None, 2)):
        assert len(still(evidence(marker=marker, marker_ms=marker_ms), since_ms=HOUR)) == count


def test_a_reason_that_a_file_gives_says_when_it_was_written() -> None:
    gone = {"_rlmm/daemons/1.json": presence(seen={"state": "failed"}, written_at_ms=86_400_000)}
    assert "written 1970-01-02T00:00:00Z" in against(presences=gone)
