"""Each command that looks, against a real daemon: table, `--json`, forms of names, exit codes."""

import base64
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlmm_daemon.cli import main
from rlmm_daemon.cli.group import COMMANDS
from rlmm_daemon.codec import json as record_json
from rlmm_daemon.codec import records
from rlmm_daemon.domain.ids import uuid_text
from tests.support.daemon_process import CONFIG, environment
from tests.support.stocked_daemon import COUNT, Stocked, eventually, make, ran, topic_id

#: For what a process does by itself; nothing here takes a tenth of it.
PATIENCE_SECONDS = 40


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stocked]:
    stocked = make(tmp_path_factory.mktemp("cli"))
    with stocked.daemon:
        stocked.stock()
        # The cleaner follows the partition that holds no events, too.
        states = {"ready": COUNT}
        eventually(lambda: stocked.json("status")["metadata_partitions"] == states)
        yield stocked


def ids(it: Stocked, partition: int) -> list[str]:
    return [uuid_text(each.metadata.segment_id) for each in it.copied(partition)]


def test_status_names_what_there_is(it: Stocked):
    answer = json.loads(ran(it, "status", "--json"))
    plugins = {"metadata": "rlmm-client"}
    broker = {"announced": True, "leads": 2, "follows": 0, "plugins": plugins}
    assert answer["broker"] == broker
    assert answer["segments"]["COPY_SEGMENT_FINISHED"] == 6
    assert answer["metadata_partitions"] == {"ready": COUNT}
    said = ran(it, "status")
    assert "6 finished" in said
    for part in (" private", " mapped", " per segment"):
        assert part in said, part


def test_partitions_shows_both_kinds(it: Stocked):
    rows = json.loads(ran(it, "partitions", "--json"))
    assert {row["metadata_partition"] for row in rows} >= {it.number(0), it.number(1)}
    assert {row["state"] for row in rows} == {"ready"}
    lines = ran(it, "partitions", "--users", "--json").splitlines()
    users = [json.loads(line) for line in lines]
    assert [(row["topic"], row["partition"], row["role"]) for row in users] == [
        ("orders", 0, "leader"),
        ("orders", 1, "leader"),
    ]
    assert [row["metadata_partition"] for row in users] == [it.number(0), it.number(1)]
    assert all(row["segments"]["COPY_SEGMENT_FINISHED"] == 3 for row in users)
    sizes = sum(each.metadata.segment_size_bytes for each in it.copied(0))
    assert users[0]["size_bytes"] == sizes
    for topic in ("orders", topic_id(it)):
        assert ran(it, "partitions", "--users", "--topic", topic).endswith("2 user partitions\n")
    assert ran(it, "partitions", "--users", "--topic", "no").endswith("0 user partitions\n")
    ran(it, "partitions", "--topic", "orders", code=2)


@pytest.mark.parametrize("form", ["{name}", "{id}-0", "{id}:{name}"])
def test_a_partition_may_be_named_in_each_form(it: Stocked, form: str):
    selector = form.format(name="orders-0", id=topic_id(it))
    lines = ran(it, "segments", selector, "--json").splitlines()
    found = [json.loads(line)["data"]["remoteLogSegmentId"]["id"] for line in lines]
    assert sorted(found) == sorted(ids(it, 0))
    assert json.loads(ran(it, "explain", selector, "--json"))["cause"] == "ready"
    assert json.loads(ran(it, "lookup", selector, "0", "5", "--json"))["data"]["startOffset"] == 0


def test_a_topic_id_alone_lists_every_partition_and_is_too_much_for_one(it: Stocked):
    lines = ran(it, "segments", topic_id(it), "--json").splitlines()
    assert len(lines) == 6
    assert "names 2 partitions" in it.rlmm("lookup", topic_id(it), "0", "5").stderr


def test_what_is_not_there_is_exit_code_1_and_says_so(it: Stocked):
    assert ran(it, "lookup", "orders-0", "9", "5", "--json", code=1) == "null\n"
    assert it.rlmm("segments", "nothing-0").exit_code == 1
    error = json.loads(it.rlmm("segments", "nothing-0", "--json").stderr)
    assert error["error"] == "segment_not_found"
    missing = it.rlmm("fetch", "orders-0", "A" * 22, "-o", "-")
    assert (missing.exit_code, "has no segment" in missing.stderr) == (1, True)
    assert ran(it, "explain", "orders-0", "--offset", "999999", code=1)


def test_export_and_tail_are_lines_that_encode_reads(it: Stocked):
    lines = ran(it, "export", "--format", "jsonl").splitlines()
    assert len(lines) == 6
    listed = {records.encode(each) for p in (0, 1) for each in it.listed(p).values()}
    assert {records.encode(record_json.loads(line)) for line in lines} == listed
    assert ran(it, "export", "orders-1").splitlines() == [
        line for line in lines if '"partition":1' in line
    ]
    usage = it.rlmm("export", "--format", "parquet")
    assert (usage.exit_code, "go together" in usage.output) == (2, True)
    if find_spec("pyarrow") is None:
        absent = it.rlmm("export", "--format", "parquet", "--output", "x.parquet")
        assert (absent.exit_code, "rlmm-daemon[spark]" in absent.output) == (1, True)
    events = [json.loads(line) for line in ran(it, "tail", "--json").splitlines()]
    assert {event["outcome"] for event in events} == {"applied"}
    assert len(events) == 12
    number = str(it.number(1))
    later = ran(it, "tail", "--partition", number, "--from", "4", "--json").splitlines()
    assert [json.loads(line)["offset"] for line in later] == [4, 5]
    assert len(ran(it, "tail", "--format", "kafka").splitlines()) == 12


