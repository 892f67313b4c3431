"""The quorum's wire is tested on uvloop, as the daemon has it, and on asyncio's loop."""

import asyncio

import uvloop

ON_BOTH = ("test_listener.py", "test_tls.py")


def pytest_asyncio_loop_factories(config, item):  # noqa: ARG001 - the hook's own signature
    factories = {"asyncio": asyncio.new_event_loop}
    if item.path.name in ON_BOTH:
        factories["uvloop"] = uvloop.new_event_loop
    return factories
