"""A broker's writes on the socket: begun in the read callback, answered by a call."""

from contextlib import asynccontextmanager

from rlmm_daemon.codec import api, frames, records
from rlmm_daemon.core.fold.outcome import Applied, Rejected
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.domain.errors import IllegalTransition, OutcomeUnknown
from tests.unit.daemon.socket.fakes import BROKER, CLUSTER, ORDERS, Raw, daemon, segment, until

ADD = "add_remote_log_segment_metadata"


def value(number):
    return records.encode(segment(number))


def add(number):
    return frames.request_frame(number, ADD, api.RecordParams(value(number)))


def applied(number):
    return Applied(value(number), ORDERS, None)


@asynccontextmanager
async def broker(path):
    raw = await Raw.connect(path, role=None)
    try:
        raw.send_hello(
            "broker", part="metadata", cluster_id=CLUSTER, broker_id=BROKER, broker_incarnation=1
        )
        assert (await raw.answer())[1] is None
        yield raw
    finally:
        raw.writer.transport.abort()


async def test_writes_are_answered_in_the_order_in_which_they_end(path):
    async with daemon(path) as it, broker(path) as raw:
        it.manager.begins = True
        raw.writer.write(b"".join(add(number) for number in (2, 3, 4)))
        await until(lambda: len(it.manager.begun) == 3)
        assert it.server.stats.requests_now == 3
        it.manager.begun[1].hear(applied(3))
        it.manager.begun[0].hear(applied(2))
        assert await raw.answer() == (3, None, None)
        assert await raw.answer() == (2, None, None)
        it.manager.begun[2].hear(applied(4))
        assert await raw.answer() == (4, None, None)
        assert it.server.stats.requests_now == 0
        assert it.server.stats.outcomes[ADD, "ok"] == 3


async def test_a_long_work_gives_way_to_a_look_up_and_a_lone_write_and_not_within_a_burst(
    path, monkeypatch
):
    gave_way: list[bool] = []
    monkeypatch.setattr(FairScheduler, "answered", lambda _: gave_way.append(True))
    async with daemon(path) as it, broker(path) as raw:
        it.manager.begins = True
        raw.writer.write(b"".join(add(number) for number in (2, 3, 4)))
        await until(lambda: len(it.manager.begun) == 3)
        gave_way.clear()
        for number in (2, 3):
            it.manager.begun[number - 2].hear(applied(number))
            assert await raw.answer() == (number, None, None)
        assert not gave_way
        it.manager.begun[2].hear(applied(4))
        assert await raw.answer() == (4, None, None)
        assert gave_way == [True]
        asks = api.PartitionParams(api.Partition.of(ORDERS))
        raw.writer.write(frames.request_frame(5, "is_ready", asks))
        await raw.answer()
        assert gave_way == [True, True]


async def test_a_repeat_and_a_refusal_are_answered_at_once(path):
    async with daemon(path) as it, broker(path) as raw:
        it.manager.begins = True
        it.manager.records.append(value(2))
        raw.writer.write(add(2))
        assert await raw.answer() == (2, None, None)
        it.manager.ready = False
        raw.writer.write(add(3))
        _, error, _ = await raw.answer()
        assert error[1] == "not_ready"
        assert it.server.stats.requests_now == 0
        assert it.server.stats.outcomes == {(ADD, "ok"): 1, (ADD, "not_ready"): 1}


async def test_what_the_apply_rejected_and_what_nobody_knows_are_errors(path):
    async with daemon(path) as it, broker(path) as raw:
        it.manager.begins = True
        raw.writer.write(add(2) + add(3))
        await until(lambda: len(it.manager.begun) == 2)
        it.manager.begun[0].hear(Rejected(value(2), ORDERS, IllegalTransition("no")))
        it.manager.begun[1].hear(OutcomeUnknown("who knows"))
        assert [(await raw.answer())[1][1] for _ in range(2)] == [
            "illegal_transition",
            "outcome_unknown",
        ]


async def test_a_cancelled_write_is_not_answered_and_its_number_is_free_again(path):
    async with daemon(path) as it, broker(path) as raw:
        it.manager.begins = True
        raw.writer.write(add(2) + frames.notification_frame("cancel", [2]) + add(2))
        await until(lambda: len(it.manager.begun) == 2)
        assert it.server.stats.requests_cancelled == 1
        it.manager.begun[0].hear(OutcomeUnknown("told to nobody"))
        it.manager.begun[1].hear(applied(2))
        assert await raw.answer() == (2, None, None)
        assert it.server.stats.requests_now == 0


async def test_a_number_in_flight_is_refused_a_second_time(path):
    async with daemon(path) as it, broker(path) as raw:
        it.manager.begins = True
        raw.writer.write(add(2) + add(2))
        _, error, _ = await raw.answer()
        assert error[1] == "invalid_argument"
        assert len(it.manager.begun) == 1


async def test_writes_count_against_the_limit_of_their_connection(path):
    async with daemon(path, requests_per_connection_max=2) as it, broker(path) as raw:
        it.manager.begins = True
        raw.writer.write(add(2) + add(3) + add(4))
        number, error, _ = await raw.answer()
        assert (number, error[1]) == (4, "overloaded")


async def test_a_peer_that_is_gone_is_forgotten_and_its_writes_go_on(path):
    async with daemon(path) as it, broker(path) as raw:
        it.manager.begins = True
        raw.writer.write(add(2) + add(3))
        await until(lambda: len(it.manager.begun) == 2)
        raw.writer.transport.abort()
        await until(lambda: it.server.stats.requests_now == 0)
        for append, number in zip(it.manager.begun, (2, 3), strict=True):
            append.hear(applied(number))
        assert it.server.stats.requests_now == 0


async def test_a_bug_in_a_write_ends_that_write_alone(path):
    async with daemon(path) as it, broker(path) as raw:
        it.manager.begins = it.manager.bug = True
        raw.writer.write(add(2))
        _, error, _ = await raw.answer()
        assert error[1] == "internal_error"
        it.manager.bug = False
        raw.writer.write(add(3))
        await until(lambda: len(it.manager.begun) == 1)
        it.manager.begun[0].hear(applied(3))
        assert await raw.answer() == (3, None, None)
        assert it.server.stats.requests_now == 0
        assert it.server.stats.outcomes["add_remote_log_segment_metadata", "internal_error"] == 1
        assert not it.serving.done()


async def test_a_bug_while_an_applied_write_is_answered_is_an_unknown_outcome(path):
    async with daemon(path) as it, broker(path) as raw:
        it.manager.begins = True
        raw.writer.write(add(2))
        await until(lambda: len(it.manager.begun) == 1)
        it.manager.begun[0].hear(object())  # type: ignore[arg-type]  # it must not raise
        number, error, _ = await raw.answer()
        assert (number, error[1]) == (2, "outcome_unknown")
        assert it.manager.bugs.counts == {"add_remote_log_segment_metadata": 1}
        assert not it.serving.done()
