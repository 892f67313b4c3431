"""The read path over a storage by script: caches, sharing, cuts, deletes and bounds."""

import asyncio
import errno
import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmm_daemon.daemon.base.services import FileSlice
from rlmm_daemon.daemon.reading import index_cache
from rlmm_daemon.daemon.reading.index_cache import IndexKey
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    ObjectMissing,
    SegmentNotFound,
    StorageUnavailable,
)
from rlmm_daemon.ports.storage import ObjectKind
from tests.unit.adapters.event_log.embedded.faulty_disk import FaultyDisk
from tests.unit.daemon.reading.read_calls import (
    BODY,
    CHUNK,
    ReadWorld,
    content,
    descriptors,
    reading,
    segment_id,
    until,
)

AWAY = StorageUnavailable("away")


class TurnedClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_second_read_comes_from_files_and_asks_the_storage_nothing(tmp_path):
    async with reading(tmp_path) as world:
        assert await world.read() == BODY
        await world.settle()
        asked = len(world.storage.fetched)
        assert asked == 11
        pieces = [(type(piece), content(piece)) async for piece in world.range()]
        assert {kind for kind, _ in pieces} == {FileSlice}
        assert b"".join(data for _, data in pieces) == BODY
        assert len(world.storage.fetched) == asked
        assert (world.lookups("miss"), world.lookups("hit")) == (11, 11)
        assert world.sample("rlmm_storage_gets_total", kind="log") == 11
        assert world.chunks.size_bytes == len(BODY)


async def test_the_first_bytes_come_while_the_chunk_is_still_on_its_way(tmp_path):
    async with reading(tmp_path) as world:
        pieces = world.range(CHUNK + 7)
        world.storage.script.append((10_000, AWAY))
        first = await anext(pieces)
        assert content(first) == BODY[CHUNK + 7 : CHUNK + 10_000]
        assert world.storage.fetched == [("0", CHUNK, 2 * CHUNK)]
        await pieces.aclose()


@pytest.mark.parametrize("cached", [True, False])
async def test_after_a_cut_the_range_goes_on_at_the_last_good_offset(tmp_path, cached):
    async with reading(tmp_path, cache_bytes=100 * CHUNK if cached else 0) as world:
        world.storage.script += [(12_345, AWAY), AWAY, (1, AWAY)]
        assert await world.read(0, CHUNK) == BODY[:CHUNK]
        starts = [start for _, start, _ in world.storage.fetched]
        assert starts == [0, 12_345, 12_345, 12_346]


async def test_a_storage_that_stays_away_is_an_error_and_is_asked_afresh_the_next_time(tmp_path):
    async with reading(tmp_path) as world:
        world.storage.script += [AWAY] * 1000
        with pytest.raises(StorageUnavailable):
            await world.read()
        world.storage.script.clear()
        assert await world.read() == BODY


async def test_an_object_that_is_gone_or_too_short_is_told_as_such(tmp_path):
    async with reading(tmp_path) as world:
        del world.storage.objects["0"]
        with pytest.raises(ObjectMissing):
            await world.read()
        world.storage.objects["1"] = BODY[: CHUNK // 2]
        with pytest.raises(ChecksumMismatch):
            await world.read(number=1)
        assert world.files() == []


async def test_a_silent_storage_is_asked_again(tmp_path):
    async with reading(tmp_path, silence_seconds=0.02) as world:
        world.storage.flows.clear()
        reader = asyncio.get_running_loop().create_task(world.read(0, 10))
        await until(lambda: len(world.storage.fetched) > 1)
        world.storage.flows.set()
        assert await reader == BODY[:10]


async def test_concurrent_readers_share_one_fetch(tmp_path):
    async with reading(tmp_path) as world:
        world.storage.flows.clear()
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(world.read(n, CHUNK)) for n in range(20)]
            await until(lambda: world.lookups("joined") == 19)
            world.storage.flows.set()
        assert [reader.result() for reader in readers] == [BODY[n:CHUNK] for n in range(20)]
        assert world.storage.fetched == [("0", 0, CHUNK)]


@pytest.mark.parametrize("cached", [True, False])
async def test_a_reader_that_leaves_stops_nothing_that_another_waits_for(tmp_path, cached):
    async with reading(tmp_path, cache_bytes=100 * CHUNK if cached else 0) as world:
        world.storage.flows.clear()
        loop = asyncio.get_running_loop()
        first, second = (loop.create_task(world.read(0, CHUNK)) for _ in range(2))
        await until(lambda: world.lookups("joined") == 1)
        first.cancel()
        await asyncio.wait([first])
        world.storage.flows.set()
        assert await second == BODY[:CHUNK]
        assert len(world.storage.fetched) == 1


