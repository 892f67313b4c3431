"""When `rlmm cleanup` says that something waits for somebody."""

from typing import Any

import pytest

from rlmm_daemon.cli.look.cleanup import _is_trouble

QUIET: dict[str, Any] = {"removals": [], "stuck": [], "errors": [], "observation": None}
LOOKED: dict[str, Any] = {"trouble": None, "topics": []}


@pytest.mark.parametrize(
    "changed",
    [
        {"removals": [{"held": True, "error": None}]},
        {"removals": [{"held": False, "error": "away"}]},
        {"errors": [{"partition": "p", "error": "AccessDenied"}]},
        {"stuck": [{"step": "unproven"}]},
        {"stuck": [{"step": "segment_held"}]},
        {"stuck": [{"step": "foreign_metadata_manager"}]},
        {"stuck": [{"step": "partition_failed"}]},
        {"left": [{"topic": "orders", "gone": True}]},
        {"left": [{"topic": "orders", "gone": False}]},
        {"left": [], "not_asked": 3},
        {"left": [], "not_asked": 0, "not_ready": [7]},
        {"observation": LOOKED | {"trouble": "a broker does not answer"}},
        {"observation": LOOKED | {"topics": [{"clock": "over_the_cap"}]}},
        {"observation": LOOKED | {"topics": [{"clock": "too_many_unknown"}]}},
        {"observation": LOOKED | {"topics": [{"clock": "never_seen_alive"}]}},
    ],
    ids=repr,
)
def test_what_waits_for_somebody_is_trouble(changed):
    assert _is_trouble(QUIET | changed)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"left": [], "not_asked": 0, "not_ready": []},
        {"removals": [{"held": False, "error": None}]},
        {"stuck": [{"step": "finish"}, {"step": "not_ours"}, {"step": "copy_may_be_ending"}]},
        {"observation": LOOKED | {"topics": [{"clock": "clock_runs"}]}},
    ],
    ids=repr,
)
def test_what_goes_on_by_itself_is_none(changed):
    assert not _is_trouble(QUIET | changed)
