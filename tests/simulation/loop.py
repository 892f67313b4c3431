"""An asyncio event loop without a selector: virtual time, seeded legal orders, death at a step.

Task, Future, TaskGroup, timeout and Queue stay CPython's own. What is replaced is only what a
selector loop takes from outside: time (it jumps to the next timer), readiness (there is none) and
threads (forbidden). The orders never go beyond what asyncio leaves open: plain callbacks keep
their documented first-in first-out order, only task steps of one iteration change places.
"""

import asyncio
import contextlib
import enum
import heapq
import random
import sys
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextvars import Context
from typing import Any, Final, NoReturn, Protocol, TypeVar

T = TypeVar("T")

#: Virtual seconds that one step takes, so that a busy loop cannot stop the clock.
STEP_SECONDS: Final = 1e-6
TAIL_STEPS_MAX: Final = 400
#: `TaskGroup.__aexit__` awaits once more for each `close()` of its coroutine.
CLOSES_MAX: Final = 50


class Order(enum.Enum):
    """How ready handles of one iteration change places. Each is legal for asyncio."""

    #: None do; only delays and faults vary.
    FIFO = "fifo"
    #: Tasks that a future woke, among the places of such tasks.
    WAKEUPS = "wakeups"
    #: All task steps, starts included: "create_task, then sleep(0)" proves nothing any more.
    BATCH = "batch"


class SimulationEnd(BaseException):
    """A run ends here; a BaseException because no code under test may swallow it."""


class Crash(SimulationEnd):
    """The process dies between two steps."""


class Deadlock(SimulationEnd):
    """Nothing is ready and no timer is set, yet the main task is not done."""


class StepLimit(SimulationEnd):
    """The run did not end within its steps."""


class CallbackFailed(SimulationEnd):
    """A callback failed, or an exception was never retrieved."""


class Network(Protocol):
    """What the world outside answers to `create_connection`."""

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]: ...

    def end(self) -> None:
        """The process died: nothing is heard of it any more."""
        ...


class SimTask(asyncio.Task[Any]):
    """A task whose hash is its number, so that sets of tasks have one order in every process."""

    seq: int

    def __init__(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        loop: "SimLoop",
        seq: int,
        name: str | None,
        context: Context | None,
    ) -> None:
        self.seq = seq  # before super(): it puts this task into a WeakSet
        super().__init__(coro, loop=loop, name=name or f"t{seq}", context=context)

    def __hash__(self) -> int:
        return self.seq


class _LiveGenerators:
    """The started async generators in order of start; does not keep them alive."""

    def __init__(self) -> None:
        self._refs: dict[int, weakref.ref[AsyncGenerator[Any, Any]]] = {}

    def add(self, agen: AsyncGenerator[Any, Any]) -> None:
        self._refs[id(agen)] = weakref.ref(agen)

    def discard(self, agen: AsyncGenerator[Any, Any]) -> None:
        self._refs.pop(id(agen), None)

    def clear(self) -> None:
        self._refs.clear()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[AsyncGenerator[Any, Any]]:
        return (agen for ref in list(self._refs.values()) if (agen := ref()) is not None)


