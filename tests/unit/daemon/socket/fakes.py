"""A daemon of dicts behind the real server, for tests that care about the socket alone."""

# ruff: noqa: ARG002, ARG005 - fakes keep the signatures of what they stand for

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from rlmm_daemon.codec import api, records
from rlmm_daemon.core.fold.walks import SEGMENTS_AT_ONCE, Walk
from rlmm_daemon.daemon.base.appends import Append, MustWait
from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.daemon.base.services import Services
from rlmm_daemon.daemon.socket.limits import ServerOptions
from rlmm_daemon.daemon.socket.server import Server
from rlmm_daemon.domain.errors import NotReady, OutcomeUnknown, SegmentNotFound, TimedOut
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
)
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState

CLUSTER = "cluster-of-the-test"
BROKER = BrokerId(1)
ORDERS = TopicIdPartition(TopicId(bytes(range(16))), "orders", 0)


def segment(number: int = 1, size: int = 1000) -> SegmentMetadata:
    return SegmentMetadata(
        partition=ORDERS,
        segment_id=SegmentId(number.to_bytes(16, "big")),
        start_offset=Offset(number * 100),
        end_offset=Offset(number * 100 + 99),
        broker_id=BROKER,
        max_timestamp_ms=1,
        event_timestamp_ms=2,
        segment_leader_epochs={LeaderEpoch(5): Offset(number * 100)},
        segment_size_bytes=size,
        state=SegmentState.COPY_SEGMENT_FINISHED,
    )


@dataclass
class FakeManager:
    records: list[bytes] = field(default_factory=list)
    ready: bool = True
    becomes_ready: asyncio.Event = field(default_factory=asyncio.Event)
    calls: Counter[str] = field(default_factory=Counter)
    incarnations: list[int] = field(default_factory=list)
    #: Of which incarnation each replacement was.
    replaced_for: list[int | None] = field(default_factory=list)
    announced: list[Any] = field(default_factory=list)
    callers: list[Any] = field(default_factory=list)
    #: Writes wait for it; "unknown" turns a cancelled one into OutcomeUnknown.
    release: asyncio.Event = field(default_factory=asyncio.Event)
    handed_on: bool = False
    entered: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    cancelled: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    bug: bool | Exception = False
    turns: FairScheduler = field(default_factory=FairScheduler)
    bugs: Bugs = field(default_factory=Bugs)
    #: Whether sizes are summed in a task.
    long: bool = False
    #: Whether a broker's writes are begun without a task; whoever tells `begun` ends them.
    begins: bool = False
    begun: list[Append] = field(default_factory=list)

    def _look(self, caller: Any) -> None:
        self.callers.append(caller)
        self._meet_bug()
        if not self.ready:
            raise NotReady(state="replaying", lag=7)

    def _meet_bug(self) -> None:
        if self.bug:
            raise self.bug if isinstance(self.bug, Exception) else ZeroDivisionError("a bug")

    def found_until(self, tp, epoch, offset, caller):
        record = self.remote_log_segment_metadata(tp, epoch, offset, caller)
        return None if record is None else api.FoundUntil(record, offset)

    def remote_log_segment_metadata(self, tp, epoch, offset, caller):
        self._look(caller)
        for record in self.records:
            found = records.decode(record)
            assert isinstance(found, SegmentMetadata)
            if (tp, epoch) == (ORDERS, 5) and found.start_offset <= offset <= found.end_offset:
                return record
        return None

    def highest_offset_for_epoch(self, tp, epoch, caller):
        self._look(caller)
        return 199 if (tp, epoch) == (ORDERS, 5) else None

    def listing(self, tp, epoch, caller):
        self._look(caller)
        cut = range(0, len(self.records), SEGMENTS_AT_ONCE)
        pieces = [self.records[at : at + SEGMENTS_AT_ONCE] for at in cut]
        return Walk(pieces, is_long=len(pieces) > 1)

    def sizing(self, tp, epoch, caller):
        self._look(caller)
        return Walk([12000, 345], is_long=self.long)

    def next_segment_with_txn_index(self, tp, epoch, offset, caller):
        self._look(caller)
        return self.records[0] if self.records else None

    def is_ready(self, tp, _caller):
        return self.ready

    async def until_readable(self, tp, caller, timeout_seconds):
        self.calls["until_readable"] += 1
        self.entered.release()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.becomes_ready.wait()
        except TimeoutError:
            pass

    async def _write(self, timeout_seconds: float) -> None:
        """Keep the deadline as the manager does, which knows what a write came to by then."""
        self.entered.release()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.release.wait()
        except TimeoutError:
            raise (OutcomeUnknown if self.handed_on else TimedOut) from None
        except asyncio.CancelledError:
            self.cancelled.release()
            raise

    def begin_add(self, record, timeout_seconds, tell):
        if not self.begins:
            raise MustWait
        if record in self.records:
            return None
        self._meet_bug()
        if not self.ready:
            raise NotReady(state="replaying", lag=7)
        append = Append(
            (ORDERS, None), record, 0, tell, deadline=timeout_seconds, give_up=timeout_seconds
        )
        self.begun.append(append)
        return append

    def begin_update(self, record, timeout_seconds, tell):
        raise MustWait

    async def add(self, record, caller, timeout_seconds):
        await self._write(timeout_seconds)
        self.records.append(record)

    async def update(self, record, caller, _timeout_seconds):
        raise SegmentNotFound(segment_id="x")

    async def put_partition_delete(self, record, caller, _timeout_seconds):
        self._meet_bug()

    def on_partition_leadership_changes(self, leaders, followers):
        self.announced.append(("changes", list(leaders), list(followers)))

    def on_stop_partitions(self, partitions):
        self.announced.append(("stop", list(partitions)))

    @property
    def incarnation_ms(self):
        return self.incarnations[-1] if self.incarnations else None

    def replacing_assignment(self, leaders, followers, incarnation_ms):
        self.replaced_for.append(incarnation_ms)
        self.announced.append(("replace", list(leaders), list(followers)))
        yield

    def hello_from_broker(self, incarnation_ms):
        self.incarnations.append(incarnation_ms)


