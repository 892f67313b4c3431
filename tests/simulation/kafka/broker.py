"""A broker's answers, byte for byte in Kafka's protocol, made of the adapter's own structs.

What it answers when is held against a real 4.3 broker's: error before divergence, an offset beyond
the high watermark answered empty, a larger epoch than any known out of range, unknown names and
ids apart, a repeat answered with its first offset. Source: Partition, ReplicaManager, UnifiedLog.
"""

import struct
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, Final, Protocol, TypedDict

from aiokafka.protocol.admin import ApiVersionResponse_v0

from rlmm_daemon.adapters.kafka.connection.packed import uvarint
from rlmm_daemon.adapters.kafka.connection.requests import (
    NO_ID,
    NO_TAGS,
    CreateTopics,
    DescribeConfigs,
    Fetch,
    InitProducerId,
    ListOffsets,
    Metadata,
    OffsetForLeaderEpoch,
    ProduceById,
    ProduceByName,
)
from tests.simulation.kafka.cluster import HOST, NOBODY, Cluster, Led
from tests.simulation.kafka.replica import OUT_OF_ORDER, Replica

#: Takes the bytes of an answer.
Reply = Callable[[bytes], None]


class Attempt(Protocol):
    """Returns an answer, None while there is nothing to say yet; `late` makes it say something."""

    def __call__(self, *, late: bool) -> bytes | None: ...


class Named(TypedDict, total=False):
    """How a request names the topic."""

    name: str
    topic_id: bytes


NONE, OUT_OF_RANGE, UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, NOT_LEADER = 0, 1, 3, 5, 6
TIMED_OUT, TOPIC_EXISTS, SEQUENCE, FENCED, UNKNOWN_EPOCH = 7, 36, 45, 74, 75
OFFSET_NOT_AVAILABLE, UNKNOWN_TOPIC_ID = 78, 100
_EARLIEST: Final = -2
_API_VERSIONS: Final = 18
_HEADER: Final = struct.Struct(">hhi")
_KINDS: Final[dict[tuple[int, int], Any]] = {
    (kind.API_KEY, kind.API_VERSION): kind
    for kind in (
        CreateTopics,
        DescribeConfigs,
        Fetch,
        InitProducerId,
        ListOffsets,
        Metadata,
        OffsetForLeaderEpoch,
        ProduceById,
        ProduceByName,
    )
}
#: Before it, the topic of a Produce request was named by its name.
#: The leader knows no end of the epoch that was asked for.
_UNKNOWN: Final = (-1, -1)
_PRODUCE_BY_ID: Final = ProduceById.API_VERSION


