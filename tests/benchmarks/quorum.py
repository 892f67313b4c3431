"""`make bench-quorum`: three replicas' processes on loopback beside their peers, in one run.

Serial writes stand beside an fdatasync of the same file system that is made between them: what a
replicated durable write costs above the disk. Kafka's brokers and its TestRaftServer are measured
in the same run. A failover is from the signal to the first commit of the next leader.
"""

import argparse
import asyncio
import json
import os
import selectors
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from rich.console import Console

from deploy.dev.stack.kafka.cluster import Cluster
from deploy.dev.stack.ports import free_ports
from tests.benchmarks.quorum_replica import RECORD
from tests.benchmarks.rows import Row, table
from tests.benchmarks.run import RESULTS, keep
from tests.kafka.quorum_rig import mixed
from tests.support.quorum import QUICK, Quorum

WORK = RESULTS / "work-quorum"
ANSWER_SECONDS = 120.0
MS = 1000.0
#: Elections are hurried once in a while only.
CALM_SECONDS = 3.0


class Replica:
    """A process, and what it was asked."""

    def __init__(self, number: int, home: Path, ports: dict[int, int]) -> None:
        self.number = number
        told = {"number": number, "home": str(home), "ports": ports}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.quorum_replica", json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.read()

    def read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"replica {self.number} ended: {self.process.wait(10)}")
        return json.loads(line)

    def order(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def ask(self, *words: object) -> Any:
        self.order(*words)
        while (answer := self.read()).get("asked") != words[0]:
            pass
        return answer["said"]

    def end(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(number)
        self.process.wait(20)


class Three:
    """Three of them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.quorum = Quorum(home, 3, 0, QUICK)
        self.ports = dict(zip((1, 2, 3), free_ports(3), strict=True))
        self.quorum.ports = self.ports
        self.replicas: dict[int, Replica] = {}

    async def format(self) -> None:
        for number in self.ports:
            await self.quorum.format(number)

    def start(self, number: int) -> None:
        self.replicas[number] = Replica(number, self.home, self.ports)

    def leader(self) -> Replica:
        while True:
            for replica in self.replicas.values():
                if replica.ask("role")["leads"]:
                    return replica
            time.sleep(0.02)

    def until_all_have(self) -> None:
        end = self.leader().ask("role")["end"]
        for replica in self.replicas.values():
            replica.ask("reach", end)

    def stop(self) -> None:
        for replica in self.replicas.values():
            replica.end()
        self.quorum.disk.close()


def ms(seconds: Sequence[float], share: float = 0.5) -> float:
    return sorted(seconds)[int(len(seconds) * share)] * MS


def writes(three: Three, count: int) -> list[Row]:
    leader = three.leader()
    leader.ask("serial", 50)
    said = leader.ask("serial", count)
    ours, sync = ms(said["ours"]), ms(said["syncs"])
    lanes = 64
    flight = leader.ask("flight", count * 8, lanes)
    rate = count * 8 / flight["seconds"]
    alone = 1 / statistics.mean(said["ours"])
    return [
        Row(group="write", what="serial, p50", value=ours, unit="ms", peer="fdatasync + 1 ms",
            peer_value=sync + 1.0, ratio=ours / (sync + 1.0), at_most=1.0),
        Row(group="write", what="serial, p90", value=ms(said["ours"], 0.9), unit="ms",
            peer="fdatasync", peer_value=ms(said["syncs"], 0.9),
            ratio=ms(said["ours"], 0.9) / ms(said["syncs"], 0.9)),
        Row(group="write", what=f"{lanes} in flight", value=rate, unit="/s", peer="serial",
            peer_value=alone, ratio=rate / alone, at_least=5.0),
    ]  # fmt: skip


def catch_up(three: Three, megabytes: int) -> list[Row]:
    leader = three.leader()
    other = next(n for n in three.replicas if n != leader.number)
    three.replicas.pop(other).end()
    end = leader.ask("fill", megabytes)["end"]
    began = time.monotonic()
    three.start(other)
    took = three.replicas[other].ask("reach", end)["at"] - began
    log = next((three.home / str(leader.number)).glob("*-0"))
    began = time.monotonic()
    subprocess.run(["cp", "-r", str(log), str(three.home / "copied")], check=True, timeout=120)
    os.sync()
    copied = time.monotonic() - began
    return [
        Row(group="catch-up", what="a follower, with its start", value=megabytes / took,
            unit="MB/s", peer="cp, sync", peer_value=megabytes / copied, ratio=copied / took),
    ]  # fmt: skip


def failovers(three: Three, rounds: int) -> list[Row]:
    causes = {
        "killed": (signal.SIGKILL, 0.4),
        "told to end": (signal.SIGTERM, 0.4),
        "frozen": (signal.SIGSTOP, None),
    }
    rows = []
    for cause, (number, limit) in causes.items():
        took: list[float] = []
        for _ in range(rounds):
            three.until_all_have()
            time.sleep(CALM_SECONDS)
            leader = three.leader()
            others = [each for n, each in three.replicas.items() if n != leader.number]
            for each in others:
                each.order("lead")
            began = time.monotonic()
            leader.process.send_signal(number)
            took.append(_first(others)["at"] - began)
            leader.end()
            three.start(leader.number)
        rows.append(
            Row(group="failover", what=f"the leader is {cause}, median of {rounds}",
                value=statistics.median(took), unit="s", limit=limit,
                note=f"at most {max(took):.3f} s")
        )  # fmt: skip
    return rows


def _first(replicas: Sequence[Replica]) -> Any:
    """Return the first answer of any."""
    with selectors.DefaultSelector() as ready:
        for each in replicas:
            assert each.process.stdout is not None
            ready.register(each.process.stdout, selectors.EVENT_READ, each)
        found = ready.select(ANSWER_SECONDS)
        if not found:
            raise TimeoutError("nobody leads")
        return found[0][0].data.read()["said"]


def idle(three: Three, seconds: float) -> list[Row]:
    leader = three.leader()

    def seen() -> tuple[int, int]:
        pid = leader.process.pid
        io = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        woken = 0
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            for line in status.read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    woken += int(line.split()[1])
        return int(io["write_bytes"]), woken

    before = seen()
    time.sleep(seconds)
    after = seen()
    minute = 60 / seconds
    return [
        Row(group="idle", what="the leader writes to the disk", unit="B/min",
            value=(after[0] - before[0]) * minute),
        Row(group="idle", what="the leader's threads wake", unit="/min",
            value=(after[1] - before[1]) * minute),
    ]  # fmt: skip


async def produced(cluster: Cluster, count: int, **config: str) -> float:
    """Return the p50 of a serial acks=all produce in ms."""
    topic = "flushed" if config else "plain"
    servers = cluster.bootstrap()
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        await admin.create_topics(
            [NewTopic(topic, 1, 3, topic_configs={"min.insync.replicas": "2"} | config)]
        )
    finally:
        await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=0)
    await producer.start()
    took: list[float] = []
    try:
        for at in range(count + 50):
            began = time.perf_counter()
            await producer.send_and_wait(topic, RECORD[1], partition=0)
            if at >= 50:
                took.append(time.perf_counter() - began)
    finally:
        await producer.stop()
    return ms(took)


async def kafkas(ours: float, count: int) -> list[Row]:
    cluster = Cluster(directory=WORK / "kafka", count=3)
    await asyncio.to_thread(cluster.start)
    try:
        plain = await produced(cluster, count)
        flushed = await produced(cluster, count, **{"flush.messages": "1"})
    finally:
        await asyncio.to_thread(cluster.destroy)
    return [
        Row(group="write", what="serial, p50", value=ours, unit="ms",
            peer="three brokers, acks=all", peer_value=plain, ratio=plain / ours, at_least=2.0),
        Row(group="write", what="serial, p50", value=ours, unit="ms",
            peer="the same, flush.messages=1", peer_value=flushed, ratio=flushed / ours,
            at_least=4.0),
    ]  # fmt: skip


async def test_raft_servers(ours: float, seconds: float) -> list[Row]:
    async with mixed(WORK / "raft", ours=()) as quorum:
        for number in (1, 2, 3):
            quorum.start_jvm(number, throughput=50)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            await asyncio.sleep(seconds / 10)
            for number in (1, 2, 3):
                text = (WORK / f"raft/{number}/out").read_text(errors="replace")
                lines = [line for line in text.splitlines() if " p75 " in line]
                if len(lines) >= 3:
                    p75 = float(lines[-1].split("(ms): ")[1].split()[0])
                    return [
                        Row(group="write", what="serial, p75", value=ours, unit="ms",
                            peer="TestRaftServer x3, 50/s, p75", peer_value=p75,
                            ratio=p75 / ours),
                    ]  # fmt: skip
    return []


async def measured(*, quick: bool) -> list[Row]:
    count, rounds = (100, 2) if quick else (1_000, 20)
    shutil.rmtree(WORK, ignore_errors=True)
    three = Three(WORK / "ours")
    await three.format()
    try:
        for number in three.ports:
            three.start(number)
        rows = writes(three, count)
        assert rows[0].value is not None
        rows += idle(three, 2 if quick else 20)
        rows += catch_up(three, 8 if quick else 128)
        rows += failovers(three, rounds)
    finally:
        three.stop()
    rows += await kafkas(rows[0].value, count)
    rows += await test_raft_servers(rows[0].value, 10)
    shutil.rmtree(WORK, ignore_errors=True)
    return sorted(rows, key=lambda row: row.group)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.benchmarks.quorum", description=__doc__)
    options.add_argument("--quick", action="store_true", help="tiny, to see that it works")
    rows = asyncio.run(measured(quick=options.parse_args().quick))
    Console(width=140).print(table(rows))
    print(keep(rows, RESULTS))  # noqa: T201 - the command's answer
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
