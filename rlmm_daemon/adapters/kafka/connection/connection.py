"""A connection to a broker: opened in bounded time, asked in bounded time, closed on doubt."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiokafka.conn import AIOKafkaConnection, create_conn

from rlmm_daemon.adapters.kafka.connection.errors import TRANSPORT_ERRORS, transport_error
from rlmm_daemon.adapters.kafka.connection.requests import Pinned
from rlmm_daemon.adapters.kafka.connection.security import Security

# At DEBUG it prints every answer, records included.
logging.getLogger("aiokafka").setLevel(logging.INFO)

#: Opens a vendor connection; tests put a proxy's address in between.
Dial = Callable[..., Awaitable[AIOKafkaConnection]]


class Node(msgspec.Struct, frozen=True):
    """A broker's address; the id is -1 where only the bootstrap address is known."""

    node_id: int
    host: str
    port: int

    def __str__(self) -> str:
        who = f"broker {self.node_id}" if self.node_id >= 0 else "broker"
        return f"{who} at {self.host}:{self.port}"


class Connection:
    """A broker serves a connection one request at a time: nothing else may share a long poll."""

    def __init__(
        self, node: Node, vendor: AIOKafkaConnection, on_close: Callable[["Connection"], None]
    ) -> None:
        self.node = node
        self._vendor = vendor
        self._on_close = on_close
        self._closed = False

    @property
    def usable(self) -> bool:
        """Whether a request may still be answered."""
        return not self._closed and bool(self._vendor.connected())

    def speaks(self, api_key: int, version: int) -> bool:
        """Return whether the broker offers this version of an api."""
        low, high = self._vendor._versions.get(api_key, (0, -1))  # noqa: SLF001 - no accessor
        return bool(low <= version <= high)

    async def ask(self, request: Pinned, *, timeout_seconds: float) -> Any:
        """Return the answer.

        After a time-out the connection is closed: the answer might still come, and everything
        else would queue behind it. Cancelling leaves the connection usable, but the next request
        waits for the abandoned one: whoever cancels a long poll should close.

        Raises:
            StorageUnavailable: no answer; the request may have been carried out.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._vendor.send(request)
        except TRANSPORT_ERRORS as error:
            self.close()
            raise transport_error(error, f"{type(request).__name__} to {self.node}") from error

    def close(self) -> None:
        """Close at once; requests in flight fail. Idempotent."""
        if not self._closed:
            self._closed = True
            # A TLS transport that is only closed waits up to half a minute for its peer's farewell.
            writer = self._vendor._writer  # noqa: SLF001 - no accessor
            self._vendor.close()
            if writer is not None:
                writer.transport.abort()
            self._on_close(self)


async def open_connection(
    node: Node,
    *,
    dial: Dial = create_conn,
    security: Security,
    client_id: str,
    connect_timeout_seconds: float,
    request_timeout_seconds: float,
    on_close: Callable[[Connection], None],
) -> Connection:
    """Return a connection that has authenticated.

    aiokafka bounds connect, handshake and each SASL step separately; here all have one bound.

    Raises:
        StorageUnavailable: refused, not in time, or not authenticated.
    """
    try:
        async with asyncio.timeout(connect_timeout_seconds):
            vendor = await dial(
                node.host,
                node.port,
                client_id=client_id,
                request_timeout_ms=int(request_timeout_seconds * 1000),
                **security.arguments(),
            )
    except TRANSPORT_ERRORS as error:
        raise transport_error(error, f"connecting to {node}") from error
    return Connection(node, vendor, on_close)
