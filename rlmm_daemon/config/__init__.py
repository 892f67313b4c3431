"""The configuration: TOML in, frozen structs out, every mistake named at once.

`model` says what there is and within which bounds, `loading` reads and judges a file, `secret`
holds what must never be printed. Nothing here touches the network or creates a file.
"""

from rlmm_daemon.config.event_log import EmbeddedLog, EventLog
from rlmm_daemon.config.kafka_log import (
    KafkaAdmin,
    KafkaClient,
    KafkaControllers,
    KafkaFetch,
    KafkaLog,
    KafkaProducer,
    KafkaSecurity,
)
from rlmm_daemon.config.loading import differences, effective_toml, load, parse
from rlmm_daemon.config.model import (
    Admin,
    Assignment,
    Config,
    Copy,
    Daemon,
    Log,
    Peers,
    Read,
    Readiness,
    Rights,
    Snapshots,
    Socket,
)
from rlmm_daemon.config.quorum_log import (
    QuorumBrokers,
    QuorumLog,
    QuorumReplica,
    QuorumSecurity,
)
from rlmm_daemon.config.remote_storage import LocalStorage, NoStorage, S3Storage, Storage
from rlmm_daemon.config.secret import read_secret
from rlmm_daemon.domain.secret import Secret

__all__ = [
    "Admin",
    "Assignment",
    "Config",
    "Copy",
    "Daemon",
    "EmbeddedLog",
    "EventLog",
    "KafkaAdmin",
    "KafkaClient",
    "KafkaControllers",
    "KafkaFetch",
    "KafkaLog",
    "KafkaProducer",
    "KafkaSecurity",
    "LocalStorage",
    "Log",
    "NoStorage",
    "Peers",
    "QuorumBrokers",
    "QuorumLog",
    "QuorumReplica",
    "QuorumSecurity",
    "Read",
    "Readiness",
    "Rights",
    "S3Storage",
    "Secret",
    "Snapshots",
    "Socket",
    "Storage",
    "differences",
    "effective_toml",
    "load",
    "parse",
    "read_secret",
]
