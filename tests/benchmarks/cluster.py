"""`make bench-cluster`: one broker with the plugin and the daemon, then with Kafka's own managers.

The same broker, topic settings, directory and load for both: the daemon's storage is a directory,
and so is LocalTieredStorage's. Then both metadata managers, each in a JVM that does with it what a
broker does, over a topic with a million events. The machine is part of every figure: only the
ratios say something, and of more than one round.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace
from rich.console import Console

from deploy.dev.stack.kafka import libs
from deploy.dev.stack.kafka.cluster import FAST, Cluster, java
from tests.benchmarks.bursts import bursts
from tests.benchmarks.kafka import FIRST_PARTITIONS, USER_PARTITIONS, peer
from tests.benchmarks.rows import Row, table
from tests.benchmarks.stolen import Calm
from tests.kafka.probe import java_of_ours
from tests.plugin.fleet import KAFKAS, OURS, BesideKafka, Fleet, Parts, until
from tests.plugin.tiers import DirectoryTier

JAR: Final = libs.REPOSITORY / "deploy" / "plugin" / "target" / "rlmm-kafka-plugin.jar"
_TOOLS: Final = "org.apache.kafka.tools"
_TBRLMM: Final = (
    "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
)
_PLUGIN: Final = "rlmm.daemon.kafka.RlmmDaemonMetadataManager"
_RECORD_BYTES: Final = 1_000
#: One after the other: a broker's first one reads half as fast, whichever its managers are.
CONSUMERS: Final = 5
#: One after the other: one alone says little, it differs from the next.
PRODUCERS: Final = 4
_TOOL_SECONDS: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    #: Of 1,000 bytes each, produced while the topic tiers.
    records: int = 1_000_000
    #: Of the same size, which lie there when tiering begins, and are read back.
    past_records: int = 3_000_000
    #: Behind what the tool takes to warm up: its first answers take a third of a second.
    paced_seconds: int = 30
    paced_warmup_seconds: int = 5
    paced_per_second: int = 10_000
    segment_bytes: int = 64 * 1024 * 1024
    rounds: int = 2
    events: int = 1_000_000
    lookups: int = 20_000
    marks: int = 20_000
    burst_rounds: int = 3


def tool(fleet: Fleet, name: str, *arguments: str) -> str:
    server = ("--bootstrap-server", fleet.cluster.bootstrap())
    done = subprocess.run(
        [*java("-Xmx512m", *FAST), f"{_TOOLS}.{name}", *server, *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=_TOOL_SECONDS,
    )
    return done.stdout


def produce(
    fleet: Fleet, topic: str, records: int, per_second: int = -1, warmup: int = 0
) -> dict[str, float]:
    """Return MB/s and the p99 of the acknowledgement in ms, without the first `warmup` records."""
    said = tool(
        fleet, "ProducerPerformance", "--topic", topic, "--num-records", str(records),
        "--record-size", str(_RECORD_BYTES), "--throughput", str(per_second),
        "--warmup-records", str(warmup),
        "--command-property", "acks=all", "batch.size=65536", "linger.ms=5",
    )  # fmt: skip
    last = said.strip().splitlines()[-1]  # "..., 94.19 MB/sec), ..., 30 ms 99th, ..."
    rate = float(last.split(" MB/sec")[0].rsplit("(", 1)[1])
    return {"rate": rate, "p99": float(last.split(" ms 99th")[0].rsplit(" ", 1)[1])}


def consume(fleet: Fleet, topic: str, records: int) -> float:
    """Return MB/s of a consumer that begins at offset 0."""
    said = tool(
        fleet, "ConsumerPerformance", "--topic", topic, "--num-records", str(records),
        "--timeout", "60000",
    )  # fmt: skip
    return float(said.strip().splitlines()[-1].split(",")[8])


class Round:
    """One kind of broker, from an empty topic to everything read back."""

    def __init__(self, fleet: Fleet, scale: Scale, name: str, calm: Calm) -> None:
        self.fleet, self.scale, self.name, self.calm = fleet, scale, name, calm

    def run(self) -> dict[str, float]:
        return self._produce_while_tiering() | self._tier_and_read()

    def _produce_while_tiering(self) -> dict[str, float]:
        topic = f"live-{self.name}"
        self._create(topic, tiered=True)
        produce(self.fleet, topic, self.scale.records // 10)  # the broker's JVM is warm afterwards
        rates = [
            self.calm.measure(lambda: produce(self.fleet, topic, self.scale.records))["rate"]
            for _ in range(PRODUCERS)
        ]
        pace = self.scale.paced_per_second
        warmup = self.scale.paced_warmup_seconds * pace
        count = self.scale.paced_seconds * pace + warmup
        paced = self.calm.measure(lambda: produce(self.fleet, topic, count, pace, warmup))
        self.fleet.delete(topic)
        until(lambda: not self.fleet.stored(topic), f"{topic} is gone")
        return {"produce": statistics.median(rates), "p99": paced["p99"]}

    def _tier_and_read(self) -> dict[str, float]:
        topic = f"past-{self.name}"
        self._create(topic, tiered=False)
        produce(self.fleet, topic, self.scale.past_records)
        begun = time.perf_counter()
        self.fleet.configure(topic, remote_storage_enable="true")
        end = int(self.local_logs(topic)[-1].stem)  # the active segment is not copied
        until(lambda: self.fleet.offset(topic, "latest-tiered") >= end - 1, "tiered", every=0.05)
        took = time.perf_counter() - begun
        size = sum(Path(each).stat().st_size for each in self.fleet.stored(topic, ".log"))
        self.fleet.configure(topic, local_retention_ms=1000)
        self.fleet.until_tiered(topic, self.scale.past_records)
        rate = self.calm.measure(lambda: self._read(topic))
        self.fleet.delete(topic)
        until(lambda: not self.fleet.stored(topic), f"{topic} is gone")
        return {"tier": size / took / 1e6, "tier_seconds": took, "read": rate, "tiered": size}

    def _read(self, topic: str) -> float:
        """Return the median rate of some consumers behind one that warms the broker's JVM up."""
        records = self.scale.past_records
        _, *rates = (consume(self.fleet, topic, records) for _ in range(CONSUMERS))
        return statistics.median(rates)

    def local_logs(self, topic: str) -> list[Path]:
        return sorted((self.fleet.cluster.data(1) / f"{topic}-0").glob("*.log"))

    def _create(self, topic: str, *, tiered: bool) -> None:
        self.fleet.create(
            topic, [1], remote_storage_enable=str(tiered).lower(),
            segment_bytes=self.scale.segment_bytes, local_retention_ms=3_600_000,
        )  # fmt: skip


