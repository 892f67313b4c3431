"""Every message of every version, drawn from its table, byte for byte as `kio` has it.

kio's classes are generated from Kafka's own definitions: they read our bytes, name the same values
in the same fields, and pack the same bytes again.
"""

import dataclasses
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from rlmm_daemon.codec.kraft import apis, schema
from rlmm_daemon.codec.kraft.schema import Api, Array, Field, Fields
from rlmm_daemon.domain.errors import InvalidArgument, Malformed

#: There are seventy tests of that form.
few = settings(max_examples=25)
SIDES = ("request", "answer")
KAFKAS = [
    (api, version, side)
    for api in apis.APIS.values()
    if api.key not in apis.OURS
    for version in range(api.first, api.last + 1)
    for side in SIDES
]


def called(value: object) -> str:
    return getattr(value, "name", str(value))


# Messages, drawn.


def values(field: Field, version: int) -> st.SearchStrategy[Any]:
    if field.name == "ErrorCode":
        return st.sampled_from([0, 3, 6, 42, 74, 104, 126])
    if field.name.endswith("Ms"):
        return st.integers(0, (1 << 31) - 1)  # kio's times end before 64 bits do
    return of_type(field.type, version)


def of_type(kind: schema.Type, version: int) -> st.SearchStrategy[Any]:
    if isinstance(kind, Fields):
        here = [each for each in kind.fields if each.since <= version <= each.until]
        return st.fixed_dictionaries({each.name: values(each, version) for each in here})
    if isinstance(kind, Array):
        return st.lists(of_type(kind._of, version), max_size=2).map(tuple)
    return _PLAIN[id(kind)]


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_PLAIN: Mapping[int, st.SearchStrategy[Any]] = {
    id(schema.INT8): whole(8),
    id(schema.INT16): whole(16),
    id(schema.UINT16): st.integers(0, 0xFFFF),
    id(schema.INT32): whole(32),
    id(schema.INT64): whole(63),
    id(schema.BOOL): st.booleans(),
    id(schema.UUID): st.binary(min_size=16, max_size=16),
    id(schema.STRING): _TEXT,
    id(schema.NULLABLE_STRING): st.none() | _TEXT,
    id(schema.BYTES): st.binary(max_size=5),
    id(schema.NULLABLE_BYTES): st.none() | st.binary(max_size=5),
}


def side_of(api: Api, side: str) -> Fields:
    return api.request if side == "request" else api.answer


def packer(api: Api, side: str) -> Callable[[int, Mapping[str, Any]], bytes]:
    return api.pack_request if side == "request" else api.pack_answer


def reader(api: Api, side: str) -> Callable[[int, bytes], dict[str, Any]]:
    return api.read_request if side == "request" else api.read_answer


# Kafka's word.


def snake(name: str) -> str:
    """Return kio's name: of times it leaves the unit out."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    return words.removesuffix("_ms")


def agrees(ours: object, theirs: Any, where: str) -> None:
    """Check that both say the same, field by field, under the same names."""
    if isinstance(ours, Mapping):
        told = {each.name: getattr(theirs, each.name) for each in dataclasses.fields(theirs)}
        assert set(told) == {snake(name) for name in ours}, where
        for name, value in ours.items():
            agrees(value, told[snake(name)], f"{where}.{name}")
    elif isinstance(ours, tuple):
        assert isinstance(theirs, tuple), where
        for mine, other in zip(ours, theirs, strict=True):
            agrees(mine, other, where)
    elif isinstance(theirs, uuid.UUID) or (theirs is None and ours == bytes(16)):
        assert ours == (bytes(16) if theirs is None else theirs.bytes), where
    elif isinstance(theirs, timedelta):
        assert ours == theirs // timedelta(milliseconds=1), where
    else:
        assert ours == getattr(theirs, "value", theirs), where


@pytest.mark.parametrize(("api", "version", "side"), KAFKAS, ids=called)
@few
@given(data=st.data())
def test_kio_reads_the_same_and_packs_the_same_bytes(
    api: Api, version: int, side: str, data: st.DataObject
) -> None:
    message = data.draw(of_type(side_of(api, side), version))
    packed = packer(api, side)(version, message)
    load = load_request_schema if side == "request" else load_response_schema
    kind = load(api.key, version)
    theirs, size = entity_reader(kind)(packed, 0)
    assert size == len(packed)
    agrees(reader(api, side)(version, packed), theirs, api.name)
    again = BytesIO()
    entity_writer(kind)(again, theirs)
    assert again.getvalue() == packed


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("api", apis.APIS.values(), ids=called)
@few
@given(data=st.data())
def test_what_is_packed_is_read_again(api: Api, side: str, data: st.DataObject) -> None:
    version = data.draw(st.integers(api.first, api.last))
    message = data.draw(of_type(side_of(api, side), version))
    assert reader(api, side)(version, packer(api, side)(version, message)) == message


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("api", apis.APIS.values(), ids=called)
@few
@given(data=st.data())
def test_damage_is_told_and_nothing_else(api: Api, side: str, data: st.DataObject) -> None:
    packed = packer(api, side)(api.last, data.draw(of_type(side_of(api, side), api.last)))
    damaged = data.draw(st.sampled_from(["cut", "more", "other"]))
    if damaged == "cut":
        packed = packed[: data.draw(st.integers(0, max(0, len(packed) - 1)))]
    elif damaged == "more":
        packed += b"\0"
    elif packed:
        at = data.draw(st.integers(0, len(packed) - 1))
        packed = packed[:at] + data.draw(st.binary(min_size=1, max_size=1)) + packed[at + 1 :]
    try:
        reader(api, side)(api.last, packed)
    except Malformed:
        return
    assert damaged != "more" or not packed[:-1]


def test_a_count_that_the_bytes_cannot_hold_costs_nothing() -> None:
    with pytest.raises(Malformed, match="Topics claims 2147483646 elements in 0 bytes"):
        apis.DESCRIBE_QUORUM.read_request(2, b"\xff\xff\xff\xff\x07")
    with pytest.raises(Malformed, match="tag"):
        apis.REMOVE_RAFT_VOTER.read_request(0, b"\0" * 21 + b"\xff\xff\xff\xff\x07")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"ClusterID": "x"}, "no field is called ClusterID"),
        ({"Topics": None}, "null, where an array must stand"),
        ({"ClusterId": 7}, "ClusterId can't be packed"),
        ({"ClusterId": "x" * 40_000}, "40000 bytes"),
    ],
)
def test_what_a_version_cannot_say_is_refused(message: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        apis.VOTE.pack_request(0, message)


def test_what_a_version_has_not_is_left_out() -> None:
    assert apis.VOTE.pack_request(0, {"VoterId": 3}) == apis.VOTE.pack_request(0, {})


def test_what_nobody_said_is_written_as_usual() -> None:
    assert apis.FETCH.read_request(18, apis.FETCH.pack_request(18, {})) == {
        "MaxWaitMs": 0,
        "MinBytes": 0,
        "MaxBytes": 0x7FFFFFFF,
        "IsolationLevel": 0,
        "SessionId": 0,
        "SessionEpoch": -1,
        "Topics": (),
        "ForgottenTopicsData": (),
        "RackId": "",
        "ClusterId": None,
        "ReplicaState": {"ReplicaId": -1, "ReplicaEpoch": -1},
    }
