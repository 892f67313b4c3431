"""What the bucket says of the log: its marker, our presence file, accepted losses."""

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec import marker
from rlmm_daemon.codec.marker import (
    MARKER_KEY,
    AcceptedLoss,
    Presence,
    PresencePartition,
)
from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.readiness.marker_verdict import LogHistory
from rlmm_daemon.core.storage.layout import Layout
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.bucket import acceptance
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.bucket.live_marker import BucketIdentity
from rlmm_daemon.daemon.bucket.owed import NoBucket
from rlmm_daemon.daemon.bucket.presence_files import PresenceReader
from rlmm_daemon.daemon.bucket.recorded_log import RecordedLog
from rlmm_daemon.daemon.bucket.storage_past import RecordedPast
from rlmm_daemon.domain.errors import ConfigError, Malformed, StorageUnavailable
from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, TopicId, uuid_text
from rlmm_daemon.ports.event_log import LogIdentity, LogRange
from tests.support import markers
from tests.support.memory_storage import MemoryBucket, MemoryStorage

OURS = TopicId(bytes(range(16)))
OTHER = TopicId(bytes(range(50, 66)))
NO_LOG: Any = None


class Past(RecordedPast):
    """The past of a daemon whose log is empty."""

    def __init__(self, state: StateDirectory) -> None:
        super().__init__(NO_LOG, state, state.turns)

    async def history(self) -> LogHistory:
        return LogHistory()

    async def named_from(self, number: int) -> int | None:
        del number
        return None


@pytest.fixture
def storage():
    return MemoryStorage(MemoryBucket(), clock=SystemClock())


@pytest.fixture
def bucket(storage):
    return Bucket(storage, layout=Layout(), rng=random.Random(1))


def recorded(
    storage,
    bucket,
    cluster_id: str | None = "c1",
    state: StateDirectory | None = None,
    now_ms: int = 77,
    *,
    presences: PresenceReader | None = None,
) -> RecordedLog:
    return RecordedLog(
        storage,
        bucket,
        broker_id=BrokerId(1),
        cluster_id=cluster_id,
        now_ms=lambda: now_ms,
        state=state or StateDirectory(LocalDisk(), "/nowhere"),
        presences=presences,
    )


def identity(cluster_id: str = "c1", topic_id: TopicId = OURS) -> BucketIdentity:
    return BucketIdentity(
        cluster_id=cluster_id, partition_count=3, metadata_topic_id=uuid_text(topic_id)
    )


def named(topic_id: TopicId) -> LogIdentity:
    return LogIdentity(cluster_id="c1", topic_id=topic_id, partition_count=3)


async def test_a_fresh_bucket_names_no_log_and_gets_no_marker_by_being_asked(storage, bucket):
    assert await recorded(storage, bucket).log() is None
    assert await storage.get_control(MARKER_KEY) is None


async def test_the_marker_and_the_presence_file_are_the_buckets_word(storage, bucket):
    await bucket.open(identity())
    seen = PresencePartition(state="ready", topic_id=uuid_text(OURS), leader_epoch=4, next_offset=9)
    stale = PresencePartition(
        state="ready", topic_id=uuid_text(OTHER), leader_epoch=1, next_offset=5
    )
    presence = Presence(
        cluster_id="c1",
        broker_id=1,
        incarnation=None,
        started_at_ms=0,
        written_at_ms=0,
        copy_deadline_seconds=1.0,
        lease_end_ms=None,
        metadata_manager="rlmm",
        partitions={0: seen, 1: stale},
    )
    await storage.overwrite_control(marker.presence_key(1), marker.encode(presence))
    log = await recorded(storage, bucket).log()
    assert log is not None
    assert (log.topic_id, log.partition_count) == (OURS, 3)
    assert log.positions == {0: Position(9, 4)}


class HandClock(SystemClock):
    """The storage's clock, which goes on when told to."""

    at_ms = 1_000_000

    def now_ms(self) -> int:
        return self.at_ms


async def tell_positions(storage, written_at_ms: int) -> None:
    """Write our presence file as of now by the storage's clock, and of then by ours."""
    seen = PresencePartition(state="ready", topic_id=uuid_text(OURS), leader_epoch=4, next_offset=9)
    presence = Presence(
        cluster_id="c1",
        broker_id=1,
        incarnation=None,
        started_at_ms=0,
        written_at_ms=written_at_ms,
        copy_deadline_seconds=1.0,
        lease_end_ms=None,
        metadata_manager="rlmm",
        partitions={1: seen, 2: seen},
    )
    await storage.overwrite_control(marker.presence_key(1), marker.encode(presence))


