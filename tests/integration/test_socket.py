"""The real server on a real Unix socket, with both clients, on uvloop and on asyncio."""

# ruff: noqa: ARG005 - the fakes' makers keep their signature

import asyncio
import os
import stat
from pathlib import Path

import pytest
from crc32c import crc32c

from rlmm_daemon.client import AsyncClient, Client, ClientOptions, socket_path
from rlmm_daemon.codec import api, frames, records
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.crash_guard import PartitionCrash
from rlmm_daemon.daemon.socket import server
from rlmm_daemon.daemon.socket.listening import Listener
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    ConfigError,
    DaemonUnreachable,
    Draining,
    InTheWay,
    InvalidArgument,
    NotReady,
    OutcomeUnknown,
    Overloaded,
    ProtocolViolation,
    SegmentNotFound,
    StorageNotConfigured,
    StorageUnavailable,
    TimedOut,
)
from rlmm_daemon.domain.ids import MetadataPartition
from tests.unit.daemon.socket.fakes import (
    BROKER,
    CLUSTER,
    HANGS,
    ORDERS,
    FakeBulk,
    Raw,
    daemon,
    segment,
    until,
)

BROKER_OPTIONS = ClientOptions(
    role="broker", part="metadata", cluster_id=CLUSTER, broker_id=BROKER, broker_incarnation=77
)


def mode_of(path):
    return stat.S_IMODE(Path(path).stat().st_mode)


def files():
    return api.SegmentFiles("/a", "/b", "/c", "/d", b"0\n")


async def test_every_method_answers_through_the_async_client(path):
    async with daemon(path) as it, AsyncClient(path) as client:
        it.manager.release.set()
        started = segment(1)
        await client.add_remote_log_segment_metadata(started)
        assert it.manager.records == [records.encode(started)]
        await client.on_partition_leadership_changes([ORDERS], [])
        await client.on_stop_partitions([ORDERS])
        await client.replace_assignment([], [ORDERS])
        assert [kind for kind, *_ in it.manager.announced] == ["changes", "stop", "replace"]
        assert await client.remote_log_segment_metadata(ORDERS, 5, 150) == started
        assert await client.remote_log_segment_metadata(ORDERS, 6, 150) is None
        assert await client.highest_offset_for_epoch(ORDERS, 5) == 199
        assert await client.list_remote_log_segments(ORDERS) == [started]
        assert await client.remote_log_size(ORDERS, 5) == 12345
        assert await client.next_segment_with_txn_index(ORDERS, 5, 0) == started
        assert await client.is_ready(ORDERS) is True
        assert await client.copy_log_segment_data(started, files()) == b"custom"
        assert (await client.copy_segment(started, files())).segment_id == started.segment_id
        await client.delete_log_segment_data(started)
        await client.delete_segment(ORDERS, started.segment_id)
        assert await client.resolve("orders-0") == [ORDERS]
        assert await client.status() == {"state": "fine"}
        assert await client.partitions() == [{"partition": 1}]
        assert len([each async for each in client.user_partitions()]) == 2_500
        assert [each async for each in client.segments("orders-0")] == [started]
        assert [each async for each in client.export()] == [started]
        assert (await client.explain("orders-0"))["selector"] == "orders-0"
        assert (await client.explain("orders-0", 5, 150))["asked"] == [5, 150]
        assert [event.offset async for event in client.tail()] == [0, 1, 2]
        assert await client.snapshot_now(3) == [{"metadata_partition": 3}]
        assert await client.partition_retry(1) == {"done": 1}
        assert await client.partition_rebuild(1) == {"done": 1}
        assert await client.partition_accept_loss(everything=True) == {"everything": True}
        given_up = await client.partition_accept_loss(1, without_looking=True)
        assert given_up == {"everything": False, "unseen": True}
        assert await client.partition_end_hold(2) == {"executed": False, "holds": []}
        assert await client.log_recover(1) == {"recovered": 1, "executed": False}
        assert await client.log_repair() == {"done": None}
        await client.drain()
        assert it.operator.drained
        with pytest.raises(SegmentNotFound) as caught:
            await client.call("update_remote_log_segment_metadata", api.RecordParams(b"anything"))
        assert caught.value.fields == {"segment_id": "x"}


