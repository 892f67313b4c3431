"""The operator's runbook of failures, held against what the daemon names and what tests ended."""

import re
from pathlib import Path

import pytest

from rlmm_daemon.core.explain.runbook import RUNBOOK
from rlmm_daemon.core.readiness.states import FAILURES, FailureReason

REPOSITORY = Path(__file__).parents[4]
#: How failures of a real daemon were ended, step by step: what failed, and what was typed.
WALKS = REPOSITORY / "tests" / "integration" / "recovery_walks.txt"
STEP = re.compile(r"  (?P<cause>\w+): (?:by hand: (?P<hand>.+)|(?P<command>rlmm .+) -> \d+)")
STEPS = [step for line in WALKS.read_text().splitlines() if (step := STEP.fullmatch(line))]
#: Failures that need another program to be made: brokers without topic ids.
NOT_WALKED = {FailureReason.NO_TOPIC_ID}
#: A failure that `rlmm explain` calls otherwise.
REASONS = {"segments_held": "history_lost"}


def endings(cause: str) -> str:
    return " ".join(each.steps for each in RUNBOOK[cause].endings)


def advice(cause: str) -> str:
    return f"{RUNBOOK[cause].look} {endings(cause)}"


@pytest.mark.parametrize(
    "step", [s for s in STEPS if s["cause"] in RUNBOOK], ids=lambda s: s[0].strip()
)
def test_a_step_that_ended_a_failure_stands_in_the_runbook(step):
    said = advice(step["cause"])
    if step["command"]:
        # What this machine's names stand for is left out of the runbook.
        assert f"`{step['command'].split(' --config')[0]}" in said
    else:
        assert step["hand"].split()[-1] in said


@pytest.mark.parametrize("reason", sorted(set(FailureReason) - NOT_WALKED, key=str))
def test_a_failure_of_the_runbook_was_ended_by_a_walk(reason):
    walked = {REASONS.get(step["cause"], step["cause"]) for step in STEPS}
    assert reason.value in walked


@pytest.mark.parametrize("reason", list(FailureReason))
def test_a_failure_stands_in_the_runbook_with_the_command_that_it_names(reason):
    command = FAILURES[reason].command.format(partition="N")
    assert f"`{command}`" in advice(reason.value), command


def test_a_lost_log_is_given_up_after_everything_else_was_tried():
    steps = [each.steps for each in RUNBOOK["log_missing"].endings]
    assert [each for each in steps if "accept-loss" in each] == [steps[-1]]


@pytest.mark.parametrize("steps", [each.steps for each in RUNBOOK["log_corrupt"].endings])
def test_a_loss_is_accepted_after_everything_else_was_tried(steps):
    if "accept-loss" in steps:
        assert steps.rindex("`rlmm ") == steps.index("`rlmm partition accept-loss")


def test_the_readme_leads_to_the_runbook():
    assert "docs/runbook.md" in (REPOSITORY / "README.md").read_text()
