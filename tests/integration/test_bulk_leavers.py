"""Peers that leave while the storage is waited for: nothing of theirs keeps anybody else out."""

import asyncio
import os
import threading

import pytest

from rlmm_daemon.codec import api, frames
from rlmm_daemon.daemon.socket import bulk, peer_watch
from rlmm_daemon.domain.errors import StorageUnavailable
from tests.unit.daemon.socket.fakes import ORDERS, FakeBulk, Raw, daemon, until

READY = frames.request_frame(7, "is_ready", api.PartitionParams(api.Partition.of(ORDERS)))
FETCH = api.FetchParams(b"r", 0)
#: Nothing here takes a tenth of it.
HANGS_SECONDS_MAX = 10.0


class Stuck(FakeBulk):
    """Its storage gives nothing until it is released."""

    def __init__(self, released: asyncio.Event) -> None:
        super().__init__(length=3)
        self.released = released

    async def chunks(self):
        await self.released.wait()
        yield b"abc"


def hang(it, where: str) -> asyncio.Event:
    """Let the storage hang before the header or behind it, until the event is set."""
    released = asyncio.Event()
    if where == "behind the header":
        it.fetcher.make = lambda _start, _end: Stuck(released)
        return released

    async def fetch(_record, _start, _end, *, may_open=False):
        del may_open
        await released.wait()
        return FakeBulk(length=3, chunks=(b"abc",))

    it.fetcher.fetch_log_segment = fetch
    return released


def noting(monkeypatch, step: str) -> asyncio.Event:
    """Return what is set once the watch of a connection has taken that step."""
    taken, real = asyncio.Event(), getattr(peer_watch._Watch, step)

    def noted(watch) -> None:
        real(watch)
        taken.set()

    monkeypatch.setattr(peer_watch._Watch, step, noted)
    return taken


@pytest.mark.parametrize("said", ["nothing more", "its next request"])
@pytest.mark.parametrize("where", ["before the header", "behind the header"])
async def test_who_leaves_keeps_no_connection_and_no_request(path, monkeypatch, where, said):
    monkeypatch.setattr(peer_watch, "LEFT_SECONDS", 0.05)
    async with daemon(path, connections_max=12, request_seconds=600) as it:
        hang(it, where)
        peers = [await Raw.connect(path, role="bulk") for _ in range(12)]
        for peer in peers:
            peer.writer.write(frames.request_frame(2, "fetch_log_segment", FETCH))
        await until(lambda: it.server.stats.requests_now == 12)
        for peer in peers:
            if said == "its next request":
                peer.writer.write(frames.request_frame(3, "fetch_log_segment", FETCH))
            peer.close()
        await until(lambda: it.server.stats.connections_now == 0)
        assert it.server.stats.requests_now == 0
        if it.fetcher.last is not None:
            assert it.fetcher.last.closed
        operator = await Raw.connect(path)
        operator.writer.write(READY)
        assert await operator.answer() == (7, None, True)
        operator.close()


@pytest.mark.parametrize("where", ["before the header", "behind the header"])
async def test_a_request_that_comes_while_the_storage_is_waited_for_is_answered(
    path, monkeypatch, where
):
    monkeypatch.setattr(peer_watch, "WATCHED_AFTER_SECONDS", 0.0)
    async with daemon(path) as it:
        released, looked = hang(it, where), noting(monkeypatch, "_look")
        peer = await Raw.connect(path, role="bulk")
        peer.writer.write(frames.request_frame(2, "fetch_log_segment", FETCH))
        await until(lambda: it.server.stats.requests_now == 1)
        for request_id in range(3, 1_000):
            peer.writer.write(frames.request_frame(request_id, "fetch_log_segment", FETCH))
        await peer.writer.drain()
        await looked.wait()
        released.set()
        for request_id in range(2, 1_000):
            assert (await peer.answer())[:2] == (request_id, None)
            assert await peer.reader.readexactly(3) == b"abc"
        peer.close()


async def test_the_storage_is_waited_for_a_little_longer_than_the_peer_does(path):
    """Its next try then finds the same download on its way."""
    async with daemon(path, request_seconds=600) as it:
        released = hang(it, "behind the header")
        peer = await Raw.connect(path, role="bulk")
        peer.writer.write(frames.request_frame(2, "fetch_log_segment", FETCH))
        await until(lambda: it.server.stats.requests_now == 1)
        begun = asyncio.get_running_loop().time()
        peer.close()
        await until(lambda: it.server.stats.connections_now == 0)
        assert asyncio.get_running_loop().time() - begun >= peer_watch.LEFT_SECONDS
        assert not released.is_set()


async def test_an_error_of_the_storage_is_told_to_who_stayed(path, monkeypatch):
    monkeypatch.setattr(peer_watch, "WATCHED_AFTER_SECONDS", 0.0)
    async with daemon(path) as it:
        begun, released = noting(monkeypatch, "_begin"), asyncio.Event()

        async def fetch(_record, _start, _end, *, may_open=False):
            del may_open
            await released.wait()
            raise StorageUnavailable("away")

        it.fetcher.fetch_log_segment = fetch  # type: ignore[method-assign] # a fake
        peer = await Raw.connect(path, role="bulk")
        peer.writer.write(frames.request_frame(2, "fetch_log_segment", FETCH))
        await begun.wait()
        released.set()
        assert (await peer.answer())[1][1] == "storage_unavailable"
        peer.close()


async def test_who_leaves_a_file_that_hangs_keeps_no_place(path, tmp_path, monkeypatch):
    """As on a mount over a network that went away behind the header: nothing of it is cached."""
    released = threading.Event()
    bound = threading.Timer(HANGS_SECONDS_MAX, released.set)
    bound.start()
    monkeypatch.setattr(peer_watch, "LEFT_SECONDS", 0.05)
    monkeypatch.setattr(bulk, "is_cached", lambda _file, _start, _end: False)
    monkeypatch.setattr(bulk, "_read_through", lambda _file, _start, _end: released.wait())
    (tmp_path / "object").write_bytes(b"abc")
    async with daemon(path, request_seconds=600) as it:

        def opened(_start, _end) -> FakeBulk:
            return FakeBulk(length=3, file=(os.open(tmp_path / "object", os.O_RDONLY), 0))

        it.fetcher.make = opened
        peer = await Raw.connect(path, role="bulk")
        peer.writer.write(frames.request_frame(2, "fetch_log_segment", FETCH))
        assert (await peer.answer())[0] == 2
        peer.close()
        await until(lambda: it.server.stats.connections_now == 0)
        assert not released.is_set(), "the file was waited for"
        assert it.server.stats.requests_now == 0
        again = await Raw.connect(path, role="bulk")
        again.writer.write(frames.request_frame(3, "fetch_log_segment", FETCH))
        assert (await again.answer())[0] == 3
        assert await again.reader.read() == b"", "nobody waits twice for what hangs"
        assert not released.is_set()
        again.close()
    released.set()
    bound.cancel()
