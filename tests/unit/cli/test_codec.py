"""The codec tools from stdin to stdout, with their exit codes."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlmm_daemon.cli import codec, main
from rlmm_daemon.domain.errors import BY_CODE

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
LINES = [json.loads(line) for line in (GOLDEN / "records.jsonl").read_text("utf-8").splitlines()]
POISON = [json.loads(line) for line in (GOLDEN / "poison.jsonl").read_text("utf-8").splitlines()]


def run(command, *options, stdin=""):
    # By its name: a command that was asked alone keeps the help option that it had there.
    return CliRunner().invoke(main, [command.name, *options], input=stdin)


def rows(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("options", [[], ["--hex"]])
def test_decode_prints_the_json_of_every_golden_record(options):
    result = run(codec.decode, *options, stdin="\n".join(line["hex"] for line in LINES))
    assert result.exit_code == 0
    assert rows(result) == [line["json"] for line in LINES]


def test_encode_prints_the_hex_of_every_golden_record():
    inputs = (json.dumps(line.get("encode_from", line["json"])) for line in LINES)
    result = run(codec.encode, stdin="\n".join(inputs))
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [line["hex"] for line in LINES]


def test_base64_goes_both_ways():
    text = [base64.b64encode(bytes.fromhex(line["hex"])).decode() for line in LINES]
    decoded = run(codec.decode, "--base64", stdin="\n".join(text))
    assert decoded.exit_code == 0
    encoded = run(codec.encode, "--base64", stdin=decoded.stdout)
    assert encoded.stdout.splitlines() == text


def test_lines_that_fail_print_an_error_in_their_place_and_the_exit_code_is_1():
    good = LINES[0]
    result = run(codec.decode, stdin=f"zz\n{good['hex']}\n0102\n{good['hex']}\n")
    assert result.exit_code == 1
    first, second, third, fourth = rows(result)
    assert first == {"error": "malformed", "message": "the line is not hex"}
    assert third == {
        "error": "malformed",
        "message": "record version at byte 2 is cut short",
    }
    assert second == fourth == good["json"]


def test_every_poison_record_prints_one_known_error():
    values = [line["hex"] for line in POISON if line["hex"] and "version 1" not in line["name"]]
    result = run(codec.decode, stdin="\n".join(values))
    names = {kind.wire_name() for kind in BY_CODE.values()}
    assert result.exit_code == 1
    assert len(rows(result)) == len(values)
    assert all(row.keys() == {"error", "message"} and row["error"] in names for row in rows(result))


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        ("nope", "malformed", "JSON is malformed"),
        ("[]", "malformed", "Expected `object`"),
        ('{"type":"X"}', "malformed", "Invalid value 'X' - at `$.type`"),
        ("[" * 100_000, "malformed", ""),
        ("\udcff", "malformed", ""),
        ('{"a": 1}', "malformed", "missing required field `type`"),
    ],
    ids=["text", "array", "type", "deep", "bytes", "no type"],
)
def test_json_that_is_no_record_is_told_in_its_place(line, error, message):
    stdin = line.encode("utf-8", "surrogateescape")
    result = run(codec.encode, stdin=stdin)
    assert result.exit_code == 1
    (row,) = rows(result)
    assert row["error"] == error
    assert message in row["message"]


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        ("brokerId", 2**31, "invalid_argument", "broker id 2147483648 is not an int32"),
        ("brokerId", "1", "malformed", "at `$.data.brokerId`"),
        ("remoteLogSegmentState", 9, "malformed", "at `$.data.remoteLogSegmentState`"),
        ("startOffset", -1, "invalid_argument", "start offset -1 is negative"),
        ("customMetadata", "_-", "malformed", "base64"),
        ("surprise", 1, "malformed", "unknown field `surprise`"),
        (
            "segmentLeaderEpochs",
            [{"leaderEpoch": 0, "offset": 0}] * 2,
            "invalid_argument",
            "names a leader epoch twice",
        ),
    ],
)
def test_a_field_that_is_wrong_is_named(field, value, error, message):
    record = LINES[0]["json"]
    changed = record | {"data": record["data"] | {field: value}}
    (row,) = rows(run(codec.encode, stdin=json.dumps(changed)))
    assert row["error"] == error
    assert message in row["message"]


def test_other_versions_are_not_written():
    (row,) = rows(run(codec.encode, stdin=json.dumps(LINES[0]["json"] | {"version": 1})))
    assert row == {"error": "invalid_argument", "message": "version 1: only 0 is written"}


def test_blank_lines_are_passed_over_and_line_ends_may_be_crlf():
    value = LINES[0]["hex"]
    result = run(codec.decode, stdin=f"\n  \n{value.upper()}\r\n\n  {value}")
    assert result.exit_code == 0
    assert len(rows(result)) == 2
    assert run(codec.decode, stdin="").exit_code == 0


def test_a_line_that_is_too_long_is_one_error_and_the_next_line_is_read(monkeypatch):
    monkeypatch.setattr(codec, "LINE_BYTES_MAX", 1000)
    value = LINES[0]["hex"]
    for long in ("ab" * 501, "ab" * 5000, "ab" * 500):
        result = run(codec.decode, stdin=f"{long}\n{value}\n")
        assert result.exit_code == 1
        assert [row.get("error", row.get("type")) for row in rows(result)] == [
            "invalid_argument",
            "RemoteLogSegmentMetadataRecord",
        ]


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (codec.decode, ["--hex", "--base64"]),
        (codec.encode, ["--octal"]),
        (codec.partition_of, []),
        (codec.partition_of, ["--partitions", "0", "AQIDBAUGBwgJCgsMDQ4PEA", "0"]),
        (codec.partition_of, ["--partitions", "50", "not-a-uuid", "0"]),
        (codec.partition_of, ["--partitions", "50", "AQIDBAUGBwgJCgsMDQ4PEA", "x"]),
    ],
)
def test_wrong_usage_is_exit_code_2(command, options):
    assert run(command, *options).exit_code == 2


@pytest.mark.parametrize(
    ("topic_id", "partition", "expected"),
    [("AQIDBAUGBwgJCgsMDQ4PEA", "7", "18\n"), ("Bp9TDduJRGa9Q5rlvCJOxg", "3", "24\n")],
)
def test_partition_of_prints_kafkas_metadata_partition(topic_id, partition, expected):
    result = run(codec.partition_of, "--partitions", "50", topic_id, partition)
    assert (result.exit_code, result.stdout) == (0, expected)


def test_a_topic_id_may_begin_with_a_dash():
    result = run(codec.partition_of, "--partitions", "50", "-QIDBAUGBwgJCgsMDQ4PEA", "0")
    assert result.exit_code == 0
    assert result.stdout.strip().isdigit()


@pytest.mark.parametrize("lines", [1, 20_000])
def test_a_reader_that_goes_away_ends_the_tool_quietly(lines):
    program = "from rlmm_daemon.cli import codec; codec.decode()"
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=(LINES[0]["hex"] + "\n").encode() * lines,
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
            timeout=50,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")
