"""The broker beside a new daemon, as its server.properties and meta.properties tell it."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from rlmm_daemon.config import from_properties
from rlmm_daemon.domain.errors import ConfigError

#: Written by the broker into each of its log directories.
META: Final = "meta.properties"
LISTENER_KEY: Final = "remote.log.metadata.manager.listener.name"
_IDS: Final = ("node.id", "broker.id")
#: Kafka's own default.
_LOG_DIRS: Final = "/tmp/kafka-logs"  # noqa: S108 - it is Kafka's
_PLAIN: Final = "PLAINTEXT"


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A user and his first group, by name."""

    user: str
    group: str


class Directory(msgspec.Struct, frozen=True, kw_only=True):
    """One of the broker's log.dirs."""

    path: str
    #: Its meta.properties; None where there is none yet.
    meta: Mapping[str, str] | None
    #: Whom it belongs to; None where it is not there, or its owner has no name.
    owner: Account | None
    #: Whether its group may read it, or everybody.
    group_reads: bool


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon has to know of its broker."""

    properties: Mapping[str, str]
    node_id: int
    log_dirs: tuple[str, ...]
    #: None: no directory of the broker's was formatted yet.
    cluster_id: str | None
    #: Whom the broker runs as; None: nothing tells.
    account: Account | None
    #: Where managers of remote log metadata connect.
    listener: str
    #: host:port of it.
    address: str
    protocol: str

    @property
    def authorizes(self) -> bool:
        """Whether the cluster asks for rights."""
        return bool(self.properties.get("authorizer.class.name"))


def log_dirs_of(properties: Mapping[str, str]) -> list[str]:
    """Return the broker's log directories, in its order."""
    named = properties.get("log.dirs") or properties.get("log.dir") or _LOG_DIRS
    return [each.strip() for each in named.split(",") if each.strip()]


def broker_of(properties: Mapping[str, str], directories: Iterable[Directory]) -> Broker:
    """Return the broker that these files are of.

    Raises:
        ConfigError: they contradict each other, or no client could connect.
    """
    if "broker" not in properties.get("process.roles", "broker"):
        raise ConfigError("process.roles has no broker: a controller alone keeps no segments")
    directories = list(directories)
    name, address, protocol = _listener(properties)
    return Broker(
        properties=properties,
        node_id=_node_id(properties, directories),
        log_dirs=tuple(each.path for each in directories),
        cluster_id=_one("cluster.id", _said(directories, ("cluster.id",))),
        account=next((each.owner for each in directories if each.owner is not None), None),
        listener=name,
        address=address,
        protocol=protocol,
    )


def _said(directories: Iterable[Directory], keys: Iterable[str]) -> dict[str, str]:
    """Return what each directory's file says, by the directory."""
    files = {each.path: each.meta or {} for each in directories}
    return {path: meta[key] for path, meta in files.items() for key in keys if key in meta}


def _one(key: str, said: Mapping[str, str]) -> str | None:
    if len(set(said.values())) > 1:
        told = ", ".join(f"{value} in {where}" for where, value in said.items())
        raise ConfigError(f"log.dirs are not of one broker: {key} is {told}")
    return next(iter(said.values()), None)


def _node_id(properties: Mapping[str, str], directories: list[Directory]) -> int:
    stored = _one("node.id", _said(directories, _IDS))
    given = next((properties[key] for key in _IDS if key in properties), None)
    given = None if given is not None and given.strip().startswith("-") else given  # -1: made up
    if None not in (stored, given) and stored != given:
        raise ConfigError(
            f"server.properties says node.id {given}, and its log.dirs are of broker {stored}"
        )
    found = given if given is not None else stored
    if found is None or not found.strip().isdecimal():
        raise ConfigError(f"node.id is {found or 'missing'}: it has to be a number")
    return int(found)


def _listener(properties: Mapping[str, str]) -> tuple[str, str, str]:
    """Return name, address and protocol of where clients of the metadata topic connect."""
    controllers = _words(properties.get("controller.listener.names", ""))
    addresses = _addresses(properties.get("listeners") or f"{_PLAIN}://:9092")
    addresses |= _addresses(properties.get("advertised.listeners", ""))
    ours = {name: at for name, at in addresses.items() if name not in controllers}
    wanted = (
        properties.get(LISTENER_KEY)
        or properties.get("inter.broker.listener.name")
        or properties.get("security.inter.broker.protocol")
    )
    if wanted is None:
        wanted = _PLAIN if _PLAIN in ours or not ours else next(iter(ours))
    if wanted not in ours:
        raise ConfigError(f"listeners has no {wanted}; it has {', '.join(ours) or 'none'}")
    protocols = dict(
        pair.split(":", 1)
        for pair in _words(properties.get("listener.security.protocol.map", ""))
        if ":" in pair
    )
    return wanted, _reached(ours[wanted]), protocols.get(wanted, wanted)


def _words(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _addresses(text: str) -> dict[str, str]:
    pairs = (each.partition("://") for each in _words(text))
    return {name: at for name, between, at in pairs if between}


def _reached(address: str) -> str:
    """Return how a listener of all interfaces is reached from this host."""
    host, _, port = address.rpartition(":")
    return f"localhost:{port}" if host in ("", "0.0.0.0", "[::]", "::") else address  # noqa: S104 - compared


def parsed(text: str) -> dict[str, str]:
    """Return the entries of a properties file."""
    return from_properties.read(text)
