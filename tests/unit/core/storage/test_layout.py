import pytest

from rlmm_daemon.core.storage.layout import SUFFIXES, Layout, object_key, parse_key
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import Offset, SegmentId, TopicId, TopicIdPartition
from rlmm_daemon.ports.storage import ObjectKind

PLAIN = Layout()
ORDERS = TopicIdPartition(TopicId((1).to_bytes(16, "big")), "orders", 7)


def key(start: int, segment_id: int, suffix: str, layout: Layout = PLAIN) -> str:
    segment = SegmentId(segment_id.to_bytes(16, "big"))
    return object_key(layout, ORDERS, Offset(start), segment, suffix=suffix)


def test_keys_are_those_of_kafkas_local_tiered_storage():
    directory = "orders-7-AAAAAAAAAAAAAAAAAAAAAQ/"
    assert key(11, 0xFE, ".snapshot") == (
        directory + "00000000000000000011-AAAAAAAAAAAAAAAAAAAA_g.snapshot"
    )
    assert key(0, 30, ".log") == directory + "00000000000000000000-AAAAAAAAAAAAAAAAAAAAHg.log"


def test_a_prefix_stands_before_the_directory():
    assert key(0, 1, ".log", Layout("a/b")).startswith("a/b/orders-7-")


def test_the_suffixes_are_the_ports_kinds_in_upload_order():
    assert tuple(kind.value for kind in ObjectKind) == SUFFIXES


def test_a_hash_in_front_spreads_segments_and_keeps_the_objects_of_one_together():
    layout = Layout("{hash:8}/eu")
    logs = {key(0, n, ".log", layout).partition("/")[0] for n in range(1000)}
    assert len(logs) > 240
    assert all(len(each) == 2 for each in logs)
    one = {key(0, 7, suffix, layout).rpartition(".")[0] for suffix in SUFFIXES}
    assert len(one) == 1
    assert one.pop().endswith("/eu/" + key(0, 7, ".log").removesuffix(".log"))
    assert layout.listed_prefix == ""
    assert Layout("eu").listed_prefix == "eu/"


def test_under_another_hash_than_its_own_a_key_is_nobodys():
    layout = Layout("{hash:16}")
    mine = key(0, 7, ".log", layout)
    other = f"{int(mine[:4], 16) ^ 1:04x}{mine[4:]}"
    assert parse_key(layout, mine) is not None
    assert parse_key(layout, other) is None
    assert parse_key(Layout(), mine) is None


HASHED = Layout("{hash:20}/a")


@pytest.mark.parametrize("layout", [Layout(), Layout("a/b-1"), Layout("{hash:4}"), HASHED])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_key_parses_back(layout, suffix):
    parsed = parse_key(layout, key(11, 0xFE, suffix, layout))
    assert parsed is not None
    assert (parsed.partition, parsed.start_offset, parsed.suffix) == (ORDERS, 11, suffix)
    assert parsed.segment_id == (0xFE).to_bytes(16, "big")


@pytest.mark.parametrize(
    "foreign",
    [
        "_rlmm/marker.json",
        key(1, 1, ".log").replace("-7-", "-07-"),
        key(1, 1, ".log").replace(".log", ".tmp"),
        key(1, 1, ".log").replace("AQ.log", "AR.log"),
        "x/" + key(1, 1, ".log"),
    ],
)
def test_what_no_segment_could_be_named_is_not_parsed(foreign):
    assert parse_key(Layout(), foreign) is None


@pytest.mark.parametrize(
    "prefix",
    [
        "..",
        "a/../b",
        "/a",
        "a/",
        "a//b",
        "a b",
        ".",
        "{hash:5}",
        "a/{hash:8}",
        "{hash:8}/..",
        "{hash:8}/",
        "{hash:8}a",
    ],
)
def test_a_prefix_that_could_leave_the_root_is_refused(prefix):
    with pytest.raises(InvalidArgument):
        Layout(prefix)


@pytest.mark.parametrize("topic", ["..", "a/b", "", "a\0", "x" * 250])
def test_a_topic_that_kafka_forbids_has_no_key(topic):
    partition = TopicIdPartition(ORDERS.topic_id, topic + ("/" if topic == ".." else ""), 0)
    with pytest.raises(InvalidArgument):
        object_key(Layout(), partition, Offset(0), SegmentId(bytes(16)), suffix=".log")
