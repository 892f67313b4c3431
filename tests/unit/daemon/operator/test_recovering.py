"""`rlmm log recover` over a real fold and bucket: what is put back, what is not, and why."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest
from crc32c import crc32c
from msgspec.structs import replace

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.codec import batches, custom_metadata, marker, records
from rlmm_daemon.codec.custom_metadata import StoredFacts
from rlmm_daemon.codec.marker import MARKER_KEY, AcceptedLoss, BucketMarker, Hold
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.readiness.states import PartitionState
from rlmm_daemon.core.storage.layout import Layout
from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.bucket import acceptance
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.bucket.live_marker import BucketIdentity
from rlmm_daemon.daemon.operator import recovering, risen
from rlmm_daemon.daemon.operator.recovering import (
    MaybeFinished,
    Recovery,
    RecoveryOptions,
    applied,
    missing_of,
)
from rlmm_daemon.domain.errors import ConfigError, NotReady, StorageUnavailable
from rlmm_daemon.domain.ids import BrokerId, Offset, SegmentId, TopicIdPartition
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import CustomMetadata, SegmentMetadata, SegmentState, SegmentUpdate
from rlmm_daemon.ports.sources import BufferSource
from rlmm_daemon.ports.storage import ObjectKind, Progress
from tests.support.memory_storage import MemoryStorage
from tests.unit.daemon.events import COUNT, NEIGHBOUR, TP, marked, of, segment_id, started, updated

S = SegmentState
NOW = 10_000_000
START = 9_500_000
PATIENCE = 600_000
US, OTHER = BrokerId(1), BrokerId(2)
IDENTITY = BucketIdentity(cluster_id="c1", partition_count=COUNT, metadata_topic_id="t")
LOG = ObjectKind.LOG
SMALL = {kind: kind.value.encode() for kind in ObjectKind if kind is not LOG}


class At(SystemClock):
    def now_ms(self) -> int:
        return NOW


@dataclass
class Follower:
    """A fold that applies at once what is appended; the rest is noted."""

    partition: int = of(TP)
    fold: Fold = field(default_factory=lambda: Fold(of(TP), COUNT))
    missing: list[bytes] = field(default_factory=list)
    comparing: bool = False
    risen: list[tuple[TopicIdPartition, SegmentId]] = field(default_factory=list)
    used_again: set[tuple[TopicIdPartition, SegmentId]] = field(default_factory=set)
    uncertain: bool = False
    looked_for: bool = False
    failure: object | None = None
    retired: bool = False
    state: PartitionState = PartitionState.REPLAYING
    lag: int | None = None
    retries: int = 0
    appended: list[bytes] = field(default_factory=list)
    changed: Broadcast = field(default_factory=Broadcast)

    @property
    def history(self) -> "Follower":
        return self

    @property
    def clock(self) -> At:
        return At()

    @property
    def log(self) -> "Follower":
        return self

    def retry(self) -> None:
        self.retries += 1

    @property
    def risen_count(self) -> int:
        return len(self.risen)

    def was_used_again(self, partition: TopicIdPartition, segment_id: SegmentId) -> bool:
        return (partition, segment_id) in self.used_again

    def let_be(self, segments: list[tuple[TopicIdPartition, SegmentId]]) -> None:
        self.risen = [each for each in self.risen if each not in segments]

    async def append(self, partition: int, record: bytes) -> int:
        assert partition == self.partition
        self.appended.append(record)
        offset = self.fold.position
        self.apply(record)
        return offset

    def apply(self, *several: bytes) -> None:
        for record in several:
            self.fold.apply(self.fold.position, record)

    def state_of(self, number: int) -> SegmentState | None:
        cache = self.fold.partitions.get(TP)
        return None if cache is None else cache.state(segment_id(number))


class World:
    def __init__(self) -> None:
        self.storage = MemoryStorage(clock=At())
        self.bucket = Bucket(self.storage, layout=Layout("now"), rng=random.Random(1))
        self.follower = cast("Any", Follower())
        self.running: set[SegmentId] = set()
        options = RecoveryOptions(broker_id=US, started_at_ms=START, patience_ms=PATIENCE)
        self.recovery = Recovery(
            self.follower, self.bucket, options, is_running=self.running.__contains__
        )

    async def store(
        self,
        segment: SegmentMetadata,
        objects: dict[ObjectKind, bytes] | None = None,
        layout: int | None = None,
    ) -> None:
        places = await self.bucket.places(replace(segment, custom_metadata=None))
        place = places[-1 if layout is None else layout - 1]
        given = {**SMALL, LOG: log_of(segment)} if objects is None else objects
        rows = [(kind, place.keys[kind], BufferSource(body)) for kind, body in given.items()]
        await self.storage.put_segment(rows, progress=Progress())

    async def recover(self, *, execute: bool = False) -> dict[str, Any]:
        return await self.recovery.recover(self.follower, execute=execute)


@pytest.fixture
async def world() -> World:
    made = World()
    await made.bucket.open(IDENTITY)
    return made


def log_of(segment: SegmentMetadata) -> bytes:
    count = segment.end_offset - segment.start_offset + 1
    return batches.build(
        [b"value"] * count, base_offset=segment.start_offset, leader_epoch=0, timestamp_ms=7
    )


def begun(number: int, **changes: Any) -> SegmentMetadata:
    found = records.decode(started(number, 10 * number, 10 * number + 9))
    assert isinstance(found, SegmentMetadata)
    found = replace(found, broker_id=OTHER, event_timestamp_ms=1_000, **changes)
    return replace(found, segment_size_bytes=len(log_of(found)))


def facts_of(segment: SegmentMetadata, **changes: Any) -> CustomMetadata:
    facts = StoredFacts(
        layout_number=1,
        log_crc32c=crc32c(log_of(segment)),
        sizes={kind.value: len(body) for kind, body in SMALL.items()},
    )
    return custom_metadata.encode(replace(facts, **changes))


def finished(number: int, **changes: Any) -> SegmentMetadata:
    """As a dropped fold knew it."""
    found = begun(number)
    custom = changes.pop("custom", facts_of(found))
    return replace(found, state=S.COPY_SEGMENT_FINISHED, custom_metadata=custom)


def update_in(record: bytes) -> SegmentUpdate:
    found = records.decode(record)
    assert isinstance(found, SegmentUpdate)
    return found


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [row["start_offset"] // 10 for row in rows]


async def test_a_look_says_what_can_be_put_back_and_changes_nothing(world):
    world.follower.missing = [records.encode(finished(n)) for n in (3, 1, 2)]
    world.follower.failure = "history lost"
    for number in (1, 3):
        await world.store(finished(number))
    told = await world.recover()
    assert told["executed"] is False
    assert numbers(told["can_be_put_back"]) == [1, 3], "in the order of the log"
    assert numbers(told["not_whole"]) == [2]
    assert told["not_whole"][0]["reason"] == "none of its objects is there"
    assert (told["may_have_ended"], told["not_looked_at"]) == (False, 0)
    assert world.follower.appended == []
    assert (world.follower.looked_for, world.follower.retries) == (False, 0)
    row = told["can_be_put_back"][0]
    assert (row["end_offset"], row["bytes"]) == (19, begun(1).segment_size_bytes)


async def test_what_is_put_back_is_finished_again_with_what_is_stored(world):
    lost = finished(1)
    world.follower.missing = [records.encode(lost)]
    world.follower.failure = "history lost"
    await world.store(lost)
    told = await world.recover(execute=True)
    assert told["executed"] is True
    assert numbers(told["put_back"]) == [1]
    first, second = world.follower.appended
    last = update_in(second)
    assert records.decode(first) == replace(
        lost, state=S.COPY_SEGMENT_STARTED, custom_metadata=None
    )
    assert (last.state, last.event_timestamp_ms) == (S.COPY_SEGMENT_FINISHED, NOW)
    assert last.custom_metadata == facts_of(lost)
    assert world.follower.state_of(1) is S.COPY_SEGMENT_FINISHED
    assert (world.follower.looked_for, world.follower.retries) == (True, 1)
    world.follower.appended.clear()
    assert (await world.recover(execute=True))["put_back"] == []
    assert world.follower.appended == [], "once"


async def test_an_order_right_after_a_start_waits_until_the_bucket_is_known():
    world = World()
    world.follower.missing = [records.encode(finished(1))]
    async with asyncio.TaskGroup() as group:
        order = group.create_task(world.recover())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not order.done()
        await world.bucket.open(IDENTITY)
    assert numbers(order.result()["not_whole"]) == [1]


async def test_others_have_turns_while_copies_that_began_are_looked_through(world, monkeypatch):
    pauses, real = list[float](), asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    world.follower.uncertain = True
    world.follower.apply(*(records.encode(begun(number)) for number in range(1, 6)))
    with monkeypatch.context() as patched:
        patched.setattr(recovering, "_TURN", 2)
        patched.setattr(asyncio, "sleep", pause)
        assert len(await world.recovery.begun(world.follower)) == 5
    assert pauses == [0, 0]


async def test_a_partition_that_is_not_failed_is_not_started_over(world):
    world.follower.missing = [records.encode(finished(1))]
    await world.store(finished(1))
    await world.recover(execute=True)
    assert (world.follower.looked_for, world.follower.retries) == (True, 0)


async def test_a_look_that_finds_nothing_to_put_back_is_judged_at_once(world):
    world.follower.missing = [records.encode(finished(1))]
    world.follower.failure = "history lost"
    await world.recover()
    assert (world.follower.looked_for, world.follower.retries) == (True, 1)


async def test_objects_are_looked_for_in_every_layout_that_was_ever_used(world):
    other = Bucket(world.storage, layout=Layout("next"), rng=random.Random(2))
    await other.open(IDENTITY)
    segment = begun(1)
    world.follower.uncertain = True
    world.follower.apply(records.encode(segment))
    await world.store(segment, layout=2)
    await world.recover(execute=True)
    update = update_in(world.follower.appended[-1])
    assert update.custom_metadata == facts_of(segment, layout_number=2)


@pytest.mark.parametrize("why", ["uncertain", "comparing", "hold"])
async def test_a_copy_that_began_may_have_been_finished_in_what_was_lost(world, why):
    segment = begun(1)
    world.follower.apply(records.encode(segment))
    await world.store(segment)
    assert (await world.recover())["can_be_put_back"] == []
    if why == "hold":
        loss = AcceptedLoss(
            topic_id="t", metadata_partition=of(TP), accepted_at_ms=NOW, broker_id=1
        )
        await acceptance.accept_loss(world.bucket, loss, cluster_id="c1")
    else:
        setattr(world.follower, why, True)
    told = await world.recover(execute=True)
    assert numbers(told["put_back"]) == [1]
    assert told["may_have_ended"] is (why == "uncertain")
    (update,) = map(update_in, world.follower.appended)
    assert update.state is S.COPY_SEGMENT_FINISHED, "its beginning is in the log"


async def test_a_hold_means_copies_of_a_clock_that_was_ahead_too_where_they_are_whole(world):
    """The cleaner keeps them by the storage's time, and names this order."""
    loss = AcceptedLoss(topic_id="t", metadata_partition=of(TP), accepted_at_ms=1, broker_id=1)
    for number in (1, 2):
        world.follower.apply(records.encode(begun(number)))
    await world.store(begun(1))
    assert (await world.recover())["can_be_put_back"] == []
    hold = Hold(metadata_partition=of(TP), before_ms=begun(1).event_timestamp_ms - 1, broker_id=1)
    other = Bucket(world.storage, layout=Layout("now"), rng=random.Random(2))
    await acceptance.accept_loss(other, loss, cluster_id="c1")
    held = replace_hold(await other.peek(), hold)
    await world.storage.overwrite_control(MARKER_KEY, marker.encode(held))
    await world.bucket.confirm()
    told = await world.recover()
    assert numbers(told["can_be_put_back"]) == [1]
    assert told["not_whole"] == [], "the second is a stuck copy as any"


