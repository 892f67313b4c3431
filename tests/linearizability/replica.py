"""Process of one replica with a register over its log: the newest value that was submitted.

python -m tests.linearizability.replica SETTINGS (JSON). Clients ask by lines of JSON: a number is
written, null is read; an answer is [outcome, value].
"""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk, LocalFile
from rlmm_daemon.adapters.quorum.node import Node
from rlmm_daemon.adapters.quorum.replica import ReplicaOptions, running
from rlmm_daemon.codec import batches
from rlmm_daemon.core.raft.roles import Leader
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from rlmm_daemon.domain.errors import NotLeader, OutcomeUnknown

TOPIC: Final = "__register"
TOPIC_ID: Final = bytes(15) + b"\x09"
CLUSTER_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
_LISTENER: Final = "QUORUM"
#: Of a batch: its length stands there, and the number of its last record behind its first.
_LENGTH, _LAST = slice(8, 12), slice(23, 27)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Of one process."""

    number: int
    directory: str
    port: int
    #: Where clients ask.
    clients: int
    #: Where this replica finds each voter: a door before it, or before itself.
    voters: dict[int, int]
    #: What each sync takes longer.
    sync_seconds: float = 0.0
    #: The planted bug: reads are answered from the high watermark, and nobody is asked.
    stale: bool = False


class SlowDisk(LocalDisk):
    """A disk whose syncs take long."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def open(self, path: str, *, write: bool = False, create: bool = False) -> LocalFile:
        file = await super().open(path, write=write, create=create)
        if self._seconds:
            return SlowFile(file, self._seconds)
        return file


class SlowFile(LocalFile):
    """A file of it."""

    def __init__(self, file: LocalFile, seconds: float) -> None:
        super().__init__(file._descriptor, file._threads)
        self._seconds = seconds

    async def fdatasync(self) -> None:
        await asyncio.sleep(self._seconds)
        await super().fdatasync()


class Register:
    """The value that a replica's own log says, as far as it was applied."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._position = 0
        self._applied = 0
        self._value = 0

    def at(self, end: int) -> int:
        """Return the value once all before `end` is applied."""
        if end > self._applied:
            with self._log.open("rb") as file:
                file.seek(self._position)
                self._apply(file.read(), end)
        return self._value

    def _apply(self, data: bytes, end: int) -> None:
        at = 0
        while self._applied < end:
            size = 12 + int.from_bytes(data[at:][_LENGTH], "big")
            batch = next(iter(batches.split(data[at : at + size])))
            for _, value in () if batch.is_control else batches.records_of(batch):
                self._value = int(value or b"")
            last = int.from_bytes(data[at:][_LAST], "big")
            self._applied = batch.base_offset + last + 1
            at += size
        self._position += at


class Clients:
    """Answers of one process to its clients."""

    def __init__(self, node: Node, register: Register, *, stale: bool) -> None:
        self._node = node
        self._register = register
        self._stale = stale

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client until it leaves."""
        try:
            while line := await reader.readline():
                answer = await self._answer(msgspec.json.decode(line, type=int | None))
                writer.write(msgspec.json.encode(answer) + b"\n")
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _answer(self, asked: int | None) -> tuple[str, int]:
        try:
            if asked is None:
                return "ok", self._register.at(await self._end())
            await self._node.submit([(None, b"%d" % asked)])
        except NotLeader:
            return "refused", 0
        except OutcomeUnknown:
            return "unknown", 0
        return "ok", 0

    async def _end(self) -> int:
        role = self._node.replica.role
        if self._stale and isinstance(role, Leader) and role.high_watermark > role.epoch_start:
            return role.high_watermark
        return await self._node.read_index()


def _address(port: int) -> Endpoint:
    return Endpoint(_LISTENER, "127.0.0.1", port)


async def live(settings: Settings) -> None:
    """Run until told to end."""
    ends = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ends.set)
    known = {number: _address(port) for number, port in settings.voters.items()}
    options = ReplicaOptions(
        directory=settings.directory,
        topic=TOPIC,
        topic_id=TOPIC_ID,
        port=settings.port,
        advertised=known[settings.number],
        listener=_LISTENER,
        bootstrap=tuple(at for number, at in known.items() if number != settings.number),
        static_voters=VoterSet.of(
            Voter(ReplicaKey(number), (at,), (0, 0)) for number, at in known.items()
        ),
    )
    async with running(SlowDisk(settings.sync_seconds), SystemClock(), options) as node:
        log = Path(settings.directory, f"{TOPIC}-0", f"{0:020d}.log")
        clients = Clients(node, Register(log), stale=settings.stale)
        async with await asyncio.start_server(clients.serve, "127.0.0.1", settings.clients):
            await ends.wait()


if __name__ == "__main__":
    asyncio.run(live(msgspec.json.decode(sys.argv[1], type=Settings)))
