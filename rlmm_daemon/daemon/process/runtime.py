"""The process's tasks under one roof: named, counted, and ended together.

Stop and fail take the same path: something leaves the task group, every task is cancelled, every
resource around the group is given back. A stop (SIGTERM, SIGINT) first drains: hooks run in order
under one deadline while the tasks still serve; a second signal cuts the drain short. A bug, or a
task that ends unbidden, ends the process with a non-zero code, and systemd starts it again.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import msgspec
import structlog
import uvloop

from rlmm_daemon.daemon.base.crash_guard import CrashGuard, blamed
from rlmm_daemon.daemon.process.loop_lag import LoopLag
from rlmm_daemon.daemon.process.systemd import Notifier
from rlmm_daemon.domain.errors import ConfigError, RlmmError
from rlmm_daemon.observability.metrics import Metrics

_log = structlog.get_logger(__name__)
EXIT_CLEAN: Final = 0
EXIT_FAILED: Final = 1
EXIT_CONFIG: Final = 78
#: Threads do file IO, hashing and fdatasync: they should get the interpreter soon.
_SWITCH_INTERVAL_SECONDS: Final = 0.0005

Hook = Callable[[], Awaitable[object]]


class Stopping(Exception):
    """An order, not a fault: it ends the task group of a daemon that was asked to stop."""


class TaskEnded(Exception):
    """A task that should run as long as the process returned: a bug."""


class TaskFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One task as `rlmm status` shows it."""

    name: str
    running_seconds: float