@pytest.mark.parametrize(("of_all", "named"), [(False, str(of(TP))), (True, "--all")])
async def test_what_is_not_whole_under_a_hold_has_a_command_that_ends_it(world, of_all, named):
    """`explain` names this order for it: else that would be named for ever."""
    world.follower.apply(records.encode(begun(1)))
    assert (await world.recover())["next"] is None
    number = None if of_all else of(TP)
    hold = Hold(metadata_partition=number, before_ms=NOW, broker_id=1)
    held = replace_hold(await world.bucket.peek(), hold)
    await world.storage.overwrite_control(MARKER_KEY, marker.encode(held))
    await world.bucket.confirm()
    told = await world.recover()
    assert numbers(told["not_whole"]) == [1]
    assert told["next"] == f"rlmm partition end-hold {named}"
    await world.store(begun(1))
    assert (await world.recover())["next"] is None, "it can be put back first"
    assert (await world.recover(execute=True))["next"] == f"rlmm partition end-hold {named}"


def replace_hold(marker: BucketMarker | None, hold: Hold) -> BucketMarker:
    assert marker is not None
    return msgspec.structs.replace(marker, holds=(hold,))


async def test_nothing_is_said_of_an_end_where_nothing_is_put_back(world):
    world.follower.uncertain = True
    assert (await world.recover())["may_have_ended"] is False


