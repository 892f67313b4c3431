"""The operator's table of failures, held against what the daemon names."""

import re
from pathlib import Path

import pytest

from rlmm_daemon.core.explain.causes import CAUSES
from rlmm_daemon.core.readiness.states import FAILURES, FailureReason

REPOSITORY = Path(__file__).parents[3]
ROWS = [
    line
    for line in (REPOSITORY / "docs" / "recovery.md").read_text().splitlines()
    if line.startswith("| `")
]
#: How failures of a real daemon were ended, step by step: what failed, and what was typed.
WALKS = REPOSITORY / "tests" / "integration" / "recovery_walks.txt"
STEP = re.compile(r"  (?P<cause>\w+): (?:by hand: (?P<hand>.+)|(?P<command>rlmm .+) -> \d+)")
STEPS = [step for line in WALKS.read_text().splitlines() if (step := STEP.fullmatch(line))]
#: Failures that need another program to be made: brokers without topic ids.
NOT_WALKED = {FailureReason.NO_TOPIC_ID}
#: A failure that `rlmm explain` calls otherwise.
REASONS = {"segments_held": "history_lost"}


def rows_of(cause: str) -> list[str]:
    return [row for row in ROWS if row.startswith(f"| `{REASONS.get(cause, cause)}`")]


@pytest.mark.parametrize(
    "step", [s for s in STEPS if rows_of(s["cause"])], ids=lambda s: s[0].strip()
)
def test_a_step_that_ended_a_failure_stands_in_the_operators_table(step):
    rows = " ".join(rows_of(step["cause"]))
    if step["command"]:
        # What this machine's names stand for is left out of the table.
        assert f"`{step['command'].split(' --config')[0]}" in rows
    else:
        assert step["hand"].split()[-1] in rows


@pytest.mark.parametrize("reason", sorted(set(FailureReason) - NOT_WALKED, key=str))
def test_a_failure_of_the_operators_table_was_ended_by_a_walk(reason):
    walked = {REASONS.get(step["cause"], step["cause"]) for step in STEPS}
    assert reason.value in walked


@pytest.mark.parametrize("reason", list(FailureReason))
def test_a_failure_stands_in_the_operators_table_with_the_command_that_it_names(reason):
    rows = [row for row in ROWS if row.startswith(f"| `{reason.value}`")]
    command = FAILURES[reason].command.format(partition="N")
    assert any(f"`{command}`" in row for row in rows), command


def test_the_table_names_no_failure_that_there_is_not():
    tried_again = {row.split("`")[1] for row in ROWS if "(not a failure" in row}
    assert tried_again <= {cause.name for cause in CAUSES}
    failures = {row.split("`")[1] for row in ROWS} - tried_again
    assert failures == {reason.value for reason in FailureReason}


@pytest.mark.parametrize("reason", [FailureReason.LOG_MISSING, FailureReason.LOG_CORRUPT])
def test_a_loss_is_accepted_after_everything_else_was_tried(reason):
    (row,) = [row for row in ROWS if row.startswith(f"| `{reason.value}`")]
    assert row.rindex("`rlmm ") == row.index("`rlmm partition accept-loss")


def test_the_readme_leads_to_the_table():
    assert "docs/recovery.md" in (REPOSITORY / "README.md").read_text()
