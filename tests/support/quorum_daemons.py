"""Daemons whose event log a quorum keeps: each runs its own replica."""

import json
from pathlib import Path
from typing import Any, Final, Self

from tests.support.daemon_process import DaemonProcess
from tests.support.quorum_processes import CLUSTER, QuorumProcesses

_CONFIG: Final = """
[daemon]
broker_id = {number}
cluster_id = "{cluster}"
state_dir = "var/state"
[socket]
path = "var/rlmm.sock"
[event_log]
kind = "quorum"
[event_log.quorum]
directory = "{directory}"
listen = "{listen}"
bootstrap = {bootstrap}
partition_count = 3
"""


def of_one(directory: Path) -> dict[str, object]:
    """Format a quorum of one, and return the settings of its daemon, whose broker's id is 1."""
    quorum = QuorumProcesses(directory)
    quorum.format(1)
    return settings_of_first(quorum)


def settings_of_first(quorum: QuorumProcesses) -> dict[str, object]:
    """Return the settings of replica 1's daemon in a quorum that was formatted."""
    others = [each.address for number, each in quorum.replicas.items() if number != 1]
    bootstrap = {"event_log.quorum.bootstrap": json.dumps(others)} if others else {}
    return bootstrap | {
        "daemon.cluster_id": CLUSTER,
        "event_log.kind": "quorum",
        "event_log.quorum.directory": str(quorum[1].directory),
        "event_log.quorum.listen": quorum[1].address,
        "event_log.quorum.partition_count": 3,
    }


class QuorumDaemons:
    """Daemons of one quorum, without storage and without brokers; one process each."""

    def __init__(self, directory: Path, *ids: int) -> None:
        self.quorum = QuorumProcesses(directory / "quorum")
        self.quorum.directory.mkdir()
        self.quorum.format(*ids)
        self._home = directory
        self.daemons = {number: self._daemon(number) for number in ids}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.daemons.values():
            each.kill()

    def __getitem__(self, number: int) -> DaemonProcess:
        return self.daemons[number]

    def join(self, number: int) -> DaemonProcess:
        """Format one more, as an observer, and return its daemon."""
        self.quorum.join(number)
        self.daemons[number] = self._daemon(number)
        return self.daemons[number]

    def standing(self, number: int) -> dict[str, Any]:
        """Return how that daemon's replica stands, by its own word."""
        with self[number].client() as client:
            found: dict[str, Any] = client.status()["log"]["quorum"]
        return found

    def leader(self) -> int | None:
        """Return who leads, by its own word."""
        for number, daemon in self.daemons.items():
            if daemon.process is not None and self.standing(number)["role"] == "leader":
                return number
        return None

    def _daemon(self, number: int) -> DaemonProcess:
        home = self._home / f"daemon-{number}"
        (home / "var").mkdir(parents=True)
        replica = self.quorum[number]
        others = [each.address for n, each in self.quorum.replicas.items() if n != number]
        config = home / "rlmm.toml"
        config.write_text(
            _CONFIG.format(
                number=number,
                cluster=CLUSTER,
                directory=replica.directory,
                listen=replica.address,
                bootstrap=others,
            )
        )
        return DaemonProcess(home, config=config)
