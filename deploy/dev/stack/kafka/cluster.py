"""A real Kafka cluster (KRaft, 1 or 3 nodes) on loopback, in one directory, stopped by its pids.

    python -m deploy.dev.stack.kafka.cluster up --nodes 3
    python -m deploy.dev.stack.kafka.cluster down

`cluster.json` in the directory holds ports and pids, so that another process can use, or end, what
this one began. Tests use the class. Every wait has a bound.
"""  # noqa: INP001 - scripts, no package

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from deploy.dev.stack.kafka import keys, libs
from deploy.dev.stack.ports import free_ports

#: Listeners that a client can ask for; PROXIED advertises `Node.ports["proxy"]`.
LISTENERS: Final = ("PLAINTEXT", "PROXIED", "TLS", "MTLS", "SASL", "SASLTLS")
#: Over SASL, by any mechanism. admin may do everything, rlmm what it is granted.
PASSWORDS: Final = {"admin": "admin-secret", "rlmm": "rlmm-secret"}
START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 30.0
_TOOL_SECONDS: Final = 120.0
_HOST: Final = "127.0.0.1"
_CLUSTER_ID: Final = "c2lkZWNhci1kZXYta2Fma2"
#: A short-lived broker starts a third sooner without the optimising compiler.
QUICK: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
FAST: Final = ("-XX:+UseG1GC",)


def quick() -> tuple[str, ...]:
    """Return the options of a JVM that lives for seconds."""
    archive = libs.archive()
    return (*QUICK, f"-XX:SharedArchiveFile={archive}") if archive.exists() else QUICK


@dataclass(slots=True, kw_only=True)
class Node:
    """One broker and controller."""

    node_id: int
    ports: dict[str, int]
    pid: int | None = None


