"""A broker's `rlmm.config.remote.log.metadata.*` as this daemon's TOML, or why a key has no place.

No secret is taken over: a password belongs into a file of its own, which the TOML names.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from rlmm_daemon.config.loading import parse
from rlmm_daemon.domain.errors import ConfigError

_PREFIX_KEY: Final = "remote.log.metadata.manager.impl.prefix"
_LISTENER_KEY: Final = "remote.log.metadata.manager.listener.name"
_DEFAULT_PREFIX: Final = "rlmm.config."
_COMMON: Final = "remote.log.metadata.common.client."
_CLIENTS: Final = ("producer", "consumer", "admin")
_LOG: Final = "event_log.kafka"
_SECURITY: Final = f"{_LOG}.security"

#: Key of Kafka's manager -> key here.
_OWN: Final = MappingProxyType(
    {
        "remote.log.metadata.topic.num.partitions": f"{_LOG}.admin.partition_count",
        "remote.log.metadata.topic.replication.factor": f"{_LOG}.admin.replication_factor",
        "remote.log.metadata.topic.min.isr": f"{_LOG}.admin.min_insync_replicas",
    }
)
_FOR_EVER: Final = "the daemon looks for its brokers for ever, and says what stands in the way"
#: Key of Kafka's manager -> why it has no place here.
_OWN_NOT: Final = MappingProxyType(
    {
        "remote.log.metadata.topic.retention.ms": "a new topic always gets -1, since events of "
        "live segments must not expire",
        "remote.log.metadata.consume.wait.ms": "each caller brings its own deadline; "
        "socket.request_timeout_ms bounds it",
        "remote.log.metadata.initialization.retry.max.timeout.ms": _FOR_EVER,
        "remote.log.metadata.initialization.retry.interval.ms": f"{_FOR_EVER}; the pauses are "
        f"{_LOG}.retry_backoff_ms and retry_backoff_max_ms",
    }
)
#: Client settings that each of Kafka's clients has, by their place below [event_log.kafka].
_SHARED: Final = MappingProxyType(
    {
        "client.id": "client_id",
        "request.timeout.ms": "request_timeout_ms",
        "retry.backoff.ms": "retry_backoff_ms",
        "retry.backoff.max.ms": "retry_backoff_max_ms",
        "socket.connection.setup.timeout.ms": "connect_timeout_ms",
    }
)
_BY_CLIENT: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "producer": {
            "request.timeout.ms": "producer.request_timeout_ms",
            "delivery.timeout.ms": "producer.delivery_timeout_ms",
            "batch.size": "producer.batch_bytes_max",
        },
        "consumer": {
            "request.timeout.ms": "fetch.request_timeout_ms",
            "fetch.max.wait.ms": "fetch.max_wait_ms",
            "max.partition.fetch.bytes": "fetch.bytes_max",
        },
        "admin": {"request.timeout.ms": "admin.request_timeout_ms"},
    }
)
_GROUP: Final = "there is no consumer group: each partition is followed from its own position"
_ALWAYS: Final = "writes are always idempotent with acks=all, one batch of a partition under way"
#: Client setting -> why it has no place here, whichever client it was meant for.
_CLIENT_NOT: Final = MappingProxyType(
    {
        **dict.fromkeys(
            ("acks", "enable.idempotence", "max.in.flight.requests.per.connection", "retries"),
            _ALWAYS,
        ),
        **dict.fromkeys(
            (
                "group.id",
                "group.instance.id",
                "auto.offset.reset",
                "enable.auto.commit",
                "auto.commit.interval.ms",
                "session.timeout.ms",
                "heartbeat.interval.ms",
                "max.poll.interval.ms",
                "max.poll.records",
            ),
            _GROUP,
        ),
        "linger.ms": "what comes while a request is under way shares the next one; nothing lingers",
        "compression.type": "events are written as they are",
        "buffer.memory": f"{_LOG}.producer.pending_records_max bounds what waits, by records",
        "max.block.ms": "a caller's deadline bounds what it waits for",
        "fetch.min.bytes": "always 1, so that an event is read as soon as it is there",
        "fetch.max.bytes": "one partition to a fetch: max.partition.fetch.bytes bounds it",
        "isolation.level": "always read_uncommitted, as Kafka's own manager reads the topic",
        "exclude.internal.topics": _GROUP,
        "key.serializer": "keys are null",
        "value.serializer": "Kafka's own form of the records is built in",
        "key.deserializer": "keys are not read",
        "value.deserializer": "Kafka's own form of the records is built in",
    }
)
#: What has to be said of the connection once, for all of Kafka's clients.
_CONNECTION: Final = frozenset({"bootstrap.servers", "security.protocol"})
_CONNECTION_PREFIXES: Final = ("sasl.", "ssl.")
_PROTOCOLS: Final = frozenset({"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"})
_MECHANISMS: Final = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})
_SECRET: Final = re.compile(r"password|secret|jaas|ssl\.keystore\.key|certificate\.chain")


def read(text: str) -> dict[str, str]:
    """Return the entries of a `.properties` file; of a key that is there twice, the last."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        match = re.match(r"((?:\\.|[^\\=:\s])+)\s*[=:\s]?\s*(.*)", line)
        if match is not None:
            key, value = (_unescaped(each) for each in match.groups())
            found[key] = value
    return found


