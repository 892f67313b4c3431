"""Offsets of the log that hold nothing and that nobody vouches for."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.following import others_word
from rlmm_daemon.daemon.following.bucket_record import BucketLog
from rlmm_daemon.daemon.following.follower_state import offsets
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.domain.errors import HistoryLost, InvalidArgument
from rlmm_daemon.ports.event_log import EpochEnd, LogRange
from tests.unit.daemon.conftest import SoleLog
from tests.unit.daemon.events import TP, copied, of, ready, started, until, updated
from tests.unit.daemon.following.test_mapped import snapshot_files
from tests.unit.daemon.metadata.test_previous_state import OTHER, FakeBucket, ask, follower_of

BROKER = Caller.BROKER


async def two_segments(rig) -> None:
    async with rig.manager("writer") as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await copied(manager, 2, 10, 19)


async def failed(manager: Manager):
    follower = await follower_of(manager)
    await until(lambda: follower.failure is not None)
    return follower


async def accept(manager: Manager) -> dict[str, Any]:
    return await Operator(manager).partition_accept_loss(of(TP), everything=False)


async def test_a_log_that_lost_a_record_answers_nothing_until_that_is_accepted(rig):
    await two_segments(rig)
    rig.store.lose(of(TP), 1, 2)  # the COPY_SEGMENT_FINISHED of the first
    async with rig.manager() as manager:
        follower = await failed(manager)
        assert "offset 1" in follower.failure.evidence
        with pytest.raises(HistoryLost, match="offset 1"):
            ask(manager)
        await follower.changed.wait()
        assert not manager.lookups.is_ready(TP)
        assert (await manager.snapshotter.write(follower)) is None  # a start would trust it
        await Operator(manager).partition_retry(of(TP))
        assert follower.failure is not None
        await accept(manager)
        await until(lambda: manager.lookups.is_ready(TP))
        assert manager.lookups.remote_log_segment_metadata(TP, 0, 15, BROKER) is not None


async def test_an_accepted_gap_is_not_raised_after_a_restart_or_a_rebuild(rig):
    await two_segments(rig)
    rig.store.lose(of(TP), 1, 2)
    async with rig.manager() as manager:
        await failed(manager)
        await accept(manager)
        await until(lambda: manager.lookups.is_ready(TP))
        follower = manager.fleet.followers[of(TP)]
        follower.rebuild()
        await until(lambda: not follower.restarting and manager.lookups.is_ready(TP))
        kept = await manager.state.accepted()
        assert kept is not None
        assert kept.gaps == {str(of(TP)): [(1, 2)]}
    async with rig.manager() as manager:
        await ready(manager)
        assert manager.fleet.followers[of(TP)].failure is None


async def test_a_gap_that_grew_since_is_raised_again(rig):
    await two_segments(rig)
    rig.store.lose(of(TP), 1, 2)
    async with rig.manager() as manager:
        await failed(manager)
        await accept(manager)
        await until(lambda: manager.lookups.is_ready(TP))
    rig.store.lose(of(TP), 1, 4)
    async with rig.manager("b", bucket=marker_of(rig, [LogRange(start=1, end=2)])) as manager:
        follower = await failed(manager)
        assert "offsets 2 to 3" in follower.failure.evidence


def marker_of(rig, gaps) -> FakeBucket:
    identity = rig.store.identity
    known = [(identity.topic_id, of(TP), gap) for gap in gaps]
    return FakeBucket(
        BucketLog(
            topic_id=identity.topic_id,
            partition_count=identity.partition_count,
            accepted_gaps=known,
        )
    )


async def test_an_acceptance_in_the_marker_counts_for_every_daemon(rig, monkeypatch):
    monkeypatch.setattr(others_word, "GAPS_SECONDS", 0.01)
    await two_segments(rig)
    rig.store.lose(of(TP), 1, 3)
    async with rig.manager(bucket=marker_of(rig, [LogRange(start=1, end=3)])) as manager:
        await ready(manager)
    bucket = marker_of(rig, [])
    async with rig.manager("b", bucket=bucket) as manager:
        await failed(manager)
        bucket.known = marker_of(rig, [LogRange(start=0, end=3)]).known  # another one was told
        await until(lambda: manager.lookups.is_ready(TP))
    async with rig.manager("b", bucket=FakeBucket(away=True)) as manager:
        await ready(manager)


async def test_an_acceptance_tells_the_marker_exactly_the_gaps_that_are_known(rig):
    await two_segments(rig)
    rig.store.lose(of(TP), 1, 2)
    bucket = marker_of(rig, [])
    async with rig.manager(bucket=bucket) as manager:
        await failed(manager)
        await accept(manager)
        assert bucket.gaps == [{of(TP): (LogRange(start=1, end=2),)}]


class ReadsOnMeanwhile(FakeBucket):
    """A bucket that is slow: the follower of a failed partition goes on reading beside it."""

    meanwhile: Callable[[], Awaitable[None]]

    async def accept_loss(self, partition, identity, gaps):
        await super().accept_loss(partition, identity, gaps)
        await self.meanwhile()


async def test_a_gap_that_is_met_while_another_is_being_accepted_is_raised(rig):
    await two_segments(rig)
    rig.store.lose(of(TP), 1, 2)
    bucket = ReadsOnMeanwhile(marker_of(rig, []).known)
    async with rig.manager(bucket=bucket) as manager:
        follower = await failed(manager)

        async def meanwhile() -> None:
            end = rig.store.put(of(TP), b"an event")
            rig.store.lose(of(TP), end, end + 1)
            await until(lambda: follower.fold.position > end)

        bucket.meanwhile = meanwhile
        await accept(manager)
        assert bucket.gaps == [{of(TP): (LogRange(start=1, end=2),)}]
        assert not manager.lookups.is_ready(TP)
        assert "offset 4" in follower.failure.evidence


async def test_gaps_of_another_log_of_that_name_are_not_accepted(rig):
    await two_segments(rig)
    rig.store.lose(of(TP), 1, 2)
    identity = rig.store.identity
    known = BucketLog(
        topic_id=identity.topic_id,
        partition_count=identity.partition_count,
        accepted_gaps=[(OTHER, of(TP), LogRange(start=1, end=2))],
    )
    other = FakeBucket(known)
    async with rig.manager(bucket=other) as manager:
        await failed(manager)


async def test_a_log_that_was_compacted_behind_a_snapshot_is_found(rig):
    """Its start offset stays, so nothing but the missing offsets tells."""
    await two_segments(rig)
    async with rig.manager() as manager:
        await ready(manager)
        await manager.drain()
    for record in (started(3, 20, 29), updated(3), started(4, 30, 39)):
        rig.store.put(of(TP), record)
    rig.store.lose(of(TP), 0, 6)
    async with rig.manager() as manager:
        follower = await failed(manager)
        assert "offsets 4 to 5" in follower.failure.evidence
        assert manager.fleet.followers[of(TP)].range.start == 0


async def test_an_accepted_head_is_not_raised_on_another_daemon(rig):
    await two_segments(rig)
    rig.store.trim(of(TP), 2)
    bucket = marker_of(rig, [])
    async with rig.manager(bucket=bucket) as manager:
        await failed(manager)
        await accept(manager)
        await until(lambda: manager.lookups.is_ready(TP))
    assert bucket.gaps == [{of(TP): (LogRange(start=0, end=2),)}]
    async with rig.manager("b", bucket=marker_of(rig, bucket.gaps[0][of(TP)])) as manager:
        await ready(manager)
        assert manager.lookups.remote_log_segment_metadata(TP, 0, 15, BROKER) is not None


async def test_nothing_is_accepted_where_nothing_is_missing(rig):
    """It would cost the snapshots, and leave a hold, for nothing."""
    await two_segments(rig)
    bucket = marker_of(rig, [])
    async with rig.manager(bucket=bucket) as manager:
        await ready(manager)
        with pytest.raises(InvalidArgument, match="nothing is missing"):
            await accept(manager)
        with pytest.raises(InvalidArgument, match="nothing is missing"):
            await Operator(manager).partition_accept_loss(None, everything=True)
        assert bucket.accepted == []


async def stood_before_a_trimmed_head(rig, behind: int) -> int:
    """A snapshot stands before a head that another epoch wrote and that is gone; return its end."""
    await two_segments(rig)
    async with rig.manager() as manager:
        await ready(manager)
        await manager.drain()
    rig.store.begin_epoch(of(TP))
    for _ in range(4 + behind):
        rig.store.put(of(TP), None)
    rig.store.trim(of(TP), 8)
    return 8


async def passes_over(rig, head: int) -> None:
    """A start that knows the head's loss as accepted takes it for no divergence."""
    bucket = marker_of(rig, [LogRange(start=4, end=head)])
    async with rig.manager(bucket=bucket) as manager:
        await ready(manager)
        follower = manager.fleet.followers[of(TP)]
        assert (follower.failure, follower.history.reasons) == (None, [])
        assert manager.lookups.remote_log_segment_metadata(TP, 0, 15, BROKER) is not None
        await manager.drain()


