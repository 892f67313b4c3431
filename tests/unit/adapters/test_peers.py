"""A peer that is asked answers in time, in bounds and with 200, or is said not to."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rlmm_daemon.adapters.peers import ask
from rlmm_daemon.domain.errors import UnavailableError


@asynccontextmanager
async def peer(said: bytes | None, heard: list[bytes] | None = None) -> AsyncIterator[str]:
    """Serve one answer to everybody; None never answers. Yields the address."""
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if heard is not None:
            heard.append(head)
        if said is None:
            await ended.wait()
        else:
            writer.write(said)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        ended.set()
        server.close()


async def test_a_body_is_what_was_answered_and_no_more_than_the_path_is_told():
    heard: list[bytes] = []
    async with peer(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n{}\r\n\r\n", heard) as address:
        assert await ask(address, "/api/standing") == b"{}\r\n\r\n"
    assert heard == [f"GET /api/standing HTTP/1.0\r\nHost: {address}\r\n\r\n".encode()]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "no HTTP"),
        (b"\x16\x03\x01", "no HTTP"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 abc\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: never ends", "no HTTP"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "answered 302"),
        (b"HTTP/1.1 421 Misdirected\r\n\r\n", r"421: its admin\.hosts"),
        (b"HTTP/1.1 " + b"9" * 5_000 + b"\r\n\r\n", "answered 999$"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2_000, "more than 1000 bytes"),
    ],
)
async def test_what_is_no_answer_is_said_to_be_none(said, why):
    async with peer(said) as address:
        with pytest.raises(UnavailableError, match=why):
            await ask(address, "/", bytes_max=1_000 if b"xx" in said else 9_999)


async def test_a_silent_peer_takes_as_long_as_the_bound():
    async with peer(None) as address:
        with pytest.raises(UnavailableError, match=r"no answer in 0\.05 s"):
            await ask(address, "/", seconds=0.05)


async def test_nobody_there_and_a_name_that_is_none_are_not_reached():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and nobody listens
        with pytest.raises(UnavailableError, match="not reached: Connection refused"):
            await ask(f"127.0.0.1:{free.getsockname()[1]}", "/")
    with pytest.raises(UnavailableError, match="not reached"):
        await ask("a" * 300 + ":80", "/", seconds=30)
