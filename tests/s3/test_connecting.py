"""A peer that takes no connection: neither refused nor answered, until the deadline for that."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from rlmm_daemon.domain.errors import StorageUnavailable
from tests.contract.storage import read
from tests.support.s3_world import S3World, needs_s3, s3_server, through_each, transport

pytestmark = needs_s3
__all__ = ["s3_server", "transport"]
#: More than the queue of a listener holds that was told 0.
CONNECTIONS = 4
#: Of reading and of a whole call: only the deadline of connecting ends before the test does.
LONG_SECONDS = 600.0
PATIENCE_SECONDS = 60.0


@contextlib.contextmanager
def full() -> Iterator[str]:
    """Yield the address of a listener whose queue is full: the kernel lets others knock."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(CONNECTIONS):
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
async def world(s3_server, transport):
    world = S3World(s3_server, transport=transport)
    yield world
    await world.aclose()


@through_each
async def test_who_takes_no_connection_is_given_up_at_the_deadline_for_that(world):
    with full() as endpoint:
        storage = await world.new(
            endpoint=endpoint, connect_timeout=0.3, read_timeout=LONG_SECONDS,
            call_timeout=LONG_SECONDS, attempts_max=2,
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(StorageUnavailable) as failure:
                await read(storage, "a/b.log", 0, 9)
        assert failure.value.fields["reason"] == "timeout"
        await storage.close()
