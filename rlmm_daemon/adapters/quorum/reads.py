"""Reads that wait at one replica until it was shown that it leads still."""

import asyncio
from typing import Final

from rlmm_daemon.domain.errors import NotLeader, Overloaded

#: More are told to come back.
WAITING_MAX: Final = 4096


class Reads:
    """Those of one replica."""

    def __init__(self) -> None:
        self._tokens = 0
        self._waiting: dict[int, asyncio.Future[int]] = {}

    def add(self) -> tuple[int, asyncio.Future[int]]:
        """Return a read's token, and what will be the end that it sees; or NotLeader.

        Raises:
            Overloaded: too many wait.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise Overloaded(f"{len(self._waiting)} reads wait")
        self._tokens += 1
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[self._tokens] = future
        return self._tokens, future

    def answered(self, token: int, end: int) -> None:
        """Tell its caller how far the log is committed."""
        future = self._waiting.pop(token, None)
        if future is not None and not future.done():
            future.set_result(end)

    def refused(self, token: int, leader: int | None) -> None:
        """Tell its caller that this replica can't say."""
        known = "nobody is known to" if leader is None else f"replica {leader} does"
        self._fail(token, f"this replica can't show that it leads the quorum, {known}")

    def end(self) -> None:
        """Tell all callers that this replica ends."""
        for token in tuple(self._waiting):
            self._fail(token, "this replica ends")

    def _fail(self, token: int, why: str) -> None:
        future = self._waiting.pop(token, None)
        if future is not None and not future.done():
            future.set_exception(NotLeader(why))
