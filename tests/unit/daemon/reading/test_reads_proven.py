"""Bytes that came wrong: found by the recorded checksum, evicted, and asked for again."""

import pytest
from crc32c import crc32c

from rlmm_daemon.domain.errors import ChecksumMismatch
from tests.unit.daemon.reading.read_calls import BODY, CHUNK, SIZE, ReadWorld, reading

RECORDED = crc32c(BODY)


def flipped(at: int) -> bytes:
    return BODY[:at] + bytes([BODY[at] ^ 1]) + BODY[at + 1 :]


FLIPPED = flipped(77)


def mismatches(world: ReadWorld, kind: str = "chunks") -> float:
    return world.sample("rlmm_read_mismatches_total", kind=kind)


async def take_all(world: ReadWorld, got: list[int]) -> None:
    async for piece in world.range():
        length = len(piece) if isinstance(piece, bytes) else piece.length
        assert length, "no piece is empty"
        got.append(length)


async def read_wrong(world: ReadWorld, start: int, end: int) -> None:
    """Read while the storage gives one wrong byte, in the first chunk."""
    world.storage.objects["0"] = FLIPPED
    assert await world.read(start, end) == FLIPPED[start:end]
    await world.settle()
    world.storage.objects["0"] = BODY


async def test_a_wrong_byte_goes_as_soon_as_the_chunks_cover_the_whole_object(tmp_path):
    async with reading(tmp_path) as world:
        world.recorded = RECORDED
        await read_wrong(world, 0, CHUNK)
        assert await world.read(0, 100) == FLIPPED[:100], "of a part alone nobody can tell"
        for start in range(CHUNK, SIZE, CHUNK):
            assert await world.read(start, min(start + CHUNK, SIZE)) == BODY[start : start + CHUNK]
            await world.settle()
        assert mismatches(world) == 1
        assert await world.read(0, CHUNK) == BODY[:CHUNK]
        assert await world.read() == BODY
        await world.settle()
        assert mismatches(world) == 1
        assert world.evicted("mismatch") == 11


async def test_wrong_chunks_of_an_earlier_life_are_not_served_again(tmp_path):
    async with reading(tmp_path) as world:
        await read_wrong(world, 0, SIZE)
        assert await world.read() == FLIPPED, "nothing was recorded of it"
    async with reading(tmp_path) as world:
        world.recorded = RECORDED
        assert await world.read(0, CHUNK) == BODY[:CHUNK]
        assert await world.read() == BODY
        assert mismatches(world) == 1


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("at", [77, SIZE - 1])
async def test_a_whole_read_that_is_wrong_is_cut_before_its_last_piece(tmp_path, cached, at):
    async with reading(tmp_path, cache_bytes=100 * CHUNK if cached else 0) as world:
        world.recorded = RECORDED
        world.storage.objects["0"] = flipped(at)
        got: list[int] = []
        with pytest.raises(ChecksumMismatch, match="ask again"):
            await take_all(world, got)
        assert 0 < sum(got) < SIZE
        assert mismatches(world, "read") == 1
        await world.settle()
        world.storage.objects["0"] = BODY
        assert await world.read() == BODY
        assert await world.read() == BODY


async def test_readers_of_proven_chunks_cost_the_storage_nothing(tmp_path):
    async with reading(tmp_path) as world:
        world.recorded = RECORDED
        assert await world.read() == BODY
        await world.settle()
        asked = len(world.storage.fetched)
        for _ in range(24):
            assert await world.read(64, 200) == BODY[64:200]
        assert len(world.storage.fetched) == asked
