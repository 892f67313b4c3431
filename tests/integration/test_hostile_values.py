"""Every field of every message of the socket under every class of value, against a real daemon.

The values are made from the types of `codec.api`, so that a field that is added is tried too, and
one of a new type fails here until its values are named. Nothing that was acknowledged may change,
whatever is sent: what would change it with a sound value (a topic's removal) is sent for strangers.
"""

import os
import socket
import struct
import typing
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any
from unittest.mock import patch

import msgspec
import pytest
from msgspec.structs import fields, replace

from rlmm_daemon.codec import api, frames, record_writing, records
from rlmm_daemon.domain.errors import Malformed, RlmmError
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
)
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from tests.support.below import below
from tests.support.stocked_daemon import CLUSTER, Stocked, make, pid_of

#: Of a topic that nobody else knows: what a sound value does is done to it.
STRANGER = api.Partition(bytes(range(16)), "stranger", 0)
#: Each request comes with it, unless it is the very field that is tried.
TIMEOUT_MS = 300
IN_FLIGHT = 48
#: The processor's time of the daemon's event loop between a question and its answer.
HOLD_SECONDS_MAX = 1.5
GROWTH_BYTES_MAX = 256 * 2**20
ANSWER_SECONDS = 30.0
ABSURD = 30_000

_HEADS: dict[Any, bytes] = {list: b"\xdd", bytes: b"\xc6", str: b"\xdb"}


MANY = [msgspec.structs.replace(STRANGER, partition=number) for number in range(ABSURD)]
MANY_ENCODED = msgspec.Raw(msgspec.msgpack.encode(MANY))


def lying(kind: type) -> msgspec.Raw:
    """A value that claims to hold 4,294,967,295 of its kind, and holds none."""
    return msgspec.Raw(_HEADS[kind] + b"\xff" * 4)


#: Sent wherever anything is wanted: each is of a wrong type for most fields.
ANYTHING: tuple[Any, ...] = (
    None, True, -1, 2**64 - 1, -(2**63), 1.5, float("nan"), float("inf"), "", "text", b"", b"\0",
    [], [[]], [None] * 50, {}, {"a": {"b": []}}, lying(list),
    msgspec.Raw(b"\x91" * 2_000 + b"\xc0"), msgspec.Raw(b"\xc7\x04\x7fabcd"), msgspec.Raw(b"\xc1"),
)  # fmt: skip
NUMBERS = (0, 1, -1, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63))
TEXTS: tuple[Any, ...] = (
    "\0", "a\0b", ".", "..", "../../etc/passwd", "/", "a/b", "a" * 249, "a" * 250, "a" * 1_000_000,
    "\u202eevil", "\ud7ff\U0010ffff", "%s{0}\n\r\x1b[2J", "é" * 249, " ", "orders-0", "0",
    msgspec.Raw(b"\xa3\xed\xa0\x80"), msgspec.Raw(b"\xa2\xff\xfe"), lying(str),
)  # fmt: skip
BYTES: tuple[Any, ...] = (
    b"\0" * 15, b"\0" * 16, b"\xff" * 16, b"\0" * 17, b"\x80" * 1_000_000, lying(bytes),
)  # fmt: skip


