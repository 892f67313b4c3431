"""A daemon that takes every connection, says hello, and drops each request."""

import asyncio
import gc
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from rlmm_daemon.client import AsyncClient, Client, ClientOptions
from rlmm_daemon.client._sync.connection import Connection
from rlmm_daemon.codec import api, frames
from rlmm_daemon.domain.errors import DaemonUnreachable, OutcomeUnknown, TimedOut
from tests.unit.daemon.socket.fakes import BROKER, ORDERS, segment

#: A client that tries again without a pause makes thousands of connections in a second.
CONNECTIONS_MAX = 30
HELLO = api.HelloResult(1, "0", None, BROKER, ["read", "write"])
IMPATIENT = ClientOptions(timeout_seconds=0.2)


@asynccontextmanager
async def dropping(path: str) -> AsyncIterator[list[int]]:
    """Yield the list of connections made so far."""
    made: list[int] = []
    ended: list[asyncio.Event] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.append(len(made))
        ended.append(asyncio.Event())
        mine = ended[-1]
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await _frame(reader)
            writer.write(frames.result_frame(1, HELLO))
            await _frame(reader)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        mine.set()

    async with await asyncio.start_unix_server(take, path):
        yield made
    for event in ended:
        await event.wait()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">I", await reader.readexactly(4))
    return await reader.readexactly(length)


def looks(client):
    return [client.status, lambda: client.fetch_log_segment(segment())]


@pytest.mark.parametrize("which", [0, 1], ids=["call", "bulk"])
async def test_the_blocking_client_asks_again_with_pauses_and_gives_up(path, which):
    def ask() -> None:
        client = Client(path, IMPATIENT)
        try:
            with pytest.raises((TimedOut, DaemonUnreachable)):
                looks(client)[which]()
        finally:
            client.close()

    async with dropping(path) as made:
        await asyncio.to_thread(ask)
        assert 2 <= len(made) <= CONNECTIONS_MAX


@pytest.mark.parametrize("which", [0, 1], ids=["call", "bulk"])
async def test_the_async_client_asks_again_with_pauses_and_gives_up(path, which):
    async with dropping(path) as made:
        async with AsyncClient(path, IMPATIENT) as client:
            with pytest.raises((TimedOut, DaemonUnreachable)):
                await looks(client)[which]()
        assert 2 <= len(made) <= CONNECTIONS_MAX


async def test_a_write_is_never_made_again(path):
    async with dropping(path) as made, AsyncClient(path, IMPATIENT) as client:
        with pytest.raises(OutcomeUnknown):
            await client.on_stop_partitions([ORDERS])
        assert len(made) == 1


@asynccontextmanager
async def answering(path: str) -> AsyncIterator[None]:
    """A daemon that answers each request with 7."""
    leaving = list[asyncio.StreamWriter]()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        leaving.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await _frame(reader)
            writer.write(frames.result_frame(1, HELLO))
            while True:
                request_id, _, _ = frames.decode_request(await _frame(reader))
                writer.write(frames.result_frame(request_id, 7))

    async with await asyncio.start_unix_server(take, path):
        yield
    for writer in leaving:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_what_an_interrupted_call_left_is_not_taken_for_the_next_answer(path, monkeypatch):
    """A signal's handler raises in the middle, and the caller goes on."""

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    def ask() -> int | None:
        with Client(path, ClientOptions(timeout_seconds=5)) as client:
            with monkeypatch.context() as patched:
                patched.setattr(Connection, "receive", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    client.highest_offset_for_epoch(ORDERS, 0)
            return client.highest_offset_for_epoch(ORDERS, 0)

    async with answering(path):
        assert await asyncio.to_thread(ask) == 7


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the first loops close no connection
async def test_an_async_client_goes_on_in_another_loop_once_its_own_is_closed(path):
    client = AsyncClient(path, ClientOptions(timeout_seconds=5))

    async def ask() -> int | None:
        return await client.highest_offset_for_epoch(ORDERS, 0)

    async with answering(path):
        for _ in range(2):
            assert await asyncio.to_thread(asyncio.run, ask()) == 7
        assert await ask() == 7
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, ask())
        await client.aclose()
        gc.collect()
