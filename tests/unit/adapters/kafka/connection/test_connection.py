"""A connection comes about within one bound, whatever the other side does or doesn't."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.errors import UnsupportedSaslMechanismError

from rlmm_daemon.adapters.kafka.connection.connection import Node, open_connection
from rlmm_daemon.adapters.kafka.connection.security import Security
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.secret import Secret

#: Of each single step as aiokafka bounds it: longer than any test waits.
STEP_SECONDS = 600.0
API_VERSIONS, SASL_HANDSHAKE = 18, 17
PLAINTEXT = Security(protocol="PLAINTEXT", tls=None, mechanism=None, username=None, password=None)
WAYS = {
    "ApiVersions": PLAINTEXT,
    "TLS": Security(
        protocol="SSL",
        tls=ssl.create_default_context(),
        mechanism=None,
        username=None,
        password=None,
    ),
    "SASL": Security(
        protocol="SASL_PLAINTEXT",
        tls=None,
        mechanism="PLAIN",
        username="rlmm",
        password=Secret("a-password"),
    ),
}


@asynccontextmanager
async def silent(left: list[bytes], *, after: int = 0) -> AsyncIterator[Node]:
    """A server that answers so many requests, as if each asked for ApiVersions, and then none.

    `left` is what came after those.
    """
    open_ones: list[asyncio.StreamWriter] = []

    async def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.append(writer)
        for _ in range(after):
            head = await reader.readexactly(12)
            size, api_key, _, correlation = struct.unpack(">ihhi", head)
            assert api_key == API_VERSIONS
            await reader.readexactly(size - 8)
            apis = [struct.pack(">hhh", key, 0, 1) for key in (17, 18, 36)]
            body = struct.pack(">ihi", correlation, 0, len(apis)) + b"".join(apis)
            writer.write(struct.pack(">i", len(body)) + body)
        while taken_in := await reader.read(65_536):
            left.append(taken_in)

    server = await asyncio.start_server(taken, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield Node(1, host, port)
    finally:
        for writer in open_ones:
            writer.close()
        server.close()


async def connect(node: Node, security: Security, **more: Any) -> None:
    await open_connection(
        node,
        security=security,
        client_id="test",
        connect_timeout_seconds=0.2,
        request_timeout_seconds=STEP_SECONDS,
        on_close=lambda _: None,
        **more,
    )


@pytest.mark.parametrize("step", WAYS)
async def test_a_silent_broker_is_left_whatever_step_it_is_silent_at(step: str) -> None:
    left: list[bytes] = []
    async with silent(left, after=step == "SASL") as node, asyncio.timeout(60):
        with pytest.raises(StorageUnavailable, match=r"broker 1 at .*: no answer in time"):
            await connect(node, WAYS[step])
    asked = {"ApiVersions": API_VERSIONS, "SASL": SASL_HANDSHAKE}.get(step)
    assert asked is None or struct.unpack_from(">h", left[0], 4) == (asked,)


async def test_a_mechanism_that_is_off_is_said_so_without_the_password() -> None:
    async def dial(*_: object, **__: object) -> Any:
        raise UnsupportedSaslMechanismError("Kafka broker does not support PLAIN sasl mechanism")

    with pytest.raises(StorageUnavailable, match="does not offer this SASL mechanism") as refused:
        await connect(Node(1, "127.0.0.1", 9), WAYS["SASL"], dial=dial)
    assert "a-password" not in repr(refused.value)