@pytest.mark.parametrize(
    ("broker", "at_ms", "runs"),
    [
        (US, START - 1, False),
        (US, START, True),
        (US, NOW + PATIENCE, True),
        (US, NOW + PATIENCE + 1, False),
        (OTHER, NOW - PATIENCE - 1, False),
        (BrokerId(0), NOW - PATIENCE - 1, False),
        (OTHER, NOW - PATIENCE, True),
        (OTHER, NOW + PATIENCE, True),
        (OTHER, NOW + PATIENCE + 1, False),
    ],
)
async def test_a_copy_that_may_still_run_is_left_to_whoever_runs_it(world, broker, at_ms, runs):
    segment = replace(begun(1), broker_id=broker, event_timestamp_ms=at_ms)
    world.follower.uncertain = True
    world.follower.apply(records.encode(segment))
    await world.store(segment)
    assert numbers((await world.recover())["can_be_put_back"]) == ([] if runs else [1])
    world.running.add(segment.segment_id)
    assert (await world.recover())["can_be_put_back"] == []


async def test_a_process_that_began_by_a_clock_far_behind_still_looks_for_older_copies(world):
    """Started before its clock was set: every copy of earlier lives is younger than that."""
    world.recovery = Recovery(
        world.follower,
        world.bucket,
        RecoveryOptions(broker_id=US, started_at_ms=7, patience_ms=PATIENCE),
        is_running=world.running.__contains__,
    )
    segment = replace(begun(1), broker_id=US, event_timestamp_ms=NOW - PATIENCE - 1)
    world.follower.uncertain = True
    world.follower.apply(records.encode(segment))
    await world.store(segment)
    assert numbers((await world.recover())["can_be_put_back"]) == [1]


