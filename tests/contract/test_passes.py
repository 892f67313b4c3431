import pytest

from rlmm_daemon.adapters.passes.in_threads import InThreads
from rlmm_daemon.adapters.passes.process import OneProcess
from tests.contract.passes import PassesContract


class Nobody:
    """Large files are the process's; whoever falls back on threads would hide that it is not."""

    def __init__(self) -> None:
        self._threads = InThreads()

    def copy(self, source, target, **rest):
        assert source.fileno() is None or source.size <= 1024 * 1024
        return self._threads.copy(source, target, **rest)

    def check(self, source, claims, **rest):
        assert source.size <= 1024 * 1024
        return self._threads.check(source, claims, **rest)


class TestInThreads(PassesContract):
    @pytest.fixture
    def passes(self):
        return InThreads()


@pytest.fixture(scope="module")
def process():
    passes = OneProcess(instead=Nobody(), passes_max=16)
    yield passes
    passes.close()


class TestOneProcess(PassesContract):
    @pytest.fixture
    def passes(self, process):
        return process
