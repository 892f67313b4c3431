"""What `rlmm log recover` shows of segments that came back."""

from typing import Any

import pytest

from rlmm_daemon.cli.mend.log import _show_recovery

ROW = {"partition": "t:orders-0", "segment_id": "s1", "start_offset": 10, "end_offset": 19}


def answer(*, executed: bool, next_command: str | None, **rows: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "put_back" if executed else "can_be_put_back": [],
        "not_whole": [],
        "came_back": [],
    }
    found |= {"ended" if executed else "can_be_ended": []} | rows
    common = {"executed": executed, "not_looked_at": 0, "next": next_command}
    return found | common


@pytest.mark.parametrize(
    ("executed", "word", "last"),
    [
        (False, "was deleted: can be ended", "Next: rlmm log recover 4 --execute"),
        (True, "deletion recorded again", "Next: rlmm partition accept-loss 4"),
    ],
)
def test_what_came_back_is_listed_with_what_becomes_of_it(capsys, executed, word, last):
    row = ROW | {"bytes": 7}
    there = row | {"segment_id": "s2", "reason": "deleted before, but there: .log"}
    rows = {"ended" if executed else "can_be_ended": [row], "came_back": [there]}
    accept = "rlmm partition accept-loss 4"
    _show_recovery(answer(executed=executed, next_command=accept, **rows), 4)
    shown = capsys.readouterr().out
    assert ("s1" in shown, word in shown) == (True, True)
    assert "deleted before, but there: .log" in shown
    assert shown.splitlines()[-1] == last
