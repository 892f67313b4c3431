"""Bugs that one request meets behind the socket: what it is told, and that nobody else is hurt."""

import asyncio
from contextlib import aclosing

import pytest

from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.domain.errors import InternalError, NotReady, OutcomeUnknown, UnavailableError
from tests.support.memory_log import MemoryEventLog
from tests.unit.daemon.events import TP, copied, of, started, updated
from tests.unit.daemon.metadata.test_manager import ready


@pytest.fixture
async def manager(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        yield manager


async def test_a_bug_behind_the_hand_over_is_an_unknown_outcome(manager, monkeypatch):
    real = MemoryEventLog.begin_append

    def taken_and_then_a_bug(self, partition, value, _told):
        real(self, partition, value, lambda _: None)
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryEventLog, "begin_append", taken_and_then_a_bug)
        with pytest.raises(OutcomeUnknown, match="after the record was handed to the log"):
            await manager.events.add(started(1, 0, 9), Caller.BROKER)
        with pytest.raises(OutcomeUnknown):
            manager.events.begin_add(started(2, 10, 19), 30, lambda _: pytest.fail("told twice"))
    assert manager.bugs.counts == {"append": 2}
    # Their applies end their fates, so what comes next about them is judged by the fold.
    for number, first in ((1, 0), (2, 10)):
        await manager.events.add(started(number, first, first + 9), Caller.BROKER)
        await manager.events.update(updated(number), Caller.BROKER)
    assert manager.lookups.remote_log_segment_metadata(TP, 0, 15, Caller.BROKER) is not None


async def test_a_bug_while_a_lost_answer_is_looked_for_leaves_the_outcome_unknown(
    manager, monkeypatch
):
    def lost(_self, _partition, _value, told):
        told(OutcomeUnknown("the answer was lost"))

    async def bug(_self, _partitions):
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryEventLog, "begin_append", lost)
        patched.setattr(MemoryEventLog, "end_offsets", bug)
        with pytest.raises(OutcomeUnknown):
            await manager.events.add(started(1, 0, 9), Caller.BROKER, 0.2)
    assert manager.lookups.is_ready(TP)


async def read(manager, from_offset, at_first=lambda: None) -> None:
    async with aclosing(Operator(manager).tail(of(TP), from_offset, follow=False)) as events:
        async for event in events:
            if event.offset == 0:
                at_first()


async def test_a_tail_of_a_log_that_was_cut_off_says_so(rig, manager):
    for number in range(1, 9):
        await copied(manager, number, 10 * number, 10 * number + 9)
    fleet = manager.fleet
    follower = fleet.followers[of(TP)]
    async with follower.steady:  # the follower has not seen yet what happens to the log
        rig.store.truncate(of(TP), 2)
        with pytest.raises(NotReady, match="is not the log any more"):
            await read(manager, None)


async def test_a_tail_of_a_log_that_is_trimmed_while_it_is_read_says_so(rig, manager):
    for number in range(1, 400):
        await copied(manager, number, 10 * number, 10 * number + 9)
    with pytest.raises(NotReady, match="starts at 700"):
        await read(manager, 0, lambda: rig.store.trim(of(TP), 700))


def test_bugs_are_counted_and_their_tracebacks_bounded(capsys):
    now = [0.0]
    bugs = Bugs(clock=lambda: now[0])
    for _ in range(1_000):
        assert isinstance(bugs.met("status", ZeroDivisionError("a bug")), InternalError)
    assert bugs.counts == {"status": 1_000}
    assert capsys.readouterr().out.count("Traceback") <= 1
    now[0] = 3600.0
    facts = bugs.facts()
    assert facts["count"] == 1_000
    assert facts["last"] == {
        "where": "status", "error": "ZeroDivisionError: a bug", "seconds_ago": 3600.0
    }  # fmt: skip
    full = bugs.error_for("status", OSError(24, "Too many open files"))
    assert isinstance(full, UnavailableError)
    assert "Too many open files" in full.message
    assert bugs.counts == {"status": 1_000}
    assert bugs.met_after_append("append", asyncio.InvalidStateError()).code == OutcomeUnknown.code
