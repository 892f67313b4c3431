"""What holds for all histories here."""

import pytest

from rlmm_daemon.core import copy_runs


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch):
    """Short histories go by columns too."""
    monkeypatch.setattr(copy_runs, "COPIES_MIN", 2)
