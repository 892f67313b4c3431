"""A server, a bucket and a proxy before it, for daemons that are started again and again."""

from collections.abc import Iterator

import pytest

from deploy.dev.stack.s3 import S3Server
from tests.support.fork_server import ForkServer
from tests.support.s3_daemon import ProxyThread, Tier
from tests.support.s3_world import s3_server

__all__ = ["s3_server"]


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[ProxyThread]:
    with ProxyThread(s3_server) as proxy:
        yield proxy


@pytest.fixture
def tier(s3_server: S3Server) -> Tier:
    return Tier(s3_server)
