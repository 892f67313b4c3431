"""A whole replica: its files, its connections, its listener, and the task between them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from rlmm_daemon.adapters.quorum.files.formatted import topic_id_of
from rlmm_daemon.adapters.quorum.files.replica_files import ReplicaFiles
from rlmm_daemon.adapters.quorum.handshake import Acceptor, Dialer, Plain
from rlmm_daemon.adapters.quorum.links import Links
from rlmm_daemon.adapters.quorum.listener import Listener
from rlmm_daemon.adapters.quorum.node import Node, NodeOptions
from rlmm_daemon.adapters.quorum.service import Service
from rlmm_daemon.adapters.quorum.wire import Group
from rlmm_daemon.core.raft.roles import Timing
from rlmm_daemon.core.raft.voters import Endpoint, VoterSet
from rlmm_daemon.domain.errors import HistoryLost
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.disk import Disk

_PLAIN = Plain()


class ReplicaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where a replica lives, and where it listens."""

    #: Formatted before.
    directory: str
    topic: str
    #: None: the one that it was formatted for.
    topic_id: bytes | None = None
    #: What it has to be formatted as; None: whatever it is.
    node_id: int | None = None
    host: str = "127.0.0.1"
    #: 0: whichever is free, which only tests can want.
    port: int = 0
    #: What others are told, where that is another address (a proxy, a name); None: host and port.
    advertised: Endpoint | None = None
    listener: str = "QUORUM"
    #: Whom it asks who leads, while it knows nobody better.
    bootstrap: tuple[Endpoint, ...] = ()
    timing: Timing = Timing()
    #: So much of the log was committed, and on this disk, before: one that ends earlier is none.
    least_end: int = 0
    #: Of a quorum with kraft.version 0, whose log names none.
    static_voters: VoterSet | None = None


@asynccontextmanager
async def running(
    disk: Disk,
    clock: Clock,
    options: ReplicaOptions,
    *,
    acceptor: Acceptor = _PLAIN,
    dialer: Dialer = _PLAIN,
) -> AsyncIterator[Node]:
    """Run a replica as long as the block lasts; at its end, have somebody else lead.

    Raises:
        ConfigError, InTheWay, LogCorrupt, HistoryLost: as `ReplicaFiles.open`.
        OSError: its address can't be had; or, from the block, its disk failed.
    """
    topic_id = options.topic_id or await topic_id_of(disk, options.directory)
    files = await ReplicaFiles.open(
        disk,
        options.directory,
        topic=options.topic,
        topic_id=topic_id,
        static_voters=options.static_voters,
    )
    if files.log.end < options.least_end:
        await files.close()
        raise HistoryLost(
            f"{options.directory}: the log ends with offset {files.log.end}, and had been read up "
            f"to {options.least_end}: an older copy was put in its place. Start the daemon anew, "
            "which says what is missing"
        )
    group = Group(
        cluster_id=files.cluster_id,
        topic=options.topic,
        topic_id=topic_id,
        listener=options.listener,
    )
    timing = options.timing
    links = Links(group, dialer, timeout_seconds=(timing.fetch + timing.poll) / 1000)
    listener = Listener(acceptor)
    try:
        port = listener.bind(options.host, options.port)
        here = options.advertised or Endpoint(options.listener, options.host, port)
        node = Node(
            files,
            links,
            clock,
            NodeOptions(endpoints=(here,), bootstrap=options.bootstrap, timing=timing),
        )
        service = Service(node, group, lambda: (clock.now_ms(), int(clock.monotonic() * 1000)))
        async with asyncio.TaskGroup() as tasks:
            run = tasks.create_task(node.run())
            await node.started.wait()
            await listener.serve(service.handle)
            try:
                yield node
                await node.leave()
            finally:
                run.cancel()
    finally:
        await listener.close()
        links.close()
        await files.close()
