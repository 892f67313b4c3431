"""`make demo-cluster`: three brokers with a daemon each; a producer, a consumer, a leader killed.

A table shows all the while what is where: who leads, what is tiered, where each broker's local log
begins, how far the consumer is that began at offset 0. It ends with every record read once more
through the tier and compared.
"""  # noqa: INP001 - a script, no package

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from deploy.dev.stack.kafka import libs
from tests.kafka.probe import ProbeError
from tests.plugin.fleet import Fleet

PLUGIN: Final = libs.REPOSITORY / "deploy" / "plugin" / "target" / "rlmm-kafka-plugin.jar"
TOPIC: Final = "orders"
PARTITIONS: Final = 3
SIZE: Final = 1000
PER_SECOND: Final = 3000
PATIENCE_SECONDS: Final = 90.0


class CheckFailed(Exception):
    """Something is not as it was promised."""


@dataclass(slots=True)
class Demo:
    """The cluster, and what is shown of it."""

    fleet: Fleet
    console: Console
    began: float = field(default_factory=time.perf_counter)
    said: list[str] = field(default_factory=list)
    live: Live | None = None
    #: What is shown when there is no topic any more.
    last: Table | None = None

    def say(self, text: str) -> None:
        """Add a line below the table."""
        line = f"{time.perf_counter() - self.began:6.1f} s  {text}"
        self.said.append(line)
        if self.live is None:
            self.console.print(line, markup=False)
        self.show()

    def show(self) -> None:
        """Draw what is where now, if there is a terminal to draw on."""
        if self.live is not None:
            table = self.last or self.table()
            self.live.update(Group(table, *(Text(each) for each in self.said)))

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for it with the table running.

        Raises:
            CheckFailed: it does not come.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                raise CheckFailed(f"not within {PATIENCE_SECONDS:.0f} s: {what}")
            self.show()
            time.sleep(0.4)
        self.show()

    def for_seconds(self, seconds: float) -> None:
        """Let the load go on for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.show()
            time.sleep(0.4)

    def table(self) -> Table:
        """Return the live table: one row for each partition."""
        acknowledged = self.fleet.probe.ask("load_state")["acknowledged"]
        read = self.fleet.probe.ask("load_followed")["read"]
        rows = self.fleet.partitions(TOPIC)
        table = Table(title="What tiers where", title_justify="left")
        for heading in ("partition", "leader", "in sync", "written", "remote", "local logs begin"):
            table.add_column(heading, no_wrap=True)
        table.add_column("consumer read", justify="right", no_wrap=True)
        for number, row in enumerate(rows):
            logs = self.remote_logs(number)
            mib = sum(path.stat().st_size for path in logs) / 2**20
            starts = (self.local_start(number, broker_id) for broker_id in sorted(row["replicas"]))
            table.add_row(
                f"{TOPIC}-{number}",
                f"broker {row['leader']}" if row["leader"] >= 0 else "[red]nobody[/]",
                " ".join(map(str, sorted(row["isr"]))),
                f"{acknowledged[number]:,}",
                f"{len(logs)} segments, {mib:.1f} MiB",
                "  ".join(starts),
                f"{read[number]:,}",
            )
        return table

    def remote_logs(self, number: int) -> list[Path]:
        """Return the segments of a partition in the remote storage."""
        return list(self.fleet.remote.glob(f"{TOPIC}-{number}-*/*.log"))

    def local_start(self, number: int, broker_id: int) -> str:
        """Return where a broker's own copy begins, or that the broker is gone."""
        if not self.fleet.cluster.alive(broker_id):
            return f"[red]{broker_id}: killed[/]"
        data = self.fleet.cluster.data(broker_id) / f"{TOPIC}-{number}"
        logs = sorted(data.glob("*.log"))
        return f"{broker_id}: {int(logs[0].stem):,}" if logs else f"{broker_id}: -"


def run(demo: Demo) -> None:
    """Do everything, in order."""
    fleet = demo.fleet
    fleet.create(TOPIC, *([1, 2, 3], [2, 3, 1], [3, 1, 2]), min_insync_replicas=2)
    fleet.probe.ask(
        "load_start", topic=TOPIC, partitions=PARTITIONS, size=SIZE, per_second=PER_SECOND
    )
    fleet.probe.ask("load_follow", topic=TOPIC, partitions=PARTITIONS)
    with Live(console=demo.console) if demo.console.is_terminal else nullcontext() as live:
        demo.live = live
        demo.say("a producer writes, a consumer reads from offset 0 on")
        demo.until(
            lambda: all(len(demo.remote_logs(each)) > 1 for each in range(PARTITIONS)),
            "two segments of each partition are tiered",
        )
        demo.say("segments are tiered, and deleted locally")
        fail_over(demo)
        finish(demo)


