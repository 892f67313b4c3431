"""One piece of work per key, or per part of a key's matter, shared by all who want it.

The work runs in a task of its own, so whoever stops waiting stops nothing that others wait for.
When the last holder lets go it is cancelled, unless `goes_on` says that it is worth finishing.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from rlmm_daemon.domain.errors import Overloaded

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]


class Work(Protocol):
    """What a flight fills, and what its holders look at."""

    #: Kept by the flights alone.
    holders: int

    async def run(self) -> None:
        """Do the work. An error for the holders is kept in the work: one that is raised is a bug.

        Called once. May be cancelled before its first step.
        """
        ...

    def ended(self) -> None:
        """Wake the holders: `run` is over, cancelled perhaps."""
        ...


K = TypeVar("K", bound=Hashable)
W = TypeVar("W", bound=Work)


def _never(_work: Any) -> bool:
    return False


def _always(_work: Any) -> bool:
    return True


class Hold(Generic[W]):
    """One holder's share in a piece of work; released once, by the end of a `with`."""

    def __init__(self, work: W, release: Callable[[], None]) -> None:
        self.work = work
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Let go; idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class SingleFlight(Generic[K, W]):
    """The work in progress, by key."""

    def __init__(
        self,
        spawn: Spawn,
        name: str,
        *,
        flights_max: int,
        goes_on: Callable[[W], bool] = _never,
    ) -> None:
        self._spawn, self._name = spawn, name
        self._flights_max, self._goes_on = flights_max, goes_on
        #: What can be joined, oldest first.
        self._listed: dict[K, list[W]] = {}
        self._tasks: dict[W, tuple[K, asyncio.Task[None]]] = {}

    def __len__(self) -> int:
        """Return how many run, those that nobody can join any more included."""
        return len(self._tasks)

    def find(self, key: K, *, fits: Callable[[W], bool] = _always) -> W | None:
        """Return the work that the next to join would share, if there is any: the newest."""
        return next(filter(fits, reversed(self._listed.get(key, ()))), None)

    def join(
        self, key: K, begin: Callable[[], W], *, fits: Callable[[W], bool] = _always
    ) -> Hold[W]:
        """Hold the work in progress, or begin one if there is none that `fits`.

        Raises:
            Overloaded: as much is in progress as may be.
        """
        work = self.find(key, fits=fits)
        if work is None:
            if len(self._tasks) >= self._flights_max:
                raise Overloaded(f"{self._flights_max} reads of the storage are in progress")
            work = self._begin(key, begin())
        work.holders += 1
        joined = work
        return Hold(joined, lambda: self._let_go(joined))

    def cancel(self, chosen: Callable[[K], bool]) -> None:
        """Cancel the work of these keys; nobody joins it any more, its holders are woken."""
        for work, (key, task) in list(self._tasks.items()):
            if chosen(key):
                self._unlist(key, work)
                task.cancel()

    def _begin(self, key: K, work: W) -> W:
        task = self._spawn(work.run(), self._name)
        self._listed.setdefault(key, []).append(work)
        self._tasks[work] = (key, task)

        def over(_task: asyncio.Task[None]) -> None:
            self._unlist(key, work)
            del self._tasks[work]
            work.ended()

        task.add_done_callback(over)
        return work

    def _let_go(self, work: W) -> None:
        work.holders -= 1
        if work.holders or work not in self._tasks or self._goes_on(work):
            return
        key, task = self._tasks[work]
        self._unlist(key, work)
        task.cancel()

    def _unlist(self, key: K, work: W) -> None:
        listed = self._listed.get(key, [])
        if work in listed:
            listed.remove(work)
            if not listed:
                del self._listed[key]
