"""The partitioner against Kafka's own answers."""

import json
from pathlib import Path

import pytest

from rlmm_daemon.core.partitioner import PARTITIONER_ID, _hash, _murmur2, metadata_partition
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import TopicId, uuid_bytes

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "partitions.jsonl"


def topic_id(text: str) -> TopicId:
    return TopicId(uuid_bytes(text))


def test_every_golden_partition_is_where_kafka_puts_it():
    lines = [json.loads(line) for line in GOLDEN.read_text("utf-8").splitlines()]
    assert len(lines) == 200
    for line in lines:
        for count, expected in line["metadata_partition"].items():
            found = metadata_partition(topic_id(line["topic_id"]), line["partition"], int(count))
            assert found == expected, (line, count)


@pytest.mark.parametrize(
    ("text", "partition", "hashed", "murmured"),
    [
        ("AAAAAAAAAAAAAAAAAAAAAA", 0, 29791, -104191892),
        ("Bp9TDduJRGa9Q5rlvCJOxg", 3, -169172550, -1809167474),
        ("AQIDBAUGBwgJCgsMDQ4PEA", 1000, -1886362921, 420463696),
    ],
)
def test_each_step_of_the_hash_is_kafkas(text, partition, hashed, murmured):
    assert _hash(topic_id(text), partition) == hashed % 2**32
    assert _murmur2(hashed % 2**32) == murmured % 2**32


@pytest.mark.parametrize(
    ("least", "expected"),
    [(0xCA, [12, 49, 37, 9, 8, 1, 47, 31]), (0x01, [35, 6, 18, 29, 12, 34, 19, 46])],
)
def test_the_first_eight_partitions_of_two_small_topic_ids(least, expected):
    small = TopicId(bytes(15) + bytes((least,)))
    assert [metadata_partition(small, partition, 50) for partition in range(8)] == expected


@pytest.mark.parametrize(
    ("identity", "partition", "count"),
    [(bytes(15), 0, 50), (bytes(16), 2**31, 50), (bytes(16), 0, 0), (bytes(16), 0, -1)],
)
def test_arguments_without_an_answer_are_refused(identity, partition, count):
    with pytest.raises(InvalidArgument):
        metadata_partition(TopicId(identity), partition, count)


def test_the_id_that_snapshots_store_never_changes():
    assert PARTITIONER_ID == 1
