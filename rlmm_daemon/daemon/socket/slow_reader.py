"""A peer that does not read its answers: how long it is waited for."""

import asyncio

from rlmm_daemon.daemon.socket.limits import ServerOptions, ServerStats


class SlowReader:
    """Patience with one connection; it ends when nothing was read in `slow_reader_seconds`."""

    def __init__(
        self, transport: asyncio.Transport, options: ServerOptions, stats: ServerStats
    ) -> None:
        self._transport, self._options, self._stats = transport, options, stats
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def wait(self) -> None:
        """Begin to wait until the peer takes some of what waits for it."""
        self._wait_for_reader(self._transport.get_write_buffer_size())

    def wait_for_close(self) -> None:
        """Cut off a peer that does not even read why it is closed."""
        self._timer = self._loop.call_later(self._options.hello_seconds, self._transport.abort)

    def _wait_for_reader(self, waiting_bytes: int) -> None:
        seconds = self._options.slow_reader_seconds
        self._timer = self._loop.call_later(seconds, self._check_reader, waiting_bytes)

    def _check_reader(self, waiting_before: int) -> None:
        waiting = self._transport.get_write_buffer_size()
        if waiting < waiting_before:
            self._wait_for_reader(waiting)
            return
        self._stats.slow_readers_closed += 1
        self._transport.abort()

    def end(self) -> None:
        """Wait no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
