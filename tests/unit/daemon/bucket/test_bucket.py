import asyncio
import contextlib
import os
import random
import shutil
from typing import Any

import pytest

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.storage.local import LocalStorage
from rlmm_daemon.codec import custom_metadata, marker
from rlmm_daemon.codec.custom_metadata import StoredFacts
from rlmm_daemon.core.disposal.holds import UNKNOWN_MS
from rlmm_daemon.core.readiness.marker_verdict import LogHistory
from rlmm_daemon.core.storage.layout import Layout, object_key
from rlmm_daemon.daemon.bucket import acceptance, earlier_objects
from rlmm_daemon.daemon.bucket import bucket as bucket_module
from rlmm_daemon.daemon.bucket.bucket import Bucket, PresenceFiles
from rlmm_daemon.daemon.bucket.live_marker import BucketIdentity
from rlmm_daemon.daemon.bucket.presence import PresenceFacts, PresenceFile
from rlmm_daemon.daemon.bucket.storage_keeper import confirm_anew
from rlmm_daemon.domain.errors import ConfigError, Malformed, StorageUnavailable
from rlmm_daemon.ports.storage import ObjectInfo, ObjectKind, Progress
from tests.contract.storage import segment
from tests.support import markers
from tests.support.memory_storage import MemoryBucket, MemoryStorage
from tests.unit.daemon.reading.read_calls import until
from tests.unit.daemon.segments import IDENTITY, metadata


@pytest.fixture
def shared():
    return MemoryBucket()


def bucket(shared: MemoryBucket, prefix: str = "") -> Bucket:
    storage = MemoryStorage(shared, clock=SystemClock())
    return Bucket(storage, layout=Layout(prefix), rng=random.Random(1))


def recorded(number: int) -> bytes:
    return custom_metadata.encode(StoredFacts(layout_number=number, log_crc32c=0, sizes={}))


async def test_a_fresh_bucket_gets_a_marker_and_a_known_one_stays_as_it_is(shared):
    first = await bucket(shared).open(IDENTITY)
    raw = shared.objects[marker.MARKER_KEY]
    assert [(row.number, row.prefix) for row in first.layouts] == [(1, "")]
    assert await bucket(shared).open(IDENTITY) == first
    assert shared.objects[marker.MARKER_KEY] is raw


async def test_racing_daemons_append_their_layouts_and_lose_none(shared):
    buckets = [bucket(shared, f"p{n % 3}") for n in range(9)]
    async with asyncio.TaskGroup() as group:
        for one in buckets:
            group.create_task(one.open(IDENTITY))
    rows = marker.decode_marker(shared.objects[marker.MARKER_KEY].body).layouts
    assert sorted(row.prefix for row in rows) == ["p0", "p1", "p2"]
    for one, n in zip(buckets, range(9), strict=True):
        place = one.place_for_new(metadata())
        assert rows[place.layout_number - 1].prefix == f"p{n % 3}"


async def test_a_log_that_took_anothers_place_is_named_by_the_marker_once(shared):
    await bucket(shared).open(IDENTITY)
    before = marker.decode_marker(shared.objects[marker.MARKER_KEY].body)
    await acceptance.name_log(bucket(shared), "another", cluster_id=IDENTITY.cluster_id)
    raw = shared.objects[marker.MARKER_KEY]
    after = marker.decode_marker(raw.body)
    assert (after.metadata_topic_id, after.accepted_losses) == ("another", ())
    assert after.layouts == before.layouts
    await acceptance.name_log(bucket(shared), "another", cluster_id=IDENTITY.cluster_id)
    await acceptance.name_log(bucket(shared), "foreign", cluster_id="c2")
    assert shared.objects[marker.MARKER_KEY] is raw