async def test_a_head_whose_loss_another_daemon_was_told_to_accept_is_no_divergence(rig):
    """Nobody knows in which epoch the record just before the log's new start was written."""
    head = await stood_before_a_trimmed_head(rig, behind=2)
    await passes_over(rig, head)
    await passes_over(rig, head)


async def test_a_log_that_is_empty_behind_its_accepted_head_is_no_divergence_after_a_restart(rig):
    head = await stood_before_a_trimmed_head(rig, behind=0)
    await passes_over(rig, head)
    await passes_over(rig, head)


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("behind", [0, 2])
async def test_an_accepted_head_costs_nothing_that_the_snapshot_knew_though_the_daemon_dies_then(
    rig, behind, everything
):
    """The snapshot alone holds what stood in the head."""
    await stood_before_a_trimmed_head(rig, behind)
    async with rig.manager() as manager:
        await failed(manager)
        number = None if everything else of(TP)
        await Operator(manager).partition_accept_loss(number, everything=everything)
        await until(lambda: manager.lookups.is_ready(TP))
        assert manager.lookups.remote_log_segment_metadata(TP, 0, 15, BROKER) is not None
    async with rig.manager() as manager:
        follower = await follower_of(manager)
        await until(lambda: manager.lookups.is_ready(TP) or follower.failure)
        assert manager.lookups.remote_log_segment_metadata(TP, 0, 15, BROKER) is not None


