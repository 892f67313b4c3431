"""One history: clients of a register, what they saw and when, and what happened to its replicas."""

import asyncio
import itertools
import random
import subprocess
import time
from pathlib import Path
from typing import Final

import msgspec

from tests.linearizability.processes import NUMBERS, Processes

CHECK: Final = Path(__file__).parents[2] / "var/linearizability/check"
CHECK_SECONDS: Final = 20
WRITERS: Final = 3
#: A read that takes longer has no answer; a write has an unknown outcome.
READ_SECONDS, WRITE_SECONDS = 0.3, 0.6
LEADS_SECONDS: Final = 30.0


class Operation(msgspec.Struct, kw_only=True):
    """One call of a client, as the checker reads it."""

    client: int
    kind: str
    value: int
    #: In nanoseconds of this process's clock.
    call: int
    #: None: its outcome is unknown.
    return_: int | None = msgspec.field(name="return", default=None)


class Client:
    """One that asks one replica after the other, one question at a time."""

    def __init__(self, quorum: Processes) -> None:
        self._quorum = quorum
        self._streams: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def ask(self, number: int, asked: int | None) -> tuple[str, int]:
        """Return the outcome, and the value of a read; "refused": nothing was done."""
        sent = False
        try:
            async with asyncio.timeout(READ_SECONDS if asked is None else WRITE_SECONDS):
                stream = self._streams.pop(number, None)
                if stream is None:
                    port = self._quorum.clients[number]
                    stream = await asyncio.open_connection("127.0.0.1", port)
                reader, writer = stream
                try:
                    sent = True
                    writer.write(msgspec.json.encode(asked) + b"\n")
                    answer = msgspec.json.decode(await reader.readline(), type=tuple[str, int])
                except BaseException:
                    writer.close()
                    raise
                self._streams[number] = stream
                return answer
        except (OSError, TimeoutError, msgspec.DecodeError):
            return "unknown" if sent else "refused", 0

    def close(self) -> None:
        for _, writer in self._streams.values():
            writer.close()


class History:
    """What all clients saw."""

    def __init__(self, quorum: Processes, seed: int) -> None:
        self.operations: list[Operation] = []
        self.faults: list[str] = []
        self._quorum = quorum
        self._rng = random.Random(f"{seed}/register")
        self._values = itertools.count(1)
        self._clients = itertools.count()
        #: Who took the last write.
        self._leader = NUMBERS[0]

    async def run(self, kinds: list[str]) -> None:
        """Have clients write and read while these faults happen, one after the other."""
        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(self._write()) for _ in range(WRITERS)]
            clients += [group.create_task(self._read(number)) for number in NUMBERS]
            await self._until_written()
            for kind in kinds:
                await self._fault(kind)
                await self._until_written()
            for client in clients:
                client.cancel()
        assert not self._quorum.ended(), self._quorum.ended()

    async def _until_written(self) -> None:
        """Wait until some more writes have ended well."""
        begun, deadline = len(self.operations), time.monotonic() + LEADS_SECONDS
        while True:
            new = self.operations[begun:]
            if sum(each.kind == "write" and each.return_ is not None for each in new) >= 20:
                return
            assert time.monotonic() < deadline, f"nothing is written: {self.faults}"
            await asyncio.sleep(0.02)

    async def _fault(self, kind: str) -> None:
        quorum, rng = self._quorum, self._rng
        number = self._leader if rng.random() < 0.8 else rng.choice(NUMBERS)
        self.faults.append(f"{kind} {number}")
        match kind:
            case "kill":
                quorum.kill(number)
                await asyncio.sleep(rng.uniform(0.0, 0.5))
                quorum.run(number)
                await quorum.until_served(number)
            case "pause":
                quorum.pause(number)
                await self._held()
                quorum.resume(number)
            case "isolate" | "delay":
                quorum.isolate(number)
                await self._held()
                quorum.heal(number, reset=kind == "isolate")
            case _:
                raise AssertionError(kind)

    async def _held(self) -> None:
        """Wait until the others have gone on without it, or are about to."""
        if self._rng.random() < 0.2:
            await asyncio.sleep(self._rng.uniform(0.2, 1.5))
        else:
            await self._until_written()

    async def _write(self) -> None:
        client, rng = Client(self._quorum), self._rng
        name, number = next(self._clients), self._leader
        try:
            while True:
                value, call = next(self._values), time.monotonic_ns()
                outcome = "unknown"  # as it is of a write that the history's end cuts off
                try:
                    outcome, _ = await client.ask(number, value)
                finally:
                    done = time.monotonic_ns() if outcome == "ok" else None
                    if outcome != "refused":
                        self._note(name, "write", value, call, done)
                if outcome == "ok":
                    self._leader = number
                else:
                    number = rng.choice(NUMBERS)
                await asyncio.sleep(rng.uniform(0.005, 0.02))
        finally:
            client.close()

    async def _read(self, number: int) -> None:
        client, name = Client(self._quorum), next(self._clients)
        try:
            while True:
                call = time.monotonic_ns()
                outcome, value = await client.ask(number, None)
                if outcome == "ok":
                    self._note(name, "read", value, call, time.monotonic_ns())
                await asyncio.sleep(self._rng.uniform(0.005, 0.02))
        finally:
            client.close()

    def _note(self, client: int, kind: str, value: int, call: int, done: int | None) -> None:
        self.operations.append(
            Operation(client=client, kind=kind, value=value, call=call, return_=done)
        )


def judged(path: Path) -> str:
    """Return what Porcupine says of a history: "ok", "illegal" or "undecided", and its words."""
    done = subprocess.run(
        [CHECK, path, str(CHECK_SECONDS)],
        capture_output=True,
        text=True,
        timeout=CHECK_SECONDS + 10,
        check=False,
    )
    word = {0: "ok", 1: "illegal"}.get(done.returncode, "undecided")
    return f"{word}: {done.stdout.strip()} {done.stderr.strip()}"