class Broker:
    """One broker's side of all connections to it."""

    def __init__(self, cluster: Cluster, number: int, *, produce_by_id: bool) -> None:
        self.cluster = cluster
        self.number = number
        self._versions = [(key, 0, 99) for key in sorted({key for key, _ in _KINDS} | {18})]
        if not produce_by_id:
            self._versions[0] = (0, 0, _PRODUCE_BY_ID - 1)

    def answer(self, frame: bytes, reply: Reply) -> None:
        """Carry out one request; `reply` is called when there is an answer, at once or later."""
        key, version, correlation = _HEADER.unpack_from(frame)
        length = int.from_bytes(frame[8:10], "big", signed=True)
        at = _HEADER.size + 2 + max(length, 0)
        head = correlation.to_bytes(4, "big")
        if key == _API_VERSIONS:
            reply(head + bytes(ApiVersionResponse_v0(0, self._versions).encode()))
            return
        head += b"\0"  # an answer's header 1 has tags
        request = _KINDS[key, version].decode(BytesIO(frame[at + 1 :]))  # behind the tags
        method = getattr(self, f"_on_{type(request).__name__.lower()}")
        method(request, lambda body: reply(head + bytes(body)))

    # -- what is known of the topic --

    def _on_metadata(self, request: Any, reply: Reply) -> None:
        cluster = self.cluster
        image = cluster.seen_by(self.number)
        asked_id, asked_name, _ = request.topics[0]
        known = image.topic_id is not None and (
            asked_name == cluster.topic if asked_id == NO_ID else asked_id == image.topic_id
        )
        error = NONE if known else UNKNOWN_TOPIC_ID if asked_id != NO_ID else UNKNOWN_TOPIC
        rows: list[Any] = [
            (
                NONE if led.leader != NOBODY else LEADER_NOT_AVAILABLE,
                index,
                led.leader,
                led.epoch,
                sorted(cluster.nodes),
                list(led.in_sync),
                [],
                NO_TAGS,
            )
            for index, led in enumerate(image.partitions if known else ())
        ]
        topic_id = (image.topic_id or NO_ID) if known else asked_id
        name = cluster.topic if known else asked_name
        topic = (error, name, topic_id, False, rows, 0, NO_TAGS)
        brokers = [(node.number, HOST, node.port, None, NO_TAGS) for node in cluster.nodes.values()]
        reply(Metadata.RESPONSE_TYPE(0, brokers, "simulated", 1, [topic], NO_TAGS).encode())

    def _on_describeconfigs(self, _: Any, reply: Reply) -> None:
        configs: list[Any] = [
            (key, value, False, 0, False, [], 0, None, NO_TAGS)
            for key, value in self.cluster.settings.items()
        ]
        row = (NONE, None, 2, self.cluster.topic, configs, NO_TAGS)
        reply(DescribeConfigs.RESPONSE_TYPE(0, [row], NO_TAGS).encode())

    def _on_createtopics(self, request: Any, reply: Reply) -> None:
        cluster = self.cluster
        name, count, *_ = request.topics[0]
        error = NONE if cluster.image.topic_id is None else TOPIC_EXISTS
        if error == NONE:
            cluster.create(count)
        row: Any = (name, error, None, count, len(cluster.nodes), [], NO_TAGS)
        reply(CreateTopics.RESPONSE_TYPE(0, [row], NO_TAGS).encode())

    def _lookup(
        self, index: int, epoch: int, *, name: str | None = None, topic_id: bytes | None = None
    ) -> tuple[int, Led | None, Replica | None]:
        """Return an error, or the epoch and the copy by which this broker leads the partition."""
        image = self.cluster.seen_by(self.number)
        if topic_id is not None and topic_id != image.topic_id:
            return UNKNOWN_TOPIC_ID, None, None
        if image.topic_id is None or (name is not None and name != self.cluster.topic):
            return UNKNOWN_TOPIC, None, None
        if index >= len(image.partitions):
            return UNKNOWN_TOPIC, None, None
        led = image.partitions[index]
        if epoch >= 0 and epoch != led.epoch:
            return (FENCED if epoch < led.epoch else UNKNOWN_EPOCH), None, None
        if led.leader != self.number:
            return NOT_LEADER, None, None
        replicas = self.cluster.nodes[self.number].replicas
        return NONE, led, replicas[image.topic_id, index]

    def _on_listoffsets(self, request: Any, reply: Reply) -> None:
        (name, rows, _), *_ = request.topics
        answers = []
        for index, epoch, timestamp, _ in rows:
            error, led, replica = self._lookup(index, epoch, name=name)
            offset = -1
            if replica is not None and led is not None:
                if timestamp == _EARLIEST:
                    offset = replica.start
                elif replica.epochs and replica.stable < replica.epochs[-1][1]:
                    error = OFFSET_NOT_AVAILABLE  # a new leader that does not know the end yet
                else:
                    offset = replica.stable
            answers.append((index, error, -1, offset, led.epoch if led else -1, NO_TAGS))
        reply(ListOffsets.RESPONSE_TYPE(0, [(name, answers, NO_TAGS)], NO_TAGS).encode())

    def _on_offsetforleaderepoch(self, request: Any, reply: Reply) -> None:
        (name, rows, _), *_ = request.topics
        answers = []
        for index, current, asked, _ in rows:
            error, _, replica = self._lookup(index, current, name=name)
            epoch, end = (-1, -1) if replica is None else replica.epoch_end(asked)
            answers.append((error, index, epoch, end, NO_TAGS))
        reply(OffsetForLeaderEpoch.RESPONSE_TYPE(0, [(name, answers, NO_TAGS)], NO_TAGS).encode())

    # -- reading --

    def _on_fetch(self, request: Any, reply: Reply) -> None:
        (topic_id, ((index, epoch, offset, last_epoch, _, bytes_max, _),), _), *_ = request.topics

        def attempt(*, late: bool) -> bytes | None:
            error, replica = self._lookup(index, epoch, topic_id=topic_id)[::2]
            if replica is None:
                return fetched(topic_id, index, error=error)
            diverging = None if last_epoch < 0 else _divergence(replica, last_epoch, offset)
            inside = replica.start <= offset <= replica.end
            if diverging == _UNKNOWN or (diverging is None and not inside):
                return fetched(topic_id, index, replica, error=OUT_OF_RANGE)
            if diverging is not None:
                return fetched(topic_id, index, replica, diverging=diverging)
            records = replica.read(offset, bytes_max)
            if records or late:
                return fetched(topic_id, index, replica, records=records)
            return None

        self._until(attempt, request.max_wait / 1000, reply)

    def _until(self, attempt: Attempt, seconds: float, reply: Reply) -> None:
        """Answer as soon as an attempt does; the last one, when the time is over, always does."""
        first = attempt(late=seconds <= 0)
        if first is not None:
            reply(first)
            return
        waiting: list[int] = []

        def try_again(*, late: bool = False) -> None:
            body = attempt(late=late)
            if body is not None:
                self.cluster.unwatch(waiting[0])
                reply(body)

        def expire() -> None:
            if self.cluster.unwatch(waiting[0]):
                try_again(late=True)

        waiting.append(self.cluster.watch(self.number, try_again))
        self.cluster.after(seconds, expire)

    # -- writing --

    def _on_initproducerid(self, _: Any, reply: Reply) -> None:
        self.cluster.producers += 1
        answer = InitProducerId.RESPONSE_TYPE(0, NONE, self.cluster.producers, 0, NO_TAGS)
        reply(answer.encode())

    def _on_producebyid(self, request: Any, reply: Reply) -> None:
        ((topic, rows, _),) = request.topics
        named: Named = {"topic_id": topic} if isinstance(topic, bytes) else {"name": topic}
        answers: dict[int, tuple[int, int]] = {}
        appended_to = self.cluster.seen_by(self.number).topic_id
        #: Partition -> its last offset, which is to be committed; its base offset; the epoch.
        owed: dict[int, tuple[int, int, int]] = {}
        for index, data, _ in rows:
            error, led, replica = self._lookup(index, -1, **named)
            repeat = None if replica is None else replica.judge(data)
            if replica is None or led is None or repeat == OUT_OF_ORDER:
                answers[index] = (error or SEQUENCE, -1)
                continue
            base = repeat if isinstance(repeat, int) else replica.append(data, led.epoch)
            owed[index] = (base + int.from_bytes(data[23:27], "big"), base, led.epoch)
            self.cluster.appended(index)

        def attempt(*, late: bool) -> bytes | None:
            for index, (last, base, epoch) in list(owed.items()):
                # One that names the topic waits for the log it wrote to, whose deletion ends it.
                error, _, replica = self._lookup(index, epoch, **named)
                if self.cluster.seen_by(self.number).topic_id not in (None, appended_to):
                    error, replica = error or NOT_LEADER, None
                if replica is not None and replica.stable <= last and not late:
                    continue
                del owed[index]
                if replica is None:
                    # Appended, and perhaps copied: a former leader names the offset all the same.
                    moved = error in {FENCED, UNKNOWN_EPOCH}
                    answers[index] = (NOT_LEADER if moved else error, base)
                else:
                    answers[index] = (NONE if replica.stable > last else TIMED_OUT, base)
            return None if owed else _produced(request, topic, answers)

        self._until(attempt, request.timeout / 1000, reply)

    _on_producebyname = _on_producebyid