@pytest.mark.parametrize("behind", [0, 2])
async def test_snapshots_that_go_behind_an_accepted_head_take_what_they_alone_knew(rig, behind):
    """What was accepted is what no snapshot had read; what they had read was still answered."""
    await stood_before_a_trimmed_head(rig, behind)
    async with rig.manager() as manager:
        await failed(manager)
        await accept(manager)
        await until(lambda: manager.lookups.is_ready(TP))
        await manager.drain()
    for path in snapshot_files(rig):
        path.unlink()
    async with rig.manager() as manager:
        follower = await failed(manager)
        assert "starts at 8 now, this daemon stands at 0" in follower.failure.evidence
        await accept(manager)
        await until(lambda: manager.lookups.is_ready(TP))
        await manager.drain()
    async with rig.manager() as manager:  # for good
        await ready(manager)


async def test_what_is_found_again_behind_an_accepted_head_is_not_missed_anew(rig):
    """There is no snapshot and no list of it then; the log has all that they knew."""
    await stood_before_a_trimmed_head(rig, behind=2)
    async with rig.manager() as manager:
        follower = await failed(manager)
        await accept(manager)
        await until(lambda: manager.lookups.is_ready(TP))
        follower.rebuild()
        await until(lambda: follower.failure is not None)
        assert follower.history.missing_count == 2
        for number, start in ((1, 0), (2, 10)):
            rig.store.put(of(TP), started(number, start, start + 9))
            rig.store.put(of(TP), updated(number))
        await until(lambda: manager.lookups.is_ready(TP))
    assert not snapshot_files(rig)
    async with rig.manager() as manager:
        await ready(manager)
        assert manager.lookups.remote_log_segment_metadata(TP, 0, 15, BROKER) is not None


async def test_a_lost_tail_that_is_accepted_costs_no_snapshot_that_alone_knows_a_head(rig):
    await stood_before_a_trimmed_head(rig, behind=2)
    async with rig.manager() as manager:
        follower = await failed(manager)
        await accept(manager)
        await until(lambda: manager.lookups.is_ready(TP))
        follower.recheck([Position(90, 1)])
        await until(lambda: follower.failure is not None)
        await accept(manager)
        await until(lambda: manager.lookups.is_ready(TP))
    async with rig.manager() as manager:
        await ready(manager)
        assert manager.lookups.remote_log_segment_metadata(TP, 0, 15, BROKER) is not None


class ForgetfulLog(SoleLog):
    """It knows no epoch that ended before its start, as Kafka's does."""

    async def epoch_end(self, partition, epoch) -> EpochEnd:
        found = await super().epoch_end(partition, epoch)
        start = (await self.end_offsets([partition]))[partition].start
        return found if found.end_offset > start else EpochEnd(epoch=-1, end_offset=-1)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
async def test_what_was_read_before_a_lost_head_of_later_epochs_is_no_part_of_the_rest(
    rig, known, at_once
):
    """An unclean election may have cut it off, and other events have stood in its place."""
    rig.log_of = ForgetfulLog
    await two_segments(rig)
    bucket = marker_of(rig, [LogRange(start=2, end=8)] if known else [])

    def lost() -> None:
        rig.store.begin_epoch(of(TP))
        for _ in range(6):
            rig.store.put(of(TP), None)
        rig.store.trim(of(TP), 8)

    async with rig.manager(bucket=bucket) as manager:
        await ready(manager)
        if at_once:
            lost()
            follower = await follower_of(manager)
            await until(lambda: follower.failure is not None)
        else:
            await manager.drain()
    if not at_once:
        lost()
    async with rig.manager(bucket=bucket) as manager:
        follower = await failed(manager)
        assert follower.history.missing_count == 2, "it is written down, and compared"
        with pytest.raises(HistoryLost):
            ask(manager)
        await accept(manager)
        await until(lambda: follower.read_to_end and follower.failure is not None)
        assert "2 finished segments that this daemon knew are not in the log" in (
            follower.failure.evidence
        )


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (1, "offset 0"),
        (2, "offset 0, offsets 10 to 11"),
        (5, "offset 0, offsets 10 to 11, offset 20, offsets 30 to 31, offset 40"),
        (6, "offset 0, offsets 10 to 11, offset 20, offsets 30 to 31, offset 40 and 1 more range"),
        (8, "offset 0, offsets 10 to 11, offset 20, offsets 30 to 31, offset 40 and 3 more ranges"),
    ],
)
def test_the_first_few_of_many_gaps_are_named(count, told):
    gaps = [LogRange(start=10 * n, end=10 * n + 1 + n % 2) for n in range(count)]
    assert offsets(gaps) == told
