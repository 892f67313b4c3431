"""How fast and how much at once: the cleaner keeps its bounds whatever there is to delete."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from rlmm_daemon.core.storage.layout import Layout, parse_key
from rlmm_daemon.daemon.cleaner import backoff, cleaner, leftovers, segments
from rlmm_daemon.daemon.cleaner.segments import BATCH_SEGMENTS
from rlmm_daemon.domain.errors import RlmmError, StorageUnavailable
from rlmm_daemon.domain.ids import BrokerId, SegmentId
from rlmm_daemon.ports.storage import ObjectInfo, UploadInfo
from tests.simulation.cleaning import (
    OPTIONS,
    CleanWorld,
    number_of,
    partition_of,
    run,
    segment,
)
from tests.support import memory_storage as memory
from tests.support.memory_storage import MemoryStorage
from tests.unit.daemon.cleaner.test_removal import DEAD, is_finished

OTHER = partition_of(3)
#: Behind DEAD in the same metadata partition.
BEHIND = next(p for n in range(2, 99) if number_of(p := partition_of(n)) == number_of(DEAD))
MANY = 6 * BATCH_SEGMENTS


class Watched(MemoryStorage):
    """A slow bucket that refuses one segment's objects, and counts."""

    def __init__(self, world: "PaceWorld") -> None:
        super().__init__(world.objects, clock=world.clock)
        self._world = world

    async def delete(self, keys: Collection[str]) -> Mapping[str, RlmmError | None]:
        world = self._world
        world.calls += 1
        world.most = max(world.most, world.calls)
        await asyncio.sleep(1.0)
        world.calls -= 1
        denied = [key for key in keys if world.is_denied(key)]
        world.tries += Counter({world.clock.now_ms(): 1}) if denied else Counter()
        outcome = await super().delete([key for key in keys if key not in denied])
        return dict(outcome) | dict.fromkeys(denied, StorageUnavailable("not yours"))


def _of(key: str) -> SegmentId:
    parsed = parse_key(Layout(), key)
    assert parsed is not None
    return parsed.segment_id


class Counted(MemoryStorage):
    """A bucket below a hash, whose calls of every kind take a second and are counted."""

    def __init__(self, world: "HashWorld") -> None:
        super().__init__(world.objects, clock=world.clock)
        self._world = world

    async def _counted(self, kind: str) -> None:
        world = self._world
        world.kinds[kind] += 1
        world.calls += 1
        world.most = max(world.most, world.calls)
        await asyncio.sleep(1.0)
        world.calls -= 1

    async def delete(self, keys: Collection[str]) -> Mapping[str, RlmmError | None]:
        await self._counted("delete")
        return await super().delete(keys)

    async def abort_upload(self, upload: UploadInfo) -> None:
        await self._counted("abort")
        await super().abort_upload(upload)

    async def list(self, prefix: str) -> AsyncGenerator[Sequence[ObjectInfo], None]:
        await self._counted(f"list {prefix}")
        async for page in super().list(prefix):
            await self._counted("page")
            yield page

    async def list_uploads(self, prefix: str) -> AsyncGenerator[Sequence[UploadInfo], None]:
        await self._counted(f"uploads {prefix}")
        async for page in super().list_uploads(prefix):
            yield page


class HashWorld(CleanWorld):
    layout = Layout(prefix="{hash:8}/kept")
    calls = most = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kinds: Counter[str] = Counter()

    def storage_of(self, _broker_id: BrokerId) -> Any:
        return Counted(self)


class PaceWorld(CleanWorld):
    calls = most = 0
    denied: SegmentId | None = None
    all_denied = False
    first_denied = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: When the denied segment's objects were asked to go, in ms.
        self.tries: Counter[int] = Counter()

    def is_denied(self, key: str) -> bool:
        if self.all_denied and key in self.stored(DEAD):
            return True
        return _of(key) == self.denied or _of(key) < segment(self.first_denied)

    def storage_of(self, _broker_id: BrokerId) -> Any:
        return Watched(self)


def test_no_more_calls_are_at_the_storage_than_were_allowed_over_all_partitions():
    async def scenario(world: CleanWorld) -> None:
        assert isinstance(world, PaceWorld)
        for number in range(MANY):
            world.finished(number, DEAD, 100 * number)
            world.finished(MANY + number, OTHER, 100 * number)
        world.facts.gone |= {DEAD.topic_id, OTHER.topic_id}
        world.daemon(options=replace(OPTIONS, parallelism=2))
        world.mark(DEAD)
        world.mark(OTHER)
        await world.until(lambda: is_finished(world) and not world.stored(OTHER))
        assert world.most == 2

    run(scenario, PaceWorld)


