"""A segment id that was used again: the log lost the later copy, and shows the end of the first."""

import pytest
from msgspec.structs import replace

from rlmm_daemon.codec import records
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.following.history import History
from rlmm_daemon.daemon.operator.mending import _events
from rlmm_daemon.daemon.operator.recovering import missing_of
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentUpdate
from rlmm_daemon.domain.segment import SegmentState as S
from tests.unit.daemon.events import COUNT, TP, of, segment_id, started
from tests.unit.daemon.following.test_history import Files, ids_of
from tests.unit.daemon.operator.test_recovering import IDENTITY, World, begun, facts_of, numbers

FIRST_AT, SECOND_AT = 5_000, 6_000
SEGMENT = begun(1)
STARTED = records.encode(SEGMENT)


def event(state: S, at_ms: int = FIRST_AT, *, stuck: bool = False) -> bytes:
    finished = state is S.COPY_SEGMENT_FINISHED
    custom = facts_of(SEGMENT) if finished else ONLY_IF_STARTED if stuck else None
    return records.encode(
        SegmentUpdate(
            partition=TP,
            segment_id=SEGMENT.segment_id,
            broker_id=SEGMENT.broker_id,
            event_timestamp_ms=at_ms,
            custom_metadata=custom,
            state=state,
        )
    )


#: What came before the id was used again: a copy that was deleted, and one that was rolled back.
DELETED = (
    STARTED,
    event(S.COPY_SEGMENT_FINISHED),
    event(S.DELETE_SEGMENT_STARTED),
    event(S.DELETE_SEGMENT_FINISHED),
)
ROLLED_BACK = (
    STARTED,
    event(S.DELETE_SEGMENT_STARTED, stuck=True),
    event(S.DELETE_SEGMENT_FINISHED),
)
AGAIN = (STARTED, event(S.COPY_SEGMENT_FINISHED, SECOND_AT))
#: The later copy by the clock of a broker that was behind.
BEHIND_AT = FIRST_AT - 1_000


async def replayed(
    log: tuple[bytes, ...], lost: set[int], later: tuple[bytes, ...] = (), *, same: bool = True
) -> tuple[History, Fold]:
    """Fold a log, drop that, and replay what is left of it, and what was appended since."""
    known = Fold(of(TP), COUNT)
    for value in log:
        known.apply(known.position, value)
    known.advance(known.position, 3)
    history = History(of(TP), StateDirectory(Files(), "state"))
    await history.drop(known, "repaired", same_log=True)
    history.common_end = len(log) if same else 0
    fold = Fold(of(TP), COUNT)
    for offset, value in enumerate((*log, *later)):
        if offset not in lost:
            history.applied(fold.apply(offset, value), offset)
    return history, fold


@pytest.mark.parametrize("before", [DELETED, ROLLED_BACK])
@pytest.mark.parametrize("lost", [1, 2, 3, 4])
async def test_a_later_copy_is_missing_though_the_end_of_the_first_stands_in_the_log(before, lost):
    log = (*before, *AGAIN)
    history, fold = await replayed(log, set(range(len(log) - lost, len(log))))
    if before is DELETED and lost == 4:
        # Both are one segment, of the same bytes, and the log shows it as finished.
        assert (missing_of(history, fold), history.missing_count) == ([], 0)
        return
    (found,) = missing_of(history, fold)
    assert found.segment.segment_id == SEGMENT.segment_id
    assert found.segment.event_timestamp_ms == SECOND_AT
    for value in _events(found):
        fold.apply(fold.position, value)
    cache = fold.partitions[TP]
    assert cache.state(SEGMENT.segment_id) is S.COPY_SEGMENT_FINISHED


@pytest.mark.parametrize("before", [DELETED, ROLLED_BACK])
async def test_a_later_copy_that_the_log_shows_is_not_missing(before):
    history, fold = await replayed((*before, *AGAIN), set())
    assert (missing_of(history, fold), history.missing_count) == ([], 0)


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
@pytest.mark.parametrize("shown", [1, 2])
@pytest.mark.parametrize("others", [0, 1])
async def test_a_later_copy_that_was_deleted_since_is_not_missing(lost, shown, others):
    log = (*DELETED, *AGAIN)
    later = (event(S.DELETE_SEGMENT_STARTED, 7_000), event(S.DELETE_SEGMENT_FINISHED, 7_000))
    behind = len(log)
    between = (started(2, 20, 29),) * others
    history, fold = await replayed(
        log, set(range(behind - lost, behind)), (*between, *later[:shown])
    )
    assert (missing_of(history, fold), history.missing_count) == ([], 0)
    assert not history.was_used_again(TP, SEGMENT.segment_id), "its own end is known now"


