"""How much is downloaded: what was asked for to a stranger, whole chunks to who reads on."""

import asyncio
import random
import tempfile
from itertools import count

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.daemon.base.deleted_segments import DeletedSegments
from rlmm_daemon.daemon.reading import habits
from rlmm_daemon.daemon.reading.chunk_cache import (
    FILES_PER_CHUNK,
    ChunkCache,
    ChunkCacheOptions,
)
from rlmm_daemon.daemon.reading.chunk_fill import ALIGNED_BYTES, ChunkFill
from rlmm_daemon.daemon.reading.chunk_index import ObjectId
from rlmm_daemon.daemon.reading.habits import READERS_MAX
from rlmm_daemon.daemon.reading.single_flight import LOOKED_AT_MAX
from rlmm_daemon.domain.errors import ChecksumMismatch, StorageUnavailable
from rlmm_daemon.observability.metrics import Metrics
from tests.unit.daemon.reading.read_calls import BODY, SIZE, reading, segment_id, until

UNIT = ALIGNED_BYTES
CHUNK = 4 * UNIT
OBJECT = ObjectId(segment_id(0), "aa")


def wide(directory, **options):
    return reading(directory, chunk_bytes=CHUNK, **options)


def gets(world) -> list[tuple[int, int]]:
    return [(start, end) for _, start, end in world.storage.fetched]


async def ask(world, start: int, end: int, **named) -> None:
    assert await world.read(start, end, bounded=True, **named) == BODY[start:end]
    await world.settle()


@pytest.mark.parametrize(
    ("start", "end", "asked"),
    [
        (CHUNK + UNIT + 9, CHUNK + UNIT + 10, (CHUNK + UNIT, CHUNK + 2 * UNIT)),
        (CHUNK + 3 * UNIT + 1, 2 * CHUNK + 5, (CHUNK + 3 * UNIT, 2 * CHUNK + UNIT)),
        (SIZE - 9, SIZE, (SIZE - SIZE % UNIT, SIZE)),
    ],
)
async def test_a_stranger_gets_little_more_than_it_asked_for_in_one_request(
    tmp_path, start, end, asked
):
    async with wide(tmp_path, ahead_chunks_max=4) as world:
        for _ in range(2):
            await ask(world, start, end)
        assert gets(world) == [asked]
        assert (world.lookups("miss"), world.lookups("hit")) == (1, 1)


async def test_who_goes_on_where_it_stopped_gets_whole_chunks_and_the_next_ones(tmp_path):
    async with wide(tmp_path, ahead_chunks_max=4) as world:
        await ask(world, UNIT, 2 * UNIT)
        await ask(world, 2 * UNIT, 3 * UNIT)
        await ask(world, 3 * UNIT, 5 * UNIT)
        assert gets(world) == [
            (UNIT, 2 * UNIT),
            (2 * UNIT, CHUNK),
            (CHUNK, 2 * CHUNK),
            (2 * CHUNK, SIZE),
        ]
        await ask(world, 5 * UNIT, SIZE)
        assert len(gets(world)) == 4


async def test_a_read_from_the_very_beginning_is_taken_for_one_that_reads_on(tmp_path):
    async with wide(tmp_path) as world:
        await ask(world, 0, 9)
        assert gets(world) == [(0, CHUNK)]


@pytest.mark.parametrize("ahead", [0, 4])
async def test_a_strangers_range_of_several_chunks_is_not_rounded_up_to_chunks(tmp_path, ahead):
    async with wide(tmp_path, ahead_chunks_max=ahead) as world:
        await ask(world, UNIT + 9, 2 * CHUNK + UNIT + 5)
        assert gets(world) == [(UNIT, CHUNK), (CHUNK, 2 * CHUNK), (2 * CHUNK, 2 * CHUNK + 2 * UNIT)]
        await ask(world, 2 * CHUNK + UNIT + 5, 2 * CHUNK + 2 * UNIT + 9)
        assert gets(world)[3:] == [(2 * CHUNK + 2 * UNIT, SIZE)], "it reads on after all"