def fail_over(demo: Demo) -> None:
    """Kill the leader of partition 0; another one tiers on, even if its daemon dies as well."""
    fleet = demo.fleet
    leader = fleet.leader(TOPIC)
    before = len(demo.remote_logs(0))
    fleet.cluster.kill(leader)
    demo.say(f"SIGKILL of broker {leader}, which led {TOPIC}-0")
    demo.until(lambda: fleet.leader(TOPIC) not in {leader, -1}, "another one leads")
    demo.say(f"broker {fleet.leader(TOPIC)} leads")
    demo.until(lambda: len(demo.remote_logs(0)) > before + 1, "it tiers on")
    demo.say("and tiers on")
    with ThreadPoolExecutor(1) as pool:
        returning = pool.submit(fleet.cluster.start_nodes, [leader])
        lose_a_daemon(demo)
        demo.until(returning.done, f"broker {leader} serves again")
        returning.result()
    demo.say(f"broker {leader} is back")


def lose_a_daemon(demo: Demo) -> None:
    """Kill the daemon of a leader: the broker goes on, and catches up when it is back."""
    leader = demo.fleet.leader(TOPIC)
    daemon = demo.fleet.daemons[leader]
    daemon.kill()
    demo.say(f"SIGKILL of the daemon beside broker {leader}")
    demo.for_seconds(3)
    daemon.start()
    before = len(demo.remote_logs(0))
    demo.say(f"it is back, {daemon.started_seconds:.2f} s after its start")
    demo.until(lambda: len(demo.remote_logs(0)) > before, "it tiers on")


def finish(demo: Demo) -> None:
    """End the load; everything is tiered, and read once more from offset 0."""
    fleet = demo.fleet
    fleet.probe.ask("load_stop")
    state = fleet.probe.ask("load_state")
    check(state["failed"] == 0, f"{state['failed']} writes were given up: {state['failure']}")
    total = sum(state["acknowledged"])
    demo.say(f"{total:,} records were acknowledged")

    def followed() -> bool:
        told = fleet.probe.ask("load_followed")
        check(not told["failure"], f"the consumer ended: {told['failure']}")
        check(told["wrong"] == 0, f"{told['wrong']} records were not the next ones")
        return sum(told["read"]) == total

    demo.until(followed, "the consumer has seen all")
    demo.until(lambda: all(tiered(fleet, number) for number in range(PARTITIONS)), "all is tiered")
    demo.say("all of it is tiered; no broker keeps any of it but the active segment")
    found = fleet.probe.ask("load_check", topic=TOPIC)
    expected = {"read": total, "missing": 0, "twice": 0, "wrong": 0, "disordered": 0}
    check(found == expected, f"{found} instead of {expected}")
    demo.say("read again from offset 0: each record once, in order, byte for byte")
    demo.last = demo.table()
    fleet.delete(TOPIC)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while fleet.stored(TOPIC):
        check(time.monotonic() < deadline, "the deleted topic's objects are gone")
        time.sleep(0.2)
    demo.say("the topic is deleted, and the remote storage empty")


def tiered(fleet: Fleet, number: int) -> bool:
    """Return whether nothing that was written is local any more where it is led."""
    ends = [
        fleet.probe.ask("offset", topic=TOPIC, partition=number, which=which)["offset"]
        for which in ("earliest-local", "latest")
    ]
    return bool(ends[0] == ends[1])


def check(holds: object, what: str) -> None:
    """Go on only if it holds."""
    if not holds:
        raise CheckFailed(what)


def main() -> int:
    """Return the exit code."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--keep", action="store_true", help="leave the directory behind")
    keep = options.parse_args().keep
    console = Console(highlight=False)
    libs.fetched()
    directory = Path(tempfile.mkdtemp(prefix="rlmm-demo-"))
    demo = Demo(Fleet(directory, PLUGIN), console)
    try:
        with console.status("starting three brokers and three daemons"):
            demo.fleet.start()
        demo.say("three brokers and three daemons serve")
        run(demo)
    except (CheckFailed, ProbeError, RuntimeError, TimeoutError) as error:
        keep = True
        console.print(f"[bold red]✗ {type(error).__name__}[/]: {error}")
        return 1
    else:
        console.print(f"[green]✓[/] {time.perf_counter() - demo.began:.0f} s in all")
        return 0
    finally:
        demo.fleet.end()
        if keep:
            console.print(f"Everything is left in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