def test_no_more_segments_go_in_a_second_than_were_allowed():
    per_second = 10.0

    async def scenario(world: CleanWorld) -> None:
        for number in range(MANY):
            world.finished(number, DEAD, 100 * number)
        world.facts.gone.add(DEAD.topic_id)
        world.daemon(options=replace(OPTIONS, segments_per_second_max=per_second))
        world.mark(DEAD)
        begun = asyncio.get_running_loop().time()
        await world.until(lambda: is_finished(world), seconds=3600)
        taken = asyncio.get_running_loop().time() - begun
        # The first batch waits for nothing.
        assert taken >= (MANY - BATCH_SEGMENTS) / per_second

    run(scenario, PaceWorld)


def test_what_fails_waits_longer_each_time_and_holds_nothing_else_up():
    async def scenario(world: CleanWorld) -> None:
        assert isinstance(world, PaceWorld)
        world.denied = segment(7)
        for number in range(MANY):
            world.finished(number, DEAD, 100 * number)
        world.facts.gone.add(DEAD.topic_id)
        daemon = world.daemon(options=replace(OPTIONS, backoff_seconds_max=64.0))
        world.mark(DEAD)
        await world.until(lambda: {_of(key) for key in world.stored(DEAD)} == {segment(7)})
        await asyncio.sleep(1200)
        assert not is_finished(world)
        assert daemon.cleaner.segments.backoff.message(segment(7)) == "not yours"
        times = sorted(world.tries)
        gaps = [(late - early) / 1000 for early, late in itertools.pairwise(times)]
        assert gaps[-1] >= 32.0, "at most twice as often as the longest pause says"
        assert len(times) <= 8 + 1200 / 32
        assert max(gaps) <= 64.0 + 3 * OPTIONS.interval_seconds, "it is not forgotten"
        world.denied = None
        await world.until(lambda: is_finished(world))

    run(scenario, PaceWorld)


def two_marked(world: CleanWorld) -> None:
    """One of many segments, and one behind it in the same metadata partition."""
    for number in range(MANY):
        world.finished(number, DEAD, 100 * number)
    world.finished(MANY, BEHIND)
    world.facts.gone |= {DEAD.topic_id, BEHIND.topic_id}
    world.mark(DEAD)
    world.mark(BEHIND)


def test_a_storage_that_refuses_more_segments_than_are_remembered_holds_no_other_removal_up(
    monkeypatch,
):
    monkeypatch.setattr(backoff, "KEYS_MAX", 20)
    monkeypatch.setattr(segments, "PUT_OFF_MAX", 10)

    async def scenario(world: CleanWorld) -> None:
        assert isinstance(world, PaceWorld)
        two_marked(world)
        world.all_denied = True
        world.daemon(options=replace(OPTIONS, parallelism=1))
        await world.until(lambda: not world.stored(BEHIND))
        world.tries.clear()
        await asyncio.sleep(600)
        passes = 600 / OPTIONS.interval_seconds
        assert 10 < world.tries.total() <= 2 * passes, "two batches in flight, then a pause"
        world.all_denied = False
        await world.until(lambda: is_finished(world), 3600)

    run(scenario, PaceWorld)


def test_what_fails_first_does_not_keep_the_rest_of_a_large_partition(monkeypatch):
    monkeypatch.setattr(backoff, "KEYS_MAX", 20)
    monkeypatch.setattr(segments, "PUT_OFF_MAX", 10)

    async def scenario(world: CleanWorld) -> None:
        assert isinstance(world, PaceWorld)
        world.first_denied = 100
        for number in range(MANY):
            world.finished(number, DEAD, 100 * number)
        world.facts.gone.add(DEAD.topic_id)
        world.daemon(options=replace(OPTIONS, parallelism=1))
        world.mark(DEAD)
        await world.until(lambda: len(world.stored(DEAD)) == 3 * world.first_denied, 3600)
        world.first_denied = 0
        await world.until(lambda: is_finished(world), 3600)

    run(scenario, PaceWorld)