async def test_who_begins_somewhere_near_a_reader_is_a_stranger_still(tmp_path, monkeypatch):
    monkeypatch.setattr(habits, "UNTAKEN_BYTES_MAX", 2 * UNIT)
    async with wide(tmp_path) as world:
        await ask(world, UNIT, 9 * UNIT)
        world.remove_files()
        before = len(gets(world))
        await ask(world, 5 * UNIT, 6 * UNIT)
        assert gets(world)[before:] == [(5 * UNIT, 6 * UNIT)], "it may have read that long ago"
    async with wide(tmp_path) as world:
        await ask(world, UNIT, 2 * UNIT, number=1)
        await ask(world, CHUNK, CHUNK + UNIT, number=1)
        assert gets(world) == [(UNIT, 2 * UNIT), (CHUNK, CHUNK + UNIT)]


async def test_readers_of_one_segment_that_take_turns_are_told_apart(tmp_path):
    async with wide(tmp_path) as world:
        for step in range(3):
            for first in (UNIT, CHUNK + 3 * UNIT):
                start = first + step * UNIT
                await ask(world, start, start + UNIT)
        assert len(gets(world)) == 4


async def test_a_reader_whom_others_pushed_out_of_mind_still_reads_on(tmp_path):
    async with wide(tmp_path, ahead_chunks_max=0) as world:
        await ask(world, UNIT, 2 * UNIT - 9)
        for _ in range(READERS_MAX):
            await ask(world, SIZE - 9, SIZE)
        await ask(world, 2 * UNIT - 9, 2 * UNIT + 9)
        assert gets(world)[-1] == (2 * UNIT, CHUNK)


async def test_what_is_cached_or_coming_at_the_end_of_a_range_is_not_asked_for_again(tmp_path):
    async with wide(tmp_path) as world:
        await ask(world, 5 * UNIT, 6 * UNIT)
        world.storage.flows.clear()
        async with asyncio.TaskGroup() as group:
            for start, end in ((3 * UNIT, 4 * UNIT), (2 * UNIT, 6 * UNIT - 1)):
                number = len(gets(world))
                group.create_task(ask(world, start, end))
                await until(lambda number=number: len(gets(world)) > number)
            world.storage.flows.set()
        assert sorted(gets(world)) == [
            (2 * UNIT, 3 * UNIT), (3 * UNIT, 4 * UNIT), (4 * UNIT, 5 * UNIT), (5 * UNIT, 6 * UNIT)
        ]  # fmt: skip


async def test_all_that_lacks_in_the_window_is_asked_for_at_once(tmp_path):
    async with wide(tmp_path, ahead_chunks_max=1) as world:
        await ask(world, 2 * CHUNK - UNIT, 2 * CHUNK)
        world.storage.flows.clear()
        async with asyncio.TaskGroup() as group:
            for start, end in ((UNIT, 2 * UNIT), (CHUNK, CHUNK + UNIT)):
                group.create_task(ask(world, start, end))
                await until(lambda start=start: start in dict(gets(world)))
            group.create_task(ask(world, UNIT, 2 * CHUNK + UNIT))
            await until(lambda: len(gets(world)) == 5)
            # Behind each stranger's, as far as the next chunk's end.
            assert gets(world)[3:] == [(2 * UNIT, CHUNK), (CHUNK + UNIT, 2 * CHUNK - UNIT)]
            world.storage.flows.set()
        assert gets(world)[5:] == [(2 * CHUNK, 2 * CHUNK + UNIT)]


async def test_what_is_cached_is_looked_at_once_by_who_reads_through(tmp_path, monkeypatch):
    async with wide(tmp_path, ahead_chunks_max=4) as world:
        for start in range(0, SIZE, UNIT):
            piece = BODY[start : start + UNIT]
            assert await world.chunks.put(OBJECT, start, [piece], crc32c(piece))
        asked = list[int]()
        lacks_from = world.chunks.lacks_from

        def noted(object_id, at, end):
            asked.append(lacks_from(object_id, at, end) - at)
            return at + asked[-1]

        monkeypatch.setattr(world.chunks, "lacks_from", noted)
        assert await world.read() == BODY
        assert SIZE // 2 < sum(asked) < SIZE


async def test_two_strangers_in_one_chunk_leave_each_other_what_they_brought(tmp_path):
    async with wide(tmp_path) as world:
        for _ in range(2):
            await ask(world, 3 * UNIT, 4 * UNIT)
            await ask(world, UNIT, 2 * UNIT)
        assert len(gets(world)) == 2
    async with wide(tmp_path) as world:
        await ask(world, 3 * UNIT, 4 * UNIT)
        await ask(world, UNIT, 2 * UNIT)
        assert gets(world) == []


