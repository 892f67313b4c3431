"""Requests of every API and version, drawn around what is true, against a quorum that runs.

Whatever an operator without rights or an observer sends, nothing changes; and even where nobody
proves anything, every replica lives, and the quorum commits again.
"""

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlmm_daemon.adapters.quorum.handshake import Dialer, Plain, Stream
from rlmm_daemon.adapters.quorum.links import Links, Unreachable
from rlmm_daemon.adapters.quorum.listener import spoken_here
from rlmm_daemon.adapters.quorum.wire import api_of
from rlmm_daemon.codec.kraft import apis, headers, schema
from rlmm_daemon.codec.kraft.schema import Api, Array, Field, Fields
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.core.raft.messages import (
    AddVoterRequest,
    BeginEpochRequest,
    EndEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    RemoveVoterRequest,
    Request,
    UpdateVoterRequest,
    VoteRequest,
)
from rlmm_daemon.core.raft.voters import Endpoint, Voter
from tests.unit.adapters.quorum.authentication.members import Members
from tests.unit.adapters.quorum.three import (
    CLUSTER,
    GROUP,
    TOPIC,
    TOPIC_ID,
    Three,
    key,
    plain,
    quorum,
)

SECONDS = 30
EVERY = [
    pytest.param(api, version, id=f"{api.name}-{version}")
    for api in apis.APIS.values()
    for version in range(api.first, api.last + 1)
]
DRAWN = settings(
    max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)

# Messages, drawn: mostly of this quorum, so that they get as far as its decisions.

_IDS = st.sampled_from([0, 1, 2, 3, 9, -1, -2, 2**31 - 1, -(2**31)])
_NUMBERS = st.integers(-2, 8) | st.sampled_from([99, 1 << 20, (1 << 20) + 3, 2**31 - 1, -(2**31)])
_TEXTS = st.sampled_from(["", "127.0.0.1", "QUORUM", "\0", "a" * 300, "é.example", "x" * 5_000])
_DIRECTORIES = st.sampled_from([bytes(16), *(key(each).directory for each in (1, 2, 3, 9))])
_BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "ClusterId": st.sampled_from([CLUSTER] * 8 + [None, "", "another"]),
    "TopicId": st.sampled_from([TOPIC_ID] * 8 + [bytes(16)]),
    "TopicName": st.sampled_from([TOPIC] * 8 + ["", "__cluster_metadata"]),
    "PartitionIndex": st.sampled_from([0] * 8 + [1, -1]),
    "Partition": st.sampled_from([0] * 8 + [1, -1]),
    "Port": st.integers(0, 3) | st.just(0xFFFF),
    "MaxWaitMs": st.sampled_from([0, 1, -1, 2**31 - 1]),
}


_PLAIN: dict[int, st.SearchStrategy[Any]] = {
    id(schema.INT8): st.integers(-2, 2),
    id(schema.INT16): st.integers(-2, 3) | st.sampled_from([-(2**15), 2**15 - 1]),
    id(schema.UINT16): st.integers(0, 0xFFFF),
    id(schema.INT32): _NUMBERS,
    id(schema.INT64): _NUMBERS | st.sampled_from([2**63 - 1, -(2**63), 2**62]),
    id(schema.BOOL): st.booleans(),
    id(schema.UUID): _DIRECTORIES,
    id(schema.BYTES): st.binary(max_size=40),
    id(schema.NULLABLE_BYTES): st.none() | st.binary(max_size=40),
    id(schema.STRING): _TEXTS,
    id(schema.NULLABLE_STRING): st.none() | _TEXTS,
}


def drawn(kind: schema.Type, version: int) -> st.SearchStrategy[Any]:
    if isinstance(kind, Fields):
        here = [each for each in kind.fields if each.since <= version <= each.until]
        return st.fixed_dictionaries({each.name: value(each, version) for each in here})
    if isinstance(kind, Array):
        one = drawn(kind._of, version)
        return st.tuples(one) | st.lists(one, max_size=3).map(tuple)
    return _PLAIN[id(kind)]


