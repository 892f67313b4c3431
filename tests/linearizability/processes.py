"""Three replicas' processes, with a door in each link between them."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Final

import msgspec

from deploy.dev.stack.ports import free_ports
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.quorum.files.identity import format_replica
from tests.linearizability.replica import CLUSTER_ID, TOPIC, TOPIC_ID, Settings

NUMBERS: Final = (1, 2, 3)
STARTS_SECONDS: Final = 30.0


@dataclass(slots=True)
class Door:
    """A port before a replica: open, it hands bytes on; shut, it keeps them until it is opened."""

    port: int
    target: int
    flows: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        self.flows.set()
        self._server = await asyncio.start_server(self._enter, "127.0.0.1", self.port)

    def reset(self) -> None:
        """End all connections through it."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        self.reset()
        if self._server is not None:
            self._server.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = [writer]
        try:
            await self.flows.wait()
            inside = await asyncio.open_connection("127.0.0.1", self.target)
            ends.append(inside[1])
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, inside[1]))
                both.create_task(self._pump(inside[0], writer))
        except* (OSError, asyncio.CancelledError):  # it is reset, or the test ends
            pass
        finally:
            self._tasks.discard(task)
            for each in ends:
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await self.flows.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError


class Processes:
    """Replicas 1 to 3; replica 3's disk may be slow."""

    def __init__(self, home: Path, *, stale: bool, sync_seconds: float) -> None:
        self.home = home
        self._stale, self._sync_seconds = stale, sync_seconds
        ports = free_ports(15)
        self._ports = dict(zip(NUMBERS, ports[:3], strict=True))
        self.clients = dict(zip(NUMBERS, ports[3:6], strict=True))
        #: (who asks, who is asked) -> the door between; a replica's own is what it advertises.
        self._doors = {
            (a, b): Door(port, self._ports[b])
            for (a, b), port in zip(product(NUMBERS, NUMBERS), ports[6:], strict=True)
        }
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    async def start(self) -> None:
        disk = LocalDisk()
        for door in self._doors.values():
            await door.start()
        for number in NUMBERS:
            await format_replica(
                disk,
                str(self.home / str(number)),
                cluster_id=CLUSTER_ID,
                node_id=number,
                voters=None,
                topic=TOPIC,
                topic_id=TOPIC_ID,
                directory_id=bytes([number]) * 16,
            )
            self.run(number)
        disk.close()

    def run(self, number: int) -> None:
        """Start a replica's process."""
        settings = Settings(
            number=number,
            directory=str(self.home / str(number)),
            port=self._ports[number],
            clients=self.clients[number],
            voters={other: self._doors[number, other].port for other in NUMBERS},
            sync_seconds=self._sync_seconds if number == NUMBERS[-1] else 0.0,
            stale=self._stale,
        )
        command = [sys.executable, "-m", "tests.linearizability.replica"]
        with (self.home / f"{number}.log").open("ab") as out:
            self._running[number] = subprocess.Popen(
                [*command, msgspec.json.encode(settings).decode()],
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def kill(self, number: int) -> None:
        process = self._running.pop(number)
        process.kill()
        process.wait(10)

    def pause(self, number: int) -> None:
        self._running[number].send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._running[number].send_signal(signal.SIGCONT)

    def isolate(self, number: int) -> None:
        """Let nothing through to and from this replica; what is on its way comes late."""
        for pair, door in self._doors.items():
            if number in pair:
                door.flows.clear()

    def heal(self, number: int, *, reset: bool) -> None:
        """Let all through again; with `reset`, over new connections alone."""
        for pair, door in self._doors.items():
            if number in pair:
                if reset:
                    door.reset()
                door.flows.set()

    def ended(self) -> dict[int, str]:
        """Return what those said last that ended by themselves."""
        return {
            number: (self.home / f"{number}.log").read_text(errors="replace")[-2000:]
            for number, process in self._running.items()
            if process.poll() is not None
        }

    async def until_served(self, number: int) -> None:
        """Wait until clients can ask it."""
        deadline = time.monotonic() + STARTS_SECONDS
        while True:
            assert not self.ended(), self.ended()
            assert time.monotonic() < deadline, f"replica {number} does not serve"
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.clients[number])
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return

    async def close(self) -> None:
        for number in tuple(self._running):
            self.kill(number)
        for door in self._doors.values():
            await door.close()


@asynccontextmanager
async def processes(
    home: Path, *, stale: bool = False, sync_seconds: float = 0.0
) -> AsyncIterator[Processes]:
    """Run three replicas as long as the block lasts."""
    quorum = Processes(home, stale=stale, sync_seconds=sync_seconds)
    try:
        await quorum.start()
        for number in NUMBERS:
            await quorum.until_served(number)
        yield quorum
    finally:
        await quorum.close()
