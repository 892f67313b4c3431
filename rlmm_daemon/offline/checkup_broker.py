"""Check of `rlmm doctor`: `daemon.log_dirs` against the files that the broker keeps there."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rlmm_daemon.config import Config, from_properties
from rlmm_daemon.core import phrases
from rlmm_daemon.daemon.cleaner.directories import BROKERS_OWN
from rlmm_daemon.offline.finding import CheckResult

_CHECK: Final = "log directories"
#: The broker's id: in KRaft's form of the file, and in the older one.
_IDS: Final = ("node.id", "broker.id")


async def log_directories(config: Config) -> list[CheckResult]:
    """Judge each directory by the file that a broker keeps in it."""
    dirs = config.daemon.log_dirs
    if not dirs:
        return []  # no storage is configured, or the configuration was refused
    faults = [each for each in [await asyncio.to_thread(_fault, d, config) for d in dirs] if each]
    if not faults:
        found = f"{phrases.number(len(dirs), 'directory', 'directories')} of this broker"
        return [CheckResult(check=_CHECK, verdict="ok", found=found)]
    advice = (
        "daemon.log_dirs are the broker's log.dirs, daemon.broker_id is its node.id, "
        "daemon.cluster_id the cluster.id in meta.properties; is a disk not mounted?"
    )
    return [CheckResult(check=_CHECK, verdict="failed", found="; ".join(faults), advice=advice)]


def _fault(directory: str, config: Config) -> str | None:
    try:
        text = Path(directory, BROKERS_OWN).read_text(encoding="latin-1")  # as Java reads it
    except FileNotFoundError:
        there = Path(directory).is_dir()
        return f"{directory} {f'has no {BROKERS_OWN}' if there else 'is not there'}"
    except OSError as error:
        return f"{directory}: {error.strerror}"
    properties = from_properties.read(text)
    return foreign(directory, properties, config.daemon.broker_id, config.daemon.cluster_id)


def foreign(
    directory: str, properties: Mapping[str, str], broker_id: int, cluster_id: str | None
) -> str | None:
    """Return whose a directory is, if it says so and is another broker's or another cluster's."""
    theirs = next((properties[name] for name in _IDS if name in properties), None)
    if theirs is not None and theirs != str(broker_id):
        return f"{directory} is of broker {theirs}, daemon.broker_id is {broker_id}"
    cluster = properties.get("cluster.id")
    if cluster is not None and cluster_id is not None and cluster != cluster_id:
        return f"{directory} is of cluster {cluster}, daemon.cluster_id is {cluster_id}"
    return None