async def told(log: RecordedLog) -> set[int]:
    found = await log.log()
    assert found is not None
    return set(found.positions)


@pytest.mark.parametrize("apart_ms", [-500_000, -1, 0, 1, 500_000])
@pytest.mark.parametrize(("partition", "known"), [(1, {2}), (None, set())])
async def test_a_position_is_void_by_a_loss_that_was_accepted_after_it_was_written(
    partition, known, apart_ms
):
    """The daemon may have died before it wrote its presence file again.

    By the storage's time: the daemon's clock may be wrong, and set right since.
    """
    clock = HandClock()
    storage = MemoryStorage(MemoryBucket(), clock=clock)
    bucket = Bucket(storage, layout=Layout(), rng=random.Random(1))
    await bucket.open(identity())
    await tell_positions(storage, clock.at_ms)
    clock.at_ms += 1_000
    ours = recorded(storage, bucket, now_ms=clock.at_ms + apart_ms)
    number = None if partition is None else MetadataPartition(partition)
    await ours.accept_loss(number, named(OURS), {})
    assert await told(ours) == known
    # What is read since is no part of the loss, and the marker may be written again.
    clock.at_ms += 1_000
    await tell_positions(storage, clock.at_ms)
    clock.at_ms += 1_000
    await acceptance.end_holds(bucket, None, cluster_id="c1")
    assert await told(ours) == {1, 2}


async def test_a_loss_of_a_clock_ahead_by_an_earlier_version_voids_nothing_written_since():
    clock = HandClock()
    storage = MemoryStorage(MemoryBucket(), clock=clock)
    bucket = Bucket(storage, layout=Layout(), rng=random.Random(1))
    await bucket.open(identity())
    ahead = AcceptedLoss(
        metadata_partition=None,
        topic_id=uuid_text(OURS),
        accepted_at_ms=clock.at_ms + 10**10,
        broker_id=1,
    )
    await tell_positions(storage, clock.at_ms)
    clock.at_ms += 1_000
    await acceptance.accept_loss(bucket, ahead, cluster_id="c1")
    ours = recorded(storage, bucket)
    assert await told(ours) == set()
    clock.at_ms += 1_000
    await tell_positions(storage, clock.at_ms)
    assert await told(ours) == {1, 2}


@pytest.mark.parametrize("at_ms", [1_000_500, 999_500])
async def test_where_the_storage_does_not_tell_its_time_a_loss_is_dated_by_ours(monkeypatch, at_ms):
    """Listings may be denied; the acceptance stands nevertheless."""
    clock = HandClock()
    storage = MemoryStorage(MemoryBucket(), clock=clock)
    bucket = Bucket(storage, layout=Layout(), rng=random.Random(1))
    await bucket.open(identity())
    await tell_positions(storage, clock.at_ms)

    async def denied(key: str) -> AsyncGenerator[Any, None]:
        if key:
            raise StorageUnavailable("denied", retry=False)
        yield []

    monkeypatch.setattr(storage, "list", denied)
    ours = recorded(storage, bucket, now_ms=at_ms)
    await ours.accept_loss(None, named(OURS), {})
    assert bucket.marker is not None
    assert [each.accepted_at_ms for each in bucket.marker.accepted_losses] == [at_ms]
    assert await told(ours) == (set() if at_ms >= clock.at_ms else {1, 2})


async def test_a_hold_keeps_what_events_of_a_clock_ahead_tell_of_though_the_loss_is_of_now():
    clock = HandClock()
    storage = MemoryStorage(MemoryBucket(), clock=clock)
    bucket = Bucket(storage, layout=Layout(), rng=random.Random(1))
    await bucket.open(identity())
    for apart_ms in (-500_000, 500_000):
        ours = recorded(storage, bucket, now_ms=clock.at_ms + apart_ms)
        await ours.accept_loss(None, named(OURS), {})
        assert bucket.marker is not None
        assert bucket.marker.accepted_losses[-1].accepted_at_ms == clock.at_ms
        (hold,) = await bucket.holds()
        assert hold.before_ms == clock.at_ms + max(apart_ms, 0)


