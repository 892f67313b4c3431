"""The bucket marker: what is never written blindly, what others ended, what is told and when."""

import asyncio
import random
from typing import Any

import msgspec
import pytest
import structlog.testing

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.codec import marker
from rlmm_daemon.codec.marker import MARKER_KEY, AcceptedGap, AcceptedLoss, BucketMarker, LayoutRow
from rlmm_daemon.core.readiness.marker_rebuilding import Evidence, rebuilt
from rlmm_daemon.core.storage.layout import Layout
from rlmm_daemon.daemon.bucket import acceptance, live_marker
from rlmm_daemon.daemon.bucket import bucket as bucket_module
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.bucket.live_marker import BucketIdentity
from rlmm_daemon.domain.errors import Malformed, StorageUnavailable
from rlmm_daemon.domain.ids import TopicIdPartition
from rlmm_daemon.ports.storage import Conflict
from tests.support.memory_storage import MemoryBucket, MemoryStorage
from tests.unit.daemon.bucket.test_bucket import Past, bucket, recorded, shared
from tests.unit.daemon.events import until
from tests.unit.daemon.segments import IDENTITY, PARTITION, metadata

__all__ = ["shared"]

OURS = IDENTITY.cluster_id


def loss(number: int | None = 2, at_ms: int = 1_000) -> AcceptedLoss:
    return AcceptedLoss(
        broker_id=1,
        metadata_partition=number,
        topic_id=IDENTITY.metadata_topic_id,
        accepted_at_ms=at_ms,
    )


def written(shared: MemoryBucket) -> BucketMarker:
    return marker.decode_marker(shared.objects[MARKER_KEY].body)


@pytest.mark.parametrize("order", ["accept a loss", "end holds", "name a log"])
async def test_nothing_is_accepted_into_a_marker_that_is_gone(shared, order):
    """The one that would be made again has lost every row."""
    one = bucket(shared)
    await one.open(IDENTITY)
    del shared.objects[MARKER_KEY]
    orders: dict[str, Any] = {
        "accept a loss": lambda: acceptance.accept_loss(one, loss(), cluster_id=OURS),
        "end holds": lambda: acceptance.end_holds(one, None, cluster_id=OURS),
        "name a log": lambda: acceptance.name_log(one, "another", cluster_id=OURS),
    }
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="it is gone"):
            await orders[order]()
    assert one.trouble is not None
    assert one.trouble.fields["reason"] == "no_marker"
    assert MARKER_KEY not in shared.objects


async def test_a_hold_that_another_daemon_ended_binds_nobody_any_more(shared):
    one, other = bucket(shared), bucket(shared)
    for each in (one, other):
        await each.open(IDENTITY)
    await acceptance.accept_loss(one, loss(), cluster_id=OURS)
    await other.confirm()
    assert len(await other.holds()) == 1
    await acceptance.end_holds(one, 2, cluster_id=OURS)
    assert await other.holds() == ()


async def test_a_hold_stands_while_the_storage_does_not_answer(shared):
    one = bucket(shared)
    await one.open(IDENTITY)
    await acceptance.accept_loss(one, loss(), cluster_id=OURS)
    shared.available = False
    assert len(await one.holds()) == 1


async def test_an_older_marker_gets_back_what_was_accepted_and_no_hold_that_was_ended(shared):
    one = bucket(shared)
    await one.open(IDENTITY)
    older = shared.objects[MARKER_KEY]
    gap = AcceptedGap(metadata_partition=2, topic_id="t", start=3, end=5)
    await acceptance.accept_loss(one, loss(2), [gap], cluster_id=OURS)
    await acceptance.accept_loss(one, loss(1), cluster_id=OURS)
    await acceptance.end_holds(one, 1, cluster_id=OURS)
    whole = written(shared)
    shared.objects[MARKER_KEY] = older
    assert [hold.metadata_partition for hold in await one.holds()] == [2]
    assert written(shared) == whole
    await acceptance.end_holds(one, 2, cluster_id=OURS)
    assert await one.holds() == (), "what is ended later stays ended"