def _logical_lines(text: str) -> Iterator[str]:
    gathered = ""
    for raw in text.splitlines():
        line = raw.lstrip()
        if not gathered and (not line or line[0] in "#!"):
            continue
        gathered += line
        if re.search(r"(?<!\\)(\\\\)*\\$", gathered):
            gathered = gathered[:-1]
            continue
        yield gathered
        gathered = ""
    if gathered:
        yield gathered


def _unescaped(text: str) -> str:
    plain = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

    def one(match: re.Match[str]) -> str:
        code = match.group(1)
        return chr(int(code[1:], 16)) if len(code) > 1 else plain.get(code, code)

    return re.sub(r"\\(u[0-9A-Fa-f]{4}|.)", one, text)


class _Taken(msgspec.Struct):
    """What goes into the TOML, and what is only said."""

    #: Dotted key here -> (TOML value, the key that it is from).
    values: dict[str, tuple[str, str]] = msgspec.field(default_factory=dict)
    remarks: list[str] = msgspec.field(default_factory=list)

    def put(self, key: str, value: str | int | list[str], source: str) -> None:
        """Take a value over; the first word stands, and a later one that differs is remarked on."""
        packed = json.dumps(value)
        stands, whose = self.values.setdefault(key, (packed, source))
        if stands != packed:
            self.remark(source, f"{key} is what {whose} says")

    def number(self, key: str, value: str, source: str) -> None:
        """Take over what has to be an integer."""
        if re.fullmatch(r"-?\d+", value.strip()):
            self.put(key, int(value), source)
        else:
            self.remark(source, f"{value!r} is no number")

    def remark(self, source: str, why: str) -> None:
        """Say why a key has no place."""
        self.remarks.append(f"{source}: {why}")


def to_toml(properties: Mapping[str, str]) -> str:
    """Return the TOML of a daemon beside that broker; comments say which keys have no place.

    What the daemon would not accept as it stands is said in comments at the head.
    """
    prefix = properties.get(_PREFIX_KEY, _DEFAULT_PREFIX)
    given = {
        key.removeprefix(prefix): value
        for key, value in sorted(properties.items())
        if key.startswith(prefix)
    }
    taken = _Taken()
    _broker(properties, taken)
    taken.put("event_log.kind", "kafka", "")
    common = {k.removeprefix(_COMMON): v for k, v in given.items() if k.startswith(_COMMON)}
    _connection(_with_listener(properties, common), taken)
    for key in sorted(given, key=_order):
        _one(key, given[key], common, taken)
    body = _written(taken.values)
    return "".join(f"{line}\n" for line in [*_complaints(body), *body, *_said(taken.remarks)])


def _order(key: str) -> tuple[bool, int, str]:
    """Sort what counts, where two keys say one thing, before the other: a client's own word first.

    There is one client id for all, so there it is the other way round; then the producer's, whom
    the brokers know best.
    """
    prefixes = [f"remote.log.metadata.{client}." for client in _CLIENTS]
    place = next((at for at, prefix in enumerate(prefixes) if key.startswith(prefix)), -1)
    return (place < 0 and not key.endswith(".client.id")), place, key


