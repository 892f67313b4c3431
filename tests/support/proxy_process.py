"""The proxy in front of an S3 server as a process of its own, which can be killed.

Whoever is connected then loses the connection, and is refused until the proxy is back on its port.
"""

import asyncio
import socket
import subprocess
import sys
import time
from typing import Final, Self

from deploy.dev.stack.fault_proxy import FaultProxy
from deploy.dev.stack.kafka import libs

START_SECONDS: Final = 60.0


class ProxyProcess:
    """Forwards to a port of the loopback; `start` it as often as it was killed."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        # Bound and never listening: nobody else gets the port while the proxy is dead.
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._held.bind(("127.0.0.1", 0))
        self.port = int(self._held.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Return when it takes connections; one that runs is left alone."""
        if self._process is None:
            arguments = (str(self._target_port), str(self.port))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.proxy_process", *arguments],
                cwd=libs.REPOSITORY,
                stdin=subprocess.DEVNULL,
            )
            self._await()
        return self

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def end(self) -> None:
        self.kill()
        self._held.close()

    def _await(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
            except OSError:
                assert self._process.poll() is None, "the proxy ended"
                assert time.monotonic() < deadline, "the proxy did not come up"
                time.sleep(0.05)
            else:
                return


async def _forward(target_port: int, port: int) -> None:
    async with FaultProxy(target_port, port=port):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_forward(int(sys.argv[1]), int(sys.argv[2])))