def read_by(broker_id: int, written_at_ms: int = 0, **changes: Any) -> Presence:
    seen = {"state": "ready", "topic_id": uuid_text(OURS), "leader_epoch": 4, "next_offset": 9}
    return Presence(
        cluster_id="c1",
        broker_id=broker_id,
        incarnation=None,
        started_at_ms=0,
        written_at_ms=written_at_ms,
        copy_deadline_seconds=1.0,
        lease_end_ms=None,
        metadata_manager="rlmm",
        partitions={1: PresencePartition(**{**seen, **changes})},
    )


async def others_of(storage, bucket, *presences: Presence):
    for each in presences:
        key = marker.presence_key(each.broker_id)
        await storage.overwrite_control(key, marker.encode(each))
    found = await recorded(storage, bucket).log()
    assert found is not None
    return found.others


async def test_what_other_daemons_had_read_is_told_where_none_is_beyond_another(storage, bucket):
    await bucket.open(identity())
    await storage.overwrite_control(marker.presence_key(9), b"damaged")
    found = await others_of(
        storage,
        bucket,
        read_by(1, next_offset=99),
        read_by(2),
        read_by(3, next_offset=8),
        read_by(4, leader_epoch=5, next_offset=7),
        read_by(5, topic_id=uuid_text(OTHER), next_offset=50),
        read_by(6, leader_epoch=-1, next_offset=60),
        read_by(7),
    )
    key = marker.presence_key
    assert found == {1: {Position(9, 4): f"{key(2)}, {key(7)}", Position(7, 5): key(4)}}


@pytest.mark.parametrize("apart_ms", [-500_000, 500_000])
async def test_what_another_had_read_is_void_by_a_loss_that_was_accepted_after_it(apart_ms):
    """By the storage's time: each of the two may have a wrong clock."""
    clock = HandClock()
    storage = MemoryStorage(MemoryBucket(), clock=clock)
    bucket = Bucket(storage, layout=Layout(), rng=random.Random(1))
    await bucket.open(identity())
    assert await others_of(storage, bucket, read_by(2, written_at_ms=clock.at_ms - apart_ms))
    clock.at_ms += 1_000
    ours = recorded(storage, bucket, now_ms=clock.at_ms + apart_ms)
    await ours.accept_loss(MetadataPartition(1), named(OURS), {})
    assert not await others_of(storage, bucket)
    clock.at_ms += 1_000
    assert await others_of(storage, bucket, read_by(2, written_at_ms=clock.at_ms - apart_ms))


@pytest.mark.parametrize("number", [MetadataPartition(1), None])
@pytest.mark.parametrize("broker_id", [1, 2])
async def test_a_file_that_cannot_be_read_is_told_of_until_what_it_may_say_is_accepted(
    broker_id, number
):
    """Its words may be of any metadata partition; ours only our own acceptance makes void."""
    clock = HandClock()
    storage = MemoryStorage(MemoryBucket(), clock=clock)
    bucket = Bucket(storage, layout=Layout(), rng=random.Random(1))
    await bucket.open(identity())
    key = marker.presence_key(broker_id)

    async def unread() -> Mapping[int, Sequence[str]]:
        found = await recorded(storage, bucket).log()
        assert found is not None
        assert found.own_unread == (broker_id == 1 and bool(found.unread))
        return found.unread

    await storage.overwrite_control(key, marker.encode(read_by(broker_id)))
    assert await unread() == {}
    await storage.overwrite_control(f"{key}.bak", b"{")
    assert await unread() == {}, "nobody's word"
    large = b" " * (marker.CONTROL_BYTES_MAX + 1)
    for damage in (b"", b"{", large):
        await storage.overwrite_control(key, damage)
        assert await unread() == {0: [key], 1: [key], 2: [key]}
    clock.at_ms += 1_000
    left = {n: [key] for n in range(3) if number is not None and n != number}
    others = RecordedLog(
        storage,
        bucket,
        broker_id=BrokerId(5),
        cluster_id="c1",
        now_ms=clock.now_ms,
        state=StateDirectory(LocalDisk(), "/nowhere"),
    )
    await others.accept_loss(number, named(OURS), {})
    assert await unread() == ({n: [key] for n in range(3)} if broker_id == 1 else left)
    await recorded(storage, bucket, now_ms=clock.at_ms).accept_loss(number, named(OURS), {})
    assert await unread() == left
    clock.at_ms += 1_000
    await storage.overwrite_control(key, b"[")
    assert set(await unread()) == {0, 1, 2}, "it was damaged since"