async def test_a_marker_with_a_layout_that_no_version_wrote_is_damaged_and_stays(shared):
    await bucket(shared).open(IDENTITY)
    stored = shared.objects[marker.MARKER_KEY]
    flipped = markers.edited(stored.body, b"local-tiered", b"locaL-tiered")
    raw = shared.objects[marker.MARKER_KEY] = type(stored)(flipped, stored.modified_ms)
    with pytest.raises(Malformed, match=r"locaL-tiered.*rebuild-marker"):
        await bucket(shared).open(IDENTITY)
    assert shared.objects[marker.MARKER_KEY] is raw


async def test_another_clusters_bucket_is_refused_and_stays_untouched(shared):
    await bucket(shared).open(IDENTITY)
    raw = shared.objects[marker.MARKER_KEY]
    other = bucket(shared, "mine")
    foreign = BucketIdentity(cluster_id="c2", partition_count=5, metadata_topic_id="u")
    with pytest.raises(ConfigError, match=r"c1.*c2"):
        await other.open(foreign)
    with pytest.raises(StorageUnavailable):
        other.place_for_new(metadata())
    with pytest.raises(StorageUnavailable):
        await other.places(metadata())
    assert shared.objects[marker.MARKER_KEY] is raw


async def test_a_newer_marker_is_refused_and_stays_untouched(shared):
    await bucket(shared).open(IDENTITY)
    storage = MemoryStorage(shared, clock=SystemClock())
    newer = markers.newer(shared.objects[marker.MARKER_KEY].body)
    await storage.overwrite_control(marker.MARKER_KEY, newer)
    with pytest.raises(Malformed):
        await bucket(shared).open(IDENTITY)
    assert shared.objects[marker.MARKER_KEY].body == newer


async def test_a_storage_that_is_away_is_waited_for(shared, monkeypatch):
    monkeypatch.setattr(bucket_module, "BACK_OFF_SECONDS", 0.001)
    shared.available = False
    one = bucket(shared)
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(one.open(IDENTITY))
        await asyncio.wait([opening], timeout=0.02)
        assert not opening.done()
        with pytest.raises(StorageUnavailable):
            one.place_for_new(metadata())
        shared.available = True
    assert one.marker is not None


async def test_a_storage_that_refuses_us_from_the_start_says_so_instead_of_holding_calls(
    shared, monkeypatch
):
    """What is passing is waited for by whoever calls; a policy is not mended while he waits."""
    one = bucket(shared)

    async def denied() -> None:
        raise StorageUnavailable("ListObjectsV2: access denied", reason="denied", retry=False)

    opens = one.storage.open
    monkeypatch.setattr(one.storage, "open", denied)
    async with asyncio.TaskGroup() as group:
        group.create_task(one.open(IDENTITY))
        await until(lambda: one.away is not None)
        with pytest.raises(StorageUnavailable, match="ListObjectsV2: access denied") as refused:
            await one.places(metadata())
        assert refused.value.fields == {"reason": "denied", "retry": False}
        monkeypatch.setattr(one.storage, "open", opens)
    assert await one.places(metadata())


@pytest.mark.parametrize("call", ["open", "get_control"])
async def test_a_storage_that_hangs_from_the_start_is_told_to_be_away(shared, monkeypatch, call):
    """Nothing was told at all: an error never comes of it, and status said that all is well."""
    monkeypatch.setattr(bucket_module, "ANSWER_SECONDS", 0.01)
    one, answers = bucket(shared), asyncio.Event()
    real = getattr(one.storage, call)

    async def hangs(*given: Any) -> Any:
        await answers.wait()
        return await real(*given)

    monkeypatch.setattr(one.storage, call, hangs)
    async with asyncio.TaskGroup() as group:
        group.create_task(one.open(IDENTITY))
        await until(lambda: one.away is not None)
        told = one.away
        assert told is not None
        assert "has not answered for 0.01 s" in told.message
        answers.set()
    assert one.away is None
    assert await one.places(metadata())