def value(field: Field, version: int) -> st.SearchStrategy[Any]:
    if field.name == "Name" and field.type is schema.STRING:
        return st.sampled_from([TOPIC, TOPIC, TOPIC, "QUORUM", ""])
    if field.name in _BY_NAME:
        return _BY_NAME[field.name]
    if field.name.endswith("Id") and field.type is schema.INT32:
        return _IDS
    return drawn(field.type, version)


Pack = Callable[[int, dict[str, Any]], bytes]


@st.composite
def bodies(draw: st.DrawFn, fields: Fields, pack: Pack, version: int) -> bytes:
    """Draw a body; some are damaged."""
    body = pack(version, draw(drawn(fields, version)))
    damage = draw(st.sampled_from(["none"] * 6 + ["cut", "more", "flip"]))
    if damage == "cut":
        return body[: draw(st.integers(0, len(body)))]
    if damage == "more":
        return body + draw(st.binary(min_size=1, max_size=9))
    if damage == "flip" and body:
        at = draw(st.integers(0, len(body) - 1))
        return body[:at] + bytes([body[at] ^ draw(st.integers(1, 255))]) + body[at + 1 :]
    return body


# A quorum that runs beside.


class Running:
    """Runs a quorum in a loop of its own, and asks its replicas over connections that it keeps."""

    def __init__(self, directory: Path, side, attacker: Dialer) -> None:
        self.runner = asyncio.Runner()
        self._attacker = attacker
        self._streams: dict[int, Stream] = {}
        self._closing = contextlib.AsyncExitStack()
        self._directory = directory
        self._side = side
        self.three: Three
        #: What the loop was told that nobody caught.
        self.defects: list[dict[str, Any]] = []

    def start(self) -> None:
        ready = asyncio.Event()
        self._over = asyncio.Event()

        async def host() -> None:
            async with quorum(self._directory, self._side) as self.three:
                ready.set()
                await self._over.wait()

        async def begin() -> None:
            asyncio.get_running_loop().set_exception_handler(
                lambda _, context: self.defects.append(context)
            )
            self._host = asyncio.get_running_loop().create_task(host())
            async with asyncio.timeout(SECONDS):
                await ready.wait()
                await self.three.submit()
                await self.three.settled()
            for node in self.three.nodes.values():
                await node.snapshots.make([(None, b"value")])

        self.runner.run(begin())

    def stop(self) -> None:
        async def end() -> None:
            for stream in self._streams.values():
                stream.abort()
            self._over.set()
            await self._host

        self.runner.run(end())
        self.runner.close()

    def send(self, to: int, api: Api, version: int, body: bytes) -> None:
        """Send a request, and wait until it is answered or its connection ends."""
        self.runner.run(self._send(to, headers.pack_request(api, version, 5, body, client="fuzz")))

    async def _send(self, to: int, frame: bytes) -> None:
        async with asyncio.timeout(SECONDS):
            stream = self._streams.pop(to, None)
            if stream is None:
                stream = await self._attacker.dial(self.three.endpoints[to], to)
            stream.writer.write(frame)
            try:
                await stream.frame(headers.FRAME_BYTES_MAX)
            except (EOFError, OSError):
                stream.abort()
            else:
                self._streams[to] = stream
        gc.collect(0)  # a task that failed says so when it goes
        if self._host.done():
            self._host.result()


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    return Members(tmp_path_factory.mktemp("members"))


@pytest.fixture(scope="module")
def unproven(tmp_path_factory) -> Iterator[Running]:
    yield from started(Running(tmp_path_factory.mktemp("plain"), plain, Plain()))


@pytest.fixture(scope="module")
def proven(tmp_path_factory, members, request) -> Iterator[Running]:
    attacker = members.tls(members.bob if request.param == "operator" else members.nodes[9])
    yield from started(Running(tmp_path_factory.mktemp(request.param), members.side, attacker))


def started(running: Running) -> Iterator[Running]:
    running.start()
    yield running
    running.stop()


def requests(api: Api, version: int) -> st.SearchStrategy[bytes]:
    return bodies(api.request, api.pack_request, version)