def _broker(properties: Mapping[str, str], taken: _Taken) -> None:
    for key in ("node.id", "broker.id"):
        if key in properties:
            taken.number("daemon.broker_id", properties[key], key)
    for key in ("log.dirs", "log.dir"):
        if key in properties:
            directories = [each.strip() for each in properties[key].split(",") if each.strip()]
            taken.put("daemon.log_dirs", directories, key)


def _with_listener(properties: Mapping[str, str], common: Mapping[str, str]) -> dict[str, str]:
    """Return the common settings with what the broker itself fills in from its listener."""
    name = properties.get(_LISTENER_KEY)
    filled = dict(common)
    if name is None:
        return filled
    for key in ("advertised.listeners", "listeners"):
        for each in properties.get(key, "").split(","):
            listener, _, address = each.strip().partition("://")
            if listener == name and not address.startswith(":"):
                filled.setdefault("bootstrap.servers", address)
    protocols = dict(
        each.strip().split(":", 1)
        for each in properties.get("listener.security.protocol.map", "").split(",")
        if ":" in each
    )
    # Kafka's own map names each protocol's listener after it.
    protocol = protocols.get(name) or (name if name in _PROTOCOLS else None)
    if protocol is not None:
        filled.setdefault("security.protocol", protocol)
    return filled


def _one(key: str, value: str, common: Mapping[str, str], taken: _Taken) -> None:
    """Take over one key of the manager, or say why not."""
    if key in _OWN:
        taken.number(_OWN[key], value, key)
    elif key in _OWN_NOT:
        taken.remark(key, _OWN_NOT[key])
    elif key.startswith(_COMMON):
        name = key.removeprefix(_COMMON)
        if not _is_connection(name):
            _client_setting(name, value, key, None, taken=taken)
    else:
        for client in _CLIENTS:
            prefix = f"remote.log.metadata.{client}."
            if key.startswith(prefix):
                name = key.removeprefix(prefix)
                if not _is_connection(name):
                    _client_setting(name, value, key, client, taken=taken)
                elif common.get(name) != value:
                    taken.remark(key, f"one connection for all: say it as {_COMMON}{name}")
                return
        taken.remark(key, "no setting of Kafka's metadata manager")


def _client_setting(name: str, value: str, key: str, client: str | None, *, taken: _Taken) -> None:
    place = _BY_CLIENT[client].get(name) if client else None
    if place is None and (client is None or name == "client.id"):
        place = _SHARED.get(name)
    if place is not None and name == "client.id":
        taken.put(f"{_LOG}.{place}", value, key)
    elif place is not None:
        taken.number(f"{_LOG}.{place}", value, key)
    elif client is None and (several := [c for c in _CLIENTS if name in _BY_CLIENT[c]]):
        for each in several:
            taken.number(f"{_LOG}.{_BY_CLIENT[each][name]}", value, key)
    elif name in _CLIENT_NOT:
        taken.remark(key, _CLIENT_NOT[name])
    elif name in _SHARED:
        taken.remark(key, f"one setting for all: say it as {_COMMON}{name}")
    else:
        taken.remark(key, "the daemon's client has no such setting")


def _is_connection(name: str) -> bool:
    return name in _CONNECTION or name.startswith(_CONNECTION_PREFIXES)


def _connection(given: Mapping[str, str], taken: _Taken) -> None:
    """Take over where the brokers are and how they know the daemon."""
    handled: Mapping[str, Callable[[str, str, Mapping[str, str], _Taken], None]] = {
        "bootstrap.servers": _bootstrap,
        "sasl.mechanism": _mechanism,
        "sasl.jaas.config": _jaas,
        "ssl.truststore.location": _truststore,
        "ssl.keystore.location": _keystore,
        "ssl.key.password": _key_password,
        "ssl.endpoint.identification.algorithm": _host_name,
    }
    if "bootstrap.servers" not in given:
        taken.put(f"{_LOG}.bootstrap", ["127.0.0.1:9092"], "no key named a broker: put it right")
    for name, value in sorted(given.items()):
        key = _COMMON + name
        if name in handled:
            handled[name](value, key, given, taken)
        elif name == "security.protocol":
            taken.put(f"{_SECURITY}.protocol", value, key)
        elif name in ("ssl.truststore.type", "ssl.keystore.type"):
            taken.remark(key, "judged with the location")
        elif _is_connection(name):
            why = "a secret, not taken over" if _SECRET.search(name) else "no such setting here"
            taken.remark(key, why)


