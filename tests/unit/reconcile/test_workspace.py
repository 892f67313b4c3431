"""What a run works with is gone when it ends, and when it was killed, with the next run."""

import errno
import fcntl
import platform
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
    (dead / "work" / ".alive").write_text(platform.node())
    (dead / "audit.jsonl").touch()
    with workspace.kept(tmp_path / "living") as living:
        assert not (dead / "work").exists()
        assert (dead / "audit.jsonl").exists()
        with workspace.kept(tmp_path / "beside"):
            assert living.exists()


def test_another_machines_is_left_to_it(tmp_path: Path) -> None:
    work = tmp_path / "elsewhere" / "work"
    work.mkdir(parents=True)
    (work / ".alive").write_text(f"not-{platform.node()}")
    with workspace.kept(tmp_path / "here"):
        assert work.exists()


def test_a_run_goes_on_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    with workspace.kept(tmp_path / "one") as work, workspace.kept(tmp_path / "two"):
        assert work.exists()
    assert not work.exists()
