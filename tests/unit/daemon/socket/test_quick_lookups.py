"""The quick path answers as the general one does, or leaves it to that."""

from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.codec import api, frames
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.socket import quick_lookups
from rlmm_daemon.daemon.socket.quick_lookups import QuickLookups
from rlmm_daemon.domain.errors import NotReady

PARTITION = api.Partition(bytes(range(16)), "orders", 3)
FIRST, SECOND = quick_lookups.METHODS


class Asked:
    """A manager that keeps what it was asked and answers what it is told to."""

    def __init__(self, record=b"record"):
        self.record, self.calls = record, []

    def ask(self, tp, epoch, offset, caller):
        self.calls.append((tp, epoch, offset, caller))
        if isinstance(self.record, Exception):
            raise self.record
        return self.record

    def ask_until(self, tp, epoch, offset, caller):
        record = self.ask(tp, epoch, offset, caller)
        return None if record is None else api.FoundUntil(record, offset + 50)

    def quick(self) -> QuickLookups:
        asked = dict.fromkeys(quick_lookups.METHODS, self.ask)
        manager = SimpleNamespace(**asked, found_until=self.ask_until)
        return QuickLookups(manager, Caller.BROKER)


def request(request_id=7, method=FIRST, partition=PARTITION, epoch=5, offset=100, **more) -> bytes:
    params = api.EpochOffsetParams(partition, epoch, offset, **more)
    return frames.request_frame(request_id, method, params)


def body(**parts) -> bytes:
    return request(**parts)[frames.HEADER_BYTES :]


@given(
    request_id=st.integers(1, 2**63 - 1) | st.sampled_from([2**32 - 1, 2**32]),
    record=st.none() | st.binary(max_size=300) | st.just(bytes(2**16 - 1)) | st.just(bytes(2**16)),
)
def test_an_answer_says_what_the_encoder_would(request_id, record):
    frame = frames.record_frame(request_id, record)
    assert int.from_bytes(frame[:4], "big") == len(frame) - frames.HEADER_BYTES
    usual = frames.result_frame(request_id, record)
    assert frames.decode_message(frame[4:]) is not None
    decode = msgspec.msgpack.decode
    assert decode(frame[4:]) == decode(usual[4:]) == [frames.RESPONSE, request_id, None, record]


@given(
    method=st.sampled_from(quick_lookups.METHODS),
    topic=st.text(min_size=1, max_size=249),
    number=st.integers(0, 2**31 - 1),
    at=st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)),
    timeout_ms=st.none() | st.integers(1, 10_000),
)
def test_the_manager_is_asked_what_the_request_says(method, topic, number, at, timeout_ms):
    asked, (epoch, offset) = Asked(), at
    partition = api.Partition(bytes(16), topic, number)
    frame = body(
        method=method, partition=partition, epoch=epoch, offset=offset, timeout_ms=timeout_ms
    )
    quick = asked.quick()
    for _ in range(2):  # the second time its partition is known
        assert quick.answer(frame) == frames.record_frame(7, b"record")
    assert asked.calls == [(partition.to_domain(), epoch, offset, Caller.BROKER)] * 2


@pytest.mark.parametrize("record", [b"record", None])
def test_who_asks_how_far_a_segment_is_the_answer_is_told(record):
    found = None if record is None else [record, 150]
    frame = Asked(record).quick().answer(body(offset=100, until=True))
    assert msgspec.msgpack.decode(frame[4:]) == [frames.RESPONSE, 7, None, found]


def test_the_other_look_up_has_one_answer_whatever_it_is_asked():
    frame = Asked().quick().answer(body(method=SECOND, until=True))
    assert frame == frames.record_frame(7, b"record")


def test_partitions_that_differ_in_one_byte_are_not_mixed_up():
    asked = Asked()
    quick = asked.quick()
    partitions = [api.Partition(bytes(15) + bytes([n]), "orders", n) for n in range(20)] * 2
    for partition in partitions:
        quick.answer(body(partition=partition))
    assert [call[0] for call in asked.calls] == [each.to_domain() for each in partitions]


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(quick_lookups, "KNOWN_MAX", 3)
    asked = Asked()
    quick = asked.quick()
    for number in range(10):
        quick.answer(body(partition=api.Partition(bytes(16), "orders", number)))
        assert len(quick._known) <= 3


def test_what_a_peer_appends_to_a_partition_is_not_remembered():
    asked = Asked()
    quick = asked.quick()
    topic_id, padding = bytes(16), bytes(quick_lookups.KNOWN_BYTES_MAX)
    for number in range(3):
        params = [[topic_id, "orders", number, padding], 5, 100]
        assert quick.answer(frames.request_frame(7, FIRST, params)[frames.HEADER_BYTES :])
    assert [call[0].partition for call in asked.calls] == [0, 1, 2]
    assert not quick._known


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(body(method="is_ready"), id="another method"),
        pytest.param(frames.notification_frame("cancel", [1])[4:], id="a notification"),
        pytest.param(frames.result_frame(1, None)[4:], id="an answer"),
        pytest.param(body() + b"\xc0", id="more behind it"),
        pytest.param(body()[:-1], id="cut"),
        pytest.param(b"\x95" + body()[1:] + b"\xc0", id="a fifth element"),
        pytest.param(
            frames.request_frame(1, FIRST, [[b"short", "orders", 0], 0, 0])[4:], id="id too short"
        ),
        pytest.param(
            frames.request_frame(1, FIRST, [[bytes(16), "", 0], 0, 0])[4:], id="no topic name"
        ),
        pytest.param(
            frames.request_frame(1, FIRST, [[bytes(16), "orders", 0], -1, 0])[4:], id="epoch < 0"
        ),
        pytest.param(
            frames.request_frame(1, FIRST, [[bytes(16), "orders", 0], 0, 2**63])[4:],
            id="offset beyond int64",
        ),
    ],
)
def test_anything_else_is_left_to_the_general_path(frame):
    asked = Asked()
    with pytest.raises(msgspec.DecodeError):
        asked.quick().answer(frame)
    assert not asked.calls


def test_many_stop_at_the_first_that_is_anything_else():
    asked = Asked()
    quick = asked.quick()
    good, other = request(), request(method="is_ready")
    answers, taken = quick.answer_many(good * 3 + other + good, 4096, 1 << 20)
    assert len(answers) == 3
    assert taken == 3 * len(good)
    answers, taken = quick.answer_many(good * 2 + good[:-1], 4096, 1 << 20)
    assert (len(answers), taken) == (2, 2 * len(good))
    answers, taken = quick.answer_many(good, len(good) - 5, 1 << 20)
    assert (answers, taken) == ([], 0), "longer than a frame may be"
    answers, taken = quick.answer_many(good * 100, 4096, 3 * len(frames.record_frame(7, b"record")))
    assert (len(answers), taken) == (3, 3 * len(good)), "more than one burst"


def test_an_error_of_one_leaves_those_before_it_answered():
    asked = Asked()
    quick = asked.quick()
    answers, taken = quick.answer_many(request() * 2, 4096, 1 << 20)
    asked.record = NotReady("replaying")
    later, none = quick.answer_many(request() * 2, 4096, 1 << 20)
    assert (len(answers), len(later), none) == (2, 0, 0)
    assert taken == 2 * len(request())
