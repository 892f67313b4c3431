"""Plan of a setup: each file as it is and as it will be, and what remains for people to do."""

import difflib
import grp
import os
import pwd
import shlex
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from rlmm_daemon.config import (
    Config,
    KafkaLog,
    LocalStorage,
    QuorumLog,
    S3Storage,
    parse,
)
from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.offline.setup import beside, quorum
from rlmm_daemon.offline.setup.broker import (
    META,
    Account,
    Broker,
    Directory,
    broker_of,
    log_dirs_of,
    parsed,
)
from rlmm_daemon.offline.setup.properties import JAR, lines, with_lines
from rlmm_daemon.offline.setup.settings import Choices, directory_of, kinds, merged, settings

#: Where brokers' packages and archives put it.
PLACES: Final = (
    "/etc/kafka/server.properties",
    "/etc/kafka/kraft/server.properties",
    "/opt/kafka/config/server.properties",
    "/opt/kafka/config/kraft/server.properties",
)
UNITS: Final = "/etc/systemd/system"
DAEMON_USER: Final = "rlmm"
_TAKE_ALONG: Final = "stop the daemon and take the events along, before it starts with another log"
_GROUP_READS: Final = stat.S_IRGRP | stat.S_IXGRP
_ALL_READ: Final = stat.S_IROTH | stat.S_IXOTH


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where things are, and are put."""

    properties: str
    config: str
    jar: str = JAR
    units: str = UNITS
    #: The broker's unit, without `.service`.
    broker_unit: str = beside.UNIT_OF_PACKAGE
    #: Whether server.properties is written, or only said.
    writes_properties: bool = True

    @property
    def given(self) -> str:
        """Directory of what others carry out."""
        return f"{Path(self.config).absolute().parent}/setup"


class PlannedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file."""

    path: str
    #: None: it is not there.
    before: str | None
    after: str
    mode: int = 0o644
    #: Who may read it beside its owner, where it is made anew.
    group: str | None = None
    #: The broker's own, in Java's encoding.
    of_broker: bool = False

    @property
    def encoding(self) -> str:
        """How its text is written."""
        return "latin-1" if self.of_broker else "utf-8"

    @property
    def changes(self) -> bool:
        """Whether writing it makes a difference."""
        return self.before != self.after

    def diff(self) -> str:
        """Return the difference, as `diff -u` writes it.

        Of a file of the broker's only the lines that change: there may be passwords beside them.
        """
        name = "/dev/null" if self.before is None else self.path
        lines = difflib.unified_diff(
            (self.before or "").splitlines(),
            self.after.splitlines(),
            name,
            self.path,
            n=0 if self.of_broker else 3,
            lineterm="",
        )
        return "".join(f"{each}\n" for each in lines)


class SetupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    broker: Broker
    config: Config
    files: tuple[PlannedFile, ...]
    #: A storage directory that is to be made.
    directory: str | None
    left: tuple[str, ...]

    @property
    def changes(self) -> list[PlannedFile]:
        """The files that will be written."""
        return [each for each in self.files if each.changes]


def find_properties() -> str | None:
    """Return the broker's configuration where one is at a usual place, and only at one of them."""
    found = [each for each in PLACES if Path(each).is_file()]
    return found[0] if len(found) == 1 else None


def present(config: str) -> dict[str, str]:
    """Return which kinds of event log and storage a configuration has; nothing if there is none.

    Raises:
        ConfigError: it can't be read, or is no TOML.
    """
    return kinds(_read(config, "utf-8") or "")


def read_broker(file: str, user: str | None = None) -> Broker:
    """Return the broker of a server.properties; `user` is whom it runs as, if its files won't tell.

    Raises:
        ConfigError: a file can't be read, or says what can't be.
    """
    found = parsed(_read(file, "latin-1") or _refuse(f"{file} is empty or not there"))
    broker = broker_of(found, [_directory(each) for each in log_dirs_of(found)])
    return broker if user is None else msgspec.structs.replace(broker, account=_account(user))