async def test_without_a_cache_the_last_reader_to_leave_frees_everything_at_once(tmp_path):
    async with reading(tmp_path, cache_bytes=0, ahead_chunks_max=4) as world:
        world.storage.flows.clear()
        reader = asyncio.get_running_loop().create_task(world.read(bounded=True))
        await until(lambda: world.storage.open_now == 5)
        reader.cancel()
        await asyncio.wait([reader])
        await world.settle()
        assert world.storage.open_now == 0
        assert world.reads.buffered_bytes == 0


async def test_with_a_cache_a_begun_chunk_is_finished_for_the_retry_of_who_gave_up(tmp_path):
    async with reading(tmp_path) as world:
        world.storage.flows.clear()
        reader = asyncio.get_running_loop().create_task(world.read(0, 10))
        await until(lambda: world.storage.open_now)
        reader.cancel()
        await asyncio.wait([reader])
        world.storage.flows.set()
        await world.settle()
        assert await world.read(0, CHUNK) == BODY[:CHUNK]
        assert len(world.storage.fetched) == 1


async def test_a_named_end_is_read_ahead_at_once_and_an_open_one_adaptively(tmp_path):
    async with reading(tmp_path, ahead_chunks_max=4, buffered_bytes_max=32 * CHUNK) as world:
        pieces = world.range(bounded=True)
        await anext(pieces)
        await until(lambda: len(world.storage.fetched) == 5)
        await pieces.aclose()
        await world.settle()
        assert len(world.storage.fetched) == 5
        world.storage.fetched.clear()
        # A consumer asks piece by piece, each time without an end.
        most = []
        for start in range(0, len(BODY), CHUNK // 2):
            pieces = world.range(start, number=1)
            await anext(pieces)
            await pieces.aclose()
            most.append(world.reads.in_flight)
            await world.settle()
        assert most[0] == 1
        assert max(most) > 1
        assert len(world.storage.fetched) == 11


async def test_a_reader_at_random_places_reads_nothing_ahead(tmp_path):
    async with reading(tmp_path, ahead_chunks_max=4) as world:
        for number in (7, 3, 9, 1):
            assert len(await world.read(number * CHUNK, number * CHUNK + 100)) == 100
        await world.settle()
        assert len(world.storage.fetched) == 4


@pytest.mark.parametrize("cached", [True, False])
async def test_fifty_stalled_readers_keep_the_bound_and_no_connection(tmp_path, cached):
    bound = 4 * CHUNK
    async with reading(
        tmp_path,
        cache_bytes=100 * CHUNK if cached else 0,
        buffered_bytes_max=bound,
        ahead_chunks_max=4,
        idle_seconds=0.02,
    ) as world:
        stalled = [world.range(number=number, bounded=True) for number in range(50)]
        async with asyncio.TaskGroup() as group:
            for pieces in stalled:
                group.create_task(anext(pieces))
        # All have their first bytes and take no more.
        await until(lambda: world.storage.open_now == 0 and world.reads.in_flight == 0)
        assert world.reads.buffered_bytes == 0
        assert world.reads.buffered_bytes_most <= bound
        assert world.storage.open_most <= 4
        # They wake up, and nothing is lost.
        for number in (0, 49):
            got = b"".join([content(piece) async for piece in stalled[number]])
            assert got == BODY[len(BODY) - len(got) :]
            assert len(got) >= len(BODY) - 2 * CHUNK
        for pieces in stalled:
            await pieces.aclose()


async def test_a_changed_object_is_read_afresh_but_never_mixed(tmp_path):
    async with reading(tmp_path) as world:
        pieces = world.range()
        assert content(await anext(pieces)) == BODY[:10_000]
        await world.settle()
        world.storage.etags["0"] = "second"
        world.storage.objects["0"] = bytes(len(BODY))
        with pytest.raises(ChecksumMismatch):
            _ = [content(piece) async for piece in pieces]
        # A new reader finds the new object alone: what was cached of the old one went.
        assert world.evicted("replaced") == 1
        assert await world.read() == bytes(len(BODY))


async def test_a_copy_with_another_tag_never_gets_old_bytes(tmp_path):
    async with reading(tmp_path) as world:
        await world.read(0, CHUNK)
        await world.settle()
        world.storage.objects["0"] = bytes(len(BODY))
        assert await world.read(0, CHUNK, tag="bb") == bytes(CHUNK)


async def test_a_deleted_segment_is_an_error_at_once_and_leaves_no_file(tmp_path):
    async with reading(tmp_path) as world:
        await world.read(0, 2 * CHUNK)
        await world.read(0, CHUNK, number=1)
        await world.settle()
        assert len(world.files()) == 3
        pieces = world.range()
        await anext(pieces)
        world.delete()
        with pytest.raises(SegmentNotFound):
            _ = [piece async for piece in pieces]
        with pytest.raises(SegmentNotFound):
            await world.read()
        await until(lambda: len(world.files()) == 1)
        assert world.evicted("deleted") == 2
        assert await world.read(0, CHUNK, number=1) == BODY[:CHUNK]


class PausedDisk(FaultyDisk):
    """Waits for `go` in one kind of call."""

    waits_in = ""
    entered: asyncio.Event
    go: asyncio.Event

    def __getattr__(self, name):
        passed_on = super().__getattr__(name)
        if name != self.waits_in:
            return passed_on

        async def call(*arguments, **named):
            self.entered.set()
            await self.go.wait()
            return await passed_on(*arguments, **named)

        return call


@pytest.mark.parametrize("step", ["download", "free_bytes", "write_scratch"])
async def test_a_fill_that_ends_after_the_delete_brings_nothing_back(tmp_path, step):
    made = []

    def disk(real):
        made.append(PausedDisk(real))
        return made[0]

    async with reading(tmp_path, disk=disk) as world:
        await until(world.is_writable)
        made[0].entered, made[0].go = asyncio.Event(), asyncio.Event()
        made[0].waits_in = step
        if step == "download":
            world.storage.flows.clear()
        reader = asyncio.get_running_loop().create_task(world.read(0, CHUNK))
        await (
            until(lambda: world.storage.open_now) if step == "download" else made[0].entered.wait()
        )
        world.delete()
        world.storage.flows.set()
        made[0].go.set()
        await asyncio.wait([reader])
        if step == "download":
            assert isinstance(reader.exception(), SegmentNotFound)
        await world.settle()
        await until(lambda: world.files() == [])
        assert world.chunks.size_bytes == 0


@pytest.mark.parametrize("known", [True, False])
async def test_no_cached_file_is_opened_on_the_loop(tmp_path, monkeypatch, known):
    """Its disk may hang: look-ups and writes of the whole daemon would."""
    async with reading(tmp_path) as world:
        await world.read(0, CHUNK)
        await world.settle()
        if known:
            await world.read(0, CHUNK)
        opened, real = [], os.open

        def open_noted(path, *arguments, **named):
            if str(path).endswith(".chunk"):
                opened.append(threading.get_ident())
            return real(path, *arguments, **named)

        monkeypatch.setattr(os, "open", open_noted)
        assert await world.read(0, CHUNK) == BODY[:CHUNK]
        assert opened
        assert threading.get_ident() not in opened


async def test_a_chunk_that_is_forgotten_while_it_is_opened_is_not_served(tmp_path, monkeypatch):
    async with reading(tmp_path) as world:
        await world.read(0, CHUNK)
        await world.settle()
        await world.read(0, CHUNK)
        log, before = world.remote(), descriptors()
        real, loop = os.open, asyncio.get_running_loop()

        def open_slowly(path, *arguments, **named):
            descriptor = real(path, *arguments, **named)
            if str(path).endswith(".chunk"):
                asyncio.run_coroutine_threadsafe(forget(), loop).result(30)
            return descriptor

        async def forget():
            world.chunks.forget_object(log.id)

        monkeypatch.setattr(os, "open", open_slowly)
        assert await world.chunks.open(log.id, 0) is None
        assert descriptors() == before


async def test_a_restart_finds_its_chunks_and_removes_what_is_none(tmp_path):
    async with reading(tmp_path) as world:
        await world.read()
        await world.settle()
        kept = world.files()
    (tmp_path / f"{kept[0]}.partial").write_bytes(b"half")
    (tmp_path / kept[0].replace(f".{CHUNK}.chunk", ".4096.chunk")).write_bytes(b"other size")
    (tmp_path / "not ours").write_bytes(b"")
    async with reading(tmp_path) as world:
        await until(lambda: world.files() == [*kept, "not ours"])
        assert world.chunks.size_bytes == len(BODY)
        assert await world.read() == BODY
        assert world.storage.fetched == []


@pytest.mark.parametrize(
    ("damage", "restarted"),
    [("flip", True), ("flip", False), ("shorten", True), ("empty", False), ("remove", False)],
)
async def test_a_damaged_chunk_is_dropped_and_fetched_again(tmp_path, damage, restarted):
    async with reading(tmp_path) as world:
        await world.read(0, CHUNK)
        await world.settle()
        path = tmp_path / world.files()[0]
        if restarted:
            hurt(path, damage)
        else:
            assert await world.read(0, CHUNK) == BODY[:CHUNK]
            hurt(path, damage)
            await check_refetched(world)
    if restarted:
        async with reading(tmp_path) as world:
            await check_refetched(world)


def hurt(path: Path, damage: str) -> None:
    data = path.read_bytes()
    if damage == "flip":
        os.utime(path, ns=(1, 1))
        path.write_bytes(data[:500] + bytes([data[500] ^ 1]) + data[501:])
    elif damage == "remove":
        path.unlink()
    else:
        path.write_bytes(data[: 100 if damage == "shorten" else 0])


async def check_refetched(world: ReadWorld) -> None:
    world.storage.fetched.clear()
    assert await world.read(0, CHUNK) == BODY[:CHUNK]
    await world.settle()
    assert len(world.storage.fetched) == 1
    assert world.evicted("corrupt") == 1
    assert await world.read(0, CHUNK) == BODY[:CHUNK]
    assert len(world.storage.fetched) == 1


async def test_the_cache_keeps_its_size_and_the_most_recently_used(tmp_path):
    async with reading(tmp_path, cache_bytes=3 * CHUNK) as world:
        for number in (0, 1, 2, 0, 3):
            await world.read(number * CHUNK, number * CHUNK + 5)
            await world.settle()
            assert sum((tmp_path / name).stat().st_size for name in world.files()) <= 3 * CHUNK
        assert world.evicted("size") == 1
        world.storage.fetched.clear()
        for number in (0, 2, 3):
            await world.read(number * CHUNK, number * CHUNK + 5)
        assert world.storage.fetched == []


@pytest.mark.parametrize(
    ("call", "number"),
    [("write_scratch", errno.ENOSPC), ("write_scratch", errno.EROFS), ("free_bytes", errno.EIO)],
)
async def test_a_full_or_failing_disk_switches_writing_off_for_a_while(tmp_path, call, number):
    clock, made = TurnedClock(), []

    def disk(real):
        made.append(FaultyDisk(real))
        return made[0]

    async with reading(tmp_path, disk=disk, clock=clock, idle_seconds=0.01) as world:
        await until(world.is_writable)
        made[0].fail_next(call, number)
        assert await world.read(0, CHUNK) == BODY[:CHUNK]
        await world.settle()
        assert not world.chunks.writable
        assert await world.read(CHUNK) == BODY[CHUNK:]
        assert world.sample("rlmm_read_cache_writable") == 0
        assert world.sample("rlmm_read_cache_write_errors_total") == 1
        await until(lambda: world.files() == [])
        clock.now = 6.0
        assert await world.read(0, CHUNK) == BODY[:CHUNK]
        await world.settle()
        assert len(world.files()) == 1
        assert world.sample("rlmm_read_cache_writable") == 1


async def test_the_cache_gives_way_where_the_disk_runs_short(tmp_path, monkeypatch):
    async with reading(tmp_path, free_bytes_min=10 * CHUNK) as world:
        await world.read(0, 4 * CHUNK)
        await world.settle()
        # Others leave room for two chunks less than we have.
        others = 12 * CHUNK

        async def free_bytes(_path):
            return others - world.chunks.size_bytes

        monkeypatch.setattr(world.local_disk, "free_bytes", free_bytes)
        await world.read(5 * CHUNK, 5 * CHUNK + 1)
        await world.settle()
        assert world.chunks.size_bytes == 2 * CHUNK
        assert world.evicted("disk_full") == 3


async def test_a_directory_that_another_daemon_holds_means_no_cache(tmp_path):
    async with reading(tmp_path) as first:
        second = ReadWorld(tmp_path)
        keeper = asyncio.get_running_loop().create_task(second.caches.run())
        assert await second.read() == BODY
        assert not second.is_writable()
        await second.settle()
        assert first.files() == []
        keeper.cancel()
        await asyncio.wait([keeper])
        second.local_disk.close()


ranges = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, len(BODY) - 1),
        st.integers(1, 3 * CHUNK),
        st.booleans(),
        st.sampled_from(["", "", "delete_files", "cut", "wait"]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40)
