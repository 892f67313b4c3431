"""`explain` from bare facts: the table is whole, texts are plain, times come from the facts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rlmm_daemon.daemon
from rlmm_daemon.core import phrases
from rlmm_daemon.core.explain.causes import CAUSES
from rlmm_daemon.core.explain.explanation import explain
from rlmm_daemon.core.explain.facts import CopyPhase, Facts
from rlmm_daemon.core.explain.verdict import Verdict
from rlmm_daemon.core.readiness.states import FAILURES, Failure, FailureReason, PartitionState
from rlmm_daemon.domain.ids import TopicId, TopicIdPartition

TP = TopicIdPartition(TopicId(bytes(range(16))), "orders", 0)
DAEMON = Path(rlmm_daemon.daemon.__file__).parent


def facts(**changes):
    told = {"selector": "orders-0", "partition": TP, "now_ms": 10_000, "metadata_partition": 7}
    return Facts(**{**told, **changes})


@pytest.mark.parametrize("state", PartitionState)
def test_every_state_is_explained(state):
    failure = Failure(FailureReason.LOG_CORRUPT, "here", 0)
    told = facts(state=state, failure=failure if state is PartitionState.FAILED else None)
    found = explain(told)
    assert found.sentence.endswith(".")
    assert found.next_command


@pytest.mark.parametrize("reason", FailureReason)
def test_every_failure_names_the_command_that_ends_it(reason):
    found = explain(facts(state=PartitionState.FAILED, failure=Failure(reason, "here", 4_000)))
    assert (found.verdict, found.cause) == (Verdict.FAILED, reason.value)
    assert found.next_command == FAILURES[reason].command.format(partition=7)
    assert "here" in found.evidence
    assert any("6 s ago" in line for line in found.evidence)


def test_a_failure_of_the_whole_log_comes_before_the_partitions_own():
    found = explain(
        facts(
            failure=Failure(FailureReason.CRASH_LOOP, "one", 0),
            whole_failure=Failure(FailureReason.LOG_MISSING, "all", 0),
        )
    )
    assert found.cause == "log_missing"


def test_the_last_cause_always_applies():
    assert CAUSES[-1].applies(facts())


def test_every_phase_that_the_copier_enters_has_its_words():
    entered = set()
    for name in ("copy_job.py", "upload.py"):
        text = (DAEMON / "copying" / name).read_text()
        entered |= set(re.findall(r'(?:_enter|entered)\("([^"]+)"\)', text))
    assert entered
    assert entered <= {phase.value for phase in CopyPhase}


def test_a_state_without_a_row_fails_the_build(tmp_path):
    program = (
        "import enum, sys\n"
        "import rlmm_daemon.core.explain.facts as facts\n"
        "members = {each.name: each.value for each in facts.CopyPhase}\n"
        "facts.CopyPhase = enum.Enum('CopyPhase', {**members, 'NEW': 'new'})\n"
        "import rlmm_daemon.core.explain.explanation\n"
    )
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(DAEMON.parent.parent)},
    )
    assert "AssertionError: every phase of a copy has its words" in done.stderr


def test_files_say_how_old_they_are():
    found = explain(facts(offline=True, facts_at_ms=4_000, gate_open=None, role=None))
    assert found.verdict is Verdict.UNKNOWN
    assert "6 s ago" in found.evidence[0]


def test_a_name_that_a_shell_would_read_is_replaced_by_its_id():
    odd = TopicIdPartition(TP.topic_id, "a; rm -rf", 0)
    assert phrases.argument(odd) == "AAECAwQFBgcICQoLDA0ODw-0"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (7_500, "2 h 5 min"), (90_000, "1 d 1 h")],
)
def test_durations_are_short(seconds, text):
    assert phrases.duration(seconds) == text


@pytest.mark.parametrize("at_ms", [-1, 10**18, 253_402_300_799_000])
def test_no_time_is_too_odd_to_show(at_ms):
    assert phrases.ago(at_ms, 0)
