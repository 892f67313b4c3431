"""Each change of a metadata partition's state is told with its cause, and not for ever."""

from collections.abc import Sequence
from typing import Any, get_args

import pytest
import structlog

from rlmm_daemon.core.readiness.follower_inputs import Checked, Deed, Finding, Moved, Order
from rlmm_daemon.core.readiness.follower_roles import Following, Ready, Replaying, Starting, Stopped
from rlmm_daemon.core.readiness.states import Failure, FailureReason, PartitionState
from rlmm_daemon.daemon.base import state_log
from rlmm_daemon.daemon.base.state_log import LINES_MAX, SECONDS, StateLog
from rlmm_daemon.domain.ids import MetadataPartition
from tests.unit.daemon.events import TP, of, until

MOVED = Moved("the log lost its tail", None)


def told(caught: Sequence[Any]) -> list[Any]:
    return [line for line in caught if line["event"] == "partition.state"]


async def test_a_follower_tells_how_it_became_ready_and_why_it_failed(rig):
    with structlog.testing.capture_logs() as caught:
        async with rig.manager() as manager:
            manager.replace_assignment([TP], [])
            await until(lambda: manager.lookups.is_ready(TP))
    changes = [(line["before"], line["state"]) for line in told(caught)]
    assert changes[-1] == ("replaying", "ready")
    ready = told(caught)[-1]
    assert ready["metadata_partition"] == of(TP)
    assert (ready["cause"], ready["log_level"]) == ("what was read of the log was judged", "info")
    assert {line["log_level"] for line in told(caught)[:-1]} == {"debug"}


def test_every_input_has_its_words():
    every = {kind for inputs in (Order, Finding, Deed) for kind in get_args(inputs)}
    assert state_log._CAUSES.keys() == every


class Now:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def one(now: Now) -> StateLog:
    log = StateLog(MetadataPartition(7), now)
    log.changed(following(Starting()), Checked(), 0)
    return log


def following(role: Starting | Replaying | Ready) -> Following:
    return Following(partition=MetadataPartition(7), role=role)


def test_one_that_flaps_is_held_down_and_its_last_state_is_told_in_the_end(one, now):
    with structlog.testing.capture_logs() as caught:
        for _ in range(50):
            one.changed(following(Ready()), Checked(), 1)
            one.changed(following(Replaying()), MOVED, 1)
        one.changed(following(Ready()), Checked(), 1)
        assert len(told(caught)) < LINES_MAX
        one.looked(PartitionState.READY, None)
        assert len(told(caught)) < LINES_MAX
        now.seconds = SECONDS
        one.looked(PartitionState.READY, None)
    last = told(caught)[-1]
    assert (last["state"], last["left_out"] > 40) == ("ready", True)


def test_a_silence_and_its_end_are_told(one):
    with structlog.testing.capture_logs() as caught:
        one.changed(following(Ready()), Checked(), 1)
        one.looked(PartitionState.STALE, None)
        one.looked(PartitionState.STALE, None)
        one.looked(PartitionState.READY, None)
    (_, silent, heard) = told(caught)
    assert (silent["cause"], silent["log_level"]) == ("the log has been silent", "warning")
    assert (heard["before"], heard["cause"]) == ("stale", "the log is heard again")


def test_a_failure_is_an_error_with_its_reason_and_the_command_that_ends_it(one):
    failure = Failure(FailureReason.HISTORY_LOST, "3 events are missing", at_ms=0)
    lost = Following(partition=MetadataPartition(7), role=Stopped(started=True), failure=failure)
    with structlog.testing.capture_logs() as caught:
        one.changed(lost, MOVED, 5)
    (line,) = told(caught)
    assert (line["log_level"], line["reason"], line["evidence"]) == (
        "error",
        "history_lost",
        "3 events are missing",
    )
    assert line["command"] == failure.command(MetadataPartition(7))