def _produced(request: Any, topic: Any, answers: Mapping[int, tuple[int, int]]) -> bytes:
    rows: list[Any] = [
        (index, error, base, -1, 0, [], None, NO_TAGS)
        for index, (error, base) in sorted(answers.items())
    ]
    return bytes(request.RESPONSE_TYPE([(topic, rows, NO_TAGS)], 0, NO_TAGS).encode())


def _divergence(replica: Replica, last_epoch: int, offset: int) -> tuple[int, int] | None:
    """Return where whoever read up to `offset`, last in that epoch, left this log, if it did."""
    known, end = replica.epoch_end(last_epoch)
    if known < 0 or offset < replica.start:
        return _UNKNOWN
    return (known, end) if known < last_epoch or end < offset else None


def fetched(
    topic_id: bytes,
    index: int,
    replica: Replica | None = None,
    *,
    error: int = NONE,
    records: bytes = b"",
    diverging: tuple[int, int] | None = None,
) -> bytes:
    """Return the body of a Fetch answer; aiokafka's structs cannot encode a tag."""
    stable, start = (-1, -1) if replica is None else (replica.stable, replica.start)
    tags = b"\0"
    if diverging is not None:
        tags = b"\1\0" + uvarint(13) + struct.pack(">iq", *diverging) + b"\0"
    partition = (
        struct.pack(">ihqqq", index, error, stable, stable, start)
        + b"\0"  # no aborted transactions
        + struct.pack(">i", -1)
        + uvarint(len(records) + 1)
        + records
        + tags
    )
    topics = uvarint(2) + topic_id + uvarint(2) + partition + b"\0"
    return struct.pack(">ihi", 0, NONE, 0) + topics + b"\0"