async def test_segments_of_a_partition_that_is_removed_are_not_put_back(world):
    world.follower.uncertain = True
    segment = begun(1)
    world.follower.apply(records.encode(segment), marked(PartitionDeleteState(0)))
    world.follower.missing = [records.encode(finished(2))]
    for each in (segment, finished(2)):
        await world.store(each)
    assert (await world.recover())["can_be_put_back"] == []


@pytest.mark.parametrize("why", ["removed", "damaged"])
@pytest.mark.parametrize("first", [TP, NEIGHBOUR])
async def test_a_partition_that_is_passed_over_hides_no_other_one(world, why, first):
    """Two of one metadata partition, in either order."""
    world.follower.uncertain = True
    second = NEIGHBOUR if first == TP else TP
    for tp, number in ((first, 1), (second, 2)):
        world.follower.apply(records.encode(replace(begun(number), partition=tp)))
    odd = TP
    whole = replace(begun(1 if first == NEIGHBOUR else 2), partition=NEIGHBOUR)
    if why == "removed":
        world.follower.apply(marked(PartitionDeleteState(0), odd))
    else:
        real = world.follower.fold.partitions

        class Damaged:
            def restless(self) -> Any:
                return real.restless()

            def get(self, tp: TopicIdPartition) -> Any:
                if tp == odd:
                    raise NotReady
                return real.get(tp)

        world.follower.fold.partitions = Damaged()
    found = await world.recovery.begun(world.follower)
    assert [each.segment.segment_id for each in found] == [whole.segment_id]


