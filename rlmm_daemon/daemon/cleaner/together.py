"""A question shared by all who ask it while an earlier one is under way."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Generic, TypeVar

import msgspec

from rlmm_daemon.domain.errors import RlmmError

K = TypeVar("K")
V = TypeVar("V")


class _Asked(msgspec.Struct, Generic[K, V], eq=False):
    key: K
    #: One value, or what went wrong.
    answer: list[V] | RlmmError | None = None


class Together(Generic[K, V]):
    """Asks for everybody who waits; each answer was asked for after its caller wanted it."""

    def __init__(self, ask: Callable[[Collection[K]], Awaitable[Mapping[K, V]]]) -> None:
        """`ask` answers for every key that it is given."""
        self._ask = ask
        self._one = asyncio.Lock()
        self._waiting: list[_Asked[K, V]] = []

    async def of(self, key: K) -> V:
        """Return the answer for one key; raises what `ask` raises."""
        mine: _Asked[K, V] = _Asked(key)
        self._waiting.append(mine)
        try:
            async with self._one:
                if mine.answer is None:
                    await self._answer()
        finally:
            if mine in self._waiting:  # cancelled
                self._waiting.remove(mine)
        assert mine.answer is not None, "it waited before the question was asked"
        if isinstance(mine.answer, RlmmError):
            raise mine.answer
        return mine.answer[0]

    async def _answer(self) -> None:
        asked, self._waiting = self._waiting, []
        try:
            found = await self._ask(list(dict.fromkeys(each.key for each in asked)))
        except RlmmError as error:
            for each in asked:
                each.answer = error
        except BaseException:
            self._waiting = [*asked, *self._waiting]  # whoever is next asks
            raise
        else:
            for each in asked:
                each.answer = [found[each.key]]
