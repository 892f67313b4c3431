"""The line of `rlmm status` on a quorum's log: this daemon's replica, and whom it hears."""

import pytest

from rlmm_daemon.cli.look.status import _quorum

FOLLOWER = {
    "replica": 1,
    "role": "follower",
    "epoch": 4,
    "leader": 2,
    "voters": [1, 2, 3],
    "heard": [1, 2],
    "needed": 2,
    "end": 1_290,
    "committed": 1_288,
    "why": None,
}
ENDS = "(voters 1, 2, 3; 2 decide); committed to 1,288, its log ends at 1,290"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            FOLLOWER,
            f"replica 1, follower in epoch 4; replica 2 leads; hears 1, 2 {ENDS}",
        ),
        (
            FOLLOWER | {"role": "observer", "leader": None, "heard": []},
            f"replica 1, observer in epoch 4; nobody leads; hears none {ENDS}",
        ),
        ({"role": None, "why": "it starts"}, "this replica is not open: it starts"),
    ],
)
def test_it_says_who_leads_and_whom_it_hears(told, said):
    assert _quorum(told) == {"quorum": said}


def test_another_kind_of_log_has_no_such_line():
    assert _quorum(None) == {}
