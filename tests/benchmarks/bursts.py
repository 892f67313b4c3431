"""Bursts of DELETE_SEGMENT_STARTED of one partition: the plugin beside Kafka's own manager.

A broker marks all segments of a partition in one go. Both managers write to the same broker, each
in a JVM that does with it what a broker does, in turn, each burst to a partition of its own whose
segments lie in the log already. Of a burst the first quarter only warms up. Beside each rate stands
what a mark cost of each process: the processors are few, so that is what bounds it.
"""

import json
import statistics
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from deploy.dev.stack.kafka import libs
from deploy.dev.stack.kafka.cluster import FAST, Cluster
from tests.benchmarks.rows import Row
from tests.benchmarks.stolen import Calm
from tests.kafka.probe import java_of_ours
from tests.plugin.fleet import BesideKafka
from tests.plugin.tiers import DirectoryTier
from tests.support.fork_server import Launch

JAR: Final = "deploy/plugin/target/rlmm-kafka-plugin.jar"
_TBRLMM: Final = (
    "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
)
_PLUGIN: Final = "rlmm.daemon.kafka.RlmmDaemonMetadataManager"
_METADATA_PARTITIONS: Final = 50
_SECONDS: Final = 600
#: In flight, and how many times as fast as Kafka's manager that has to be.
BUDGETS: Final[Mapping[int, float | None]] = {1: None, 64: 2.5, 256: 1.5}
#: A lone caller is measured by so many: Kafka's manager takes 58 ms for each.
_ALONE: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One manager, the daemon that it asks, and the figures of each round."""

    name: str
    manager: str
    jar: Path | None
    daemon: BesideKafka | None
    rounds: list[dict[str, Any]]


class _Earlier(BesideKafka):
    """The daemon of another checkout, on the libraries of this one."""

    checkout: Path

    def _launch(self, notify: str) -> Launch:
        launch = super()._launch(notify)
        path = {"PYTHONPATH": str(self.checkout)}
        return replace(launch, environment=dict(launch.environment) | path)


def bursts(
    directory: Path, marks: int, rounds: int, console: Console, before: Path | None = None
) -> list[Row]:
    """Measure both, and, if given, what an earlier checkout with its plugin built makes of it."""
    calm = Calm()
    cluster = Cluster(directory=directory / "kafka", count=1, heap="768m", java_options=FAST)

    def beside(kind: type[BesideKafka], name: str) -> BesideKafka:
        """Return a daemon with a tier of its own: there are two of the same broker."""
        home, remote = directory / name, directory / f"{name}-remote"
        home.mkdir(parents=True)
        remote.mkdir()
        return kind(home, 1, cluster, DirectoryTier(remote))

    ours = Kind(
        name="ours", manager=_PLUGIN, jar=libs.REPOSITORY / JAR, rounds=[],
        daemon=beside(BesideKafka, "d1"),
    )  # fmt: skip
    kafkas = Kind(name="kafka", manager=_TBRLMM, jar=None, daemon=None, rounds=[])
    kinds = [ours, kafkas]
    if before is not None:
        earlier = beside(_Earlier, "d0")
        assert isinstance(earlier, _Earlier), "made so"
        earlier.checkout = before
        kinds.append(
            Kind(name="before", manager=_PLUGIN, jar=before / JAR, rounds=[], daemon=earlier)
        )
    lanes = iter(range(_METADATA_PARTITIONS))
    assert len(kinds) * (len(BUDGETS) + 1) * rounds <= _METADATA_PARTITIONS, "too many rounds"
    try:
        cluster.start()
        java("fill", cluster.bootstrap(), "0", "0")
        for kind in kinds:
            if kind.daemon is not None:  # now, since one that is new to a log reads all its past
                kind.daemon.start()
        java("fill", cluster.bootstrap(), str(_METADATA_PARTITIONS), str(marks))
        for number in range(rounds):
            for kind in kinds[number % len(kinds) :] + kinds[: number % len(kinds)]:
                plan = {inflight: _ALONE if inflight == 1 else marks for inflight in BUDGETS}
                if kind is not kafkas:  # which would start as many threads
                    plan[marks] = marks
                taken = [f"{next(lanes)}:{count}:{level}" for level, count in plan.items()]
                kind.rounds.append(_round(kind, cluster, taken))
                console.print(f"round {number + 1}, {kind.name}: {_told(kind.rounds[-1])}")
    finally:
        for kind in kinds:
            if kind.daemon is not None:
                kind.daemon.kill()
        cluster.stop()
    return burst_rows(kinds, marks, calm.share)


def java(*arguments: str, jar: Path | None = None) -> str:
    options = java_of_ours("-Xmx1g", *FAST)
    if jar is not None:
        options[-1] = f"{jar}:{options[-1]}"
    done = subprocess.run(
        [*options, "BurstBench", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    if done.returncode:
        raise RuntimeError(f"{arguments}: {done.stderr[-2000:]}")
    return done.stdout


def _round(kind: Kind, cluster: Cluster, taken: list[str]) -> dict[str, Any]:
    pids, socket = [cluster.nodes[1].pid], "none"
    if kind.daemon is not None:
        assert kind.daemon.process is not None, "started"
        pids, socket = [*pids, kind.daemon.process.pid], kind.daemon.socket_path
    said = java(
        "run", kind.manager, cluster.bootstrap(), cluster.cluster_id, socket,
        ",".join(map(str, pids)), *taken, jar=kind.jar,
    )  # fmt: skip
    return dict(json.loads(said.strip().splitlines()[-1]))


def _told(found: dict[str, Any]) -> str:
    return "; ".join(
        f"{level} in flight {each['rate']:,.0f}/s, p50 {each['p50_us'] / 1e3:.1f} ms, p99 "
        f"{each['p99_us'] / 1e3:.1f}, {each['failed']} failed, us of the JVM, the broker and the "
        f"daemon {', '.join(f'{cpu:.0f}' for cpu in each['cpu_us_each'])}"
        for level, each in found.items()
    )


def burst_rows(kinds: list[Kind], marks: int, stolen: float) -> list[Row]:
    """Return the rows of the report: medians over the rounds, ratios within each."""
    ours, kafkas, *others = kinds
    rows = []

    def each(kind: Kind, level: int, name: str) -> list[float]:
        return [float(found[str(level)][name]) for found in kind.rounds]

    for level, at_least in BUDGETS.items():
        mine, theirs = each(ours, level, "rate"), each(kafkas, level, "rate")
        rows.append(
            Row(
                group="bursts", what=f"marks a second, {level} in flight",
                value=statistics.median(mine), unit="/s", peer="TBRLMM",
                peer_value=statistics.median(theirs),
                ratio=statistics.median(one / two for one, two in zip(mine, theirs, strict=True)),
                at_least=at_least, stolen=stolen,
            )
        )  # fmt: skip
    for other in others:
        for level in (*BUDGETS, marks):
            mine, theirs = each(ours, level, "rate"), each(other, level, "rate")
            rows.append(
                Row(
                    group="bursts", what=f"marks a second, {level} in flight",
                    value=statistics.median(mine), unit="/s", peer=other.name,
                    peer_value=statistics.median(theirs), stolen=stolen,
                    ratio=statistics.median(
                        one / two for one, two in zip(mine, theirs, strict=True)
                    ),
                )
            )  # fmt: skip
        mine, theirs = each(ours, 1, "p50_us"), each(other, 1, "p50_us")
        rows.append(
            Row(
                group="bursts", what="one caller's p50", value=statistics.median(mine) / 1e3,
                unit="ms", peer=other.name, peer_value=statistics.median(theirs) / 1e3,
                ratio=statistics.median(one / two for one, two in zip(mine, theirs, strict=True)),
                at_most=1.5, stolen=stolen,
            )
        )  # fmt: skip
    failed = [found["failed"] for one in ours.rounds for found in one.values()]
    rows.append(
        Row(
            group="bursts", what=f"failed, {marks:,} at once among them", value=float(sum(failed)),
            unit="", limit=0,
        )
    )  # fmt: skip
    return rows
