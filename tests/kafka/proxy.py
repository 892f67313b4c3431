"""A TCP proxy of ours before a broker: it records what is asked, and does what a bad network does.

It reads Kafka's frames (length, api key, version, correlation id) only to count and to choose
which connections a fault meets; the bytes go through as they are.
"""

import asyncio
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

FETCH: Final = 1
PRODUCE: Final = 0
#: Every request of Kafka's consumer groups, classic and new, and of share groups.
GROUP_APIS: Final = frozenset({8, 9, 10, 11, 12, 13, 14, 15, 16, 68, 69, 76, 77, 78, 79})
_HEAD: Final = struct.Struct(">ihhi")


@dataclass(slots=True, eq=False)
class Seen:
    """One connection through the proxy."""

    node_id: int
    requests: Counter[int] = field(default_factory=Counter)
    #: Of the requests that the faults' `applies` may look at: the newest, with its length.
    newest: bytes = b""
    writers: tuple[asyncio.StreamWriter, ...] = ()
    open: bool = True

    def cut(self) -> None:
        """Reset the connection, both ways, at once."""
        for writer in self.writers:
            writer.transport.abort()

    @property
    def fetches(self) -> bool:
        """Whether it is one of the connections that carry Fetch."""
        return self.requests[FETCH] > 0


Applies = Callable[[Seen], bool]


@dataclass(slots=True, eq=False)
class Proxy:
    """One listening port before one broker."""

    node_id: int
    port: int
    target: int
    connections: list[Seen] = field(default_factory=list)
    #: Answers of connections to which it applies are held back for so many seconds.
    delay_seconds: float = 0.0
    delayed: Applies = lambda _seen: False
    #: Nothing passes either way, and nobody is told.
    half_open: Applies = lambda _seen: False
    #: Asked at each answer; true once: the answer is dropped and the connection is reset.
    lose_answer: Applies = lambda _seen: False
    #: New connections are reset.
    refuse: bool = False
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def close(self) -> None:
        self.heal()
        if self._server is not None:
            self._server.close()
        for seen in self.connections:
            seen.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.wait(self._tasks) if self._tasks else None

    def heal(self) -> None:
        """No fault any more."""
        self.delay_seconds, self.refuse = 0.0, False
        self.delayed = self.half_open = self.lose_answer = lambda _seen: False

    def forget(self) -> None:
        """Forget the connections that are closed."""
        self.connections = [seen for seen in self.connections if seen.open]

    @property
    def fetching(self) -> list[Seen]:
        """Return the open connections that have carried Fetch."""
        return [seen for seen in self.connections if seen.open and seen.fetches]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            writer.transport.abort()
            return
        try:
            broker, to_broker = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        seen = Seen(self.node_id, writers=(writer, to_broker))
        self.connections.append(seen)
        ask = asyncio.ensure_future(self._requests(seen, reader, to_broker))  # noqa: TID251 - a server's tasks
        answer = asyncio.ensure_future(self._answers(seen, broker, writer))  # noqa: TID251 - a server's tasks
        self._tasks |= {ask, answer}
        try:
            await asyncio.wait({ask, answer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            seen.cut()
            seen.open = False
            for task in (ask, answer):
                task.cancel()
            await asyncio.wait({ask, answer})
            self._tasks -= {ask, answer}

    async def _requests(
        self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                head = await reader.readexactly(4)
                frame = await reader.readexactly(int.from_bytes(head, "big"))
                seen.newest = head + frame
                seen.requests[_HEAD.unpack_from(seen.newest)[1]] += 1
                await self._held(seen)
                writer.write(seen.newest)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            return

    async def _answers(
        self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                head = await reader.readexactly(4)
                frame = await reader.readexactly(int.from_bytes(head, "big"))
                if self.lose_answer(seen):
                    seen.cut()
                    return
                if self.delay_seconds and self.delayed(seen):
                    await asyncio.sleep(self.delay_seconds)
                await self._held(seen)
                writer.write(head + frame)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            return

    async def _held(self, seen: Seen) -> None:
        while self.half_open(seen):  # noqa: ASYNC110 - the fault is a test's plain attribute
            await asyncio.sleep(0.02)


def fetches_partition(partition: int) -> Applies:
    """Return whether a connection's newest request fetches this one metadata partition.

    Fetch v13 with one partition ends in: index, leader epoch, offset, last epoch, log start, bytes
    and three ends of structures; the index stands 16 + 2 bytes behind the request's topic count.
    """

    def applies(seen: Seen) -> bool:
        return seen.fetches and _fetched_partition(seen.newest) == partition

    return applies


def _fetched_partition(request: bytes) -> int | None:
    """Return the first partition of a flexible Fetch request of v13 to v17, or None."""
    _, key, version, _ = _HEAD.unpack_from(request)
    if key != FETCH or not 13 <= version <= 18:
        return None
    at = _HEAD.size
    client_id = int.from_bytes(request[at : at + 2], "big", signed=True)
    at += 2 + max(client_id, 0) + 1  # and no tags
    # replica id (v15 moved it into a tag), wait, min, max bytes, isolation, session id and epoch
    at += (4 if version < 15 else 0) + 4 + 4 + 4 + 1 + 4 + 4
    topics = request[at]
    if topics != 2:
        return None
    at += 1 + 16 + 1
    return int.from_bytes(request[at : at + 4], "big")
