"""What a dropped fold knew is written down piece by piece, and others have turns in between."""

import asyncio

import msgspec
import pytest
from crc32c import crc32c

from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec import records
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.codec.record_suffix import ENVELOPE, prefix_of
from rlmm_daemon.codec.state_files import LOST_RECORDS_AT_ONCE, Lost, lost_from
from rlmm_daemon.core.fold import deferred_free
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.outcome import Rejected
from rlmm_daemon.core.snapshots import sealing, unsealing
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.following.history import TURN_RECORDS, History
from rlmm_daemon.daemon.operator.mending import _events
from rlmm_daemon.daemon.operator.recovering import missing_of
from rlmm_daemon.domain.ids import MetadataPartition, TopicId, TopicIdPartition
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import CustomMetadata, SegmentMetadata, SegmentState
from rlmm_daemon.domain.segment import SegmentState as S
from tests.unit.daemon.events import COUNT, TP, marked, of, segment_id, started, updated

SEGMENTS = 2_000


class Files(LocalDisk):
    """A disk that answers at once: no turn of the loop is anybody's but the code's under test."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, bytes] = {}

    async def read(self, path: str) -> bytes:
        if path not in self.kept:
            raise FileNotFoundError(path)
        return self.kept[path]

    async def write_atomically(self, path: str, *pieces: bytes | bytearray) -> None:
        self.kept[path] = b"".join(pieces)

    async def remove(self, path: str) -> None:
        if self.kept.pop(path, None) is None:
            raise FileNotFoundError(path)

    async def fsync_directory(self, path: str) -> None:
        pass


def filled() -> Fold:
    fold = Fold(of(TP), COUNT)
    for number in range(SEGMENTS):
        fold.apply(fold.position, started(number, 10 * number, 10 * number + 9))
        if number != 7:
            fold.apply(fold.position, updated(number))
    return fold


def ids_of(history: History) -> set[bytes]:
    """Return the segment ids of what is missing."""
    behind = len(ENVELOPE + prefix_of(TP))
    return {record[behind : behind + 16] for record in history.missing}


def asleep(fold: Fold) -> Fold:
    header = sealing.header_of(fold, cluster_id=None, topic_id=TopicId(bytes(16)), created_at_ms=1)
    return unsealing.in_place(b"".join(sealing.write_chunks(fold, header)))[1]


async def turns_during(work) -> int:
    turns, done = 0, False

    async def tick() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(tick())
        await asyncio.sleep(0)
        before = turns
        await work
        done = True
        return turns - before


async def test_others_have_turns_while_a_fold_is_written_down():
    for fold in (filled(), asleep(filled())):
        files = Files()
        history = History(of(TP), StateDirectory(files, "state"))
        least = SEGMENTS // TURN_RECORDS + SEGMENTS // LOST_RECORDS_AT_ONCE
        assert await turns_during(history.drop(fold, "a rebuild")) >= least
        again = History(of(TP), StateDirectory(files, "state"))
        assert await turns_during(again.load()) >= SEGMENTS // TURN_RECORDS
        for known in (history, again):
            assert ids_of(known) == {
                segment_id(number) for number in range(SEGMENTS) if number != 7
            }
            assert known.reasons == ["a rebuild"]


async def test_what_is_written_in_pieces_is_the_file_that_it_was_in_one():
    for count in (0, 1, 15, 16, 1_000, 65_535, 65_536):
        lost = Lost(
            metadata_partition=3,
            reasons=["one", "two"],
            records=[b"r" * (n % 300) for n in range(count)],
        )
        files = Files()
        apart = msgspec.structs.replace(lost, records=[])
        await StateDirectory(files, "state").write_lost(apart, lost.records, count)
        (written,) = files.kept.values()
        body = msgspec.msgpack.encode(lost)
        assert written == b"RLML" + crc32c(body).to_bytes(4, "big") + body
        assert lost_from(written, "3.lost") == lost


@pytest.mark.parametrize("topic", ["orders", "o" * 249])
async def test_what_the_replay_finishes_again_is_not_missing(topic):
    tp = TopicIdPartition(TopicId(bytes(range(1, 17))), topic, 0)
    custom = CustomMetadata(b"\x02\x01")
    events = [
        value
        for number in range(6)
        for value in (
            started(number, 10 * number, 10 * number + 9, tp),
            updated(number, tp=tp, custom=custom if number % 2 else None),
        )
    ]
    known = Fold(MetadataPartition(0), 1)
    for value in events:
        known.apply(known.position, value)
    history = History(MetadataPartition(0), StateDirectory(Files(), "state"))
    await history.drop(known, "a rebuild")
    assert history.missing_count == len(history.missing) == 6
    again = Fold(MetadataPartition(0), 1)
    ended = [updated(1, SegmentState.DELETE_SEGMENT_STARTED, tp)]
    for value in [*events[:5], *ended, *events[6:]]:  # the end of the third copy is gone
        history.applied(again.apply(again.position, value), 0)
    assert history.missing_count == 1
    assert history.missing == [known.partitions[tp].get(segment_id(2))]


async def test_an_end_that_the_replay_rejects_is_not_found_again():
    """Its begin was lost: the fold does not hold the segment, whatever its end says."""
    known = Fold(of(TP), COUNT)
    for value in (started(0, 0, 9), updated(0)):
        known.apply(known.position, value)
    history = History(of(TP), StateDirectory(Files(), "state"))
    await history.drop(known, "a rebuild")
    outcome = Fold(of(TP), COUNT).apply(0, updated(0))
    assert isinstance(outcome, Rejected)
    history.applied(outcome, 0)
    assert history.missing_count == 1


async def test_a_second_drop_adds_to_what_the_first_wrote_down():
    files = Files()
    first, second = Fold(MetadataPartition(of(TP)), COUNT), Fold(MetadataPartition(of(TP)), COUNT)
    for number, fold in enumerate((first, second)):
        fold.apply(0, started(number, 10 * number, 10 * number + 9))
        fold.apply(1, updated(number))
    history = History(of(TP), StateDirectory(files, "state"))
    await history.drop(first, "recreated")
    await history.drop(second, "recreated again")
    assert ids_of(history) == {segment_id(0), segment_id(1)}
    assert history.reasons == ["recreated", "recreated again"]


async def test_a_drop_adds_to_what_an_earlier_life_wrote_down():
    files = Files()
    await History(of(TP), StateDirectory(files, "state")).drop(small(2), "cut off")
    later = History(of(TP), StateDirectory(files, "state"))
    await later.drop(Fold(of(TP), COUNT), "recreated")
    assert ids_of(later) == {segment_id(0), segment_id(1)}
    assert later.reasons == ["cut off", "recreated"]


async def test_what_is_put_back_comes_in_the_order_of_the_log():
    fold = filled()
    history = History(of(TP), StateDirectory(Files(), "state"))
    await history.drop(fold, "cut off")
    behind = len(ENVELOPE + prefix_of(TP))
    found = missing_of(history, Fold(of(TP), COUNT))[:20]
    known = [segment_id for segment_id, _ in fold.partitions[TP].live_finished_records()][:20]
    assert [event[behind : behind + 16] for each in found for event in _events(each)] == [
        segment_id for segment_id in known for _ in ("started", "finished")
    ]


@pytest.mark.parametrize("state", [S.DELETE_SEGMENT_STARTED, S.DELETE_SEGMENT_FINISHED])
async def test_a_segment_whose_end_the_log_holds_is_not_missing(state):
    """Be its beginning lost together with its finish."""
    history = History(of(TP), StateDirectory(Files(), "state"))
    await history.drop(small(2), "cut off")
    replay = Fold(of(TP), COUNT)
    history.applied(replay.apply(0, updated(0, state)), 0)
    assert ids_of(history) == {segment_id(1)}


@pytest.mark.parametrize("kind", ["a removal again", "a beginning that is deleted"])
async def test_what_is_passed_over_and_ends_no_segment_leaves_what_is_missing(kind):
    history = History(of(TP), StateDirectory(Files(), "state"))
    await history.drop(small(1), "cut off")
    replay = Fold(of(TP), COUNT)
    if kind == "a removal again":
        value = marked(PartitionDeleteState.DELETE_PARTITION_FINISHED)
    else:
        begun = records.decode(started(0, 0, 9))
        assert isinstance(begun, SegmentMetadata)
        value = records.encode(msgspec.structs.replace(begun, state=S.DELETE_SEGMENT_STARTED))
    outcome = replay.apply(0, value)
    assert isinstance(outcome, Rejected)
    history.applied(outcome, 0)
    assert ids_of(history) == {segment_id(0)}


async def test_where_nothing_was_written_down_it_is_known_that_nothing_is_to_be_compared():
    history = History(of(TP), StateDirectory(Files(), "state"))
    before = history.settled
    await history.load()
    assert (before, history.settled) == (False, True)
    assert (history.read_elsewhere, history.common_end, history.reasons) == (0, 0, [])


async def test_what_a_replay_showed_is_not_undone_by_looking_at_the_list_again():
    files = Files()
    await History(of(TP), StateDirectory(files, "state")).drop(small(2), "cut off")
    history = History(of(TP), StateDirectory(files, "state"))
    await history.load()
    assert history.comparing
    replay = Fold(of(TP), COUNT)
    for value in (started(0, 0, 9), updated(0)):
        history.applied(replay.apply(replay.position, value), replay.position - 1)
    await history.load()
    assert ids_of(history) == {segment_id(1)}
    history.end_for_now()
    await history.load()
    assert history.settled, "the list stays for a later life alone"


async def test_a_segment_whose_finish_alone_the_log_lost_is_not_missing_once_it_ended():
    history = History(of(TP), StateDirectory(Files(), "state"))
    await history.drop(small(2), "cut off")
    replay = Fold(of(TP), COUNT)
    for value in (started(0, 0, 9), updated(0, S.DELETE_SEGMENT_STARTED)):
        history.applied(replay.apply(replay.position, value), 0)
    assert ids_of(history) == {segment_id(1)}


async def test_a_delete_that_was_meant_for_a_stuck_copy_is_no_end():
    history = History(of(TP), StateDirectory(Files(), "state"))
    await history.drop(small(1), "cut off")
    replay = Fold(of(TP), COUNT)
    history.applied(replay.apply(0, started(0, 0, 9)), 0)
    history.applied(
        replay.apply(1, updated(0, S.DELETE_SEGMENT_STARTED, custom=ONLY_IF_STARTED)), 0
    )
    assert ids_of(history) == {segment_id(0)}


async def test_a_held_segment_of_a_dropped_fold_is_missing_where_the_log_lost_it():
    """It was finished, and what was meant for a stuck copy has not ended it."""
    events = [
        started(0, 0, 9),
        updated(0),
        updated(0, S.DELETE_SEGMENT_STARTED, custom=ONLY_IF_STARTED),
    ]
    known = Fold(of(TP), COUNT)
    for value in events:
        known.apply(known.position, value)
    for left in range(len(events) + 1):
        history = History(of(TP), StateDirectory(Files(), "state"))
        await history.drop(known, "cut off", same_log=True)
        replay = Fold(of(TP), COUNT)
        for value in events[:left]:
            offset = replay.position
            history.applied(replay.apply(offset, value), offset)
        assert history.missing_count == (left < 2), left
        finish = [records.decode(record) for record in history.missing]
        assert [each.state for each in finish] == [S.COPY_SEGMENT_FINISHED] * (left < 2)


@pytest.mark.parametrize("ends", ["accepted", "dropped again"])
async def test_what_is_being_written_down_is_not_taken_apart_meanwhile(monkeypatch, ends):
    """An order ends the comparison, or drops a fold, while a follower writes down its own."""
    monkeypatch.setattr(deferred_free, "LONG", 1)
    history = History(of(TP), StateDirectory(Files(), "state"))
    await history.drop(filled(), "cut off")

    async def free() -> None:
        while not dropping.done():
            while deferred_free.free_some():
                pass
            await asyncio.sleep(0)

    with deferred_free.freed():
        async with asyncio.TaskGroup() as tasks:
            dropping = tasks.create_task(history.drop(Fold(of(TP), COUNT), "cut off again"))
            await asyncio.sleep(0)
            if ends == "accepted":
                await history.forget()
            else:
                tasks.create_task(history.drop(Fold(of(TP), COUNT), "the log is being mended"))
            tasks.create_task(free())
    assert history.missing_count == SEGMENTS - 1


def small(count: int) -> Fold:
    fold = Fold(of(TP), COUNT)
    for number in range(count):
        fold.apply(2 * number, started(number, 10 * number, 10 * number + 9))
        fold.apply(2 * number + 1, updated(number))
    return fold
