"""A broker that answers structs with structs, so that a test can order what no real one does."""

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from aiokafka.errors import KafkaConnectionError
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c

from rlmm_daemon.adapters.kafka.connection.fetching import FetchAnswer, FetchPartition, of_struct
from rlmm_daemon.adapters.kafka.connection.producing import ProduceBatches
from rlmm_daemon.adapters.kafka.connection.requests import (
    DIVERGING_TAG,
    NO_ID,
    NO_TAGS,
    Fetch,
    Metadata,
    ProduceById,
    TopicError,
)
from rlmm_daemon.adapters.kafka.connection.security import load_security
from rlmm_daemon.adapters.kafka.event_log import KafkaLog
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.config import KafkaAdmin, KafkaClient, KafkaFetch, KafkaProducer, KafkaSecurity

NAME = "meta"
ALL_VERSIONS = dict.fromkeys(range(80), (0, 99))
#: What a fault does instead of the answer: raise it, or make the answer from the request.
Fault = BaseException | Callable[[Any], Any]


def encoded(base: int, values: list[bytes | None], epoch: int = 0, attributes: int = 0) -> bytes:
    """Return a record batch as a leader stores it."""
    builder = DefaultRecordBatchBuilder(2, 0, attributes & 0x10, -1, -1, -1, 1 << 20)
    for index, value in enumerate(values):
        builder.append(index, timestamp=1, key=None, value=value, headers=[])
    return placed(bytes(builder.build()), base, epoch)


def placed(data: bytes, base: int, epoch: int) -> bytes:
    """Return a batch with the offset and leader epoch that a leader writes into it."""
    return base.to_bytes(8, "big") + data[8:12] + epoch.to_bytes(4, "big") + data[16:]


def compressed(base: int, values: list[bytes], codec: int, epoch: int = 0) -> bytes:
    """Return a compressed record batch as a leader stores it."""
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 30)
    for index, value in enumerate(values):
        builder.append(index, timestamp=1, key=None, value=value, headers=[])
    return placed(bytes(builder.build()), base, epoch)


def with_records(packed: bytes, codec: int, count: int = 1) -> bytes:
    """Return a batch of which only the header is made here; its checksum holds."""
    head = bytearray(encoded(0, [b"x"])[:61])
    head[8:12] = (61 - 12 + len(packed)).to_bytes(4, "big")
    head[21:23] = codec.to_bytes(2, "big")
    head[23:27] = (count - 1).to_bytes(4, "big")
    head[57:61] = count.to_bytes(4, "big")
    batch = head + packed
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


def _varint(value: int) -> bytes:
    """Return a signed number as a record has it: zigzag, seven bits a byte."""
    rest, out = (value << 1) ^ (value >> 63), bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def with_value_of_length(length: int) -> bytes:
    """Return a batch whose one record claims a value of that length."""
    body = b"\0\0\0" + _varint(-1) + _varint(length) + b"value" + _varint(0)
    return with_records(_varint(len(body)) + body, codec=0)


@dataclass
class FakePartition:
    leader: int = 1
    epoch: int = 0
    start: int = 0
    end: int = 0
    #: (base offset, next offset, bytes)
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    epoch_ends: dict[int, int] = field(default_factory=dict)
    #: (producer id, sequence) -> base offset
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)

    def put(self, data: bytes, count: int) -> int:
        base, self.end = self.end, self.end + count
        self.batches.append((base, self.end, placed(data, base, self.epoch)))
        self.epoch_ends[self.epoch] = self.end
        return base


