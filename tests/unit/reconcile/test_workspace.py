"""What a run works with is gone when it ends, and when it was killed, with the next run."""

from pathlib import Path

import pytest

from rlmm_daemon.reconcile import workspace


def test_it_is_gone_however_the_run_ends(tmp_path: Path) -> None:
    with workspace.kept(tmp_path / "one") as work:
        (work / "objects").mkdir()
    assert not work.exists()
    with pytest.raises(ValueError, match="x"), workspace.kept(tmp_path / "two") as work:
        raise ValueError("x")
    assert not work.exists()


def test_a_killed_runs_is_removed_by_the_next_and_a_living_ones_is_not(tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    (dead / "work" / "events").mkdir(parents=True)
    (dead / "work" / ".alive").touch()
    (dead / "audit.jsonl").touch()
    with workspace.kept(tmp_path / "living") as living:
        assert not (dead / "work").exists()
        assert (dead / "audit.jsonl").exists()
        with workspace.kept(tmp_path / "beside"):
            assert living.exists()
