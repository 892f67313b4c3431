"""The daemon's configuration that follows from its broker, laid over the one that is there."""

import tomllib
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
import tomlkit
from tomlkit.container import Container
from tomlkit.items import Table

from rlmm_daemon.config import from_properties
from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.offline.setup import quorum
from rlmm_daemon.offline.setup.broker import LISTENER_KEY, Broker

_KAFKA: Final = "event_log.kafka"
_SECURITY: Final = f"{_KAFKA}.security"
_REPLICAS: Final = f"{_KAFKA}.admin.replication_factor"
_BROKERS: Final = "event_log.quorum.brokers"
#: Best first.
_MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
_REPLICAS_DEFAULT: Final = 3
#: Whoever is there already stays.
_ADDED_TO: Final = (
    f"{_KAFKA}.bootstrap",
    f"{_BROKERS}.bootstrap",
    f"{quorum.SECTION}.bootstrap",
    "socket.rights.write.users",
)
#: What is there stands, but where replicas listen, which whoever says it has changed.
_STANDS: Final = (f"{_KAFKA}.", f"{_BROKERS}.", f"{quorum.SECURITY}.")
#: Each whole: half of one way to prove who one is says nothing beside half of another.
_WHOLE: Final = (f"{_SECURITY}.", f"{_BROKERS}.security.", f"{quorum.SECURITY}.")
_KINDS: Final = ("event_log.kind", "storage.kind")
HEAD: Final = "# Written by rlmm setup, which changes its own keys only. docs: configuration.md.\n"


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """What no file of the broker's says."""

    event_log: Literal["kafka", "embedded", "quorum"] = "kafka"
    #: Of a quorum's log.
    replica: quorum.Replica = quorum.Replica()
    #: Keys of `[storage]`, `kind` among them.
    storage: Mapping[str, Any] = msgspec.field(default_factory=dict)
    #: Addresses of more brokers.
    bootstrap: tuple[str, ...] = ()
    #: What the cluster calls this daemon, where it asks for a name.
    principal: str = "rlmm"
    #: Empty: the configuration names it, or it is the default.
    socket: str = ""
    state_dir: str = ""
    #: Where secrets and certificates are put.
    home: str = "/etc/rlmm"


def settings(broker: Broker, choices: Choices) -> dict[str, Any]:
    """Return dotted keys and their values.

    Raises:
        ConfigError: a log without Kafka's topic was chosen, and nothing says which cluster it is
            for.
    """
    found: dict[str, Any] = {"daemon.broker_id": broker.node_id}
    if broker.cluster_id is not None:
        found["daemon.cluster_id"] = broker.cluster_id
    found["daemon.log_dirs"] = list(broker.log_dirs)
    if choices.state_dir:
        found["daemon.state_dir"] = choices.state_dir
    if choices.socket:
        found["socket.path"] = choices.socket
    if choices.event_log != "kafka" and broker.cluster_id is None:
        kind = "an embedded" if choices.event_log == "embedded" else "a quorum's"
        raise ConfigError(f"{kind} log needs cluster.id: format the broker's log.dirs first")
    found["event_log.kind"] = choices.event_log
    match choices.event_log:
        case "embedded":
            found["event_log.single_broker"] = True
        case "quorum":
            found |= quorum.settings(broker.node_id, choices.replica, choices.home)
            found |= _brokers(broker, choices)
        case "kafka":
            found |= _kafka(broker, choices)
    found |= {f"storage.{key}": value for key, value in choices.storage.items()}
    if broker.account is not None:
        found["socket.rights.write.users"] = [broker.account.user]
    return found


