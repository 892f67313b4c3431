"""Keys of `[event_log]` with `kind = "kafka"`: Kafka's own metadata topic."""

from typing import Annotated, Literal

from msgspec import Meta, field

from rlmm_daemon.config.section import MIB, Address, FilePath, Milliseconds, Section


class KafkaSecurity(Section, frozen=True, kw_only=True):
    """How the brokers know this daemon, and it them."""

    #: As Kafka names it: with or without TLS (SSL), with or without SASL.
    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    #: PEM file of the authorities to trust. Default: the machine's own.
    ca_file: FilePath | None = None
    #: PEM file of the daemon's certificate, for mutual TLS; a chain may follow the certificate.
    certificate_file: FilePath | None = None
    #: PEM file of the certificate's key.
    key_file: FilePath | None = None
    #: File that holds the key's password.
    key_password_file: FilePath | None = None
    #: Environment variable that holds the key's password.
    key_password_env: str | None = None
    #: False accepts any host name in a certificate that the authority signed.
    verify_host_name: bool = True
    #: SASL's mechanism; needed where the protocol uses SASL.
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    #: SASL's user name.
    username: str | None = None
    #: File that holds SASL's password.
    password_file: FilePath | None = None
    #: Environment variable that holds SASL's password.
    password_env: str | None = None


class KafkaProducer(Section, frozen=True, kw_only=True):
    """Writing to the metadata topic: idempotent, acks=all."""

    #: A record whose fate is not known after so long is given up as `outcome_unknown`.
    delivery_timeout_ms: Milliseconds = 120_000
    #: Time for one answer of a broker. Default: as in `[event_log.kafka]`.
    request_timeout_ms: Milliseconds | None = None
    #: Size of the values in one record batch; below the topic's `max.message.bytes`.
    batch_bytes_max: Annotated[int, Meta(ge=1_024, le=64 * MIB)] = 256 * 1024
    #: Records that wait in one metadata partition; more are refused as `overloaded`.
    pending_records_max: Annotated[int, Meta(ge=1, le=1_048_576)] = 16_384


class KafkaFetch(Section, frozen=True, kw_only=True):
    """Reading the metadata topic: one connection and one long poll per followed partition."""

    #: The broker answers after so long even if no record came.
    max_wait_ms: Annotated[int, Meta(ge=1, le=30_000)] = 500
    #: Size of one answer.
    bytes_max: Annotated[int, Meta(ge=4_096, le=64 * MIB)] = MIB
    #: Size of the records of one compressed batch, once unpacked; a larger batch fails its
    #: metadata partition until this is set higher.
    unpacked_bytes_max: Annotated[int, Meta(ge=65_536, le=1_024 * MIB)] = 16 * MIB
    #: Time for an answer, beyond `max_wait_ms`; then the connection counts as dead.
    request_timeout_ms: Milliseconds = 5_000


class KafkaAdmin(Section, frozen=True, kw_only=True):
    """The metadata topic itself: how it is made if absent, what is asked of an existing one."""

    #: Partitions of a topic that this daemon creates; an existing topic keeps its own number.
    partition_count: Annotated[int, Meta(ge=1, le=10_000)] = 50
    #: Replicas of a topic that this daemon creates.
    replication_factor: Annotated[int, Meta(ge=1, le=32_767)] = 3
    #: `min.insync.replicas` of a topic that this daemon creates. Default: 2, or what the
    #: replication factor allows.
    min_insync_replicas: Annotated[int, Meta(ge=1, le=32_767)] | None = None
    #: More of a new topic's configuration, as `{ "segment.bytes" = "104857600" }`. Without it:
    #: `cleanup.policy=delete`, `retention.ms=-1`, `remote.storage.enable=false`.
    topic_settings: dict[str, str] = field(default_factory=dict)
    #: True refuses a topic that compacts or deletes by age or size; false warns.
    require_infinite_retention: bool = False
    #: Time for one answer of a broker. Default: as in `[event_log.kafka]`.
    request_timeout_ms: Milliseconds | None = None


class KafkaControllers(Section, frozen=True, kw_only=True):
    """The cluster's controllers, followed as an observer; without this section they are not asked.

    What brokers call deleted is then held against the controllers' own log. The principal needs
    ClusterAction on the cluster.
    """

    #: `host:port` of any controllers of the cluster (`controller.quorum.bootstrap.servers`).
    bootstrap: Annotated[tuple[Address, ...], Meta(min_length=1)]
    security: KafkaSecurity = KafkaSecurity()


class KafkaClient(Section, frozen=True, kw_only=True):
    """How the brokers are reached; the sections below it override what they name."""

    #: `host:port` of any brokers of the cluster; the one beside the daemon is a good first.
    bootstrap: Annotated[tuple[Address, ...], Meta(min_length=1)]
    #: Name of the metadata topic.
    topic: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,249}$")] = "__remote_log_metadata"
    #: Name by which brokers know this client in their logs and quotas.
    client_id: Annotated[str, Meta(min_length=1, max_length=255)] = "rlmm"
    #: Time to connect, TLS and SASL included.
    connect_timeout_ms: Milliseconds = 5_000
    #: Time for one answer of a broker.
    request_timeout_ms: Milliseconds = 10_000
    #: Pause after an error; doubled with each further one, and jittered.
    retry_backoff_ms: Milliseconds = 50
    #: Longest pause after an error.
    retry_backoff_max_ms: Milliseconds = 2_000
    security: KafkaSecurity = KafkaSecurity()
    producer: KafkaProducer = KafkaProducer()
    fetch: KafkaFetch = KafkaFetch()
    admin: KafkaAdmin = KafkaAdmin()
    controllers: KafkaControllers | None = None


class KafkaLog(Section, frozen=True, kw_only=True, tag_field="kind", tag="kafka"):
    """Kafka's own metadata topic, in the cluster of the broker beside this daemon."""

    kafka: KafkaClient
