"""How nice the threads are that read a source."""

import os
import threading

from tests.contract.storage import Buffer


def nice() -> int:
    """Return that of the thread that asks."""
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


class Niced(Buffer):
    """A source that notes how nice its readers are."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.seen: set[int] = set()

    def pread(self, offset: int, length: int) -> bytes:
        self.seen.add(nice())
        return super().pread(offset, length)
