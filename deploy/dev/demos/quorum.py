"""`make demo-quorum`: three processes elect; a leader, a disk and a machine go, and nothing else.

One writer submits numbered records all the while, one after the other. In the end the log of each
voter is read from its files, and held against what had been acknowledged. The first check that
fails ends the demo with exit code 1.
"""  # noqa: INP001 - a script, no package

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from rlmm_daemon.adapters.quorum.client import Description
from rlmm_daemon.core.raft.voters import ReplicaKey
from rlmm_daemon.domain.errors import OutcomeUnknown, RlmmError
from rlmm_daemon.domain.ids import uuid_text
from tests.support.quorum_processes import QuorumProcesses, ReplicaProcess

SECONDS_MAX: Final = 40.0
#: Before the first fault.
RECORDS_FIRST: Final = 200


class CheckFailed(Exception):
    """Something is not as it was promised."""


def check(holds: object, what: str) -> None:
    """Go on only if it holds."""
    if not holds:
        raise CheckFailed(what)


@dataclass(slots=True)
class Writer:
    """Submits one record after the other, and remembers what was acknowledged."""

    quorum: QuorumProcesses
    acknowledged: list[bytes] = field(default_factory=list)
    #: When each of them was submitted, and acknowledged.
    begun: list[float] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    unknown: list[bytes] = field(default_factory=list)
    ended: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Go on until it is told to end."""
        client = self.quorum.client(seconds=15.0)
        number = 0
        while not self.ended:
            number += 1
            value = f"record {number:06}".encode().ljust(330, b".")
            begun = time.perf_counter()
            try:
                await client.submit([(None, value)])
            except OutcomeUnknown:
                self.unknown.append(value)
                continue
            self.acknowledged.append(value)
            self.begun.append(begun)
            self.at.append(time.perf_counter())
            self.news.set()

    async def more(self, count: int) -> None:
        """Return once so many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        while len(self.acknowledged) < wanted:
            self.news.clear()
            await self.news.wait()


@dataclass(slots=True)
class Demo:
    """What the steps share."""

    quorum: QuorumProcesses
    writer: Writer
    console: Console
    began: float = field(default_factory=time.perf_counter)
    steps: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def step(self, what: str) -> Iterator[list[str]]:
        """Time a step, and say how it went: what is put into the list."""
        notes: list[str] = []
        begun = time.perf_counter()
        yield notes
        seconds = time.perf_counter() - begun
        note = ", ".join(notes)
        self.steps.append((what, seconds))
        self.console.print(
            f"[green]✓[/] {what:47} {seconds:7.3f} s  [dim]{note}[/]", soft_wrap=True
        )

    async def rlmm(self, *words: str) -> str:
        """Type a command, and show it with its answer; return the answer."""
        typed = [*words, "--server", self.somebody().address]

        ended = await asyncio.to_thread(self.quorum.rlmm, *typed)
        self.console.print(f"  $ rlmm quorum {' '.join(typed)}", style="cyan", soft_wrap=True)
        for line in (ended.stdout + ended.stderr).rstrip().splitlines():
            self.console.print(f"    {line}", markup=False, style="dim", soft_wrap=True)
        check(ended.returncode == 0, f"rlmm quorum {words[0]} ended with {ended.returncode}")
        return ended.stdout

    def somebody(self) -> ReplicaProcess:
        """Return a replica that runs."""
        return next(each for each in self.quorum.replicas.values() if each.process is not None)

    async def until_caught_up(self, key: ReplicaKey) -> None:
        """Wait until a replica has what the leader had a moment ago."""
        begun = (await self.quorum.client().describe()).high_watermark

        def there(seen: Description) -> bool:
            return any(
                each.key == key and each.end >= begun and each.caught_up_at_ms > 0
                for each in (*seen.voters, *seen.observers)
            )

        await self.quorum.until(there, f"{key} has caught up")


