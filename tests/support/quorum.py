"""Replicas of ours in one loop, over real sockets and on a real disk."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from deploy.dev.stack.ports import free_ports
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.quorum.files.identity import format_replica
from rlmm_daemon.adapters.quorum.node import Node
from rlmm_daemon.adapters.quorum.replica import ReplicaOptions, running
from rlmm_daemon.core.raft.roles import Leader, Timing
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet

TOPIC: Final = "__rlmm_quorum"
TOPIC_ID: Final = bytes(15) + b"\x07"
CLUSTER_ID: Final = "c2lkZWNhci1kZXYta2Fma2"
LISTENER: Final = "QUORUM"
SECONDS: Final = 20.0
QUICK: Final = Timing()
#: Nothing is elected because the machine has other things to do.
CALM: Final = Timing(fetch=20_000)


class Quorum:
    """Replicas 1 to `voters`, and observers behind them."""

    def __init__(self, home: Path, voters: int, observers: int, timing: Timing) -> None:
        self.home, self.timing = home, timing
        self.count = voters
        numbers = range(1, voters + observers + 1)
        self.ports = dict(zip(numbers, free_ports(len(numbers)), strict=True))
        self.disk, self.clock = LocalDisk(), SystemClock()
        self.nodes: dict[int, Node] = {}
        self._lives: dict[int, asyncio.Task[None]] = {}
        self._ends: dict[int, asyncio.Event] = {}

    def key(self, number: int) -> ReplicaKey:
        return ReplicaKey(number, bytes([number]) * 16)

    def address(self, number: int) -> Endpoint:
        return Endpoint(LISTENER, "127.0.0.1", self.ports[number])

    def voter(self, number: int) -> Voter:
        return Voter(self.key(number), (self.address(number),))

    def directory(self, number: int) -> Path:
        return self.home / str(number)

    async def format(self, number: int) -> None:
        voters = VoterSet.of(self.voter(n) for n in range(1, self.count + 1))
        await format_replica(
            self.disk,
            str(self.directory(number)),
            cluster_id=CLUSTER_ID,
            node_id=number,
            voters=voters if number <= self.count else None,
            topic=TOPIC,
            topic_id=TOPIC_ID,
            directory_id=self.key(number).directory,
        )

    async def start(self, number: int) -> Node:
        options = ReplicaOptions(
            directory=str(self.directory(number)),
            topic=TOPIC,
            topic_id=TOPIC_ID,
            port=self.ports[number],
            listener=LISTENER,
            bootstrap=tuple(self.address(n) for n in range(1, self.count + 1) if n != number),
            timing=self.timing,
        )
        node: asyncio.Future[Node] = asyncio.get_running_loop().create_future()
        self._ends[number] = ends = asyncio.Event()

        async def live() -> None:
            async with running(self.disk, self.clock, options) as runs:
                node.set_result(runs)
                await ends.wait()

        self._lives[number] = life = asyncio.get_running_loop().create_task(live())
        both: list[asyncio.Future[Any]] = [node, life]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if life.done():
            life.result()
        self.nodes[number] = node.result()
        return self.nodes[number]

    async def stop(self, number: int) -> None:
        """Have a replica say good-bye and end."""
        self._ends[number].set()
        await self._ended(number)

    async def kill(self, number: int) -> None:
        """End a replica without a word to anybody."""
        self._lives[number].cancel()
        with suppress(asyncio.CancelledError):
            await self._ended(number)

    async def _ended(self, number: int) -> None:
        del self.nodes[number]
        await self._lives.pop(number)

    async def failed(self, number: int) -> None:
        """Wait until a replica ends by itself, and raise what it ended of."""
        await asyncio.wait([self._lives[number]], timeout=SECONDS)
        assert self._lives[number].done()
        await self._ended(number)

    async def forget(self, number: int) -> None:
        """Have a stopped replica lose its disk, and be formatted under another directory's id."""
        shutil.rmtree(self.directory(number))
        await self.format(number)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline, f"not in {SECONDS:g} s: {what}\n{self._told()}"
            await asyncio.sleep(0.01)

    def _told(self) -> str:
        return "\n".join(f"{n}: {node.replica} {node.alarms}" for n, node in self.nodes.items())

    def leader(self) -> int | None:
        """Return who leads, once something of its epoch is committed."""
        for number, node in self.nodes.items():
            role = node.replica.role
            if isinstance(role, Leader) and role.high_watermark > role.epoch_start:
                return number
        return None

    async def until_led(self) -> int:
        await self.until(lambda: self.leader() is not None, "somebody leads")
        leader = self.leader()
        assert leader is not None
        return leader

    async def close(self) -> None:
        for number in tuple(self.nodes):
            await self.stop(number)
        self.disk.close()


@asynccontextmanager
async def quorum_of_ours(
    home: Path, *, voters: int = 3, observers: int = 0, timing: Timing = QUICK
) -> AsyncIterator[Quorum]:
    """Return a quorum whose replicas all run."""
    quorum = Quorum(home, voters, observers, timing)
    try:
        for number in quorum.ports:
            await quorum.format(number)
            await quorum.start(number)
        yield quorum
    finally:
        await quorum.close()