async def test_what_an_older_marker_lacks_counts_though_it_cannot_be_written(shared, monkeypatch):
    one = bucket(shared)
    await one.open(IDENTITY)
    older = shared.objects[MARKER_KEY]
    await acceptance.accept_loss(one, loss(2), cluster_id=OURS)
    shared.objects[MARKER_KEY] = older

    async def denied(*_: object, **__: object) -> str:
        raise StorageUnavailable("denied")

    monkeypatch.setattr(one.storage, "put_control", denied)
    assert [hold.metadata_partition for hold in await one.holds()] == [2]
    with pytest.raises(StorageUnavailable, match="denied"):
        await one.confirm()


async def test_only_the_hold_of_the_partition_that_is_named_ends(shared):
    one = bucket(shared)
    await one.open(IDENTITY)
    for number in (1, 2, None):
        await acceptance.accept_loss(one, loss(number), cluster_id=OURS)
    await acceptance.end_holds(one, 2, cluster_id=OURS)
    assert [hold.metadata_partition for hold in await one.holds()] == [1, None]
    await acceptance.end_holds(one, None, cluster_id=OURS)
    assert await one.holds() == ()


async def test_gaps_that_touch_are_kept_as_one_and_those_of_another_log_apart(shared):
    one = bucket(shared)
    await one.open(IDENTITY)

    def gap(start: int, end: int, topic_id: str = "t", number: int = 2) -> AcceptedGap:
        return AcceptedGap(topic_id=topic_id, metadata_partition=number, start=start, end=end)

    await acceptance.accept_loss(one, loss(), [gap(5, 9), gap(0, 2)], cluster_id=OURS)
    await acceptance.accept_loss(
        one, loss(), [gap(2, 5), gap(9, 10, "u"), gap(9, 10, number=1)], cluster_id=OURS
    )
    kept = {
        (each.topic_id, each.metadata_partition, each.start, each.end)
        for each in written(shared).gaps
    }
    assert kept == {("t", 2, 0, 9), ("u", 2, 9, 10), ("t", 1, 9, 10)}
    assert written(shared).accepted_losses == (loss(),), "once, however often it is done"


@pytest.mark.parametrize("marked", [False, True])
async def test_nothing_is_said_of_layouts_before_the_bucket_was_judged(shared, marked):
    if marked:
        await bucket(shared).open(IDENTITY)
    one = bucket(shared)
    for asked in (one.layouts, one.holds, lambda: one.places(metadata())):
        with pytest.raises(StorageUnavailable, match="not read yet"):
            await asked()
    with pytest.raises(StorageUnavailable, match="not read yet"):
        one.place_for_new(metadata())


async def test_every_layout_that_any_daemon_added_is_listed(shared):
    one = bucket(shared, "old")
    await one.open(IDENTITY)
    await bucket(shared, "new").open(IDENTITY)
    assert [each.prefix for each in await one.layouts()] == ["old", "new"]


async def test_a_topic_whose_name_kafka_forbids_has_no_place(shared):
    one = bucket(shared)
    await one.open(IDENTITY)
    forbidden = TopicIdPartition(PARTITION.topic_id, "a/b", 0)
    assert await one.places(metadata(partition=forbidden)) == []


async def test_each_reason_why_a_marker_is_refused_rings_once(shared):
    one = bucket(shared, "mine")
    await one.open(IDENTITY)
    storage = MemoryStorage(shared, clock=SystemClock())
    whole = shared.objects[MARKER_KEY].body
    rung, ring = list[str](), one.refused.ring

    def noted() -> None:
        rung.append("rung")
        ring()

    one.refused.ring = noted  # type: ignore[method-assign]  # a bell that counts
    spoilt = (b"", whole.replace(b'"c1"', b'"c2"'), b"", whole.replace(b'"mine"', b'"other"'))
    for number, body in enumerate(spoilt, start=1):
        await storage.overwrite_control(MARKER_KEY, body)
        for _ in range(2):
            with pytest.raises(StorageUnavailable):
                await one.confirm()
        assert len(rung) == number