def plan(broker: Broker, choices: Choices, places: Places) -> SetupPlan:
    """Return what is to be written and what is left to do.

    Raises:
        ConfigError: the configuration that follows could not be used; every mistake is named.
    """
    present = _read(places.config, "utf-8")
    text = merged(present or "", settings(broker, choices))
    config = parse(text, source=f"{places.config} as it would be")
    files = [
        PlannedFile(path=places.config, before=present, after=text, mode=0o640, group=DAEMON_USER),
        *_units(config, broker, places),
    ]
    entries = lines(
        broker,
        socket=config.socket.path,
        jar=places.jar,
        stores=isinstance(config.storage, LocalStorage | S3Storage),
    )
    if places.writes_properties:
        theirs = _read(places.properties, "latin-1") or ""
        after = with_lines(theirs, entries)
        files.append(
            PlannedFile(path=places.properties, before=theirs, after=after, of_broker=True)
        )
    given = {"acls.sh": beside.acls(config, broker, f"User:{choices.principal}")}
    if isinstance(config.storage, S3Storage):
        given |= {
            "iam-policy.json": beside.iam_policy(config.storage),
            "lifecycle.json": beside.lifecycle(),
        }
    files += [
        _planned(f"{places.given}/{name}", text) for name, text in given.items() if text is not None
    ]
    missing = (
        config.storage.directory
        if isinstance(config.storage, LocalStorage) and not Path(config.storage.directory).is_dir()
        else None
    )
    left = [*_left(config, broker, places, given, replica=choices.replica)]
    if missing is not None and _is_mount(config, present or ""):
        left.insert(0, f"mount {missing}, which is not there and is no new directory to be made")
        missing = None
    if (copied := _log_to_copy(present or "", text, places.config)) is not None:
        left.insert(0, copied)
    if not places.writes_properties:
        shown = "".join(f"\n    {key}={value}" for key, value in entries.items())
        left.insert(0, f"put these lines into {places.properties}:{shown}")
    return SetupPlan(
        broker=broker, config=config, files=tuple(files), directory=missing, left=tuple(left)
    )


def _log_to_copy(present: str, wanted: str, file: str) -> str | None:
    """Say what takes events along where another kind of log is configured; None: nothing is left.

    A daemon that starts with an empty log misses all that is tiered, and so does every consumer.
    """
    before, after = (kinds(text).get("event_log") for text in (present, wanted))
    if before == after or before not in ("kafka", "embedded", "quorum"):
        return None
    new = parse(wanted, source=file).event_log_directory if after == "embedded" else str(after)
    into = f"--to {shlex.quote(new)} --execute"
    if after == "quorum":
        into += ", once its directory is formatted; docs/quorum.md"
    command = f"{_TAKE_ALONG}: rlmm log copy --config {shlex.quote(file)}"
    if before != "embedded":
        former = "where FORMER is the configuration as it was"
        return f"{command} --from-config FORMER --from {before} {into}, {former}"
    former = parse(present, source=file).event_log_directory
    return f"{command} --from {shlex.quote(former)} {into}" if Path(former).is_dir() else None


def _is_mount(config: Config, present: str) -> bool:
    """Return whether a storage directory that is not there must be somewhere else.

    One that every broker sees is mounted, and one that was configured before was there. In one that
    is made in its place segments would be stored beside the others.
    """
    storage = config.storage
    assert isinstance(storage, LocalStorage), "it has a directory"
    return storage.shared or directory_of(present) == storage.directory


def carry_out(plan: SetupPlan) -> None:
    """Write the files that change, each whole or not at all, the broker's own last.

    What was in a file of somebody else's is kept beside it, as `FILE.before-rlmm`.

    Raises:
        OSError: one could not be written; those before it are.
    """
    if plan.directory is not None:
        directory = Path(plan.directory)
        directory.mkdir(parents=True, mode=0o750)
        _give(str(directory), DAEMON_USER, DAEMON_USER)
    for each in sorted(plan.changes, key=lambda file: file.of_broker):
        Path(each.path).parent.mkdir(parents=True, exist_ok=True)
        if each.before is not None:
            kept = Path(f"{each.path}.before-rlmm")
            if not kept.exists():
                _write(kept, each.before, each)
        _write(Path(each.path), each.after, each)


def _write(path: Path, text: str, like: PlannedFile) -> None:
    """Replace a file by one that has the same owner and mode; where there was none, as planned."""
    with suppress(FileNotFoundError):
        path = path.resolve(strict=True)  # a link stays one
    try:
        found = Path(like.path).stat()
        mode, owner = stat.S_IMODE(found.st_mode), (found.st_uid, found.st_gid)
    except FileNotFoundError:
        mode, owner = like.mode, (-1, -1 if like.group is None else _gid(like.group))
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding=like.encoding, newline="") as file:
            file.write(text)
            file.flush()
            if os.geteuid() == 0:
                os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _planned(path: str, text: str) -> PlannedFile:
    return PlannedFile(path=path, before=_read(path, "utf-8"), after=text)