@pytest.mark.parametrize("proven", ["operator"], indirect=True)
@pytest.mark.parametrize(("api", "version"), EVERY)
def test_no_request_without_rights_changes_a_quorum(proven, api, version):
    """Not its leader, epoch, voters or high watermark; nor does any end a replica."""
    before = proven.three.facts()

    @DRAWN
    @given(requests(api, version), st.sampled_from([1, 2, 3]))
    def check(body, to):
        proven.send(to, api, version, body)
        assert proven.three.facts() == before

    with structlog.testing.capture_logs() as logs:
        check()
    assert proven.defects == [each for each in logs if each["log_level"] == "error"] == []


@pytest.mark.parametrize("proven", ["observer"], indirect=True)
@pytest.mark.parametrize(("api", "version"), EVERY)
def test_no_request_of_an_observer_ends_a_replica(proven, api, version):
    """Its word counts for as much as its certificate says; they all live, and say no defect."""
    lives(proven, api, version)


@pytest.mark.parametrize(("api", "version"), EVERY)
def test_no_request_ends_a_replica_where_nobody_proves_anything(unproven, api, version):
    """It may remove voters there, or claim to be one: they all live, and say no defect."""
    lives(unproven, api, version)


def lives(running: Running, api: Api, version: int) -> None:
    @DRAWN
    @given(requests(api, version), st.sampled_from([1, 2, 3]))
    def check(body, to):
        running.send(to, api, version, body)

    with structlog.testing.capture_logs() as logs:
        check()
    assert running.defects == [each for each in logs if each["log_level"] == "error"] == []


# Answers.

_SENT: list[Request] = [
    VoteRequest(epoch=1, candidate=key(1), last=LogPoint(0, 0), voter=key(2)),
    BeginEpochRequest(epoch=1, leader=key(1), voter=key(2)),
    EndEpochRequest(epoch=1, leader=key(1)),
    FetchRequest(epoch=1, replica=key(1), point=LogPoint(0, 0)),
    FetchSnapshotRequest(epoch=1, replica=key(1), snapshot=LogPoint(1, 1), position=0),
    AddVoterRequest(voter=Voter(key(9))),
    RemoveVoterRequest(voter=key(9)),
    UpdateVoterRequest(epoch=1, voter=Voter(key(1))),
]


@pytest.mark.parametrize("request_", _SENT, ids=lambda each: type(each).__name__)
def test_no_answer_is_a_defect(request_):
    """What a broken replica answers is an answer, or counts as none."""
    api = api_of(request_)
    links = Links(GROUP, Plain(), timeout_seconds=SECONDS)
    link = Answering()
    links._dialer = link

    @DRAWN
    @given(bodies(api.answer, api.pack_answer, api.last))
    def check(body):
        link.answer = body
        with contextlib.suppress(Unreachable):
            asyncio.run(links.ask(request_, (Endpoint("QUORUM", "127.0.0.1", 1),), 2))
        links.close()

    with structlog.testing.capture_logs() as logs:
        check()
    assert logs == []


class Answering:
    """Dials a server that answers any request with the same bytes."""

    answer = b""

    async def dial(self, endpoint, expected=None):  # noqa: ARG002 - it is there for any
        reader = asyncio.StreamReader()
        return Stream(reader, cast("asyncio.StreamWriter", Echo(self, reader)))


class Echo:
    """Writes into a reader what answers the request that is written to it."""

    def __init__(self, to: Answering, reader: asyncio.StreamReader) -> None:
        self._to = to
        self._reader = reader
        self.transport = self

    def write(self, frame: bytes) -> None:
        head = headers.read_request(frame[4:])
        if head.api is apis.API_VERSIONS:
            body = head.api.pack_answer(head.version, spoken_here())
        else:
            body = self._to.answer
        packed = headers.pack_answer(head.api, head.version, head.correlation, body)
        self._reader.feed_data(packed)

    async def drain(self) -> None:
        pass

    def abort(self) -> None:
        self._reader.feed_eof()
