"""Three real controllers with kraft.version 1, and a replica of ours beside them.

They make a snapshot after a few thousand bytes, so that whoever comes later has to fetch one.
"""

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from deploy.dev.stack.kafka.cluster import java, quick
from deploy.dev.stack.ports import free_ports
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.quorum.client import Description, QuorumClient
from rlmm_daemon.adapters.quorum.files.identity import format_replica
from rlmm_daemon.adapters.quorum.handshake import Plain
from rlmm_daemon.adapters.quorum.node import Node
from rlmm_daemon.adapters.quorum.replica import ReplicaOptions, running
from rlmm_daemon.adapters.quorum.wire import Group
from rlmm_daemon.core.raft.roles import Timing
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter
from rlmm_daemon.domain.errors import StorageUnavailable
from tests.kafka.quorum_rig import as_text, directory_id

TOPIC: Final = "__cluster_metadata"
TOPIC_ID: Final = bytes(15) + b"\x01"
CLUSTER_ID: Final = "c2lkZWNhci1kZXYta2Fma2"
LISTENER: Final = "CONTROLLER"
OURS: Final = 4
SECONDS: Final = 60.0
#: Never the leader of a quorum whose records it can't write.
FOLLOWS: Final = Timing(election=3_600_000, fetch=3_600_000, poll=500)


class Controllers:
    """Controllers 1 to 3, and ours with number 4."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ports = dict(zip((1, 2, 3, OURS), free_ports(4), strict=True))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.disk, self.clock = LocalDisk(), SystemClock()
        self.stack = AsyncExitStack()
        self.group = Group(cluster_id=CLUSTER_ID, topic=TOPIC, topic_id=TOPIC_ID, listener=LISTENER)

    def address(self, number: int) -> Endpoint:
        return Endpoint(LISTENER, "127.0.0.1", self.ports[number])

    def _properties(self, number: int) -> Path:
        home = self.home / str(number)
        home.mkdir(parents=True, exist_ok=True)
        path = home / "server.properties"
        servers = ",".join(f"127.0.0.1:{self.ports[n]}" for n in (1, 2, 3))
        lines = (
            "process.roles=controller",
            f"node.id={number}",
            f"controller.quorum.bootstrap.servers={servers}",
            f"listeners={LISTENER}://127.0.0.1:{self.ports[number]}",
            f"controller.listener.names={LISTENER}",
            f"listener.security.protocol.map={LISTENER}:PLAINTEXT",
            f"log.dirs={home}/data",
            "metadata.log.max.record.bytes.between.snapshots=2000",
        )
        path.write_text("\n".join(lines))
        return path

    def format_all(self) -> None:
        initial = ",".join(f"{n}@127.0.0.1:{self.ports[n]}:{as_text(n)}" for n in (1, 2, 3))
        beginning = [*java("-Xmx128m", *quick()), "kafka.tools.StorageTool", "format"]
        options = ["-t", CLUSTER_ID, "--initial-controllers", initial, "-c"]
        commands = [[*beginning, *options, str(self._properties(n))] for n in (1, 2, 3)]
        running_ = [subprocess.Popen(each, stdout=subprocess.DEVNULL) for each in commands]
        assert [process.wait(60) for process in running_] == [0, 0, 0]

    def start(self, number: int) -> None:
        command = [*java("-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"), "kafka.Kafka"]
        with (self.home / f"{number}/out").open("ab") as out:
            self.processes[number] = subprocess.Popen(
                [*command, str(self._properties(number))], stdout=out, stderr=subprocess.STDOUT
            )

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes.pop(number).wait(10)

    async def join(self) -> Node:
        """Have ours follow."""
        home = str(self.home / "ours")
        await format_replica(
            self.disk,
            home,
            cluster_id=CLUSTER_ID,
            node_id=OURS,
            voters=None,
            topic=TOPIC,
            topic_id=TOPIC_ID,
            directory_id=directory_id(OURS),
        )
        options = ReplicaOptions(
            directory=home,
            topic=TOPIC,
            topic_id=TOPIC_ID,
            port=self.ports[OURS],
            listener=LISTENER,
            bootstrap=tuple(self.address(n) for n in (1, 2, 3)),
            timing=FOLLOWS,
        )
        return await self.stack.enter_async_context(running(self.disk, self.clock, options))

    def client(self) -> QuorumClient:
        servers = [self.address(n) for n in self.processes]
        return QuorumClient(self.group, Plain(), servers, timeout_seconds=SECONDS)

    async def described(self, holds: Callable[[Description], bool], what: str) -> Description:
        """Return the quorum as its leader sees it, once this holds."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                found = await self.client().describe()
            except StorageUnavailable:
                found = None
            if found is not None and holds(found):
                return found
            assert time.monotonic() < deadline, f"not in {SECONDS:g} s: {what}\n{found}"
            await asyncio.sleep(0.1)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline, f"not in {SECONDS:g} s: {what}"
            await asyncio.sleep(0.05)

    def snapshots(self, number: int) -> list[Path]:
        """The snapshots that a controller has made."""
        made = (self.home / f"{number}/data/{TOPIC}-0").glob("*.checkpoint")
        return [each for each in made if not each.name.startswith("0" * 20)]

    async def tool(self, *arguments: str) -> str:
        """Return what `kafka-metadata-quorum` prints of this quorum."""
        servers = ",".join(f"127.0.0.1:{self.ports[n]}" for n in self.processes)
        return await metadata_quorum(servers, *arguments)

    def voter(self) -> Voter:
        return Voter(ReplicaKey(OURS, directory_id(OURS)), (self.address(OURS),))

    async def close(self) -> None:
        await self.stack.aclose()
        for number in tuple(self.processes):
            self.kill(number)
        self.disk.close()


async def metadata_quorum(servers: str, *arguments: str) -> str:
    """Return what Kafka's own tool prints."""
    command = [*java("-Xmx128m", *quick()), "org.apache.kafka.tools.MetadataQuorumCommand"]
    process = await asyncio.create_subprocess_exec(
        *command,
        "--bootstrap-controller",
        servers,
        *arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    except BaseException:
        process.kill()
        raise
    assert process.returncode == 0, out.decode()
    return out.decode()


@asynccontextmanager
async def controllers(home: Path) -> AsyncIterator[Controllers]:
    """Three controllers that run."""
    quorum = Controllers(home)
    try:
        quorum.format_all()
        for number in (1, 2, 3):
            quorum.start(number)
        yield quorum
    finally:
        await quorum.close()