async def test_a_look_waits_until_the_marker_was_read(world):
    late = Bucket(world.storage, layout=Layout("now"), rng=random.Random(1))
    options = RecoveryOptions(broker_id=US, started_at_ms=START, patience_ms=PATIENCE)
    recovery = Recovery(world.follower, late, options, is_running=lambda _: False)
    await world.store(finished(1))
    candidates = [MaybeFinished(segment=finished(1), state=None)]
    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(recovery.look(world.follower, candidates))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not looking.done()
        await late.open(IDENTITY)
    assert len(looking.result().whole) == 1


async def test_a_look_right_after_a_start_takes_no_other_clusters_bucket_for_ours(world):
    """Before it is opened nobody knows whose it has to be, and any marker looks in order."""
    late = Bucket(world.storage, layout=Layout("now"), rng=random.Random(1))
    options = RecoveryOptions(broker_id=US, started_at_ms=START, patience_ms=PATIENCE)
    recovery = Recovery(world.follower, late, options, is_running=lambda _: False)
    await world.store(finished(1))
    candidates = [MaybeFinished(segment=finished(1), state=None)]

    async def look() -> None:
        with pytest.raises(StorageUnavailable, match="belongs to cluster 'c1'"):
            await recovery.look(world.follower, candidates)

    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(look())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not looking.done()
        with pytest.raises(ConfigError):
            await late.open(replace(IDENTITY, cluster_id="another", metadata_topic_id="u"))


async def test_a_segment_is_looked_for_once_though_it_is_missing_and_begun(world):
    world.follower.comparing = True
    world.follower.missing = [records.encode(finished(1))]
    world.follower.apply(records.encode(begun(1)))
    await world.store(finished(1))
    told = await world.recover(execute=True)
    assert numbers(told["put_back"]) == [1]
    assert len(world.follower.appended) == 1


async def test_a_segment_that_somebody_ended_meanwhile_is_not_finished_again(world):
    segment = begun(1)
    world.follower.apply(records.encode(segment), updated(1, S.DELETE_SEGMENT_STARTED))
    ended = MaybeFinished(segment=segment, state=S.COPY_SEGMENT_STARTED)
    assert await world.recovery.put_back(world.follower, [(ended, facts_of(segment))]) == 0
    assert world.follower.appended == []
    other = MaybeFinished(segment=begun(2), state=None)
    both = [(ended, facts_of(segment)), (other, facts_of(begun(2)))]
    assert await world.recovery.put_back(world.follower, both) == 2
    assert world.follower.state_of(2) is S.COPY_SEGMENT_FINISHED, "though the first was ended"


