import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest

from rlmm_daemon.adapters.storage.local import LocalStorage
from tests.contract.storage import StorageContract


class LocalHarness:
    def __init__(self, root, monkeypatch) -> None:
        self.root = root
        self.monkeypatch = monkeypatch

    async def open(self, owner: str = "1") -> Any:
        storage = LocalStorage(str(self.root), owner=owner)
        await storage.open()
        return storage

    def lose_the_root(self) -> None:
        self.root.rename(self.root.with_name("elsewhere"))

    def fill_up(self) -> None:
        full = SimpleNamespace(f_bavail=1, f_frsize=4096)
        self.monkeypatch.setattr(os, "statvfs", lambda _: full)

    def break_the_last_step(self) -> None:
        real = os.rename

        def rename(source: Any, target: Any, **directories: int) -> None:
            if str(target).endswith(".log"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(source, target, **directories)

        self.monkeypatch.setattr(os, "rename", rename)


class TestLocalStorage(StorageContract):
    @pytest.fixture
    def harness(self, tmp_path, monkeypatch):
        root = tmp_path / "remote"
        root.mkdir()
        return LocalHarness(root, monkeypatch)
