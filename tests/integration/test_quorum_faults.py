"""Faults of a quorum's processes under load: nothing acknowledged is lost, and all logs are one.

Some writers submit all the while. A fault comes, and once some more records were acknowledged, the
next one. `make soak-quorum` has many rounds, and other seeds.
"""

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rlmm_daemon.adapters.quorum.client import Description
from rlmm_daemon.domain.errors import OutcomeUnknown, StorageUnavailable
from tests.support.quorum_processes import QuorumProcesses

IDS = (1, 2, 3)
WRITERS = 4
#: Every kind of fault once.
ROUNDS = int(os.environ.get("RLMM_QUORUM_ROUNDS", "4"))
SEEDS = [int(each) for each in os.environ.get("RLMM_QUORUM_SEEDS", "1").split()]
#: A writer that waits for a frozen leader gives up so soon, and asks another one.
ANSWER_SECONDS = 2.0


@dataclass
class Written:
    """What writers were told."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)
    #: Their answers are lost.
    unknown: set[bytes] = field(default_factory=set)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    ended: bool = False

    async def write(self, quorum: QuorumProcesses, name: int) -> None:
        client = quorum.client(seconds=ANSWER_SECONDS)
        number = 0
        while not self.ended:
            number += 1
            value = b"%d-%d" % (name, number)
            try:
                offset = await client.submit([(None, value)])
            except OutcomeUnknown:
                self.unknown.add(value)
                continue
            except StorageUnavailable:
                continue  # nobody took it, and nobody may have it
            assert offset not in self.acknowledged, "two records have one offset"
            async with self.news:
                self.acknowledged[offset] = value
                self.news.notify_all()

    async def more(self, count: int) -> None:
        """Return once so many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        async with self.news:
            await self.news.wait_for(lambda: len(self.acknowledged) >= wanted)


@dataclass
class Faults:
    """What befalls the processes, drawn from a seed."""

    quorum: QuorumProcesses
    written: Written
    luck: random.Random

    async def run(self) -> None:
        kinds = [self.kill_one, self.kill_a_majority, self.freeze_the_leader, self.stop_the_leader]
        for at in range(ROUNDS):
            if at % len(kinds) == 0:
                self.luck.shuffle(kinds)
            await self.written.more(self.luck.randint(10, 50))
            await kinds[at % len(kinds)]()
        await self.written.more(30)
        self.written.ended = True

    async def leader(self) -> int:
        return (await self.quorum.client(seconds=30.0).describe()).leader

    async def kill_one(self) -> None:
        node_id = self.luck.choice(IDS)
        self.quorum[node_id].kill()
        await self.written.more(self.luck.choice([0, 20]))
        self.quorum.start(node_id)

    async def kill_a_majority(self) -> None:
        both = self.luck.sample(IDS, 2)
        for node_id in both:
            self.quorum[node_id].kill()
        self.quorum.start(*both)

    async def freeze_the_leader(self) -> None:
        frozen = self.quorum[await self.leader()].process
        assert frozen is not None
        frozen.send_signal(signal.SIGSTOP)
        try:
            await self.written.more(20)
        finally:
            frozen.send_signal(signal.SIGCONT)

    async def stop_the_leader(self) -> None:
        node_id = await self.leader()
        assert await asyncio.to_thread(self.quorum[node_id].stop) == 0
        self.quorum.start(node_id)


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[QuorumProcesses]:
    with QuorumProcesses(tmp_path) as quorum:
        quorum.format(*IDS)
        quorum.start(*IDS)
        yield quorum


def are_equal(seen: Description) -> bool:
    return seen.high_watermark > 0 and all(each.end == seen.high_watermark for each in seen.voters)


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_fault_takes_what_was_acknowledged(quorum, seed):
    written = Written()
    async with asyncio.TaskGroup() as tasks:
        for name in range(WRITERS):
            tasks.create_task(written.write(quorum, name))
        tasks.create_task(Faults(quorum, written, random.Random(seed)).run())
    await quorum.until(are_equal, "all have everything")
    logs = []
    for node_id in IDS:
        assert await asyncio.to_thread(quorum[node_id].stop) == 0
        logs.append(quorum[node_id].values())
    assert logs[0] == logs[1] == logs[2]
    assert len(set(logs[0])) == len(logs[0]), "a record is there once"
    acknowledged = [value for _, value in sorted(written.acknowledged.items())]
    assert [value for value in logs[0] if value not in written.unknown] == acknowledged
    assert set(logs[0]) <= {*acknowledged, *written.unknown}
    said = [line for each in quorum.replicas.values() for line in each.lines()]
    expected = "a replica is not reached"  # they are killed
    rest = [line for line in said if line["event"] != expected]
    assert [line for line in rest if line["level"] not in ("info", "debug")] == []