@pytest.mark.parametrize("younger", [False, True])
async def test_a_segment_that_was_ended_while_it_was_looked_for_is_not_called_put_back(
    world, monkeypatch, younger
):
    """The operator ends a hold while the order reads objects, and the cleaner ends the copy."""
    world.follower.uncertain = not younger
    for number in (1, 2):
        world.follower.apply(records.encode(begun(number)))
        await world.store(begun(number))
    if younger:
        hold = Hold(metadata_partition=of(TP), before_ms=1, broker_id=1)
        held = replace_hold(await world.bucket.peek(), hold)
        await world.storage.overwrite_control(MARKER_KEY, marker.encode(held))
        await world.bucket.confirm()
    look = world.recovery.look

    async def looked(*of_what):
        found = await look(*of_what)
        world.follower.apply(updated(1, S.DELETE_SEGMENT_STARTED))
        return found

    monkeypatch.setattr(world.recovery, "look", looked)
    told = await world.recover(execute=True)
    assert numbers(told["put_back"]) == [2]
    assert numbers(told["not_whole"]) == [1]
    assert "ended meanwhile" in told["not_whole"][0]["reason"]


async def without(world: World, *kinds: ObjectKind) -> None:
    segment = finished(1)
    whole = {**SMALL, LOG: log_of(segment)}
    await world.store(segment, {k: v for k, v in whole.items() if k not in kinds})


@pytest.mark.parametrize("kind", ObjectKind)
async def test_a_segment_without_one_of_the_objects_that_were_recorded_is_not_whole(world, kind):
    world.follower.missing = [records.encode(finished(1))]
    await without(world, kind)
    told = await world.recover(execute=True)
    assert told["put_back"] == world.follower.appended == []
    assert told["not_whole"][0]["reason"] == f"not there: {kind.value}"


@pytest.mark.parametrize("kind", ObjectKind)
async def test_of_a_copy_that_began_only_the_transaction_index_may_be_absent(world, kind):
    world.follower.uncertain = True
    world.follower.apply(records.encode(begun(1)))
    await without(world, kind)
    told = await world.recover(execute=True)
    if kind is ObjectKind.TRANSACTION:
        sizes = {k.value: len(body) for k, body in SMALL.items() if k is not kind}
        update = update_in(world.follower.appended[-1])
        assert update.custom_metadata == facts_of(begun(1), sizes=sizes)
    else:
        assert told["not_whole"][0]["reason"] == f"not there: {kind.value}"


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("kind", ObjectKind)
async def test_an_object_of_another_size_than_was_recorded_is_not_the_one(world, kind, by):
    segment = finished(1)
    world.follower.missing = [records.encode(segment)]
    objects = {**SMALL, LOG: log_of(segment)}
    wanted = len(objects[kind])
    objects[kind] = objects[kind] + b"." if by > 0 else objects[kind][:-1]
    await world.store(segment, objects)
    told = await world.recover(execute=True)
    assert world.follower.appended == []
    reason = f"{kind.value} has {wanted + by} bytes, not {wanted}"
    assert told["not_whole"][0]["reason"] == reason


@pytest.mark.parametrize("recorded", [0, 2**32 - 1])
async def test_a_log_that_is_damaged_or_another_one_is_not_put_back(world, recorded):
    damaged, another = finished(1), finished(2, custom=facts_of(begun(2), log_crc32c=recorded))
    world.follower.missing = [records.encode(each) for each in (damaged, another)]
    flipped = bytearray(log_of(damaged))
    flipped[-2] ^= 1
    await world.store(damaged, {**SMALL, LOG: bytes(flipped)})
    await world.store(another)
    told = await world.recover(execute=True)
    assert told["put_back"] == world.follower.appended == []
    first, second = (row["reason"] for row in told["not_whole"])
    assert first.startswith("its .log is damaged: ")
    assert second == "its .log is not the one that was recorded: the CRC-32C differs"


@pytest.mark.parametrize("within", ["a batch", "the header of another"])
async def test_a_log_that_ends_within_a_batch_is_damaged_though_its_size_is_right(world, within):
    whole = begun(1)
    cut = log_of(whole)[:-5] if within == "a batch" else log_of(whole) + log_of(begun(2))[:5]
    world.follower.uncertain = True
    world.follower.apply(records.encode(replace(whole, segment_size_bytes=len(cut))))
    await world.store(whole, {**SMALL, LOG: cut})
    told = await world.recover(execute=True)
    assert told["put_back"] == world.follower.appended == []
    assert told["not_whole"][0]["reason"].startswith("its .log is damaged: ")


