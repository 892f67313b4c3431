"""Daemon and client of two versions: what the newer says more, the older passes over."""

import msgspec
import pytest

from rlmm_daemon.codec import api
from rlmm_daemon.domain.ids import BrokerId
from tests.docs.protocol import _structs

STRUCTS = [each for each in _structs() if each.__struct_config__.array_like]
HELLO = api.HelloParams(protocol=1, client="plugin 0.1", role="operator")
ANSWER = api.HelloResult(
    protocol=1, daemon="rlmm 0.1", cluster_id="c", broker_id=BrokerId(1), rights=["read"]
)


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_array_may_grow_at_its_end(struct):
    assert struct.__struct_config__.forbid_unknown_fields is False
    required = [field.required for field in msgspec.structs.fields(struct)]
    assert required == sorted(required, reverse=True), "those with a default come last"


@pytest.mark.parametrize("said", [HELLO, ANSWER], ids=lambda said: type(said).__name__)
def test_a_field_of_a_newer_neighbour_is_passed_over(said):
    longer = [*msgspec.to_builtins(said), {"of a later": "version"}]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(longer), type=type(said)) == said


@pytest.mark.parametrize("said", [HELLO, ANSWER], ids=lambda said: type(said).__name__)
def test_what_an_older_neighbour_does_not_say_has_its_default(said):
    needed = sum(field.required for field in msgspec.structs.fields(type(said)))
    shorter = msgspec.to_builtins(said)[:needed]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(shorter), type=type(said)) == said