class SimLoop(asyncio.BaseEventLoop):
    """One process life. `rng` decides the order only; faults and delays belong to the ports."""

    # What the base class keeps and typeshed does not show.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(
        self,
        *,
        rng: random.Random,
        order: Order = Order.FIFO,
        start: float = 0.0,
        crash_at: int = -1,
        steps_max: int = 200_000,
        coarse_timers: bool = False,
    ) -> None:
        super().__init__()
        self._asyncgens = _LiveGenerators()
        self._rng = rng
        self._order = order
        self._now = start
        self._task_seq = 0
        #: Count of handles run; the process dies before step number `crash_at` (-1: never).
        self.steps = 0
        self.crash_at = crash_at
        self.steps_max = steps_max
        #: uvloop rounds timers to whole milliseconds and so may fire early.
        self.coarse_timers = coarse_timers
        self.trace = 0
        self.tail: deque[tuple[int, float, str]] = deque(maxlen=TAIL_STEPS_MAX)
        self.after_step: Callable[[], None] | None = None
        self.faults: list[dict[str, Any]] = []
        #: Whether work for threads is done, each in one piece; without it that fails loudly.
        self.threads = False
        #: What connections are made of; without it they fail loudly.
        self.network: Network | None = None
        self.abandoned = False
        self._thread = threading.get_ident()

    # -- what asyncio asks of a loop --

    def time(self) -> float:
        return self._now

    def create_task(  # type: ignore[override]  # typeshed's overload set says less than it means
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        if self.is_closed():
            raise RuntimeError("the loop is closed")
        self._task_seq += 1
        return SimTask(coro, loop=self, seq=self._task_seq, name=name, context=context)

    def call_at(  # type: ignore[override]  # Any for the arguments, as in the base class
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        if self.coarse_timers:
            when = max(self._now, round(when, 3))
        return super().call_at(when, callback, *args, context=context)

    def call_soon_threadsafe(  # type: ignore[override]  # as above
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._thread:
            raise RuntimeError("another thread called into the simulation")
        return self.call_soon(callback, *args, context=context)

    async def create_connection(  # type: ignore[override]  # of all its ways, the one that is used
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        if self.network is None:
            raise RuntimeError("this scenario has no network")
        return await self.network.connect(factory, host, port)

    def run_in_executor(  # type: ignore[override]  # any executor, as none is used
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        del executor
        if not self.threads:
            raise RuntimeError("threads are not simulated: go through a port")
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001  # whoever waits for the thread is told
                future.set_exception(error)

        self.call_soon(work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.abandoned:
            self.faults.append(context)

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        self._asyncgens.discard(agen)
        if not self.abandoned:
            self.call_soon(self.create_task, agen.aclose())

    def _process_events(self, event_list: Any) -> NoReturn:
        raise NotImplementedError("there is no selector")

    def _write_to_self(self) -> None:
        """Do nothing: no selector sleeps that would have to be woken."""

    # -- the heart --

    def _run_once(self) -> None:
        self._collect_due()
        batch = list(self._ready)
        self._ready.clear()
        for handle in self._permuted(batch):
            if not handle.cancelled():  # an earlier one of this batch may have cancelled it
                self._run_handle(handle)

    def _collect_due(self) -> None:
        timers = self._scheduled
        while timers and timers[0].cancelled():
            self._pop_timer()
        if not self._ready:
            if timers:
                self._now = max(self._now, timers[0].when())  # the jump
            elif not self._stopping:
                raise Deadlock(self.waiting())
        while timers and timers[0].when() <= self._now:
            self._ready.append(self._pop_timer())

    def _pop_timer(self) -> asyncio.TimerHandle:
        handle = heapq.heappop(self._scheduled)
        handle._scheduled = False  # type: ignore[attr-defined]  # the base class's own bookkeeping
        return handle

    def _run_handle(self, handle: asyncio.Handle) -> None:
        # Ends are raised here, between handles: inside one, a task would catch and keep them.
        if self.steps == self.crash_at:
            raise Crash(f"at step {self.steps}")
        if self.steps >= self.steps_max:
            raise StepLimit(self.waiting())
        self.steps += 1
        self._now += STEP_SECONDS
        task = _task_of(handle)
        self.mix(task.seq if task is not None else 0)
        if task is not None:
            self.tail.append((self.steps, self._now, task.get_name()))
        handle._run()
        if self.faults:
            raise CallbackFailed(_fault_text(self.faults[0]))
        if self.after_step is not None:
            self.after_step()

    def _permuted(self, batch: list[asyncio.Handle]) -> list[asyncio.Handle]:
        if self._order is Order.FIFO or len(batch) == 1:
            return batch
        movable = _is_task_step if self._order is Order.BATCH else _is_wakeup
        places = [place for place, handle in enumerate(batch) if movable(handle)]
        moved = [batch[place] for place in places]
        self._rng.shuffle(moved)
        for place, handle in zip(places, moved, strict=True):
            batch[place] = handle
        return batch

    # -- what the harness asks --

    def mix(self, number: int) -> None:
        """Fold a number and the present time into the trace hash."""
        self.trace = hash((self.trace, number, self._now))

    def note(self, text: str) -> None:
        """Leave a line in the trace tail that a failure prints."""
        self.tail.append((self.steps, self._now, text))

    def tail_text(self, lines: int = 60) -> str:
        """Return the newest lines of the trace, oldest first."""
        newest = list(self.tail)[-lines:]
        return "\n".join(f"  step {step:>6} at {now:12.6f} s  {text}" for step, now, text in newest)

    def waiting(self) -> str:
        """Return where each live task waits, one a line."""
        tasks = sorted(_tasks_of(self), key=lambda task: task.seq)
        return "\n".join(f"  {task.get_name()}: {_awaits(task.get_coro())}" for task in tasks)

    def abandon(self) -> None:
        """End this life: nothing scheduled runs any more, every task is closed where it stands.

        The ports must be dead by now: `finally` blocks run, but can no longer change the world.
        """
        self.abandoned = True
        if self.network is not None:
            self.network.end()
        tasks = sorted(_tasks_of(self), key=lambda task: task.seq)
        for name in ("call_soon", "call_soon_threadsafe", "call_at", "call_later"):
            setattr(self, name, self._drop)
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        previous = asyncio._get_running_loop()
        asyncio._set_running_loop(self)  # what dying code may still ask for
        try:
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # not a leak here
                _close(task.get_coro())
                # Dead tasks in reference cycles would slow every later `all_tasks`.
                asyncio.tasks._unregister_task(task)
            del tasks
            self._ready.clear()
            self._scheduled.clear()
            self.close()
        finally:
            asyncio._set_running_loop(previous)
            sys.unraisablehook = hook

    def _drop(self, *_: Any, **__: Any) -> asyncio.Handle:
        return asyncio.Handle(int, (), self)


def _task_of(handle: asyncio.Handle) -> SimTask | None:
    owner = getattr(getattr(handle, "_callback", None), "__self__", None)
    return owner if type(owner) is SimTask else None


def _is_task_step(handle: asyncio.Handle) -> bool:
    return _task_of(handle) is not None


def _is_wakeup(handle: asyncio.Handle) -> bool:
    """Tell a task that a future woke from one that starts or yielded bare."""
    callback: Any = handle._callback  # type: ignore[attr-defined]  # CPython names its step wrapper
    return _is_task_step(handle) and type(callback).__name__ != "TaskStepMethWrapper"


def _tasks_of(loop: SimLoop) -> list[SimTask]:
    return [task for task in asyncio.all_tasks(loop) if isinstance(task, SimTask)]


def _close(coro: Any) -> None:
    for _ in range(CLOSES_MAX):
        try:
            coro.close()
        except RuntimeError:  # "coroutine ignored GeneratorExit": it awaits in a finally block
            continue
        except BaseException:  # noqa: BLE001  # whatever dying code raises, it is dead
            pass
        return


def _awaits(coro: Any) -> str:
    names: list[str] = []
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "ag_frame", None)
        if frame is not None:
            names.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        coro = getattr(coro, "cr_await", None) or getattr(coro, "ag_await", None)
    return " > ".join(names) or "(not started)"


def _fault_text(context: dict[str, Any]) -> str:
    return f"{context.get('message')}: {context.get('exception')!r}"


@contextlib.contextmanager
def ended(loop: SimLoop) -> Iterator[SimLoop]:
    """Give the loop to a block and abandon it after, whatever happened."""
    try:
        yield loop
    finally:
        if not loop.is_closed():
            loop.abandon()