async def test_who_reads_on_replaces_islands_rather_than_asking_around_them(tmp_path):
    async with wide(tmp_path) as world:
        await ask(world, 2 * UNIT, 3 * UNIT)
        await ask(world, 0, 9)
        assert gets(world)[1:] == [(0, CHUNK)]
        assert world.evicted("replaced") == 1
        await until(lambda: len(world.files()) == 1)
        assert world.chunks.size_bytes == CHUNK


async def test_however_many_read_one_segment_few_downloads_are_looked_at(tmp_path, monkeypatch):
    looked = 0
    covers = ChunkFill.covers

    def counted(fill, at):
        nonlocal looked
        looked += 1
        return covers(fill, at)

    monkeypatch.setattr(ChunkFill, "covers", counted)
    # Nothing is kept, so nothing is aligned: each waits for a download of its own.
    async with wide(tmp_path, cache_bytes=0) as world:
        world.storage.flows.clear()
        async with asyncio.TaskGroup() as group:
            starts = random.Random(4).sample(range(9, 2 * CHUNK), 4 * LOOKED_AT_MAX)
            for start in starts:
                before, looked = world.reads.in_flight, 0
                group.create_task(ask(world, start, start + 1))
                await until(lambda before=before: world.reads.in_flight > before)
                # Three questions, each about two chunks.
                assert looked <= 3 * 2 * LOOKED_AT_MAX
            assert looked > LOOKED_AT_MAX
            world.storage.flows.set()


async def test_a_download_that_began_in_the_chunk_before_is_shared(tmp_path):
    async with wide(tmp_path) as world:
        world.storage.flows.clear()
        async with asyncio.TaskGroup() as group:
            group.create_task(ask(world, CHUNK + 3 * UNIT, 2 * CHUNK + UNIT))
            await until(lambda: world.storage.open_now)
            group.create_task(ask(world, 2 * CHUNK + 9, 2 * CHUNK + UNIT))
            await until(lambda: world.lookups("joined"))
            world.storage.flows.set()
        assert len(gets(world)) == 1


async def test_cached_bytes_are_not_mixed_with_those_of_an_object_that_replaced_theirs(tmp_path):
    async with wide(tmp_path) as world:
        await ask(world, UNIT, 2 * UNIT)
        world.replace()
        with pytest.raises(ChecksumMismatch):
            await world.read(UNIT, 3 * UNIT, bounded=True)
        await world.settle()
        assert await world.read(UNIT, 3 * UNIT, bounded=True) == bytes(2 * UNIT)


async def test_what_was_being_written_when_its_object_was_replaced_is_not_kept(
    tmp_path, monkeypatch
):
    async with wide(tmp_path) as world:
        write, goes_on = world.chunks.put, asyncio.Event()

        async def put(*given):
            await goes_on.wait()
            return await write(*given)

        monkeypatch.setattr(world.chunks, "put", put)
        assert await world.read(UNIT, 2 * UNIT, bounded=True) == BODY[UNIT : 2 * UNIT]
        world.replace()
        assert await world.read(5 * UNIT, 6 * UNIT, bounded=True) == bytes(UNIT)
        goes_on.set()
        await world.settle()
        assert await world.read(UNIT, 2 * UNIT, bounded=True) == bytes(UNIT)


async def test_a_reader_that_got_nothing_reads_on_when_it_asks_again(tmp_path):
    async with wide(tmp_path, ahead_chunks_max=0) as world:
        await ask(world, UNIT, 2 * UNIT - 9)
        await world.chunks.close()  # nothing is kept: only the habit tells
        world.storage.flows.clear()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(ask(world, 2 * UNIT + 9, 3 * UNIT))
            await until(lambda: len(gets(world)) == 2)
            waiting.cancel()
        assert world.reads.habits.before(world.remote().id, 2 * UNIT + 9) is not None
        world.storage.flows.set()


