import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rlmm_daemon.adapters.disk import LocalDisk
from rlmm_daemon.adapters.event_log.embedded.files import write_all_synced


@pytest.fixture
async def disk() -> AsyncIterator[LocalDisk]:
    disk = LocalDisk(threads=2)
    yield disk
    disk.close()


async def test_a_file_reads_what_was_written_and_short_at_its_end(
    disk: LocalDisk, tmp_path: Path
) -> None:
    file = await disk.open(str(tmp_path / "file"), write=True, create=True)
    assert await file.pwrite(3, b"abc") == 3
    await file.fdatasync()
    assert await file.pread(0, 100) == b"\0\0\0abc"
    await file.truncate(4)
    assert await file.size() == 4
    await file.close()
    await file.close()
    with pytest.raises(ValueError, match="closed"):
        await file.size()


async def test_a_synced_write_is_one_write_and_then_one_sync(
    disk: LocalDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    pwrite = os.pwrite

    def short(descriptor: int, data: bytes | memoryview, offset: int) -> int:
        steps.append(f"write {len(data)}")
        return pwrite(descriptor, data[:4], offset)

    monkeypatch.setattr(os, "pwrite", short)
    monkeypatch.setattr(os, "fdatasync", lambda _: steps.append("sync"))
    file = await disk.open(str(tmp_path / "file"), write=True, create=True)
    await write_all_synced(file, 2, b"0123456789")
    assert steps == ["write 10", "write 6", "write 2", "sync"]
    assert await file.pread(0, 100) == b"\0\x000123456789"
    await file.close()


async def test_a_sync_that_fails_fails_the_synced_write(
    disk: LocalDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "lost")

    monkeypatch.setattr(os, "fdatasync", fail)
    file = await disk.open(str(tmp_path / "file"), write=True, create=True)
    with pytest.raises(OSError, match="lost"):
        await file.pwrite_synced(0, b"data")
    await file.close()


async def test_an_absent_file_is_not_found(disk: LocalDisk, tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    with pytest.raises(FileNotFoundError):
        await disk.open(absent, write=True)
    with pytest.raises(FileNotFoundError):
        await disk.remove(absent)
    with pytest.raises(FileNotFoundError):
        await disk.list(absent)
    assert not await disk.exists(absent)


async def test_an_atomic_write_replaces_and_leaves_nothing_else(
    disk: LocalDisk, tmp_path: Path
) -> None:
    for content in (b"old", b"new"):
        await disk.write_atomically(str(tmp_path / "file"), content)
    assert await disk.read(str(tmp_path / "file")) == b"new"
    assert await disk.list(str(tmp_path)) == ["file"]


async def test_a_failed_atomic_write_keeps_the_old_and_removes_its_temporary(
    disk: LocalDisk, tmp_path: Path
) -> None:
    await disk.make_directory(str(tmp_path / "taken"))
    with pytest.raises(OSError, match="directory"):
        await disk.write_atomically(str(tmp_path / "taken"), b"new")
    assert await disk.list(str(tmp_path)) == ["taken"]


async def test_a_lock_has_one_holder_even_within_a_process(disk: LocalDisk, tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    lock = await disk.lock(path)
    with pytest.raises(BlockingIOError):
        await disk.lock(path)
    await lock.release()
    await lock.release()
    await (await disk.lock(path)).release()


async def test_directories_are_made_with_their_parents(disk: LocalDisk, tmp_path: Path) -> None:
    for _ in range(2):
        await disk.make_directory(str(tmp_path / "a" / "b" / "c"))
    assert await disk.list(str(tmp_path / "a" / "b")) == ["c"]
    assert await disk.free_bytes(str(tmp_path)) > 0


async def test_an_open_cancelled_as_its_answer_comes_leaks_no_descriptor(
    disk: LocalDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.touch()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # counting, not walking
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(disk._threads, "run", lambda _call, **_: answer)
    opening = asyncio.ensure_future(disk.open(str(path)))  # noqa: TID251  # cancelled by hand
    await asyncio.sleep(0)
    # Both in one turn of the loop: the caller never sees the answer that is there.
    answer.set_result(os.open(path, os.O_RDONLY))
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208  # as above


async def test_a_cancelled_open_leaks_no_descriptor(disk: LocalDisk, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    await disk.write_atomically(path, b"")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # counting, not walking
    for _ in range(20):
        opening = asyncio.ensure_future(disk.open(path))  # noqa: TID251  # cancelled by hand
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    disk.close()
    async with asyncio.timeout(30):  # the loop gives back what came too late for its caller
        while len(os.listdir("/proc/self/fd")) > before:  # noqa: ASYNC110, PTH208  # as above
            await asyncio.sleep(0)
