"""`rlmm quorum format`: the directory of a new replica, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rlmm_daemon.cli import main

CLUSTER = "c2lkZWNhci1kZXYta2Fma2"
ONE, TWO = "AQEBAQEBAQEBAQEBAQEBAQ", "AgICAgICAgICAgICAgICAg"
LIST = ("--voter", f"1@127.0.0.1:9391:{ONE}", "--voter", f"2@127.0.0.1:9392:{TWO}")


@pytest.fixture
def here(tmp_path: Path) -> str:
    return str(tmp_path / "quorum")


def formatted(directory: str, *words: str, node_id: int = 1) -> Any:
    common = ("--cluster-id", CLUSTER, "--node-id", str(node_id))
    return CliRunner().invoke(main, ["quorum", "format", directory, *common, *words])


def told(directory: str, *words: str, node_id: int = 1) -> dict[str, Any]:
    run = formatted(directory, *words, "--json", node_id=node_id)
    assert run.exit_code == 0, run.output
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer


def test_it_says_what_it_would_write_and_writes_that(here):
    dry = told(here, *LIST)
    assert (dry["written"], Path(here).exists()) == (False, False)
    done = told(here, *LIST, "--execute")
    assert done == dry | {"written": True}
    files = {str(file.relative_to(here)) for file in Path(here).rglob("*") if file.is_file()}
    assert files - {".lock"} == set(done["files"])
    assert f"directory.id={ONE}" in (Path(here) / "meta.properties").read_text()


def test_each_machine_of_one_list_makes_the_same_log(here):
    first, second = told(here, *LIST), told(here, *LIST, node_id=2)
    assert first["topic_id"] == second["topic_id"]
    assert (first["directory_id"], second["directory_id"]) == (ONE, TWO)
    third = ("--voter", "3@127.0.0.1:9393:AwMDAwMDAwMDAwMDAwMDAw")
    assert told(here, *LIST, *third)["topic_id"] != first["topic_id"], "another list, another log"


def test_a_quorum_that_is_formatted_anew_has_another_log(here):
    alone = ("--standalone", "--listen", "127.0.0.1:9391")
    assert told(here, *alone)["topic_id"] != told(here, *alone)["topic_id"]


def test_an_observer_is_told_whose_log_it_joins(here):
    topic_id = told(here, *LIST)["topic_id"]
    run = formatted(here, "--join", node_id=4)
    assert (run.exit_code, "--join needs --topic-id" in run.stderr) == (1, True)
    joined = told(here, "--join", "--topic-id", topic_id, "--execute", node_id=4)
    assert (joined["topic_id"], joined["voters"]) == (topic_id, [])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "one of --standalone, --voter ... and --join"),
        (("--standalone", "--join"), "one of --standalone, --voter ... and --join"),
        (("--standalone",), "--standalone needs --listen"),
        ((*LIST, "--listen", "a:1"), "--listen goes with --standalone"),
        ((*LIST, "--voter", f"1@127.0.0.1:9399:{TWO}"), "two --voter have one id"),
        (("--standalone", "--listen", "a"), "is not HOST:PORT"),
    ],
)
def test_wrong_usage_is_told(here, words, why):
    run = formatted(here, *words)
    assert (run.exit_code, why in run.stderr) == (2, True), run.stderr


@pytest.mark.parametrize(
    ("words", "node_id", "why"),
    [
        (LIST, 3, "no --voter has the id 3"),
        ((*LIST, "--directory-id", TWO), 1, "is replica 1's, and --directory-id"),
        (("--join", "--topic-id", ONE, "--directory-id", "A" * 22), 1, "a directory has one"),
    ],
)
def test_a_list_without_this_directory_is_refused(here, words, node_id, why):
    run = formatted(here, *words, "--execute", node_id=node_id)
    assert (run.exit_code, why in run.stderr) == (1, True), run.stderr
    assert not Path(here).exists()


def test_a_directory_is_formatted_once(here):
    assert formatted(here, *LIST, "--execute").exit_code == 0
    for words in ((), ("--execute",)):
        run = formatted(here, *LIST, *words)
        assert (run.exit_code, "is formatted already" in run.stderr) == (78, True)
