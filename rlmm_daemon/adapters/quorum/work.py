"""Work on a replica's files that is done between two steps: nothing else changes them meanwhile."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rlmm_daemon.domain.errors import InvalidArgument

T = TypeVar("T")


class Work:
    """What is due, in its order."""

    def __init__(self) -> None:
        self._due: deque[Callable[[], Awaitable[None]]] = deque()

    @property
    def is_due(self) -> bool:
        """Whether something waits."""
        return bool(self._due)

    async def done(self, work: Callable[[], Awaitable[T]], tell: Callable[[], None]) -> T:
        """Return what comes of it, once its turn came; `tell` that it waits."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def do() -> None:
            try:
                found = await work()
            except InvalidArgument as error:  # it was refused before anything was changed
                if not result.done():
                    result.set_exception(error)
            except BaseException:
                result.cancel()
                raise
            else:
                if not result.done():
                    result.set_result(found)

        self._due.append(do)
        tell()
        return await result

    async def do_all(self) -> None:
        """Do what waits; an error ends whoever does it, unless the work was refused."""
        while self._due:
            await self._due.popleft()()