async def test_a_storage_that_is_away_is_told_apart_from_a_marker_that_is_refused(
    shared, monkeypatch
):
    monkeypatch.setattr(bucket_module, "BACK_OFF_SECONDS", 0.001)
    past = Past()
    await bucket(shared, "old").open(IDENTITY, past)
    kept = shared.objects.pop(MARKER_KEY)
    await bucket(shared, "new").open(IDENTITY)  # one that knows nothing
    one = bucket(shared, "old")
    looks, settle = 0, one._settle

    async def counted(identity: BucketIdentity) -> BucketMarker:
        nonlocal looks
        looks += 1
        return await settle(identity)

    one._settle = counted  # type: ignore[method-assign]  # each attempt is counted
    async with asyncio.TaskGroup() as tasks:
        opening = tasks.create_task(one.open(IDENTITY, past))
        await until(lambda: looks > 3)  # it is found again and again
        told = one.trouble, one.away
        shared.available = False
        await until(lambda: one.away is not None)
        shared.objects[MARKER_KEY] = kept
        shared.available = True
        await opening
    assert told[0] is not None
    assert told[1] is None
    assert [one.trouble, one.away] == [None, None]


async def test_a_storage_that_stays_away_is_asked_less_and_less_often(shared, monkeypatch):
    monkeypatch.setattr(bucket_module, "BACK_OFF_SECONDS_MAX", 1.0)
    pauses, sleep = list[float](), asyncio.sleep

    async def slept(seconds: float) -> None:
        if seconds:
            pauses.append(seconds)
        shared.available = len(pauses) > 4
        await sleep(0)

    class Longest(random.Random):
        def random(self) -> float:
            return 1.0

    monkeypatch.setattr(asyncio, "sleep", slept)
    shared.available = False
    storage = MemoryStorage(shared, clock=SystemClock())
    await Bucket(storage, layout=Layout(), rng=Longest()).open(IDENTITY)
    assert pauses == [0.2, 0.4, 0.8, 1.0, 1.0]


class Contested(MemoryStorage):
    """A storage in which somebody else writes the marker first, so many times."""

    others = 0

    async def put_control(self, key: str, data: bytes, *, if_etag: str | None) -> str:
        if self.others:
            self.others -= 1
            raise Conflict(key)
        return await super().put_control(key, data, if_etag=if_etag)


@pytest.mark.parametrize("fresh", [False, True])
async def test_a_marker_is_written_though_others_write_it_too(shared, monkeypatch, fresh):
    for module in (bucket_module, live_marker):
        monkeypatch.setattr(module, "RACES_MAX", 4)
    if not fresh:
        await bucket(shared).open(IDENTITY)
    storage = Contested(shared, clock=SystemClock())
    one = Bucket(storage, layout=Layout("mine"), rng=random.Random(1))
    storage.others = 3
    await one.open(IDENTITY)
    storage.others = 3
    await acceptance.name_log(one, "another", cluster_id=OURS)
    assert written(shared).metadata_topic_id == "another"
    storage.others = 4
    with pytest.raises(StorageUnavailable, match="written by others 4 times"):
        await acceptance.name_log(one, "yet another", cluster_id=OURS)
    assert written(shared).metadata_topic_id == "another"


async def test_a_delete_without_the_marker_touches_nothing(shared):
    """In another bucket every object is absent, which would read as success."""
    one = bucket(shared)
    await one.open(IDENTITY)
    one._looked_at = None
    whole = shared.objects.pop(MARKER_KEY)
    shared.objects["d/a.log"] = whole
    outcome = await one.delete(["d/a.log"])
    assert isinstance(outcome["d/a.log"], StorageUnavailable)
    assert "d/a.log" in shared.objects
    shared.objects[MARKER_KEY] = whole
    again = (await one.delete(["d/a.log"]))["d/a.log"]
    assert isinstance(again, StorageUnavailable), "by a look of a moment ago"
    await one.confirm()
    assert await one.delete(["d/a.log"]) == {"d/a.log": None}


async def test_an_acceptance_before_there_is_a_marker_is_returned_to_be_kept(shared):
    one = bucket(shared)
    change = await acceptance.accept_loss(one, loss(), cluster_id=OURS)
    assert change is not None
    assert MARKER_KEY not in shared.objects
    fresh = BucketMarker(cluster_id="c1", partition_count=5, metadata_topic_id="t")
    assert change(fresh).held == change(change(fresh)).held != ()
    opened = await one.open(IDENTITY)
    assert opened.accepted_losses == (loss(),)
    assert await acceptance.accept_loss(one, loss(), cluster_id=OURS) is None


