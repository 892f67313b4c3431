"""Segments whose deletion the log lost: shown, ended again where nothing of them is stored."""

import asyncio
import random
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.codec import records
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.codec.marker import MARKER_KEY
from rlmm_daemon.codec.state_files import (
    Lost,
    Position,
    lost_from,
    lost_head,
)
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.readiness.states import FailureReason
from rlmm_daemon.core.storage.layout import Layout
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.bucket.live_marker import BucketIdentity
from rlmm_daemon.daemon.following.history import READ_MAX, History, furthest
from rlmm_daemon.daemon.operator.mending import Mending
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.daemon.operator.recovering import Recovery, RecoveryOptions
from rlmm_daemon.daemon.operator.risen import Risen, risen_of
from rlmm_daemon.domain.errors import InvalidArgument, StorageUnavailable, UnsupportedProtocol
from rlmm_daemon.domain.ids import BrokerId
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentMetadata
from rlmm_daemon.domain.segment import SegmentState as S
from rlmm_daemon.ports.sources import BufferSource
from rlmm_daemon.ports.storage import ObjectKind, Progress
from tests.support.memory_storage import MemoryStorage
from tests.unit.daemon.events import (
    COUNT,
    NEIGHBOUR,
    TP,
    marked,
    of,
    segment_id,
    started,
    until,
    updated,
)
from tests.unit.daemon.following.test_history import Files
from tests.unit.daemon.metadata.test_previous_state import FakeBucket
from tests.unit.daemon.operator import test_recovering as recovering_world
from tests.unit.daemon.operator.test_recovering import Follower

BROKER = Caller.BROKER
RECOVER = f"rlmm log recover {of(TP)}"
#: Records of three copies stand before the deletion.
COPIES_END = 6


class World:
    """A daemon whose last life deleted the first of three segments, and the log lost that."""

    def __init__(self, rig) -> None:
        self.rig = rig
        self.storage = MemoryStorage(clock=SystemClock())
        self.bucket = Bucket(self.storage, layout=Layout("x"), rng=random.Random(1))

    async def open(self) -> None:
        identity = BucketIdentity(cluster_id="c", partition_count=COUNT, metadata_topic_id="t")
        await self.bucket.open(identity)

    async def lose_deletion(self, *, left: int = COPIES_END) -> None:
        await self.open()
        async with self.rig.manager(bucket=FakeBucket()) as manager:
            manager.replace_assignment([TP], [])
            await until(lambda: manager.lookups.is_ready(TP))
            for number in (1, 2, 3):
                start = 10 * number
                await manager.events.add(started(number, start, start + 9), BROKER)
                await manager.events.update(updated(number), BROKER)
            for state in (S.DELETE_SEGMENT_STARTED, S.DELETE_SEGMENT_FINISHED):
                await manager.events.update(updated(1, state), BROKER)
            assert await Operator(manager).snapshot_now(None)
            await manager.drain()
        self.rig.store.truncate(of(TP), left)

    @asynccontextmanager
    async def life(self):
        """Begin a life; its follower is judged, and can be mended."""
        async with self.rig.manager(bucket=FakeBucket()) as manager:
            manager.replace_assignment([TP], [])
            await until(lambda: of(TP) in manager.fleet.followers)
            follower = manager.fleet.followers[of(TP)]
            await until(lambda: follower.failure is not None or manager.lookups.is_ready(TP))
            options = RecoveryOptions(broker_id=BrokerId(7), started_at_ms=0, patience_ms=0)
            recovery = Recovery(manager, self.bucket, options, is_running=lambda _: False)
            yield manager, follower, Mending(manager, guard=None, repair=None, recovery=recovery)

    async def store(self, number: int, kind: ObjectKind) -> str:
        segment = records.decode(started(number, 10 * number, 10 * number + 9))
        assert isinstance(segment, SegmentMetadata)
        (place,) = await self.bucket.places(segment)
        key = place.keys[kind]
        await self.storage.put_segment([(kind, key, BufferSource(b"body"))], progress=Progress())
        return key


