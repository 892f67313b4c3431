"""What holds for all histories here: they are short, and take the ways of long ones too."""

import pytest

from rlmm_daemon.core.fold import common_events, copy_runs, segment_table


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
    monkeypatch.setattr(copy_runs, "COPIES_MIN", 2)
    for module in (segment_table, common_events):
        monkeypatch.setattr(module, "GENERATION", 5)
    monkeypatch.setattr(segment_table, "COPIED_MAX", 2)
