"""What every remote storage promises. A harness gives an adapter and the faults of its world."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Protocol, final

import pytest
from crc32c import crc32c

from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    ObjectMissing,
    StorageFull,
    StorageUnavailable,
)
from rlmm_daemon.ports.storage import Conflict, ObjectKind, Progress, RemoteStorage, Source

SEGMENT = "orders-7-AAAAAAAAAAAAAAAAAAAAAQ/00000000000000000011-AAAAAAAAAAAAAAAAAAAA_g"
LOG_BYTES = 3 * 1024 * 1024 + 17


class Buffer:
    """A source in memory; `shorter_after` plays a file that is cut while it is read."""

    def __init__(self, body: bytes, *, shorter_after: int | None = None) -> None:
        self.body = body
        self.shorter_after = shorter_after
        self.reads = 0

    @property
    def size(self) -> int:
        return len(self.body)

    def fileno(self) -> int | None:
        return None

    def pread(self, offset: int, length: int) -> bytes:
        self.reads += 1
        if self.shorter_after is not None and offset + length > self.shorter_after:
            raise ChecksumMismatch("shorter")
        return self.body[offset : offset + length]


class Restless(Buffer):
    """A source whose bytes are others at each read."""

    def pread(self, offset: int, length: int) -> bytes:
        self.reads += 1
        return bytes([(self.reads + offset) % 251]) * length


class Waiting(Buffer):
    """A source that tells when it is read first, so that a test may act in the middle of a copy."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self._loop = asyncio.get_running_loop()
        self.begun = asyncio.Event()

    def pread(self, offset: int, length: int) -> bytes:
        self._loop.call_soon_threadsafe(self.begun.set)
        return super().pread(offset, length)


class Harness(Protocol):
    """One storage world: several daemons may open it, and its faults can be switched."""

    async def open(self, owner: str = "1") -> RemoteStorage: ...
    def lose_the_root(self) -> None: ...
    def fill_up(self) -> None: ...

    #: The step that shows or verifies a `.log` fails from now on, whatever was done before it.
    def break_the_last_step(self) -> None: ...


def segment(
    log: Source | None = None, prefix: str = SEGMENT
) -> list[tuple[ObjectKind, str, Source]]:
    return [
        (kind, prefix + kind.value, log if log and kind is ObjectKind.LOG else Buffer(body(kind)))
        for kind in ObjectKind
    ]