async def elect(demo: Demo) -> None:
    """Format three directories and start a process on each."""
    with demo.step("format three directories"):
        await asyncio.to_thread(demo.quorum.format, 1, 2, 3)
    with demo.step("start three processes, until one leads") as notes:
        demo.quorum.start(1, 2, 3)
        seen = await demo.quorum.until(lambda seen: seen.high_watermark > 0, "a leader")
        notes.append(f"replica {seen.leader} leads epoch {seen.epoch}")


async def write(demo: Demo) -> None:
    """Submit records one after the other."""
    with demo.step(f"submit {RECORDS_FIRST} records, one after the other") as notes:
        await demo.writer.more(RECORDS_FIRST)
        at = demo.writer.at
        gaps = [after - before for before, after in pairwise(at)]
        notes.append(f"{statistics.median(gaps) * 1000:.1f} ms each (median), a connection each")
    await demo.rlmm("describe")


async def kill_the_leader(demo: Demo) -> None:
    """SIGKILL the leader: somebody else takes the next record."""
    leader = (await demo.quorum.client().describe()).leader
    with demo.step(f"SIGKILL of replica {leader}, which leads") as notes:
        demo.quorum[leader].kill()
        killed = time.perf_counter()
        await demo.writer.more(2)  # the answer to one may have been on its way
        times = zip(demo.writer.begun, demo.writer.at, strict=True)
        after = next(at for begun, at in times if begun > killed)
        seen = await demo.quorum.client().describe()
        notes.append(f"next commit after {(after - killed) * 1000:.0f} ms")
        notes.append(f"replica {seen.leader} leads epoch {seen.epoch}")
        check(seen.leader != leader, "another one leads")
    with demo.step(f"replica {leader} starts again, and catches up"):
        demo.quorum.start(leader)
        await demo.until_caught_up(demo.quorum[leader].key)


async def hand_over(demo: Demo) -> None:
    """SIGTERM the leader: it hands over first."""
    leader = (await demo.quorum.client().describe()).leader
    with demo.step(f"SIGTERM of replica {leader}, which leads") as notes:
        begun = time.perf_counter()
        code = await asyncio.to_thread(demo.quorum[leader].stop)
        await demo.writer.more(2)
        gaps = pairwise(demo.writer.at)
        longest = max(after - before for before, after in gaps if after > begun)
        check(code == 0, f"the exit code is {code}")
        notes.append(f"longest pause between two commits {longest * 1000:.0f} ms")
        demo.quorum.start(leader)
        await demo.until_caught_up(demo.quorum[leader].key)


async def lose_a_disk(demo: Demo) -> None:
    """Empty a voter's directory: it is another replica from then on."""
    leader = (await demo.quorum.client().describe()).leader
    node_id = max({1, 2, 3} - {leader})
    old = demo.quorum[node_id]
    with demo.step(f"replica {node_id} loses its log, and starts") as notes:
        old.kill()
        for file in (old.directory / "__rlmm_quorum-0").glob("*.log"):
            file.unlink()
        demo.quorum.start(node_id)
        code = await asyncio.to_thread(old.ended)
        check(code == 1, f"it is refused, and not with exit code {code}")
        said = old.lines()[-1]["message"].partition(";")[0].rpartition(": ")[2]
        notes.append(f"refused: {said}")
    with demo.step("the disk is replaced, formatted anew, and joins") as notes:
        shutil.rmtree(old.directory)
        new = await asyncio.to_thread(demo.quorum.join, node_id)
        demo.quorum.start(node_id)
        await demo.until_caught_up(new.key)
        notes.append(f"an observer with directory {uuid_text(new.key.directory)}")
    with demo.step("the old directory is removed, the new one added"):
        await demo.rlmm(
            "remove",
            *("--node-id", str(node_id), "--directory-id", uuid_text(old.key.directory)),
            "--execute",
        )
        await add(demo, new)


