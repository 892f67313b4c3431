"""Announcements of many user partitions: in steps, in order, and whole."""

import asyncio

import pytest

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.daemon.base.announcing import STEP, Announcing, pieces
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.daemon.following.follow_set import FollowSet
from rlmm_daemon.daemon.metadata.assignment import Assignment
from rlmm_daemon.domain.ids import TopicIdPartition
from tests.unit.daemon.events import TP

MANY = [TopicIdPartition(TP.topic_id, "many", number) for number in range(5 * STEP)]


def steps_of(name: str, count: int, seen: list[str]):
    for number in range(count):
        seen.append(f"{name} {number}")
        yield


async def test_what_comes_behind_a_long_announcement_waits_and_others_have_turns():
    seen: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        announcing = Announcing(FairScheduler(), tasks.create_task)
        assert announcing.begin(steps_of("long", 3, seen), short=False) is not None
        short = announcing.begin(steps_of("short", 1, seen), short=True)
        assert short is not None
        assert seen == []
        asyncio.get_running_loop().call_soon(seen.append, "another")
        assert await short is None
    assert seen.index("another") < seen.index("long 2")
    assert [each for each in seen if each != "another"] == ["long 0", "long 1", "long 2", "short 0"]
    assert announcing.begin(steps_of("at once", 1, seen), short=True) is None
    assert seen[-1] == "at once 0"


async def test_a_bug_in_an_announcement_ends_it_and_is_told_to_who_sent_it():
    def broken():
        yield
        raise ZeroDivisionError("planted")

    seen: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        announcing = Announcing(FairScheduler(), tasks.create_task)
        first = announcing.begin(broken(), short=False)
        then = announcing.begin(steps_of("then", 1, seen), short=True)
        assert first is not None
        assert then is not None
        assert isinstance(await first, ZeroDivisionError)
        assert await then is None
    assert seen == ["then 0"]


def test_an_announcement_in_steps_comes_to_the_same_as_one_at_once():
    changed: list[TopicIdPartition] = []
    assignment = Assignment(changed.extend)
    assignment.replace(MANY[: 3 * STEP], MANY[4 * STEP :])
    assert not set(MANY[3 * STEP : 4 * STEP]) & set(changed)
    changed.clear()
    followers, leaders = MANY[STEP : 3 * STEP], MANY[2 * STEP : 4 * STEP]
    for _ in assignment.replacing(leaders, followers, None):
        pass
    roles = dict.fromkeys(followers, False) | dict.fromkeys(leaders, True)
    assert dict(assignment.announced) == roles
    assert assignment.leads == len(leaders)
    assert sorted(changed) == sorted(set(MANY[:STEP] + MANY[3 * STEP :]))


def test_between_steps_what_stays_is_announced_and_the_gate_opens_last():
    assignment = Assignment(lambda _: None)
    assignment.hello(1)
    before, after = MANY[: 3 * STEP], MANY[2 * STEP :]
    assignment.replace(before, [])
    assignment.hello(2)
    count = 0
    for _ in assignment.replacing(after, [], 2):
        count += 1
        assert not assignment.gate_open
        assert assignment.announced.keys() >= set(before) & set(after)
    assert assignment.gate_open
    assert assignment.announced.keys() == set(after)
    assert count > len(MANY) // STEP


def test_an_announcement_of_an_incarnation_that_is_over_opens_no_gate():
    assignment = Assignment(lambda _: None)
    assignment.hello(1)
    steps = assignment.replacing(MANY, [], 1)
    next(steps)
    assignment.hello(2)
    for _ in steps:
        pass
    opened = [assignment.gate_open]
    assignment.replace([TP], [])
    assert [*opened, assignment.gate_open] == [False, True]
    assert [*assignment.announced] == [TP]


def test_what_was_followed_before_a_restart_is_until_the_broker_has_announced_all():
    follow_set = FollowSet(50, SystemClock(), on_demand_linger_seconds=1)
    follow_set.warm(MANY)
    every = follow_set.wanted()
    follow_set.announce([TP], {TP: True}, whole=False)
    assert follow_set.wanted() == every | {follow_set.of(TP)}
    follow_set.announce([], {TP: True}, whole=True)
    assert follow_set.wanted() == {follow_set.of(TP)}


@pytest.mark.parametrize("count", [0, 1, STEP, STEP + 1, 5 * STEP])
def test_pieces_are_the_whole_in_order(count: int):
    found = list(pieces(MANY[:count]))
    assert [each for piece in found for each in piece] == MANY[:count]
    assert all(0 < len(piece) <= STEP for piece in found)