def _bootstrap(value: str, key: str, _: Mapping[str, str], taken: _Taken) -> None:
    addresses = [each.strip().rpartition("://")[2] for each in value.split(",") if each.strip()]
    taken.put(f"{_LOG}.bootstrap", addresses, key)


def _mechanism(value: str, key: str, _: Mapping[str, str], taken: _Taken) -> None:
    if value in _MECHANISMS:
        taken.put(f"{_SECURITY}.mechanism", value, key)
    else:
        taken.remark(key, f"{value} is not supported: use one of {', '.join(sorted(_MECHANISMS))}")


def _jaas(value: str, key: str, _: Mapping[str, str], taken: _Taken) -> None:
    user = re.search(r"""username\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s;]+))""", value)
    if user is None:
        taken.remark(key, "names no username")
        return
    taken.put(f"{_SECURITY}.username", next(each for each in user.groups() if each), key)
    taken.put(f"{_SECURITY}.password_file", "/etc/rlmm/password", "put the password there, 0600")


def _truststore(value: str, key: str, given: Mapping[str, str], taken: _Taken) -> None:
    if given.get("ssl.truststore.type", "JKS").upper() == "PEM":
        taken.put(f"{_SECURITY}.ca_file", value, key)
        return
    taken.put(f"{_SECURITY}.ca_file", "/etc/rlmm/ca.pem", "made from the keystore, see below")
    taken.remark(key, f"PEM is read here: keytool -exportcert -rfc -keystore {value} > ca.pem")


def _keystore(value: str, key: str, given: Mapping[str, str], taken: _Taken) -> None:
    pem = given.get("ssl.keystore.type", "JKS").upper() == "PEM"
    if not pem:
        taken.remark(
            key,
            "PEM is read here: keytool -importkeystore -deststoretype PKCS12, then openssl pkcs12 "
            f"-nodes (from {value})",
        )
    source = key if pem else "made from the keystore, see below"
    taken.put(f"{_SECURITY}.certificate_file", value if pem else "/etc/rlmm/client.pem", source)
    taken.put(f"{_SECURITY}.key_file", value if pem else "/etc/rlmm/client.key", source)


def _key_password(_value: str, key: str, _: Mapping[str, str], taken: _Taken) -> None:
    where = f"{key}: put the key's passphrase there, 0600"
    taken.put(f"{_SECURITY}.key_password_file", "/etc/rlmm/key-password", where)


def _host_name(value: str, key: str, _: Mapping[str, str], taken: _Taken) -> None:
    taken.put(f"{_SECURITY}.verify_host_name", bool(value.strip()), key)


def _written(values: Mapping[str, tuple[str, str]]) -> list[str]:
    tables: dict[str, list[str]] = {}
    for key, (value, source) in values.items():
        table, _, name = key.rpartition(".")
        line = f"{name} = {value}"
        tables.setdefault(table, []).append(f"{line}  # {source}" if source else line)
    order = sorted(tables, key=lambda name: (name.partition(".")[0] != "daemon", name))
    lines: list[str] = []
    for table in order:
        lines += [f"[{table}]", *tables[table], ""]
    return lines


def _complaints(body: list[str]) -> list[str]:
    try:
        parse("\n".join(body))
    except ConfigError as error:
        said = str(error).removeprefix("configuration: ").splitlines()
        return ["# To be put right first:", *(f"#   {each}" for each in said), ""]
    return []


def _said(remarks: list[str]) -> list[str]:
    return ["# Not taken over:", *(f"# {each}" for each in remarks)] if remarks else []