async def test_every_method_answers_through_the_blocking_client(path):
    def talk(started) -> None:
        with Client(path) as client:
            client.add_remote_log_segment_metadata(started)
            client.on_partition_leadership_changes([ORDERS], [])
            client.on_stop_partitions([ORDERS])
            client.replace_assignment([], [ORDERS])
            assert client.remote_log_segment_metadata(ORDERS, 5, 150) == started
            assert client.highest_offset_for_epoch(ORDERS, 5) == 199
            assert client.list_remote_log_segments(ORDERS, 5) == [started]
            assert client.remote_log_size(ORDERS, 5) == 12345
            assert client.next_segment_with_txn_index(ORDERS, 5, 0) == started
            assert client.is_ready(ORDERS) is True
            assert client.copy_log_segment_data(started, files()) == b"custom"
            assert client.copy_segment(started, files()).segment_id == started.segment_id
            client.delete_log_segment_data(started)
            client.delete_segment(ORDERS, started.segment_id)
            assert client.resolve("orders-0") == [ORDERS]
            assert client.status() == {"state": "fine"}
            assert client.partitions() == [{"partition": 1}]
            assert len(list(client.user_partitions("orders"))) == 2_500
            assert list(client.segments("orders-0")) == [started]
            assert list(client.export()) == [started]
            assert client.explain("x")["verdict"] == "ok"
            assert [event.offset for event in client.tail()] == [0, 1, 2]
            follower = client.tail(follow=True)
            assert [next(follower).offset for _ in range(3)] == [0, 1, 2]
            follower.close()
            assert client.snapshot_now() == [{"metadata_partition": None}]
            assert client.partition_retry(1) == {"done": 1}
            assert client.partition_rebuild(1) == {"done": 1}
            assert client.partition_accept_loss(1) == {"everything": False}
            given_up = client.partition_accept_loss(1, without_looking=True)
            assert given_up == {"everything": False, "unseen": True}
            assert client.partition_end_hold(execute=True) == {"executed": True, "holds": []}
            assert client.log_recover(3, execute=True) == {"recovered": 3, "executed": True}
            assert client.log_repair(2) == {"done": 2}
            client.drain()

    async with daemon(path) as it:
        it.manager.release.set()
        await asyncio.to_thread(talk, segment(1))
        await it.manager.cancelled.acquire()  # the tail that was followed ended with its asker


async def test_the_two_clients_have_one_method_for_each_row_of_the_table():
    for name in api.METHODS:
        assert callable(getattr(Client, name))
        assert callable(getattr(AsyncClient, name))


async def test_a_list_longer_than_a_page_comes_whole_and_in_order(path):
    async with daemon(path) as it, AsyncClient(path) as client:
        many = [segment(number) for number in range(1, 6000)]
        it.manager.records = [records.encode(each) for each in many]
        assert sum(map(len, it.manager.records)) > 2 * frames.PAGE_BYTES
        assert await client.list_remote_log_segments(ORDERS) == many
        assert [each async for each in client.segments("orders-0")] == many


# --- the socket's file


async def test_the_socket_is_made_with_its_mode_in_a_directory_that_is_made_too(tmp_path):
    path = str(tmp_path / "run" / "rlmm.sock")
    async with daemon(path, mode=0o640):
        assert mode_of(path) == 0o640
        assert mode_of(tmp_path / "run") == 0o755
    assert not any((tmp_path / "run").iterdir())


async def test_a_socket_on_which_a_daemon_answers_is_left_alone(path):
    async with daemon(path):
        with pytest.raises(InTheWay, match="another daemon answers"):
            Listener(path, mode=0o660, group_gid=None)
        async with AsyncClient(path) as client:
            assert await client.is_ready(ORDERS)


# --- hello


@pytest.mark.parametrize(
    ("hello", "name"),
    [
        ({"role": "broker"}, "invalid_argument"),
        ({"role": "king"}, "invalid_argument"),
        ({"role": "operator", "part": "engine"}, "invalid_argument"),
        ({"role": "operator", "protocol": 2}, "unsupported_protocol"),
        ({"role": "operator", "broker_id": 9}, "invalid_argument"),
        ({"role": "bulk", "cluster_id": "other"}, "invalid_argument"),
        (
            {"role": "broker", "part": "metadata", "cluster_id": CLUSTER, "broker_id": 2,
             "broker_incarnation": 1},
            "invalid_argument",
        ),
        (
            {"role": "broker", "part": "", "cluster_id": CLUSTER, "broker_id": 1,
             "broker_incarnation": 1},
            "invalid_argument",
        ),
    ],
)  # fmt: skip
async def test_a_hello_that_is_not_for_this_daemon_is_refused_and_closed(path, hello, name):
    async with daemon(path) as it:
        raw = await Raw.connect(path, role=None)
        raw.send_hello(**hello)
        request_id, error, _ = await raw.answer()
        assert (request_id, error[1]) == (1, name)
        assert await raw.ended()
        assert it.manager.incarnations == []
        assert it.server.stats.hello_refused == 1
        raw.close()


