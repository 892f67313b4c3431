"""Unix socket of the blocking client: every wait ends at a deadline of the monotonic clock."""

import io
import time
from contextlib import AbstractContextManager, nullcontext

from rlmm_daemon.client import _common as common

now = time.monotonic
sleep = time.sleep


class Wire:
    """Bytes in and out; a lost connection is an OSError, a deadline that passed a TimeoutError."""

    def __init__(self) -> None:
        self.socket = common.unix_socket()
        self.close = self.socket.close

    def connect(self, path: str, deadline: float) -> None:
        """Connect."""
        self._patience(deadline)
        self.socket.connect(path)

    def send(self, data: bytes, deadline: float) -> None:
        """Send all."""
        self._patience(deadline)
        self.socket.sendall(data)

    def receive(self, size: int, deadline: float) -> bytes:
        """Return what is there, at most `size` bytes; none at the connection's end."""
        self._patience(deadline)
        return self.socket.recv(size)

    def receive_into(self, target: memoryview, deadline: float) -> int:
        """Fill a buffer as far as bytes are there; 0 at the connection's end."""
        self._patience(deadline)
        return self.socket.recv_into(target)

    def _patience(self, deadline: float) -> None:
        if deadline == common.FOREVER:
            wanted = None
        else:
            wanted = deadline - now()
            if wanted <= 0:
                raise TimeoutError("the deadline passed")
        self.socket.settimeout(wanted)


class Turn:
    """Nothing to wait for: a blocking client belongs to one thread."""

    def is_elsewhere(self) -> bool:
        """Return False: there is no event loop."""
        return False

    def before(self, _deadline: float) -> AbstractContextManager[None]:
        """Go on at once."""
        return nullcontext()


class Raw(io.RawIOBase):
    """What the standard library makes a file of."""

    def readable(self) -> bool:
        """Return True."""
        return True