@pytest.mark.parametrize("passes", [False, True])
async def test_a_listing_that_is_denied_for_good_keeps_no_daemon_from_starting(
    storage, bucket, monkeypatch, passes
):
    await bucket.open(identity())

    async def denied(prefix: str) -> AsyncGenerator[Any, None]:
        if prefix:
            raise StorageUnavailable("denied", **({} if passes else {"retry": False}))
        yield []

    monkeypatch.setattr(storage, "list", denied)
    if passes:
        with pytest.raises(StorageUnavailable):
            await others_of(storage, bucket)
    else:
        assert await others_of(storage, bucket) == {}


async def test_another_clusters_marker_says_nothing_and_is_not_written(storage, bucket, tmp_path):
    await bucket.open(identity("another", OTHER))
    before = await storage.get_control(MARKER_KEY)
    ours = Bucket(storage, layout=Layout(), rng=random.Random(1))
    with pytest.raises(ConfigError):
        await ours.open(identity())
    assert ours.trouble is not None
    state = StateDirectory(LocalDisk(), str(tmp_path))
    log = recorded(storage, ours, state=state)
    assert await log.log() is None
    await log.accept_loss(None, named(OTHER), {})
    assert await storage.get_control(MARKER_KEY) == before
    assert storage.bucket.objects.keys() == {MARKER_KEY}, "nor anything else of theirs"
    assert await held_by(state) == [None], "the right storage, once it is configured, holds all"


async def held_by(state: StateDirectory) -> list[int | None]:
    """Return what the marker is owed that is met next."""
    owed = await state.owed_marker()
    return [] if owed is None else [h.metadata_partition for h in marker.decode_marker(owed).held]


async def test_what_was_accepted_beside_a_marker_that_is_refused_is_held_by_the_one_that_comes(
    storage, bucket, tmp_path
):
    """An older bucket of this cluster, say, was configured for a while: the hold went into it."""
    await bucket.open(identity())
    state = StateDirectory(LocalDisk(), str(tmp_path))
    await recorded(storage, bucket, state=state).accept_loss(MetadataPartition(1), named(OURS), {})
    assert await held_by(state) == [], "this one is in order"
    assert bucket.marker is not None
    older = msgspec.structs.replace(bucket.marker, layouts=())
    await storage.overwrite_control(MARKER_KEY, marker.encode(older))
    with pytest.raises(StorageUnavailable):
        await bucket.confirm()
    await recorded(storage, bucket, state=state).accept_loss(MetadataPartition(2), named(OURS), {})
    assert await held_by(state) == [2]


async def test_an_accepted_loss_is_kept_and_names_the_log_from_then_on(storage, bucket):
    await bucket.open(identity())
    log = recorded(storage, bucket)
    await log.accept_loss(MetadataPartition(2), named(OURS), {2: [LogRange(start=3, end=5)]})
    await log.accept_loss(None, named(OTHER), {})
    known = await log.log()
    assert known is not None
    assert known.topic_id == OTHER
    assert bucket.marker is not None
    losses = [(loss.metadata_partition, loss.topic_id) for loss in bucket.marker.accepted_losses]
    assert losses == [(2, uuid_text(OURS)), (None, uuid_text(OTHER))]
    assert known.accepted_gaps == [(OURS, 2, LogRange(start=3, end=5))]
    assert [hold.metadata_partition for hold in await bucket.holds()] == [2, None]


async def test_a_count_of_partitions_that_was_accepted_is_the_markers_from_then_on(storage, bucket):
    await bucket.open(identity())
    log = recorded(storage, bucket)
    counts = list[int]()
    for number, count in ((MetadataPartition(2), 5), (None, 5)):
        known = LogIdentity(cluster_id="c1", topic_id=OURS, partition_count=count)
        await log.accept_loss(number, known, {})
        said = await log.log()
        assert said is not None
        counts.append(said.partition_count)
    assert counts == [3, 5]


