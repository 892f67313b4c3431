"""The process in a subprocess and in this loop: stop, drain, failure, reload, crash notes."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from rlmm_daemon.daemon.base.crash_guard import CrashGuard, blame
from rlmm_daemon.daemon.process.runtime import Runtime, TaskEnded
from rlmm_daemon.daemon.process.systemd import Notifier
from rlmm_daemon.domain.errors import ConfigError, StorageFull
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.observability.metrics import Metrics

CHILD = """
import asyncio, sys
from rlmm_daemon.daemon.process.runtime import Runtime, execute
from rlmm_daemon.daemon.process.systemd import Notifier
from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.observability.logging import configure
from rlmm_daemon.observability.metrics import Metrics

configure(level="info", style="json")
kind = sys.argv[1]

async def bug():
    raise ZeroDivisionError("planted")

async def drain():
    print("drained", flush=True)
    if kind == "slow":
        await asyncio.Event().wait()

async def main():
    if kind == "config":
        raise ConfigError("planted")
    runtime = Runtime(metrics=Metrics(), notifier=Notifier(), drain_seconds=60,
                      watchdog_lag_seconds_max=5)
    runtime.on_drain("test", drain)
    try:
        async with runtime.running():
            if kind == "bug":
                runtime.spawn("bug", bug())
            print(type(asyncio.get_running_loop()).__module__, flush=True)
    finally:
        print("closed", flush=True)

sys.exit(execute(main))
"""


async def child(kind: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CHILD,
        kind,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_ends_with_0(number: signal.Signals):
    process = await child("plain")
    assert await line(process) == "uvloop"
    process.send_signal(number)
    out, err = await process.communicate()
    assert out.split() == [b"drained", b"closed"], err
    assert process.returncode == 0


async def test_a_second_signal_cuts_the_drain_short():
    process = await child("slow")
    await line(process)
    process.terminate()
    assert await line(process) == "drained"
    process.terminate()
    out, err = await process.communicate()
    assert out.split() == [b"closed"]
    assert b"drain cut short" in err
    assert process.returncode == 0


async def test_a_bug_in_a_task_is_logged_and_ends_the_process_with_1():
    process = await child("bug")
    out, err = await process.communicate()
    assert b"closed" in out
    assert b"ZeroDivisionError: planted" in err
    assert process.returncode == 1


async def test_a_configuration_error_ends_the_process_with_78():
    process = await child("config")
    _, err = await process.communicate()
    assert b'"message": "planted"' in err
    assert b"Traceback" not in err
    assert process.returncode == 78


def runtime(guard: CrashGuard | None = None, drain_seconds: float = 60) -> Runtime:
    return Runtime(
        metrics=Metrics(),
        notifier=Notifier(),
        drain_seconds=drain_seconds,
        watchdog_lag_seconds_max=5,
        guard=guard,
    )


async def forever() -> None:
    await asyncio.Event().wait()


async def at_once() -> None:
    pass


async def test_each_task_has_a_name_and_counts_under_its_family():
    metrics = Metrics()
    own = Runtime(metrics=metrics, notifier=Notifier(), drain_seconds=1, watchdog_lag_seconds_max=5)
    async with own.running():
        own.spawn("follower.1", forever())
        own.spawn("follower.2", forever())
        names = [facts.name for facts in own.tasks()]
        assert {"follower.1", "follower.2", "runtime.loop_lag"} <= set(names)
        assert metrics.registry.get_sample_value("rlmm_tasks", {"task": "follower"}) == 2
        own.stop("test")
    assert metrics.registry.get_sample_value("rlmm_tasks", {"task": "follower"}) == 0
    assert own.tasks() == []


async def test_a_task_that_ends_unbidden_ends_the_process():
    own = runtime()
    with pytest.raises(ExceptionGroup) as failure:
        async with own.running():
            own.spawn("server", at_once())
    assert failure.group_contains(TaskEnded, match="server ended unbidden")


async def test_a_task_that_may_end_ends_nothing():
    own = runtime()
    async with own.running():
        await own.spawn("once", at_once(), may_end=True)
        own.stop("test")


async def test_drain_steps_run_in_order_and_one_that_fails_stops_no_other():
    own, steps = runtime(), []

    async def full() -> None:
        steps.append("full")
        raise StorageFull

    async def last() -> None:
        steps.append("last")

    own.on_drain("full", full)
    own.on_drain("last", last)
    async with own.running():
        own.stop("test")
    assert steps == ["full", "last"]


async def test_a_drain_step_that_never_ends_meets_the_deadline():
    own = runtime(drain_seconds=0.01)
    own.on_drain("stuck", forever)
    async with own.running():
        own.stop("test")


async def test_a_bug_in_a_drain_step_is_not_hidden_by_the_stop():
    own = runtime()

    async def bug() -> None:
        raise ZeroDivisionError

    own.on_drain("bug", bug)
    with pytest.raises(ExceptionGroup) as failure:
        async with own.running():
            own.stop("test")
    assert failure.group_contains(ZeroDivisionError)


async def test_sighup_runs_every_reload_hook_and_a_refused_one_changes_nothing():
    own, ran = runtime(), asyncio.Event()

    async def refuse() -> None:
        raise ConfigError("no")

    async def meet_a_bug() -> None:
        raise ZeroDivisionError

    async def accept() -> None:
        ran.set()

    own.on_reload("refuse", refuse)
    own.on_reload("bug", meet_a_bug)
    own.on_reload("accept", accept)
    async with own.running():
        os.kill(os.getpid(), signal.SIGHUP)
        await ran.wait()
        own.stop("test")


async def crash(partition: int) -> None:
    with blame(MetadataPartition(partition)):
        raise ZeroDivisionError


async def test_a_crash_that_names_a_partition_three_times_holds_it_back(tmp_path: Path):
    path = tmp_path / "crashes.json"
    for _ in range(3):
        guard = CrashGuard(path, lambda: 1_000)
        assert guard.quarantined() == frozenset()
        own = runtime(guard)
        with pytest.raises(ExceptionGroup):
            async with own.running():
                own.spawn("follower.7", crash(7))
    assert CrashGuard(path, lambda: 1_000).quarantined() == {7}
