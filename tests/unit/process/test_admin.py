import asyncio
import errno
import socket

import aiohttp
import pytest

from rlmm_daemon.daemon.admin import AdminServer, Ready
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