def body(kind: ObjectKind) -> bytes:
    size = LOG_BYTES if kind is ObjectKind.LOG else len(kind.value) * 100
    return (kind.value.encode() * (size // len(kind.value) + 1))[:size]


async def read(storage: RemoteStorage, key: str, start: int = 0, end: int = 1 << 40) -> bytes:
    async with contextlib.aclosing(storage.fetch(key, start, end)) as pieces:
        return b"".join([piece async for piece in pieces])


async def keys(storage: RemoteStorage, prefix: str = "") -> set[str]:
    async with contextlib.aclosing(storage.list(prefix)) as pages:
        return {row.key async for page in pages for row in page}


async def uploads(storage: RemoteStorage, prefix: str = "") -> list[Any]:
    async with contextlib.aclosing(storage.list_uploads(prefix)) as pages:
        return [row async for page in pages for row in page]


class StorageContract:
    @pytest.fixture
    def harness(self) -> Harness:
        raise NotImplementedError

    @pytest.fixture
    async def storage(self, harness: Harness) -> AsyncIterator[RemoteStorage]:
        storage = await harness.open()
        yield storage
        await storage.close()

    @final
    async def test_a_stored_segment_reads_back_with_size_and_checksum(self, storage):
        progress = Progress()
        stored = await storage.put_segment(segment(), progress=progress)
        assert [row.key for row in stored] == [SEGMENT + kind.value for kind in ObjectKind]
        for kind, row in zip(ObjectKind, stored, strict=True):
            assert (row.size, row.crc32c) == (len(body(kind)), crc32c(body(kind)))
            assert await read(storage, row.key) == body(kind)
            assert await storage.size(row.key) == row.size
        assert progress.bytes_done == progress.bytes_total == sum(row.size for row in stored)
        assert (progress.parts_done, progress.write_begun) == (len(stored), True)

    @final
    async def test_an_empty_object_is_an_object(self, storage):
        await storage.put_segment([(ObjectKind.LOG, "e/a.log", Buffer(b""))], progress=Progress())
        assert await storage.size("e/a.log") == 0
        assert await read(storage, "e/a.log") == b""

    @final
    async def test_storing_again_overwrites(self, storage):
        await storage.put_segment(segment(Buffer(b"old")), progress=Progress())
        await storage.put_segment(segment(Buffer(b"newer")), progress=Progress())
        assert await read(storage, SEGMENT + ".log") == b"newer"

    @final
    @pytest.mark.parametrize("size", [5, LOG_BYTES])
    async def test_a_repeat_whose_last_step_fails_removes_nothing(self, harness, storage, size):
        """A finished segment may name what was there; either copy of it is whole."""
        old, new = b"o" * size, b"n" * size
        await storage.put_segment(segment(Buffer(old)), progress=Progress())
        harness.break_the_last_step()
        with pytest.raises(StorageUnavailable):
            await storage.put_segment(segment(Buffer(new)), progress=Progress())
        again = await harness.open("2")
        for kind in ObjectKind:
            whole = {old, new} if kind is ObjectKind.LOG else {body(kind)}
            assert await read(again, SEGMENT + kind.value) in whole
        await again.close()

    @final
    async def test_a_repeat_that_is_cancelled_removes_nothing(self, storage):
        await storage.put_segment(segment(), progress=Progress())
        source = Waiting(bytes(24 * 1024 * 1024))
        async with asyncio.TaskGroup() as group:
            copy = group.create_task(storage.put_segment(segment(source), progress=Progress()))
            await source.begun.wait()
            copy.cancel()
        assert await read(storage, SEGMENT + ".log") == body(ObjectKind.LOG)
        assert len(await keys(storage)) == len(ObjectKind)
        assert await uploads(storage) == []

    @final
    @pytest.mark.parametrize(
        ("start", "end"), [(0, 1), (5, 5), (1_048_575, 1_048_578), (LOG_BYTES - 3, LOG_BYTES + 9)]
    )
    async def test_a_range_is_read_and_its_end_is_cut(self, storage, start, end):
        await storage.put_segment(segment(), progress=Progress())
        assert await read(storage, SEGMENT + ".log", start, end) == body(ObjectKind.LOG)[start:end]

    @final
    @pytest.mark.parametrize("source", [Buffer(body(ObjectKind.LOG), shorter_after=2_000_000)])
    async def test_a_source_that_shrinks_never_becomes_visible(self, storage, source):
        with pytest.raises(ChecksumMismatch):
            await storage.put_segment(segment(source), progress=Progress())
        assert SEGMENT + ".log" not in await keys(storage)
        assert await uploads(storage) == []

    @final
    async def test_a_source_that_changes_never_becomes_visible(self, storage):
        with pytest.raises(ChecksumMismatch):
            await storage.put_segment(segment(Restless(bytes(1_000_000))), progress=Progress())
        assert SEGMENT + ".log" not in await keys(storage)
        assert await uploads(storage) == []

    @final
    async def test_a_cancelled_copy_leaves_nothing(self, storage):
        source = Waiting(bytes(24 * 1024 * 1024))
        async with asyncio.TaskGroup() as group:
            copy = group.create_task(storage.put_segment(segment(source), progress=Progress()))
            await source.begun.wait()
            assert {row.key for row in await uploads(storage)} >= {SEGMENT + ".log"}
            copy.cancel()
        assert copy.cancelled()
        assert await keys(storage) == set()
        assert await uploads(storage) == []

    @final
    async def test_no_space_is_refused_before_anything_is_written(self, harness, storage):
        harness.fill_up()
        progress = Progress()
        with pytest.raises(StorageFull):
            await storage.put_segment(segment(), progress=progress)
        assert not progress.write_begun
        assert await keys(storage) == set()

    @final
    async def test_an_absent_object_is_missing_only_while_the_storage_is_there(
        self, harness, storage
    ):
        assert await storage.size("no/such") is None
        with pytest.raises(ObjectMissing):
            await read(storage, "no/such")
        harness.lose_the_root()
        for call in (
            storage.size("no/such"),
            read(storage, "no/such"),
            storage.get_control("_rlmm/x"),
            storage.put_control("_rlmm/x", b"1", if_etag=None),
            keys(storage),
            storage.put_segment(segment(), progress=Progress()),
        ):
            with pytest.raises(StorageUnavailable):
                await call
        outcome = await storage.delete(["no/such"])
        assert isinstance(outcome["no/such"], StorageUnavailable)
        with pytest.raises(StorageUnavailable):
            await storage.open()

    @final
    async def test_deleting_twice_is_like_deleting_once(self, storage):
        stored = await storage.put_segment(segment(), progress=Progress())
        names = [row.key for row in stored]
        for _ in range(2):
            assert await storage.delete([*names, "no/such"]) == dict.fromkeys([*names, "no/such"])
        assert await keys(storage) == set()

    @final
    async def test_a_listing_is_by_prefix_and_shows_sizes(self, storage):
        await storage.put_segment(segment(), progress=Progress())
        other = "orders-70-AAAAAAAAAAAAAAAAAAAAAQ/x"
        await storage.put_segment(segment(prefix=other), progress=Progress())
        assert len(await keys(storage)) == 12
        assert await keys(storage, "orders-7-") == {SEGMENT + k.value for k in ObjectKind}
        assert await keys(storage, SEGMENT + ".l") == {
            SEGMENT + ".log",
            SEGMENT + ".leader_epoch_checkpoint",
        }
        assert await keys(storage, "nothing/") == set()
        async with contextlib.aclosing(storage.list(SEGMENT + ".log")) as pages:
            rows = [row async for page in pages for row in page]
        assert [row.size for row in rows] == [LOG_BYTES]

    @final
    async def test_pages_of_a_listing_are_bounded(self, storage):
        rows = [(ObjectKind.LOG, f"many/{n}.log", Buffer(b"x")) for n in range(1001)]
        await storage.put_segment(rows, progress=Progress())
        async with contextlib.aclosing(storage.list("many/")) as pages:
            sizes = [len(page) async for page in pages]
        assert sum(sizes) == 1001
        assert max(sizes) <= 1000

    @final
    async def test_a_control_object_is_written_only_over_the_named_version(self, storage):
        assert await storage.get_control("_rlmm/m") is None
        first = await storage.put_control("_rlmm/m", b"1", if_etag=None)
        with pytest.raises(Conflict):
            await storage.put_control("_rlmm/m", b"2", if_etag=None)
        second = await storage.put_control("_rlmm/m", b"2", if_etag=first)
        with pytest.raises(Conflict):
            await storage.put_control("_rlmm/m", b"3", if_etag=first)
        present = await storage.get_control("_rlmm/m")
        assert present is not None
        assert (present.data, present.etag) == (b"2", second)
        await storage.overwrite_control("_rlmm/m", b"4")
        present = await storage.get_control("_rlmm/m")
        assert present is not None
        assert present.data == b"4"

    @final
    async def test_of_racing_conditional_writes_one_wins(self, harness, storage):
        others = [storage, *[await harness.open(str(owner)) for owner in range(2, 6)]]

        async def attempt(one: RemoteStorage, number: int) -> bool:
            try:
                await one.put_control("_rlmm/race", b"%d" % number, if_etag=None)
            except Conflict:
                return False
            return True

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(attempt(one, n)) for n, one in enumerate(others)]
        assert sum(task.result() for task in tasks) == 1
        for other in others[1:]:
            await other.close()

    @final
    async def test_the_probe_says_what_is_allowed(self, harness, storage):
        assert set((await storage.probe()).results.values()) == {None}
        before = await keys(storage, "")
        results = (await storage.probe(("_rlmm/marker.json", "a/b.log"))).results
        assert {"write _rlmm/marker.json", "write a/b.log"} <= results.keys()
        assert set(results.values()) == {None}
        assert await keys(storage, "") == before == set()
        harness.lose_the_root()
        assert None not in (await storage.probe()).results.values()