async def test_the_marker_of_another_cluster_is_left_alone_by_every_acceptance(shared):
    await bucket(shared).open(IDENTITY)
    raw = shared.objects[MARKER_KEY]
    one = bucket(shared)
    assert await acceptance.accept_loss(one, loss(), cluster_id="c2") is not None, "it is owed"
    assert await acceptance.name_log(one, "a log", cluster_id="c2") is False
    await acceptance.end_holds(one, None, cluster_id="c2")
    assert shared.objects[MARKER_KEY] is raw
    await acceptance.accept_loss(one, loss(), cluster_id=None)
    assert written(shared).accepted_losses == (loss(),)


async def test_an_acceptance_of_another_count_makes_holds_on_single_partitions_keep_all(shared):
    one = bucket(shared)
    await one.open(IDENTITY)
    await acceptance.accept_loss(one, loss(2), cluster_id=OURS)
    assert [hold.metadata_partition for hold in written(shared).held] == [2]
    await acceptance.accept_loss(one, loss(None, at_ms=2_000), cluster_id=OURS, partition_count=7)
    assert written(shared).partition_count == 7
    assert [hold.metadata_partition for hold in written(shared).held] == [None]


async def test_a_peek_makes_nothing_and_judges_what_is_there(shared):
    one = bucket(shared)
    assert await one.peek() is None
    assert not shared.objects
    await one.open(IDENTITY)
    other = bucket(shared, "other")
    await other.open(IDENTITY)
    seen = await one.peek()
    assert seen == one.marker == written(shared)
    foreign = msgspec.structs.replace(written(shared), cluster_id="c2")
    await one.storage.overwrite_control(MARKER_KEY, marker.encode(foreign))
    assert await one.peek() == foreign
    assert one.marker == seen
    assert one.trouble is not None


async def test_a_layout_beyond_the_table_is_refused_with_the_way_out(shared):
    one = bucket(shared)
    await one.open(IDENTITY)
    assert (await one.places(metadata(custom_metadata=recorded(1))))[0].layout_number == 1
    with pytest.raises(StorageUnavailable, match=r"lacks layout 2.*rebuild-marker") as refused:
        await one.places(metadata(custom_metadata=recorded(2)))
    assert refused.value.fields["retry"] is False
    assert one.trouble is None, "the marker itself is in order"


async def test_a_recorded_segment_has_one_place_though_more_layouts_follow(shared):
    for prefix in ("a", "b"):
        await bucket(shared, prefix).open(IDENTITY)
    one = bucket(shared, "c")
    await one.open(IDENTITY)
    for number in (1, 2, 3):
        places = await one.places(metadata(custom_metadata=recorded(number)))
        assert [place.layout_number for place in places] == [number]


@pytest.mark.parametrize("other", ["a", "z"])
async def test_a_copy_of_another_clusters_marker_gives_a_fresh_one_no_rows(shared, other):
    past = Past()
    past.copy = BucketMarker(
        cluster_id=other,
        partition_count=5,
        metadata_topic_id="t",
        layouts=(LayoutRow(number=1, kind="kafka", prefix="theirs"),),
    )
    made = await bucket(shared, "ours").open(IDENTITY, past)
    assert [row.prefix for row in made.layouts] == ["ours"]
    assert made.cluster_id == OURS


async def test_whoever_waited_for_a_look_that_failed_looks_for_himself(shared):
    one = bucket(shared)
    await one.open(IDENTITY)
    get_control, asked = one.storage.get_control, 0

    async def once_away(key: str) -> Any:
        nonlocal asked
        asked += 1
        if asked == 1:
            del shared.objects[MARKER_KEY]
            await asyncio.sleep(0)
            raise StorageUnavailable("away")
        return await get_control(key)

    one.storage.get_control = once_away  # type: ignore[method-assign]  # fails once

    async def refusal() -> str:
        with pytest.raises(StorageUnavailable) as refused:
            await one.confirm()
        return refused.value.message

    async with asyncio.TaskGroup() as tasks:
        told = [tasks.create_task(refusal()) for _ in range(2)]
    assert told[0].result() == "away"
    assert "it is gone" in told[1].result()