async def test_only_the_metadata_part_of_a_broker_brings_its_incarnation(path):
    storage = ClientOptions(
        role="broker", part="storage", cluster_id=CLUSTER, broker_id=1, broker_incarnation=78
    )
    async with daemon(path) as it:
        async with AsyncClient(path, storage), AsyncClient(path, BROKER_OPTIONS) as client:
            await client.remote_log_size(ORDERS, 5)
        async with AsyncClient(path) as client:
            await client.remote_log_size(ORDERS, 5)
        assert it.manager.incarnations == [77]
        assert it.manager.callers == [Caller.BROKER, Caller.OPERATOR]


async def test_another_incarnation_ends_the_connection_of_the_one_before(path):
    """It may be there all the same: then it connects again, and announces what it leads."""
    broker = {"part": "metadata", "cluster_id": CLUSTER, "broker_id": BROKER}
    async with daemon(path) as it, AsyncClient(path) as operator:
        assert await operator.is_ready(ORDERS)
        raw = await Raw.connect(path, role=None)
        raw.send_hello("broker", broker_incarnation=76, **broker)
        assert (await raw.answer())[1] is None
        async with AsyncClient(path, BROKER_OPTIONS) as client:
            await client.hello()
            request_id, error, _ = await raw.answer()
            assert (request_id, error[1]) == (frames.CONNECTION_ID, "not_ready")
            assert await raw.ended()
            assert await client.is_ready(ORDERS)
        raw.close()
        assert it.manager.incarnations == [76, 77]
        assert await operator.is_ready(ORDERS)


async def test_which_of_a_brokers_managers_are_ours_is_told_by_their_connections(path):
    storage = ClientOptions(
        role="broker", part="storage", cluster_id=CLUSTER, broker_id=1, broker_incarnation=77
    )
    async with daemon(path) as it:
        assert not it.server.has_metadata_manager(77)
        async with AsyncClient(path, BROKER_OPTIONS) as metadata:
            await metadata.hello()
            assert (it.server.has_metadata_manager(77), it.server.has_metadata_manager(78)) == (
                True,
                False,
            )
            assert not it.server.has_heard_storage_manager(77)
            async with AsyncClient(path, storage) as client:
                await client.hello()
            assert it.server.has_heard_storage_manager(77)
            assert not it.server.has_heard_storage_manager(78)
        await until(lambda: not it.server.has_metadata_manager(77))


async def test_until_the_cluster_is_known_methods_are_not_ready_and_status_answers(path):
    async with daemon(path, cluster_id=None) as it, AsyncClient(path, BROKER_OPTIONS) as client:
        with pytest.raises(NotReady):
            await client.remote_log_size(ORDERS, 5)
        with pytest.raises(NotReady):
            await client.replace_assignment([], [])
        assert await client.status() == {"state": "fine"}
        assert it.manager.incarnations == []
        it.server.identify(CLUSTER)
        assert await client.remote_log_size(ORDERS, 5) == 12345
        assert it.manager.incarnations == [77]


async def test_a_mismatch_found_later_closes_that_connection_and_no_other(path):
    async with daemon(path, cluster_id=None) as it, AsyncClient(path) as other:
        raw = await Raw.connect(path, role=None)
        raw.send_hello("broker", part="metadata", cluster_id="x", broker_id=1, broker_incarnation=1)
        _, error, _ = await raw.answer()
        assert error is None
        it.server.identify(CLUSTER)
        request_id, error, _ = await raw.answer()
        assert (request_id, error[1]) == (frames.CONNECTION_ID, "invalid_argument")
        assert await raw.ended()
        raw.close()
        assert await other.is_ready(ORDERS)
        assert it.manager.incarnations == []


