"""Hostile connections to a quorum's listener: it lives, and others are served meanwhile."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import structlog

from rlmm_daemon.adapters.quorum.handshake import Plain, Stream, dialed
from rlmm_daemon.adapters.quorum.links import CLIENT, Link
from rlmm_daemon.adapters.quorum.listener import Limits, Listener, spoken_here
from rlmm_daemon.codec.kraft import apis, headers
from rlmm_daemon.core.raft.inputs import Peer
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.domain.errors import ConfigError, InvalidArgument, Malformed

SECONDS = 30
FAST = Limits(first_request_seconds=0.3, idle_seconds=30, request_seconds=0.3, answer_seconds=0.3)
LARGE = 8 << 20


@asynccontextmanager
async def listening(limits: Limits = FAST, handle=None, acceptor=None) -> AsyncIterator[Endpoint]:
    """Yield the address of a listener that answers every request."""

    async def answer(head, _peer):
        head.api.read_request(head.version, head.body)
        if head.api is apis.API_VERSIONS:
            return spoken_here()
        return {"ErrorCode": 0}

    listener = Listener(acceptor or Plain(), limits)
    port = listener.bind("127.0.0.1", 0)
    await listener.serve(handle or answer)
    try:
        async with asyncio.timeout(SECONDS):
            yield Endpoint("QUORUM", "127.0.0.1", port)
    finally:
        await listener.close()


@asynccontextmanager
async def connected(at: Endpoint) -> AsyncIterator[Stream]:
    stream = await dialed(at)
    try:
        yield stream
    finally:
        stream.abort()


async def is_served(at: Endpoint) -> bool:
    """Whether a stranger to all this is answered."""
    async with connected(at) as stream:
        await Link(stream).greet()
    return True


async def ends(stream: Stream) -> bytes:
    """Return what comes until the listener ends the connection."""
    with contextlib.suppress(ConnectionError):
        return await stream.reader.read()
    return b""


def asked(api, message, *, version=None) -> bytes:
    version = api.last if version is None else version
    return headers.pack_request(api, version, 7, api.pack_request(version, message), client=CLIENT)


HELLO = asked(apis.API_VERSIONS, {})
FRAMES = {
    "a negative size": struct.pack(">i", -1),
    "the largest size": struct.pack(">i", 2**31 - 1),
    "an http request": b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a hello of tls": b"\x16\x03\x01\x02\x00\x01\x00" + bytes(512),
    "an empty frame": struct.pack(">i", 0),
    "a frame cut in its header": struct.pack(">i", 3) + b"\0\x01\0",
    "a frame that never ends": struct.pack(">i", 100) + b"\0\x01\0",
    "an unknown api": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "an unknown version": struct.pack(">ihhih", 10, 52, 99, 1, -1),
    "a client id beyond the frame": struct.pack(">ihhih", 10, 52, 2, 1, 32_000),
    "a body of noise": struct.pack(">ihhih", 30, 52, 2, 1, -1) + b"\xff" * 20,
    "a body that goes on": struct.pack(">i", len(HELLO) - 4 + 9) + HELLO[4:] + b"garbage!!",
}


@pytest.mark.parametrize("before", [b"", HELLO], ids=["at first", "after a valid request"])
@pytest.mark.parametrize("name", FRAMES)
async def test_nonsense_ends_its_connection_alone(name, before):
    """Whatever comes, the listener ends that connection within its time, and serves others."""
    async with listening() as at, connected(at) as stream:
        stream.writer.write(before)
        if before:
            await stream.frame(LARGE)
        stream.writer.write(FRAMES[name])
        assert await ends(stream) == b""
        assert await is_served(at)


async def test_an_unknown_version_of_api_versions_is_answered_in_the_oldest_form():
    """KIP-511: who asks with a newer one learns what is spoken, on the same connection."""
    async with listening() as at, connected(at) as stream:
        stream.writer.write(struct.pack(">ihhih", 10, 18, 99, 5, -1))
        frame = await stream.frame(LARGE)
        body = headers.read_answer(apis.API_VERSIONS, 0, 5, frame)
        assert apis.API_VERSIONS.read_answer(0, body)["ErrorCode"] == 35
        stream.writer.write(HELLO)
        assert await stream.frame(LARGE)


async def test_half_open_connections_keep_nobody_out():
    """Hundreds that say nothing: the oldest make room long before their time is over."""
    async with contextlib.AsyncExitStack() as stack:
        at = await stack.enter_async_context(listening(Limits(first_request_seconds=2 * SECONDS)))
        silent = [await stack.enter_async_context(connected(at)) for _ in range(400)]
        assert await is_served(at)
        for stream in silent[: 400 - Limits().newcomers]:
            assert await ends(stream) == b""


async def test_half_open_connections_end_in_their_time():
    """Also where nobody wants their room."""
    async with listening() as at, connected(at) as stream:
        assert await ends(stream) == b""


async def test_idle_connections_keep_nobody_out():
    """Each said hello and then nothing: whoever is idle longest goes for one that comes."""
    async with contextlib.AsyncExitStack() as stack:
        at = await stack.enter_async_context(listening(Limits(connections=8)))
        first, *others = [await stack.enter_async_context(connected(at)) for _ in range(8)]
        for stream in (first, *others):
            await Link(stream).greet()
        assert await is_served(at)
        assert await ends(first) == b""
        for stream in others:
            await Link(stream).greet()


async def test_busy_connections_are_not_ended_for_newcomers():
    """Where nobody is idle, it is the newcomer that has to come back."""
    release = asyncio.Event()
    asked_for = asyncio.Semaphore(0)

    async def slow(_head, _peer):
        asked_for.release()
        await release.wait()
        return spoken_here()

    async with contextlib.AsyncExitStack() as stack:
        at = await stack.enter_async_context(listening(Limits(connections=2), slow))
        busy = [await stack.enter_async_context(connected(at)) for _ in range(2)]
        for stream in busy:
            stream.writer.write(HELLO)
            await asked_for.acquire()
        newcomer = await stack.enter_async_context(connected(at))
        newcomer.writer.write(HELLO)
        assert await ends(newcomer) == b""
        release.set()
        for stream in busy:
            assert await stream.frame(LARGE)


async def test_whoever_does_not_read_is_let_go():
    """An answer that nobody reads ends its connection, and keeps one answer's memory at most."""
    size = 32 << 20

    async def much(_head, _peer):
        return {"Topics": ({"Name": "x", "Partitions": ({"UnalignedRecords": bytes(size)},)},)}

    listener = Listener(Plain(), FAST)
    at = Endpoint("QUORUM", "127.0.0.1", listener.bind("127.0.0.1", 0))
    await listener.serve(much)
    async with asyncio.timeout(SECONDS), connected(at) as stream:
        stream.writer.write(asked(apis.FETCH_SNAPSHOT, {}))
        while not listener._connections:  # noqa: ASYNC110 - a plain attribute
            await asyncio.sleep(0.01)
        while listener._connections:  # noqa: ASYNC110 - a plain attribute
            await asyncio.sleep(0.01)
        assert len(await ends(stream)) < size
    await listener.close()