async def test_a_recorded_layout_gives_one_place_and_none_gives_all(shared):
    await bucket(shared, "old").open(IDENTITY)
    one = bucket(shared, "new")
    await one.open(IDENTITY)
    place = (await one.places(metadata(custom_metadata=recorded(1))))[0]
    assert place.keys[ObjectKind.LOG].startswith("old/orders-7-")
    assert len(await one.places(metadata(custom_metadata=recorded(2)))) == 1
    for nothing in (None, b"", b"another plugin's"):
        places = await one.places(metadata(custom_metadata=nothing))
        assert [p.layout_number for p in places] == [1, 2]
    assert len(await one.places(metadata(), recorded(2))) == 1


async def test_a_layout_that_another_daemon_added_later_is_found(shared):
    one = bucket(shared, "old")
    await one.open(IDENTITY)
    await bucket(shared, "new").open(IDENTITY)
    assert (await one.places(metadata(custom_metadata=recorded(2))))[0].layout_number == 2
    with pytest.raises(StorageUnavailable):
        await one.places(metadata(custom_metadata=recorded(3)))


async def test_the_presence_file_is_written_at_once_and_on_change(shared, monkeypatch):
    monkeypatch.setattr("rlmm_daemon.daemon.bucket.presence.SETTLE_SECONDS", 0.0)
    written = asyncio.Event()
    row = marker.PresencePartition(state="ready", topic_id="t", leader_epoch=0, next_offset=4)

    class Told(MemoryStorage):
        async def overwrite_control(self, key: str, data: bytes) -> None:
            await super().overwrite_control(key, data)
            written.set()

    presence = PresenceFile(
        Told(shared, clock=SystemClock()),
        SystemClock(),
        cluster_id="c1",
        broker_id=4,
        copy_deadline_seconds=600.0,
        facts=lambda: PresenceFacts(
            incarnation=1, lease_end_ms=None, metadata_manager="rlmm", partitions={0: row}
        ),
        spawn=asyncio.get_running_loop().create_task,
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(presence.run())
        await written.wait()
        written.clear()
        presence.changed()
        await written.wait()
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    stored = marker.decode_presence(shared.objects["_rlmm/daemons/4.json"].body)
    assert (stored.broker_id, stored.partitions) == (4, {0: row})


# ---- a marker that is lost, or is another one than before ----------------------------------------


class Past:
    """What a daemon knows of its storage beside the marker."""

    def __init__(self, history: LogHistory | None = None) -> None:
        self.said = history or LogHistory()
        self.copy: marker.BucketMarker | None = None

    async def kept(self):
        return self.copy

    async def keep(self, present):
        self.copy = present

    async def owed(self):
        return None

    async def paid(self):
        raise AssertionError("nothing is owed")

    async def history(self):
        return self.said

    async def named_from(self, number):
        return max((each for each in self.said.named if each >= number), default=None)


async def settled(one: Bucket, past: Past) -> None:
    """Return once the bucket was judged, however that ended; it may go on to wait."""
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(one.open(IDENTITY, past))
        await one.until_judged(30)
        opening.cancel()


async def reason_of(one: Bucket) -> str:
    with pytest.raises(StorageUnavailable) as caught:
        one.place_for_new(metadata())
    with pytest.raises(StorageUnavailable):
        await one.places(metadata())
    assert caught.value.fields["key"] == marker.MARKER_KEY
    assert caught.value.fields["retry"] is False
    return str(caught.value.fields["reason"])


async def test_a_marker_is_never_made_where_the_log_names_layouts(shared):
    one = bucket(shared, "new")
    await settled(one, Past(LogHistory(named=frozenset({2}))))
    assert await reason_of(one) == "no_marker"
    assert "rlmm storage rebuild-marker" in str(one.trouble)
    assert marker.MARKER_KEY not in shared.objects


async def test_a_marker_that_is_made_anew_keeps_the_numbers_that_were_known(shared):
    past = Past()
    await bucket(shared, "old").open(IDENTITY, past)
    del shared.objects[marker.MARKER_KEY]
    made = await bucket(shared, "new").open(IDENTITY, past)
    assert [(row.number, row.prefix) for row in made.layouts] == [(1, "old"), (2, "new")]


@pytest.mark.parametrize("meanwhile", [False, True])
async def test_a_loss_that_was_accepted_without_a_marker_is_held_by_the_next_one(shared, meanwhile):
    """Log and marker both gone: objects of acknowledged segments may lie there all the same."""
    one, began_ms = bucket(shared), SystemClock().now_ms()
    loss = marker.AcceptedLoss(
        broker_id=1,
        metadata_partition=None,
        topic_id=IDENTITY.metadata_topic_id,
        accepted_at_ms=1_000,
    )
    await acceptance.accept_loss(one, loss, cluster_id=IDENTITY.cluster_id)
    if meanwhile:
        await bucket(shared).open(IDENTITY)
    await one.open(IDENTITY)
    written = marker.decode_marker(shared.objects[marker.MARKER_KEY].body)
    assert (written.accepted_losses, written.held) == ((loss,), await one.holds())
    assert [hold.metadata_partition for hold in written.held] == [None]
    assert written.held[0].before_ms >= began_ms, "by the storage's time, not our clock alone"
    await acceptance.end_holds(one, None, cluster_id=IDENTITY.cluster_id)
    assert await bucket(shared).open(IDENTITY) == await one.open(IDENTITY)
    assert not await one.holds(), "it is written once"


@pytest.mark.parametrize("number", [2, None])
async def test_a_loss_that_is_accepted_by_a_clock_that_is_behind_holds_what_is_there_now(
    shared, number
):
    """A power loss may take events and the machine's clock together."""
    one, began_ms = bucket(shared), SystemClock().now_ms()
    await one.open(IDENTITY)
    loss = marker.AcceptedLoss(
        broker_id=1,
        metadata_partition=number,
        topic_id=IDENTITY.metadata_topic_id,
        accepted_at_ms=1_000,
    )
    await acceptance.accept_loss(one, loss, cluster_id=IDENTITY.cluster_id)
    (hold,) = await one.holds()
    assert hold.before_ms >= began_ms
    assert one.marker is not None
    assert one.marker.accepted_losses == (loss,)


async def test_a_listing_that_is_denied_takes_no_acceptance_back(shared, monkeypatch):
    one = bucket(shared)
    await one.open(IDENTITY)

    async def denied(_prefix):
        yield ()
        raise StorageUnavailable("the keys may not list")

    monkeypatch.setattr(one.storage, "list", denied)
    loss = marker.AcceptedLoss(
        broker_id=1,
        metadata_partition=2,
        topic_id=IDENTITY.metadata_topic_id,
        accepted_at_ms=1_000,
    )
    await acceptance.accept_loss(one, loss, cluster_id=IDENTITY.cluster_id)
    assert [hold.before_ms for hold in await one.holds()] == [1_000 + UNKNOWN_MS]


YOUNG_MS = SystemClock().now_ms() + 86_400_000


@pytest.mark.parametrize("how", ["accepted", "all", "named"])
@pytest.mark.parametrize("prefix", ["a", "{hash:8}/b"])
async def test_a_hold_keeps_what_was_stored_while_the_storages_clock_was_ahead(shared, how, prefix):
    """In another layout than this daemon's, too; whatever is no segment's says nothing."""
    await bucket(shared, prefix).open(IDENTITY)
    one = bucket(shared, "here")
    for key, at_ms in ((key_of_a_segment(prefix), YOUNG_MS), ("other/app", YOUNG_MS + 9)):
        await one.storage.overwrite_control(key, b"x")
        shared.objects[key] = type(shared.objects[key])(b"x", at_ms)
    await one.open(IDENTITY)
    loss = marker.AcceptedLoss(
        broker_id=1,
        metadata_partition=2,
        topic_id=IDENTITY.metadata_topic_id,
        accepted_at_ms=1_000,
    )
    match how:
        case "accepted":
            await acceptance.accept_loss(one, loss, cluster_id=IDENTITY.cluster_id)
        case "all":
            await acceptance.hold_all(one, 1_000, 1)
        case _:
            hold = marker.Hold(metadata_partition=None, before_ms=1_000, broker_id=1)
            await acceptance.name_log(one, "another", cluster_id=IDENTITY.cluster_id, hold=hold)
    assert [hold.before_ms for hold in await one.holds()] == [YOUNG_MS]


@pytest.mark.parametrize("how", ["all", "a", "z"])
async def test_a_hold_of_a_clock_that_is_behind_keeps_what_the_storage_takes_until_now(shared, how):
    """By the storage's own time, which the marker that is written with the hold shows."""
    one = bucket(shared)
    await one.open(IDENTITY)
    written = shared.objects[marker.MARKER_KEY]
    shared.objects[marker.MARKER_KEY] = type(written)(written.body, 5)
    began_ms = SystemClock().now_ms()
    if how == "all":
        await acceptance.hold_all(one, 1_000, 1)
    else:
        hold = marker.Hold(metadata_partition=None, before_ms=1_000, broker_id=1)
        await acceptance.name_log(one, how, cluster_id=IDENTITY.cluster_id, hold=hold)
    (found,) = await one.holds()
    assert found.before_ms >= began_ms


async def test_a_log_that_the_marker_names_already_brings_no_hold(shared):
    one = bucket(shared)
    await one.open(IDENTITY)
    hold = marker.Hold(metadata_partition=None, before_ms=1_000, broker_id=1)
    topic_id = IDENTITY.metadata_topic_id
    assert await acceptance.name_log(one, topic_id, cluster_id=IDENTITY.cluster_id, hold=hold)
    assert await one.holds() == ()


@pytest.mark.parametrize("pages", [2, 3])
async def test_a_listing_that_is_too_long_lets_a_hold_keep_more(shared, monkeypatch, pages):
    monkeypatch.setattr(earlier_objects, "NEWEST_PAGES_MAX", 2)
    one = bucket(shared)
    await one.open(IDENTITY)
    listed = one.storage.list
    row = ObjectInfo(key=key_of_a_segment(), size=1, modified_ms=YOUNG_MS, etag="")

    async def many(prefix):
        if prefix:
            async with contextlib.aclosing(listed(prefix)) as found:
                async for page in found:
                    yield page
            return
        for _ in range(pages):
            yield [row]

    monkeypatch.setattr(one.storage, "list", many)
    now_ms = SystemClock().now_ms()
    await acceptance.hold_all(one, now_ms, 1)
    expected = YOUNG_MS if pages == 2 else now_ms + UNKNOWN_MS
    assert [hold.before_ms for hold in await one.holds()] == [expected]


async def test_a_directory_is_looked_through_to_its_end_for_a_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(earlier_objects, "NEWEST_PAGES_MAX", 0)
    storage = LocalStorage(str(tmp_path), owner="1")
    await storage.open()
    (tmp_path / key_of_a_segment()).parent.mkdir()
    (tmp_path / key_of_a_segment()).touch()
    os.utime(tmp_path / key_of_a_segment(), (YOUNG_MS / 1000, YOUNG_MS / 1000))
    newest_ms = await earlier_objects.newest_ms(storage, [Layout("")])
    assert newest_ms is not None
    assert abs(newest_ms - YOUNG_MS) <= 1
    await storage.close()


async def test_a_loss_that_is_accepted_later_never_shortens_a_hold(shared):
    one = bucket(shared)
    await one.open(IDENTITY)
    far_ms = SystemClock().now_ms() + 3_600_000
    for at_ms in (far_ms, far_ms - 1_800_000):
        loss = marker.AcceptedLoss(
            broker_id=1,
            metadata_partition=2,
            topic_id=IDENTITY.metadata_topic_id,
            accepted_at_ms=at_ms,
        )
        await acceptance.accept_loss(one, loss, cluster_id=IDENTITY.cluster_id)
    assert [hold.before_ms for hold in await one.holds()] == [far_ms]


# ---- a first marker over what is there already ---------------------------------------------------


def key_of_a_segment(prefix: str = "", suffix: str = ".log") -> str:
    one = metadata()
    return object_key(
        Layout(prefix), one.partition, one.start_offset, one.segment_id, suffix=suffix
    )


@pytest.mark.parametrize("prefix", ["", "a/b", "{hash:8}/b"])
@pytest.mark.parametrize("suffix", [".log", ".index"])
async def test_a_first_marker_over_objects_of_segments_holds_all_that_is_there(
    shared, prefix, suffix
):
    """The log that named them may be the one that was lost, and this one a fresh one."""
    one, began_ms = bucket(shared, prefix), SystemClock().now_ms()
    await one.storage.overwrite_control(key_of_a_segment(prefix, suffix), b"x")
    made = await one.open(IDENTITY, Past())
    assert [(hold.metadata_partition, hold.broker_id) for hold in made.held] == [(None, -1)]
    assert made.held[0].before_ms >= began_ms, "by the storage's time, not by our clock alone"
    assert marker.decode_marker(shared.objects[marker.MARKER_KEY].body) == made
    await acceptance.end_holds(one, None, cluster_id=IDENTITY.cluster_id)
    assert not (await bucket(shared, prefix).open(IDENTITY, Past())).held, "it is made once"


@pytest.mark.parametrize(
    ("prefix", "key"),
    [
        ("", "somebody/else.log"),
        ("", "_rlmm/daemons/3.json"),
        ("mine", key_of_a_segment()),
        ("mine", key_of_a_segment("minestrone")),
        ("", key_of_a_segment("theirs")),
    ],
)
async def test_a_first_marker_holds_nothing_for_what_is_not_below_its_prefix(shared, prefix, key):
    one = bucket(shared, prefix)
    await one.storage.overwrite_control(key, b"x")
    assert not (await one.open(IDENTITY, Past())).held


async def test_a_first_marker_in_a_bucket_too_large_to_be_looked_through_holds_all(
    shared, monkeypatch
):
    one, pages = bucket(shared), 0

    async def long(prefix):
        nonlocal pages
        for page in range(0 if prefix else 1_000):
            pages += 1
            yield (ObjectInfo(key=f"others/{page}", size=1, modified_ms=1),)

    monkeypatch.setattr(one.storage, "list", long)
    assert (await one.open(IDENTITY, Past())).held
    assert pages < 100, "the look is bounded"


async def test_a_first_marker_where_nothing_may_be_listed_holds_all(shared, monkeypatch):
    one = bucket(shared)

    async def denied(_prefix):
        yield ()
        raise StorageUnavailable("the keys may not list", retry=False)

    monkeypatch.setattr(one.storage, "list", denied)
    assert (await one.open(IDENTITY, Past())).held


async def test_a_first_marker_waits_for_a_listing_that_fails_for_the_moment(shared, monkeypatch):
    monkeypatch.setattr(bucket_module, "BACK_OFF_SECONDS", 0.001)
    one, whole = bucket(shared), MemoryStorage(shared, clock=SystemClock())
    failed = list[str]()

    async def shaky(prefix):
        if len(failed) < 3:
            failed.append(prefix)
            raise StorageUnavailable("slow down")
        async for page in whole.list(prefix):
            yield page

    monkeypatch.setattr(one.storage, "list", shaky)
    assert not (await one.open(IDENTITY, Past())).held
    assert len(failed) == 3


async def test_a_marker_with_other_numbers_than_the_copy_is_refused_and_left_alone(shared):
    past = Past()
    await bucket(shared, "old").open(IDENTITY, past)
    del shared.objects[marker.MARKER_KEY]
    await bucket(shared, "new").open(IDENTITY)  # one that knows nothing
    raw = shared.objects[marker.MARKER_KEY]
    one = bucket(shared, "old")
    await settled(one, past)
    assert await reason_of(one) == "remade_marker"
    assert shared.objects[marker.MARKER_KEY] is raw


async def test_a_marker_that_the_start_refused_is_taken_up_by_no_order(shared):
    """A delete looked once more, without the copy, and found every object absent."""
    past = Past()
    await bucket(shared, "old").open(IDENTITY, past)
    del shared.objects[marker.MARKER_KEY]
    await bucket(shared, "new").open(IDENTITY)
    one = bucket(shared, "old")
    await settled(one, past)
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="layout 1 was"):
            await one.confirm()
    assert one.marker is None


