"""A client of one cluster: shared connections for questions, own ones on request."""

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any, Final

from aiokafka.conn import create_conn

from rlmm_daemon.adapters.kafka.connection.connection import (
    Connection,
    Dial,
    Node,
    open_connection,
)
from rlmm_daemon.adapters.kafka.connection.requests import Pinned
from rlmm_daemon.adapters.kafka.connection.security import Security
from rlmm_daemon.config import KafkaClient as ClientConfig
from rlmm_daemon.domain.errors import Draining, StorageUnavailable, UnavailableError

BOOTSTRAP: Final = -1


class KafkaClient:
    """Opens connections and keeps one per broker and purpose for whoever may share it."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        load_security: Callable[[], Security],
        luck: random.Random,
        dial: Dial = create_conn,
    ) -> None:
        self.config = config
        self.luck = luck
        self._load_security = load_security
        self._security: Security | None = None
        self._dial = dial
        self._bootstrap = [
            Node(BOOTSTRAP, address.rpartition(":")[0].strip("[]"), int(address.rpartition(":")[2]))
            for address in config.bootstrap
        ]
        #: As the newest metadata answer named them.
        self.nodes: dict[int, Node] = {}
        self._shared: dict[tuple[str, Node], Connection] = {}
        self._opening: dict[tuple[str, Node], asyncio.Lock] = {}
        #: A dict for its order, in which they are closed.
        self._open: dict[Connection, None] = {}
        self._closed = False
        #: Opened since the start; with back-off and jitter it grows slowly.
        self.opened_count = 0

    @property
    def connection_count(self) -> int:
        """Connections that are open now."""
        return len(self._open)

    @property
    def request_seconds(self) -> float:
        """How long a question may take."""
        return self.config.request_timeout_ms / 1000

    def reload(self) -> None:
        """Read certificates and secrets again, for the connections to come.

        Raises:
            ConfigError: something is not usable; what was in force stays so.
        """
        self._security = self._load_security()

    async def connect(self, node: Node, *, request_seconds: float | None = None) -> Connection:
        """Return a new connection that nobody shares; whoever asked closes it.

        Raises:
            UnavailableError: not now.
        """
        self._check_open()
        security = self._security
        if security is None:
            security = self._security = self._load_security()
        connection = await open_connection(
            node,
            dial=self._dial,
            security=security,
            client_id=self.config.client_id,
            connect_timeout_seconds=self.config.connect_timeout_ms / 1000,
            request_timeout_seconds=request_seconds or self.request_seconds,
            on_close=self._forget,
        )
        self.opened_count += 1
        self._open[connection] = None
        if self._closed:
            connection.close()
            self._check_open()
        return connection

    async def shared(self, node: Node, purpose: str = "questions") -> Connection:
        """Return the connection to a broker that everybody shares for one purpose.

        Raises:
            UnavailableError: not now.
        """
        key = (purpose, node)
        async with self._opening.setdefault(key, asyncio.Lock()):
            found = self._shared.get(key)
            if found is None or not found.usable:
                if found is not None:
                    found.close()
                found = self._shared[key] = await self.connect(node)
            return found

    async def ask(self, node: Node, request: Pinned, *, seconds: float | None = None) -> Any:
        """Return a broker's answer over the connection that is shared for questions.

        Raises:
            UnavailableError: no answer.
        """
        connection = await self.shared(node)
        return await connection.ask(request, timeout_seconds=seconds or self.request_seconds)

    async def ask_any(self, request: Pinned, *, seconds: float | None = None) -> tuple[Node, Any]:
        """Return the first answer that any broker gives, and who gave it; each is tried once.

        Raises:
            UnavailableError: none answered; the message is that of the last one.
        """
        last: UnavailableError = StorageUnavailable("no broker is known")
        for node in self._candidates():
            try:
                return node, await self.ask(node, request, seconds=seconds)
            except UnavailableError as error:
                self._check_open()
                last = error
        raise last

    def learn(self, nodes: Iterable[Node]) -> None:
        """Take up the brokers of a metadata answer; connections to others are closed."""
        self.nodes = {node.node_id: node for node in nodes}
        known = {*self.nodes.values(), *self._bootstrap}
        for key in [key for key in self._shared if key[1] not in known]:
            self._shared.pop(key).close()
            self._opening.pop(key, None)

    def close(self) -> None:
        """Close every connection, the dedicated ones included; idempotent."""
        self._closed = True
        self._shared.clear()
        for connection in list(self._open):
            connection.close()

    def reopen(self) -> None:
        """Allow connections again after `close`."""
        self._closed = False

    def _forget(self, connection: Connection) -> None:
        self._open.pop(connection, None)

    def _check_open(self) -> None:
        if self._closed:
            raise Draining("the event log is closed")

    def _candidates(self) -> list[Node]:
        """Brokers with a connection first, then the known ones in any order, then bootstrap."""
        connected = [key[1] for key, connection in self._shared.items() if connection.usable]
        known, first = list(self.nodes.values()), list(self._bootstrap)
        self.luck.shuffle(known)
        self.luck.shuffle(first)
        return list(dict.fromkeys([*connected, *known, *first]))