@given(
    asked=ranges,
    cache_chunks=st.sampled_from([0, 2, 100]),
    ahead=st.integers(0, 3),
    piece_bytes=st.sampled_from([1_000, 10_000, 200_000]),
)
def test_any_sequence_of_ranges_through_the_caches_equals_the_file(
    asked, cache_chunks, ahead, piece_bytes
):
    async def check() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with reading(
                directory,
                cache_bytes=cache_chunks * CHUNK,
                ahead_chunks_max=ahead,
                buffered_bytes_max=4 * CHUNK,
                idle_seconds=0.05,
            ) as world:
                world.storage.piece_bytes = piece_bytes
                async with asyncio.TaskGroup() as group:
                    for number, start, length, bounded, before in asked:
                        if before == "delete_files":
                            world.remove_files()
                        elif before == "cut":
                            world.storage.script.append((777, AWAY))
                        elif before == "wait":
                            await world.settle()
                        end = min(start + length, len(BODY))
                        group.create_task(same(world, number, start, end, bounded=bounded))

    asyncio.run(check())


async def same(world, number, start, end, *, bounded):
    found = await world.read(start, end, number=number, bounded=bounded)
    assert found == BODY[start:end]


def index_key(number: int = 0, kind: ObjectKind = ObjectKind.OFFSET) -> IndexKey:
    return IndexKey(segment_id(number), "aa", kind)


