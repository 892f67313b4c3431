"""Golden records of Kafka's own serde, both ways; reasons for refusing; the short cut's truth."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from rlmm_daemon.codec import common_shape, records
from rlmm_daemon.codec.json import dumps, loads
from rlmm_daemon.codec.record_reading import read_any
from rlmm_daemon.codec.records import ApiKey
from rlmm_daemon.domain.errors import InvalidArgument, Malformed
from rlmm_daemon.domain.event import Event
from rlmm_daemon.domain.ids import TopicIdPartition
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import (
    SegmentMetadata,
    SegmentSnapshot,
    SegmentState,
    SegmentUpdate,
)

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
PREFIX = "04666f6f0102030405060708090a0b0c0d0e0f100000000000"
SEGMENT_ID = "1112131415161718191a1b1c1d1e1f20"
BODY = (
    "0000000000000000000000000000006400000001ffffffffffffffff000000000000007b04"
    "00000000000000000000000000"
    "00000001000000000000001400"
    "00000002000000000000005000"
    "00000400"
)
G0_STEM = f"010000{PREFIX}{SEGMENT_ID}00{BODY}"
G1 = f"010100{PREFIX}{SEGMENT_ID}00000000020000018bcfe56800000100"
G2 = f"010200{PREFIX}000000030000018bcfe568000000"
# Literals stand for ids here, so the constructors are called without their NewTypes.
Partition: Any = TopicIdPartition
segment_of: Any = SegmentMetadata
update_of: Any = SegmentUpdate
delete_of: Any = PartitionDelete

FOO = Partition(bytes(range(1, 17)), "foo", 0)
G0_SEGMENT = segment_of(
    partition=FOO,
    segment_id=bytes(range(17, 33)),
    start_offset=0,
    end_offset=100,
    broker_id=1,
    max_timestamp_ms=-1,
    event_timestamp_ms=123,
    segment_leader_epochs={0: 0, 1: 20, 2: 80},
    segment_size_bytes=1024,
    custom_metadata=bytes(range(4)),
)
G1_UPDATE = update_of(
    partition=FOO,
    segment_id=bytes(range(17, 33)),
    broker_id=2,
    event_timestamp_ms=1_700_000_000_000,
    state=SegmentState.COPY_SEGMENT_FINISHED,
)

int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
uuids = st.binary(min_size=16, max_size=16)
partitions = st.builds(
    TopicIdPartition,
    uuids,
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
        st.integers(120, 260).map(lambda n: "t" * n),
    ),
    int32s,
)
custom = st.none() | st.binary(max_size=8) | st.integers(120, 260).map(bytes)
epochs = st.dictionaries(int32s, int64s, min_size=1, max_size=6) | st.integers(120, 140).map(
    lambda n: {epoch: epoch for epoch in range(n)}
)
states = st.sampled_from(SegmentState)
body = {
    "broker_id": int32s,
    "max_timestamp_ms": int64s,
    "event_timestamp_ms": int64s,
    "segment_leader_epochs": epochs,
    "segment_size_bytes": int32s,
    "custom_metadata": custom,
    "state": states,
    "txn_index_empty": st.booleans(),
}


@st.composite
def _segments(draw):
    start, end = sorted(draw(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))))
    rest = {name: draw(strategy) for name, strategy in body.items()}
    return SegmentMetadata(
        partition=draw(partitions),
        segment_id=draw(uuids),
        start_offset=start,
        end_offset=end,
        **rest,
    )


segments = _segments()
updates = st.builds(
    SegmentUpdate,
    partition=partitions,
    segment_id=uuids,
    broker_id=int32s,
    event_timestamp_ms=int64s,
    custom_metadata=custom,
    state=states,
)
deletes = st.builds(
    PartitionDelete,
    partition=partitions,
    broker_id=int32s,
    event_timestamp_ms=int64s,
    state=st.sampled_from(PartitionDeleteState),
)
snapshots = st.builds(
    SegmentSnapshot, segment_id=uuids, start_offset=int64s, end_offset=int64s, **body
)
anything = segments | updates | deletes | snapshots


def decode(text: str) -> Any:
    return records.decode(bytes.fromhex(text))


def golden(name):
    return [json.loads(line) for line in (GOLDEN / name).read_text("utf-8").splitlines()]


def named(lines):
    return [pytest.param(line, id=line["name"]) for line in lines]


@pytest.mark.parametrize("line", named(golden("records.jsonl")))
def test_kafkas_records_decode_to_their_json_and_encode_to_their_bytes(line):
    value = bytes.fromhex(line["hex"])
    record = records.decode(value)
    assert json.loads(dumps(record)) == line["json"]
    assert records.encode(record) == value
    assert read_any(value) == record
    assert records.encode(loads(json.dumps(line["json"]))) == value
    assert records.encode(loads(json.dumps(line.get("encode_from", line["json"])))) == value
    assert records.normalise(value) == value
    assert records.peek(value) == value[1]


@pytest.mark.parametrize("line", named(golden("tolerated.jsonl")))
def test_forms_that_kafka_reads_but_would_not_write_are_read_and_normalised(line):
    value = bytes.fromhex(line["hex"])
    assert json.loads(dumps(records.decode(value))) == line["json"]
    assert records.normalise(value).hex() == line["canonical_hex"]


@pytest.mark.parametrize("line", named(golden("poison.jsonl")))
def test_what_kafka_refuses_is_malformed_save_for_record_version_1(line):
    if line["hex"] is None:
        return  # a null value never reaches the codec: the event log hands it on as None
    value = bytes.fromhex(line["hex"])
    if line["name"].endswith("of version 1"):
        assert records.normalise(value) == value[:2] + b"\0" + value[3:]
        return
    with pytest.raises(Malformed):
        records.decode(value)


def test_the_worked_examples_say_what_they_are_said_to_say():
    assert records.decode(bytes.fromhex(G0_STEM + "05000102030000")) == G0_SEGMENT
    assert records.decode(bytes.fromhex(G1)) == G1_UPDATE
    assert records.decode(bytes.fromhex(G2)) == delete_of(
        partition=FOO,
        broker_id=3,
        event_timestamp_ms=1_700_000_000_000,
        state=PartitionDeleteState.DELETE_PARTITION_MARKED,
    )
    snapshot = records.decode(bytes.fromhex(f"010300{SEGMENT_ID}{BODY}05000102030000"))
    assert isinstance(snapshot, SegmentSnapshot)
    assert snapshot.segment_leader_epochs == {0: 0, 1: 20, 2: 80}
    assert not isinstance(snapshot, Event)


def test_null_and_empty_custom_metadata_are_different_things():
    null = decode(G0_STEM + "000000")
    empty = decode(G0_STEM + "010000")
    assert (null.custom_metadata, empty.custom_metadata) == (None, b"")


@pytest.mark.parametrize(
    ("changes", "size"),
    [({"custom_metadata": b"\1\2\3\4"}, 122), ({}, 118), ({"txn_index_empty": True}, 121)],
)
def test_a_segment_of_topic_orders_has_the_size_of_kafkas_record(changes, size):
    orders = Partition(bytes(15) + b"\xca", "orders", 7)
    segment = segment_of(
        partition=orders,
        segment_id=bytes(15) + b"\xfe",
        start_offset=0,
        end_offset=99,
        broker_id=42,
        max_timestamp_ms=100,
        event_timestamp_ms=123,
        segment_leader_epochs={50: 50, 0: 0},
        segment_size_bytes=4096,
        **changes,
    )
    assert len(records.encode(segment)) == size


def test_only_a_true_txn_index_empty_is_written_and_any_nonzero_byte_is_true():
    stem = bytes.fromhex(G0_STEM + "0000")
    assert decode(G0_STEM + "0000" + "01000101").txn_index_empty
    assert records.normalise(stem + b"\1\0\1\7") == stem + b"\1\0\1\1"
    assert records.normalise(stem + b"\1\0\1\0") == stem + b"\0"


def test_version_1_tags_are_dropped_and_tag_0_of_an_update_is_not_txn_index_empty():
    version_1 = bytes.fromhex(G1).replace(b"\1\1\0", b"\1\1\1", 1)
    tagged = version_1[:-1] + bytes.fromhex("0200040000000501080000000000000064")
    assert records.normalise(tagged) == bytes.fromhex(G1)


@pytest.mark.parametrize(
    ("value", "reason", "position"),
    [
        ("", "frame version at byte 0 is cut short", 0),
        ("0100", "record version at byte 2 is cut short", 2),
        ("010002", "record version 2 is newer than 1 (byte 2)", 2),
        ("010400", "api key 4 is unknown (byte 1)", 1),
        ("01000003c328", "topic name is not UTF-8", 6),
        ("010000ffffffff7f", "topic name is 34359738367, more than 2147483647 (byte 3)", 3),
        (G0_STEM[:162] + "ffffffff07", "leader epochs claims 2147483646 elements in 0 bytes", 86),
        (G1 + "00", "1 bytes of garbage behind the record (byte 60)", 60),
        (G1[:-4] + "0400", "state 4 is unknown (byte 58)", 58),
    ],
)
def test_a_refusal_names_the_reason_and_the_byte(value, reason, position):
    with pytest.raises(Malformed) as caught:
        records.decode(bytes.fromhex(value))
    assert reason in caught.value.message
    assert caught.value.fields["position"] == position


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"start_offset": -1}, "start offset -1 is negative"),
        ({"end_offset": -1}, "end offset -1 is less than start offset 0"),
        ({"segment_leader_epochs": {}}, "leader epochs are empty"),
        ({"segment_leader_epochs": {2**31: 0}}, "leader epoch 2147483648 is not an int32"),
        ({"segment_size_bytes": 2**31}, "segment size 2147483648 is not an int32"),
        ({"event_timestamp_ms": 2**63}, "event timestamp 9223372036854775808 is not an int64"),
        ({"segment_id": b"short"}, "segment id is 5 bytes long, not 16"),
        ({"state": 4}, "state 4 is unknown"),
        ({"partition": Partition(bytes(16), "t" * 32768, 0)}, "topic name of 32768 bytes"),
        ({"partition": Partition(bytes(16), "\ud800", 0)}, "has no UTF-8 form"),
        ({"partition": Partition(bytes(15), "t", 0)}, "topic id is 15 bytes long"),
        ({"partition": Partition(bytes(16), "t", 2**31)}, "partition 2147483648 is not"),
    ],
)
def test_encoding_refuses_what_has_no_wire_form_or_could_not_be_read_back(changes, reason):
    with pytest.raises(InvalidArgument, match=reason):
        records.encode(segment_of(**asdict(G0_SEGMENT) | changes))


@given(anything)
def test_every_record_survives_the_round_trip(record):
    value = records.encode(record)
    assert records.decode(value) == record
    assert records.decode(memoryview(bytearray(value))) == record
    assert records.decode_normal(value) == (record, value)


@given(anything)
def test_the_short_cut_reads_what_the_long_way_reads(record):
    value = records.encode(record)
    assert common_shape.read(value) in (None, record)
    assert read_any(value) == record


@given(anything)
def test_the_segment_of_an_update_is_found_without_reading_the_rest(record):
    found = common_shape.updated(records.encode(record))
    if isinstance(record, SegmentUpdate) and len(record.partition.topic.encode()) < 127:
        assert found == record.segment_id
    else:
        assert found is None


@given(segments, updates)
def test_a_spliced_update_equals_the_update_of_the_decoded_segment(segment, update):
    update = replace(update, segment_id=segment.segment_id)
    merged = records.merge(records.encode(segment), update)
    assert merged == records.encode(segment.with_update(update))


def test_peek_reads_the_envelope_alone_and_long_varints_too():
    assert records.peek(b"\x01\x02\x00garbage") is ApiKey.PARTITION_DELETE
    assert records.peek(bytes.fromhex("818080800081808080008080808000")) == 1
    with pytest.raises(Malformed):
        records.peek(b"\x02\x00\x00")