async def test_a_look_that_is_too_old_is_made_again(shared):
    one = bucket(shared)
    await one.open(IDENTITY)
    assert one._judged.is_set()
    now = asyncio.get_running_loop().time()
    del shared.objects[MARKER_KEY]
    one._looked_at = now - 4
    await one.confirm(seconds=5)
    one._looked_at = now - 6
    with pytest.raises(StorageUnavailable, match="it is gone"):
        await one.confirm(seconds=5)


async def test_a_bucket_that_was_not_opened_can_be_looked_at(shared):
    await bucket(shared).open(IDENTITY)
    assert await bucket(shared).peek() == written(shared)
    assert bucket(shared).marker is None


async def test_a_damaged_marker_that_is_met_at_the_start_is_told(shared):
    await bucket(shared).open(IDENTITY)
    one = bucket(shared)
    await one.storage.overwrite_control(MARKER_KEY, b"{")
    with pytest.raises(Malformed, match="rebuild-marker"):
        await one.open(IDENTITY)
    assert one.trouble is not None
    assert one.trouble.fields["reason"] == "bad_marker"


def test_the_rows_of_a_copy_keep_their_places():
    rows = rebuilt(Evidence(kept=["a", "b", "c"]))
    assert [(row.number, row.prefix) for row in rows] == [(1, "a"), (2, "b"), (3, "c")]


def test_a_marker_of_which_nobody_knows_a_row_has_none():
    assert rebuilt(Evidence()) == []


@pytest.mark.parametrize("running", [True, False])
async def test_an_older_marker_gets_back_a_hold_that_no_loss_tells_of(shared, running):
    """A rebuilt marker, a clone and a moved log leave such holds."""
    past, other = Past(), bucket(shared)
    one = bucket(shared)
    await one.open(IDENTITY, past)
    await other.open(IDENTITY)
    older = shared.objects[MARKER_KEY]
    await acceptance.hold_all(one, 1_000, 1)
    shared.objects[MARKER_KEY] = older
    await acceptance.accept_loss(
        other, loss(2), cluster_id=OURS
    )  # by a daemon that has not seen the hold
    await acceptance.accept_loss(other, loss(1), cluster_id=OURS)
    if running:
        await one.confirm()
    else:
        one = bucket(shared)
        await one.open(IDENTITY, past)
    assert {hold.metadata_partition for hold in await one.holds()} == {None, 1, 2}
    assert {hold.metadata_partition for hold in written(shared).held} == {None, 1, 2}
    await acceptance.end_holds(other, None, cluster_id=OURS)
    shared.objects[MARKER_KEY] = older
    await one.confirm()
    await other.confirm()
    assert await one.holds() == (), "the daemon that saw the end told the other one"


class Unread(Past):
    """A past whose files can't be read, until they are written anew."""

    def __init__(self, *, kept: bool = False, owed: bool = False) -> None:
        super().__init__()
        self.kept_unread, self.owed_unread = kept, owed

    async def kept(self) -> Any:
        if self.kept_unread:
            raise Malformed("marker.json in the state directory: damaged")
        return await super().kept()

    async def keep(self, present: BucketMarker) -> None:
        self.kept_unread = False
        await super().keep(present)

    async def owed(self) -> Any:
        if self.owed_unread:
            raise Malformed("owed-marker.json in the state directory: damaged")

    async def paid(self) -> None:
        assert self.owed_unread
        self.owed_unread = False


@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize("which", ["kept", "owed"])
async def test_what_is_known_of_the_marker_and_cannot_be_read_holds_everything(
    shared, which, present
):
    """An older marker may stand there, and what this daemon accepted and held is not known."""
    if present:
        await bucket(shared).open(IDENTITY)
    past, began_ms = Unread(**{which: True}), SystemClock().now_ms()
    one = bucket(shared)
    with structlog.testing.capture_logs() as logs:
        await one.open(IDENTITY, past)
    assert any("rlmm partition end-hold --all" in line["event"] for line in logs)
    (hold,) = written(shared).held
    assert hold.metadata_partition is None
    assert hold.before_ms >= began_ms, "all that is there by the storage's time"
    assert past.copy == written(shared), "the copy is whole again"
    await acceptance.end_holds(one, None, cluster_id=OURS)
    again = bucket(shared)
    await again.open(IDENTITY, past)
    assert await again.holds() == (), "told once"
