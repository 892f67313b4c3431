"""Keys of `[event_log]` held against each other: what one needs and another would ignore."""

import ipaddress
from collections.abc import Iterator
from typing import Final

from rlmm_daemon.config.event_log import EmbeddedLog
from rlmm_daemon.config.kafka_log import KafkaLog, KafkaSecurity
from rlmm_daemon.config.model import Config
from rlmm_daemon.config.quorum_log import QuorumLog, QuorumSecurity
from rlmm_daemon.config.remote_storage import NoStorage

_PORT_MAX: Final = 65_535
_KAFKA: Final = "event_log.kafka"
_QUORUM: Final = "event_log.quorum"
#: Nobody can dial them.
_ANYWHERE: Final = frozenset({"0.0.0.0", "::", "*"})  # noqa: S104 - refused


def check_event_log(config: Config) -> Iterator[str]:
    """Yield every mistake in words: what, where, and what to do."""
    match config.event_log:
        case EmbeddedLog() as log:
            yield from _check_embedded_log(config, log)
        case KafkaLog(kafka=kafka):
            yield from _check_kafka_security(kafka.security, f"{_KAFKA}.security")
            if kafka.controllers is not None:
                here = f"{_KAFKA}.controllers.security"
                yield from _check_kafka_security(kafka.controllers.security, here)
        case QuorumLog() as log:
            yield from _check_quorum(config, log)


def _check_embedded_log(config: Config, log: EmbeddedLog) -> Iterator[str]:
    if config.daemon.cluster_id is None:
        yield (
            "daemon.cluster_id is missing: an embedded log can't ask a broker for it; "
            "copy cluster.id from the broker's meta.properties"
        )
    if not log.single_broker:
        yield (
            "event_log.single_broker = false: an embedded log is this daemon's alone, so with "
            "several brokers the first leadership change would lose data; set it to true only in "
            "a cluster of one broker"
        )


def _check_kafka_security(security: KafkaSecurity, here: str) -> Iterator[str]:
    """What one protocol needs and another would silently ignore."""
    for name, wanted, keys in (
        ("SASL", "SASL" in security.protocol, ("mechanism", "username", "password")),
        ("TLS", "SSL" in security.protocol, ("ca", "certificate", "key", "key_password")),
    ):
        for key in keys:
            given = [
                each
                for each in (key, f"{key}_file", f"{key}_env")
                if getattr(security, each, None) is not None
            ]
            if given and not wanted:
                yield (
                    f'{here}.{given[0]} is set, but protocol = "{security.protocol}" uses no {name}'
                )
            if len(given) > 1:
                yield f"{here}.{given[0]} and {given[1]} are both set; keep one of them"
            if name == "SASL" and wanted and not given:
                choice = key if key != "password" else "password_file or password_env"
                yield f'{here}.{choice} is missing: protocol = "{security.protocol}" needs it'
    if (security.certificate_file is None) != (security.key_file is None):
        yield f"{here}.certificate_file and key_file belong together: set both or neither"


def _check_quorum(config: Config, log: QuorumLog) -> Iterator[str]:
    here, quorum = _QUORUM, log.quorum
    if config.daemon.cluster_id is None:
        yield (
            "daemon.cluster_id is missing: the quorum belongs to one cluster; copy cluster.id "
            "from the broker's meta.properties, the one that rlmm quorum format was told"
        )
    for key, address in (
        ("listen", quorum.listen),
        *((f"bootstrap[{n}]", each) for n, each in enumerate(quorum.bootstrap)),
    ):
        host, _, port = address.rpartition(":")
        if not 0 < int(port) <= _PORT_MAX:
            yield f'{here}.{key} = "{address}": a port is 1 to {_PORT_MAX}'
        if key == "listen" and host.strip("[]") in _ANYWHERE:
            yield f'{here}.listen = "{address}": the others are told this address, so name one'
    if quorum.listen in quorum.bootstrap:
        yield f"{here}.bootstrap names this replica's own {here}.listen: name the others"
    if quorum.fetch_timeout_ms < quorum.election_timeout_ms:
        yield (
            f"{here}.fetch_timeout_ms is below election_timeout_ms: a leader would be given up "
            "before another could be elected"
        )
    if log.single_broker and quorum.brokers is not None:
        yield (
            f"[{here}.brokers] is set, and event_log.single_broker = true says that there is one "
            "broker, which tells this daemon itself: leave out one of the two"
        )
    if (
        not log.single_broker
        and quorum.brokers is None
        and not isinstance(config.storage, NoStorage)
    ):
        yield (
            f"the table [{here}.brokers] is missing: only the cluster's brokers can tell which "
            "topics are gone, and without them nothing that is stored would ever be removed; or "
            "event_log.single_broker = true, in a cluster of one broker"
        )
    if quorum.brokers is not None:
        yield from _check_kafka_security(quorum.brokers.security, f"{here}.brokers.security")
    yield from _check_quorum_security(quorum.security, f"{here}.security", quorum.listen)


def _check_quorum_security(security: QuorumSecurity, here: str, listen: str) -> Iterator[str]:
    """As the replica itself judges it at its start, in the configuration's words."""
    has_certificate = security.certificate_file is not None
    shows = [key for key in ("password_file", "token_file") if getattr(security, key) is not None]
    keys = (security.token_keys_file, security.token_issuer, security.token_audience)
    asks = security.users_file is not None or any(each is not None for each in keys)
    if has_certificate != (security.key_file is not None):
        yield f"{here}.certificate_file and key_file belong together: set both or neither"
    if security.ca_file is None and (has_certificate or shows or asks):
        yield f"{here}.ca_file is missing: the quorum's authority, by which replicas know another"
    if security.ca_file is not None and not has_certificate:
        yield f"{here}.certificate_file is missing: a replica is known by its certificate"
    if len(shows) > 1:
        yield f"{here}.password_file and token_file are both set; keep one of them"
    if any(each is None for each in keys) and any(each is not None for each in keys):
        yield f"{here}.token_keys_file, token_issuer and token_audience belong together"
    if asks and not shows:
        yield (
            f"{here}.password_file or token_file is missing: with users_file or token_keys_file "
            "the other replicas ask this one, too"
        )
    if security.ca_file is None and not security.insecure and not _is_loopback(listen):
        yield (
            f'{_QUORUM}.listen = "{listen}" is not on loopback, and nobody would prove who they '
            f"are: set ca_file, certificate_file and key_file in [{here}], or insecure = true in a "
            "network where nobody else reaches it"
        )
    if security.ca_file is not None and security.insecure:
        yield f"{here}.insecure = true and ca_file are both set; keep one of them"


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name: nobody knows what it will mean
