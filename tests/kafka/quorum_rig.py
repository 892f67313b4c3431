"""Replicas of ours and of Kafka's own, in one quorum of three: static voters, kraft.version 0.

Kafka's is `kafka.tools.TestRaftServer`: `KafkaRaftClient` as it is in a controller, over a log of
opaque records that it writes while it leads. It has no snapshots of its own and no changes of
voters. What reaches a replica goes through a door, which can be shut.
"""

import asyncio
import base64
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from deploy.dev.stack.kafka.cluster import java
from deploy.dev.stack.ports import free_ports
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.quorum.files.identity import format_replica
from rlmm_daemon.adapters.quorum.node import Node
from rlmm_daemon.adapters.quorum.replica import ReplicaOptions, running
from rlmm_daemon.codec import batches
from rlmm_daemon.core.raft.roles import Leader, Timing
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from rlmm_daemon.domain.errors import LogCorrupt

#: As TestRaftServer has them.
TOPIC: Final = "__raft_performance_test"
TOPIC_ID: Final = bytes(15) + b"\x02"
CLUSTER_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
LISTENER: Final = "CONTROLLER"
#: Records a second of a leading JVM.
THROUGHPUT: Final = 200
SECONDS: Final = 30.0
#: Ours stands before a JVM would, or long after.
EAGER: Final = Timing(election=100, fetch=1_000, poll=250)
PATIENT: Final = Timing(election=20_000, fetch=20_000, poll=250)


def directory_id(number: int) -> bytes:
    return bytes([number]) * 16


def as_text(number: int) -> str:
    return base64.urlsafe_b64encode(directory_id(number)).decode().rstrip("=")


@dataclass(slots=True)
class Door:
    """A port before a replica: open it hands bytes on; shut, nobody gets through."""

    port: int
    target: int
    is_open: bool = True
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._enter, "127.0.0.1", self.port)

    def shut(self) -> None:
        self.is_open = False
        for writer in self._writers:
            writer.transport.abort()

    def open(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.shut()
        if self._server is not None:
            self._server.close()

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_open:
            writer.transport.abort()
            return
        try:
            inside = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, inside[1]}
        self._writers |= ends
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, inside[1]))
                both.create_task(_pump(inside[0], writer))
        except* (OSError, asyncio.CancelledError):  # it is reset, or the test ends
            pass
        finally:
            self._writers -= ends
            for each in ends:
                each.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError


