"""Reading a configuration: parse, override, name every mistake, check what belongs together."""

import difflib
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Final

import msgspec

from rlmm_daemon.config.event_log import EmbeddedLog
from rlmm_daemon.config.log_checks import check_event_log
from rlmm_daemon.config.model import Config
from rlmm_daemon.config.quorum_log import QuorumLog
from rlmm_daemon.config.reconcile import ReconcileConfig
from rlmm_daemon.config.remote_storage import LocalStorage, NoStorage, S3Storage
from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.domain.secret import HIDDEN, looks_secret

#: `sun_path` holds 108 bytes, the last of them a zero.
SOCKET_PATH_BYTES_MAX: Final = 107
_PORT_MAX: Final = 65_535
#: A number of thousands of digits and brackets within brackets are met by Python itself.
_NOT_TOML: Final = (tomllib.TOMLDecodeError, ValueError, RecursionError)
_ASKS_NOBODY: Final = (
    'an embedded log knows none: event_log.kind = "kafka", or "quorum" with '
    "[event_log.quorum.brokers]"
)
_VALUE_CHARACTERS_MAX: Final = 80
_KEY: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
#: Keys whose relative value is taken from the working directory.
_PATHS: Final = (
    "daemon.state_dir",
    "daemon.log_dirs",
    "socket.path",
    "event_log.directory",
    "event_log.kafka.controllers.security.ca_file",
    "event_log.kafka.controllers.security.certificate_file",
    "event_log.kafka.controllers.security.key_file",
    "event_log.kafka.controllers.security.key_password_file",
    "event_log.kafka.controllers.security.password_file",
    "event_log.kafka.security.ca_file",
    "event_log.kafka.security.certificate_file",
    "event_log.kafka.security.key_file",
    "event_log.kafka.security.key_password_file",
    "event_log.kafka.security.password_file",
    "event_log.quorum.directory",
    "event_log.quorum.brokers.security.ca_file",
    "event_log.quorum.brokers.security.certificate_file",
    "event_log.quorum.brokers.security.key_file",
    "event_log.quorum.brokers.security.key_password_file",
    "event_log.quorum.brokers.security.password_file",
    "event_log.quorum.security.ca_file",
    "event_log.quorum.security.certificate_file",
    "event_log.quorum.security.key_file",
    "event_log.quorum.security.password_file",
    "event_log.quorum.security.token_file",
    "event_log.quorum.security.token_keys_file",
    "event_log.quorum.security.users_file",
    "storage.directory",
    "read.cache_directory",
    "storage.ca_file",
    "storage.access_key_id_file",
    "storage.secret_access_key_file",
    "storage.session_token_file",
    "daemon_config",
    "listing.manifest",
    "output.directory",
    "output.textfile",
)


