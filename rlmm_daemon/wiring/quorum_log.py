"""The quorum's log put together: this daemon's replica, its connections, and their proof."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.quorum.authentication.principals import Principal
from rlmm_daemon.adapters.quorum.event_log import QuorumLog, QuorumLogOptions
from rlmm_daemon.adapters.quorum.files.formatted import TOPIC
from rlmm_daemon.adapters.quorum.handshake import Acceptor, Dialer
from rlmm_daemon.adapters.quorum.replica import ReplicaOptions
from rlmm_daemon.config import Config, QuorumReplica, QuorumSecurity
from rlmm_daemon.config import QuorumLog as QuorumLogConfig
from rlmm_daemon.core.raft.roles import Timing
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.wiring.quorum_proof import (
    Belief,
    Proof,
    acceptor_of,
    dialer_of,
    require_allowed,
    way_of,
)

#: The listener under whose name replicas tell each other their addresses.
LISTENER: Final = "QUORUM"


def quorum_log_of(
    config: Config,
    disk: LocalDisk,
    clock: SystemClock,
    rng: random.Random,
    *,
    spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
) -> QuorumLog:
    """Return the log, closed.

    Raises:
        ConfigError: a file that proves who this replica is does not hold.
    """
    assert isinstance(config.event_log, QuorumLogConfig), "it is the configured one"
    chosen = config.event_log.quorum
    acceptor, dialer = connections_of(config, chosen)
    listen = endpoint_of(chosen.listen)
    timing = Timing(election=chosen.election_timeout_ms, fetch=chosen.fetch_timeout_ms)
    return QuorumLog(
        disk=disk,
        clock=clock,
        spawn=spawn,
        luck=rng,
        replica=ReplicaOptions(
            directory=config.quorum_directory,
            topic=TOPIC,
            node_id=config.daemon.broker_id,
            host=listen.host,
            port=listen.port,
            listener=LISTENER,
            bootstrap=tuple(map(endpoint_of, chosen.bootstrap)),
            timing=timing,
        ),
        partition_count=chosen.partition_count,
        cluster_id=config.daemon.cluster_id,
        options=QuorumLogOptions(delivery_timeout_seconds=chosen.delivery_timeout_ms / 1000),
        acceptor=acceptor,
        dialer=dialer,
    )


def connections_of(config: Config, chosen: QuorumReplica) -> tuple[Acceptor, Dialer]:
    """Return how this replica knows the others and proves who it is, both ways.

    Raises:
        ConfigError: a file does not hold, or is another member's.
    """
    cluster_id, member = config.daemon.cluster_id, Principal(node=config.daemon.broker_id)
    assert cluster_id is not None, "the configuration was checked"
    proof, belief = _proof_of(chosen.security), _belief_of(chosen.security)
    changers = frozenset(chosen.security.voter_changers)
    way = way_of(
        proof,
        cluster_id=cluster_id,
        member=member,
        voter_changers=changers,
        asks_clients=not belief.asks_sasl,
    )
    require_allowed(way, endpoint_of(chosen.listen))
    acceptor = acceptor_of(
        way,
        belief,
        proof=proof,
        cluster_id=cluster_id,
        voter_changers=changers,
        now_ms=SystemClock().now_ms,
    )
    return acceptor, dialer_of(way, proof, member)


def endpoint_of(address: str) -> Endpoint:
    """Return a configured `host:port`."""
    host, _, port = address.rpartition(":")
    return Endpoint(LISTENER, host.strip("[]"), int(port))


def _proof_of(security: QuorumSecurity) -> Proof:
    return Proof(
        ca_file=security.ca_file,
        certificate_file=security.certificate_file,
        key_file=security.key_file,
        password_file=security.password_file,
        token_file=security.token_file,
        insecure=security.insecure,
    )


def _belief_of(security: QuorumSecurity) -> Belief:
    return Belief(
        users_file=security.users_file,
        token_keys_file=security.token_keys_file,
        token_issuer=security.token_issuer,
        token_audience=security.token_audience,
    )
