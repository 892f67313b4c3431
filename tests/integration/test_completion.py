"""What a shell completes is asked of the daemon, in a second at most, and quietly."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from rlmm_daemon.cli import completion, main
from rlmm_daemon.domain.ids import SegmentId, TopicIdPartition, uuid_text
from tests.support.daemon_process import environment
from tests.support.stocked_daemon import Stocked


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch, it: Stocked) -> None:
    monkeypatch.setenv("RLMM_SOCKET", it.daemon.socket_path)
    monkeypatch.setattr(completion, "_SECONDS", 20.0)  # of a machine that is busy


def offered(*words: str, typed: str = "") -> list[str]:
    shell = ShellComplete(main, {}, "rlmm", "_RLMM_COMPLETE")
    return [each.value for each in shell.get_completions(list(words), typed)]


def test_partitions_topics_and_ids_are_those_that_the_daemon_knows(it: Stocked):
    for command in ("explain", "segments", "lookup", "fetch", "delete", "export"):
        assert offered(command) == ["orders-0", "orders-1"]
    assert offered("explain", typed="orders-1") == ["orders-1"]
    assert offered("explain", typed="x") == []
    assert offered("pause", typed="or") == ["orders"]
    topic_id = uuid_text(it.orders[0].topic_id)
    assert offered("purge") == offered("copy") == [topic_id]
    assert offered("explain", "--socket", "/nowhere") == []


def test_segments_are_those_of_the_partition_typed_before(it: Stocked):
    ids = sorted(uuid_text(each.metadata.segment_id) for each in it.copied(1))
    assert offered("fetch", "orders-1") == offered("delete", "orders-1") == ids
    assert offered("fetch", "orders-1", typed=ids[0][:10]) == ids[:1]
    assert offered("fetch", "nobodys-7") == []


def test_what_is_paused_can_be_resumed(it: Stocked):
    assert offered("resume") == []
    assert it.rlmm("pause", "orders", "--execute").exit_code == 0
    assert offered("resume") == ["orders"]


def test_a_name_that_is_no_topics_never_becomes_a_word_of_a_shell(it: Stocked):
    hostile = TopicIdPartition(it.orders[0].topic_id, "a\nplain,$(reboot)", 0)
    with it.broker() as broker:
        broker.on_partition_leadership_changes([hostile], [])
    assert offered("explain") == ["orders-0", "orders-1"]
    assert offered("pause") == ["orders"]


def test_no_more_are_offered_than_anybody_reads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(completion, "_OFFERED_MAX", 1)
    assert len(offered("explain")) == 1
    assert len(offered("fetch", "orders-0")) == 1


def completed(*words: str, path: str) -> subprocess.CompletedProcess[str]:
    line = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    own = {"_RLMM_COMPLETE": "bash_complete", "RLMM_SOCKET": path, **line}
    code = "import sys; from rlmm_daemon.cli import main; sys.argv[0] = 'rlmm'; main()"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment() | own, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_shell_hears_nothing_of_a_daemon_that_is_gone_or_does_not_answer(
    it: Stocked, tmp_path: Path
):
    silent = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(silent))
        listening.listen()
        for path in (str(silent), str(tmp_path / "nobody"), "/" + "x" * 200):
            ran = completed("rlmm", "explain", "", path=path)
            assert (ran.stdout.strip(), ran.stderr) == ("", "")
    ran = completed("rlmm", "explain", "orders-", path=it.daemon.socket_path)
    assert ran.stderr == ""
    assert set(ran.stdout.split()) <= {"plain,orders-0", "plain,orders-1"}


def test_an_unfinished_listing_offers_what_came(it: Stocked, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(completion, "monotonic", iter([0.0, 30.0]).__next__)
    first = offered("fetch", "orders-0")
    assert first == [uuid_text(SegmentId(it.copied(0)[0].metadata.segment_id))]