async def test_a_storage_manager_need_not_know_its_cluster(path):
    """Kafka tells it the broker's id alone."""
    async with daemon(path):
        raw = await Raw.connect(path, role=None)
        raw.send_hello("broker", part="storage", broker_id=1, broker_incarnation=1)
        _, error, _ = await raw.answer()
        assert error is None
        raw.close()


async def test_what_is_sent_right_behind_hello_is_answered_after_it(path):
    async with daemon(path):
        raw = await Raw.connect(path, role=None)
        raw.send_hello()
        params = api.PartitionParams(api.Partition.of(ORDERS))
        raw.writer.write(b"".join(frames.request_frame(n, "is_ready", params) for n in (2, 3)))
        assert [(await raw.answer())[0] for _ in range(3)] == [1, 2, 3]
        raw.close()


# --- waiting


async def test_a_read_that_is_not_ready_is_answered_the_moment_it_becomes_so(path):
    async with daemon(path) as it, AsyncClient(path, BROKER_OPTIONS) as client:
        it.manager.ready = False
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(client.remote_log_size(ORDERS, 5))
            await it.manager.entered.acquire()
            assert it.server.stats.held_reads_now == 1
            assert it.server.stats.roles == {"broker": 1}
            it.manager.ready = True
            it.manager.becomes_ready.set()
            assert await asked == 12345
        assert it.server.stats.held_reads_now == 0
        assert it.server.stats.held_reads_answered == 1


async def refused_at_last(call) -> None:
    with pytest.raises(NotReady):
        await call


async def test_held_reads_are_bounded_and_the_next_is_refused_at_once(path):
    async with daemon(path, held_reads_max=1) as it, AsyncClient(path, BROKER_OPTIONS) as client:
        it.manager.ready = False
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(refused_at_last(client.remote_log_size(ORDERS, 5)))
            await it.manager.entered.acquire()
            with pytest.raises(NotReady) as caught:
                await client.remote_log_size(ORDERS, 5)
            assert caught.value.fields == {"state": "replaying", "lag": 7}
            it.manager.becomes_ready.set()
        assert it.server.stats.held_reads_refused == 1
        assert it.server.stats.held_reads_answered == 0


async def test_a_request_that_takes_too_long_is_timed_out_unless_the_method_knows_better(path):
    async with daemon(path) as it, AsyncClient(path) as client:
        with pytest.raises(TimedOut):
            await client.add_remote_log_segment_metadata(segment(), timeout_seconds=0.02)
        it.manager.handed_on = True
        with pytest.raises(OutcomeUnknown):
            await client.add_remote_log_segment_metadata(segment(), timeout_seconds=0.02)
        with pytest.raises(TimedOut):
            await client.delete_segment(ORDERS, HANGS, timeout_seconds=0.02)
        assert it.server.stats.requests_timed_out == 1


async def test_the_daemon_has_a_limit_of_its_own_on_time(path):
    async with daemon(path, request_seconds=0.02), AsyncClient(path) as client:
        with pytest.raises(TimedOut):
            await client.add_remote_log_segment_metadata(segment())


async def test_a_cancelled_call_is_cancelled_in_the_daemon(path):
    async with daemon(path) as it, AsyncClient(path) as client:
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(client.add_remote_log_segment_metadata(segment()))
            await it.manager.entered.acquire()
            asked.cancel()
        await it.manager.cancelled.acquire()
        await until(lambda: it.server.stats.requests_now == 0)
        assert it.server.stats.requests_cancelled == 1
        assert await client.is_ready(ORDERS)


async def test_a_peer_that_leaves_takes_its_requests_with_it(path):
    async with daemon(path) as it:
        raw = await Raw.connect(path)
        params = api.RecordParams(b"r")
        raw.writer.write(frames.request_frame(2, "add_remote_log_segment_metadata", params))
        await it.manager.entered.acquire()
        raw.close()
        await it.manager.cancelled.acquire()
        await until(lambda: it.server.stats.connections_now == 0)


