from typing import Any

import pytest

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.domain.errors import StorageUnavailable
from tests.contract.storage import StorageContract
from tests.support.memory_storage import MemoryBucket, MemoryStorage


class MemoryHarness:
    def __init__(self, monkeypatch) -> None:
        self.bucket = MemoryBucket()
        self.monkeypatch = monkeypatch

    async def open(self, owner: str = "1") -> Any:
        del owner
        return MemoryStorage(self.bucket, clock=SystemClock())

    def lose_the_root(self) -> None:
        self.bucket.available = False

    def fill_up(self) -> None:
        self.bucket.capacity_bytes = 1000

    def break_the_last_step(self) -> None:
        real = MemoryStorage._store

        def store(storage: MemoryStorage, key: str, body: bytes) -> Any:
            if key.endswith(".log"):
                raise StorageUnavailable("the last step fails")
            return real(storage, key, body)

        self.monkeypatch.setattr(MemoryStorage, "_store", store)


class TestMemoryStorage(StorageContract):
    @pytest.fixture
    def harness(self, monkeypatch):
        return MemoryHarness(monkeypatch)