def _units(config: Config, broker: Broker, places: Places) -> Iterator[PlannedFile]:
    daemons = beside.daemon_drop_in(config, broker)
    if daemons is not None:
        yield _planned(f"{places.units}/rlmm-daemon.service.d/broker.conf", daemons)
    if places.broker_unit != beside.UNIT_OF_PACKAGE:
        path = f"{places.units}/{places.broker_unit}.service.d/rlmm.conf"
        yield _planned(path, beside.broker_drop_in())


def _left(
    config: Config,
    broker: Broker,
    places: Places,
    given: dict[str, str | None],
    *,
    replica: quorum.Replica,
) -> Iterator[str]:
    """Say what nobody but a person can do, in its order."""
    yield from _secrets(config)
    yield from quorum.left(config, replica)
    yield from _unreadable(broker)
    if not Path(places.jar).is_file():
        yield f"install the plugin's jar as {places.jar} (package rlmm-kafka-plugin)"
    if given.get("acls.sh") is not None:
        yield f"once for the cluster: sh {places.given}/acls.sh --command-config ADMIN.properties"
    if isinstance(config.storage, S3Storage):
        bucket = shlex.quote(config.storage.bucket)
        yield f"once for the bucket: give the daemon's user or role {places.given}/iam-policy.json"
        yield (
            "once for the bucket, unless it has rules already (they would be replaced): "
            f"aws s3api put-bucket-lifecycle-configuration --bucket {bucket} "
            f"--lifecycle-configuration file://{places.given}/lifecycle.json"
        )
    if not config.shares_log and broker.protocol != "PLAINTEXT":
        yield (
            f"the plugin asks listener {broker.listener} how many brokers there are: repeat its "
            "settings as rlmm.config.remote.log.metadata.common.client.* in server.properties"
        )
    yield "systemctl daemon-reload && systemctl enable rlmm-daemon"
    yield "systemctl restart rlmm-daemon"
    yield f"systemctl restart {places.broker_unit}"


def _secrets(config: Config) -> Iterator[str]:
    wanted: list[str | None] = []
    if isinstance(config.event_log, KafkaLog):
        security = config.event_log.kafka.security
        wanted += [
            security.password_file,
            security.ca_file,
            security.certificate_file,
            security.key_file,
            security.key_password_file,
        ]
    if isinstance(config.event_log, QuorumLog):
        wanted += quorum.secrets(config.event_log)
    if isinstance(config.storage, S3Storage):
        wanted += [
            config.storage.access_key_id_file,
            config.storage.secret_access_key_file,
            config.storage.session_token_file,
        ]
    for each in wanted:
        if each is not None and not Path(each).is_file():
            yield f"put what belongs there into {each} (chown root:rlmm, chmod 0640)"


def _unreadable(broker: Broker) -> Iterator[str]:
    for each in beside.hidden(broker.log_dirs):
        yield (
            f"{each} is hidden from the daemon's unit (ProtectHome=, PrivateTmp=): move the "
            "broker's log.dirs, or add a drop-in with BindReadOnlyPaths="
        )
    for path in broker.log_dirs:
        found = _directory(path)
        if found.owner is not None and not found.group_reads:
            yield f"let group {found.owner.group} read {path}: chmod g+rx"


def _directory(path: str) -> Directory:
    text = _read(f"{path}/{META}", "latin-1")
    owner, reads = None, False
    with suppress(FileNotFoundError, NotADirectoryError):
        found = Path(path).stat()
        reads = any(found.st_mode & bits == bits for bits in (_GROUP_READS, _ALL_READ))
        with suppress(KeyError):
            owner = Account(
                user=pwd.getpwuid(found.st_uid).pw_name, group=grp.getgrgid(found.st_gid).gr_name
            )
    meta = None if text is None else parsed(text)
    return Directory(path=path, meta=meta, owner=owner, group_reads=reads)


def _account(user: str) -> Account:
    try:
        return Account(user=user, group=grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name)
    except KeyError:
        raise ConfigError(f"this machine knows no user {user}, or not its group") from None


def _read(file: str, encoding: str) -> str | None:
    """Return a file's text, its line ends as they are; None if it is not there."""
    try:
        with Path(file).open(encoding=encoding, newline="") as opened:
            return opened.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {getattr(error, 'strerror', None) or error}") from None


def _refuse(why: str) -> str:
    raise ConfigError(why)


def _gid(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:  # not installed from a package: root's own group keeps it
        return -1


def _give(path: str, user: str, group: str) -> None:
    if os.geteuid() == 0:
        with suppress(KeyError):
            os.chown(path, pwd.getpwnam(user).pw_uid, grp.getgrnam(group).gr_gid)