async def test_only_a_submit_is_large_and_only_a_replica_sends_one():
    """What nobody may send is refused by its size, before a byte of it is kept."""
    submit = asked(apis.SUBMIT, {"Records": ({"Key": None, "Value": bytes(1 << 20)},)})
    vote = asked(apis.VOTE, {"ClusterId": "x" * 100})
    large_vote = struct.pack(">i", 1 << 20) + vote[4:] + bytes(1 << 20)
    for peer, request in ((Peer(), submit), (Peer(id=1), submit)):
        async with listening(acceptor=Known(peer)) as at, connected(at) as stream:
            await Link(stream).greet()
            stream.writer.write(request)
            assert await stream.frame(LARGE)
    for peer, request in ((Peer(), large_vote), (Peer(may_vote=False), submit)):
        async with listening(acceptor=Known(peer)) as at, connected(at) as stream:
            await Link(stream).greet()
            stream.writer.write(request)
            assert await ends(stream) == b""
            assert await is_served(at)


async def test_submits_on_their_way_have_room_for_so_many_bytes():
    """One more is refused, until others came or were given up."""
    limits = Limits(submits_bytes=3 << 20, request_seconds=2 * SECONDS)
    begun = struct.pack(">ih", 2 << 20, apis.SUBMIT.key) + bytes(100_000)
    async with listening(limits) as at, connected(at) as one, connected(at) as other:
        for stream in (one, other):
            await Link(stream).greet()
            stream.writer.write(begun)
            await stream.writer.drain()
        loop = asyncio.get_running_loop()
        ending = {loop.create_task(ends(each)) for each in (one, other)}
        await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
        one.abort()
        other.abort()
        while not await takes_a_submit(at):
            pass


