"""Three replicas of one process over real sockets, and what must not change when others attack."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from deploy.dev.stack.ports import free_ports
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.quorum.files.identity import format_replica
from rlmm_daemon.adapters.quorum.handshake import Acceptor, Dialer, Plain
from rlmm_daemon.adapters.quorum.node import Node
from rlmm_daemon.adapters.quorum.replica import ReplicaOptions, running
from rlmm_daemon.adapters.quorum.wire import Group
from rlmm_daemon.core.raft.roles import Leader, Replica
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet

CLUSTER = "c2lkZWNhci1kZXYta2Fma2"
TOPIC = "__remote_log_metadata"
TOPIC_ID = b"\1" * 16
GROUP = Group(cluster_id=CLUSTER, topic=TOPIC, topic_id=TOPIC_ID, listener="QUORUM")
SECONDS = 30

Side = Callable[[int], tuple[Acceptor, Dialer]]


def plain(_: int) -> tuple[Acceptor, Dialer]:
    """Return both sides of a replica whose peers prove nothing."""
    return Plain(), Plain()


def key(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id, bytes([node_id]) * 16)


class Facts(msgspec.Struct, frozen=True):
    """What no stranger may change."""

    leaders: tuple[int | None, ...]
    epochs: tuple[int, ...]
    committed: tuple[int, ...]
    high_watermark: int
    voters: tuple[VoterSet, ...]


class Three:
    """A quorum whose replicas run."""

    def __init__(self, nodes: dict[int, Node], endpoints: dict[int, Endpoint]) -> None:
        self.nodes = nodes
        self.endpoints = endpoints

    def replica(self, node_id: int) -> Replica:
        replica = self.nodes[node_id].replica
        assert replica is not None
        return replica

    @property
    def leader(self) -> int | None:
        """The replica that leads and may commit."""
        for node_id in self.nodes:
            role = self.replica(node_id).role
            if isinstance(role, Leader) and role.high_watermark > 0:
                return node_id
        return None

    async def settled(self) -> int:
        """Return the leader, once everybody follows it and has what is committed."""
        async with asyncio.timeout(SECONDS):
            while not self._is_settled():  # noqa: ASYNC110 - replicas' plain attributes
                await asyncio.sleep(0.01)
        assert self.leader is not None
        return self.leader

    def _is_settled(self) -> bool:
        replicas = [self.replica(node_id) for node_id in self.nodes]
        leader = self.leader
        return leader is not None and all(
            each.leader == leader and each.committed == each.log.end == self.replica(leader).log.end
            for each in replicas
        )

    def follower(self) -> int:
        return next(node_id for node_id in self.nodes if node_id != self.leader)

    def facts(self) -> Facts:
        replicas = [self.replica(node_id) for node_id in self.nodes]
        role = self.replica(self.leader or 0).role if self.leader is not None else None
        return Facts(
            tuple(each.leader for each in replicas),
            tuple(each.epoch for each in replicas),
            tuple(each.committed for each in replicas),
            role.high_watermark if isinstance(role, Leader) else -1,
            tuple(each.in_force for each in replicas),
        )

    def alarms(self, kind: str) -> int:
        """Return how often any of them raised it."""
        return sum(node.alarms.get(kind, 0) for node in self.nodes.values())

    async def submit(self, value: bytes = b"value") -> int:
        leader = await self.settled()
        async with asyncio.timeout(SECONDS):
            return await self.nodes[leader].submit([(None, value)])


@asynccontextmanager
async def quorum(directory: Path, side: Side = plain, *, count: int = 3) -> AsyncIterator[Three]:
    """Run a quorum as long as the block lasts."""
    disk, clock = LocalDisk(), SystemClock()
    endpoints = {
        node_id: Endpoint("QUORUM", "127.0.0.1", port)
        for node_id, port in enumerate(free_ports(count), start=1)
    }
    voters = VoterSet.of(Voter(key(each), (endpoints[each],)) for each in endpoints)
    nodes: dict[int, Node] = {}
    async with AsyncExitStack() as stack:
        for node_id, at in endpoints.items():
            await format_replica(
                disk,
                str(directory / f"{node_id}"),
                cluster_id=CLUSTER,
                node_id=node_id,
                voters=voters,
                topic=TOPIC,
                topic_id=TOPIC_ID,
                directory_id=key(node_id).directory,
            )
            options = ReplicaOptions(
                directory=str(directory / f"{node_id}"),
                topic=TOPIC,
                topic_id=TOPIC_ID,
                port=at.port,
                bootstrap=tuple(endpoints.values()),
            )
            acceptor, dialer = side(node_id)
            nodes[node_id] = await stack.enter_async_context(
                running(disk, clock, options, acceptor=acceptor, dialer=dialer)
            )
        yield Three(nodes, endpoints)