class Runtime:
    """Starts, watches and ends what runs in one daemon."""

    def __init__(
        self,
        *,
        metrics: Metrics,
        notifier: Notifier,
        drain_seconds: float,
        watchdog_lag_seconds_max: float,
        guard: CrashGuard | None = None,
    ) -> None:
        self._metrics = metrics.process
        self._notifier = notifier
        self._guard = guard
        self._drain_seconds = drain_seconds
        self._lag_seconds_max = watchdog_lag_seconds_max
        self._group: asyncio.TaskGroup | None = None
        self._started: dict[asyncio.Task[None], float] = {}
        self._stop, self._hurry, self._reload = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._drain_hooks: list[tuple[str, Hook]] = []
        self._reload_hooks: list[tuple[str, Hook]] = []
        self.loop_lag = LoopLag(self._metrics, lambda: asyncio.get_running_loop().time())

    @property
    def stopping(self) -> bool:
        """Whether a stop was ordered."""
        return self._stop.is_set()

    def on_drain(self, name: str, hook: Hook) -> None:
        """Run `hook` at a stop, after those registered before it and under the same deadline."""
        self._drain_hooks.append((name, hook))

    def on_reload(self, name: str, hook: Hook) -> None:
        """Run `hook` at SIGHUP; an error of ours is logged and the old settings stay."""
        self._reload_hooks.append((name, hook))

    def stop(self, reason: str) -> None:
        """Order a stop; ordered twice, the drain is cut short."""
        (self._hurry if self.stopping else self._stop).set()
        _log.info("stopping", reason=reason, drain=not self._hurry.is_set())

    def reload(self) -> None:
        """Order the reload hooks to run."""
        self._reload.set()

    def ready(self, status: str) -> None:
        """Tell systemd that the socket answers, whatever the answers are."""
        self._notifier.notify("READY=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        """Show one line in `systemctl status`."""
        self._notifier.notify(f"STATUS={text}")

    def spawn(
        self, name: str, work: Coroutine[Any, Any, None], *, may_end: bool = False
    ) -> asyncio.Task[None]:
        """Start a task; its failure, or its end unless `may_end`, ends the process.

        Number names by a trailing `.N`: `follower.7` counts under `follower` in the metrics.
        """
        assert self._group is not None, "tasks start inside `running`"
        task = self._group.create_task(self._watched(name, work, may_end=may_end), name=name)
        family = name.rpartition(".")[0] if name.rpartition(".")[2].isdecimal() else name
        self._metrics.tasks.labels(family).inc()
        self._started[task] = asyncio.get_running_loop().time()
        task.add_done_callback(self._started.pop)
        task.add_done_callback(lambda _: self._metrics.tasks.labels(family).dec())
        return task

    def tasks(self) -> list[TaskFacts]:
        """Return what runs, by name."""
        now = asyncio.get_running_loop().time()
        return sorted(
            (
                TaskFacts(name=task.get_name(), running_seconds=now - started)
                for task, started in self._started.items()
            ),
            key=lambda facts: facts.name,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold the task group open: the body starts tasks, then the block lasts until a stop.

        A failure leaves it as the group that `asyncio.TaskGroup` makes; a stop leaves it quietly.
        """
        try:
            with self._signals():
                async with asyncio.TaskGroup() as self._group:
                    self._spawn_own()
                    yield
                    await self._stop.wait()
                    self._notifier.notify("STOPPING=1", "STATUS=draining")
                    await self._drain()
                    raise Stopping
        except* Stopping:
            _log.info("stopped")
        except* Exception as failures:
            self._note_crash(failures)
            raise
        finally:
            self._group = None

    def _note_crash(self, error: BaseException) -> None:
        if self._guard is not None:
            for partition in sorted(blamed(error)):
                self._guard.note(partition)

    def _spawn_own(self) -> None:
        self.spawn("runtime.loop_lag", self.loop_lag.run())
        self.spawn("runtime.reload", self._reload_forever())
        self.spawn(
            "runtime.watchdog",
            self._notifier.feed_watchdog(lambda: self.loop_lag.sane(self._lag_seconds_max)),
            may_end=True,
        )

    async def _watched(self, name: str, work: Coroutine[Any, Any, None], *, may_end: bool) -> None:
        await work
        if not may_end and not self.stopping:
            raise TaskEnded(f"task {name} ended unbidden")

    async def _drain(self) -> None:
        """Run the drain hooks until they are done, the deadline passes, or a second signal.

        A hook's own error is logged and the next hook runs; a bug leaves at once.
        """
        current = "nothing"
        try:
            async with asyncio.timeout(self._drain_seconds), asyncio.TaskGroup() as group:
                hurry = group.create_task(self._cut_short(), name="runtime.hurry")
                for name, hook in self._drain_hooks:
                    current = name
                    try:
                        await hook()
                    except RlmmError as error:
                        _log.warning("drain step failed", step=name, error=error.message)
                hurry.cancel()
        except* (TimeoutError, Stopping):
            _log.warning("drain cut short", step=current)

    async def _cut_short(self) -> None:
        await self._hurry.wait()
        raise Stopping

    async def _reload_forever(self) -> None:
        while True:
            await self._reload.wait()
            self._reload.clear()
            microseconds = int(asyncio.get_running_loop().time() * 1_000_000)
            self._notifier.notify("RELOADING=1", f"MONOTONIC_USEC={microseconds}")
            for name, hook in self._reload_hooks:
                await self._reload_one(name, hook)
            self._notifier.notify("READY=1")

    async def _reload_one(self, name: str, hook: Hook) -> None:
        try:
            await hook()
        except RlmmError as error:
            self._metrics.reloads.labels("failed").inc()
            _log.error("reload refused, the old settings stay", step=name, error=error.message)
        except Exception:  # noqa: BLE001 - it ends this order, as one request's ends the request
            self._metrics.reloads.labels("failed").inc()
            _log.exception("reload met a bug, the old settings stay", step=name)
        else:
            self._metrics.reloads.labels("ok").inc()
            _log.info("reloaded", step=name)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop, number.name)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)


def execute(main: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run `main` on uvloop and return the exit code: 0 stopped, 78 misconfigured, 1 failed."""
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    except* ConfigError as group:
        _log_failures(group)
        return_code = EXIT_CONFIG
    except* Exception as group:  # noqa: BLE001 - the last line of defence logs what it is
        _log_failures(group)
        return_code = EXIT_FAILED
    else:
        return_code = EXIT_CLEAN
    return return_code


def _log_failures(error: BaseException) -> None:
    """Log each failure of a group on its own: ours in a line, bugs with their traceback."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            _log_failures(each)
    elif isinstance(error, RlmmError):
        _log.critical("failed", error=error.wire_name(), message=error.message, **error.fields)
    else:
        partitions = sorted(blamed(error))
        _log.critical("crashed", partitions=partitions, exc_info=error)
