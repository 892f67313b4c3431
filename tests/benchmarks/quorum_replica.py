"""A replica in a process of its own, told by its standard input what to measure.

Times are of CLOCK_MONOTONIC, which all processes of a machine share.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.quorum.node import Node
from rlmm_daemon.adapters.quorum.replica import ReplicaOptions, running
from rlmm_daemon.core.raft.roles import Leader
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.observability import logging
from tests.support.quorum import LISTENER, TOPIC, TOPIC_ID

RECORD = (None, b"x" * 330)
LOOK_SECONDS = 0.002
_HOST = "127.0.0.1"


def led(node: Node) -> bool:
    role = node.replica.role
    return isinstance(role, Leader) and role.high_watermark > role.epoch_start


def tell(**said: Any) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - a replica rings no bell
        await asyncio.sleep(LOOK_SECONDS)


async def serial(node: Node, count: int, scratch: Path) -> dict[str, list[float]]:
    """Submit one record after the other, and sync a file of its own between them."""
    ours: list[float] = []
    syncs: list[float] = []
    descriptor = os.open(scratch, os.O_CREAT | os.O_WRONLY, 0o600)
    for at in range(count):
        began = time.perf_counter()
        await node.submit([RECORD])
        ours.append(time.perf_counter() - began)
        os.pwrite(descriptor, RECORD[1], at * len(RECORD[1]))
        began = time.perf_counter()
        await asyncio.to_thread(os.fdatasync, descriptor)
        syncs.append(time.perf_counter() - began)
    os.close(descriptor)
    return {"ours": ours, "syncs": syncs}


async def in_flight(node: Node, count: int, lanes: int) -> dict[str, float]:
    """Submit so many records, this many at a time."""

    async def lane() -> None:
        for _ in range(count // lanes):
            await node.submit([RECORD])

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(lanes):
            group.create_task(lane())
    return {"seconds": time.perf_counter() - began}


async def fill(node: Node, megabytes: int) -> dict[str, int]:
    """Write so much."""
    records = [(None, b"x" * 1000)] * 1000
    for _ in range(megabytes):
        await node.submit(records)
    return {"end": node.replica.committed}


async def reach(node: Node, end: int) -> dict[str, float]:
    """Wait until it has the log up to there."""
    await until(lambda: node.replica.log.synced >= end)
    return {"at": time.monotonic()}


async def lead(node: Node) -> dict[str, Any]:
    """Wait until this one leads, and has committed something."""
    await until(lambda: led(node))
    return {"at": time.monotonic(), "epoch": node.replica.epoch}


async def obey(node: Node, home: Path, words: list[str]) -> Any:
    match words:
        case ["serial", count]:
            return await serial(node, int(count), home / "scratch")
        case ["flight", count, lanes]:
            return await in_flight(node, int(count), int(lanes))
        case ["fill", megabytes]:
            return await fill(node, int(megabytes))
        case ["reach", end]:
            return await reach(node, int(end))
        case ["lead"]:
            return await lead(node)
        case ["role"]:
            return {"leads": led(node), "epoch": node.replica.epoch, "end": node.replica.log.end}
        case _:
            raise ValueError(words)


async def main(number: int, home: Path, ports: dict[int, int]) -> None:
    options = ReplicaOptions(
        directory=str(home / str(number)),
        topic=TOPIC,
        topic_id=TOPIC_ID,
        port=ports[number],
        listener=LISTENER,
        bootstrap=tuple(Endpoint(LISTENER, _HOST, p) for n, p in ports.items() if n != number),
    )
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    # SIGTERM: the end of what it is told, so that it says good-bye.
    loop.add_signal_handler(signal.SIGTERM, lines.put_nowait, "")
    async with running(LocalDisk(), SystemClock(), options) as node:
        tell(started=time.monotonic())
        threading.Thread(target=listen, daemon=True).start()
        waiting: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as group:

            async def answer(words: list[str]) -> None:
                tell(asked=words[0], said=await obey(node, home / str(number), words))

            while words := (await lines.get()).split():
                if waiting is not None:
                    waiting.cancel()  # the last question has no answer yet: it is over
                waiting = group.create_task(answer(words))
                if words != ["lead"]:
                    await waiting
                    waiting = None
            if waiting is not None:
                waiting.cancel()


if __name__ == "__main__":
    logging.configure(level="error")  # its output is what it was asked
    told = json.loads(sys.argv[1])
    uvloop.run(
        main(told["number"], Path(told["home"]), {int(n): p for n, p in told["ports"].items()})
    )