def values_of(kind: Any) -> Iterator[Any]:
    """Yield hostile values for a field of this type; a type without any fails the test."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        yield from values_of(arguments[0])
    elif origin in (UnionType, typing.Union):
        for each in arguments:
            yield from values_of(each)
    elif origin is list:
        yield from lists_of(arguments[0])
    elif isinstance(kind, typing.NewType):
        yield from values_of(kind.__supertype__)
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield from structs_of(kind)
    elif kind is NoneType:
        yield None
    elif kind is bool:
        yield from (0, 1, "true", [True])
    else:
        yield from {int: NUMBERS, str: TEXTS, bytes: BYTES}[kind]


def lists_of(kind: Any) -> Iterator[Any]:
    """Yield lists: one hostile element, duplicates, in falling order, absurdly many."""
    yield from ([each] for each in values_of(kind))
    assert kind is api.Partition, "other lists need their own extremes"
    yield [STRANGER] * 1_000
    yield MANY[999::-1]
    yield MANY_ENCODED
    yield [lying(list), STRANGER]


def structs_of(kind: type[msgspec.Struct]) -> Iterator[Any]:
    """Yield structs with one hostile field, too short or too long."""
    sound = [*SOUND[kind]]
    for at, each in enumerate(hints(kind).values()):
        for value in (*values_of(each), *ANYTHING):
            yield [*sound[:at], value, *sound[at + 1 :]]
    yield sound[:-1]
    yield [*sound, None]
    yield [*sound, *["more"] * 1_000]
    yield dict(zip(hints(kind), sound, strict=True))


def hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def sound_segment(tp: api.Partition, number: int) -> SegmentMetadata:
    return SegmentMetadata(
        partition=tp.to_domain(),
        segment_id=SegmentId(number.to_bytes(16, "big")),
        start_offset=Offset(0),
        end_offset=Offset(9),
        broker_id=BrokerId(1),
        max_timestamp_ms=1,
        event_timestamp_ms=2,
        segment_leader_epochs={LeaderEpoch(0): Offset(0)},
        segment_size_bytes=10,
    )


FILES = api.SegmentFiles("/a", "/a", "/a", "/a", b"")
RECORD = records.encode(sound_segment(STRANGER, 1))
#: Of every struct of the socket that is sent, fields with which nothing of ours is touched.
SOUND: dict[type, tuple[Any, ...]] = {
    api.Partition: (STRANGER.topic_id, STRANGER.topic, STRANGER.partition),
    api.SegmentFiles: ("/absent", "/absent", "/absent", "/absent", b"0\n0\n", None),
    api.HelloParams: (1, "a test", "broker", "metadata", CLUSTER, 1, 77, "localhost:9092"),
    api.RecordParams: (RECORD, TIMEOUT_MS),
    api.AssignmentParams: ([STRANGER], [], TIMEOUT_MS),
    api.PartitionsParams: ([STRANGER], TIMEOUT_MS),
    api.EpochOffsetParams: (STRANGER, 0, 0, TIMEOUT_MS, True),
    api.EpochParams: (STRANGER, 0, TIMEOUT_MS),
    api.PartitionParams: (STRANGER, TIMEOUT_MS),
    api.CopyParams: (RECORD, FILES, TIMEOUT_MS),
    api.WholeCopyParams: (RECORD, FILES, TIMEOUT_MS, False),
    api.FetchParams: (RECORD, 0, None, TIMEOUT_MS, False),
    api.FetchIndexParams: (RECORD, "OFFSET", TIMEOUT_MS),
    api.SegmentParams: (STRANGER, bytes(16), TIMEOUT_MS),
    api.SelectorParams: ("stranger-0", None, TIMEOUT_MS),
    api.ExplainParams: ("stranger-0", None, None, TIMEOUT_MS),
    api.MetadataPartitionParams: (0, TIMEOUT_MS),
    api.TailParams: (0, None, False, TIMEOUT_MS),
    api.ExportParams: (None, TIMEOUT_MS),
    api.TopicParams: (None, TIMEOUT_MS),
    api.AcceptLossParams: (0, False, TIMEOUT_MS, False),
    api.RecoverParams: (0, False, TIMEOUT_MS),
    api.EndHoldParams: (0, False, TIMEOUT_MS),
    api.PurgeParams: (STRANGER.topic_id, False, False, TIMEOUT_MS),
    api.PauseParams: ("stranger", False, TIMEOUT_MS),
    api.NoParams: (TIMEOUT_MS,),
}
#: It ends the daemon, whatever its deadline: its turn comes last.
LAST = "drain"


#: No record has room for these at all.
UNENCODABLE = (RlmmError, ValueError, OverflowError, struct.error)


def hostile_records() -> Iterator[bytes]:
    """Yield records with one hostile field of each event, and what holds no event at all."""
    events: tuple[Any, ...] = (
        sound_segment(STRANGER, 2),
        SegmentUpdate(
            partition=STRANGER.to_domain(),
            segment_id=SegmentId(bytes(16)),
            broker_id=BrokerId(1),
            event_timestamp_ms=1,
            state=SegmentState.COPY_SEGMENT_FINISHED,
        ),
        PartitionDelete(
            partition=STRANGER.to_domain(),
            state=PartitionDeleteState.DELETE_PARTITION_MARKED,
            event_timestamp_ms=1,
            broker_id=BrokerId(1),
        ),
    )
    made = list[bytes]()
    for event in events:
        for each in fields(event):
            for value in RECORD_VALUES[each.name]:
                # What the encoder refuses to write is what we want.
                with patch.object(record_writing, "_refuse"), suppress(*UNENCODABLE):
                    made.append(records.encode(replace(event, **{each.name: value})))
        yield from made
        made.clear()
        whole = records.encode(event)
        for name in (b"\xed\xa0\x80abcde", b"\0" * 8, b"../../..", b"a/b/c/d\n", b"." * 8):
            yield whole.replace(STRANGER.topic.encode(), name)
        yield from (whole[:size] for size in range(0, len(whole), 7))
        yield whole + b"\0"
    yield from (b"", b"\0", b"\1\0\0", b"\xff" * 10, b"\1\0\0" + b"\x80" * 1_000_000)


def _partitions() -> Iterator[TopicIdPartition]:
    for topic in (".", "..", "a" * 249, "a/b", "a\0b", "orders"):
        yield TopicIdPartition(TopicId(STRANGER.topic_id), topic, 0)
    for number in (-1, 2**31 - 1, -(2**31)):
        yield TopicIdPartition(TopicId(STRANGER.topic_id), "stranger", number)
    for topic_id in (bytes(16), b"\xff" * 16):
        yield TopicIdPartition(TopicId(topic_id), "stranger", 0)


INT32 = (0, -1, 2**31 - 1, -(2**31))
INT64 = (0, -1, 2**63 - 1, -(2**63))
RECORD_VALUES: dict[str, tuple[Any, ...]] = {
    "partition": (*_partitions(),),
    "segment_id": (bytes(16), b"\xff" * 16),
    "start_offset": INT64,
    "end_offset": INT64,
    "broker_id": INT32,
    "max_timestamp_ms": INT64,
    "event_timestamp_ms": INT64,
    "segment_leader_epochs": (
        {}, {0: 5}, {2**31 - 1: 2**63 - 1}, {-1: 0}, {0: 0, 1: 9, 2: 3},
        {n: n for n in range(5_000)},
    ),
    "segment_size_bytes": INT32,
    "custom_metadata": (b"", b"\0" * 128, b"\xff" * 129, b"\1" * 60_000),
    "state": (*SegmentState, *PartitionDeleteState),
    "txn_index_empty": (True,),
}  # fmt: skip


def requests_of(row: api.Method) -> Iterator[list[Any]]:
    """Yield hostile parameters of a method."""
    sound = SOUND[row.params]
    names = list(hints(row.params))
    yield from structs_of(row.params)
    if "record" in names:
        for record in hostile_records():
            yield [record, *sound[1:]]


@dataclass
class Peer:
    """A connection that sends what it likes, as much as is allowed to be in flight."""

    path: str
    role: str
    opened: ExitStack
    waiting: dict[int, str] = field(default_factory=dict)
    codes: dict[str, set[str]] = field(default_factory=dict)
    number: int = 0

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.socket = self.opened.enter_context(socket.socket(socket.AF_UNIX))
        self.socket.settimeout(ANSWER_SECONDS)
        self.socket.connect(self.path)
        self.splitter = frames.Splitter(2**31)
        self.waiting.clear()
        part = "metadata" if self.role == "broker" else ""
        self.send("hello", [1, "a test", self.role, part, CLUSTER, 1, 77])
        self.settle()

    def send(self, method: str, params: Any) -> None:
        self.number += 1
        frame = frames.request_frame(self.number, method, params)
        try:
            frames.decode_request(frame[frames.HEADER_BYTES :])
        except Malformed:
            self.break_off(frame)
            return
        self.waiting[self.number] = method
        self.socket.sendall(frame)
        while len(self.waiting) >= IN_FLIGHT:
            self.read()

    def break_off(self, frame: bytes) -> None:
        """Send what is no message: the connection ends with a word that says so."""
        self.settle()
        self.waiting[frames.CONNECTION_ID] = "connection"
        self.socket.sendall(frame)
        self.settle()
        assert self.socket.recv(1) == b""
        self.socket.close()
        self.open()

    def settle(self) -> None:
        while self.waiting:
            self.read()

    def read(self) -> None:
        chunk = self.socket.recv(2**20)
        assert chunk, f"closed before {self.waiting} were answered"
        self.splitter.feed(chunk)
        while (body := self.splitter.next()) is not None:
            message = frames.decode_message(body)
            assert isinstance(message, frames.Response)
            self.take(message)

    def take(self, message: frames.Response) -> None:
        method = self.waiting[message.id]
        error = message.error
        self.codes.setdefault(method, set()).add("ok" if error is None else error.name)
        more = error is None and api_shape(method) is api.Shape.STREAM and ends_in_more(message)
        if not more:
            self.waiting.pop(message.id, None)


def api_shape(method: str) -> api.Shape:
    row = api.METHODS.get(method)
    return api.Shape.ONE if row is None else row.shape


def ends_in_more(message: frames.Response) -> bool:
    return bool(msgspec.msgpack.decode(message.result)[-1])


@dataclass
class Watch:
    """What the process costs meanwhile: its memory, and how long its loop is held."""

    it: Stocked
    peer: Peer
    hold_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.pid = pid_of(self.it)
        self.before = self.memory()

    def memory(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def loop_seconds(self) -> float:
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9

    def look(self) -> None:
        begun = self.loop_seconds()
        self.peer.send("is_ready", [STRANGER, TIMEOUT_MS])
        self.peer.settle()
        self.hold_seconds = max(self.hold_seconds, self.loop_seconds() - begun)


def stored(it: Stocked) -> dict[str, int]:
    return {
        str(path.relative_to(it.daemon.remote)): path.stat().st_size
        for path in below(it.daemon.remote, "*-*")
        if path.is_file() and "_rlmm" not in path.parts
    }


def test_every_method_that_takes_parameters_has_sound_ones_here():
    assert {row.params for row in api.METHODS.values()} <= SOUND.keys()
    for kind, sound in SOUND.items():
        assert len(sound) == len(hints(kind)), kind
        msgspec.msgpack.decode(msgspec.msgpack.encode(sound), type=kind)
    events = (SegmentMetadata, SegmentUpdate, PartitionDelete)
    assert {each.name for event in events for each in fields(event)} == RECORD_VALUES.keys()


def test_no_value_of_a_hello_is_more_than_refused(tmp_path, forks):
    it = make(tmp_path, forks)
    with it.daemon:
        it.stock()
        for role in ("broker", "operator", "bulk"):
            for hello in structs_of(api.HelloParams):
                if isinstance(hello, list) and hello[2:3] == ["broker"]:
                    hello[2] = role
                with socket.socket(socket.AF_UNIX) as guest:
                    guest.settimeout(ANSWER_SECONDS)
                    guest.connect(it.daemon.socket_path)
                    with suppress(ConnectionError):  # a long one is not read to its end
                        guest.sendall(frames.request_frame(1, "hello", hello))
                        assert guest.recv(2**16)
        it.announce(incarnation=78)
        it.serves(0)
        assert it.lines("crashed") == []


@pytest.mark.timeout(180)
def test_no_value_of_any_field_ends_the_daemon_or_changes_what_was_acknowledged(tmp_path, forks):
    it = make(tmp_path, forks)
    with it.daemon, ExitStack() as opened:
        it.stock()
        before, objects = [it.listed(0), it.listed(1)], stored(it)
        path = it.daemon.socket_path
        peers = {role: Peer(path, role, opened) for role in ("operator", "broker", "bulk")}
        watch = Watch(it, Peer(path, "operator", opened))
        for row in api.METHODS.values():
            roles = ("bulk",) if row.shape is api.Shape.BULK else ("operator", "broker")
            for role in roles if row.name != LAST else ():
                for number, params in enumerate(requests_of(row)):
                    peers[role].send(row.name, params)
                    if number % 8 == 0:
                        watch.look()
                peers[role].settle()
                assert peers[role].codes[row.name] - {"invalid_argument"}, row.name
        assert {name for peer in peers.values() for name in peer.codes} >= api.METHODS.keys() - {
            LAST
        }
        for peer in peers.values():
            assert all("internal_error" not in codes for codes in peer.codes.values()), peer.codes
        assert watch.hold_seconds < HOLD_SECONDS_MAX
        assert watch.memory() - watch.before < GROWTH_BYTES_MAX
        assert watch.pid == pid_of(it)
        it.announce(incarnation=78)
        assert [it.listed(0), it.listed(1)] == before
        assert stored(it).items() >= objects.items()
        it.serves(0)
        it.serves(1)
        assert it.copy_new(0)
        with suppress(ConnectionError, AssertionError):  # the first sound one ends the daemon
            for params in requests_of(api.METHODS[LAST]):
                peers["operator"].send(LAST, params)
        assert it.daemon.ended() == 0
        it.start()
        it.serves(0)
        it.serves(1)
