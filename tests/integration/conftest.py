"""The socket's tests run twice, on uvloop as the daemon does and on asyncio's own loop."""

import asyncio

import uvloop


def pytest_asyncio_loop_factories(config, item):  # noqa: ARG001 - the hook's own signature
    factories = {"asyncio": asyncio.new_event_loop}
    if item.path.name.startswith("test_socket"):
        factories["uvloop"] = uvloop.new_event_loop
    return factories
