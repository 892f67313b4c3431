"""`rlmm storage verify` beside an event log that lost events: what it cannot vouch for it says."""

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.test_marker import tool
from tests.support.stocked_daemon import Stocked, eventually

#: Commands until a failure is ended; two or three are.
STEPS_MAX = 6


def head(it: Stocked) -> None:
    it.log_files(0)[0].unlink()


def middle(it: Stocked) -> None:
    it.log_files(0)[1].unlink()


def tail(it: Stocked) -> None:
    it.log_files(0)[-1].unlink()


def all_of_it(it: Stocked) -> None:
    shutil.rmtree(it.log_files(0)[0].parent)


def verified(it: Stocked) -> tuple[int, dict[str, Any]]:
    run = tool(it, "storage", "verify", "--json")
    assert run.stdout, run.stderr
    return run.returncode, json.loads(run.stdout)


@pytest.fixture
def of_three_files(it: Stocked) -> Stocked:
    for serial in range(2):
        assert it.daemon.stop() == 0
        assert it.rlmm("log", "seal", str(it.log_dir)).exit_code == 0
        it.start()
        it.copy_new(0, serial)
    assert it.daemon.stop() == 0
    assert len(it.log_files(0)) == 3
    code, told = verified(it)
    assert (code, told["lacking"], told["findings"]) == (0, {}, [])
    return it


@pytest.mark.parametrize("lose", [head, tail, all_of_it])
def test_a_log_that_lost_events_does_not_agree_with_the_storage(
    of_three_files: Stocked, lose: Callable[[Stocked], None]
) -> None:
    """Live segments were called orphans of low severity, with the exit code 0."""
    it = of_three_files
    number = it.number(0)
    lose(it)
    code, told = verified(it)
    assert code == 1
    assert [*told["lacking"]] == [str(number)]
    shown = tool(it, "storage", "verify")
    assert shown.returncode == 1
    assert f"Metadata partition {number}: the log lacks events" in shown.stdout

    # What an operator accepted is not raised again.
    it.start()
    at = eventually(lambda: it.row(0)["state"], lambda state: state in ("ready", "failed"))
    assert (at == "ready") == (lose is head), "the snapshot knows what the head held"
    walked = [] if at == "failed" else [it.rlmm("partition", "rebuild", str(number)).output]
    assert it.row(0)["state"] == "failed"
    while it.row(0)["state"] != "ready" and len(walked) < STEPS_MAX:
        _, *words = it.explain(0)["next_command"].split()
        yes = {"accept-loss": ["--yes"], "recover": ["--execute"]}.get(words[1], [])
        walked.append(it.rlmm(*words, *yes).output)
    assert it.row(0)["state"] == "ready", walked
    assert it.daemon.stop() == 0
    assert verified(it)[1]["lacking"] == {}


def test_a_log_whose_middle_is_gone_is_damaged(of_three_files: Stocked) -> None:
    middle(of_three_files)
    run = tool(of_three_files, "storage", "verify")
    assert run.returncode == 1
    assert f"rlmm log repair {of_three_files.number(0)}" in run.stderr
