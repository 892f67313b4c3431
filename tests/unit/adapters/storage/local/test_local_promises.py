"""The local storage where its disk or its caller fails between two steps."""

import asyncio
import concurrent.futures
import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from rlmm_daemon.adapters.storage.local import LocalStorage
from rlmm_daemon.adapters.storage.local.copying import Attempt
from rlmm_daemon.adapters.storage.local.root import Root
from rlmm_daemon.adapters.storage.local.tree import Tree
from rlmm_daemon.domain.errors import ChecksumMismatch, StorageUnavailable
from rlmm_daemon.ports.passes import PassStopped
from rlmm_daemon.ports.storage import ObjectKind, Progress
from tests.contract.storage import Buffer, keys, segment, uploads
from tests.unit.adapters.storage.local.test_storage import ReadMeanwhile, put, source, storage

__all__ = ["storage"]


def attempts(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "remote/.rlmm/attempts/1").iterdir()]


async def test_a_source_that_was_written_to_once_it_was_read_is_not_a_copy_of_it(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read and what was stored agree; what is there now is something else."""
    copied = Attempt._copy

    def then_written(self: Attempt, *given: Any) -> int:
        crc = copied(self, *given)
        with (tmp_path / "source").open("r+b") as file:
            file.write(b"changed")
        return crc

    monkeypatch.setattr(Attempt, "_copy", then_written)
    with pytest.raises(ChecksumMismatch, match="changed while it was copied"):
        await put(storage, source(tmp_path, b"x" * 1000))
    assert await keys(storage) == set()


async def test_a_copy_that_is_stopped_once_all_is_stored_shows_nothing(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Attempt._store

    def stopped(self: Attempt, kind: ObjectKind, *given: Any) -> Any:
        stored = store(self, kind, *given)
        if kind is ObjectKind.LOG:
            self.stop.set()
        return stored

    monkeypatch.setattr(Attempt, "_store", stopped)
    with pytest.raises(PassStopped):
        await storage.put_segment(segment(), progress=Progress())
    assert await keys(storage) == set()
    assert (await uploads(storage), attempts(tmp_path)) == ([], [])


async def test_a_copy_whose_reader_was_stopped_is_stopped_itself(storage: LocalStorage) -> None:
    stopped = ReadMeanwhile(b"x" * 1000, concurrent.futures.CancelledError())
    with pytest.raises(PassStopped):
        await storage.put_segment([(ObjectKind.LOG, "d/a.log", stopped)], progress=Progress())
    assert await keys(storage) == set()


async def test_a_delete_whose_sync_fails_is_not_answered_as_done(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash the names may be there again."""
    await storage.put_segment(segment(), progress=Progress())
    names = [key for _, key, _ in segment()]

    def fails(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fails)
    outcome = dict(await storage.delete([*names, "elsewhere/never.log"]))
    assert outcome.pop("elsewhere/never.log") is None
    assert outcome.keys() == set(names)
    assert all(isinstance(error, StorageUnavailable) for error in outcome.values())


async def test_what_is_ours_and_was_removed_is_told_and_made_again(
    storage: LocalStorage, tmp_path: Path
) -> None:
    """Its error was none of ours: the next write of the presence file ended the daemon."""
    etag = await storage.put_control("_rlmm/b", b"1", if_etag=None)
    shutil.rmtree(tmp_path / "remote/.rlmm")
    for write in (
        storage.overwrite_control("_rlmm/a", b"1"),
        storage.put_control("_rlmm/b", b"2", if_etag=etag),
    ):
        with pytest.raises(StorageUnavailable, match=r"/\.rlmm was removed"):
            await write
    await storage.open()
    await storage.overwrite_control("_rlmm/a", b"1")
    await storage.put_control("_rlmm/b", b"2", if_etag=etag)


async def test_a_file_that_was_read_is_closed_in_a_thread(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount is asked at a close, too, and may hang."""
    await put(storage, source(tmp_path, b"abc"))
    closed, real = list[int](), os.close

    def close(descriptor: int) -> None:
        if str(Path(f"/proc/self/fd/{descriptor}").readlink()).endswith("remote/d/a.log"):
            closed.append(threading.get_ident())
        real(descriptor)

    monkeypatch.setattr(os, "close", close)
    assert [piece async for piece in storage.fetch("d/a.log", 0, 3)] == [b"abc"]
    while not closed:  # noqa: ASYNC110 - it is a thread that closes
        await asyncio.sleep(0)
    assert threading.get_ident() not in closed


@pytest.mark.parametrize("fails", [False, True])
async def test_a_control_object_leaves_nothing_beside_it(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    if fails:

        def refuse(*_: object) -> Path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(Path, "rename", refuse)
    for write in (
        storage.overwrite_control("_rlmm/a", b"1"),
        storage.put_control("_rlmm/b", b"1", if_etag=None),
    ):
        if fails:
            with pytest.raises(StorageUnavailable):
                await write
        else:
            await write
    assert attempts(tmp_path) == []


async def test_a_control_object_is_durable_before_and_behind_its_name(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def noted(name: str, call: Any) -> Any:
        def then(*given: Any) -> Any:
            steps.append(name)
            if name == "fdatasync":
                assert os.fstat(given[0]).st_size == 1, "all of it, not what is still in a buffer"
            return call(*given)

        return then

    await storage.overwrite_control("_rlmm/a", b"1")
    for home, name in ((os, "fdatasync"), (Path, "rename"), (os, "fsync")):
        monkeypatch.setattr(home, name, noted(name, getattr(home, name)))
    for write in (
        storage.overwrite_control("_rlmm/a", b"2"),
        storage.put_control("_rlmm/b", b"1", if_etag=None),
    ):
        steps.clear()
        await write
        assert steps == ["fdatasync", "rename", "fsync"]


async def test_a_source_that_grew_since_it_was_opened_is_not_copied(
    storage: LocalStorage, tmp_path: Path
) -> None:
    opened = source(tmp_path, b"x" * 1000)
    with (tmp_path / "source").open("ab") as file:
        file.write(b"more")
    with pytest.raises(ChecksumMismatch):
        await put(storage, opened)
    assert await keys(storage) == set()


async def test_a_listing_shows_nothing_of_the_private_area(storage: LocalStorage) -> None:
    await storage.put_control("_rlmm/a", b"1", if_etag=None)  # leaves a lock file
    for prefix in ("", ".", ".rlmm"):
        assert await keys(storage, prefix) <= {"_rlmm/a"}


async def test_a_directory_that_goes_while_it_is_listed_hides_no_other_one(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {f"{name}/a.log" for name in "abcd"}
    for name in sorted(names):
        await put_at(storage, name)
    scan = os.scandir

    def gone(path: str) -> Any:
        if str(path).endswith(("/b", "/c")):
            raise FileNotFoundError(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", gone)
    assert await keys(storage) == {"a/a.log", "d/a.log"}


async def test_a_listing_follows_no_symbolic_link(storage: LocalStorage, tmp_path: Path) -> None:
    await put_at(storage, "a/a.log")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/b.log").write_bytes(b"x")
    (tmp_path / "remote/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "remote/b.log").symlink_to(tmp_path / "elsewhere/b.log")
    assert await keys(storage) == {"a/a.log"}


async def test_what_lies_behind_a_broken_link_is_not_absent(
    storage: LocalStorage, tmp_path: Path
) -> None:
    """A partition's directory was moved to another disk and linked, and that is not mounted."""
    await put_at(storage, "a/a.log")
    (tmp_path / "remote/a").rename(tmp_path / "disk")
    (tmp_path / "remote/a").symlink_to(tmp_path / "disk")
    assert await storage.size("a/a.log") is not None
    (tmp_path / "disk").rename(tmp_path / "away")

    async def fetched() -> None:
        async for _ in storage.fetch("a/a.log", 0, 1):
            raise AssertionError

    async def listed() -> None:
        async for _ in storage.list("a/"):
            raise AssertionError

    for ask in (
        storage.size("a/a.log"),
        storage.get_control("a/b/control"),
        fetched(),
        listed(),
        put_at(storage, "a/b.log"),
    ):
        with pytest.raises(StorageUnavailable, match="remote/a is a link to what is not there"):
            await ask
    outcomes = await storage.delete(["a/a.log", "b/absent.log"])
    assert isinstance(outcomes["a/a.log"], StorageUnavailable)
    assert outcomes["b/absent.log"] is None
    (tmp_path / "away").rename(tmp_path / "disk")
    assert await storage.delete(["a/a.log"]) == {"a/a.log": None}
    assert not (tmp_path / "disk/a.log").exists()


async def test_nothing_is_written_below_another_directory_under_the_same_name(
    storage: LocalStorage, tmp_path: Path
) -> None:
    await put_at(storage, "a/a.log")
    (tmp_path / "remote").rename(tmp_path / "away")
    (tmp_path / "remote/.rlmm/locks").mkdir(parents=True)
    (tmp_path / "remote/.rlmm/attempts/1").mkdir(parents=True)
    for write in (
        storage.put_control("_rlmm/a", b"1", if_etag=None),
        storage.overwrite_control("_rlmm/a", b"1"),
        put_at(storage, "a/b.log"),
    ):
        with pytest.raises(StorageUnavailable):
            await write
    assert isinstance((await storage.delete(["a/a.log"]))["a/a.log"], StorageUnavailable)
    there = [path for path in (tmp_path / "remote").rglob("*") if path.is_file()]
    assert there == []


class _Moving(Buffer):
    """A source while which is read another directory takes the root's name."""

    def __init__(self, root: Path) -> None:
        super().__init__(b"content")
        self._root = root

    def pread(self, offset: int, length: int) -> bytes:
        if not (self._root.parent / "away").exists():
            self._root.rename(self._root.parent / "away")
            self._root.mkdir()
        return super().pread(offset, length)


async def test_what_is_stored_is_where_its_copy_began_whatever_has_that_name_meanwhile(
    storage: LocalStorage, tmp_path: Path
) -> None:
    """By the copy's end the name may be the first directory's again, and nobody sees a thing."""
    root = tmp_path / "remote"
    moving = _Moving(root)
    await storage.put_segment([(ObjectKind.LOG, "a/b/c.log", moving)], progress=Progress())
    root.rename(tmp_path / "other")
    (tmp_path / "away").rename(root)
    assert await storage.size("a/b/c.log") == len(b"content")
    assert list((tmp_path / "other").iterdir()) == []


async def put_at(storage: LocalStorage, key: str) -> None:
    await storage.put_segment([(ObjectKind.LOG, key, Buffer(b"x"))], progress=Progress())


async def test_an_attempt_tells_the_millisecond_in_which_it_began(
    storage: LocalStorage, tmp_path: Path
) -> None:
    """Whoever sweeps goes by it."""
    attempt = tmp_path / "remote/.rlmm/attempts/2/dead"
    attempt.mkdir(parents=True)
    note = attempt / "0.key"
    note.write_text("d/a.log")
    (row,) = await uploads(storage)
    assert (row.key, row.upload_id) == ("d/a.log", "2/dead")
    assert row.initiated_ms == note.stat().st_mtime_ns // 1_000_000


async def test_a_listing_tells_the_millisecond_of_the_file(
    storage: LocalStorage, tmp_path: Path
) -> None:
    """Ages of segments and of quarantines are told from it."""
    await storage.put_segment(segment(), progress=Progress())
    rows = [row async for page in storage.list("") for row in page]
    assert rows
    for row in rows:
        status = (tmp_path / "remote" / row.key).stat()
        assert (row.modified_ms, row.size) == (status.st_mtime_ns // 1_000_000, status.st_size)


def test_what_of_a_directory_is_not_made_yet_is_told(tmp_path: Path) -> None:
    tree = Tree(Root(str(tmp_path)), "1")
    private = [".rlmm", ".rlmm/attempts", ".rlmm/attempts/1", ".rlmm/locks"]
    assert tree.absent("a/b") == [f"{tmp_path}/{name}" for name in [*private, "a/b"]]
    tree.open()
    assert tree.absent("a/b") == [f"{tmp_path}/a/b"]
    (tmp_path / "a/b").mkdir(parents=True)
    assert tree.absent("a/b") == []


async def test_a_directory_that_a_killed_process_made_is_durable_before_anything_is_in_it(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name was never synced, so a power cut would take all that was stored below it."""
    directory = (tmp_path / "remote" / segment()[0][1]).parent
    directory.mkdir(parents=True)
    (tmp_path / "remote/_rlmm").mkdir()
    synced = list[int]()
    fsync, rename = os.fsync, os.rename

    def seen(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def renamed(*given: Any, **named: Any) -> None:
        before.append(above <= set(synced))
        rename(*given, **named)

    before = list[bool]()
    above = {each.stat().st_ino for each in (tmp_path / "remote", directory.parent)}
    monkeypatch.setattr(os, "fsync", seen)
    monkeypatch.setattr(os, "rename", renamed)
    await storage.put_segment(segment(), progress=Progress())
    assert before
    assert all(before)
    synced.clear()
    await storage.put_segment(segment(), progress=Progress())
    assert not above & set(synced), "once is enough"
    await storage.overwrite_control("_rlmm/a", b"1")
    assert (tmp_path / "remote").stat().st_ino in synced
