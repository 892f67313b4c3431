import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlmm_daemon.daemon.process.loop_lag import LoopLag
from rlmm_daemon.daemon.process.systemd import Notifier
from rlmm_daemon.observability.metrics import Metrics


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    name = str(tmp_path / "notify")
    address = name if request.param == "path" else "@" + name
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(name if request.param == "path" else "\0" + name)
        sock.settimeout(0)
        yield sock, address


def test_fields_arrive_as_lines_of_one_datagram(manager):
    sock, address = manager
    assert Notifier(address).notify("READY=1", "STATUS=caught up")
    assert sock.recv(4096) == b"READY=1\nSTATUS=caught up"


def test_nobody_listening_is_not_an_error(tmp_path: Path):
    assert not Notifier("").notify("READY=1")
    assert not Notifier(str(tmp_path / "gone")).notify("READY=1")


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "5"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "6"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_interval_is_systemds(environ, seconds):
    assert Notifier.from_environment(environ, pid=5).watchdog_seconds == seconds


async def test_the_watchdog_is_fed_only_while_the_loop_is_sane(manager):
    sock, address = manager
    lag = LoopLag(Metrics().process, asyncio.get_running_loop().time)
    asked, thrice = 0, asyncio.Event()

    def healthy() -> bool:
        nonlocal asked
        asked += 1
        if asked == 2:
            lag.observe(6.0)
        if asked == 3:
            thrice.set()
        return lag.sane(5.0)

    async with asyncio.TaskGroup() as tasks:
        feeding = tasks.create_task(Notifier(address, 0.003).feed_watchdog(healthy))
        await thrice.wait()
        feeding.cancel()
    beats = 0
    while True:
        try:
            assert sock.recv(4096) == b"WATCHDOG=1"
        except BlockingIOError:
            break
        beats += 1
    assert beats == asked - 1


async def test_without_a_watchdog_the_feeder_ends_at_once():
    await Notifier("", None).feed_watchdog(lambda: True)


def test_lag_is_judged_by_the_worst_since_asked_last_and_shown_over_a_minute():
    metrics = Metrics()
    lag = LoopLag(metrics.process, lambda: 0.0)
    for seconds in (0.001, 7.0, -0.1):
        lag.observe(seconds)
    assert not lag.sane(5.0)
    assert lag.sane(5.0)
    assert lag.worst_seconds == 7.0
    assert metrics.registry.get_sample_value("rlmm_event_loop_lag_max_seconds") == 7.0
    for _ in range(240):
        lag.observe(0.5)
    assert lag.worst_seconds == 0.5