def test_a_removal_that_takes_long_lets_others_have_a_turn(monkeypatch):
    monkeypatch.setattr(cleaner, "REMOVALS_AT_ONCE", 1)
    monkeypatch.setattr(segments, "TURN_SECONDS", 20.0)

    async def scenario(world: CleanWorld) -> None:
        two_marked(world)
        world.daemon(options=replace(OPTIONS, segments_per_second_max=0.5, interval_seconds=600.0))
        began = asyncio.get_running_loop().time()
        await world.until(lambda: not world.stored(BEHIND), 3600)
        assert world.stored(DEAD)
        await world.until(lambda: is_finished(world), 3600)
        taken = asyncio.get_running_loop().time() - began
        assert taken < (MANY + 2 * BATCH_SEGMENTS) / 0.5, "and goes on at once"

    run(scenario, PaceWorld)


PARTS = 20


def test_partitions_below_a_hash_share_their_listings_and_every_call_is_within_the_bound():
    """Each would list the whole bucket otherwise."""
    parts = [partition_of(1, number) for number in range(PARTS)]

    async def scenario(world: CleanWorld) -> None:
        assert isinstance(world, HashWorld)
        for number, partition in enumerate(parts):
            # A copy that was cut off, in another daemon.
            world.put(world.started(number, partition, broker_id=2))
            world.place(number, partition)
            key = world.keys(number, partition)[2]
            upload = UploadInfo(key=key, upload_id="u", initiated_ms=0)
            world.objects.uploads[f"u/{key}"] = upload
            world.place(1000 + number, partition)  # no event names it
        world.finished(999, OTHER)
        world.facts.gone.add(parts[0].topic_id)
        daemon = world.daemon(options=replace(OPTIONS, parallelism=2))
        cleaner, report = daemon.cleaner, daemon.report
        for partition in parts:
            world.mark(partition)
        await world.until(lambda: cleaner.notes.deleted.total() == PARTS, 3600)
        await world.until(lambda: not report.rows()["removals"], 3600)
        assert world.most <= 2
        assert not [key for partition in parts for key in world.stored(partition)]
        assert (world.objects.uploads, len(world.stored(OTHER))) == ({}, 3)
        assert world.kinds["list "] < PARTS, "the whole bucket, not twice for each of them"
        # Of one segment all is known that its uploads are named by.
        assert world.kinds["uploads "] < PARTS
        assert world.kinds["delete"] > 2

    run(scenario, HashWorld)


def test_a_search_stops_at_its_bound_and_whoever_shares_it_has_a_part_of_that(monkeypatch):
    """What is left over of a large partition is not held in memory all at once."""
    for module, name, value in (
        (leftovers, "LEFTOVERS_MAX", 6),
        (leftovers, "OF_EACH_MIN", 4),
        (leftovers, "SWEEP_KEYS", 4),
        (memory, "PAGE_KEYS", 4),
    ):
        monkeypatch.setattr(module, name, value)
    partitions = (DEAD, OTHER, BEHIND)

    async def scenario(world: CleanWorld) -> None:
        assert isinstance(world, HashWorld)
        search = world.daemon().cleaner.tools.leftovers
        await asyncio.sleep(3)
        for number in range(60):
            world.place(number, partitions[number // 20])
        world.kinds.clear()
        found = await search.find(DEAD)
        assert (len(found), world.kinds["page"]) == (6, 2), "the marker and seven of its keys"
        await search.sweep(found)
        assert (len(world.stored(DEAD)), world.kinds["delete"]) == (60 - 6, 2)

        async with asyncio.TaskGroup() as group:
            finds = [group.create_task(search.find(each)) for each in partitions]
        assert [len(each.result()) for each in finds] == [6, 4, 4], "two share the second listing"

    run(scenario, HashWorld)


def test_stuck_copies_keep_the_rate_too():
    per_second = 0.02

    async def scenario(world: CleanWorld) -> None:
        daemon = world.daemon(options=replace(OPTIONS, segments_per_second_max=per_second))
        await asyncio.sleep(3)
        for number in range(10):
            world.put(world.started(number, OTHER, 100 * number))
        daemon.manager.hello_from_broker(world.clock.now_ms() + 1)
        daemon.manager.replace_assignment([OTHER], [])
        await world.until(lambda: daemon.cleaner.notes.deleted["stuck_copy"] == 1, 3600)
        begun = asyncio.get_running_loop().time()
        await world.until(lambda: daemon.cleaner.notes.deleted["stuck_copy"] == 10, 3600)
        assert asyncio.get_running_loop().time() - begun >= 8 / per_second

    run(scenario, PaceWorld)
