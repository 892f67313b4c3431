"""Everything that a support bundle holds, in the order of its index."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from rlmm_daemon.config import Config, effective_toml, load
from rlmm_daemon.config.secret import SECRET_BYTES_MAX
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.secret import looks_secret
from rlmm_daemon.offline.support import host
from rlmm_daemon.offline.support.asked import AskedDaemon
from rlmm_daemon.offline.support.bundle import FILE_BYTES_MAX, Step

_DOCTOR_SECONDS: Final = 60.0
#: A line of a key that is so long is a secret of its own; a shorter one is anybody's.
_KEY_LINE_MIN: Final = 16


def config_or_none(file: str) -> Config | None:
    """Return the configuration; None where it can't be used, which its step tells."""
    try:
        return load(file, ())
    except (RlmmError, OSError):
        return None


def known_secrets(config: Config | None, environ: Mapping[str, str]) -> set[str]:
    """Return the secrets that the configuration points at, and those of this environment.

    What may not be read is left out: then nothing of it can be told either.
    """
    known = {value for name, value in environ.items() if looks_secret(name)}
    for name, value in _leaves(msgspec.to_builtins(config)) if config else ():
        if name.endswith("_env"):
            known.add(environ.get(value, ""))
        elif name == "key_file" or looks_secret(name.removesuffix("_file")):
            with suppress(OSError), Path(value).open(encoding="utf-8", errors="replace") as file:
                text = file.read(SECRET_BYTES_MAX).strip()
                known.add(text)
                known.update(each for each in text.split() if len(each) >= _KEY_LINE_MIN)
    return known


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(each, str(key))
    elif isinstance(value, str):
        yield name, value


def steps(
    config: Config | None, file: str, asked: AskedDaemon, socket_path: str, *, log: str | None
) -> Iterator[Step]:
    """Yield what is told, by whom; `log` is a file that the daemon logs to, if it does."""
    yield Step(name="versions.json", about="of rlmm, Python, libraries", tell=host.versions)
    yield Step(
        name="configuration.toml",
        about="what is in force, or why it can't be used",
        tell=lambda: _configuration(config, file),
    )
    yield from asked.steps()
    listen = config.admin.listen if config else "127.0.0.1:9405"
    yield Step(name="metrics.txt", about="/metrics", tell=lambda: host.metrics(listen))
    yield Step(
        name="process.txt",
        about="what the kernel says of the daemon's process",
        tell=lambda: host.process(socket_path),
    )
    yield Step(
        name="doctor.json",
        about="rlmm doctor",
        tell=lambda: host.said(
            *(sys.executable, "-m", "rlmm_daemon", "doctor", "--config", file, "--json"),
            seconds=_DOCTOR_SECONDS,
        ),
        seconds=_DOCTOR_SECONDS + host.SECONDS,
    )
    yield Step(name="units.txt", about="systemd's units, as they are", tell=host.units)
    yield Step(name="journal.txt", about="the last lines", tell=host.journal, keep="tail")
    if log is not None:
        yield Step(
            name="log.txt",
            about=f"the last lines of {log}",
            tell=lambda: host.last_lines(log, 2 * FILE_BYTES_MAX),
            keep="tail",
        )
    if config is not None:
        yield from _files(config)


def _files(config: Config) -> Iterator[Step]:
    state = config.daemon.state_dir
    mine = dict.fromkeys((state, config.snapshot_directory, config.event_log_directory))
    outside = [each for each in mine if each == state or not Path(each).is_relative_to(state)]
    yield Step(
        name="state-directory.txt",
        about="every file of it: mode, owner, size, time",
        tell=lambda: host.listing(outside),
    )
    yield Step(
        name="state-files.txt",
        about="its small files",
        tell=lambda: host.small_files(state),
    )
    yield Step(
        name="disks.txt",
        about="room on the disks of state, log and cache, and the mounts",
        tell=lambda: host.disks([*mine, config.cache_directory, *config.daemon.log_dirs]),
    )


def _configuration(config: Config | None, file: str) -> str:
    if config is not None:
        return effective_toml(config)
    text = Path(file).read_text(errors="replace")
    try:
        load(file, ())
    except RlmmError as error:
        return f"# It can't be used:\n# {error.message.replace(chr(10), chr(10) + '# ')}\n\n{text}"
    return text