async def test_requests_in_flight_are_limited_per_connection_and_in_all(path):
    async with (
        daemon(path, requests_per_connection_max=2, requests_max=3) as it,
        AsyncClient(path) as one,
        AsyncClient(path) as two,
    ):
        async with asyncio.TaskGroup() as tasks:
            waiting = [
                tasks.create_task(one.add_remote_log_segment_metadata(segment(n))) for n in (1, 2)
            ]
            for _ in waiting:
                await it.manager.entered.acquire()
            with pytest.raises(Overloaded):
                await one.add_remote_log_segment_metadata(segment(3))
            waiting.append(tasks.create_task(two.add_remote_log_segment_metadata(segment(4))))
            await it.manager.entered.acquire()
            with pytest.raises(Overloaded):
                await two.add_remote_log_segment_metadata(segment(5))
            assert await two.is_ready(ORDERS)
            it.manager.release.set()
        assert it.server.stats.requests_refused == 1
        assert it.server.stats.requests_refused_here == 1


async def test_draining_ends_new_work_and_lets_the_old_and_look_ups_go_on(path):
    async with daemon(path) as it, AsyncClient(path) as client:
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(client.add_remote_log_segment_metadata(segment(1)))
            await it.manager.entered.acquire()
            it.server.drain()
            with pytest.raises(Draining):
                await client.add_remote_log_segment_metadata(segment(2))
            assert await client.remote_log_size(ORDERS, 5) == 12345
            with pytest.raises(DaemonUnreachable):
                await AsyncClient(path).hello()
            assert not await it.server.finish(0.01)
            it.manager.release.set()
            await asked
        assert await it.server.finish(10)


A_SIZE = ("remote_log_size", api.EpochParams(api.Partition.of(ORDERS), 5))
A_MARK = ("put_remote_partition_delete_metadata", api.RecordParams(b"r"))


@pytest.mark.parametrize(("method", "params"), [A_SIZE, A_MARK])
async def test_a_bug_ends_its_request_as_internal_error_and_nothing_else(path, method, params):
    async with daemon(path) as it:
        raw, bystander = await Raw.connect(path), await Raw.connect(path)
        it.manager.bug = True
        raw.writer.write(frames.request_frame(2, method, params))
        assert (await raw.answer())[1][:2] == [207, "internal_error"]
        it.manager.bug = False
        for peer in (raw, bystander):
            peer.writer.write(frames.request_frame(3, *A_SIZE))
            assert await peer.answer() == (3, None, 12345)
            peer.close()
        assert it.manager.bugs.counts == {method: 1}
        assert it.server.stats.outcomes[method, "internal_error"] == 1
        assert not it.serving.done()


@pytest.mark.parametrize(("method", "params"), [A_SIZE, A_MARK])
async def test_a_fold_s_crash_that_a_request_meets_ends_the_server(path, method, params):
    with pytest.RaisesGroup(pytest.RaisesExc(PartitionCrash), flatten_subgroups=True):
        async with daemon(path) as it:
            raw = await Raw.connect(path)
            it.manager.bug = PartitionCrash(MetadataPartition(1))
            raw.writer.write(frames.request_frame(2, method, params))
            raw.close()
            await asyncio.wait({it.serving})


async def test_a_bug_behind_a_bulk_read_ends_that_read_and_its_connection_goes_on(path):
    async with daemon(path) as it:
        raw = await Raw.connect(path, role="bulk")

        def make(_start, _end):
            raise ZeroDivisionError("a bug")

        it.fetcher.make = make
        for number in (2, 3):
            raw.writer.write(
                frames.request_frame(number, "fetch_log_segment", api.FetchParams(b"r", 0))
            )
            answered, error, _ = await raw.answer()
            assert (answered, error[1]) == (number, "internal_error")
        raw.close()
        assert it.server.stats.requests_now == 0
        assert not it.serving.done()


async def test_a_bug_in_the_middle_of_a_bulk_answer_ends_that_connection_alone(path):
    async with daemon(path) as it:
        raw = await Raw.connect(path, role="bulk")
        bulk = FakeBulk(length=10, chunks=[b"12345", ZeroDivisionError("a bug")])
        it.fetcher.make = lambda _start, _end: bulk
        raw.writer.write(frames.request_frame(2, "fetch_log_segment", api.FetchParams(b"r", 0)))
        assert (await raw.answer())[1] is None
        assert await raw.reader.readexactly(5) == b"12345"
        assert await raw.ended()
        raw.close()
        assert bulk.closed
        assert it.manager.bugs.counts == {"fetch_log_segment": 1}
        assert not it.serving.done()


