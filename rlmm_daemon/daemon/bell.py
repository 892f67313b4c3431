"""A bell: whoever waits is woken by the next ring, and looks again for itself."""

import asyncio


class Bell:
    """Wakes every present waiter; remembers nothing, so look first and wait after."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    def ring(self) -> None:
        """Wake all who wait now."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self) -> None:
        """Return at the next ring."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            await future
        finally:
            self._waiting.pop(future, None)
