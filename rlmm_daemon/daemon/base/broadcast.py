"""Wake-up of all who wait for a change; each looks again for itself."""

import asyncio


class Broadcast:
    """Wakes every present waiter; remembers nothing, so look first and wait after."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    def ring(self) -> None:
        """Wake all who wait now."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, *others: "Broadcast") -> None:
        """Return at the next ring, of this bell or of one of the others."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bells = (self, *others)
        for bell in bells:
            bell.enter(future)
        try:
            await future
        finally:
            for bell in bells:
                bell.leave(future)

    def enter(self, future: asyncio.Future[None]) -> None:
        """Let the next ring complete this."""
        self._waiting[future] = None

    def leave(self, future: asyncio.Future[None]) -> None:
        """Let no ring complete it any more."""
        self._waiting.pop(future, None)