async def takes_a_submit(at: Endpoint) -> bool:
    async with connected(at) as stream:
        await Link(stream).greet()
        stream.writer.write(asked(apis.SUBMIT, {"Records": ({"Value": bytes(2 << 20)},)}))
        with contextlib.suppress(EOFError, ConnectionError):
            return bool(await stream.frame(LARGE))
    return False


class Known(Plain):
    """Takes everybody for one peer."""

    def __init__(self, peer: Peer) -> None:
        super().__init__()
        self._peer = peer

    async def accept(self, connection: socket.socket) -> Stream:
        stream = await super().accept(connection)
        return Stream(stream.reader, stream.writer, self._peer)


async def test_a_defect_ends_its_connection_alone():
    """A handler that raises what it never should is logged, and others are served."""

    async def handle(head, _peer):
        if head.api is apis.API_VERSIONS:
            return spoken_here()
        raise KeyError("a defect")

    with structlog.testing.capture_logs() as logs:
        async with listening(handle=handle) as at, connected(at) as stream:
            stream.writer.write(asked(apis.DESCRIBE_QUORUM, {}))
            assert await ends(stream) == b""
            assert await is_served(at)
    assert [each["log_level"] for each in logs] == ["error"]


async def test_an_answer_that_can_not_be_packed_ends_its_connection_alone():
    """An error of the domain is told in one line, however often it comes."""

    async def handle(head, _peer):
        if head.api is apis.API_VERSIONS:
            return spoken_here()
        raise InvalidArgument("no field is called x")

    with structlog.testing.capture_logs() as logs:
        async with listening(handle=handle) as at:
            for _ in range(5):
                async with connected(at) as stream:
                    stream.writer.write(asked(apis.DESCRIBE_QUORUM, {}))
                    assert await ends(stream) == b""
            assert await is_served(at)
    assert [each["error"] for each in logs] == ["no field is called x"]


@pytest.mark.parametrize("host", ["", "0.0.0.0", "10.0.0.1", "::", "example.com", "localhost.evil"])
def test_plaintext_binds_loopback_only(host):
    """Nobody would prove who they are: not even the address is taken."""
    with pytest.raises(ConfigError, match=r"quorum\.insecure"):
        Listener(Plain()).bind(host, 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
async def test_plaintext_binds_loopback_and_elsewhere_if_told(host):
    """All of 127.0.0.0/8 is this machine; beyond, somebody has said that it may be."""
    listener = Listener(Plain())
    assert listener.bind(host, 0) > 0
    await listener.close()
    Plain(insecure=True).check("0.0.0.0")


async def test_plaintext_dials_loopback_only():
    """No replica speaks in the clear to another machine."""
    with pytest.raises(ConfigError, match=r"quorum\.insecure"):
        await Plain().dial(Endpoint("QUORUM", "10.0.0.1", 1))


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("a" * 300, 1),
        ("\0", 1),
        ("", 1),
        ("127.0.0.1", 0),
        ("127.0.0.1", 70_000),
        ("127.0.0.1", -5),
    ],
)
async def test_what_is_no_address_is_said_to_be_none(host, port):
    """Whoever told it: a resolver's own errors would pass for defects."""
    with pytest.raises(Malformed, match="is no address"):
        await dialed(Endpoint("QUORUM", host, port))
