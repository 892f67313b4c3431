"""Lines of a broker's server.properties that put the plugin in place of Kafka's managers."""

import re
from collections.abc import Mapping
from typing import Final

from rlmm_daemon.offline.setup.broker import LISTENER_KEY, Broker, parsed

JAR: Final = "/opt/rlmm/rlmm-kafka-plugin.jar"
_HEAD: Final = (
    "# Remote log metadata and segments by the RLMM daemon beside this broker (rlmm setup).\n"
)
_PACKAGE: Final = "rlmm.daemon.kafka"
_NAME: Final = r"(?:\\.|[^\\=:\s])+"


def lines(broker: Broker, *, socket: str, jar: str, stores: bool) -> dict[str, str]:
    """Return the entries; `stores` is whether the daemon has a storage, and moves segments too."""
    given = broker.properties
    metadata = given.get("remote.log.metadata.manager.impl.prefix", "rlmm.config.")
    found = {
        "remote.log.storage.system.enable": "true",
        LISTENER_KEY: broker.listener,
        "remote.log.metadata.manager.class.name": f"{_PACKAGE}.RlmmDaemonMetadataManager",
        "remote.log.metadata.manager.class.path": jar,
        f"{metadata}socket.path": socket,
    }
    if stores:
        storage = given.get("remote.log.storage.manager.impl.prefix", "rsm.config.")
        found |= {
            "remote.log.storage.manager.class.name": f"{_PACKAGE}.RlmmDaemonStorageManager",
            "remote.log.storage.manager.class.path": jar,
            f"{storage}socket.path": socket,
        }
    return found


def with_lines(text: str, wanted: Mapping[str, str]) -> str:
    """Return a properties file in which these entries hold.

    An entry that is there is changed where it stands, its repeats go; a new one comes at the end.
    """
    found = parsed(text)
    missing = {key: value for key, value in wanted.items() if key not in found}
    wrong = {key: value for key, value in wanted.items() if found.get(key, value) != value}
    kept = _changed(text, wrong)
    if not missing:
        return kept
    joint = "" if not kept or kept.endswith("\n") else "\n"
    added = "".join(f"{key}={value}\n" for key, value in missing.items())
    return f"{kept}{joint}\n{_HEAD}{added}"


def _changed(text: str, wrong: Mapping[str, str]) -> str:
    kept: list[str] = []
    written: set[str] = set()
    for entry in _entries(text):
        match = re.match(rf"\s*({_NAME})", entry)
        key = "" if match is None or entry.lstrip()[:1] in ("#", "!") else match[1]
        if key not in wrong:
            kept.append(entry)
        elif key not in written:
            kept.append(f"{key}={wrong[key]}\n")
            written.add(key)
    return "".join(kept)


def _entries(text: str) -> list[str]:
    """Return comments and entries, each with the lines that it goes on in."""
    entries: list[str] = []
    goes_on = False
    for line in text.splitlines(keepends=True):
        if goes_on:
            entries[-1] += line
        else:
            entries.append(line)
        comment = not goes_on and line.lstrip()[:1] in ("#", "!")
        goes_on = not comment and bool(re.search(r"(?<!\\)(\\\\)*\\$", line.rstrip("\r\n")))
    return entries
