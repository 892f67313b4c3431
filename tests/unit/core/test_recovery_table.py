"""The operator's table of failures, held against what the daemon names."""

from pathlib import Path

import pytest

from rlmm_daemon.core.readiness import FAILURES, FailureReason

REPOSITORY = Path(__file__).parents[3]
ROWS = [
    line
    for line in (REPOSITORY / "docs" / "recovery.md").read_text().splitlines()
    if line.startswith("| `")
]


@pytest.mark.parametrize("reason", list(FailureReason))
def test_a_failure_stands_in_the_operators_table_with_the_command_that_it_names(reason):
    rows = [row for row in ROWS if row.startswith(f"| `{reason.value}`")]
    command = FAILURES[reason].command.format(partition="N")
    assert any(f"`{command}`" in row for row in rows), command


def test_the_table_names_no_failure_that_there_is_not():
    assert {row.split("`")[1] for row in ROWS} == {reason.value for reason in FailureReason}


@pytest.mark.parametrize("reason", [FailureReason.LOG_MISSING, FailureReason.LOG_CORRUPT])
def test_a_loss_is_accepted_after_everything_else_was_tried(reason):
    (row,) = [row for row in ROWS if row.startswith(f"| `{reason.value}`")]
    assert row.rindex("`rlmm ") == row.index("`rlmm partition accept-loss")


def test_the_readme_leads_to_the_table():
    assert "docs/recovery.md" in (REPOSITORY / "README.md").read_text()
