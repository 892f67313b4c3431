"""Keys of `[event_log]` with `kind = "quorum"`: this daemon's replica, and how its members meet."""

from typing import Annotated

from msgspec import Meta

from rlmm_daemon.config.kafka_log import KafkaSecurity
from rlmm_daemon.config.section import Address, FilePath, Milliseconds, Section


class QuorumSecurity(Section, frozen=True, kw_only=True):
    """How the quorum's members prove who they are; with nothing of it, only on loopback.

    Files are read again when they change.
    """

    #: PEM file of the quorum's own authority.
    ca_file: FilePath | None = None
    #: PEM file of this replica's certificate, which names `rlmm://CLUSTER_ID/BROKER_ID`.
    certificate_file: FilePath | None = None
    #: PEM file of the certificate's key.
    key_file: FilePath | None = None
    #: Who may connect with a password: lines of `rlmm quorum user`.
    users_file: FilePath | None = None
    #: File that holds this replica's own password, which it shows to the others.
    password_file: FilePath | None = None
    #: Public keys (JWKS) of who signs tokens with which members may connect.
    token_keys_file: FilePath | None = None
    #: The tokens' claim `iss`.
    token_issuer: str | None = None
    #: The tokens' claim `aud`.
    token_audience: str | None = None
    #: File that holds this replica's own token, which it shows to the others.
    token_file: FilePath | None = None
    #: Operators that may add and remove voters, by their proven names.
    voter_changers: tuple[str, ...] = ()
    #: True speaks in the clear beyond loopback: whoever reaches the port may vote.
    insecure: bool = False


class QuorumBrokers(Section, frozen=True, kw_only=True):
    """The cluster's brokers, who say which brokers there are and which topics are gone.

    Their principal needs Describe on the cluster and on topics.
    """

    #: `host:port` of any brokers of the cluster; the one beside the daemon is a good first.
    bootstrap: Annotated[tuple[Address, ...], Meta(min_length=1)]
    #: Name by which brokers know this client in their logs and quotas.
    client_id: Annotated[str, Meta(min_length=1, max_length=255)] = "rlmm"
    #: Time to connect, TLS and SASL included.
    connect_timeout_ms: Milliseconds = 5_000
    #: Time for one answer of a broker.
    request_timeout_ms: Milliseconds = 10_000
    security: KafkaSecurity = KafkaSecurity()


class QuorumReplica(Section, frozen=True, kw_only=True):
    """This daemon's replica; its id is `daemon.broker_id`."""

    #: Directory that `rlmm quorum format` made. Default: `quorum` below `daemon.state_dir`.
    directory: FilePath | None = None
    #: `host:port` where it listens, and what the others are told (`controller.listeners`).
    listen: Address
    #: `host:port` of other replicas, asked who leads (`controller.quorum.bootstrap.servers`).
    bootstrap: tuple[Address, ...] = ()
    #: Metadata partitions of the log, where this daemon begins it. Fixed from then on.
    partition_count: Annotated[int, Meta(ge=1, le=10_000)] = 50
    #: A record whose fate is not known after so long is given up as `outcome_unknown`.
    delivery_timeout_ms: Milliseconds = 120_000
    #: Without a leader, an election begins after one to two of these; the same at all replicas
    #: (`controller.quorum.election.timeout.ms`).
    election_timeout_ms: Milliseconds = 500
    #: A replica that heard so long nothing of its leader asks for another; the same at all replicas
    #: (`controller.quorum.fetch.timeout.ms`).
    fetch_timeout_ms: Milliseconds = 1_000
    security: QuorumSecurity = QuorumSecurity()
    brokers: QuorumBrokers | None = None


class QuorumLog(Section, frozen=True, kw_only=True, tag_field="kind", tag="quorum"):
    """A log that several daemons keep together, each with a replica of it."""

    #: True says that this daemon's broker is the cluster's only one.
    single_broker: bool = False
    quorum: QuorumReplica