def test_fetch_brings_the_log_a_range_of_it_and_each_index(it: Stocked, tmp_path: Path):
    segment = it.copied(0)[1]
    words = ["orders-0", uuid_text(segment.metadata.segment_id), "-o", str(tmp_path / "it")]
    ran(it, "fetch", *words)
    whole = Path(f"{segment.stem}.log").read_bytes()
    assert (tmp_path / "it").read_bytes() == whole
    ran(it, "fetch", *words, "--range", "100:199")
    assert (tmp_path / "it").read_bytes() == whole[100:200]
    ran(it, "fetch", *words, "--index", "timestamp")
    assert (tmp_path / "it").read_bytes() == Path(f"{segment.stem}.timeindex").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["it"]
    ran(it, "fetch", *words, "--range", "9:2", code=2)


def test_the_configuration_is_checked_before_anything_starts(it: Stocked, tmp_path: Path):
    shown = it.daemon.rlmm("check-config", str(CONFIG))
    assert (shown.returncode, shown.stderr) == (0, "")
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(CONFIG.read_text().replace("broker_id", "brokr_id"))
    for words in (["check-config", str(wrong)], ["run", "--config", str(wrong)]):
        refused = it.daemon.rlmm(*words)
        assert refused.returncode == 78
        assert "brokr_id" in refused.stderr
        assert "broker_id" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_nobody_there_is_exit_code_3_whatever_is_asked(it: Stocked, tmp_path: Path):
    nowhere = ["--socket", str(tmp_path / "none.sock")]
    for words in (["status"], ["segments", "orders-0"], ["drain"], ["tail"], ["export"]):
        assert it.rlmm(*words, *nowhere).exit_code == 3
    error = json.loads(it.rlmm("status", "--json", *nowhere).stderr)
    assert error["error"] == "daemon_unreachable"


def test_a_socket_path_beyond_107_bytes_is_refused_with_that_reason(it: Stocked):
    for length, code in ((107, 3), (108, 2)):
        path = "/tmp/" + "s" * (length - 5)
        refused = it.rlmm("status", "--socket", path)
        assert refused.exit_code == code
        found = subprocess.run(
            [sys.executable, "-m", "rlmm_daemon", "status"],
            env=environment() | {"RLMM_SOCKET": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert found.returncode == code
        if code == 2:
            for text in (refused.stderr, found.stderr):
                assert "108 bytes" in text
                assert "107" in text


# What ends a command that would go on.


def following(it: Stocked, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "rlmm_daemon", "tail", "--follow", "--json", *words],
        env=environment() | {"RLMM_SOCKET": it.daemon.socket_path, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_tail_that_is_followed_shows_what_comes_and_ends_on_a_signal(it: Stocked):
    with following(it, "--partition", str(it.number(0))) as tail:
        stuck = threading.Timer(PATIENCE_SECONDS, tail.kill)
        stuck.start()
        try:
            assert tail.stdout is not None
            assert tail.stderr is not None
            for _ in range(6):
                json.loads(tail.stdout.readline())
            added = it.copy_new(0, 200)
            event = json.loads(tail.stdout.readline())
            assert event["record"]["data"]["remoteLogSegmentId"]["id"] == uuid_text(added)
            tail.send_signal(signal.SIGINT)
            assert tail.wait() == 130
            assert tail.stderr.read() == ""
        finally:
            stuck.cancel()
    with it.daemon.client() as client:
        client.delete_segment(it.orders[0], added)


def test_a_tail_whose_reader_went_ends_quietly_with_the_next_event(it: Stocked):
    with following(it, "--partition", str(it.number(1))) as tail:
        stuck = threading.Timer(PATIENCE_SECONDS, tail.kill)
        stuck.start()
        try:
            assert tail.stdout is not None
            assert tail.stderr is not None
            json.loads(tail.stdout.readline())
            tail.stdout.close()
            added = it.copy_new(1, 200)
            assert tail.wait() == 130
            assert tail.stderr.read() == ""
        finally:
            stuck.cancel()
    with it.daemon.client() as client:
        client.delete_segment(it.orders[1], added)


# The codec tools, as a script uses them.


def piped(words: list[str], stdin: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", "rlmm_daemon", *words],
        env=environment(),
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("option", ["--hex", "--base64"])
def test_what_the_daemon_lists_goes_through_encode_and_decode_unchanged(it: Stocked, option: str):
    lines = ran(it, "export").splitlines()
    code, encoded = piped(["encode", option], "\n".join(lines) + "\n")
    assert code == 0
    of = bytes.fromhex if option == "--hex" else base64.b64decode
    held = {records.encode(each) for p in (0, 1) for each in it.listed(p).values()}
    assert {of(line) for line in encoded} == held
    code, decoded = piped(["decode", option], "\n".join(encoded) + "\n")
    assert (code, decoded) == (0, lines)
    code, decoded = piped(["decode", option], "\n".join([encoded[0], "@@", encoded[1]]) + "\n")
    assert (code, len(decoded)) == (1, 3)
    assert set(json.loads(decoded[1])) == {"error", "message"}


def test_partition_of_agrees_with_the_daemon(it: Stocked):
    for partition in (0, 1):
        words = ["partition-of", "--partitions", str(COUNT), topic_id(it), str(partition)]
        assert piped(words, "") == (0, [str(it.number(partition))])
        answer = it.explain(partition)
        assert answer["metadata_partition"] == it.number(partition)


def test_help_is_there_for_every_command():
    for name in COMMANDS:
        run = CliRunner().invoke(main, [name, "--help"])
        assert run.exit_code == 0, name
        assert run.output.startswith("Usage: "), name
