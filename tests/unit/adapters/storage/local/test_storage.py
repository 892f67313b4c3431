import asyncio
import concurrent.futures
import errno
import fcntl
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from crc32c import crc32c

from rlmm_daemon.adapters.passes.in_threads import BLOCK_BYTES
from rlmm_daemon.adapters.storage.local import LocalStorage
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    InvalidArgument,
    StorageFull,
    StorageUnavailable,
)
from rlmm_daemon.ports.sources import FileSource
from rlmm_daemon.ports.storage import ObjectKind, Progress
from rlmm_daemon.ports.threads import COPY_NICE
from tests.contract.storage import Buffer, body, keys, read, segment, uploads
from tests.support.nice import Niced, nice
from tests.unit.adapters.storage.local import killed_copies


@pytest.fixture
async def storage(tmp_path):
    (tmp_path / "remote").mkdir()
    storage = LocalStorage(str(tmp_path / "remote"), owner="1")
    await storage.open()
    yield storage
    await storage.close()


def source(tmp_path, content: bytes) -> FileSource:
    path = tmp_path / "source"
    path.write_bytes(content)
    return FileSource(os.open(path, os.O_RDONLY), str(path))


async def put(storage, one, key="d/a.log"):
    try:
        return await storage.put_segment([(ObjectKind.LOG, key, one)], progress=Progress())
    finally:
        one.close()


async def test_a_directory_that_may_not_be_written_in_is_told_by_the_probe(
    storage, tmp_path, monkeypatch
):
    may = os.access
    home = str(tmp_path / "remote" / "_rlmm" / "daemons")
    await storage.overwrite_control("_rlmm/daemons/2.json", b"x")
    monkeypatch.setattr(os, "access", lambda path, *a, **k: path != home and may(path, *a, **k))
    results = (await storage.probe(["_rlmm/marker.json", "_rlmm/daemons/1.json"])).results
    (name,) = (name for name, error in results.items() if error is not None)
    assert name == "write _rlmm/daemons/1.json"
    assert home in results[name].message


async def test_a_file_is_copied_in_blocks(storage, tmp_path):
    content = os.urandom(BLOCK_BYTES + 4321)
    await put(storage, source(tmp_path, content))
    assert await read(storage, "d/a.log") == content


async def test_a_file_system_that_cannot_copy_in_the_kernel_is_read_and_written(
    storage, tmp_path, monkeypatch
):
    def refuse(*_):
        raise OSError(errno.EXDEV, "other file system")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    content = os.urandom(1_000_000)
    await put(storage, source(tmp_path, content))
    assert await read(storage, "d/a.log") == content


