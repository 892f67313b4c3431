"""What is packed by hand is what aiokafka's structs are, byte for byte and field for field."""

from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.adapters.kafka.connection.fetching import (
    FetchAnswer,
    FetchPartition,
    _usual,
    of_struct,
)
from rlmm_daemon.adapters.kafka.connection.producing import ProduceBatches
from rlmm_daemon.adapters.kafka.connection.requests import (
    NO_TAGS,
    Fetch,
    Metadata,
    ProduceById,
    TopicError,
    VersionMissing,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
IDS = st.binary(min_size=16, max_size=16)
RECORDS = st.one_of(st.none(), st.binary(max_size=300), st.just(b"r" * 20_000))


@given(IDS, INT32, INT32, INT64, INT32, INT32, INT32)
def test_a_request_has_the_bytes_of_the_struct(  # noqa: PLR0917 - the fields of the request
    topic_id, partition, leader_epoch, position, last_epoch, wait_ms, bytes_max
):
    mine = FetchPartition(
        topic_id,
        partition,
        leader_epoch=leader_epoch,
        position=position,
        last_epoch=last_epoch,
        wait_ms=wait_ms,
        bytes_max=bytes_max,
    )
    row = (partition, leader_epoch, position, last_epoch, -1, bytes_max, NO_TAGS)
    topics: Any = [(topic_id, [row], NO_TAGS)]
    theirs = Fetch(-1, wait_ms, 1, bytes_max, 0, 0, -1, topics, [], "", NO_TAGS)
    assert mine.encode() == theirs.encode()
    header = theirs.build_request_header(correlation_id=7, client_id="rlmm")
    assert mine.build_request_header(7, "rlmm").encode() == header.encode()


@given(IDS, st.lists(st.tuples(INT32, RECORDS.filter(bool)), min_size=1, max_size=200), INT32)
def test_a_produce_request_has_the_bytes_of_the_struct(topic_id, batches, timeout_ms):
    rows = [(partition, records, NO_TAGS) for partition, records in batches]
    topics: Any = [(topic_id, rows, NO_TAGS)]
    theirs = ProduceById(None, -1, timeout_ms, topics, NO_TAGS)
    mine = ProduceBatches(topic_id, batches, timeout_ms=timeout_ms)
    assert mine.encode() == theirs.encode()


def answered(topics: Any, error: int = 0) -> tuple[FetchAnswer, FetchAnswer, bytes]:
    """Return an answer read both ways, behind a header as aiokafka hands it on."""
    struct = Fetch.RESPONSE_TYPE(0, error, 0, topics, NO_TAGS)
    packed = struct.encode()
    data = BytesIO(b"headr" + packed)
    data.read(5)
    return FetchAnswer.decode(data), of_struct(Fetch.RESPONSE_TYPE.decode(BytesIO(packed))), packed


@pytest.mark.parametrize("tags", [b"\0", b"\x01\x07\x02ab"])
def test_an_answers_header_is_read_with_and_without_tags(tags):
    data = BytesIO((-9).to_bytes(4, "big", signed=True) + tags + b"body")
    request = FetchPartition(
        b"i" * 16, 0, leader_epoch=0, position=0, last_epoch=-1, wait_ms=1, bytes_max=1
    )
    assert request.parse_response_header(data).correlation_id == -9
    assert data.read() == b"body"


@given(IDS, INT32, st.integers(-1, 200), INT64, INT64, RECORDS)
def test_the_usual_answer_is_read_as_the_struct_reads_it(  # noqa: PLR0917 - of the answer
    topic_id, index, error, high, start, records
):
    row = (index, error, high, -1, start, None, -1, records, NO_TAGS)
    mine, theirs, packed = answered([(topic_id, [row], NO_TAGS)])
    assert mine == theirs
    assert _usual(memoryview(packed)) == mine, "the fast way is taken"


@pytest.mark.parametrize("aborted", [[(7, 3, NO_TAGS)], [(7, 3, NO_TAGS)] * 3])
def test_an_answer_with_aborted_transactions_is_left_to_the_struct(aborted):
    row = (1, 0, 9, 9, 0, aborted, -1, b"records", NO_TAGS)
    mine, theirs, packed = answered([(b"i" * 16, [row], NO_TAGS)])
    assert mine == theirs
    assert mine.records == b"records"
    assert _usual(memoryview(packed)) is None


@pytest.mark.parametrize(("error", "seen"), [(70, 70), (0, -1)])
def test_an_answer_without_the_partition_is_an_error(error, seen):
    mine, theirs, _ = answered([], error)
    assert mine == theirs
    assert mine.error == seen


def test_a_diverging_epoch_is_read():
    row = (1, 0, 9, 9, 0, None, -1, None, NO_TAGS)
    _, _, packed = answered([(b"i" * 16, [row], NO_TAGS)])
    # Three ends of structures: one tag, number 0, of 13 bytes and its own end, in the first.
    diverging = b"\x01\x00\x0d" + (3).to_bytes(4, "big") + (28).to_bytes(8, "big") + b"\0"
    found = FetchAnswer.decode(BytesIO(packed[:-3] + diverging + b"\0\0"))
    assert found.diverging == (3, 28)


def test_a_broker_without_the_version_is_told():
    request = FetchPartition(
        b"i" * 16, 0, leader_epoch=0, position=0, last_epoch=-1, wait_ms=1, bytes_max=1
    )
    assert request.prepare({1: (4, 18)}) is request
    with pytest.raises(VersionMissing, match="4 to 12"):
        request.prepare({1: (4, 12)})


NODES = [(1, "host", 9092, None, NO_TAGS), (2, "other", 9093, "rack", NO_TAGS)]


@pytest.mark.parametrize("error", [0, 3, 100])
def test_a_topics_error_is_read_without_its_partitions(error):
    rows: Any = [(0, index, 1, 7, [1, 2], [1], [], NO_TAGS) for index in range(50)]
    topic = (error, "name", bytes(range(16)), False, rows, 0, NO_TAGS)
    whole = Metadata.RESPONSE_TYPE(0, NODES, "cluster", 1, [topic], NO_TAGS)
    found = TopicError.RESPONSE_TYPE.decode(BytesIO(whole.encode()))
    assert (found.error, found.cluster_id) == (error, "cluster")


def test_an_answer_without_topics_has_no_error():
    whole = Metadata.RESPONSE_TYPE(0, NODES, "cluster", 1, [], NO_TAGS)
    assert TopicError.RESPONSE_TYPE.decode(BytesIO(whole.encode())).error is None


def test_both_questions_have_the_same_bytes():
    asked = ([(bytes(range(16)), None, NO_TAGS)], False, False, NO_TAGS)
    assert TopicError(*asked).encode() == Metadata(*asked).encode()