@dataclass(slots=True, kw_only=True)
class Cluster:
    """A cluster in `directory`; `start` it, and `stop` it whatever happens."""

    directory: Path
    count: int = 1
    heap: str = "384m"
    java_options: tuple[str, ...] = field(default_factory=quick)
    #: More lines for every server.properties.
    properties: dict[str, str] = field(default_factory=dict)
    #: And for that of one node; a change is in force from its next start on.
    node_properties: dict[int, dict[str, str]] = field(default_factory=dict)
    nodes: dict[int, Node] = field(default_factory=dict)
    #: Our own children, which have to be waited for.
    _children: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> "Cluster":
        """Return the cluster that `cluster.json` tells of.

        Raises:
            FileNotFoundError: there is none.
        """
        told = json.loads((directory / "cluster.json").read_text())
        nodes = {row["node_id"]: Node(**row) for row in told["nodes"]}
        return cls(directory=directory, count=len(nodes), heap=told["heap"], nodes=nodes)

    @property
    def cluster_id(self) -> str:
        """Return the cluster's id."""
        return _CLUSTER_ID

    @property
    def key_directory(self) -> Path:
        """Return where ca.pem, client.crt and client.key are."""
        return self.directory / "keys"

    def bootstrap(self, listener: str = "PLAINTEXT") -> str:
        """Return `host:port,...` of a listener; for PROXIED that of the proxies."""
        port = "proxy" if listener == "PROXIED" else listener
        return ",".join(f"{_HOST}:{node.ports[port]}" for node in self.nodes.values())

    # ---- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Make what is missing, start every node, and return when all of them serve."""
        libs.fetched()
        self.directory.mkdir(parents=True, exist_ok=True)
        keys.make(self.key_directory)
        if not self.nodes:
            ports = iter(free_ports(self.count * (len(LISTENERS) + 2)))
            names = (*LISTENERS, "CONTROLLER", "proxy")
            for number in range(1, self.count + 1):
                node = Node(node_id=number, ports={name: next(ports) for name in names})
                self.nodes[number] = node
        self._format()
        try:
            self.start_nodes(self.nodes)
        except BaseException:
            self.stop()
            raise

    def start_nodes(self, node_ids: Iterable[int]) -> None:
        """Start some nodes and return when they serve; nodes that run are left alone."""
        began = [
            (node, self._spawn(node))
            for node_id in node_ids
            if not self.alive((node := self.nodes[node_id]).node_id)
        ]
        for node, position in began:
            self._await_serving(node, position)

    def alive(self, node_id: int) -> bool:
        """Return whether the node's process runs (a frozen one does too)."""
        if (child := self._children.get(node_id)) is not None:
            return child.poll() is None
        pid = self.nodes[node_id].pid
        return pid is not None and _is_ours(pid, self._properties(node_id))

    def kill(self, node_id: int) -> None:
        """SIGKILL a node and wait for its end."""
        self._signal(node_id, signal.SIGKILL)
        self._await_end([node_id])

    def freeze(self, node_id: int) -> None:
        """SIGSTOP: its connections stay, but nothing is answered from the return on.

        The signal alone stops nothing: one of the process's threads has to be scheduled to take it,
        and beside load the others serve on for some hundred ms.
        """
        self._signal(node_id, signal.SIGSTOP)
        pid = self.nodes[node_id].pid
        if pid is not None and self.alive(node_id):
            _until(lambda: _is_stopped(pid), STOP_SECONDS, f"node {node_id} is frozen")

    def thaw(self, node_id: int) -> None:
        """SIGCONT."""
        self._signal(node_id, signal.SIGCONT)

    def stop(self, node_ids: Collection[int] | None = None, seconds: float = STOP_SECONDS) -> None:
        """SIGTERM these nodes, or all; SIGKILL those that take longer."""
        chosen = [node for node in (node_ids or self.nodes) if self.alive(node)]
        for node_id in chosen:
            self.thaw(node_id)
            self._signal(node_id, signal.SIGTERM)
        try:
            self._await_end(chosen, seconds)
        except TimeoutError:
            for node_id in chosen:
                self._signal(node_id, signal.SIGKILL)
            self._await_end(chosen)

    def destroy(self) -> None:
        """SIGKILL everything and remove the directory."""
        for node_id in self.nodes:
            self._signal(node_id, signal.SIGKILL)
        self._await_end(list(self.nodes))
        shutil.rmtree(self.directory)

    def log(self, node_id: int) -> Path:
        """Return what the node wrote, over all its starts."""
        return self.directory / f"node-{node_id}.log"

    def data(self, node_id: int) -> Path:
        """Return the node's `log.dirs`."""
        return self.directory / f"node-{node_id}" / "data"

    def tool(self, main: str, *arguments: str) -> str:
        """Run one of Kafka's command line tools and return what it printed.

        Raises:
            RuntimeError: it failed; the text is all that it said.
        """
        done = subprocess.run(  # noqa: S603 - our own arguments
            [*java("-Xmx256m", *quick()), main, *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=_TOOL_SECONDS,
        )
        if done.returncode:
            raise RuntimeError(f"{main} {' '.join(arguments)}\n{done.stdout}{done.stderr}")
        return done.stdout

    # ---- what it takes -------------------------------------------------------------------------

    def _properties(self, node_id: int) -> Path:
        return self.directory / f"node-{node_id}" / "server.properties"

    def _format(self) -> None:
        formats = []
        for node in self.nodes.values():
            path = self._properties(node.node_id)
            path.parent.mkdir(exist_ok=True)
            path.write_text(self._server_properties(node))
            if not (self.data(node.node_id) / "meta.properties").exists():
                formats.append(self._format_command(path))
        # Side by side: each is one JVM of a second or two.
        running = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: S603 - our own arguments
            for command in formats
        ]
        for process in running:
            output, _ = process.communicate(timeout=_TOOL_SECONDS)
            if process.returncode:
                raise RuntimeError(f"the node can't be formatted: {output}")

    def _format_command(self, properties: Path) -> list[str]:
        users = [
            argument
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            for user, password in PASSWORDS.items()
            for argument in ("--add-scram", f"{mechanism}=[name={user},password={password}]")
        ]
        command = [*java("-Xmx128m", *quick()), "kafka.tools.StorageTool", "format"]
        return [*command, "-t", _CLUSTER_ID, "-c", str(properties), *users]

    def _server_properties(self, node: Node) -> str:
        def each(template: str, names: Iterable[str]) -> str:
            return ",".join(template.format(name=name, port=node.ports[name]) for name in names)

        advertised = dict(node.ports, PROXIED=node.ports["proxy"])
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        users = " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items())
        values = {
            "ID": str(node.node_id),
            "VOTERS": ",".join(
                f"{other.node_id}@{_HOST}:{other.ports['CONTROLLER']}"
                for other in self.nodes.values()
            ),
            "LISTENERS": each(f"{{name}}://{_HOST}:{{port}}", ("CONTROLLER", *LISTENERS)),
            "ADVERTISED": ",".join(f"{name}://{_HOST}:{advertised[name]}" for name in LISTENERS),
            "DIR": str(self._properties(node.node_id).parent),
            "KEYS": str(self.key_directory),
            "REPLICAS": str(min(self.count, 3)),
            "PLAIN": f"{plain} {users};",
            "SCRAM": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        }
        text = (libs.HERE / "server.properties.in").read_text()
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        more = self.properties | self.node_properties.get(node.node_id, {})
        return text + "".join(f"{name}={value}\n" for name, value in more.items())

    def _spawn(self, node: Node) -> int:
        log = self.log(node.node_id)
        position = log.stat().st_size if log.exists() else 0
        properties = self._properties(node.node_id)
        properties.write_text(self._server_properties(node))
        options = (f"-Xmx{self.heap}", *self.java_options, "-Dloglevel=INFO")
        with log.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603 - our own arguments
                [*java(*options), "kafka.Kafka", str(properties)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in the terminal that began it is not for it
            )
        node.pid = process.pid
        self._children[node.node_id] = process
        self._write()
        return position

    def _write(self) -> None:
        told = {"heap": self.heap, "nodes": [asdict(node) for node in self.nodes.values()]}
        (self.directory / "cluster.json").write_text(json.dumps(told, indent=1))

    def _await_serving(self, node: Node, position: int) -> None:
        def serves() -> bool:
            with self.log(node.node_id).open("rb") as log:
                log.seek(position)
                said = log.read()
            if b"Kafka Server started" in said:
                return True
            if not self.alive(node.node_id):
                last = said.decode(errors="replace").splitlines()[-20:]
                raise RuntimeError(f"node {node.node_id} ended:\n" + "\n".join(last))
            return False

        _until(serves, START_SECONDS, f"node {node.node_id} serves ({self.log(node.node_id)})")

    def _signal(self, node_id: int, number: signal.Signals) -> None:
        pid = self.nodes[node_id].pid
        if pid is not None and self.alive(node_id):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _await_end(self, node_ids: Collection[int], seconds: float = STOP_SECONDS) -> None:
        for node_id in node_ids:
            _until(lambda n=node_id: not self.alive(n), seconds, f"node {node_id} ends")  # type: ignore[misc]  # a default binds the loop's value
            self.nodes[node_id].pid = None
            self._children.pop(node_id, None)
        self._write()


