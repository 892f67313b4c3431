"""A local storage whose disk or mount hangs: its callers go, and what comes late takes nothing."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from rlmm_daemon.adapters.storage import local
from rlmm_daemon.adapters.storage.local import LocalStorage
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.ports import disk_threads, threads
from rlmm_daemon.ports.storage import ObjectKind, Progress
from tests.contract.storage import Buffer, read, uploads

#: Nothing here takes a tenth of it.
HANGS_SECONDS_MAX = 10.0
KEY = "d/a.log"


@dataclass
class Hang:
    """A call of the system's that hangs, the first time, until it is released.

    Of those that name a path, one below `below`: a thread of an earlier test may still remove what
    it had begun.
    """

    call: Callable[..., object]
    below: str = ""
    begun: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def __call__(self, *args: object, **options: object) -> object:
        if not self.begun.is_set() and str(args[0]).startswith(self.below):
            self.begun.set()
            self.released.wait()
        return self.call(*args, **options)

    async def until_begun(self) -> None:
        while not self.begun.is_set():  # noqa: ASYNC110 - it is set in a thread
            await asyncio.sleep(0)


@pytest.fixture
async def storage(tmp_path):
    (tmp_path / "remote").mkdir()
    storage = LocalStorage(str(tmp_path / "remote"), owner="1")
    await storage.open()
    yield storage
    await storage.close()


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Hang]]:
    """Let a function of `os` hang; not for ever, whatever becomes of the test."""
    made: list[Hang] = []

    def one(name: str, below: object = "") -> Hang:
        made.append(Hang(getattr(os, name), str(below)))
        monkeypatch.setattr(os, name, made[-1])
        timer = threading.Timer(HANGS_SECONDS_MAX, made[-1].released.set)
        timer.daemon = True
        timer.start()
        return made[-1]

    yield one
    for each in made:
        each.released.set()


async def put(storage: LocalStorage, content: bytes, key: str = KEY) -> None:
    objects = [(ObjectKind.LOG, key, Buffer(content))]
    await storage.put_segment(objects, progress=Progress())


async def test_a_copy_that_hangs_is_let_go_and_shows_nothing_later(storage, hang, monkeypatch):
    """Else neither its deadline ended it nor a stop the daemon."""
    monkeypatch.setattr(threads, "LET_GO_SECONDS", 0.01)
    stuck = hang("fdatasync")
    async with asyncio.TaskGroup() as group:
        copy = group.create_task(put(storage, b"late"))
        await stuck.until_begun()
        copy.cancel()
    assert not stuck.released.is_set(), "it was waited for"
    stuck.released.set()
    while await uploads(storage):  # noqa: ASYNC110 - it is a thread that removes them
        await asyncio.sleep(0)
    assert await storage.size(KEY) is None


async def test_nothing_is_stored_under_what_a_delete_that_hangs_may_take_yet(storage, hang):
    """The delete's caller has left, and the copy is repeated."""
    await put(storage, b"first")
    stuck = hang("unlink")
    async with asyncio.TaskGroup() as group:
        delete = group.create_task(storage.delete([KEY]))
        await stuck.until_begun()
        delete.cancel()
    with pytest.raises(StorageUnavailable) as refused:
        await put(storage, b"second")
    assert refused.value.fields["reason"] == "late_delete"
    assert not stuck.released.is_set()
    stuck.released.set()
    async with asyncio.timeout(HANGS_SECONDS_MAX):
        while True:
            try:
                await put(storage, b"third")
                break
            except StorageUnavailable:
                await asyncio.sleep(0)
    assert await read(storage, KEY) == b"third"


async def test_one_delete_that_hangs_takes_nothing_more_once_it_was_left(storage, hang):
    """Others of its call are anybody's again: to be deleted, or stored anew."""
    keys = [KEY, "d/b.log", "e/c.log"]
    for key in keys:
        await put(storage, b"first", key)
    stuck = hang("unlink", "a.log")
    async with asyncio.TaskGroup() as group:
        delete = group.create_task(storage.delete(keys))
        await stuck.until_begun()
        delete.cancel()
    outcomes = await storage.delete(keys)
    assert outcomes[keys[2]] is None
    for key in keys[:2]:
        error = outcomes[key]
        assert isinstance(error, StorageUnavailable)
        assert "in its directory hangs" in error.message
    await put(storage, b"second", keys[1])
    await put(storage, b"second", keys[2])
    assert not stuck.released.is_set()
    stuck.released.set()
    async with asyncio.timeout(HANGS_SECONDS_MAX):
        while await storage.size(KEY) is not None:  # noqa: ASYNC110 - it is a thread that deletes
            await asyncio.sleep(0)
        while any((await storage.delete([KEY])).values()):  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0)
    assert [await read(storage, key) for key in keys[1:]] == [b"second", b"second"]


async def test_deletes_that_hang_leave_threads_to_everybody_else(tmp_path, hang, monkeypatch):
    """Each time one was tried again it kept one thread more, until nothing was read any more."""
    monkeypatch.setattr(disk_threads, "RELIEF_SECONDS", 0.01)
    (tmp_path / "remote").mkdir()
    storage = LocalStorage(str(tmp_path / "remote"), owner="1", threads_max=2)
    await storage.open()
    keys = ["d/a.log", "e/a.log", "f/a.log"]
    for key in keys:
        await put(storage, b"first", key)
    stuck = [hang("unlink", "a.log") for _ in keys]
    for each in reversed(stuck):  # the last one is asked first, and asks the one before
        async with asyncio.TaskGroup() as group:
            delete = group.create_task(storage.delete([keys.pop()]))
            await each.until_begun()
            delete.cancel()
    async with asyncio.timeout(HANGS_SECONDS_MAX / 2):
        assert await storage.size("d/a.log") == len(b"first")
        assert await storage.get_control("_rlmm/marker.json") is None
    assert not any(each.released.is_set() for each in stuck)
    await storage.close()


async def test_a_probe_of_a_storage_that_hangs_ends(storage, hang, monkeypatch):
    monkeypatch.setattr(local, "PROBE_SECONDS", 0.01)
    stuck = hang("fdatasync")
    results = (await storage.probe(["_rlmm/marker.json"])).results
    assert not stuck.released.is_set(), "it was waited for"
    assert {name: str(error).partition(":")[0] for name, error in results.items()} == {
        "write": "no answer in 0.01 s",
        "read": "not tried",
        "list": "not tried",
        "delete": "not tried",
        "write _rlmm/marker.json": "not tried",
    }


async def test_a_probe_of_a_storage_that_does_not_even_open_ends(tmp_path, hang, monkeypatch):
    monkeypatch.setattr(local, "PROBE_SECONDS", 0.01)
    (tmp_path / "remote").mkdir()
    storage, stuck = LocalStorage(str(tmp_path / "remote"), owner="1"), hang("lstat", tmp_path)
    results = (await storage.probe()).results
    assert not stuck.released.is_set(), "it was waited for"
    assert list(results) == ["open"]
    await storage.close()
