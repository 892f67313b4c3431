"""The frame parser under any bytes at all: a message or `Malformed`, in bounded memory."""

import struct
import tracemalloc
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.codec import api, frames
from rlmm_daemon.domain.errors import Malformed

SOUND: st.SearchStrategy[Any] = st.one_of(
    st.tuples(st.just(0), st.integers(0, 2**63), st.sampled_from([*api.METHODS]), st.just([])),
    st.tuples(st.just(1), st.integers(0, 2**31), st.none(), st.binary()),
    st.tuples(st.just(1), st.just(3), st.just([100, "n", "m", {}]), st.none()),
    st.tuples(st.just(2), st.text(), st.lists(st.integers(0, 9))),
)


def take(body: bytes) -> frames.Message | None:
    try:
        return frames.decode_message(body)
    except Malformed:
        return None


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_malformed(body):
    take(body)
    with suppress(Malformed):
        frames.decode_request(body)


@given(SOUND, st.data())
def test_a_sound_frame_with_some_bytes_changed_is_a_message_or_malformed(message, data):
    body = bytearray(frames.frame(message)[frames.HEADER_BYTES :])
    assert take(bytes(body)) is not None
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    take(bytes(body))


@given(st.lists(SOUND, max_size=6), st.lists(st.integers(1, 40), min_size=1))
def test_frames_survive_any_cutting_of_the_stream(messages, cuts):
    stream = b"".join(map(frames.frame, messages))
    splitter, bodies, at = frames.Splitter(), list[bytes](), 0
    while at < len(stream):
        size = cuts[len(bodies) % len(cuts)]
        splitter.feed(stream[at : at + size])
        at += size
        while (body := splitter.next()) is not None:
            bodies.append(body)
    assert bodies == [frames.frame(message)[frames.HEADER_BYTES :] for message in messages]
    assert len(splitter) == 0


@given(st.integers(4097, 2**32 - 1), st.binary(max_size=50))
def test_a_frame_that_claims_too_much_is_refused_before_it_is_waited_for(length, rest):
    splitter = frames.Splitter(4096)
    splitter.feed(struct.pack(">I", length) + rest)
    with pytest.raises(Malformed) as caught:
        splitter.next()
    assert caught.value.fields == {"length": length, "limit": 4096}


def test_hostile_shapes_cost_no_more_memory_than_their_bytes():
    hostile = [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x94\x00\x01\xa1a\xdd\xff\xff\xff\xff",
        b"\xdd" + struct.pack(">I", 2**20) + b"\xc0" * 2**20,
        b"\x94\x00\x01\xa1a" + b"\x91" * 2**20,
        b"\x94\x01\x01" + b"\x94\x01\xa1a\xa1a\xdf\xff\xff\xff\xff",
    ]
    tracemalloc.start()
    for body in hostile:
        assert take(body) is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20


@given(st.sampled_from([*api.METHODS.values()]), st.binary(max_size=80))
def test_any_bytes_as_parameters_are_parameters_or_an_error_that_the_session_knows(row, raw):
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        msgspec.msgpack.decode(raw, type=row.params)