def _is_stopped(pid: int) -> bool:
    """Return whether no thread of a process runs: each is stopped, or the process is gone.

    Source: proc_pid_stat(5); the name, in parentheses, may hold anything.
    """
    try:
        states = [
            stat.read_text().rpartition(") ")[2][:1]
            for stat in Path(f"/proc/{pid}/task").glob("*/stat")
        ]
    except (FileNotFoundError, ProcessLookupError):
        return False  # a thread has just ended: look again
    return all(state in "TtZX" for state in states)


def java(*options: str) -> list[str]:
    """Return the beginning of a command line that runs a class of Kafka's jars."""
    program = shutil.which("java")
    if program is None:
        raise RuntimeError("missing: a JDK, 17 or later (apt-get install openjdk-17-jdk-headless)")
    logging = f"-Dlog4j2.configurationFile={libs.HERE / 'log4j2.properties'}"
    path = f"{libs.fetched()}/*"
    return [program, "-Dloglevel=ERROR", *options, logging, "-Djava.awt.headless=true", "-cp", path]


def _is_ours(pid: int, properties: Path) -> bool:
    """Return whether `pid` runs and is the broker of these properties: pids come round again."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return str(properties).encode() in words


def _until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.1)


def up(directory: Path, nodes: int, heap: str) -> None:
    """Start the cluster in `directory`, with the data that it has, and say how to reach it."""
    try:
        cluster = Cluster.read(directory)
    except FileNotFoundError:
        cluster = Cluster(directory=directory, count=nodes, heap=heap)
    if cluster.count != nodes:
        raise RuntimeError(f"{directory} holds a cluster of {cluster.count}: make dev-down first")
    cluster.start()
    for listener in LISTENERS:
        print(f"{listener:10} {cluster.bootstrap(listener)}")  # noqa: T201 - the command's answer
    print(f"Keys in {cluster.key_directory}, logs in {directory}")  # noqa: T201 - the command's answer


def down(directory: Path, *, keep: bool) -> None:
    """Stop the cluster in `directory`; its data goes too unless kept."""
    try:
        cluster = Cluster.read(directory)
    except FileNotFoundError:
        print(f"no cluster in {directory}")  # noqa: T201 - the command's answer
        return
    cluster.stop()
    if not keep:
        cluster.destroy()


def main() -> int:
    """Return the exit code."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("command", choices=["up", "down"])
    options.add_argument("--nodes", type=int, choices=[1, 3], default=1)
    options.add_argument("--heap", default="384m", help="of each node (default: 384m)")
    options.add_argument("--directory", type=Path, default=libs.REPOSITORY / "var" / "kafka")
    options.add_argument("--keep", action="store_true", help="down: leave the data behind")
    chosen = options.parse_args()
    try:
        if chosen.command == "up":
            up(chosen.directory.resolve(), chosen.nodes, chosen.heap)
        else:
            down(chosen.directory.resolve(), keep=chosen.keep)
    except (RuntimeError, TimeoutError, subprocess.SubprocessError) as error:
        print(f"dev: {error}", file=sys.stderr)  # noqa: T201 - a script
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
