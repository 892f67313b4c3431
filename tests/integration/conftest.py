"""Daemons to ask; the socket's tests run twice, on uvloop as the daemon and on asyncio's loop."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from tests.support.fork_server import ForkServer
from tests.support.stocked_daemon import Stocked, make


def pytest_asyncio_loop_factories(config, item):  # noqa: ARG001 - the hook's own signature
    factories = {"asyncio": asyncio.new_event_loop}
    if item.path.name.startswith("test_socket"):
        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


@pytest.fixture
def it(tmp_path: Path, forks: ForkServer) -> Iterator[Stocked]:
    """Yield a daemon that has copied the first segments of two partitions."""
    stocked = make(tmp_path, forks)
    with stocked.daemon:
        stocked.stock()
        yield stocked


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return where a socket may be made."""
    return str(tmp_path / "rlmm.sock")