async def test_no_marker_is_taken_for_ours_before_the_bucket_was_opened(shared):
    """Whose it should be is not known yet, nor what an earlier life knew of it."""
    await bucket(shared).open(
        BucketIdentity(cluster_id="c9", partition_count=3, metadata_topic_id="z")
    )
    one = bucket(shared)
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="was not read yet"):
            await one.confirm()
        with pytest.raises(StorageUnavailable, match="was not read yet"):
            await one.refresh()
    assert one.marker is None
    assert not one.in_order


async def test_nor_is_one_that_comes_back_before_its_layout_is_known(shared):
    """A copy had no number for its place, and ended in a broken assertion."""
    await bucket(shared).open(IDENTITY)
    kept = shared.objects.pop(marker.MARKER_KEY)
    one = bucket(shared)
    await settled(one, Past(LogHistory(named=frozenset({1}))))
    shared.objects[marker.MARKER_KEY] = kept
    with pytest.raises(StorageUnavailable, match="there is none"):
        await one.confirm()
    assert await reason_of(one) == "no_marker"
    await one.open(IDENTITY, Past(LogHistory(named=frozenset({1}))))
    assert one.place_for_new(metadata()).layout_number == 1


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda _: None, "no_marker"),
        (lambda _: b"", "bad_marker"),
        (lambda body: body[:30], "bad_marker"),
        (markers.newer, "newer_marker"),
        (lambda body: body.replace(b'"format": 3', b'"format": 7'), "bad_marker"),
        (lambda body: markers.edited(body, b'"c1"', b'"c2"'), "bad_marker"),
        (
            lambda body: markers.edited(markers.edited(body, b'"c1"', b'"c2"'), b'"t"', b'"u"'),
            "foreign_marker",
        ),
        (lambda body: markers.edited(body, b'"mine"', b'"theirs"'), "remade_marker"),
    ],
    ids=["removed", "empty", "truncated", "newer", "flipped", "another_name", "foreign", "remade"],
)
async def test_a_marker_that_changes_while_it_is_used_is_noticed_and_its_return_too(
    shared, spoil, reason
):
    one = bucket(shared, "mine")
    await one.open(IDENTITY)
    storage = MemoryStorage(shared, clock=SystemClock())
    whole = shared.objects.pop(marker.MARKER_KEY).body
    if (spoiled := spoil(whole)) is not None:
        await storage.overwrite_control(marker.MARKER_KEY, spoiled)
    await one.confirm(seconds=3600)  # a look of a moment ago is good enough
    with pytest.raises(StorageUnavailable):
        await one.confirm()
    assert await reason_of(one) == reason
    await storage.overwrite_control(marker.MARKER_KEY, whole)
    await one.confirm()
    assert one.trouble is None
    assert one.place_for_new(metadata()).layout_number == 1


