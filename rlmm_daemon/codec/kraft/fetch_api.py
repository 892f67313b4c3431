"""Fetch, whose table is the longest: the log's way from a leader to everybody else.

Source: FetchRequest.json, FetchResponse.json, Kafka 4.3.1.
"""

from typing import Final

from rlmm_daemon.codec.kraft.fields import ERROR, PARTITION, THROTTLE
from rlmm_daemon.codec.kraft.schema import (
    INT8,
    INT32,
    INT64,
    NULLABLE_BYTES,
    NULLABLE_STRING,
    STRING,
    UUID,
    Api,
    Array,
    Field,
    Fields,
)

_INT64_MAX: Final = (1 << 63) - 1
_CURRENT_LEADER: Final = Fields(
    Field("LeaderId", INT32, default=-1), Field("LeaderEpoch", INT32, default=-1)
)

FETCH: Final = Api(
    1,
    "Fetch",
    17,
    18,
    Fields(
        Field("MaxWaitMs", INT32),
        Field("MinBytes", INT32),
        Field("MaxBytes", INT32, default=0x7FFFFFFF),
        Field("IsolationLevel", INT8),
        Field("SessionId", INT32),
        Field("SessionEpoch", INT32, default=-1),
        Field(
            "Topics",
            Array(
                Fields(
                    Field("TopicId", UUID),
                    Field(
                        "Partitions",
                        Array(
                            Fields(
                                Field("Partition", INT32),
                                Field("CurrentLeaderEpoch", INT32, default=-1),
                                Field("FetchOffset", INT64),
                                Field("LastFetchedEpoch", INT32, default=-1),
                                Field("LogStartOffset", INT64, default=-1),
                                Field("PartitionMaxBytes", INT32),
                                Field("ReplicaDirectoryId", UUID, 17, tag=0),
                                Field("HighWatermark", INT64, 18, tag=1, default=_INT64_MAX),
                            )
                        ),
                    ),
                )
            ),
        ),
        Field(
            "ForgottenTopicsData",
            Array(Fields(Field("TopicId", UUID), Field("Partitions", Array(INT32)))),
        ),
        Field("RackId", STRING),
        Field("ClusterId", NULLABLE_STRING, tag=0),
        Field(
            "ReplicaState",
            Fields(Field("ReplicaId", INT32, default=-1), Field("ReplicaEpoch", INT64, default=-1)),
            tag=1,
        ),
    ),
    Fields(
        THROTTLE,
        ERROR,
        Field("SessionId", INT32),
        Field(
            "Responses",
            Array(
                Fields(
                    Field("TopicId", UUID),
                    Field(
                        "Partitions",
                        Array(
                            Fields(
                                PARTITION,
                                ERROR,
                                Field("HighWatermark", INT64),
                                Field("LastStableOffset", INT64, default=-1),
                                Field("LogStartOffset", INT64, default=-1),
                                Field(
                                    "AbortedTransactions",
                                    Array(
                                        Fields(
                                            Field("ProducerId", INT64), Field("FirstOffset", INT64)
                                        ),
                                        nullable=True,
                                    ),
                                ),
                                Field("PreferredReadReplica", INT32, default=-1),
                                Field("Records", NULLABLE_BYTES),
                                Field(
                                    "DivergingEpoch",
                                    Fields(
                                        Field("Epoch", INT32, default=-1),
                                        Field("EndOffset", INT64, default=-1),
                                    ),
                                    tag=0,
                                ),
                                Field("CurrentLeader", _CURRENT_LEADER, tag=1),
                                Field(
                                    "SnapshotId",
                                    Fields(
                                        Field("EndOffset", INT64, default=-1),
                                        Field("Epoch", INT32, default=-1),
                                    ),
                                    tag=2,
                                ),
                            )
                        ),
                    ),
                )
            ),
        ),
        Field(
            "NodeEndpoints",
            Array(
                Fields(
                    Field("NodeId", INT32),
                    Field("Host", STRING),
                    Field("Port", INT32),
                    Field("Rack", NULLABLE_STRING),
                )
            ),
            tag=0,
        ),
    ),
)
