"""Files, sockets and ports of a daemon that others may read, change or reach: one row each.

Nothing is refused over them: on a machine of one's own they do no harm. Access control lists are
not judged, and who owns a file only by `rlmm doctor`.
"""

import ipaddress
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from rlmm_daemon.config.event_log import EmbeddedLog
from rlmm_daemon.config.kafka_log import KafkaLog
from rlmm_daemon.config.model import Config
from rlmm_daemon.config.quorum_log import QuorumLog
from rlmm_daemon.config.remote_storage import LocalStorage, S3Storage

_OTHERS_WRITE: Final = 0o002
_OTHERS_READ_OR_WRITE: Final = 0o006
_CHANGED_BY_OTHERS: Final = 0o022
#: A group may read a secret: root's file, and the daemon's group.
_SECRET: Final = 0o026


class Place(NamedTuple):
    """A file or directory, and the key that names it."""

    key: str
    path: str


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """What others can do here that only the daemon's own user should."""

    check: str
    found: str
    advice: str


class _Check(msgspec.Struct, frozen=True, kw_only=True):
    """Places whose mode must not have these bits."""

    name: str
    places: Callable[[Config, str], Iterable[Place]]
    forbidden: int
    advice: str


def _secrets(config: Config, _: str) -> Iterator[Place]:
    named: list[tuple[str, str | None]] = []
    if isinstance(config.event_log, KafkaLog):
        kafka = config.event_log.kafka
        of = [("event_log.kafka.security", kafka.security)]
        if kafka.controllers is not None:
            of.append(("event_log.kafka.controllers.security", kafka.controllers.security))
        named += [
            (f"{where}.{key}", getattr(security, key))
            for where, security in of
            for key in ("key_file", "key_password_file", "password_file")
        ]
    if isinstance(config.event_log, QuorumLog):
        quorum, here = config.event_log.quorum, "event_log.quorum"
        named += [
            (f"{here}.security.{key}", getattr(quorum.security, key))
            for key in ("key_file", "users_file", "password_file", "token_file")
        ]
        if quorum.brokers is not None:
            named += [
                (f"{here}.brokers.security.{key}", getattr(quorum.brokers.security, key))
                for key in ("key_file", "key_password_file", "password_file")
            ]
    if isinstance(config.storage, S3Storage):
        named += [
            ("storage.access_key_id_file", config.storage.access_key_id_file),
            ("storage.secret_access_key_file", config.storage.secret_access_key_file),
            ("storage.session_token_file", config.storage.session_token_file),
        ]
    return (Place(key, path) for key, path in named if path)


def _own_directories(config: Config, _: str) -> Iterator[Place]:
    yield Place("daemon.state_dir", config.daemon.state_dir)
    yield Place("snapshots", config.snapshot_directory)
    yield Place("read.cache_directory", config.cache_directory)
    if isinstance(config.event_log, EmbeddedLog):
        yield Place("event_log.directory", config.event_log_directory)
    if isinstance(config.event_log, QuorumLog):
        yield Place("event_log.quorum.directory", config.quorum_directory)


def _directories_of_files(config: Config, file: str) -> Iterator[Place]:
    """Whoever may write there can put another file in the place of one that is not his."""
    if isinstance(config.storage, LocalStorage):
        yield Place("storage.directory", config.storage.directory)
    named = [Place("the configuration", file), Place("socket.path", config.socket.path)]
    for key, path in [*named, *_secrets(config, file)]:
        yield Place(f"the directory of {key}", str(Path(path).absolute().parent))


_CHECKS: Final = (
    _Check(
        name="secret files",
        places=_secrets,
        forbidden=_SECRET,
        advice="chmod 0600, or 0640 with the daemon's group; then change the secret",
    ),
    _Check(
        name="configuration",
        places=lambda _, file: [Place("the configuration", file)],
        forbidden=_CHANGED_BY_OTHERS,
        advice="chmod 0644: it says which files the daemon reads and who may do what",
    ),
    _Check(
        name="own directories",
        places=_own_directories,
        forbidden=_CHANGED_BY_OTHERS,
        advice="chmod 0750: what is changed there is believed at the next start",
    ),
    _Check(
        name="shared directories",
        places=_directories_of_files,
        forbidden=_OTHERS_WRITE,
        advice="chmod o-w: others could put a file of theirs in its place",
    ),
)


def owned_places(config: Config, file: str) -> list[Place]:
    """Return what only root or the daemon's user should own."""
    mine = [Place("the configuration", file), *_secrets(config, file)]
    return [*mine, *_own_directories(config, file)]


def exposures_in_time(config: Config, file: str, seconds: float) -> list[Exposure] | None:
    """Return what `exposures` does, or None where a disk or mount hangs: nothing waits for that."""
    found: list[list[Exposure]] = []
    look = threading.Thread(target=lambda: found.append(exposures(config, file)), daemon=True)
    look.start()
    look.join(seconds)
    return found[0] if found else None


def exposures(config: Config, file: str) -> list[Exposure]:
    """Return what others may read, change or reach; `file` is the configuration's own path.

    What is not there yet, or may not be looked at, is passed over.
    """
    found = [each for check in _CHECKS for each in _judged(check, config, file)]
    return [*found, *_socket(config.socket.mode), *_port(config.admin.listen)]


def _judged(check: _Check, config: Config, file: str) -> Iterator[Exposure]:
    for place in dict.fromkeys(check.places(config, file)):
        try:
            mode = Path(place.path).stat().st_mode
        except OSError:
            continue
        replaced = stat.S_ISDIR(mode) and mode & stat.S_ISVTX  # only by who owns the file
        if mode & check.forbidden and not replaced:
            yield _exposed(check, place, stat.S_IMODE(mode))


def _exposed(check: _Check, place: Place, mode: int) -> Exposure:
    who = "others" if mode & check.forbidden & 0o007 else "its group"
    bits = mode & check.forbidden
    does = " and ".join(word for word, mask in (("read", 0o044), ("write", 0o022)) if bits & mask)
    found = f"{place.path} ({place.key}) has mode {mode:04o}: {who} may {does}"
    return Exposure(check=check.name, found=found, advice=check.advice)


def _socket(mode: str) -> list[Exposure]:
    if not int(mode, 8) & _OTHERS_READ_OR_WRITE:
        return []
    return [
        Exposure(
            check="socket",
            found=f"socket.mode = {mode}: every user of this machine may connect",
            advice="socket.mode = \"0660\", and put the broker's user into the socket's group",
        )
    ]


def _port(listen: str) -> list[Exposure]:
    host = listen.rpartition(":")[0].strip("[]")
    if not host or host == "localhost":
        return []
    try:
        if ipaddress.ip_address(host).is_loopback:
            return []
    except ValueError:
        pass  # a name: nobody knows what it will mean
    return [
        Exposure(
            check="admin port",
            found=f"admin.listen = {listen} is beyond loopback: it asks nobody who he is",
            advice='admin.listen = "127.0.0.1:9405", with a proxy that knows its callers before it',
        )
    ]