@pytest.mark.parametrize("running", [True, False])
async def test_an_older_marker_that_was_put_back_holds_what_a_loss_that_was_accepted_since_does(
    shared, running
):
    """Who lost the marker is told to restore it, and has no newer copy than his last backup's."""
    past = Past()
    one = bucket(shared)
    await one.open(IDENTITY, past)
    storage = MemoryStorage(shared, clock=SystemClock())
    backup = shared.objects[marker.MARKER_KEY].body
    loss = marker.AcceptedLoss(
        broker_id=1,
        metadata_partition=2,
        topic_id=IDENTITY.metadata_topic_id,
        accepted_at_ms=SystemClock().now_ms(),
    )
    gap = marker.AcceptedGap(
        topic_id=IDENTITY.metadata_topic_id, metadata_partition=2, start=4, end=6
    )
    await acceptance.accept_loss(one, loss, [gap], cluster_id=IDENTITY.cluster_id)
    (hold,) = await one.holds()
    await storage.overwrite_control(marker.MARKER_KEY, backup)
    if not running:
        one = bucket(shared)
        await one.open(IDENTITY, past)
    await one.confirm()
    assert await one.holds() == (hold,)
    written = marker.decode_marker(shared.objects[marker.MARKER_KEY].body)
    assert (written.accepted_losses, written.gaps, written.held) == ((loss,), (gap,), (hold,))
    await acceptance.end_holds(one, 2, cluster_id=IDENTITY.cluster_id)
    await one.confirm()
    assert await one.holds() == (), "a hold that was ended since stays so"


