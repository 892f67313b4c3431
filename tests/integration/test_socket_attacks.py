"""Peers that break the rules: only they lose their connection, and memory stays bounded."""

import asyncio
import errno
import os
import resource
import socket
import struct
from contextlib import suppress

import msgspec
import pytest

from rlmm_daemon.codec import api, frames
from rlmm_daemon.codec.api import Right
from rlmm_daemon.daemon.socket.listening import Listener
from rlmm_daemon.daemon.socket.rights import Grant, RightsTable, SocketPeer, peer_of
from rlmm_daemon.domain.errors import ConfigError, InTheWay
from tests.unit.daemon.socket.fakes import BROKER, CLUSTER, ORDERS, FakeBulk, Raw, daemon, until

READY = frames.request_frame(7, "is_ready", api.PartitionParams(api.Partition.of(ORDERS)))


async def still_serves(path) -> None:
    raw = await Raw.connect(path)
    raw.writer.write(READY)
    assert await raw.answer() == (7, None, True)
    raw.close()


@pytest.mark.parametrize(
    ("attack", "counter"),
    [
        (struct.pack(">I", 2**31) + b"x" * 100, "frames_too_long"),
        (struct.pack(">I", 5) + b"\xff" * 5, "frames_malformed"),
        (struct.pack(">I", 0), "frames_malformed"),
        (struct.pack(">I", 5) + b"\xdd\xff\xff\xff\xff", "frames_malformed"),
        (frames.frame([2, "cancel", ["one"]]), "frames_malformed"),
        (frames.frame([1, 7, None, None]), "frames_malformed"),
        (frames.frame([0, 7, "status"]), "frames_malformed"),
        (frames.frame([0, "seven", "status", []]), "frames_malformed"),
        (struct.pack(">I", 90_000) + b"\x91" * 90_000, "frames_malformed"),
        (
            struct.pack(">I", 3_000_000) + b"\xdd" + struct.pack(">I", 2_999_995)
            + b"\xc0" * 2_999_995,
            "frames_malformed",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("where", ["before hello", "after hello", "in the middle of a bulk one"])
async def test_a_malformed_frame_closes_that_connection_with_an_error(path, attack, counter, where):
    async with daemon(path) as it:
        bystander = await Raw.connect(path)
        role = {"before hello": None, "after hello": "operator"}.get(where, "bulk")
        raw = await Raw.connect(path, role=role)
        raw.writer.write(attack)
        request_id, error, _ = await raw.answer()
        assert (request_id, error[1]) == (frames.CONNECTION_ID, "malformed")
        assert await raw.ended()
        raw.close()
        if where == "after hello":
            assert getattr(it.server.stats, counter) == 1
        bystander.writer.write(READY)
        assert await bystander.answer() == (7, None, True)
        bystander.close()
        assert not it.serving.done()


async def test_deep_nesting_in_parameters_is_an_invalid_argument(path):
    async with daemon(path):
        raw = await Raw.connect(path)
        nested = msgspec.Raw(b"\x91" * 50_000 + b"\xc0")
        body = b"\x94\x00\x07\xa6status" + bytes(nested)
        raw.writer.write(struct.pack(">I", len(body)) + body)
        _, error, _ = await raw.answer()
        assert error[1] in ("malformed", "invalid_argument")
        raw.close()
        await still_serves(path)


async def test_half_frames_wait_and_whole_ones_are_answered(path):
    async with daemon(path) as it:
        raw = await Raw.connect(path)
        for byte in READY:
            raw.writer.write(bytes([byte]))
            await raw.writer.drain()
        assert await raw.answer() == (7, None, True)
        raw.writer.write(READY + READY[:5])
        assert await raw.answer() == (7, None, True)
        await until(lambda: it.server.stats.unfinished_bytes_now == 5)
        raw.writer.write(READY[5:])
        assert await raw.answer() == (7, None, True)
        raw.writer.write(READY[:9])
        await until(lambda: it.server.stats.unfinished_bytes_now == 9)
        raw.close()
        await until(lambda: it.server.stats.unfinished_bytes_now == 0)


async def test_unfinished_frames_are_bounded_over_all_connections(path):
    async with daemon(path, unfinished_bytes_max=3_000_000) as it:
        peers = [await Raw.connect(path) for _ in range(4)]
        for peer in peers:
            peer.writer.write(struct.pack(">I", 2_000_000) + b"\x94" * 1_200_000)
        await until(lambda: it.server.stats.unfinished_bytes_refused >= 1)
        assert it.server.stats.unfinished_bytes_now <= 3_000_000
        await still_serves(path)
        for peer in peers:
            peer.close()


async def test_who_does_not_say_hello_is_sent_away(path):
    async with daemon(path, hello_seconds=0.02) as it:
        raw = await Raw.connect(path, role=None)
        raw.writer.write(b"\x00")
        assert (await raw.answer())[1][1] == "timed_out"
        assert await raw.ended()
        raw.close()
        raw = await Raw.connect(path, role=None)
        raw.writer.write(READY)
        assert (await raw.answer())[1][1] == "invalid_argument"
        assert await raw.ended()
        raw.close()
        assert it.server.stats.hello_timeouts == 1
        await until(lambda: it.server.stats.connections_now == 0)


async def test_connections_beyond_the_limit_are_refused_and_the_others_served(path):
    async with daemon(path, connections_max=10) as it:
        guests = [await Raw.connect(path) for _ in range(10)]
        flood = []
        for _ in range(2000):
            peer = socket.socket(socket.AF_UNIX)
            peer.settimeout(0)
            flood.append(peer)
            try:
                peer.connect(path)
            except BlockingIOError:
                peer.close()
            if len(flood) % 200 == 0:  # let the daemon see them
                await until(lambda: it.server.stats.connections_now == 10)
                for each in flood:
                    each.close()
                flood.clear()
        await until(lambda: it.server.stats.connections_refused > 0)
        raw = await Raw.connect(path, role=None)
        assert (await raw.answer())[:2][1][1] == "overloaded"
        raw.close()
        for guest in guests:
            guest.writer.write(READY)
            assert await guest.answer() == (7, None, True)
            guest.close()
        await until(lambda: it.server.stats.connections_now == 0)
        await still_serves(path)


async def test_unknown_methods_are_answered_and_the_connection_goes_on(path):
    async with daemon(path):
        raw = await Raw.connect(path)
        for method in ("nothing", "", "x" * 100_000, "hello", "__class__"):
            raw.writer.write(frames.request_frame(3, method, []))
            assert (await raw.answer())[1][1] == "unknown_method"
        raw.writer.write(frames.notification_frame("of a later version", []) + READY)
        assert await raw.answer() == (7, None, True)
        raw.close()


def strangers(**grants) -> RightsTable:
    return RightsTable(owners=frozenset(), **grants)


async def test_a_uid_without_any_right_is_refused_at_hello(path):
    async with daemon(path, rights=strangers()) as it:
        raw = await Raw.connect(path, role=None)
        raw.send_hello()
        assert (await raw.answer())[1][1] == "unauthorized"
        assert await raw.ended()
        raw.close()
        assert it.server.stats.requests_unauthorized == 1


async def test_a_reader_reads_and_may_do_nothing_else(path):
    ours, other = socket.socketpair()
    me = peer_of(ours)
    ours.close()
    other.close()
    async with daemon(path, rights=strangers(read=Grant(uids=frozenset({me.uid})))) as it:
        raw = await Raw.connect(path)
        raw.writer.write(READY)
        assert await raw.answer() == (7, None, True)
        for method, params in (
            ("add_remote_log_segment_metadata", api.RecordParams(b"r")),
            ("replace_assignment", api.AssignmentParams([], [])),
            ("drain", api.NoParams()),
        ):
            raw.writer.write(frames.request_frame(3, method, params))
            assert (await raw.answer())[1][1] == "unauthorized"
        raw.close()
        assert not it.operator.drained
        assert it.manager.announced == []


async def test_who_may_announce_nothing_closes_no_gate(path):
    """A reader's hello as another incarnation kept the broker's reads from being answered."""
    async with daemon(path, rights=strangers(read=Grant(uids=frozenset({os.geteuid()})))) as it:
        raw = await Raw.connect(path, role=None)
        raw.send_hello(
            "broker", part="metadata", cluster_id=CLUSTER, broker_id=BROKER, broker_incarnation=5
        )
        assert (await raw.answer())[1] is None
        raw.close()
        assert it.manager.incarnations == []


async def test_who_may_only_read_is_none_of_the_brokers_managers(path):
    """Stuck copies are ended where both are ours: a reader's word for it is worth nothing."""
    async with daemon(path, rights=strangers(read=Grant(uids=frozenset({os.geteuid()})))) as it:
        for part in ("metadata", "storage"):
            raw = await Raw.connect(path, role=None)
            raw.send_hello(
                "broker", part=part, cluster_id=CLUSTER, broker_id=BROKER, broker_incarnation=77
            )
            assert (await raw.answer())[1] is None
            assert not it.server.has_metadata_manager(77)
            assert not it.server.has_heard_storage_manager(77)
            raw.close()


async def test_a_writer_does_not_read_by_accident_of_the_fast_path(path):
    async with daemon(path, rights=strangers()) as it:
        assert it.manager.callers == []
    table = strangers(write=Grant(uids=frozenset({5})), admin=Grant(gids=frozenset({6})))
    assert table.rights_of(SocketPeer(pid=1, uid=5, gids=frozenset())) == {Right.READ, Right.WRITE}
    assert table.rights_of(SocketPeer(pid=1, uid=9, gids=frozenset({6}))) == set(Right)
    assert table.rights_of(SocketPeer(pid=1, uid=9, gids=frozenset({7}))) == frozenset()


async def test_ten_thousand_pipelined_requests_are_all_answered_in_order(path):
    async with daemon(path):
        raw = await Raw.connect(path)
        params = api.PartitionParams(api.Partition.of(ORDERS))
        raw.writer.write(
            b"".join(frames.request_frame(n, "is_ready", params) for n in range(2, 10_002))
        )
        for number in range(2, 10_002):
            assert await raw.answer() == (number, None, True)
        raw.close()


async def test_ten_thousand_pipelined_writes_are_bounded_and_each_is_answered(path):
    async with daemon(path, requests_per_connection_max=100) as it:
        raw = await Raw.connect(path)
        params = api.RecordParams(b"r")
        raw.writer.write(
            b"".join(
                frames.request_frame(n, "add_remote_log_segment_metadata", params)
                for n in range(2, 10_002)
            )
        )
        refused = {(await raw.answer())[0] for _ in range(9_900)}
        assert it.server.stats.requests_now == 100
        it.manager.release.set()
        done = {(await raw.answer())[0] for _ in range(100)}
        assert refused | done == set(range(2, 10_002))
        raw.close()


async def send_until_closed(peer, stream) -> None:
    with suppress(ConnectionError):
        await asyncio.get_running_loop().sock_sendall(peer, stream)


async def test_a_reader_that_does_not_read_is_not_read_either_and_memory_stays(path):
    async with daemon(path, buffered_bytes_max=1_000_000, slow_reader_seconds=0.5) as it:
        it.manager.records = [b"x" * 200_000]
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(0)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(peer, path)
        params = api.EpochOffsetParams(api.Partition.of(ORDERS), 5, 0)
        hello = api.HelloParams(1, "slow", "operator")
        await loop.sock_sendall(peer, frames.request_frame(1, "hello", hello))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        asked = b"".join(
            frames.request_frame(n, "next_segment_with_txn_index", params)
            for n in range(2, 100_002)
        )  # 20 GB of answers
        held = [0]

        def closed() -> bool:
            held.append(it.server.stats.unfinished_bytes_now)
            return it.server.stats.slow_readers_closed == 1

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send_until_closed(peer, asked))
            await until(closed)
        assert it.server.stats.slow_reader_pauses >= 1
        assert max(held) < 1_000_000 < len(asked)
        assert len(it.manager.callers) < 200
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert after - before < 100_000  # KiB
        peer.close()
        await still_serves(path)


async def test_a_slow_reader_that_does_read_gets_everything(path):
    async with daemon(path, buffered_bytes_max=100_000) as it:
        it.manager.records = [b"x" * 50_000]
        raw = await Raw.connect(path)
        params = api.EpochOffsetParams(api.Partition.of(ORDERS), 5, 0)
        raw.writer.write(
            b"".join(
                frames.request_frame(n, "next_segment_with_txn_index", params)
                for n in range(2, 1_002)
            )
        )
        await until(lambda: it.server.stats.slow_reader_pauses >= 1)
        for number in range(2, 1_002):
            assert (await raw.answer())[0] == number
        raw.close()


async def test_a_bulk_reader_that_does_not_read_is_closed(path):
    async with daemon(path, slow_reader_seconds=0.05) as it:
        bulk = FakeBulk(length=2**30, chunks=(b"x" * 2**20 for _ in range(2**10)))
        it.fetcher.make = lambda _start, _end: bulk
        peer = await Raw.connect(path, role="bulk")
        peer.writer.write(frames.request_frame(2, "fetch_log_segment", api.FetchParams(b"r", 0)))
        await until(lambda: it.server.stats.slow_readers_closed == 1)
        assert bulk.closed
        assert it.server.stats.requests_now == 0
        peer.close()


@pytest.mark.parametrize("source", ["chunks", "file"])
async def test_a_stop_does_not_wait_for_a_bulk_reader_that_does_not_read(path, tmp_path, source):
    length = 2**25
    async with daemon(path, slow_reader_seconds=60) as it:
        bulk = FakeBulk(length=length, chunks=(b"x" * 2**16 for _ in range(2**9)))
        if source == "file":
            big = tmp_path / "big"
            big.write_bytes(b"x" * length)
            bulk.file = (os.open(big, os.O_RDONLY), 0)
        it.fetcher.make = lambda _start, _end: bulk
        peer = await Raw.connect(path, role="bulk")
        peer.writer.write(frames.request_frame(2, "fetch_log_segment", api.FetchParams(b"r", 0)))
        await until(lambda: it.server.stats.bulk_bytes > 0)
        it.server.drain()
        assert await it.server.finish(30)
        assert it.server.stats.slow_readers_closed == 1
        assert bulk.closed
        peer.close()


# --- the socket's file


def test_a_path_of_more_than_107_bytes_is_refused_with_that_reason(tmp_path):
    path = str(tmp_path / ("x" * 108))
    with pytest.raises(ConfigError, match="more than the 107"):
        Listener(path, mode=0o660, group_gid=None)
    assert not any(tmp_path.iterdir())


def test_a_stale_socket_is_replaced_and_another_file_is_not(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    Listener(str(path), mode=0o660, group_gid=None).close()
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(ConfigError, match="not a socket"):
        Listener(str(path), mode=0o660, group_gid=None)
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.ENOSPC, InTheWay), (errno.ENFILE, InTheWay), (errno.EACCES, ConfigError)],
)
def test_a_shortage_is_no_mistake_of_the_configuration(tmp_path, monkeypatch, number, error):
    """systemd starts a daemon with a wrong configuration never again."""

    class Short(socket.socket):
        def bind(self, _address: object) -> None:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "socket", Short)
    with pytest.raises(error, match="cannot listen on"):
        Listener(str(tmp_path / "s"), mode=0o660, group_gid=None)


def test_closing_leaves_a_successors_socket_alone(tmp_path):
    path = tmp_path / "s"
    old = Listener(str(path), mode=0o660, group_gid=None)
    path.unlink()
    new = Listener(str(path), mode=0o660, group_gid=None)
    old.close()
    assert path.exists()
    new.close()
    assert not path.exists()