@pytest.fixture
def world(rig) -> World:
    return World(rig)


def ids(rows) -> list[int]:
    return [row["start_offset"] // 10 for row in rows]


def shown(manager) -> list[int]:
    found = manager.lookups.list_remote_log_segments(TP, None, BROKER)
    segments = [records.decode(record) for record in found]
    return [each.start_offset // 10 for each in segments if isinstance(each, SegmentMetadata)]


async def test_what_came_back_is_not_answered_and_is_ended_again_by_recover(world):
    await world.lose_deletion()
    async with world.life() as (manager, follower, mending):
        failure = follower.failure
        assert failure is not None, "the log brought a deleted segment back, and it is answered"
        assert failure.reason is FailureReason.HISTORY_LOST
        assert failure.evidence.startswith("1 segment that this daemon knew to be deleted came")
        assert failure.command(of(TP)) == RECOVER
        end = follower.fold.position
        told = await mending.recover(follower, execute=False)
        assert (ids(told["can_be_ended"]), told["came_back"]) == ([1], [])
        assert (told["next"], follower.fold.position) == (RECOVER, end), "it only looked"
        told = await mending.recover(follower, execute=True)
        assert (ids(told["ended"]), told["next"]) == ([1], None)
        await until(lambda: manager.lookups.is_ready(TP))
        assert shown(manager) == [2, 3]
        await manager.drain()
    async with world.life() as (manager, follower, _):
        assert (follower.failure, shown(manager)) == (None, [2, 3]), "and so it stays"


async def test_segments_of_a_partition_that_was_removed_whole_did_not_come_back(world):
    """Who removes a partition need not end its segments one by one."""
    await world.open()
    async with world.rig.manager(bucket=FakeBucket()) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        for number in (1, 2):
            await manager.events.add(started(number, 10 * number, 10 * number + 9), BROKER)
            await manager.events.update(updated(number), BROKER)
        for state in PartitionDeleteState:
            await manager.events.put_partition_delete(marked(state), BROKER)
        follower = manager.fleet.followers[of(TP)]
        told = await Mending(manager, guard=None, repair=None).rebuild(follower)
        assert (told["state"], told["next"]) == ("ready", None)


async def test_a_later_life_knows_it_too_whatever_was_appended_since(world):
    """A chunk of the log that also holds newer records is read as one."""
    await world.lose_deletion()
    async with world.life() as (_, follower, _):
        assert follower.history.risen_count == 1
    world.rig.store.partition(of(TP)).epoch += 5
    world.rig.store.put(of(TP), started(4, 40, 49))
    world.rig.store.put(of(TP), updated(4))
    async with world.life() as (_, follower, mending):
        assert follower.history.risen_count == 1, "and the fourth was never deleted"
        told = await mending.recover(follower, execute=True)
        assert ids(told["ended"]) == [1]
        assert told["next"] == f"rlmm partition accept-loss {of(TP)}", "the first life crashed"


@pytest.mark.parametrize("kind", [ObjectKind.LOG, ObjectKind.OFFSET])
@pytest.mark.parametrize("execute", [False, True])
async def test_what_still_has_an_object_is_left_as_it_is(world, kind, execute):
    await world.lose_deletion()
    key = await world.store(1, kind)
    async with world.life() as (manager, follower, mending):
        end = follower.fold.position
        told = await mending.recover(follower, execute=execute)
        assert told["ended" if execute else "can_be_ended"] == []
        (row,) = told["came_back"]
        assert row["reason"] == f"deleted before, but there: {kind.value}"
        await until(lambda: manager.lookups.is_ready(TP))
        assert (shown(manager), follower.fold.position) == ([1, 2, 3], end)
        assert await world.storage.size(key) == len(b"body")


async def test_nothing_is_ended_in_a_bucket_that_is_not_ours(world):
    """In an empty bucket everything is absent."""
    await world.lose_deletion()
    world.storage.bucket.objects.clear()
    async with world.life() as (_, follower, mending):
        with pytest.raises(StorageUnavailable, match="it is gone"):
            await mending.recover(follower, execute=True)
        assert follower.history.risen_count == 1


async def test_nothing_is_ended_where_the_bucket_changed_during_the_look(world, monkeypatch):
    await world.lose_deletion()
    await world.store(1, ObjectKind.LOG)
    size = world.storage.size

    async def emptied(key: str) -> Any:
        world.storage.bucket.objects.clear()
        return await size(key)

    async with world.life() as (_, follower, mending):
        monkeypatch.setattr(world.storage, "size", emptied)
        with pytest.raises(StorageUnavailable, match="it is gone"):
            await mending.recover(follower, execute=True)
        assert follower.history.risen_count == 1


async def test_what_came_back_is_not_accepted_before_somebody_looked(world):
    await world.lose_deletion()
    async with world.life() as (manager, follower, mending):
        with pytest.raises(InvalidArgument, match=f"1 deleted segment .* run: {RECOVER} --execute"):
            await mending.accept(follower, without_looking=False)
        await mending.accept(follower, without_looking=True)
        await until(lambda: manager.lookups.is_ready(TP))
        assert shown(manager) == [1, 2, 3], "an operator wanted it so"


async def test_a_deletion_that_the_log_holds_brings_nothing_back(world):
    await world.lose_deletion(left=COPIES_END + 1)
    async with world.life() as (manager, follower, _):
        assert follower.failure is None
        assert manager.lookups.is_ready(TP)


# What is ended of it.


class Turns:
    """Notes how long a loop that it is put in the place of pauses."""

    def __init__(self) -> None:
        self.pauses = list[float]()
        self._sleep = asyncio.sleep

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await self._sleep(0)


def came_back(*ended: int) -> Any:
    """Return a follower of three segments that came back, some of which were ended since."""
    follower: Any = Follower()
    for number in (1, 2, 3):
        follower.apply(*copy_of(number))
        follower.risen.append((TP, segment_id(number)))
    for number in ended:
        follower.apply(updated(number, S.DELETE_SEGMENT_STARTED))
    return follower


async def test_what_somebody_ended_meanwhile_is_not_ended_again_and_the_others_are(monkeypatch):
    follower, turns = came_back(), Turns()
    gone = risen_of(follower.history, follower.fold)
    gone.insert(0, msgspec.structs.replace(gone[0], partition=NEIGHBOUR))
    follower.apply(updated(1, S.DELETE_SEGMENT_STARTED))
    nowhere: Any = None
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "sleep", turns.sleep)
        last = await Risen(follower, nowhere, BrokerId(7)).end(follower, gone)
    assert [follower.state_of(number) for number in (1, 2, 3)] == [
        S.DELETE_SEGMENT_STARTED,
        None,
        None,
    ]
    assert (len(follower.appended), last) == (4, follower.fold.position - 1)
    assert turns.pauses == [0, 0], "others have a turn behind each"


async def test_what_another_bucket_holds_says_nothing_of_what_came_back():
    """Else it would be left for good, as if nothing of it had been lost."""
    world = recovering_world.World()
    await world.bucket.open(recovering_world.IDENTITY)
    segment = recovering_world.finished(1)
    await world.store(segment)
    world.follower.apply(started(1, 10, 19), updated(1, custom=segment.custom_metadata))
    world.follower.risen.append((TP, segment_id(1)))
    risen = Risen(world.follower, world.bucket, BrokerId(7))
    assert len((await risen.look(world.follower)).there) == 1
    await world.storage.overwrite_control(MARKER_KEY, b"another's")
    with pytest.raises(StorageUnavailable):
        await risen.look(world.follower)


@pytest.mark.parametrize("passed_over", ["ended", "unknown", "removed"])
def test_what_did_not_come_back_hides_nothing_that_did(passed_over):
    follower = came_back(*([1] if passed_over == "ended" else []))
    if passed_over != "ended":
        follower.risen.insert(0, (NEIGHBOUR, segment_id(4)))
    if passed_over == "removed":
        for value in (started(4, 0, 9, NEIGHBOUR), updated(4, tp=NEIGHBOUR)):
            follower.apply(value)
        follower.apply(marked(PartitionDeleteState.DELETE_PARTITION_MARKED, NEIGHBOUR))
    found = [each.segment_id for each in risen_of(follower.history, follower.fold)]
    assert found == [segment_id(n) for n in ((2, 3) if passed_over == "ended" else (1, 2, 3))]


# The list itself.


def fold_of(*values: bytes) -> Fold:
    fold = Fold(of(TP), COUNT)
    for value in values:
        fold.apply(fold.position, value)
    fold.advance(fold.position, 3)
    return fold


def replayed(history: History, *values: bytes) -> Fold:
    fold = Fold(of(TP), COUNT)
    for value in values:
        at = fold.position
        history.applied(fold.apply(at, value), at)
    return fold


def copy_of(number: int) -> list[bytes]:
    return [started(number, 10 * number, 10 * number + 9), updated(number)]


def risen(history: History) -> list[bytes]:
    return [each for _, each in history.risen]


ENDED = [updated(1, S.DELETE_SEGMENT_STARTED), updated(1, S.DELETE_SEGMENT_FINISHED)]


async def test_what_a_segment_held_put_back_is_no_deletion():
    """A stuck copy's delete, and its mending by finishing the same segment once more."""
    stuck = updated(1, S.DELETE_SEGMENT_STARTED, custom=ONLY_IF_STARTED)
    values = [*copy_of(1), stuck, updated(1, S.DELETE_SEGMENT_FINISHED), *copy_of(1)]
    history = History(of(TP), StateDirectory(Files(), "state"))
    await history.drop(fold_of(*values), "cut off", same_log=True)
    history.common_end = len(values)
    assert replayed(history, *values).partitions[TP].state(segment_id(1)) is (
        S.COPY_SEGMENT_FINISHED
    )
    assert (risen(history), history.missing_count) == ([], 0)


@pytest.mark.parametrize(("same_log", "end", "known"), [(True, 2, 1), (True, 1, 0), (False, 0, 0)])
async def test_only_what_the_dropped_fold_had_read_can_have_been_deleted(same_log, end, known):
    history = History(of(TP), StateDirectory(Files(), "state"))
    await history.drop(fold_of(*copy_of(1), *ENDED), "cut off", same_log=same_log)
    assert list(history.read) == ([Position(4, 3)] if same_log else [])
    history.common_end = end
    replayed(history, *copy_of(1))
    assert history.risen_count == known


@pytest.mark.parametrize("removed", [TP, NEIGHBOUR])
async def test_a_partition_that_is_removed_takes_its_own_along_and_no_others(removed):
    other = [started(2, 20, 29, NEIGHBOUR), updated(2, tp=NEIGHBOUR)]
    gone = updated(2, S.DELETE_SEGMENT_STARTED, NEIGHBOUR)
    copies = [*copy_of(1), *other]
    history = History(of(TP), StateDirectory(Files(), "state"))
    await history.drop(fold_of(*copies, *ENDED, gone), "cut off", same_log=True)
    history.common_end = len(copies)
    replayed(history, *copies, marked(PartitionDeleteState.DELETE_PARTITION_MARKED, removed))
    assert [tp for tp, _ in history.risen] == [{TP: NEIGHBOUR, NEIGHBOUR: TP}[removed]]


async def test_a_second_drop_does_not_take_what_came_back_for_live():
    files = Files()
    history = History(of(TP), StateDirectory(files, "state"))
    await history.drop(fold_of(*copy_of(1), *copy_of(2), *ENDED), "cut off", same_log=True)
    history.common_end = 4
    again = replayed(history, *copy_of(1), *copy_of(2))
    assert risen(history) == [segment_id(1)]
    await history.drop(again, "cut off again", same_log=True)
    assert (risen(history), history.common_end) == ([], 0), "the next replay shows it anew"
    later = History(of(TP), StateDirectory(files, "state"))
    await later.load()
    assert list(later.read) == [Position(6, 3)], "what the second fold had read the first had, too"
    later.common_end = 4
    replayed(later, *copy_of(1), *copy_of(2))
    assert (risen(later), later.missing_count) == ([segment_id(1)], 0)


@pytest.mark.parametrize(
    ("read", "kept"),
    [
        ([(4, 3), (4, 3)], [(4, 3)]),
        ([(4, 3), (4, 4)], [(4, 4)]),
        ([(4, 4), (4, 3)], [(4, 4)]),
        ([(4, 3), (5, 3)], [(5, 3)]),
        ([(5, 3), (4, 4)], [(5, 3), (4, 4)]),
    ],
)
def test_a_position_that_another_one_is_beyond_is_not_kept(read, kept):
    assert furthest([Position(*each) for each in read]) == [Position(*each) for each in kept]


async def test_an_ended_comparison_leaves_nothing_that_was_read():
    files = Files()
    history = History(of(TP), StateDirectory(files, "state"))
    await history.drop(fold_of(*copy_of(1)), "another log")
    assert history.read_elsewhere == len(copy_of(1))
    history.common_end = 4
    replayed(history, *copy_of(2))
    assert risen(history) == [segment_id(2)]
    assert files.kept
    await history.forget()
    assert not files.kept, "or the next life would compare again"
    assert (risen(history), history.common_end) == ([], 0)
    assert (history.read_elsewhere, list(history.read), history.comparing) == (0, [], False)


async def test_drops_without_end_leave_a_short_list():
    history = History(of(TP), StateDirectory(Files(), "state"))
    for number in range(3 * READ_MAX):
        fold = fold_of(*copy_of(1))
        fold.advance(1_000 - number, 3 + number)  # each in a newer epoch, none as far as before
        await history.drop(fold, "cut off", same_log=True)
    assert len(history.read) == READ_MAX
    assert history.read[-1].leader_epoch == 3 + 3 * READ_MAX - 1


class OlderLost(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon wrote, and reads, that knows nothing of deletions."""

    format: int = 1
    metadata_partition: int
    reasons: list[str]
    records: list[bytes]


def file_of(content: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(content)
    return lost_head(crc32c(body)) + body


texts, blobs = st.lists(st.text(max_size=9), max_size=3), st.lists(st.binary(max_size=9))
positions = st.builds(
    Position, next_offset=st.integers(0, 2**62), leader_epoch=st.integers(-1, 2**31 - 1)
)


@given(st.builds(OlderLost, metadata_partition=st.integers(0, 99), reasons=texts, records=blobs))
def test_an_older_file_is_read_and_says_nothing_of_deletions(older):
    found = lost_from(file_of(older), "3.lost")
    assert (found.metadata_partition, found.reasons) == (older.metadata_partition, older.reasons)
    assert (found.records, found.read) == (older.records, [])


@given(texts, blobs, st.lists(positions, min_size=1, max_size=3))
def test_a_file_that_names_what_was_read_is_its_own_format(reasons, kept, read):
    lost = Lost(format=2, metadata_partition=3, reasons=reasons, read=read, records=kept)
    assert lost_from(file_of(lost), "3.lost") == lost
    newer = msgspec.structs.replace(lost, format=3)
    with pytest.raises(UnsupportedProtocol, match=r"^3\.lost was written by a newer daemon"):
        lost_from(file_of(newer), "3.lost")


@pytest.mark.parametrize("same_log", [False, True])
async def test_an_older_daemon_refuses_what_it_would_take_for_less(same_log):
    """All of them look at the format before anything else."""
    files = Files()
    history = History(of(TP), StateDirectory(files, "state"))
    await history.drop(fold_of(*copy_of(1)), "cut off", same_log=same_log)
    (written,) = files.kept.values()
    older = msgspec.msgpack.decode(written[8:], type=OlderLost)
    assert older.format == (2 if same_log else 1)
    assert len(older.records) == 1
