"""What root leaves among the daemon's files is the daemon's."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlmm_daemon.cli import main
from rlmm_daemon.offline import ownership
from tests.unit.offline.test_compacted_log import Home
from tests.unit.offline.test_log_moving import life

DAEMON = 64_000, 64_001


@pytest.fixture
def given(monkeypatch) -> dict[str, tuple[int, int]]:
    """What was given to whom, by name; the directories belong to the daemon."""
    found = dict[str, tuple[int, int]]()

    def chown(path: Path, uid: int, gid: int, *, follow_symlinks: bool) -> None:
        assert not follow_symlinks
        found[path.name] = uid, gid

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(ownership, "_ROOT", os.getuid())
    monkeypatch.setattr(os, "chown", chown)
    monkeypatch.setattr(ownership, "_owner", lambda _: DAEMON)
    return found


def test_what_a_seal_makes_is_the_daemons_to_read(tmp_path, given):
    home = Home(tmp_path)
    home.write(life(1))
    run = CliRunner().invoke(main, ["log", "seal", home.log])
    assert run.exit_code == 0, run.output
    assert set(given.values()) == {DAEMON}
    assert {"state.json", f"{2:020}.log"} <= given.keys()
    assert "lock" not in given, "it is as it was"


def test_what_has_another_name_elsewhere_is_given_to_nobody(tmp_path, given):
    """Whoever may write the directory could link a file of root's into it meanwhile."""
    (shared := tmp_path / "shared").mkdir()
    (tmp_path / "root's").write_text("")
    with ownership.given_to_owner(str(shared)):
        (shared / "linked").hardlink_to(tmp_path / "root's")
        (shared / "made").write_text("")
    assert given.keys() == {"shared", "made"}


def test_what_others_write_meanwhile_stays_theirs(tmp_path, given, monkeypatch):
    """`rlmm log seal /var/lib` is mistyped, and the broker's segments lie there, too."""
    (segment := tmp_path / "segment").write_text("")
    monkeypatch.setattr(ownership, "_ROOT", segment.stat().st_uid + 1)
    with ownership.given_to_owner(str(tmp_path)):
        segment.write_text("a record")
        (tmp_path / "next segment").write_text("")
    assert not given


def test_what_others_remove_meanwhile_ends_no_command(tmp_path, given, monkeypatch):
    """A broker deletes segments all along, where a directory was mistyped."""
    for name in ("first", "later"):
        (tmp_path / name).write_text("")
    state, looked = ownership._state, list[str]()

    def removing(path: Path) -> tuple[int, int, int]:
        looked.append(path.name)
        if looked.count(path.name) == {"first": 1, "later": 2}.get(path.name):
            path.unlink()
        return state(path)

    monkeypatch.setattr(ownership, "_state", removing)
    with ownership.given_to_owner(str(tmp_path)):
        (tmp_path / "made").write_text("")
    assert (looked.count("first"), looked.count("later")) == (1, 2)
    assert "made" in given


def test_only_root_gives_anything_away(tmp_path, given, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with ownership.given_to_owner(str(tmp_path)):
        (tmp_path / "made").write_text("")
    assert not given