class FakeBroker:
    """Every broker of a cluster at once; who is asked is judged by the address."""

    def __init__(self, count: int = 2) -> None:
        self.topic_id = b"i" * 16
        self.exists = True
        self.partitions = {index: FakePartition() for index in range(count)}
        self.nodes = {1: 9001, 2: 9002}
        self.settings = {"cleanup.policy": "delete", "retention.ms": "-1"}
        self.versions = dict(ALL_VERSIONS)
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.asked: list[tuple[int, str, Any]] = []
        self.connections: list[FakeVendor] = []
        self.refusing: set[int] = set()
        self.producer_ids = 0
        self.changed = asyncio.Event()
        #: Set when the first request of that name came.
        self.arrived: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def requests(self, name: str) -> list[Any]:
        return [request for _, kind, request in self.asked if kind == name]

    def wake(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def put(self, index: int, *values: bytes | None) -> None:
        self.partitions[index].put(encoded(0, list(values)), len(values))
        self.wake()

    async def dial(self, _host: str, port: int, **_: Any) -> "FakeVendor":
        node_id = next((node for node, at in self.nodes.items() if at == port), 1)
        if node_id in self.refusing:
            raise ConnectionRefusedError(111, "refused")
        vendor = FakeVendor(self, node_id)
        self.connections.append(vendor)
        return vendor

    async def answer(self, node_id: int, request: Any) -> Any:
        name = type(request).__name__
        self.asked.append((node_id, name, request))
        self.arrived[name].set()
        if self.faults[name]:
            fault = self.faults[name].popleft()
            if isinstance(fault, BaseException):
                raise fault
            made = fault(request)
            return await made if asyncio.iscoroutine(made) else made
        return await getattr(self, f"on_{name.lower()}")(node_id, request)

    async def on_metadata(self, _: int, request: Any) -> Any:
        asked_id, asked_name, _ = request.topics[0]
        error = 0
        if not self.exists or (asked_id not in (NO_ID, self.topic_id)):
            error = 3 if asked_name else 100
        rows: Any = [
            (0, index, each.leader, each.epoch, [], [], [], NO_TAGS)
            for index, each in self.partitions.items()
        ]
        topic = (error, NAME, self.topic_id, False, [] if error else rows, 0, NO_TAGS)
        nodes = [(node, "fake", port, None, NO_TAGS) for node, port in self.nodes.items()]
        return request.RESPONSE_TYPE(0, nodes, "cluster", 1, [topic], NO_TAGS)

    async def on_createtopics(self, _: int, request: Any) -> Any:
        self.exists = True
        row: Any = (NAME, 0, None, 0, 0, [], NO_TAGS)
        return request.RESPONSE_TYPE(0, [row], NO_TAGS)

    async def on_describeconfigs(self, _: int, request: Any) -> Any:
        configs: Any = [
            (key, value, False, 0, False, [], 0, None) for key, value in self.settings.items()
        ]
        return request.RESPONSE_TYPE(0, [(0, None, 2, NAME, configs, NO_TAGS)], NO_TAGS)

    async def on_initproducerid(self, _: int, request: Any) -> Any:
        self.producer_ids += 1
        return request.RESPONSE_TYPE(0, 0, self.producer_ids, 0, NO_TAGS)

    async def on_producebyid(self, node_id: int, request: Any) -> Any:
        (topic, rows, _), *_ = request.topics
        return produced(request, topic, [self._write(node_id, topic, row) for row in rows])

    on_producebyname = on_producebyid

    def _write(self, node_id: int, topic: Any, row: Any) -> tuple[int, int, int]:
        index, data, _ = row
        partition = self.partitions[index]
        if topic not in (self.topic_id, NAME):
            return index, 100, -1
        if partition.leader != node_id:
            return index, 6, -1
        producer, sequence = int.from_bytes(data[43:51], "big"), int.from_bytes(data[53:57], "big")
        if (producer, sequence) not in partition.sequences:
            count = int.from_bytes(data[57:61], "big")
            partition.sequences[producer, sequence] = partition.put(data, count)
            self.wake()
        return index, 0, partition.sequences[producer, sequence]

    async def on_listoffsets(self, _: int, request: Any) -> Any:
        (name, rows, _), *_ = request.topics
        found = [
            (
                index,
                0,
                0,
                self.partitions[index].start if timestamp == -2 else self.partitions[index].end,
                0,
                NO_TAGS,
            )
            for index, _, timestamp, _ in rows
        ]
        return request.RESPONSE_TYPE(0, [(name, found, NO_TAGS)], NO_TAGS)

    async def on_offsetforleaderepoch(self, node_id: int, request: Any) -> Any:
        (name, [(index, _, asked, _)], _), *_ = request.topics
        ends, start = self.partitions[index].epoch_ends, self.partitions[index].start
        epoch = max((each for each in ends if each <= asked), default=-1)
        end = ends.get(epoch, -1)
        if epoch < 0 < start:
            epoch, end = asked, start  # as Kafka answers where it deleted what that epoch wrote
        error = 0 if self.partitions[index].leader == node_id else 6
        row = (error, index, epoch, end, NO_TAGS)
        return request.RESPONSE_TYPE(0, [(name, [row], NO_TAGS)], NO_TAGS)

    async def on_fetch(self, node_id: int, request: Any) -> Any:
        (topic, [(index, epoch, offset, *_)], _), *_ = request.topics
        partition = self.partitions[index]
        if topic == self.topic_id and partition.end == offset and request.max_wait:
            try:
                async with asyncio.timeout(request.max_wait / 1000):
                    await self.changed.wait()
            except TimeoutError:
                pass
        error = 0
        if not self.exists or topic != self.topic_id:
            error = 100
        elif partition.leader != node_id:
            error = 6
        elif epoch != partition.epoch:
            error = 74 if epoch < partition.epoch else 75
        elif not partition.start <= offset <= partition.end:
            error = 1
        data = b"".join(each for _, end, each in partition.batches if end > offset)
        return fetched(request, partition, error, b"" if error else data)


def fetched(
    request: Any,
    partition: FakePartition,
    error: int = 0,
    data: bytes = b"",
    diverging: tuple[int, int] | None = None,
) -> Any:
    """Return a Fetch answer."""
    (topic, [(index, *_)], _), *_ = request.topics
    tags: dict[int, bytes] = {}
    if diverging is not None:
        epoch, end = diverging
        tags[DIVERGING_TAG] = epoch.to_bytes(4, "big") + end.to_bytes(8, "big") + b"\0"
    row: Any = (index, error, partition.end, partition.end, partition.start, [], -1, data, tags)
    return request.RESPONSE_TYPE(0, 0, 0, [(topic, [row], NO_TAGS)], NO_TAGS)


def produced(request: Any, topic: Any, rows: list[tuple[int, int, int]]) -> Any:
    """Return a Produce answer of (partition, error, base offset)."""
    full: Any = [(index, error, base, -1, 0, [], None, NO_TAGS) for index, error, base in rows]
    return request.RESPONSE_TYPE([(topic, full, NO_TAGS)], 0, NO_TAGS)


def refused(code: int, base: int = -1) -> Callable[[Any], Any]:
    """Return a fault: every partition of a Produce request is answered with this code."""

    def answer(request: Any) -> Any:
        (topic, rows, _), *_ = request.topics
        return produced(request, topic, [(row[0], code, base) for row in rows])

    return answer


def lost_answer(broker: FakeBroker, node_id: int = 1) -> Fault:
    """Return a fault: the request is carried out, and the connection breaks before the answer."""

    async def answer(request: Any) -> Any:
        await broker.on_producebyid(node_id, request)
        raise KafkaConnectionError("cut")

    return answer


class FakeVendor:
    """What stands in for aiokafka's connection."""

    def __init__(self, broker: FakeBroker, node_id: int) -> None:
        self.broker = broker
        self.node_id = node_id
        self._versions = broker.versions
        self._writer = None
        self._open = True
        self._closed = asyncio.Event()

    def connected(self) -> bool:
        return self._open

    def close(self) -> None:
        self._open = False
        self._closed.set()

    async def send(self, request: Any) -> Any:
        if not self._open:
            raise KafkaConnectionError("closed")
        request.prepare(self._versions)
        packed = request.encode()  # what is sent has to fit its schema
        if isinstance(request, ProduceBatches):
            return await self._sent(ProduceById.decode(packed))
        if isinstance(request, TopicError):
            whole = await self._sent(Metadata.decode(packed))
            return TopicError.RESPONSE_TYPE.decode(BytesIO(whole.encode()))
        if not isinstance(request, FetchPartition):
            return await self._sent(request)
        answer = await self._sent(Fetch.decode(packed))
        if answer.topics and answer.topics[0][1][0][-1]:
            return of_struct(answer)  # aiokafka can't encode tags
        return FetchAnswer.decode(BytesIO(answer.encode()))

    async def _sent(self, request: Any) -> Any:
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(self._answer(request))
            closing = tasks.create_task(self._closed.wait())
            await asyncio.wait({answer, closing}, return_when=asyncio.FIRST_COMPLETED)
            done = answer.done()
            answer.cancel()
            closing.cancel()
        if not done:
            raise KafkaConnectionError("closed")
        found = answer.result()
        if isinstance(found, Exception):
            raise found
        return found

    async def _answer(self, request: Any) -> Any:
        try:
            return await self.broker.answer(self.node_id, request)
        except (OSError, KafkaConnectionError) as error:
            return error


def client_config(**changed: Any) -> KafkaClient:
    """Return a configuration that is quick to retry."""
    given: dict[str, Any] = {
        "bootstrap": ("fake:9001",),
        "topic": NAME,
        "retry_backoff_ms": 1,
        "retry_backoff_max_ms": 5,
        "fetch": KafkaFetch(max_wait_ms=5),
        "producer": KafkaProducer(delivery_timeout_ms=200),
        "admin": KafkaAdmin(partition_count=2, replication_factor=1),
    }
    return KafkaClient(**(given | changed))


@asynccontextmanager
async def opened(broker: FakeBroker, **changed: Any) -> AsyncIterator[KafkaLog]:
    """Give an open log over the broker."""
    async with connected(broker, **changed) as log:
        await log.open(create=False)
        yield log


@asynccontextmanager
async def connected(
    broker: FakeBroker, cluster_id: str | None = None, **changed: Any
) -> AsyncIterator[KafkaLog]:
    """Give a log that is not open yet."""
    async with asyncio.TaskGroup() as tasks:
        log = KafkaLog(
            client_config(**changed),
            clock=SystemClock(),
            luck=random.Random(5),
            spawn=lambda work, name: tasks.create_task(work, name=name),
            load_security=lambda: load_security(KafkaSecurity()),
            dial=broker.dial,
            cluster_id=cluster_id,
        )
        try:
            yield log
        finally:
            await log.close()


def values_in(data: bytes) -> list[bytes]:
    """Return the values of one batch."""
    return [record.value for record in DefaultRecordBatch(data)]
