"""Lines of Kafka's RemoteLogMetadataFormatter; tests/kafka compares with Kafka itself."""

from rlmm_daemon.codec import formatter
from tests.unit.daemon.events import started, updated

SEGMENT = (
    "remoteLogSegmentId=RemoteLogSegmentId{topicIdPartition=AQIDBAUGBwgJCgsMDQ4PEA:orders-0,"
    " id=AAAAAAAAAAAAAAAAAAAAAQ}"
)


def test_a_copys_two_events_look_as_kafka_prints_them():
    assert formatter.line(7, 42, started(1, 0, 9)) == (
        f"partition: 7, offset: 42, value: RemoteLogSegmentMetadata{{{SEGMENT}, startOffset=0,"
        " endOffset=9, brokerId=1, maxTimestampMs=7, eventTimestampMs=1001,"
        " segmentLeaderEpochs={0=0}, segmentSizeInBytes=100, customMetadata=Optional.empty,"
        " state=COPY_SEGMENT_STARTED, txnIdxEmpty=false}"
    )
    assert formatter.line(7, 43, updated(1)) == (
        f"partition: 7, offset: 43, value: RemoteLogSegmentMetadataUpdate{{{SEGMENT},"
        " customMetadata=Optional.empty, state=COPY_SEGMENT_FINISHED, eventTimestampMs=2001,"
        " brokerId=1}"
    )


def test_what_kafkas_formatter_dies_of_is_a_line_too():
    assert formatter.line(0, 1, None) == "partition: 0, offset: 1, value: null"
    assert formatter.line(0, 1, b"\xff\x00") == "partition: 0, offset: 1, value: ff00"
