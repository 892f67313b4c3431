"""Questions to a leader, shared by those who ask while another is under way, and sent after it.

Fifty partitions begin at once, and each has to know where the log ends now.
"""

import asyncio
from collections.abc import Awaitable, Callable

from rlmm_daemon.domain.errors import RlmmError, StorageUnavailable


class SharedQuestion:
    """Those that are open."""

    def __init__(self, ask: Callable[[], Awaitable[int]]) -> None:
        self._ask = ask
        self._asking = asyncio.Lock()
        #: The answer of the next one, which was not sent yet.
        self._next: asyncio.Future[int] | None = None

    async def answer(self) -> int:
        """Return the answer to a question that is sent after this call.

        Raises:
            RlmmError: as what asks.
            StorageUnavailable: whoever asked for all was cancelled.
        """
        shared = self._next
        if shared is not None:
            return await asyncio.shield(shared)
        self._next = shared = asyncio.get_running_loop().create_future()
        try:
            async with self._asking:
                self._next = None
                found = await self._ask()
        except BaseException as error:
            if self._next is shared:
                self._next = None
            left = StorageUnavailable("whoever asked for the log's end has left")
            shared.set_exception(error if isinstance(error, RlmmError) else left)
            shared.exception()  # there may be nobody else
            raise
        shared.set_result(found)
        return found
