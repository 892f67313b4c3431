"""A bundle's bounds: what is too long is cut, what fails or hangs leaves a word."""

import os
import threading
from pathlib import Path

from rlmm_daemon.domain.errors import NotReady
from rlmm_daemon.offline.support import bundle, host
from rlmm_daemon.offline.support.bundle import Step, gather, index


def step(tell, **how) -> Step:
    return Step(name="a.txt", about="what it is", tell=tell, **how)


def test_what_is_too_long_is_cut_at_a_line_at_the_end_that_matters(monkeypatch):
    monkeypatch.setattr(bundle, "FILE_BYTES_MAX", 12)
    text = "one 1\ntwo 2\nthree 3\n"
    (head,) = gather([step(lambda: text)], ())
    assert head.text == "one 1\ntwo 2"
    assert head.trouble is not None
    assert head.trouble.startswith("cut: the first")
    (tail,) = gather([step(lambda: text, keep="tail")], ())
    assert tail.text == "three 3\n"


def test_all_of_it_is_bounded(monkeypatch):
    monkeypatch.setattr(bundle, "BUNDLE_BYTES_MAX", 10)
    entries = gather([step(lambda: "12345678\n")] * 3, ())
    assert sum(entry.size for entry in entries) <= 10


def test_a_key_that_was_cut_in_the_midst_is_hidden(monkeypatch):
    key = "-----BEGIN PRIVATE KEY-----\n" + "q83vEjRWeJ\n" * 9 + "-----END PRIVATE KEY-----\n"
    monkeypatch.setattr(bundle, "FILE_BYTES_MAX", len(key) - 40)
    for keep in ("head", "tail"):
        (entry,) = gather([step(lambda: f"{key}", keep=keep)], ())
        assert entry.text is not None
        assert "q83vEjRWeJ" not in entry.text


def test_what_fails_or_hangs_leaves_a_word_and_keeps_nothing_back():
    let_go = threading.Event()

    def fails() -> str:
        raise NotReady("not yet; token=hunter2")

    def hangs() -> str:
        let_go.wait()
        return ""

    failed, hung, last = gather(
        [step(fails), step(hangs, seconds=0.05), step(lambda: "here\n")], ()
    )
    let_go.set()
    assert failed.trouble == "not yet; token=[hidden]"
    assert hung.trouble == "no answer within 0.05 s"
    assert last.text == "here\n"
    told = index([failed, hung, last], "head")
    assert told.splitlines()[0] == "head"
    assert "what it is (no answer within 0.05 s)" in told


def test_hostile_files_of_a_state_directory_hold_nothing_up_and_lead_nowhere(tmp_path: Path):
    """A name that is no text ended the command; a link led root to any file."""
    elsewhere, state = tmp_path / "elsewhere", tmp_path / "state"
    elsewhere.write_text("somebody's own")
    state.mkdir()
    (state / "link.json").symlink_to(elsewhere)
    os.mkfifo(state / "fifo.json")
    (state / os.fsdecode(b"na\nme\xff.json")).write_text("content")
    (state / "last.txt").write_text("the last")
    entries = gather(
        [
            step(lambda: host.small_files(str(state))),
            step(lambda: host.listing([str(state)])),
        ],
        (),
    )
    small, listed = (entry.text or "" for entry in entries)
    assert "somebody's own" not in small
    assert "== link.json: Too many levels of symbolic links" in small
    assert "== fifo.json: 0 bytes" in small
    assert "== na\\nme\\udcff.json: 7 bytes\ncontent" in small
    assert "the last" in small
    assert "/na\\nme\\udcff.json" in listed
    assert bundle.write(tmp_path / "a.tar.gz", entries, "head", at_seconds=1) > 0


def test_a_secret_of_several_lines_is_hidden_in_a_configuration_that_cannot_be_used():
    text = 'secret_key = """\nq83vEjRW\n"""\nhost = "here"\npassword = \'\'\'\nq83vEjRW\n'
    (entry,) = gather([step(lambda: text)], ())
    assert entry.text is not None
    assert "q83vEjRW" not in entry.text
    assert 'host = "here"' in entry.text