class FakeOperator:
    def __init__(self, manager: FakeManager) -> None:
        self.manager = manager
        self.drained = False

    async def resolve(self, selector):
        return [ORDERS]

    async def status(self):
        return {"state": "fine"}

    async def partitions(self):
        return [{"partition": 1}]

    async def user_partitions(self, topic):
        for _ in range(2_500):
            yield api.UserPartition(api.Partition.of(ORDERS), 3, "leader", {}, 0)

    async def segments(self, selector, epoch):
        for record in self.manager.records:
            yield record

    async def explain(self, selector, epoch=None, offset=None):
        return {"verdict": "ok", "selector": selector, "asked": (epoch, offset)}

    async def tail(self, metadata_partition, from_offset, *, follow):
        for offset in range(3):
            yield api.TailEvent(1, offset, b"value", "applied")
        if follow:
            self.manager.entered.release()
            try:
                await asyncio.Event().wait()
            finally:
                self.manager.cancelled.release()

    async def export(self, selector):
        for record in self.manager.records:
            yield record

    async def snapshot_now(self, metadata_partition):
        return [{"metadata_partition": metadata_partition}]

    async def cleanup(self):
        return {"removals": []}

    async def forecast(self, topic):
        return {"topics": [], "asked": topic}

    async def purge(self, topic_id, *, execute, existing):
        return {"topic_id": topic_id.hex(), "executed": execute, "existing": existing}

    async def topic_pause(self, topic, *, execute):
        return {"topic": topic, "executed": execute}

    async def topic_resume(self, topic, *, execute):
        return {"topic": topic, "executed": execute}

    async def drain(self):
        self.drained = True

    async def partition_retry(self, metadata_partition):
        return {"done": metadata_partition}

    async def partition_rebuild(self, metadata_partition):
        return {"done": metadata_partition}

    async def partition_accept_loss(self, metadata_partition, *, everything, without_looking=False):
        return {"everything": everything} | ({"unseen": True} if without_looking else {})

    async def partition_end_hold(self, metadata_partition, *, execute):
        return {"executed": execute, "holds": []}

    async def log_recover(self, metadata_partition, *, execute):
        return {"recovered": metadata_partition, "executed": execute}

    async def log_repair(self, metadata_partition):
        return {"done": metadata_partition}


