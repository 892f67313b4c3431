"""Hostile metadata records: only our errors, and work in proportion to the bytes that came."""

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmm_daemon.codec import records
from rlmm_daemon.codec.json import loads
from rlmm_daemon.domain.errors import InvalidArgument, Malformed
from tests.fuzz.promises import judge_record, outcome

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
VALUES = [
    bytes.fromhex(json.loads(line)["hex"])
    for name in ("records.jsonl", "tolerated.jsonl")
    for line in (GOLDEN / name).read_text("utf-8").splitlines()
]
SHORT = [value for value in VALUES if len(value) < 1000]
#: More memory than this for a value of a few hundred bytes means that a claim was believed.
BYTES_MAX = 256 * 1024


@given(st.binary(max_size=300))
@settings(max_examples=500)
def test_arbitrary_bytes_are_a_record_or_malformed(value):
    judge_record(value)


@given(st.sampled_from([b"\1\0\0", b"\1\1\0", b"\1\2\1", b"\1\3\1"]), st.binary(max_size=300))
@settings(max_examples=500)
def test_arbitrary_bytes_behind_an_envelope_are_a_record_or_malformed(envelope, rest):
    judge_record(envelope + rest)


@st.composite
def mutants(draw):
    value = bytearray(draw(st.sampled_from(SHORT)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(value)))
        match draw(st.integers(0, 4)):
            case 0:
                value[at : at + 1] = bytes((draw(st.integers(0, 255)),))
            case 1:
                value[at:at] = draw(st.binary(min_size=1, max_size=6))
            case 2:
                del value[at : at + draw(st.integers(1, 8))]
            case 3:
                value[at : at + 1] = draw(st.sampled_from(HOSTILE))
            case _:
                other = draw(st.sampled_from(SHORT))
                value[at:] = other[draw(st.integers(0, len(other))) :]
    return bytes(value)


HOSTILE = [
    b"\x80\x00",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff",
    b"\x80\x80\x80\x80\x10",
    b"\x01\x00\x01\x01",
    b"\x02\x00\x01\x01\x07\x00",
]


@given(mutants())
@settings(max_examples=1500)
def test_mutated_golden_records_are_records_or_malformed(value):
    judge_record(value)


@pytest.mark.parametrize("value", SHORT, ids=lambda value: value[:3].hex())
def test_every_cut_of_a_golden_record_is_malformed(value):
    for size in range(len(value)):
        assert outcome(records.decode, value[:size]) is Malformed


@pytest.mark.parametrize("claim", HOSTILE, ids=lambda claim: claim.hex())
@pytest.mark.parametrize("at", [3, 81, 82, 125, 131])
def test_a_claimed_length_allocates_nothing(claim, at):
    value = SHORT[0][:at] + claim + SHORT[0][at + 1 :]
    tracemalloc.start()
    try:
        outcome(records.decode, value)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < BYTES_MAX


def test_a_hundred_thousand_tags_that_are_there_are_read_in_one_pass():
    stem = SHORT[0][:-1]
    tagged = stem + b"\xa0\x8d\x06" + b"\x05\x00" * 100_000
    assert records.normalise(tagged) == SHORT[0]


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_arbitrary_json_is_malformed_or_an_invalid_argument(text):
    with pytest.raises((Malformed, InvalidArgument)):
        loads(text)
