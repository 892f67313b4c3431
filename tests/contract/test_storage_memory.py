from typing import Any

import pytest

from rlmm_daemon.adapters.clock import SystemClock
from rlmm_daemon.adapters.storage.memory import MemoryBucket, MemoryStorage
from tests.contract.storage import StorageContract


class MemoryHarness:
    def __init__(self) -> None:
        self.bucket = MemoryBucket()

    async def open(self, owner: str = "1") -> Any:
        del owner
        return MemoryStorage(self.bucket, clock=SystemClock())

    def lose_the_root(self) -> None:
        self.bucket.available = False

    def fill_up(self) -> None:
        self.bucket.capacity_bytes = 1000


class TestMemoryStorage(StorageContract):
    @pytest.fixture
    def harness(self):
        return MemoryHarness()