@pytest.mark.parametrize("others", [False, True], ids=["its own marker", "made by another"])
@pytest.mark.parametrize("knew", [False, True])
async def test_a_loss_that_was_accepted_without_a_marker_is_held_though_the_daemon_dies_then(
    storage, bucket, tmp_path, knew, others
):
    """Log and marker are both gone: the next start finds a new log that names nothing."""
    disk = LocalDisk()
    state = StateDirectory(disk, str(tmp_path))
    try:
        await state.open()
        if knew:
            await bucket.open(identity(), Past(state))
            storage.bucket.objects.pop(MARKER_KEY)
        lost = Bucket(storage, layout=Layout(), rng=random.Random(1))
        await recorded(storage, lost, state=state).accept_loss(None, named(OTHER), {})
        if others:
            await Bucket(storage, layout=Layout(), rng=random.Random(3)).open(identity())
        again = Bucket(storage, layout=Layout(), rng=random.Random(2))
        made = await again.open(identity(), Past(state))
        assert [hold.metadata_partition for hold in made.held] == [None]
        assert [loss.topic_id for loss in made.accepted_losses] == [uuid_text(OTHER)]
        assert [row.number for row in made.layouts] == [1]
        await acceptance.end_holds(again, None, cluster_id="c1")
        later = Bucket(storage, layout=Layout(), rng=random.Random(4))
        assert not (await later.open(identity(), Past(state))).held, "it is put in once"
    finally:
        await state.close()
        disk.close()


async def test_a_loss_that_was_accepted_before_any_marker_is_no_word_of_one_that_was_seen(
    storage, tmp_path, monkeypatch
):
    """Log and directory are new: nothing is to come back under this one's name."""
    monkeypatch.setattr(storage, "local_path", lambda key: str(tmp_path / key))
    disk = LocalDisk()
    state = StateDirectory(disk, str(tmp_path / "state"))
    try:
        await state.open()
        first = Bucket(storage, layout=Layout(), rng=random.Random(1))
        await recorded(storage, first, state=state).accept_loss(None, named(OTHER), {})
        again = Bucket(storage, layout=Layout(), rng=random.Random(2))
        async with asyncio.timeout(10):
            made = await again.open(identity(), Past(state))
        assert [hold.metadata_partition for hold in made.held] == [None]
        assert [row.number for row in made.layouts] == [1]
    finally:
        await state.close()
        disk.close()


@pytest.mark.parametrize("used", [False, True], ids=["never", "before"])
async def test_a_loss_that_was_accepted_without_a_storage_is_held_by_the_one_that_comes(
    storage, bucket, tmp_path, used
):
    """Whose cleaner would take for abandoned what may have been finished in what was lost."""
    disk = LocalDisk()
    state = StateDirectory(disk, str(tmp_path))
    try:
        await state.open()
        if used:
            await bucket.open(identity(), Past(state))
        alone = NoBucket(state, broker_id=BrokerId(1), cluster_id="c1", now_ms=lambda: 77)
        assert await alone.log() is None
        lost = LogRange(start=1, end=2)
        await alone.accept_loss(MetadataPartition(2), named(OURS), {2: (lost,)})
        assert (await state.marker() is not None) == used, "else a fresh storage would be missed"
        made = await Bucket(storage, layout=Layout(), rng=random.Random(2)).open(
            identity(), Past(state)
        )
        assert [hold.metadata_partition for hold in made.held] == [2]
        assert [(gap.metadata_partition, gap.start, gap.end) for gap in made.gaps] == [(2, 1, 2)]
        assert await state.owed_marker() is None
    finally:
        await state.close()
        disk.close()


async def test_a_marker_that_names_no_topic_is_damaged_and_says_what_ends_that(storage, bucket):
    await bucket.open(identity())
    control = await storage.get_control(MARKER_KEY)
    assert control is not None
    ours, whole = uuid_text(OURS).encode(), control.data
    for spoilt in (b"!" + ours[1:], ours + b"A", ours[:-1] + b"\\u00e9"):
        damaged = markers.edited(whole, ours, spoilt)
        with pytest.raises(Malformed, match="is not a Kafka uuid"):
            marker.require_topic_ids(marker.decode_marker(damaged))
        await storage.put_control(MARKER_KEY, damaged, if_etag=control.etag)
        control = await storage.get_control(MARKER_KEY)
        with pytest.raises(Malformed, match="rlmm storage rebuild-marker"):
            await recorded(storage, bucket).log()
        await storage.put_control(MARKER_KEY, whole, if_etag=control.etag)
        control = await storage.get_control(MARKER_KEY)
