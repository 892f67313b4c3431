"""Replicas of a quorum as processes: formatted, started, killed, asked; their logs read back."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from deploy.dev.stack.ports import free_ports
from rlmm_daemon.adapters.quorum.client import Description, QuorumClient
from rlmm_daemon.adapters.quorum.files.formatted import TOPIC
from rlmm_daemon.adapters.quorum.handshake import Plain
from rlmm_daemon.adapters.quorum.wire import Group
from rlmm_daemon.codec import batches
from rlmm_daemon.codec.kraft import log_batches
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from rlmm_daemon.offline import quorum_format
from tests.support.daemon_process import environment

CLUSTER: Final = "c2lkZWNhci1kZXYta2Fma2"
HOST: Final = "127.0.0.1"
LISTENER: Final = "QUORUM"
PATIENCE_SECONDS: Final = 30.0


@dataclass(slots=True)
class ReplicaProcess:
    """One replica: its directory, its address, and at most one process."""

    key: ReplicaKey
    directory: Path
    port: int
    output: Path
    process: "subprocess.Popen[bytes] | None" = None
    #: How it proves who it is, and who may change voters.
    proof: Sequence[str] = ()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(LISTENER, HOST, self.port)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def start(self, servers: Sequence[str]) -> None:
        """Start it; return at once."""
        assert self.process is None, "it runs already"
        asked = [word for each in servers for word in ("--server", each)]
        words = ["quorum", "run", str(self.directory), "--listen", self.address, *asked]
        words += self.proof
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rlmm_daemon", *words],
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def kill(self) -> None:
        """SIGKILL; fine if it is gone."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self.process = None

    def stop(self) -> int:
        """SIGTERM; return the exit code."""
        assert self.process is not None, "it does not run"
        self.process.terminate()
        return self.ended()

    def ended(self) -> int:
        """Return the exit code of one that ends by itself."""
        assert self.process is not None, "it does not run"
        code = self.process.wait(PATIENCE_SECONDS)
        self.process = None
        return code

    def lines(self) -> list[dict[str, Any]]:
        """Return what it logged, over all its starts."""
        text = self.output.read_text(errors="replace") if self.output.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def values(self) -> list[bytes]:
        """Return the values in its log's files, in order."""
        return [value for file in self._files() for value in _values(file.read_bytes())]

    def _files(self) -> list[Path]:
        return sorted((self.directory / f"{TOPIC}-0").glob("*.log"))


@dataclass(slots=True)
class QuorumProcesses:
    """A quorum below one directory."""

    directory: Path
    replicas: dict[int, ReplicaProcess] = field(default_factory=dict)
    topic_id: bytes = bytes(16)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        for each in self.replicas.values():
            each.kill()

    def __getitem__(self, node_id: int) -> ReplicaProcess:
        return self.replicas[node_id]

    @property
    def servers(self) -> list[str]:
        return [each.address for each in self.replicas.values()]

    @property
    def asked(self) -> list[str]:
        """What commands are told of where the quorum is."""
        return [word for each in self.servers for word in ("--server", each)]

    def format(self, *ids: int) -> None:
        """Format the first voters, as on each of their machines."""
        for node_id, port in zip(ids, free_ports(len(ids)), strict=True):
            self._place(node_id, port)
        first = VoterSet.of(Voter(self[each].key, (self[each].endpoint,)) for each in ids)
        self.topic_id = quorum_format.log_id(CLUSTER, first)
        for node_id in ids:
            self._write(node_id, first)

    def join(self, node_id: int) -> ReplicaProcess:
        """Format one that joins, under a new directory id; a port that was its own stays."""
        known = self.replicas.get(node_id)
        self._place(node_id, free_ports(1)[0] if known is None else known.port)
        self._write(node_id, None)
        return self[node_id]

    def start(self, *ids: int) -> None:
        for node_id in ids:
            self[node_id].start(self.servers)

    def rlmm(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `rlmm quorum` with these words as a process."""
        return subprocess.run(
            [sys.executable, "-m", "rlmm_daemon", "quorum", *words],
            cwd=self.directory,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    def client(self, *, seconds: float = 10.0) -> QuorumClient:
        group = Group(cluster_id=CLUSTER, topic=TOPIC, topic_id=self.topic_id, listener=LISTENER)
        known = [each.endpoint for each in self.replicas.values()]
        return QuorumClient(group, Plain(), known, timeout_seconds=seconds)

    async def until(self, holds: Callable[[Description], bool], what: str) -> Description:
        """Return what the leader sees, once that holds."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            seen = await self.client(seconds=PATIENCE_SECONDS).describe()
            if holds(seen):
                return seen
            assert time.monotonic() < until, f"not in time: {what}; {seen}"

    def _place(self, node_id: int, port: int) -> None:
        self.replicas[node_id] = ReplicaProcess(
            key=ReplicaKey(node_id, os.urandom(16)),
            directory=self.directory / str(node_id),
            port=port,
            output=self.directory / f"{node_id}.log",
        )

    def _write(self, node_id: int, first: VoterSet | None) -> None:
        replica = self[node_id]
        quorum_format.write(
            quorum_format.plan(
                str(replica.directory),
                cluster_id=CLUSTER,
                node_id=node_id,
                directory_id=replica.key.directory,
                topic_id=self.topic_id,
                first=first,
            )
        )


def _values(data: bytes) -> Iterator[bytes]:
    for batch in log_batches.walk(data):
        assert isinstance(batch.payload, bytes)
        (kept,) = batches.split(batch.payload)
        if not kept.is_control:
            yield from (value or b"" for _, _, value in batches.keyed_records_of(kept))