async def test_a_bug_at_hello_ends_that_connection_alone(path, monkeypatch):
    async with daemon(path) as it:
        with monkeypatch.context() as patched:
            patched.setattr(server, "introduce", lambda _params: 1 // 0)
            raw = await Raw.connect(path, role=None)
            raw.send_hello()
            assert (await raw.answer())[1][1] == "internal_error"
            assert await raw.ended()
            raw.close()
        (await Raw.connect(path)).close()
        assert not it.serving.done()


# --- bulk


@pytest.fixture
def log_file(tmp_path):
    file = tmp_path / "segment.log"
    file.write_bytes(os.urandom(3 * 1024 * 1024 + 17))
    return file


def ranged(file, *, crc=True):
    whole = file.read_bytes()

    def make(start, end):
        length = (len(whole) if end is None else end + 1) - start
        expected = crc32c(whole[start : start + length]) if crc else None
        return FakeBulk(length=length, crc32c=expected, file=(os.open(file, os.O_RDONLY), start))

    return make


async def test_ranges_of_a_file_arrive_as_they_are_one_after_the_other(path, log_file):
    whole = log_file.read_bytes()
    async with daemon(path) as it, AsyncClient(path) as client:
        it.fetcher.make = ranged(log_file)
        for start, end in ((0, None), (5, 1_500_000), (7, 7)):
            async with await client.fetch_log_segment(segment(), start, end) as reader:
                wanted = whole[start : None if end is None else end + 1]
                assert reader.length == len(wanted)
                assert await reader.read() == wanted
        async with await client.fetch_index(segment(), "OFFSET") as reader:
            assert b"".join([chunk async for chunk in reader]) == whole
        await until(lambda: it.fetcher.last is not None and it.fetcher.last.closed)
        assert it.server.stats.connections == 2  # the bulk connection was used four times


async def test_the_blocking_reader_is_a_file_and_an_iterator(path, log_file):
    whole = log_file.read_bytes()

    def talk() -> None:
        with Client(path) as client:
            with client.fetch_log_segment(segment()) as reader:
                assert reader.read(10) == whole[:10]
                assert b"".join(reader.chunks()) == whole[10:]
                assert reader.read(1) == b""
            with client.fetch_log_segment(segment(), 3) as reader:
                assert reader.read() == whole[3:]
            with client.fetch_index(segment(), "OFFSET") as reader:
                reader.read(1)  # and leaves the rest
            with client.fetch_log_segment(segment(), 9, 9) as reader:
                assert reader.read() == whole[9:10]

    async with daemon(path) as it:
        it.fetcher.make = ranged(log_file)
        await asyncio.to_thread(talk)


async def test_chunks_arrive_whole(path):
    async with daemon(path) as it, AsyncClient(path) as client:
        it.fetcher.make = lambda start, end: FakeBulk(length=6, chunks=(b"abc", b"", b"def"))
        async with await client.fetch_log_segment(segment()) as reader:
            assert await reader.read() == b"abcdef"


@pytest.mark.parametrize(
    "chunks", [(b"abc",), (b"abc", StorageUnavailable()), (b"abc", b"def", b"too much")]
)
async def test_an_answer_that_breaks_after_its_header_raises_and_is_no_end_of_stream(path, chunks):
    def talk() -> None:
        with Client(path) as client, pytest.raises(ProtocolViolation, match="short"):
            client.fetch_log_segment(segment()).read()

    async with daemon(path) as it, AsyncClient(path) as client:
        it.fetcher.make = lambda start, end: FakeBulk(length=10, chunks=chunks)
        with pytest.raises(ProtocolViolation, match="short"):
            async with await client.fetch_log_segment(segment()) as reader:
                await reader.read()
        await asyncio.to_thread(talk)
        assert it.server.stats.bulk_answers_broken == 2
        it.fetcher.make = lambda start, end: FakeBulk(length=2, chunks=(b"ok",))
        async with await client.fetch_log_segment(segment()) as reader:
            assert await reader.read() == b"ok"


async def test_a_file_that_became_shorter_breaks_the_answer(path, log_file):
    async with daemon(path) as it, AsyncClient(path) as client:
        make = ranged(log_file)
        os.truncate(log_file, 1_000_000)
        it.fetcher.make = make
        with pytest.raises(ProtocolViolation, match="short"):
            async with await client.fetch_log_segment(segment()) as reader:
                await reader.read()


async def test_bytes_that_differ_from_their_checksum_are_an_error(path):
    async with daemon(path) as it, AsyncClient(path) as client:
        it.fetcher.make = lambda start, end: FakeBulk(length=2, crc32c=1, chunks=(b"ok",))
        with pytest.raises(ChecksumMismatch):
            async with await client.fetch_log_segment(segment()) as reader:
                await reader.read()


async def test_without_storage_its_methods_say_so(path):
    async with daemon(path, storage=False), AsyncClient(path) as client:
        with pytest.raises(StorageNotConfigured):
            await client.fetch_log_segment(segment())
        with pytest.raises(StorageNotConfigured):
            await client.copy_segment(segment(), files())


async def test_bulk_methods_and_others_keep_to_their_connections(path):
    async with daemon(path):
        raw = await Raw.connect(path)
        params = api.FetchParams(b"r", 0)
        raw.writer.write(frames.request_frame(2, "fetch_log_segment", params))
        assert (await raw.answer())[1][1] == "invalid_argument"
        raw.close()
        raw = await Raw.connect(path, role="bulk")
        raw.writer.write(frames.request_frame(2, "status", api.NoParams()))
        assert (await raw.answer())[1][1] == "invalid_argument"
        raw.close()


# --- the clients


async def test_clients_connect_again_after_the_daemon_came_back(path):
    def look() -> int:
        return blocking.remote_log_size(ORDERS, 5)

    blocking, client = Client(path), AsyncClient(path)
    for _ in range(2):
        async with daemon(path):
            assert await client.remote_log_size(ORDERS, 5) == 12345
            assert await asyncio.to_thread(look) == 12345
    await client.aclose()
    blocking.close()


async def test_a_write_whose_connection_is_lost_has_an_unknown_outcome(path):
    def write() -> None:
        with Client(path) as client, pytest.raises(OutcomeUnknown):
            client.add_remote_log_segment_metadata(segment())

    async def write_too(client) -> None:
        with pytest.raises(OutcomeUnknown):
            await client.add_remote_log_segment_metadata(segment())

    async with asyncio.TaskGroup() as tasks, daemon(path) as it:
        tasks.create_task(asyncio.to_thread(write))
        tasks.create_task(write_too(AsyncClient(path)))
        await it.manager.entered.acquire()
        await it.manager.entered.acquire()


async def test_nobody_there_is_said_at_once(path):
    with pytest.raises(DaemonUnreachable):
        await AsyncClient(path).status()
    with pytest.raises(DaemonUnreachable):
        await asyncio.to_thread(Client(path).status)


async def test_a_daemon_that_never_answers_does_not_hang_its_clients(path):
    import socket  # noqa: PLC0415 - the only test that needs it

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        silent.listen()
        impatient = ClientOptions(timeout_seconds=0.01)
        with pytest.raises(DaemonUnreachable):
            await asyncio.to_thread(Client(path, impatient).hello)
        with pytest.raises(DaemonUnreachable):
            await AsyncClient(path, impatient).hello()


def test_the_socket_is_found_where_it_was_said_to_be(monkeypatch):
    monkeypatch.delenv("RLMM_SOCKET", raising=False)
    assert socket_path() == "/run/rlmm/rlmm.sock"
    monkeypatch.setenv("RLMM_SOCKET", "/tmp/a")
    assert socket_path() == "/tmp/a"
    assert socket_path("/tmp/b") == "/tmp/b"
    assert socket_path("/" + "x" * 106)
    with pytest.raises(ConfigError, match="108 bytes, more than the 107"):
        socket_path("/" + "x" * 107)


async def test_arguments_out_of_range_are_refused_and_the_connection_goes_on(path):
    async with daemon(path), AsyncClient(path) as client:
        for call in (
            client.remote_log_segment_metadata(ORDERS, -1, 0),
            client.remote_log_segment_metadata(ORDERS, 5, -1),
            client.call("remote_log_size", api.EpochParams(api.Partition(b"short", "t", 0), 5)),
            client.call("remote_log_size", api.EpochParams(api.Partition.of(ORDERS))),
            client.call("add_remote_log_segment_metadata", api.NoParams(5)),
        ):
            with pytest.raises(InvalidArgument):
                await call
        assert await client.is_ready(ORDERS)