class Mixed:
    """A quorum of replicas 1 to 3; number 3 is ours, unless told otherwise."""

    def __init__(self, home: Path, ours: tuple[int, ...] = (3,)) -> None:
        self.home = home
        self.ours = ours
        ports = free_ports(6)
        self.ports = dict(zip((1, 2, 3), ports[:3], strict=True))
        self.doors = {n: Door(ports[2 + n], self.ports[n]) for n in (1, 2, 3)}
        self.disk, self.clock = LocalDisk(), SystemClock()
        self.jvms: dict[int, subprocess.Popen[bytes]] = {}
        self.nodes: dict[int, Node] = {}
        self._stacks: dict[int, AsyncExitStack] = {}
        self.class_path: str | None = None

    def address(self, number: int) -> Endpoint:
        return Endpoint(LISTENER, "127.0.0.1", self.doors[number].port)

    def voters(self) -> VoterSet:
        return VoterSet.of(
            Voter(ReplicaKey(number), (self.address(number),), (0, 0)) for number in (1, 2, 3)
        )

    def log(self, number: int) -> Path:
        """The directory of a replica's log."""
        inner = self.home / str(number) if number in self.ours else self.home / f"{number}/log"
        return inner / f"{TOPIC}-0"

    # Kafka's.

    def start_jvm(self, number: int, *, throughput: int = THROUGHPUT) -> None:
        home = self.home / str(number)
        (home / "log").mkdir(parents=True, exist_ok=True)
        properties = home / "server.properties"
        voters = ",".join(f"{n}@127.0.0.1:{self.doors[n].port}" for n in (1, 2, 3))
        lines = (
            "process.roles=controller",
            f"node.id={number}",
            f"controller.quorum.voters={voters}",
            f"listeners={LISTENER}://127.0.0.1:{self.ports[number]}",
            f"advertised.listeners={LISTENER}://127.0.0.1:{self.doors[number].port}",
            f"controller.listener.names={LISTENER}",
            f"listener.security.protocol.map={LISTENER}:PLAINTEXT",
            f"log.dirs={home}/log",
        )
        properties.write_text("\n".join(lines))
        command = java("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        if self.class_path is not None:
            command[-1] = self.class_path
        command += ["kafka.tools.TestRaftServer", "--config", str(properties)]
        command += ["--throughput", str(throughput), "--record-size", "256"]
        command += ["--replica-directory-id", as_text(number)]
        with (home / "out").open("ab") as out:
            self.jvms[number] = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    def kill_jvm(self, number: int) -> None:
        self.jvms[number].kill()
        self.jvms.pop(number).wait(10)

    def freeze(self, number: int) -> None:
        self.jvms[number].send_signal(signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        self.jvms[number].send_signal(signal.SIGCONT)

    def wipe(self, number: int) -> None:
        shutil.rmtree(self.home / str(number))

    # Ours.

    async def format(self, number: int = 3, *, cluster_id: str = CLUSTER_ID) -> None:
        await format_replica(
            self.disk,
            str(self.home / str(number)),
            cluster_id=cluster_id,
            node_id=number,
            voters=None,
            topic=TOPIC,
            topic_id=TOPIC_ID,
            directory_id=directory_id(number),
        )

    async def start(self, number: int = 3, timing: Timing = EAGER) -> Node:
        options = ReplicaOptions(
            directory=str(self.home / str(number)),
            topic=TOPIC,
            topic_id=TOPIC_ID,
            port=self.ports[number],
            advertised=self.address(number),
            listener=LISTENER,
            bootstrap=tuple(self.address(n) for n in (1, 2, 3) if n != number),
            static_voters=self.voters(),
            timing=timing,
        )
        stack = AsyncExitStack()
        node = await stack.enter_async_context(running(self.disk, self.clock, options))
        self.nodes[number], self._stacks[number] = node, stack
        return node

    async def stop(self, number: int = 3) -> None:
        del self.nodes[number]
        await self._stacks.pop(number).aclose()

    async def close(self) -> None:
        for number in tuple(self.nodes):
            await self.stop(number)
        for number in tuple(self.jvms):
            self.thaw(number)
            self.kill_jvm(number)
        for door in self.doors.values():
            await door.close()
        self.disk.close()

    # What is seen.

    async def until_all_same(self, *numbers: int) -> None:
        """Wait until these have the same batches; nobody may write meanwhile."""
        await self.until(
            lambda: len({tuple(log_of(self.log(n))) for n in numbers}) == 1, "all are the same"
        )

    async def until_all_follow(self, *jvms: int) -> None:
        """Wait until records of the workload are committed, and these have them."""
        held = {number: len(log_of(self.log(number))) for number in jvms}
        await self.until(
            lambda: all(len(log_of(self.log(n))) > held[n] + 5 for n in jvms), "all follow"
        )

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline, f"not in {SECONDS:g} s: {what}\n{self._told()}"
            await asyncio.sleep(0.02)

    def _told(self) -> str:
        lines = [f"{n}: {node.replica} {node.alarms}" for n, node in self.nodes.items()]
        for number in (1, 2, 3):
            out = self.home / f"{number}/out"
            if out.exists():
                lines.append(f"{number}: {out.read_text(errors='replace')[-1500:]}")
        return "\n".join(lines)

    async def until_led_by(self, *numbers: int, seen_by: int = 3) -> int:
        """Wait until ours follows, or is, one of these, and something is committed in its epoch."""

        def led() -> bool:
            replica = self.nodes[seen_by].replica
            if replica.leader not in numbers:
                return False
            begun = [first for epoch, first in replica.log.epochs if epoch == replica.epoch]
            return bool(begun) and replica.committed > begun[0]

        await self.until(led, f"replica {numbers} leads")
        leader = self.nodes[seen_by].replica.leader
        assert leader is not None
        return leader

    def leads(self, number: int = 3) -> bool:
        return isinstance(self.nodes[number].replica.role, Leader)


@asynccontextmanager
async def mixed(home: Path, ours: tuple[int, ...] = (3,)) -> AsyncIterator[Mixed]:
    """A quorum whose replicas are not started yet."""
    quorum = Mixed(home, ours)
    try:
        for door in quorum.doors.values():
            await door.start()
        yield quorum
    finally:
        await quorum.close()


def log_of(directory: Path) -> Mapping[int, bytes]:
    """Return each whole batch of a log, by its first offset, as it stands in the files.

    The replica that owns them may be alive, and gives a log up file by file when it takes a
    snapshot in its place: a file that is gone between our look and our reading makes us look anew.
    """
    for _ in range(100):
        with suppress(FileNotFoundError):
            return _batches_in(sorted(directory.glob("*.log")))
    raise AssertionError(f"{directory}: its files go each time that they were listed")


def _batches_in(files: Sequence[Path]) -> Mapping[int, bytes]:
    found: dict[int, bytes] = {}
    for path in files:
        data = path.read_bytes()
        try:
            for batch in batches.split(data):
                found[batch.base_offset] = data[batch.position : batch.end]
        except LogCorrupt as error:
            if "left" not in error.message:  # it is being written, or its writer was killed
                raise
    return found
