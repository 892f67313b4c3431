"""Kafka's own classes, asked from Python: one JVM, a JSON line to it and a JSON line back."""

import hashlib
import json
import select
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any, Final, Self

from deploy.dev.stack.kafka import libs
from deploy.dev.stack.kafka.cluster import java, quick
from rlmm_daemon.domain.ids import TopicIdPartition, uuid_text

_SOURCES: Final = Path(__file__).parent / "java"
_ANSWER_SECONDS: Final = 100


class ProbeError(Exception):
    """Kafka's class raised; the text begins with the exception's simple name."""


def classes() -> Path:
    """Return where the compiled probes are; they are compiled when their source changed."""
    sources = sorted(_SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    target = libs.REPOSITORY / "var" / "kafka-probe" / digest
    if not (target / "Probe.class").exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        # Test processes side by side may all find nothing: what the first one made stays.
        partly = Path(tempfile.mkdtemp(dir=target.parent))
        command = ["javac", "-nowarn", "-Xlint:none", "-d", str(partly)]
        command += ["-cp", f"{libs.fetched()}/*", *map(str, sources)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        try:
            partly.rename(target)
        except OSError:
            shutil.rmtree(partly)
    return target


def java_of_ours(*options: str) -> list[str]:
    """Return the beginning of a command line that runs one of our probes."""
    command = java(*options)
    command[-1] += f":{classes()}"  # behind the jars, as an archive of their classes wants it
    return command


class Probe:
    """A running Probe.java; its methods block, so call them from a thread or between steps."""

    def __init__(
        self, bootstrap: str, output: Path, answer_seconds: float = _ANSWER_SECONDS
    ) -> None:
        self._answer_seconds = answer_seconds
        self._lock = threading.Lock()
        #: Every value that was given to `produce`.
        self.produced: set[bytes] = set()
        with output.open("ab") as errors:
            self._process = subprocess.Popen(
                [*java_of_ours("-Xmx256m", *quick()), "Probe", bootstrap],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer; ProbeError if Kafka's class raised."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._process.stdin.flush()
            readable, _, _ = select.select([self._process.stdout], [], [], self._answer_seconds)
            line = self._process.stdout.readline() if readable else ""
        if not line:
            raise ProbeError(f"{op}: no answer; the JVM ended or hangs")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ProbeError(f"{answer['error']}: {answer['message']}")
        return answer

    def produce(
        self, topic: str, partition: int, values: list[bytes | None], **how: str
    ) -> list[int]:
        """Produce values as they are; how: transaction=commit|abort, compression=zstd."""
        self.produced.update(value for value in values if value is not None)
        hexed = [None if value is None else value.hex() for value in values]
        answer = self.ask("produce", topic=topic, partition=partition, values=hexed, **how)
        return list(answer["offsets"])

    def dump(self, topic: str) -> list[tuple[int, int, bytes | None]]:
        """Return (partition, offset, value) of every record, in the order of each partition."""
        rows = self.ask("dump", topic=topic)["records"]
        return [
            (row["partition"], row["offset"], None if row["hex"] is None else _bytes(row["hex"]))
            for row in rows
        ]

    def list(self, partition: TopicIdPartition) -> list[bytes]:
        """Return what Kafka's metadata manager lists."""
        return [_bytes(each) for each in self.ask("list", user=user(partition))["records"]]


def user(partition: TopicIdPartition) -> list[object]:
    """Return a user partition as the probe reads it."""
    return [uuid_text(partition.topic_id), partition.topic, partition.partition]


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text)