async def test_an_index_is_loaded_once_by_all_who_wait_and_then_kept(tmp_path):
    async with reading(tmp_path) as world:
        loads, go = [], asyncio.Event()

        async def load():
            loads.append(1)
            await go.wait()
            return b"index"

        async with asyncio.TaskGroup() as group:
            readers = [
                group.create_task(world.caches.indexes.get(index_key(), load)) for _ in "abc"
            ]
            await until(lambda: world.lookups("joined", "index") == 2)
            readers[0].cancel()
            go.set()
        assert [r.result() for r in readers[1:]] == [b"index"] * 2
        assert await world.caches.indexes.get(index_key(), load) == b"index"
        assert len(loads) == 1


async def test_a_load_goes_on_for_who_gave_up_and_asks_again(tmp_path):
    """A broker's reader waits for half a second, whatever an index takes."""
    async with reading(tmp_path) as world:
        loads, go = [], asyncio.Event()

        async def load():
            loads.append(1)
            await go.wait()
            return b"index"

        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await world.caches.indexes.get(index_key(), load)
        go.set()
        assert await world.caches.indexes.get(index_key(), load) == b"index"
        assert len(loads) == 1


async def test_a_load_that_nobody_asks_for_again_is_cancelled(tmp_path, monkeypatch):
    monkeypatch.setattr(index_cache, "GOES_ON_SECONDS", 0.05)
    async with reading(tmp_path) as world:
        begun, cancelled = asyncio.Event(), asyncio.Event()

        async def load():
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return b""

        reader = asyncio.get_running_loop().create_task(world.caches.indexes.get(index_key(), load))
        await begun.wait()
        reader.cancel()
        await until(cancelled.is_set)