async def move(demo: Demo) -> None:
    """Add a fourth replica, and remove the first."""
    with demo.step("a fourth replica joins, and is added"):
        new = await asyncio.to_thread(demo.quorum.join, 4)
        demo.quorum.start(4)
        await demo.until_caught_up(new.key)
        await add(demo, new)
    with demo.step("the first is removed, and stopped") as notes:
        await demo.rlmm("remove", "--node-id", "1", "--execute")
        code = await asyncio.to_thread(demo.quorum[1].stop)
        check(code == 0, f"the exit code is {code}")
        seen = await demo.quorum.until(
            lambda seen: seen.leader != 1 and seen.high_watermark > 0, "another one leads"
        )
        ids = [each.key.id for each in seen.voters]
        check(ids == [2, 3, 4], f"the voters are {ids}")
        notes.append("voters 2, 3, 4")
    await demo.rlmm("describe")


async def add(demo: Demo, replica: ReplicaProcess) -> None:
    """Add a voter by its command."""
    await demo.rlmm(
        "add",
        *("--node-id", str(replica.key.id), "--directory-id", uuid_text(replica.key.directory)),
        *("--listen", replica.address),
        "--execute",
    )


async def compare(demo: Demo) -> None:
    """Stop all, and read what each voter has on its disk."""
    writer = demo.writer
    voters = [demo.quorum[each] for each in (2, 3, 4)]
    with demo.step("all have everything, and are stopped"):
        for each in voters:
            await demo.until_caught_up(each.key)
        for each in voters:
            check(await asyncio.to_thread(each.stop) == 0, f"replica {each.key.id} ends cleanly")
    with demo.step("the logs are read, and compared") as notes:
        submitted = {*writer.acknowledged, *writer.unknown}
        for each in voters:
            values = each.values()
            known = set(writer.unknown)
            kept = [value for value in values if value not in known]
            check(kept == writer.acknowledged, f"replica {each.key.id} has each, once, in order")
            check(submitted.issuperset(values), f"replica {each.key.id} has nothing else")
        notes.append(f"{len(writer.acknowledged):,} acknowledged records, on each of three disks")
        notes.append(f"{len(writer.unknown)} with an unknown outcome")


async def run(demo: Demo) -> None:
    """Do everything, in order."""
    async with asyncio.timeout(SECONDS_MAX):
        await elect(demo)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(demo.writer.run(), name="writer")
            await write(demo)
            await kill_the_leader(demo)
            await hand_over(demo)
            await lose_a_disk(demo)
            await move(demo)
            demo.writer.ended = True
        await compare(demo)


def show(demo: Demo) -> None:
    """Print the closing table."""
    table = Table(title="What was done", title_justify="left")
    table.add_column("step", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    for what, seconds in demo.steps:
        table.add_row(what, f"{seconds:.3f}")
    table.add_section()
    table.add_row("everything", f"{time.perf_counter() - demo.began:.1f}")
    demo.console.print(table)


def last_words(demo: Demo) -> None:
    """Print what each replica logged last."""
    for node_id, each in demo.quorum.replicas.items():
        for line in each.lines()[-4:]:
            demo.console.print(f"  replica {node_id}: {line}", markup=False, soft_wrap=True)


def main() -> int:
    """Return the exit code."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--keep", action="store_true", help="leave the directory behind")
    keep = options.parse_args().keep
    directory = Path(tempfile.mkdtemp(prefix="rlmm-demo-"))
    quorum = QuorumProcesses(directory)
    demo = Demo(quorum, Writer(quorum), Console(highlight=False))
    failures: list[BaseException] = []
    try:
        asyncio.run(run(demo))
    except* (CheckFailed, RlmmError, AssertionError, TimeoutError, OSError) as errors:
        failures.extend(errors.exceptions)
    finally:
        quorum.end()
    if failures:
        keep = True
        for each in failures:
            demo.console.print(f"[bold red]✗ {type(each).__name__}[/]: {each}")
        last_words(demo)
    else:
        show(demo)
    if keep:
        demo.console.print(f"Everything is left in {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
