import asyncio
import errno
import socket
from contextlib import suppress

import aiohttp
import pytest

from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.daemon.operator.admin import AdminServer, Ready
from rlmm_daemon.daemon.operator.http_get import Page
from rlmm_daemon.domain.errors import UnavailableError
from rlmm_daemon.observability.metrics import Metrics


async def get(server: AdminServer, path: str) -> tuple[int, str, str]:
    assert server.address is not None
    host, port = server.address
    async with aiohttp.ClientSession() as http, http.get(f"http://{host}:{port}{path}") as answer:
        return answer.status, answer.content_type, await answer.text()


async def test_the_three_pages_say_what_they_should():
    metrics = Metrics()
    metrics.socket.requests.count("is_ready", "ok", by=3)
    facts = Ready(ready=False, facts={"partitions": {"replaying": 2}})
    async with AdminServer("127.0.0.1:0", metrics, lambda: facts) as server:
        await server.serve()
        assert await get(server, "/healthz") == (200, "text/plain", "ok\n")
        status, kind, body = await get(server, "/readyz")
        assert (status, kind) == (503, "application/json")
        assert body == '{"ready":false,"partitions":{"replaying":2}}'
        facts = Ready(ready=True)
        assert (await get(server, "/readyz"))[0] == 200
        status, kind, body = await get(server, "/metrics")
        assert (status, kind) == (200, "text/plain")
        assert 'rlmm_requests_total{method="is_ready",outcome="ok"} 3.0' in body
        assert (await get(server, "/other"))[0] == 404


async def test_a_port_in_use_is_our_error_and_names_the_key():
    metrics = Metrics()
    async with AdminServer("127.0.0.1:0", metrics, lambda: Ready(ready=True)) as server:
        assert server.address is not None
        second = AdminServer(f"127.0.0.1:{server.address[1]}", metrics, lambda: Ready(ready=True))
        with pytest.raises(UnavailableError, match=r"admin\.listen"):
            await second.__aenter__()


async def test_an_empty_address_listens_nowhere():
    async with AdminServer("", Metrics(), lambda: Ready(ready=True)) as server:
        assert server.address is None
        await server.serve()


async def test_whoever_asks_before_it_serves_is_answered_then():
    async with AdminServer("127.0.0.1:0", Metrics(), lambda: Ready(ready=True)) as server:
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(get(server, "/healthz"))
            await asyncio.sleep(0)
            await server.serve()
        assert asking.result()[2] == "ok\n"


@pytest.mark.parametrize("absent", [(), ("127.0.0.2",), ("127.0.0.2", "127.0.0.3")])
async def test_a_name_is_listened_to_on_each_of_its_addresses_that_is_there(monkeypatch, absent):
    real = socket.create_server

    async def found(_self, _host, port, **_):
        both = ("127.0.0.2", "127.0.0.3")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in both]

    def listening(address, **options):
        if address[0] in absent:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return real(address, **options)

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", found)
    monkeypatch.setattr(socket, "create_server", listening)
    server = AdminServer("name:0", Metrics(), lambda: Ready(ready=True))
    if len(absent) == 2:
        with pytest.raises(UnavailableError, match="Cannot assign"):
            await server.__aenter__()
        return
    async with server:
        assert len(server._sockets) == 2 - len(absent)
        monkeypatch.undo()
        await server.serve()
        assert (await get(server, "/healthz"))[2] == "ok\n"


async def connect(server: AdminServer, said: bytes = b""):
    assert server.address is not None
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(said)
    return reader, writer


async def test_half_a_request_is_held_briefly_and_keeps_nobody_out():
    async with AdminServer("127.0.0.1:0", Metrics(), lambda: Ready(ready=True)) as server:
        server._http.head_seconds = 0.3
        server._http.connections_max = 20
        await server.serve()
        half = [await connect(server, b"GET /metrics HTTP/1.1\r\nX: ") for _ in range(20)]
        reader, writer = await connect(server, b"GET /healthz HTTP/1.1\r\n\r\n")
        assert b" 503 " in await reader.readline()
        writer.close()
        for reader, writer in half:
            assert await reader.read() == b""
            writer.close()
        assert (await get(server, "/healthz"))[2] == "ok\n"
        assert not server._http.open


async def test_of_four_hundred_half_requests_a_few_are_held_and_all_end():
    async with AdminServer("127.0.0.1:0", Metrics(), lambda: Ready(ready=True)) as server:
        server._http.head_seconds = 0.3
        await server.serve()
        half = [await connect(server, b"GET /metrics HTTP/1.1\r\nX: ") for _ in range(400)]
        assert len(server._http.open) <= server._http.connections_max < 400
        for reader, writer in half:
            with suppress(ConnectionError):  # its half was not read
                assert not (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()
        assert not server._http.open
        assert (await get(server, "/healthz"))[2] == "ok\n"


async def test_an_answer_that_nobody_reads_is_given_up():
    async with AdminServer("127.0.0.1:0", Metrics(), lambda: Ready(ready=True)) as server:
        server._http.answer_seconds = 0.1
        server._http.pages = {"/": lambda: Page(body=b"x" * 2**26, content_type="text/plain")}
        await server.serve()
        reader, writer = await connect(server, b"GET / HTTP/1.1\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        while server._http.open:  # noqa: ASYNC110 - only the server knows when it gave up
            await asyncio.sleep(0.01)
        writer.close()


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"GET /healthz?x=1 HTTP/1.1\r\nHost: \xff\r\n\r\n", 200),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", 200),
        (b"POST /healthz HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"GET /" + b"x" * 20_000, 431),
        (b"GET /bug HTTP/1.1\r\n\r\n", 500),
    ],
)
async def test_whatever_is_said_is_answered_and_the_connection_closed(said, status):
    bugs = Bugs()
    async with AdminServer("127.0.0.1:0", Metrics(), lambda: Ready(ready=True), bugs) as server:
        server._http.pages = {**server._http.pages, "/bug": lambda: 1 // 0}  # type: ignore[return-value, dict-item]
        await server.serve()
        reader, writer = await connect(server, said)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert (not body) == said.startswith(b"HEAD")
        assert (await get(server, "/healthz"))[2] == "ok\n"
        assert bugs.counts.total() == (status == 500)
