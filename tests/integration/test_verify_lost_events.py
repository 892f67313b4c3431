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


def test_names_that_nobody_knows_are_told_as_such_and_not_as_damage(it: Stocked) -> None:
    """They were a row each among what is missing of segments, with advice between dashes."""
    (log, *_) = [path for path in it.daemon.remote.rglob("*.log") if "_rlmm" not in path.parts]
    for n in range(40):
        log.with_name(f"{log.name}.bak{n:02}").write_bytes(b"somebody's")
    run = tool(it, "storage", "verify")
    assert run.returncode == 0
    told = [line for line in run.stdout.splitlines() if "unknown_key" in line]
    assert len(told) == 1, run.stdout
    assert told[0].startswith("unknown_key: 40 objects of names that no segment's object has")
    first = log.relative_to(it.daemon.remote)
    assert f"the first {first}.bak" in told[0]
    assert "no part of a segment, and nothing is damaged by it" in told[0]
    assert "Of segments they agree." in run.stdout
    _, listed = verified(it)
    assert listed["counts"] == {"unknown_key": 40}
    assert {row["severity"] for row in listed["findings"]} == {"low"}
    assert {row["segment_id"] for row in listed["findings"]} == {None}
    log.unlink()
    run = tool(it, "storage", "verify")
    assert run.returncode == 1
    assert [line.split()[1] for line in run.stdout.splitlines() if line.startswith("high")] == [
        "missing_object"
    ]
