"""A quorum's replica as a process of its own, and the client that asks one."""

import asyncio
import errno
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import structlog

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.quorum.authentication.principals import Principal
from rlmm_daemon.adapters.quorum.client import QuorumClient
from rlmm_daemon.adapters.quorum.event_log import QuorumLogOptions
from rlmm_daemon.adapters.quorum.event_log.checkpointer import Checkpointer
from rlmm_daemon.adapters.quorum.event_log.folding import Folding
from rlmm_daemon.adapters.quorum.files.formatted import (
    TOPIC,
    note_abandoned,
    require_may_run,
    topic_id_of,
)
from rlmm_daemon.adapters.quorum.files.identity import read_meta
from rlmm_daemon.adapters.quorum.files.layout import Layout
from rlmm_daemon.adapters.quorum.handshake import Plain
from rlmm_daemon.adapters.quorum.node import Node
from rlmm_daemon.adapters.quorum.replica import ReplicaOptions, running
from rlmm_daemon.adapters.quorum.wire import Group
from rlmm_daemon.core.raft.roles import Replica
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.daemon.process.runtime import execute
from rlmm_daemon.daemon.process.systemd import Notifier
from rlmm_daemon.domain.errors import (
    ConfigError,
    HistoryLost,
    RlmmError,
    StorageUnavailable,
)
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.wiring.quorum_proof import (
    Belief,
    Proof,
    acceptor_of,
    dialer_of,
    require_allowed,
    way_of,
)

_log = structlog.get_logger(__name__)

_ANYWHERE: Final = frozenset({"0.0.0.0", "::", "*"})  # noqa: S104 - refused


#: A disk has none of them.
_OF_ADDRESSES: Final = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


class QuorumProcess(msgspec.Struct, frozen=True, kw_only=True):
    """What `rlmm quorum run` is told."""

    directory: str
    listen: Endpoint
    servers: tuple[Endpoint, ...]
    proof: Proof = Proof()
    belief: Belief = Belief()
    #: Names of operators that may add and remove voters.
    voter_changers: frozenset[str] = frozenset()


def run(options: QuorumProcess) -> int:
    """Run a replica until SIGTERM or Ctrl-C, which hand over first; return the exit code."""
    return execute(lambda: _serve(options))


async def _serve(options: QuorumProcess) -> None:
    disk = LocalDisk()
    try:
        await _replica(disk, options)
    except* HistoryLost as errors:
        lost = _first(errors)
        epoch = lost.fields.get("forced_epoch") if isinstance(lost, HistoryLost) else None
        if epoch is not None:
            await note_abandoned(disk, options.directory, epoch)
        raise
    except* OSError as errors:
        failed = _first(errors)
        if isinstance(failed, OSError) and failed.errno in _OF_ADDRESSES:
            raise StorageUnavailable(f"--listen {_text(options.listen)}: {failed}") from failed
        raise StorageUnavailable(
            f"{options.directory}: {failed}; what it holds is read anew at the next start"
        ) from failed
    finally:
        disk.close()


async def _replica(disk: LocalDisk, options: QuorumProcess) -> None:
    listen = options.listen
    if listen.host in _ANYWHERE:
        raise ConfigError(f"--listen {listen.host}: others are told this address, so name one")
    await require_may_run(disk, options.directory)
    topic_id = await topic_id_of(disk, options.directory)
    meta = await read_meta(disk, Layout(options.directory, TOPIC))
    member, clock = Principal(node=meta.node_id), SystemClock()
    way = way_of(
        options.proof,
        cluster_id=meta.cluster_id,
        member=member,
        voter_changers=options.voter_changers,
        asks_clients=not options.belief.asks_sasl,
    )
    require_allowed(way, listen)
    acceptor = acceptor_of(
        way,
        options.belief,
        proof=options.proof,
        cluster_id=meta.cluster_id,
        voter_changers=options.voter_changers,
        now_ms=clock.now_ms,
    )
    dialer = dialer_of(way, options.proof, member)
    replica = ReplicaOptions(
        directory=options.directory,
        topic=TOPIC,
        topic_id=topic_id,
        host=listen.host,
        port=listen.port,
        listener=listen.name,
        bootstrap=options.servers,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        async with running(disk, clock, replica, acceptor=acceptor, dialer=dialer) as node:
            _tell(node, options, topic_id)
            async with checkpoints_of(node):
                await stop.wait()
            _log.info("stopping", handing_over=_leads(node))
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    _log.info("stopped")


@asynccontextmanager
async def checkpoints_of(node: Node) -> AsyncIterator[None]:
    """Bound the log of a replica that no daemon reads, as long as the block lasts.

    Nothing is compacted: what is needed no more only a daemon's own folds tell.
    """
    options = QuorumLogOptions()
    folding = Folding(options, lambda *_: None, lambda _: None)
    checkpointer = Checkpointer(folding, options)
    folding.attach(node)

    async def fold() -> None:
        await folding.run()
        try:
            folding.require_whole()
        except RlmmError as error:  # who votes and serves goes on
            _log.error("quorum_checkpoint_failed", why=error.message)

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(fold()), tasks.create_task(checkpointer.run(node))]
        try:
            yield
        finally:
            for each in running:
                each.cancel()


def _tell(node: Node, options: QuorumProcess, topic_id: bytes) -> None:
    """Say that it serves, and then each change of its role, leader or voters."""
    notifier = Notifier.from_environment(os.environ, os.getpid())

    def changed(replica: Replica) -> None:
        role = type(replica.role).__name__.lower()
        voters = [key.id for key in replica.in_force.keys]
        _log.info(
            "quorum_role",
            role=role if replica.is_voter else f"observer, {role}",
            epoch=replica.epoch,
            leader=replica.leader,
            voters=voters,
        )
        notifier.notify(f"STATUS={role}, epoch {replica.epoch}, leader {replica.leader}")

    replica = node.replica
    assert replica is not None, "it runs"
    _log.info(
        "quorum_replica_serves",
        replica=replica.me.id,
        directory_id=uuid_text(replica.me.directory),
        cluster_id=replica.cluster_id,
        topic_id=uuid_text(topic_id),
        listen=_text(options.listen),
        end=replica.log.end,
    )
    changed(replica)
    node.on_change.append(changed)
    notifier.notify("READY=1")


def _leads(node: Node) -> bool:
    return node.replica.leader == node.replica.me.id


async def asking(
    servers: Sequence[Endpoint], *, timeout_seconds: float, proof: Proof
) -> tuple[str, QuorumClient]:
    """Return the cluster that the servers say they are of, and a client for its quorum.

    Raises:
        StorageUnavailable: nobody answers in time.
        ConfigError: a server is beyond loopback, and nobody would prove who they are; or the files
            of the proof don't hold.
    """
    way = way_of(proof)
    for each in servers:
        if isinstance(way, Plain):
            require_allowed(way, each)
    dialer = dialer_of(way, proof)

    def client(cluster_id: str) -> QuorumClient:
        # An operator's questions name no topic id.
        group = Group(
            cluster_id=cluster_id, topic=TOPIC, topic_id=bytes(16), listener=servers[0].name
        )
        return QuorumClient(group, dialer, servers, timeout_seconds=timeout_seconds)

    cluster_id = await client("").cluster_id()
    return cluster_id, client(cluster_id)


def _first(errors: BaseExceptionGroup[Exception]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _text(at: Endpoint) -> str:
    return f"{at.host}:{at.port}"