async def test_every_part_of_a_deleted_segment_goes(tmp_path):
    async with wide(tmp_path) as world:
        for start in (UNIT, 3 * UNIT, 7 * UNIT):
            await ask(world, start, start + UNIT)
        await ask(world, UNIT, 2 * UNIT, number=1)
        world.delete()
        await until(lambda: len(world.files()) == 1)
        assert world.evicted("deleted") == 3
        assert world.chunks.size_bytes == UNIT


async def test_many_small_chunks_are_bounded_by_their_number(tmp_path):
    disk, asked = LocalDisk(), FILES_PER_CHUNK + 4
    for restarted in (False, True):
        cache = ChunkCache(
            ChunkCacheOptions(directory=str(tmp_path), bytes_max=CHUNK, chunk_bytes=CHUNK),
            disk, DeletedSegments(),
            metrics=Metrics().reads, monotonic=asyncio.get_running_loop().time,
        )  # fmt: skip
        await cache._open()
        for at in range(0 if restarted else asked):
            assert await cache.put(OBJECT, 2 * at, [b"x"], crc32c(b"x"))
        assert cache.size_bytes == FILES_PER_CHUNK
        assert [cache.begin_of(OBJECT, 2 * at) for at in (3, 4)] == [None, 8], "the newest stay"
        await cache.close()
    disk.close()


puts = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 20), st.integers(1, 4)), min_size=1, max_size=20
)


@settings(max_examples=30)
@given(puts)
def test_the_cache_answers_what_was_put_and_nothing_twice(asked):
    """Chunks that overlap, which only races make: the cache against a set of positions."""

    async def check() -> None:
        disk = LocalDisk()
        with tempfile.TemporaryDirectory() as directory:
            cache = ChunkCache(
                ChunkCacheOptions(directory=directory, bytes_max=1000, chunk_bytes=4),
                disk, DeletedSegments(),
                metrics=Metrics().reads, monotonic=asyncio.get_running_loop().time,
            )  # fmt: skip
            await cache._open()
            there: dict[str, dict[int, int]] = {"a": {}, "b": {}}
            for tag, start, length in asked:
                wanted = range(start, start + length)
                held = there[tag]
                if not all(at in held for at in wanted):
                    gone = {held[at] for at in wanted if at in held}
                    for at in [at for at, begin in held.items() if begin in gone]:
                        del held[at]
                    held.update(dict.fromkeys(wanted, start))
                assert await cache.put(ObjectId(segment_id(0), tag), start, [bytes(length)], 0)
                for each, model in there.items():
                    for at in range(26):
                        of = ObjectId(segment_id(0), each)
                        assert cache.begin_of(of, at) == model.get(at)
                        lacks = next(n for n in count(at) if n not in model)
                        found = cache.lacks_from(of, at, at + 3)
                        assert min(found, at + 3) == min(lacks, at + 3)
                        # No further than to the end of the chunk that it stops in.
                        assert found <= (cache.end_of(of, at + 2) or at + 2)
                assert cache.size_bytes == sum(map(len, there.values()))
            await cache.close()
        disk.close()

    asyncio.run(check())


ranges = st.lists(
    st.tuples(
        st.integers(0, SIZE - 1), st.integers(1, 6 * UNIT), st.booleans(),
        st.sampled_from(["", "wait", "cut", "delete_files"]),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(max_examples=30)
@given(asked=ranges, cached=st.sampled_from([0, 2, 100]), ahead=st.integers(0, 3))
def test_any_sequence_of_ranges_over_parts_of_chunks_equals_the_file(asked, cached, ahead):
    async def same(world, start, end, *, bounded) -> None:
        assert await world.read(start, end, bounded=bounded) == BODY[start:end]

    async def check() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with wide(
                directory, cache_bytes=cached * CHUNK, ahead_chunks_max=ahead,
                buffered_bytes_max=4 * CHUNK, idle_seconds=0.05,
            ) as world:  # fmt: skip
                async with asyncio.TaskGroup() as group:
                    for start, length, bounded, before in asked:
                        if before == "wait":
                            await world.settle()
                        elif before == "cut":
                            world.storage.script.append((777, StorageUnavailable("away")))
                        elif before == "delete_files":
                            world.remove_files()
                        end = min(start + length, SIZE)
                        group.create_task(same(world, start, end, bounded=bounded))
                assert world.reads.buffered_bytes_most <= 4 * CHUNK

    asyncio.run(check())