async def test_those_who_confirm_together_share_a_look_that_began_after_they_asked(shared):
    one = bucket(shared)
    await one.open(IDENTITY)
    looks = 0
    begun, answer = asyncio.Event(), asyncio.Event()
    get_control = one.storage.get_control

    async def slow(key):
        nonlocal looks
        looks += 1
        found = await get_control(key)
        begun.set()
        await answer.wait()
        return found

    async def refused() -> bool:
        with contextlib.suppress(StorageUnavailable):
            await one.confirm()
            return False
        return True

    one.storage.get_control = slow  # type: ignore[method-assign]  # a storage that takes its time
    async with asyncio.TaskGroup() as group:
        first = group.create_task(one.confirm())
        await begun.wait()
        del shared.objects[marker.MARKER_KEY]  # the first look has read it already
        late = [group.create_task(refused()) for _ in range(9)]
        await asyncio.sleep(0)
        answer.set()
    await first
    assert [each.result() for each in late] == [True] * 9
    assert looks == 2


async def test_a_directory_that_was_mounted_anew_is_used_once_its_marker_was_seen(tmp_path):
    """Its inode and its device are others, and no restart of the daemon is needed for that."""
    root, away, anew = (tmp_path / name for name in ("remote", "away", "anew"))
    root.mkdir()
    storage = LocalStorage(str(root), owner="1")
    one = Bucket(storage, layout=Layout(), rng=random.Random(1))
    await one.open(IDENTITY)
    shutil.copytree(root, anew)
    root.rename(away)
    root.mkdir()  # the mount point alone
    with pytest.raises(StorageUnavailable, match="another directory than before"):
        await confirm_anew(one)
    with pytest.raises(StorageUnavailable, match="another directory than before"):
        await one.peek()
    assert all((await one.delete(["d/a.log"])).values())
    # Nor is anything done there by those who saw the marker just before.
    assert all((await storage.delete(["d/a.log"])).values())
    with pytest.raises(StorageUnavailable, match="another directory than before"):
        await storage.put_segment(segment(), progress=Progress())
    assert list(root.iterdir()) == []
    shutil.rmtree(root)
    anew.rename(root)
    # What was stored before the mount came back is not vouched for by its marker.
    with pytest.raises(StorageUnavailable, match="another directory than before"):
        await one.confirm()
    await confirm_anew(one)
    assert await one.delete(["d/a.log"]) == {"d/a.log": None}
    await storage.overwrite_control("_rlmm/x", b"x")
    await storage.close()


async def test_a_listing_of_presence_files_that_hangs_is_told_as_a_storage_that_is_away(
    shared, monkeypatch
):
    monkeypatch.setattr(bucket_module, "ANSWER_SECONDS", 0.0)
    one, never = bucket(shared), asyncio.Event()

    async def hangs() -> PresenceFiles:
        await never.wait()
        return PresenceFiles()

    one.presences = hangs
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(one.open(IDENTITY))
        await until(lambda: one.away is not None)
        opening.cancel()
    assert "has not answered" in str(one.away)