def segments(directory: Path, scale: Scale, console: Console) -> list[Row]:
    """Measure produce, tier and read, the kinds in turn."""
    found: dict[Parts, list[dict[str, float]]] = {OURS: [], KAFKAS: []}
    fleet, calm = Fleet(directory, JAR, count=1), Calm()
    fleet.cluster.heap, fleet.cluster.java_options = "1g", FAST
    try:
        fleet.start()
        for number in range(scale.rounds):
            for parts, results in found.items():
                if number or parts is not OURS:
                    fleet.restart(1, parts)
                kind = "ours" if parts is OURS else "kafka"
                results.append(Round(fleet, scale, f"{kind}-{number}", calm).run())
                console.print(f"round {number + 1}, {kind}: {results[-1]}")
    finally:
        fleet.end()
    return segment_rows(found[OURS], found[KAFKAS], calm.share)


def segment_rows(
    ours: list[dict[str, float]], kafkas: list[dict[str, float]], stolen: float
) -> list[Row]:
    def row(
        what: str,
        name: str,
        unit: str,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> Row:
        mine, theirs = (statistics.median(each[name] for each in all_) for all_ in (ours, kafkas))
        return Row(
            group="segments", what=what, value=mine, unit=unit, peer="TBRLMM, LocalTieredStorage",
            peer_value=theirs, ratio=mine / theirs, at_least=at_least, at_most=at_most,
            stolen=stolen,
        )  # fmt: skip

    gib = ours[0]["tiered"] / 2**30
    return [
        row("produce while tiering", "produce", "MB/s", at_least=0.95),
        row("p99 of a paced producer while tiering", "p99", "ms", at_most=1.1),
        row(f"{gib:.1f} GiB to the tier", "tier_seconds", "s"),
        row("the same as a rate", "tier", "MB/s"),
        row("consumer from offset 0, out of the tier", "read", "MB/s", at_least=0.9),
    ]


def managers(directory: Path, scale: Scale) -> list[Row]:
    """Measure configure to every isReady, and look-ups, as a broker's JVM sees them."""
    calm = Calm()
    cluster = Cluster(directory=directory / "kafka", count=1, heap="768m", java_options=FAST)
    home = directory / "d1"
    home.mkdir(parents=True)
    (directory / "remote").mkdir()
    daemon = BesideKafka(home, 1, cluster, DirectoryTier(directory / "remote"))
    try:
        cluster.start()
        events = int(peer("fill", cluster.bootstrap(), str(scale.events)))
        each = events // 2 // USER_PARTITIONS

        def manager(name: str) -> dict[str, float]:
            options = java_of_ours("-Xmx3g", *FAST)
            options[-1] = f"{JAR}:{options[-1]}"
            arguments = (cluster.bootstrap(), cluster.cluster_id, daemon.socket_path)
            numbers = map(str, (FIRST_PARTITIONS, each, scale.lookups))
            done = subprocess.run(
                [*options, "ManagerBench", name, *arguments, *numbers],
                check=False,
                capture_output=True,
                text=True,
                timeout=_TOOL_SECONDS,
            )
            if done.returncode:
                raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
            return dict(json.loads(done.stdout.strip().splitlines()[-1]))

        theirs = calm.measure(lambda: manager(_TBRLMM))
        daemon.start()
        first = manager(_PLUGIN)
        again = calm.measure(lambda: manager(_PLUGIN))

        def with_the_daemon() -> dict[str, float]:
            assert daemon.stop() == 0, daemon.last_words()
            daemon.start()
            return manager(_PLUGIN)

        restarted = calm.measure(with_the_daemon)
    finally:
        daemon.kill()
        cluster.stop()
    rows = manager_rows(theirs, first, again, restarted, events)
    return [replace(row, stolen=calm.share) for row in rows]


def manager_rows(
    theirs: dict[str, float],
    first: dict[str, float],
    again: dict[str, float],
    restarted: dict[str, float],
    events: int,
) -> list[Row]:
    def ready(what: str, mine: dict[str, float], at_least: float | None) -> Row:
        return Row(
            group="managers", what=f"configure to ready, {events:,} events, {what}",
            value=mine["ready_seconds"] * 1e3, unit="ms", peer="TBRLMM",
            peer_value=theirs["ready_seconds"] * 1e3,
            ratio=theirs["ready_seconds"] / mine["ready_seconds"], at_least=at_least,
        )  # fmt: skip

    def look_up(name: str) -> Row:
        return Row(
            group="managers", what=f"look-up as the broker sees it, {name}",
            value=again[f"lookup_{name}_us"], unit="us", peer="TBRLMM, in its heap",
            peer_value=theirs[f"lookup_{name}_us"],
            limit=1000 if name == "p99" else None,
        )  # fmt: skip

    return [
        ready("the broker restarted", again, 50),
        ready("broker and daemon restarted", restarted, 50),
        ready("the daemon's very first start", first, None),
        look_up("p50"),
        look_up("p99"),
        Row(
            group="managers",
            what="look-ups that found nothing, though is_ready",
            value=max(each["lookup_lost"] for each in (first, again, restarted)),
            unit="",
            peer="TBRLMM",
            peer_value=theirs["lookup_lost"],
            limit=0,
        ),
    ]


def main() -> int:
    """Return the exit code."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--records", type=int, default=Scale().records)
    options.add_argument("--past-records", type=int, default=Scale().past_records)
    options.add_argument("--rounds", type=int, default=Scale().rounds)
    options.add_argument("--events", type=int, default=Scale().events)
    options.add_argument("--only", choices=["segments", "managers", "bursts"])
    options.add_argument("--marks", type=int, default=Scale().marks)
    options.add_argument("--burst-rounds", type=int, default=Scale().burst_rounds)
    options.add_argument(
        "--before", type=Path, help="an earlier checkout, its plugin built: bursts beside it, too"
    )
    chosen = options.parse_args()
    scale = Scale(
        records=chosen.records,
        past_records=chosen.past_records,
        rounds=chosen.rounds,
        events=chosen.events,
        marks=chosen.marks,
        burst_rounds=chosen.burst_rounds,
    )
    console = Console(width=None if sys.stdout.isatty() else 150)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="rlmm-bench-", ignore_cleanup_errors=True) as directory:
        if chosen.only in {None, "managers"}:
            rows += managers(Path(directory) / "managers", scale)
        if chosen.only in {None, "bursts"}:
            rows += bursts(
                Path(directory) / "bursts", scale.marks, scale.burst_rounds, console, chosen.before
            )
        if chosen.only in {None, "segments"}:
            rows += segments(Path(directory) / "segments", scale, console)
    console.print(table(rows))
    console.print(f"{os.cpu_count()} processors")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
