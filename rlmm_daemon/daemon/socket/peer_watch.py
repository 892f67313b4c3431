"""The peer of a bulk connection while the storage is waited for: has it left?

A broker's reader leaves after half a second, and asks again on another connection. Without a look
at the one that it left, its request would live until its deadline; enough of them keep everybody
else out of the socket.
"""

import asyncio
import socket
from collections.abc import Awaitable
from typing import Final, TypeVar

from rlmm_daemon.codec import frames

#: The storage is mostly quicker than this, and then nobody is watched.
WATCHED_AFTER_SECONDS: Final = 0.1
#: How long the storage is waited for after the peer has left: it asks again, and then finds the
#: same download on its way. Without that, whatever takes longer than the peer's patience would
#: begin anew each time and never be read.
LEFT_SECONDS: Final = 3.0
#: What is kept of requests that come meanwhile.
KEPT_BYTES: Final = 64 * 1024

T = TypeVar("T")


async def while_wanted(
    work: Awaitable[T], connection: socket.socket, splitter: frames.Splitter
) -> T:
    """Return what `work` comes to; nobody else may read from the connection meanwhile.

    Raises:
        ConnectionResetError: the peer has left, and for a while nothing came.
    """
    limit = asyncio.timeout(None)
    watch = _Watch(asyncio.get_running_loop(), connection, splitter, limit)
    try:
        async with limit:
            return await work
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise ConnectionResetError("the peer left while the storage was waited for") from error
    finally:
        watch.end()


class _Watch:
    """Looks for the end of a connection on which nothing is read otherwise.

    Bytes may come: the peer's next request, in front of which it passes over the rest of this
    answer. They are kept for it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: socket.socket,
        splitter: frames.Splitter,
        limit: asyncio.Timeout,
    ) -> None:
        self._loop, self._socket, self._splitter = loop, connection, splitter
        self._limit = limit
        self._reading = False
        self._later = loop.call_later(WATCHED_AFTER_SECONDS, self._begin)

    def end(self) -> None:
        """Leave the connection to whoever reads it next."""
        self._later.cancel()
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._socket.fileno())

    def _begin(self) -> None:
        if len(self._splitter) < KEPT_BYTES:  # else the peer has said more than enough
            self._reading = True
            self._loop.add_reader(self._socket.fileno(), self._look)

    def _look(self) -> None:
        try:
            chunk = self._socket.recv(KEPT_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._limit.reschedule(self._loop.time() + LEFT_SECONDS)
            self.end()
            return
        self._splitter.feed(chunk)
        if len(self._splitter) >= KEPT_BYTES:
            self.end()