async def test_what_another_storage_manager_stored_is_not_looked_for(world):
    segment = finished(1, custom=CustomMetadata(b"theirs"))
    world.follower.missing = [records.encode(segment)]
    await world.store(segment)
    told = await world.recover(execute=True)
    assert world.follower.appended == []
    assert told["not_whole"][0]["reason"].startswith("another storage manager stored it")


async def test_nothing_is_said_of_objects_while_the_bucket_is_not_known(world, monkeypatch):
    monkeypatch.setattr(recovering, "MARKER_SECONDS", 0.01)
    unknown = Bucket(world.storage, layout=Layout("now"), rng=random.Random(1))
    recovery = Recovery(
        world.follower,
        unknown,
        RecoveryOptions(broker_id=US, started_at_ms=START, patience_ms=PATIENCE),
        is_running=lambda _: False,
    )
    world.follower.missing = [records.encode(finished(1))]
    with pytest.raises(StorageUnavailable):
        await recovery.recover(world.follower, execute=True)
    assert (world.follower.appended, world.follower.looked_for) == ([], False)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_nothing_is_called_gone_by_a_look_into_another_bucket(world, monkeypatch, when):
    """It was emptied, or another one was mounted: what was looked for there is not given up."""
    world.follower.missing = [records.encode(finished(1))]
    sizes = world.recovery._sizes

    async def emptied(*given: Any) -> Any:
        await world.storage.overwrite_control(MARKER_KEY, b"another's")
        return await sizes(*given)

    if when == "before":
        await world.storage.overwrite_control(MARKER_KEY, b"another's")
    else:
        monkeypatch.setattr(world.recovery, "_sizes", emptied)
    for execute in (False, True):
        with pytest.raises(StorageUnavailable):
            await world.recover(execute=execute)
    assert not world.follower.looked_for


@pytest.mark.parametrize("execute", [False, True])
async def test_nothing_is_put_back_by_a_look_into_another_bucket_however_whole_it_is(
    world, execute
):
    """A copy of ours, say: what is recorded has to be in the bucket that is read from."""
    world.follower.missing = [records.encode(finished(1))]
    await world.store(finished(1))
    await world.storage.overwrite_control(MARKER_KEY, b"another's")
    with pytest.raises(StorageUnavailable):
        await world.recover(execute=execute)
    assert (world.follower.appended, world.follower.looked_for) == ([], False)


async def test_where_nothing_is_to_be_looked_for_the_bucket_need_not_answer(world):
    await world.storage.overwrite_control(MARKER_KEY, b"another's")
    assert (await world.recover())["not_looked_at"] == 0


async def test_of_a_partition_only_the_copies_that_began_may_have_been_finished(world):
    world.follower.uncertain = True
    for number in (1, 2, 3):
        world.follower.apply(records.encode(begun(number)))
    for number, state in ((2, S.COPY_SEGMENT_FINISHED), (3, S.DELETE_SEGMENT_STARTED)):
        world.follower.apply(updated(number, state))
    found = await world.recovery.begun(world.follower)
    assert [each.segment.segment_id for each in found] == [segment_id(1)]


async def test_others_have_turns_while_a_segment_is_read(world, monkeypatch):
    pauses, real = list[float](), asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    world.follower.missing = [records.encode(finished(1))]
    await world.store(finished(1))
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "sleep", pause)
        assert numbers((await world.recover())["can_be_put_back"]) == [1]
    assert set(pauses) == {0}, "a piece at a time, and nobody waits for nothing"


