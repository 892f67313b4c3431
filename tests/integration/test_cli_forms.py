"""Every command answers in two forms: for people, and with `--json` for machines."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result

from rlmm_daemon.cli.group import COMMANDS
from rlmm_daemon.domain.ids import uuid_text
from tests.support.daemon_process import CONFIG
from tests.support.stocked_daemon import COUNT, Stocked, eventually, make

#: In this order: the last ones drop the fold of orders-0, which takes a moment.
#: Words in braces stand for the daemon's.
TWO_FORMS = (
    "status",
    "top --count 2 --every 0.1",
    "partitions",
    "partitions --users",
    "segments orders-0",
    "lookup orders-0 0 5",
    "explain orders-0",
    "explain orders-0 --offset 5",
    "tail",
    "cleanup",
    "purge {topic_id}",
    "forecast",
    "forecast orders",
    "pause orders",
    "resume orders",
    "snapshot now",
    "snapshot verify {state}",
    "snapshot show {snapshot}",
    "log verify {state}/log",
    "log repair",
    "log recover {number}",
    "explain orders-0 --state-dir {state}",
    "check-config {config}",
    "doctor --config {config}",
    "partition retry {number}",
    "partition end-hold {number}",
    "partition rebuild {number}",
)
#: One form is all there is, or what it needs is not here.
ONE_FORM = {
    "reconcile": "needs Spark, an extra",
    "export": "lines of JSON",
    "fetch": "bytes",
    "run": "goes on until it is stopped",
    "config": "prints TOML",
    "decode": "lines of JSON",
    "encode": "lines of records",
    "partition-of": "one number",
}
#: Another test holds both.
ELSEWHERE = {
    "copy": "integration/test_cli_forms.py",
    "delete": "integration/test_cli_forms.py",
    "drain": "integration/test_cli_changes.py",
    "quorum": "integration/test_quorum_processes.py",
    "setup": "integration/test_setup.py",
    "support-bundle": "integration/test_support_bundle.py",
    "storage": "s3/test_verify.py",
}


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stocked]:
    stocked = make(tmp_path_factory.mktemp("forms"))
    with stocked.daemon:
        stocked.stock()
        states = {"ready": COUNT}
        eventually(lambda: stocked.json("status")["metadata_partitions"] == states)
        yield stocked


def words_of(it: Stocked, line: str) -> list[str]:
    snapshots = sorted((it.state_dir / "snapshots").glob(f"{it.number(0)}-*.snapshot"))
    return line.format(
        topic_id=uuid_text(it.orders[0].topic_id),
        state=it.state_dir,
        snapshot=snapshots[-1] if snapshots else "",
        config=CONFIG,
        number=it.number(0),
    ).split()


def values(run: Result) -> list[object]:
    return [json.loads(line) for line in run.stdout.splitlines()]


def is_prose(text: str) -> bool:
    """Whether there is something, and something else than a JSON value in each line."""
    try:
        return bool(text.strip()) and not [json.loads(line) for line in text.splitlines()]
    except json.JSONDecodeError:
        return True


@pytest.mark.parametrize("line", TWO_FORMS)
def test_a_command_answers_people_and_machines(it: Stocked, line: str):
    words = words_of(it, line)
    # What is looked at around the daemon is this machine's, so it may be in trouble.
    codes = {0, 1} if words[0] == "doctor" else {0}
    for_people = it.rlmm(*words)
    assert for_people.exit_code in codes, for_people.output
    assert is_prose(for_people.stdout), for_people.output
    eventually(lambda: it.row(0), lambda row: row["state"] == "ready")
    for_machines = it.rlmm(*words, "--json")
    assert for_machines.exit_code == for_people.exit_code
    assert values(for_machines)


def test_a_copy_a_delete_and_a_drain_answer_people_and_machines(it: Stocked):
    segment = it.next(1)
    metadata = segment.metadata
    epochs = ",".join(f"{epoch}:{at}" for epoch, at in metadata.segment_leader_epochs.items())
    copy = [
        "copy", uuid_text(metadata.partition.topic_id), "orders-1",
        "--dir", str(Path(segment.stem).parent), "--start-offset", str(metadata.start_offset),
        "--end-offset", str(metadata.end_offset), "--epochs", epochs,
    ]  # fmt: skip
    for form in ([], ["--json"]):
        copied = it.rlmm(*copy, *form)
        assert copied.exit_code == 0, copied.output
        assert is_prose(copied.stdout) == (not form)
        (listed,) = (each for each in it.listed(1).values()
                     if each.start_offset == metadata.start_offset)  # fmt: skip
        segment_id = uuid_text(listed.segment_id)
        assert segment_id in copied.stdout
        deleted = it.rlmm("delete", "orders-1", segment_id, "--yes", *form)
        assert deleted.exit_code == 0, deleted.output
        assert is_prose(deleted.stdout) == (not form)
        assert segment_id in deleted.stdout
    drained = it.rlmm("drain")
    assert (drained.exit_code, drained.stdout) == (0, "draining\n")


def test_no_command_is_left_out():
    for name, path in ELSEWHERE.items():
        assert f'"{name}"' in (Path(__file__).parents[1] / path).read_text(), path
    shown = {line.split()[0] for line in TWO_FORMS}
    assert shown | set(ONE_FORM) | set(ELSEWHERE) == set(COMMANDS)