@pytest.mark.parametrize("change", ["grow", "cut", "rewrite"])
async def test_a_file_changed_in_the_middle_of_its_copy_never_becomes_visible(
    storage, tmp_path, monkeypatch, change
):
    real = os.copy_file_range
    path = tmp_path / "source"

    def copy_and_change(*args):
        copied = real(*args)
        with path.open("r+b") as file:
            if change == "rewrite":
                file.write(b"changed")
            else:
                file.truncate(3 * BLOCK_BYTES if change == "grow" else BLOCK_BYTES // 2)
        return copied

    monkeypatch.setattr(os, "copy_file_range", copy_and_change)
    with pytest.raises(ChecksumMismatch):
        await put(storage, source(tmp_path, bytes(2 * BLOCK_BYTES)))
    assert await keys(storage) == set()
    assert await uploads(storage) == []


async def test_a_copy_that_is_longer_than_its_source_never_becomes_visible(
    storage, tmp_path, monkeypatch
):
    real = os.copy_file_range

    def copy_and_more(source, target, length, *offsets):
        copied = real(source, target, length, *offsets)
        os.pwrite(target, b"!", offsets[1] + copied)
        return copied

    monkeypatch.setattr(os, "copy_file_range", copy_and_more)
    for size in (1000, BLOCK_BYTES, 2 * BLOCK_BYTES):
        with pytest.raises(ChecksumMismatch):
            await put(storage, source(tmp_path, bytes(size)))
    assert await keys(storage) == set()


@pytest.mark.parametrize(
    "fault",
    [(errno.ENOSPC, StorageFull), (errno.EDQUOT, StorageFull), (errno.EIO, StorageUnavailable)],
)
@pytest.mark.parametrize("call", ["copy_file_range", "fdatasync"])
async def test_a_fault_of_the_disk_is_told_and_leaves_nothing(
    storage, tmp_path, monkeypatch, fault, call
):
    code, expected = fault

    def fail(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(expected) as caught:
        await put(storage, source(tmp_path, b"x" * 100))
    assert caught.value.fields["errno"] == errno.errorcode[code]
    assert await keys(storage) == set()
    assert await uploads(storage) == []


async def test_a_fault_of_the_sources_disk_is_not_told_as_ours(storage, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for call in ("copy_file_range", "pread"):
        monkeypatch.setattr(os, call, fail)
    with pytest.raises(StorageUnavailable, match=f"^{tmp_path}/source can't be read") as caught:
        await put(storage, source(tmp_path, b"x" * 100))
    assert caught.value.fields["reason"] == "source_unreadable"
    monkeypatch.undo()
    assert await keys(storage) == set()
    assert await uploads(storage) == []


async def test_a_failed_attempt_leaves_an_earlier_one_whole(storage, monkeypatch):
    await storage.put_segment(segment(), progress=Progress())
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=0, f_frsize=1))
    with pytest.raises(StorageFull):
        await storage.put_segment(segment(Buffer(b"other")), progress=Progress())
    rows = list(segment())
    assert await keys(storage) == {key for _, key, _ in rows}
    assert await read(storage, rows[-1][1]) == body(ObjectKind.LOG)


async def test_the_log_gets_its_name_last_and_after_a_directory_sync(storage, monkeypatch):
    steps = seen_steps(monkeypatch)
    await storage.put_segment(segment(), progress=Progress())
    first = [step for step, _ in steps].index("rename")
    assert [what if step == "rename" else step for step, what in steps[first:]] == [
        *(key.rpartition("/")[2] for _, key, _ in segment()[:-1]),
        "fsync",
        segment()[-1][1].rpartition("/")[2],
        "fsync",
    ]


async def test_no_object_gets_its_name_before_all_bytes_of_all_are_on_the_disk(
    storage, tmp_path, monkeypatch
):
    steps = seen_steps(monkeypatch)
    await storage.put_segment(segment(), progress=Progress())
    first = [step for step, _ in steps].index("rename")
    durable = {what for step, what in steps[:first] if step == "fdatasync"}
    for kind, key, _ in segment():
        status = (tmp_path / "remote" / key).stat()
        assert (status.st_ino, len(body(kind))) in durable, key


async def test_a_small_copy_asks_the_kernel_for_little(storage, monkeypatch):
    """Each call gives the interpreter up and takes it back, which is most of what it costs."""
    await storage.put_segment(segment(Buffer(b"first")), progress=Progress())
    counted: list[str] = []
    for name in CALLS:
        monkeypatch.setattr(os, name, noted(counted, name, getattr(os, name)))
    await storage.put_segment(segment(Buffer(b"again")), progress=Progress())
    monkeypatch.undo()
    assert len(counted) <= 8 * len(ObjectKind) + 15, counted


CALLS = (
    *("open", "close", "fstat", "stat", "lstat", "statvfs", "scandir", "mkdir", "rmdir", "unlink"),
    *("rename", "fsync", "fdatasync", "pread", "pwrite", "write", "read", "posix_fadvise"),
)


def noted(counted: list[str], name: str, call):
    def then(*given, **named):
        counted.append(name)
        return call(*given, **named)

    return then


def seen_steps(monkeypatch) -> list[tuple[str, object]]:
    """What changes names or waits for the disk: renames by name, syncs by inode and size."""
    steps: list[tuple[str, object]] = []
    real = {name: getattr(os, name) for name in ("rename", "fsync", "fdatasync")}

    def rename(source, target, **directories):
        steps.append(("rename", target))
        real["rename"](source, target, **directories)

    def synced(name):
        def sync(descriptor):
            status = os.fstat(descriptor)
            real[name](descriptor)
            steps.append((name, (status.st_ino, status.st_size)))

        return sync

    monkeypatch.setattr(os, "rename", rename)
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, synced(name))
    return steps