class FakeBulk:
    """Bytes of a file or from chunks, announced with any length."""

    named = None

    def __init__(self, *, length, crc32c=None, file=None, chunks=()):
        self.length, self.crc32c, self.file, self._chunks = length, crc32c, file, chunks
        self.closed = False

    async def chunks(self):
        for chunk in self._chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    async def aclose(self):
        self.closed = True
        if self.file is not None:
            os.close(self.file[0])
            self.file = None


class FakeFetcher:
    def __init__(self) -> None:
        self.make = lambda start, end: FakeBulk(length=0)
        self.last: FakeBulk | None = None

    async def fetch_log_segment(self, record, start, end_inclusive, *, may_open=False):
        self.may_open = may_open
        self.last = self.make(start, end_inclusive)
        return self.last

    async def fetch_index(self, record, index):
        self.last = self.make(0, None)
        return self.last


#: Deleting this one never ends.
HANGS = SegmentId(b"h" * 16)


class FakeCopier:
    async def copy_log_segment_data(self, record, files):
        return b"custom"

    async def copy_segment(self, record, files, caller, *, repeats=False):
        started = records.decode(record)
        assert isinstance(started, SegmentMetadata)
        return records.encode(replace(started, state=SegmentState.COPY_SEGMENT_FINISHED))

    async def delete_log_segment_data(self, record):
        pass

    async def delete_segment(self, tp, segment_id):
        if segment_id == HANGS:
            await asyncio.Event().wait()


@dataclass
class Daemon:
    server: Server
    manager: FakeManager
    operator: FakeOperator
    fetcher: FakeFetcher
    path: str
    serving: asyncio.Task[None]


@asynccontextmanager
async def daemon(
    path: str, *, cluster_id: str | None = CLUSTER, storage: bool = True, **options: Any
) -> AsyncGenerator[Daemon, None]:
    """Serve fakes on a real socket until the block ends."""
    manager, fetcher = FakeManager(), FakeFetcher()
    operator = FakeOperator(manager)
    services = Services(
        manager=manager,
        lookups=manager,
        events=manager,
        operator=operator,
        standing=operator,
        copier=FakeCopier() if storage else None,
        fetcher=fetcher if storage else None,
    )
    server = Server(
        ServerOptions(path=path, **options),
        services,
        broker_id=BROKER,
        cluster_id=cluster_id,
        event_log="kafka",
        version="0",
    )
    server.listen()
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.run())
        try:
            yield Daemon(server, manager, operator, fetcher, path, serving)
        finally:
            server.stop()


async def until(condition, seconds: float = 60) -> None:
    """Return when a condition holds; let everything else run meanwhile."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.001)


class Raw:
    """A peer that says whatever the test wants, frame by frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, path: str, role: str | None = "operator") -> "Raw":
        raw = cls(*await asyncio.open_unix_connection(path, limit=2**20))
        if role is not None:
            raw.send_hello(role)
            _, error, _ = await raw.answer()
            assert error is None, error
        return raw

    def send_hello(self, role="operator", **ids) -> None:
        from rlmm_daemon.codec import frames  # noqa: PLC0415 - keeps the fakes' imports short

        params = api.HelloParams(ids.pop("protocol", 1), "test", role, ids.pop("part", ""), **ids)
        self.writer.write(frames.request_frame(1, "hello", params))

    async def answer(self) -> tuple[int, Any, Any]:
        import msgspec  # noqa: PLC0415 - as above

        async with asyncio.timeout(60):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            body = msgspec.msgpack.decode(await self.reader.readexactly(size))
        assert body[0] == 1
        return body[1], body[2], body[3]

    async def ended(self) -> bool:
        """Whether the daemon closes without another word."""
        async with asyncio.timeout(60):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    def close(self) -> None:
        self.writer.close()
