"""Shared work: one piece for each key or part of it, for all who want it at once.

A key names one segment's matter, and a segment's work is cancelled in one go. Of a key's work only
the newest few are looked at, so that none of this takes long, however many readers there are: who
misses an older one does that part of the work once more.

The work runs in a task of its own, so whoever stops waiting stops nothing that others wait for.
When the last holder lets go it is cancelled, unless `goes_on` says that it is worth finishing.
"""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import islice
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.domain.errors import Overloaded, RlmmError
from rlmm_daemon.domain.ids import SegmentId

#: Of a key's work in progress.
LOOKED_AT_MAX: Final = 64

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]


class Work(Protocol):
    """What a flight fills, and what its holders look at."""

    #: Kept by the flights alone.
    holders: int
    #: What the holders are told.
    error: RlmmError | None

    async def run(self) -> None:
        """Do the work. An error for the holders is kept in the work.

        One that is raised is a bug, which the holders are told and nobody else.
        Called once. May be cancelled before its first step.
        """

    def ended(self) -> None:
        """Wake the holders: `run` is over, cancelled perhaps."""


class Key(Protocol):
    """What work is found by; hashable."""

    @property
    def segment_id(self) -> SegmentId:
        """Return the segment that it is a part of."""

    def __hash__(self) -> int: ...


K = TypeVar("K", bound=Key)
W = TypeVar("W", bound=Work)


def _never(_work: Any) -> bool:
    return False


def _always(_work: Any) -> bool:
    return True


class Share(Generic[W]):
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
        bugs: Bugs | None = None,
    ) -> None:
        self._spawn, self._name = spawn, name
        self._bugs = Bugs() if bugs is None else bugs
        self._flights_max, self._goes_on = flights_max, goes_on
        #: What can be joined, oldest first.
        self._listed: dict[K, dict[W, None]] = {}
        self._tasks: dict[W, tuple[K, asyncio.Task[None]]] = {}
        #: All that runs.
        self._of_segment: dict[SegmentId, dict[W, None]] = {}

    def __len__(self) -> int:
        """Return how many run, those that nobody can join any more included."""
        return len(self._tasks)

    def find(self, key: K, *, fits: Callable[[W], bool] = _always) -> W | None:
        """Return the newest work in progress that `fits`, if there is any among the newest."""
        newest = islice(reversed(self._listed.get(key, {})), LOOKED_AT_MAX)
        return next(filter(fits, newest), None)

    def join(self, key: K, begin: Callable[[], W]) -> Share[W]:
        """Hold the work in progress, or begin it.

        Raises:
            Overloaded: as much is in progress as may be.
        """
        work = self.find(key)
        return self.begin(key, begin()) if work is None else self.hold(work)

    def hold(self, work: W) -> Share[W]:
        """Hold what was just found."""
        work.holders += 1
        return Share(work, lambda: self._let_go(work))

    def begin(self, key: K, work: W) -> Share[W]:
        """Begin and hold.

        Raises:
            Overloaded: as much is in progress as may be.
        """
        if len(self._tasks) >= self._flights_max:
            raise Overloaded(f"{self._flights_max} reads of the storage are in progress")
        task = self._spawn(self._run(work), self._name)
        self._listed.setdefault(key, {})[work] = None
        self._of_segment.setdefault(key.segment_id, {})[work] = None
        self._tasks[work] = (key, task)

        def over(_task: asyncio.Task[None]) -> None:
            self._unlist(key, work)
            _discard(self._of_segment, key.segment_id, work)
            del self._tasks[work]
            work.ended()

        task.add_done_callback(over)
        return self.hold(work)

    async def _run(self, work: W) -> None:
        try:
            await work.run()
        except Exception as bug:  # noqa: BLE001 - it ends this work, and nothing else
            work.error = self._bugs.error_for(self._name, bug)

    def cancel(self, segment_id: SegmentId) -> None:
        """Cancel the work of a segment; nobody joins it any more, its holders are woken."""
        for work in self._of_segment.get(segment_id, {}):
            self._cancel(work)

    def _let_go(self, work: W) -> None:
        work.holders -= 1
        if not work.holders and work in self._tasks and not self._goes_on(work):
            self._cancel(work)

    def _cancel(self, work: W) -> None:
        key, task = self._tasks[work]
        self._unlist(key, work)
        task.cancel()

    def _unlist(self, key: K, work: W) -> None:
        _discard(self._listed, key, work)


def _discard(listed: dict[Any, dict[W, None]], key: Any, work: W) -> None:
    works = listed.get(key, {})
    works.pop(work, None)
    if not works:
        listed.pop(key, None)