async def test_a_later_copy_by_a_clock_that_was_behind_is_missing_all_the_same():
    log = (*DELETED, STARTED, event(S.COPY_SEGMENT_FINISHED, BEHIND_AT))
    history, fold = await replayed(log, {4, 5})
    (found,) = missing_of(history, fold)
    assert found.segment.event_timestamp_ms == BEHIND_AT


async def test_the_very_copy_that_was_known_is_ended_by_the_deletion_that_was_read_since():
    """Two folds were dropped one after the other: the second had read how it ended."""
    known, since = Fold(of(TP), COUNT), Fold(of(TP), COUNT)
    for fold, values in ((known, DELETED[:2]), (since, DELETED)):
        for value in values:
            fold.apply(fold.position, value)
        fold.advance(fold.position, 3)
    history = History(of(TP), StateDirectory(Files(), "state"))
    await history.drop(known, "cut off", same_log=True)
    await history.drop(since, "cut off again", same_log=True)
    assert history.missing_count == 1, "until the log was read"
    history.common_end = len(DELETED)
    replay = Fold(of(TP), COUNT)
    for offset, value in enumerate(DELETED):
        history.applied(replay.apply(offset, value), offset)
    assert (missing_of(history, replay), history.missing_count) == ([], 0)


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("state", [S.COPY_SEGMENT_FINISHED, S.DELETE_SEGMENT_STARTED])
async def test_what_was_found_behind_all_that_had_been_read_stays_so_if_the_log_is_read_again(
    state, others
):
    """A fold that is begun anew without being written down leaves the comparison as it is."""
    log = (*DELETED, *AGAIN)
    shown = 1 if state is S.COPY_SEGMENT_FINISHED else 2
    later = (*(started(2, 20, 29),) * others, event(state, 7_000))
    history, _ = await replayed(log, set(range(shown, len(log))), later)
    assert history.missing_count == 0
    replay = Fold(of(TP), COUNT)
    for offset, value in enumerate(DELETED[:3]):
        history.applied(replay.apply(offset, value), offset)
    assert history.missing_count == 0


async def test_what_a_replay_showed_of_an_id_is_forgotten_with_that_replay():
    history, fold = await replayed((*DELETED, *AGAIN), {3, 4, 5})
    assert history.was_used_again(TP, SEGMENT.segment_id)
    await history.drop(fold, "repaired again", same_log=True)
    assert not history.was_used_again(TP, SEGMENT.segment_id)


async def test_of_a_log_that_is_not_the_one_that_was_read_an_end_is_an_end():
    history, _ = await replayed((*DELETED, *AGAIN), {4, 5}, same=False)
    assert history.missing_count == 0


async def test_what_was_deleted_when_the_fold_was_dropped_is_not_missing():
    ended = (*DELETED, *AGAIN, event(S.DELETE_SEGMENT_STARTED, 7_000))
    history, fold = await replayed(ended, {4, 5, 6})
    assert (missing_of(history, fold), history.missing_count) == ([], 0)


async def test_a_restart_between_the_events_that_put_it_back_leaves_it_missing():
    """The first of them ends an earlier copy, not this one."""
    log = (*DELETED, *AGAIN)
    lost = {3, 4, 5}
    history, fold = await replayed(log, lost)
    (found,) = missing_of(history, fold)
    for count in (1, 2):
        history, fold = await replayed(log, lost, tuple(_events(found)[:count]))
        (again,) = missing_of(history, fold)
        assert again.segment == found.segment
        assert ids_of(history) == {segment_id(1)}
    history, _ = await replayed(log, lost, tuple(_events(found)))
    assert history.missing_count == 0


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_recover_lists_and_puts_back_a_later_copy_whose_objects_are_whole(lost):
    world = World()
    await world.bucket.open(IDENTITY)
    log = (*DELETED, *AGAIN)
    history, fold = await replayed(log, set(range(len(log) - lost, len(log))))
    follower = world.follower
    follower.fold, follower.missing, follower.failure = fold, history.missing, "history lost"
    follower.used_again = {(TP, SEGMENT.segment_id)} if lost == 3 else set()
    told = await world.recover()
    assert (numbers(told["not_whole"]), told["can_be_put_back"]) == ([1], []), "nothing is there"
    await world.store(SEGMENT)
    assert numbers((await world.recover())["can_be_put_back"]) == [1]
    with world.bucket.removing.these([SEGMENT.segment_id]):
        (row,) = (await world.recover())["not_whole"]
    assert row["reason"] == "its objects are being deleted"
    told = await world.recover(execute=True)
    assert numbers(told["put_back"]) == [1]
    record = fold.partitions[TP].get(SEGMENT.segment_id)
    assert record is not None
    found = records.decode(record)
    assert isinstance(found, SegmentMetadata)
    assert replace(found, event_timestamp_ms=0) == replace(
        SEGMENT,
        event_timestamp_ms=0,
        state=S.COPY_SEGMENT_FINISHED,
        custom_metadata=facts_of(SEGMENT),
    )