def test_a_repeat_that_is_killed_at_any_step_leaves_an_object_under_every_name(tmp_path):
    """What a finished segment names is replaced, never removed."""
    done = subprocess.run(
        [sys.executable, "-m", killed_copies.__name__, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert set(rows[0].values()) == {"old"}
    assert set(rows[-1].values()) == {"new"}
    for row in rows:
        assert set(row.values()) <= {"old", "new"}, row
        companions = {whose for kind, whose in row.items() if kind != ".log"}
        assert row[".log"] == "old" or companions == {"new"}, row
    renames = [row for row in rows if len(set(row.values())) == 2]
    assert len(renames) >= 5, "it was killed between any two renames"


async def test_a_delete_is_durable_before_it_is_answered(storage, tmp_path, monkeypatch):
    await storage.put_segment(segment(), progress=Progress())
    directory = (tmp_path / "remote" / segment()[0][1]).parent
    left: list[list[str]] = []
    fsync = os.fsync

    def seen(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == directory.stat().st_ino:
            left.append(os.listdir(descriptor))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    await storage.delete([key for _, key, _ in segment()])
    assert left == [[]], "once, when all names were gone"


async def test_leftovers_of_a_crash_are_swept_by_their_owner_alone(tmp_path, storage):
    for owner in ("1", "2"):
        attempt = tmp_path / "remote/.rlmm/attempts" / owner / "dead"
        attempt.mkdir(parents=True)
        (attempt / "0").write_bytes(b"half")
        (attempt / "0.key").write_text(f"d/{owner}.log")
    assert {row.key for row in await uploads(storage)} == {"d/1.log", "d/2.log"}
    again = LocalStorage(str(tmp_path / "remote"), owner="1")
    await again.open()
    left = await uploads(again)
    assert [row.key for row in left] == ["d/2.log"]
    for _ in range(2):
        await again.abort_upload(left[0])
    assert await uploads(again) == []
    await again.close()


async def test_opening_again_leaves_alone_what_is_being_written(tmp_path, storage):
    attempt = tmp_path / "remote/.rlmm/attempts/1/alive"
    attempt.mkdir()
    await storage.open()
    assert attempt.exists()


@pytest.mark.parametrize(
    "key", ["../x", "a/../../x", "/etc/passwd", "a//b", ".", "a\0b", ".rlmm/x", ""]
)
async def test_a_key_that_would_leave_the_root_is_refused(storage, key):
    with pytest.raises(InvalidArgument):
        await storage.size(key)
    with pytest.raises(InvalidArgument):
        await storage.overwrite_control(key, b"x")
    with pytest.raises(InvalidArgument):
        await storage.put_segment([(ObjectKind.LOG, key, Buffer(b""))], progress=Progress())
    assert isinstance((await storage.delete([key]))[key], InvalidArgument)


async def test_of_a_topic_whose_name_is_too_long_for_a_file_nothing_is_there_to_be_deleted(
    storage, tmp_path
):
    """Kafka's directories have 255 bytes for topic and partition, ours add the topic's id."""
    directory = f"{'t' * 240}-7-{'A' * 22}"
    key = f"{directory}/00000000000000000000-{'B' * 22}.log"
    with pytest.raises(InvalidArgument, match="at most 255"):
        await put(storage, source(tmp_path, b"content"), key)
    assert await storage.delete([key]) == {key: None}
    assert await storage.size(key) is None
    assert [page async for page in storage.list(f"{directory}/")] == []


async def test_another_directory_under_the_same_name_is_not_an_empty_storage(storage, tmp_path):
    await put_nothing(storage)
    (tmp_path / "remote").rename(tmp_path / "away")
    (tmp_path / "remote").mkdir()
    with pytest.raises(StorageUnavailable):
        await storage.size("d/a.log")


async def test_a_held_lock_makes_a_conditional_write_wait(storage, tmp_path):
    await storage.put_control("_rlmm/m", b"1", if_etag=None)
    lock = next((tmp_path / "remote/.rlmm/locks").iterdir())
    with lock.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        async with asyncio.TaskGroup() as group:
            write = group.create_task(storage.put_control("_rlmm/m", b"2", if_etag="other"))
            await asyncio.wait([write], timeout=0.05)
            assert not write.done()
            write.cancel()


async def put_nothing(storage) -> None:
    await storage.put_segment([(ObjectKind.LOG, "d/a.log", Buffer(b""))], progress=Progress())


class ReadMeanwhile(Buffer):
    """A source whose checksum comes from whoever else reads it."""

    def __init__(self, content: bytes, outcome: int | BaseException) -> None:
        super().__init__(content)
        self.outcome = outcome

    def checksum(self) -> int:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


async def test_a_source_that_is_read_meanwhile_is_not_read_again(storage):
    content = os.urandom(3 * BLOCK_BYTES)
    source = ReadMeanwhile(content, crc32c(content))
    await storage.put_segment([(ObjectKind.LOG, "d/a.log", source)], progress=Progress())
    assert source.reads == 3, "once, in blocks"
    assert await read(storage, "d/a.log") == content


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (1, ChecksumMismatch),
        (StorageUnavailable("the reader's"), StorageUnavailable),
        (concurrent.futures.CancelledError(), Exception),
    ],
)
async def test_what_its_reader_finds_wrong_never_becomes_visible(storage, outcome, error):
    source = ReadMeanwhile(b"x" * 1000, outcome)
    with pytest.raises(error):
        await storage.put_segment([(ObjectKind.LOG, "d/a.log", source)], progress=Progress())
    assert await keys(storage) == set()
    assert await uploads(storage) == []


async def test_a_copy_comes_behind_what_others_wait_for(storage):
    source, before = Niced(b"x" * 1000), nice()
    await storage.put_segment([(ObjectKind.LOG, "d/a.log", source)], progress=Progress())
    assert source.seen == {min(before + COPY_NICE, 19)}
    assert nice() == before


@pytest.mark.parametrize("size", [3, 300, 3000])
async def test_a_control_object_is_written_over_on_a_full_disk(storage, monkeypatch, size):
    """What frees room asks first whether another daemon answers to what stands there."""
    await storage.overwrite_control("_rlmm/daemons/1.json", b"x" * 300)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "mkdir", full)
    await storage.overwrite_control("_rlmm/daemons/1.json", b"y" * size)
    present = await storage.get_control("_rlmm/daemons/1.json")
    assert present.data == b"y" * size
    with pytest.raises(StorageFull):
        await storage.overwrite_control("_rlmm/daemons/2.json", b"new")
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageFull):
        await storage.overwrite_control("_rlmm/daemons/1.json", b"z" * 5000)
    assert (await storage.get_control("_rlmm/daemons/1.json")).data == b"y" * size