def _kafka(broker: Broker, choices: Choices) -> dict[str, Any]:
    """Return what connects it: the broker's own words for its metadata manager, then guesses."""
    properties = {LISTENER_KEY: broker.listener, **broker.properties}
    taken = _flat(tomllib.loads(from_properties.to_toml(properties)))
    said = {key: value for key, value in taken.items() if key.startswith(f"{_KAFKA}.")}
    named = any(key.endswith(".common.client.bootstrap.servers") for key in broker.properties)
    at = said[f"{_KAFKA}.bootstrap"] if named else [broker.address]
    found = said | {f"{_KAFKA}.bootstrap": [*dict.fromkeys([*at, *choices.bootstrap])]}
    protocol = found.setdefault(f"{_SECURITY}.protocol", broker.protocol)
    if "SASL" in protocol:
        found.setdefault(f"{_SECURITY}.mechanism", _mechanism(broker))
        found.setdefault(f"{_SECURITY}.username", choices.principal)
        found.setdefault(f"{_SECURITY}.password_file", f"{choices.home}/password")
    if "SSL" in protocol.replace("SASL_", ""):
        found.setdefault(f"{_SECURITY}.ca_file", f"{choices.home}/ca.pem")
        if "SASL" not in protocol:
            found.setdefault(f"{_SECURITY}.certificate_file", f"{choices.home}/client.pem")
            found.setdefault(f"{_SECURITY}.key_file", f"{choices.home}/client.key")
    replicas = broker.properties.get("offsets.topic.replication.factor", "").strip()
    if replicas.isdecimal() and 0 < int(replicas) < _REPLICAS_DEFAULT:  # such a cluster has no more
        found.setdefault(_REPLICAS, int(replicas))
    return found


def _brokers(broker: Broker, choices: Choices) -> dict[str, Any]:
    """Return what connects a quorum's daemon to the brokers, as it would connect to their topic."""
    return {
        key.replace(_KAFKA, _BROKERS, 1): value
        for key, value in _kafka(broker, choices).items()
        if key == f"{_KAFKA}.bootstrap" or key.startswith(f"{_SECURITY}.")
    }


def _mechanism(broker: Broker) -> str:
    """Return the best mechanism that the listener takes and the daemon knows."""
    name = f"listener.name.{broker.listener.lower()}.sasl.enabled.mechanisms"
    either = broker.properties.get(name) or broker.properties.get("sasl.enabled.mechanisms", "")
    offered = {each.strip() for each in either.split(",")}
    return next((each for each in _MECHANISMS if each in offered), _MECHANISMS[0])


def merged(text: str, wanted: Mapping[str, Any]) -> str:
    """Return the configuration with these keys; comments and all other keys stay as they are.

    Who may write and where brokers are is added to; of the rest of `[event_log]` what is there
    stands. A section whose `kind` changes is begun anew: its keys mean nothing to another kind.

    Raises:
        ConfigError: the text is no TOML.
    """
    document = _document(text)
    for section in ("event_log", "storage"):
        before = document.get(section, {}).get("kind")
        if before not in (None, wanted.get(f"{section}.kind", before)):
            del document[section]
    present = _flat(document)
    decided = tuple(whole for whole in _WHOLE if any(key.startswith(whole) for key in present))
    if present.get("event_log.single_broker") is True:
        decided += (f"{_BROKERS}.",)  # the only broker tells its daemon itself
    for key, value in wanted.items():
        if key.startswith(decided):
            continue
        stands = present.get(key)
        if key in _ADDED_TO and stands is not None:
            new = [*dict.fromkeys([*stands, *value])]
        else:
            new = stands if key.startswith(_STANDS) and stands is not None else value
        if new != stands:
            *parents, leaf = key.split(".")
            _table(document, parents)[leaf] = new
    return tomlkit.dumps(document)


def kinds(text: str) -> dict[str, str]:
    """Return which kind of `[event_log]` and `[storage]` a configuration has.

    Raises:
        ConfigError: the text is no TOML.
    """
    present = _flat(_document(text))
    return {key.removesuffix(".kind"): str(present[key]) for key in _KINDS if key in present}


def directory_of(text: str) -> str | None:
    """Return the storage directory that a configuration has.

    Raises:
        ConfigError: the text is no TOML.
    """
    return _flat(_document(text)).get("storage.directory")


def _document(text: str) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(text or HEAD)
    except tomlkit.exceptions.ParseError as error:
        raise ConfigError(f"the configuration is not TOML: {error}") from None


def _table(document: Container, parents: list[str]) -> Container | Table:
    table: Any = document
    for at, name in enumerate(parents):
        if name not in table:
            bare = at < len(parents) - 1  # its own header only if it gets a key of its own
            table[name] = tomlkit.table(is_super_table=bare)
        table = table[name]
    return table  # type: ignore[no-any-return]  # tomlkit's tables are what one puts in


def _flat(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{path}{key}.")
        else:
            found[f"{path}{key}"] = value
    return found