@pytest.mark.parametrize("when", ["as it looks", "as it appends"])
async def test_a_look_of_which_the_log_is_read_anew_meanwhile_counts_for_nothing(
    world, monkeypatch, when
):
    """What the log lacks now was not looked for: an acceptance would give it up unseen."""
    follower = world.follower
    follower.missing = [records.encode(finished(1)), records.encode(finished(2))]
    follower.risen = [(TP, segment_id(3))]
    await world.store(finished(2))
    sizes, append = world.recovery._sizes, follower.append

    def read_anew() -> None:
        follower.fold = Fold(of(TP), COUNT)

    async def looked(*given: Any) -> Any:
        read_anew()
        return await sizes(*given)

    async def appended(*given: Any) -> Any:
        read_anew()
        return await append(*given)

    if when == "as it looks":
        monkeypatch.setattr(world.recovery, "_sizes", looked)
    else:
        follower.append = appended
    with pytest.raises(NotReady):
        await world.recover(execute=True)
    assert not follower.looked_for
    assert follower.risen, "nothing of it was looked at"
    assert bool(follower.appended) is (when == "as it appends")


async def test_an_order_looks_at_so_many_and_says_how_many_are_left(world, monkeypatch):
    monkeypatch.setattr(recovering, "SEGMENTS_MAX", 2)
    world.follower.missing = [records.encode(finished(n)) for n in range(1, 4)]
    await world.store(finished(3))
    told = await world.recover(execute=True)
    assert (told["not_looked_at"], world.follower.looked_for) == (1, False)
    told = await world.recover(execute=True)
    assert numbers(told["put_back"]) == [3]
    assert (told["not_looked_at"], world.follower.looked_for) == (0, True)


async def test_what_came_back_and_is_left_is_counted_with_what_is_missing_and_left(
    world, monkeypatch
):
    monkeypatch.setattr(recovering, "SEGMENTS_MAX", 1)
    monkeypatch.setattr(risen, "SEGMENTS_MAX", 1)
    world.follower.missing = [records.encode(finished(n)) for n in (1, 2)]
    for number in (3, 4, 5):
        world.follower.apply(records.encode(begun(number)))
        world.follower.apply(updated(number, custom=facts_of(begun(number))))
        world.follower.risen.append((TP, segment_id(number)))
    told = await world.recover(execute=True)
    assert (told["not_looked_at"], world.follower.looked_for) == (1 + 2, False)


async def test_an_order_waits_until_its_own_events_were_applied(world, monkeypatch):
    follower = world.follower
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(applied(follower, 1))
        for event in (started(1, 0, 9), updated(1)):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not waiting.done()
            follower.apply(event)
            follower.changed.ring()
    follower.retired = True
    await applied(follower, 100)
    follower.retired = False
    monkeypatch.setattr(recovering, "APPLIED_SECONDS", 0.01)
    await applied(follower, 100)


async def test_what_was_put_back_is_answered_once_it_is_applied(world):
    segment, later = begun(1), list[bytes]()
    follower = world.follower
    follower.apply(records.encode(segment))

    async def append(_: int, record: bytes) -> int:
        later.append(record)
        return int(follower.fold.position)

    follower.append = append
    candidate = MaybeFinished(segment=segment, state=S.COPY_SEGMENT_STARTED)
    async with asyncio.TaskGroup() as tasks:
        putting = tasks.create_task(
            world.recovery.put_back(follower, [(candidate, facts_of(segment))])
        )
        for _ in range(20):
            await asyncio.sleep(0)
        assert (putting.done(), len(later)) == (False, 1)
        follower.apply(*later)
        follower.changed.ring()
    assert putting.result() == 1


async def test_what_the_log_shows_finished_or_ended_is_not_missing(world):
    known = [records.encode(finished(n)) for n in range(1, 5)]
    world.follower.missing = known
    for number, state in ((2, S.COPY_SEGMENT_FINISHED), (3, S.DELETE_SEGMENT_STARTED)):
        world.follower.apply(records.encode(begun(number)), updated(number, state))
    world.follower.apply(records.encode(begun(4)))
    found = missing_of(world.follower.history, world.follower.fold)
    assert [(each.segment.start_offset, each.state) for each in found] == [
        (Offset(10), None),
        (Offset(40), S.COPY_SEGMENT_STARTED),
    ]