def load(file: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Return the checked configuration of a TOML file, with `key=value` overrides applied.

    Raises:
        ConfigError: unreadable, or wrong; `fields["problems"]` lists every mistake.
    """
    return parse(_text_of(file), overrides, source=str(file))


def load_reconcile(file: str | Path, overrides: Sequence[str] = ()) -> ReconcileConfig:
    """Return the checked configuration of the nightly job, as `load` does the daemon's.

    Raises:
        ConfigError: as `load`.
    """
    raw = _checked(_text_of(file), ReconcileConfig, overrides, str(file))
    config = msgspec.convert(raw, ReconcileConfig)
    shown = [name for name in config.spark.settings if _shows_secret(name)]
    if shown:
        problems = [f'spark.settings: "{name}" would show in Spark\'s pages' for name in shown]
        raise _failure(str(file), problems)
    return config


def _shows_secret(name: str) -> bool:
    """Return whether a setting of Spark's by this name holds a secret, and not where one is."""
    plain = name.lower().replace(".", "_").replace("-", "_")
    return looks_secret(plain) and not plain.endswith(("file", "enabled", "provider"))


def parse(text: str, overrides: Sequence[str] = (), *, source: str = "configuration") -> Config:
    """Return the checked configuration that a TOML text holds.

    Raises:
        ConfigError: as `load`.
    """
    raw = _checked(text, Config, overrides, source)
    config = msgspec.convert(raw, Config)
    problems = [*_check_together(config)]
    if problems:
        raise _failure(source, problems)
    return config


def _text_of(file: str | Path) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise _failure(str(file), [f"can't be read: {reason}"]) from error


def _checked(
    text: str, kind: type[msgspec.Struct], overrides: Sequence[str], source: str
) -> dict[str, Any]:
    try:
        raw = tomllib.loads(text)
    except _NOT_TOML as error:
        raise _failure(source, [f"is not TOML: {error}"]) from error
    problems = [problem for override in overrides for problem in _override(raw, override)]
    problems += _check_table(raw, kind, "")
    if problems:
        raise _failure(source, problems)
    _make_paths_absolute(raw)
    return raw


def effective_toml(config: Config) -> str:
    """Return the configuration as TOML, every default written out; reading it gives it back."""
    return "\n".join(_toml_lines(msgspec.to_builtins(config), "")).lstrip("\n") + "\n"


def differences(old: Config, new: Config) -> list[str]:
    """Return the dotted keys whose values differ, sorted: what a reload would change."""
    before = dict(_flat(msgspec.to_builtins(old), ""))
    after = dict(_flat(msgspec.to_builtins(new), ""))
    return sorted(key for key in before | after if before.get(key) != after.get(key))


def _failure(source: str, problems: Sequence[str]) -> ConfigError:
    return ConfigError(
        "\n".join(f"{source}: {problem}" for problem in problems), problems=list(problems)
    )


def _override(raw: dict[str, Any], override: str) -> list[str]:
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not _KEY.fullmatch(key):
        return [f"--set {key!r}: expected key=value, for example --set log.level=debug"]
    if looks_secret(key.rpartition(".")[2]):
        instead = f"use {key}_file or {key}_env in the configuration file"
        return [f"--set {key}: refused, other users can see command lines; {instead}"]
    *parents, leaf = key.split(".")
    table = raw
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            return [f"--set {key}: {parent} is a value, not a table"]
    table[leaf] = _override_value(text.strip())
    return []


def _override_value(text: str) -> Any:
    """Return a TOML value; what is not one is taken as the string that it looks like."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except _NOT_TOML:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _check_table(table: Any, kind: type[msgspec.Struct], path: str) -> list[str]:
    if not isinstance(table, dict):
        return [f"{path} is {_show(path, table)}: expected a table, written [{path}]"]
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    tag_field = kind.__struct_config__.tag_field
    known = [*fields, tag_field] if tag_field else [*fields]
    problems = [_unknown(key, known, path) for key in table if key not in known]
    for name, field in fields.items():
        here = f"{path}.{name}" if path else name
        if name in table:
            problems += _check_value(table[name], field, here)
        elif field.required:
            problems += _missing(field, here)
    return problems


def _check_value(value: Any, field: msgspec.structs.FieldInfo, path: str) -> list[str]:
    tables = _tables(field.type)
    if not tables:
        return _check_leaf(value, field, path)
    if not isinstance(value, dict) or not tables[0].__struct_config__.tag_field:
        return _check_table(value, tables[0], path)
    by_kind = {str(each.__struct_config__.tag): each for each in tables}
    kind = value.get("kind")
    if isinstance(kind, str) and kind in by_kind:
        return _check_table(value, by_kind[kind], path)
    choices = " or ".join(f'"{name}"' for name in by_kind)
    if kind is None:
        return [f"{path}.kind is missing: set it to {choices}"]
    return [f"{path}.kind = {_show('kind', kind)}: this version knows {choices}"]


def _tables(kind: Any) -> list[type[msgspec.Struct]]:
    """Return the structs that a field may hold: several for a tagged union, none for a value."""
    options = typing.get_args(kind) if isinstance(kind, UnionType) else (kind,)
    return [each for each in options if isinstance(each, type) and issubclass(each, msgspec.Struct)]


def _check_leaf(value: Any, field: msgspec.structs.FieldInfo, path: str) -> list[str]:
    try:
        msgspec.convert(value, field.type)
    except msgspec.ValidationError as error:
        reason = str(error).replace("Expected", "expected").replace("`", "")
        reason = reason.replace("Invalid enum value", "not one of the choices")
        choices = _choices(field.type)
        if choices:
            reason = f"expected {choices}"
        default = field.default
        hint = (
            ""
            if default in (msgspec.NODEFAULT, None)
            else f"; the default is {_show(path, default)}"
        )
        return [f"{path} = {_show(path, value)}: {reason}{hint}"]
    return []


def _choices(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Union:  # a choice that may be left out
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is not typing.Literal:
        return ""
    return " or ".join(f'"{each}"' for each in typing.get_args(kind))


def _missing(field: msgspec.structs.FieldInfo, path: str) -> list[str]:
    tables = _tables(field.type)
    if not tables:
        return [f"{path} is missing and has no default"]
    return [f"the table [{path}] is missing", *_check_value({}, field, path)]


def _unknown(key: str, known: Sequence[str], path: str) -> str:
    here = f"{path}.{key}" if path else key
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if near:
        return f"{here} is not a key; did you mean {path + '.' if path else ''}{near[0]}?"
    return f"{here} is not a key; {f'[{path}]' if path else 'the top level'} has {', '.join(known)}"


def _show(path: str, value: Any) -> str:
    if looks_secret(path.rpartition(".")[2]):
        return HIDDEN
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return text if len(text) <= _VALUE_CHARACTERS_MAX else text[:_VALUE_CHARACTERS_MAX] + "..."


def _make_paths_absolute(raw: Mapping[str, Any]) -> None:
    for path in _PATHS:
        *sections, key = path.split(".")
        table: Any = raw
        for section in sections:
            table = table.get(section, {})
        value = table.get(key)
        if isinstance(value, str):
            table[key] = _absolute(value)
        elif value is not None:
            table[key] = [_absolute(each) for each in value]


def _absolute(path: str) -> str:
    """Return the path from the root; links stay as they are, `..` is refused elsewhere."""
    return str(Path.cwd() / path)


def _check_together(config: Config) -> Iterator[str]:
    yield from check_event_log(config)
    if config.assignment.mode == "discover" and not config.asks_brokers:
        yield f'assignment.mode = "discover" asks the cluster, and {_ASKS_NOBODY}'
    if config.cleaner.observe.enabled:
        yield from _check_observe(config)
    yield from _check_socket_path(config.socket.path)
    if config.admin.listen and int(config.admin.listen.rpartition(":")[2]) > _PORT_MAX:
        yield f'admin.listen = "{config.admin.listen}": a port is at most {_PORT_MAX}'
    for peer in config.admin.peers:
        if not 0 < int(peer.rpartition(":")[2]) <= _PORT_MAX or not peer.isascii():
            yield f'admin.peers has "{peer}": host:port, with a port of 1 to {_PORT_MAX}'
    if config.readiness.strict_stale_after_seconds > config.readiness.stale_after_seconds:
        yield (
            "readiness.strict_stale_after_seconds is above stale_after_seconds: "
            "the strict limit is the shorter one"
        )
    yield from _check_own_directories(config)
    if isinstance(config.storage, LocalStorage):
        yield from _check_local_storage(config, config.storage)
    if isinstance(config.storage, S3Storage):
        yield from _check_s3_storage(config, config.storage)


def _check_observe(config: Config) -> Iterator[str]:
    here, observe = "cleaner.observe.enabled = true", config.cleaner.observe
    if not config.asks_brokers:
        yield f"{here} asks the cluster, and {_ASKS_NOBODY}"
    if isinstance(config.storage, NoStorage):
        yield f'{here} marks what the cleaner then removes, and storage.kind = "none" has none'
    if observe.grace_seconds < 2 * observe.interval_seconds:
        yield (
            "cleaner.observe.grace_seconds is shorter than two of its intervals: "
            "a topic has to be looked at in between"
        )


def _check_socket_path(path: str) -> Iterator[str]:
    length = len(path.encode())
    if length > SOCKET_PATH_BYTES_MAX:
        yield (
            f'socket.path = "{path}" is {length} bytes long and the kernel takes '
            f"{SOCKET_PATH_BYTES_MAX}: choose a shorter directory"
        )


def _check_log_dirs(config: Config) -> Iterator[str]:
    if not config.daemon.log_dirs:
        yield (
            "daemon.log_dirs is empty, so no segment could ever be copied: "
            "give the broker's log.dirs"
        )


def _check_s3_storage(config: Config, storage: S3Storage) -> Iterator[str]:
    yield from _check_log_dirs(config)
    given = {}
    for name in ("access_key_id", "secret_access_key", "session_token"):
        file, env = getattr(storage, f"{name}_file"), getattr(storage, f"{name}_env")
        given[name] = file is not None or env is not None
        if file is not None and env is not None:
            yield f"storage.{name}_file and storage.{name}_env are both set; keep one of them"
    if given["access_key_id"] != given["secret_access_key"]:
        yield (
            "storage.access_key_id_* and storage.secret_access_key_* belong together: give both, "
            "or neither to use the SDK's own chain"
        )
    if given["session_token"] and not given["access_key_id"]:
        yield "storage.session_token_* belongs to an access key, and there is none"
    if storage.sse_kms_key is not None and storage.sse != "aws:kms":
        yield 'storage.sse_kms_key is used with storage.sse = "aws:kms" only'
    if storage.transport == "obstore" and storage.bucket.endswith("--x-s3"):
        yield (
            "storage.bucket is a directory bucket, which is opened by a session of its own: "
            'set storage.transport = "aiobotocore"'
        )


def _check_local_storage(config: Config, storage: LocalStorage) -> Iterator[str]:
    yield from _check_log_dirs(config)
    brokers = (("daemon.log_dirs", each) for each in config.daemon.log_dirs)
    for name, directory in (*_own_directories(config), *brokers):
        if Path(directory).is_relative_to(storage.directory) or Path(
            storage.directory
        ).is_relative_to(directory):
            yield (
                f'storage.directory = "{storage.directory}" and {name} = "{directory}" '
                "lie in one another: remote storage needs a directory of its own"
            )


def _check_own_directories(config: Config) -> Iterator[str]:
    for name, directory in _own_directories(config):
        for log_dir in config.daemon.log_dirs:
            if Path(directory).is_relative_to(log_dir):
                yield (
                    f'{name} = "{directory}" lies in daemon.log_dirs = "{log_dir}", where a broker '
                    "starts with nothing but directories of partitions: choose another place"
                )


def _own_directories(config: Config) -> Iterator[tuple[str, str]]:
    yield "daemon.state_dir", config.daemon.state_dir
    if isinstance(config.event_log, EmbeddedLog):
        yield "the embedded log's directory", config.event_log_directory
    if isinstance(config.event_log, QuorumLog):
        yield "the quorum's directory", config.quorum_directory


def _flat(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _toml_lines(table: Mapping[str, Any], path: str) -> Iterator[str]:
    if path:
        yield f"\n[{path}]"
    for key, value in table.items():
        if value is None:
            yield f"# {key} is not set"
        elif not isinstance(value, dict):
            shown = f'"{HIDDEN}"' if looks_secret(key) else msgspec.json.encode(value).decode()
            yield f"{key} = {shown}"
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _toml_lines(value, f"{path}.{key}" if path else key)
