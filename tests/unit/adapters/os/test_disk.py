import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rlmm_daemon.adapters.event_log.embedded.files import write_all_synced
from rlmm_daemon.adapters.os.disk import LocalDisk
from tests.unit.daemon.events import until


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


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


async def test_a_scratch_file_is_whole_however_little_is_taken_at_once(
    disk: LocalDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writev, write = os.writev, os.write
    monkeypatch.setattr(os, "writev", lambda fd, pieces: writev(fd, [*pieces[:2], pieces[2][:1]]))
    monkeypatch.setattr(os, "write", lambda fd, rest: write(fd, rest[:2]))
    pieces = [b"ab", b"", b"cde", b"fghij", b"k"] * 300
    await disk.write_scratch(str(tmp_path / "file"), pieces, suffix=".partial")
    assert files(tmp_path) == {"file": b"".join(pieces)}


@pytest.mark.parametrize("step", ["open", "writev", "close", "rename"])
async def test_a_scratch_file_that_fails_leaves_nothing(
    disk: LocalDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    close = os.close

    def fail(*arguments: Any) -> None:
        if step == "close":
            close(arguments[0])
        raise OSError(errno.ENOSPC, "ordered")

    where, name = (Path, "replace") if step == "rename" else (os, step)
    with monkeypatch.context() as patched:
        patched.setattr(where, name, fail)
        with pytest.raises(OSError, match="ordered"):
            await disk.write_scratch(str(tmp_path / "file"), [b"ab", b"c"], suffix=".partial")
    assert files(tmp_path) == {}


@pytest.mark.parametrize("came", [False, True])
async def test_a_scratch_file_of_a_cancelled_caller_is_gone_in_the_end(
    disk: LocalDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, came: bool
) -> None:
    """Whether the cancellation comes while it is written or together with its end."""
    renamed, go = threading.Event(), threading.Event()
    replace = Path.replace

    def wait(self: Path, target: str) -> None:
        replace(self, target)
        renamed.set()
        assert go.wait(50)

    monkeypatch.setattr(Path, "replace", wait)
    writing = asyncio.get_running_loop().create_task(
        disk.write_scratch(str(tmp_path / "file"), [b"ab"], suffix=".partial")
    )
    await asyncio.to_thread(renamed.wait, 50)
    assert files(tmp_path) == {"file": b"ab"}
    if came:
        go.set()
        disk.close()  # returns when the thread has told the loop
        await asyncio.sleep(0)  # whose next turn would be the caller's
    writing.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    async with asyncio.timeout(50):
        await until(lambda: not files(tmp_path))
