"""Faults on the page are those that `status` tells."""

from typing import Any

import pytest

from rlmm_daemon.daemon.operator.page.wrong import Fault, faults
from rlmm_daemon.daemon.operator.standing import Standing
from tests.support.page import FOLLOWS, LEADS
from tests.unit.daemon.following.test_mapped import NEVER

SILENT = {"silent_seconds": 7.0, "trouble": "<b>refused"}


@pytest.fixture
async def brief(rig) -> Any:
    async with rig.manager(snapshots=NEVER) as manager:
        told = Standing(manager).brief()
        told["log"] |= {"open": True, "trouble": None}
        yield told


def test_a_daemon_that_is_well_has_none(brief):
    assert faults(brief, [{"silent_seconds": 0.1, "trouble": "an old one"}]) == []


@pytest.mark.parametrize(
    ("where", "key", "value", "said"),
    [
        ("", "draining", True, Fault("The daemon stops.")),
        ("log", "open", False, Fault("The event log is not open.", "rlmm doctor")),
        ("log", "failure", {"evidence": "it is cut", "command": "rlmm log recover"},
         Fault("it is cut", "rlmm log recover")),
        ("log", "unwritable", "no space", Fault("Writes are refused: no space", "rlmm doctor")),
        ("log", "warnings", ["it compacts"], Fault("it compacts", "rlmm doctor")),
        ("log", "quorum", LEADS,
         Fault("The quorum's leader, this replica, misses 2: 2 of 3 voters are heard, 2 decide.",
               "rlmm quorum describe")),
        ("paused", "trouble", "damaged", Fault("damaged", "rlmm status")),
        ("storage", "error", "403",
         Fault("The storage does not work as it should: 403", "rlmm doctor")),
        ("storage", "slow", "3 s", Fault("The storage is slow: 3 s.", "rlmm doctor")),
        ("storage", "other_daemon", "one more", Fault("one more", "rlmm status")),
        ("internal_errors", "count", 2, Fault("2 bugs were met, the last in admin: it broke")),
    ],
)  # fmt: skip
def test_each_fault_is_said_with_what_tells_more(brief, where, key, value, said):
    brief["internal_errors"]["last"] = {"where": "admin", "error": "it broke"}
    (brief[where] if where else brief)[key] = value
    assert faults(brief, []) == [said]


def test_a_follower_that_hears_its_leader_alone_misses_nobody(brief):
    brief["log"]["quorum"] = FOLLOWS
    assert faults(brief, []) == []


def test_a_log_that_does_not_answer_is_one_fault_however_many_partitions(brief):
    (only,) = faults(brief, [SILENT, {**SILENT, "silent_seconds": 90.0}])
    assert "2 metadata partitions: <b>refused" in only.text
    assert "1 min" in only.text
