"""Limits of the cleaner: works at once, and deletes in a second, over all its tasks."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, TypeVar

from rlmm_daemon.daemon.cleaner.options import CleanerOptions
from rlmm_daemon.domain.errors import StorageUnavailable

LATE: Final = "the remote storage did not answer in time"
LATE_PAGE: Final = "a listing does not go on"

T = TypeVar("T")


class Pace:
    """Calls to the storage that are in flight, and segments a second."""

    def __init__(self, options: CleanerOptions, monotonic: Callable[[], float]) -> None:
        self._calls = asyncio.Semaphore(options.parallelism)
        self._seconds = options.storage_seconds
        #: 0: no limit.
        self._per_second, self._monotonic = options.segments_per_second_max, monotonic
        self._free_at = monotonic()

    async def take(self, segments: int) -> None:
        """Return when so many more segments may be deleted.

        Time is spent in advance: whoever takes more than is left waits before the work, not after.
        """
        if not self._per_second:
            return
        now = self._monotonic()
        begin = max(now, self._free_at)
        self._free_at = begin + segments / self._per_second
        if begin > now:
            await asyncio.sleep(begin - now)

    async def call(self, work: Callable[[], Awaitable[T]], late: str = LATE) -> T:
        """Do one call to the storage, when it is its turn; its time counts from then on.

        `work` makes no other one.

        Raises:
            StorageUnavailable: it did not answer in time; `late` says so.
        """
        async with self._calls:
            return await self.in_time(work, late)

    async def in_time(self, work: Callable[[], Awaitable[T]], late: str = LATE) -> T:
        """Do what mostly asks no storage, without a turn: a directory that hangs never answers.

        Raises:
            StorageUnavailable: as `call`.
        """
        try:
            async with asyncio.timeout(self._seconds):
                return await work()
        except TimeoutError as error:
            raise StorageUnavailable(late) from error

    async def pages(
        self, listing: AsyncGenerator[Sequence[T], None]
    ) -> AsyncGenerator[Sequence[T], None]:
        """Yield a listing's pages, each a call of its own: a listing may be long, no page may."""
        async with aclosing(listing):
            while (page := await self.call(lambda: anext(listing, None), LATE_PAGE)) is not None:
                yield page
