"""Both clients at a daemon that does not answer, and after calls that ended badly."""

import asyncio
import socket
from collections.abc import Awaitable

import pytest

from rlmm_daemon.client import AsyncClient, Client, ClientOptions, _common
from rlmm_daemon.client._async import caller
from rlmm_daemon.domain.errors import DaemonUnreachable
from tests.unit.daemon.socket.fakes import ORDERS, FakeBulk, daemon, segment, until

IMPATIENT = ClientOptions(timeout_seconds=0.01)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "rlmm.sock")


@pytest.fixture
def silent(path, monkeypatch):
    """Yield the socket of a daemon that never takes a connection."""
    monkeypatch.setattr(_common, "GRACE_SECONDS", 0.0)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        yield path


async def ask(client, kind):
    """Call the async client."""
    if kind == "write":
        await client.add_remote_log_segment_metadata(segment())
    elif kind == "stream":
        await anext(client.export(timeout_seconds=0.01))
    else:
        await client.fetch_log_segment(segment())


def ask_blocking(client, kind):
    if kind == "write":
        client.add_remote_log_segment_metadata(segment())
    elif kind == "stream":
        next(client.export(timeout_seconds=0.01))
    else:
        client.fetch_log_segment(segment())


@pytest.mark.parametrize("kind", ["write", "stream", "bulk"])
async def test_what_was_never_sent_has_no_unknown_outcome(silent, kind):
    with pytest.raises(DaemonUnreachable):
        await ask(AsyncClient(silent, IMPATIENT), kind)
    with pytest.raises(DaemonUnreachable):
        await asyncio.to_thread(ask_blocking, Client(silent, IMPATIENT), kind)


async def test_who_waits_while_another_call_connects_has_his_own_deadline(silent):
    client = AsyncClient(silent)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(client.status(timeout_seconds=3_600))
        await asyncio.sleep(0)
        with pytest.raises(DaemonUnreachable, match="another call"):
            await client.status(timeout_seconds=0.01)
        first.cancel()
    await client.aclose()


async def refused(call: Awaitable[object]) -> None:
    with pytest.raises(DaemonUnreachable, match="the client was closed"):
        await call


async def test_a_client_that_is_closed_while_it_asks_connects_no_more(path):
    async with daemon(path) as it:
        it.manager.ready = False  # the look-up is held
        client = AsyncClient(path)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(refused(client.remote_log_segment_metadata(ORDERS, 5, 1)))
            await until(lambda: it.server.stats.held_reads_now == 1)
            await client.aclose()
        await until(lambda: it.server.stats.connections_now == 0)
        assert it.server.stats.connections == 1
        it.manager.ready = True
        assert await client.remote_log_segment_metadata(ORDERS, 5, 1) is None, "it is used again"
        await client.aclose()


async def test_a_client_that_is_closed_while_it_connects_stays_closed(silent, monkeypatch):
    """A write that waits for a connection is begun by nobody any more."""
    connecting, go_on = asyncio.Event(), asyncio.Event()
    client = AsyncClient(silent)
    closed: list[str] = []

    class Late:
        @classmethod
        async def over(cls, _: object) -> "Late":
            connecting.set()
            await go_on.wait()
            return cls()

        def close(self) -> None:
            closed.append("closed")

    async def connected(*_: object) -> None:
        return None

    monkeypatch.setattr(caller, "AsyncExchange", Late)
    monkeypatch.setattr(client, "_connect", connected)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(refused(client.status()))
        await connecting.wait()
        await client.aclose()
        go_on.set()
    assert closed == ["closed"]


async def test_a_reader_that_outlives_its_client_gives_its_connection_back_to_nobody(path):
    async with daemon(path) as it:
        it.fetcher.make = lambda _start, _end: FakeBulk(length=2, chunks=(b"ok",))
        client = AsyncClient(path)
        reader = await client.fetch_log_segment(segment())
        await client.aclose()
        assert await reader.readall() == b"ok"
        await reader.aclose()
        await until(lambda: it.server.stats.connections_now == 0)


async def test_a_closed_reader_says_so(path):
    def talk() -> None:
        with Client(path) as client:
            reader = client.fetch_log_segment(segment())
            reader.close()
            with pytest.raises(ValueError, match="closed"):
                reader.readinto(bytearray(1))

    async with daemon(path) as it:
        it.fetcher.make = lambda _start, _end: FakeBulk(length=2, chunks=(b"ok",))
        async with AsyncClient(path) as client:
            reader = await client.fetch_log_segment(segment())
            await reader.aclose()
            with pytest.raises(ValueError, match="closed"):
                await reader.readinto(bytearray(1))
        await asyncio.to_thread(talk)