async def test_a_failed_load_reaches_its_waiters_and_poisons_nothing(tmp_path):
    async with reading(tmp_path) as world:

        async def fail():
            raise ObjectMissing("gone")

        async def load():
            return b"index"

        with pytest.raises(ObjectMissing):
            await world.caches.indexes.get(index_key(), fail)
        assert await world.caches.indexes.get(index_key(), load) == b"index"


async def test_the_index_cache_keeps_its_size_and_forgets_the_deleted(tmp_path):
    async with reading(tmp_path) as world:
        indexes = world.caches.indexes

        async def load():
            return bytes(1000)

        async def huge():
            return bytes(10_000)

        for number in range(5):
            await indexes.get(index_key(number), load)
            assert indexes.size_bytes <= 4096
        assert world.evicted("size", "index") == 2
        assert len(await indexes.get(index_key(9), huge)) == 10_000
        before = indexes.size_bytes
        world.delete(4)
        assert indexes.size_bytes < before
        with pytest.raises(SegmentNotFound):
            await indexes.get(index_key(4), load)


async def test_a_load_that_ends_after_the_delete_is_not_kept(tmp_path):
    async with reading(tmp_path) as world:
        entered, go = asyncio.Event(), asyncio.Event()

        async def load():
            entered.set()
            await go.wait()
            return b"late"

        reader = asyncio.get_running_loop().create_task(world.caches.indexes.get(index_key(), load))
        await entered.wait()
        world.delete()
        go.set()
        with pytest.raises(SegmentNotFound):
            await reader
        assert world.caches.indexes.size_bytes == 0
