"""Requests of a KRaft quorum, table by table, as Kafka's message definitions have them.

Only versions that a 4.x quorum speaks are here. `Submit` is this project's own: a daemon that does
not lead hands its records to the leader.
Source: clients/src/main/resources/common/message/*.json, Kafka 4.3.1.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from rlmm_daemon.codec.kraft import fetch_api
from rlmm_daemon.codec.kraft.fields import ERROR, PARTITION, THROTTLE
from rlmm_daemon.codec.kraft.schema import (
    BOOL,
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    NULLABLE_BYTES,
    NULLABLE_STRING,
    STRING,
    UINT16,
    UUID,
    Api,
    Array,
    Field,
    Fields,
)

_NO_OPERATIONS: Final = -(1 << 31)

_CLUSTER: Final = Field("ClusterId", NULLABLE_STRING)
_MESSAGE: Final = Field("ErrorMessage", NULLABLE_STRING)


def _listeners(name: str = "Listeners", since: int = 0) -> Field:
    address = (Field("Name", STRING), Field("Host", STRING), Field("Port", UINT16))
    return Field(name, Array(Fields(*address)), since)


def _topics(*partition: Field, name: str = "TopicName") -> Field:
    partitions = Field("Partitions", Array(Fields(*partition)))
    return Field("Topics", Array(Fields(Field(name, STRING), partitions)))


_NODE_ENDPOINTS: Final = Field(
    "NodeEndpoints",
    Array(Fields(Field("NodeId", INT32), Field("Host", STRING), Field("Port", UINT16))),
    since=1,
    tag=0,
)
_LEADS: Final = (Field("LeaderId", INT32), Field("LeaderEpoch", INT32))

FETCH: Final = fetch_api.FETCH

SASL_HANDSHAKE: Final = Api(
    17,
    "SaslHandshake",
    1,
    1,
    Fields(Field("Mechanism", STRING)),
    Fields(ERROR, Field("Mechanisms", Array(STRING))),
    flexible=2,
)

API_VERSIONS: Final = Api(
    18,
    "ApiVersions",
    0,
    4,
    Fields(
        Field("ClientSoftwareName", STRING, 3),
        Field("ClientSoftwareVersion", STRING, 3),
    ),
    Fields(
        ERROR,
        Field(
            "ApiKeys",
            Array(
                Fields(
                    Field("ApiKey", INT16), Field("MinVersion", INT16), Field("MaxVersion", INT16)
                )
            ),
        ),
        Field("ThrottleTimeMs", INT32, 1),
        Field(
            "SupportedFeatures",
            Array(
                Fields(
                    Field("Name", STRING), Field("MinVersion", INT16), Field("MaxVersion", INT16)
                )
            ),
            3,
            tag=0,
        ),
        Field("FinalizedFeaturesEpoch", INT64, 3, tag=1, default=-1),
        Field(
            "FinalizedFeatures",
            Array(
                Fields(
                    Field("Name", STRING),
                    Field("MaxVersionLevel", INT16),
                    Field("MinVersionLevel", INT16),
                )
            ),
            3,
            tag=2,
        ),
        Field("ZkMigrationReady", BOOL, 3, tag=3),
    ),
    flexible=3,
    old_answer_header=True,
)

SASL_AUTHENTICATE: Final = Api(
    36,
    "SaslAuthenticate",
    0,
    2,
    Fields(Field("AuthBytes", BYTES)),
    Fields(ERROR, _MESSAGE, Field("AuthBytes", BYTES), Field("SessionLifetimeMs", INT64, 1)),
    flexible=2,
)

VOTE: Final = Api(
    52,
    "Vote",
    0,
    2,
    Fields(
        _CLUSTER,
        Field("VoterId", INT32, 1, default=-1),
        _topics(
            PARTITION,
            Field("ReplicaEpoch", INT32),
            Field("ReplicaId", INT32),
            Field("ReplicaDirectoryId", UUID, 1),
            Field("VoterDirectoryId", UUID, 1),
            Field("LastOffsetEpoch", INT32),
            Field("LastOffset", INT64),
            Field("PreVote", BOOL, 2),
        ),
    ),
    Fields(
        ERROR,
        _topics(PARTITION, ERROR, *_LEADS, Field("VoteGranted", BOOL)),
        _NODE_ENDPOINTS,
    ),
)

BEGIN_QUORUM_EPOCH: Final = Api(
    53,
    "BeginQuorumEpoch",
    0,
    1,
    Fields(
        _CLUSTER,
        Field("VoterId", INT32, 1, default=-1),
        _topics(PARTITION, Field("VoterDirectoryId", UUID, 1), *_LEADS),
        _listeners("LeaderEndpoints", 1),
    ),
    Fields(ERROR, _topics(PARTITION, ERROR, *_LEADS), _NODE_ENDPOINTS),
    flexible=1,
)

END_QUORUM_EPOCH: Final = Api(
    54,
    "EndQuorumEpoch",
    0,
    1,
    Fields(
        _CLUSTER,
        _topics(
            PARTITION,
            *_LEADS,
            Field("PreferredSuccessors", Array(INT32), until=0),
            Field(
                "PreferredCandidates",
                Array(Fields(Field("CandidateId", INT32), Field("CandidateDirectoryId", UUID))),
                1,
            ),
        ),
        _listeners("LeaderEndpoints", 1),
    ),
    Fields(ERROR, _topics(PARTITION, ERROR, *_LEADS), _NODE_ENDPOINTS),
    flexible=1,
)

_REPLICA: Final = Fields(
    Field("ReplicaId", INT32),
    Field("ReplicaDirectoryId", UUID, 2),
    Field("LogEndOffset", INT64),
    Field("LastFetchTimestamp", INT64, 1, default=-1),
    Field("LastCaughtUpTimestamp", INT64, 1, default=-1),
)

DESCRIBE_QUORUM: Final = Api(
    55,
    "DescribeQuorum",
    0,
    2,
    Fields(_topics(PARTITION)),
    Fields(
        ERROR,
        Field("ErrorMessage", NULLABLE_STRING, 2),
        _topics(
            PARTITION,
            ERROR,
            Field("ErrorMessage", NULLABLE_STRING, 2),
            *_LEADS,
            Field("HighWatermark", INT64),
            Field("CurrentVoters", Array(_REPLICA)),
            Field("Observers", Array(_REPLICA)),
        ),
        Field("Nodes", Array(Fields(Field("NodeId", INT32), _listeners())), 2),
    ),
)

_SNAPSHOT: Final = Field("SnapshotId", Fields(Field("EndOffset", INT64), Field("Epoch", INT32)))

FETCH_SNAPSHOT: Final = Api(
    59,
    "FetchSnapshot",
    0,
    1,
    Fields(
        Field("ReplicaId", INT32, default=-1),
        Field("MaxBytes", INT32, default=0x7FFFFFFF),
        _topics(
            Field("Partition", INT32),
            Field("CurrentLeaderEpoch", INT32),
            _SNAPSHOT,
            Field("Position", INT64),
            Field("ReplicaDirectoryId", UUID, 1, tag=0),
            name="Name",
        ),
        Field("ClusterId", NULLABLE_STRING, tag=0),
    ),
    Fields(
        THROTTLE,
        ERROR,
        _topics(
            Field("Index", INT32),
            ERROR,
            _SNAPSHOT,
            Field("CurrentLeader", Fields(*_LEADS), tag=0),
            Field("Size", INT64),
            Field("Position", INT64),
            Field("UnalignedRecords", BYTES),
            name="Name",
        ),
        _NODE_ENDPOINTS,
    ),
)

DESCRIBE_CLUSTER: Final = Api(
    60,
    "DescribeCluster",
    0,
    2,
    Fields(
        Field("IncludeClusterAuthorizedOperations", BOOL),
        Field("EndpointType", INT8, 1, default=1),
        Field("IncludeFencedBrokers", BOOL, 2),
    ),
    Fields(
        THROTTLE,
        ERROR,
        _MESSAGE,
        Field("EndpointType", INT8, 1, default=1),
        Field("ClusterId", STRING),
        Field("ControllerId", INT32, default=-1),
        Field(
            "Brokers",
            Array(
                Fields(
                    Field("BrokerId", INT32),
                    Field("Host", STRING),
                    Field("Port", INT32),
                    Field("Rack", NULLABLE_STRING),
                    Field("IsFenced", BOOL, 2),
                )
            ),
        ),
        Field("ClusterAuthorizedOperations", INT32, default=_NO_OPERATIONS),
    ),
)

_VOTER: Final = (Field("VoterId", INT32), Field("VoterDirectoryId", UUID))

ADD_RAFT_VOTER: Final = Api(
    80,
    "AddRaftVoter",
    0,
    1,
    Fields(
        _CLUSTER,
        Field("TimeoutMs", INT32),
        *_VOTER,
        _listeners(),
        Field("AckWhenCommitted", BOOL, 1, default=True),
    ),
    Fields(THROTTLE, ERROR, _MESSAGE),
)

REMOVE_RAFT_VOTER: Final = Api(
    81,
    "RemoveRaftVoter",
    0,
    0,
    Fields(_CLUSTER, *_VOTER),
    Fields(THROTTLE, ERROR, _MESSAGE),
)

UPDATE_RAFT_VOTER: Final = Api(
    82,
    "UpdateRaftVoter",
    0,
    0,
    Fields(
        _CLUSTER,
        Field("CurrentLeaderEpoch", INT32),
        *_VOTER,
        _listeners(),
        Field(
            "KRaftVersionFeature",
            Fields(Field("MinSupportedVersion", INT16), Field("MaxSupportedVersion", INT16)),
        ),
    ),
    Fields(
        THROTTLE,
        ERROR,
        Field(
            "CurrentLeader",
            Fields(
                Field("LeaderId", INT32, default=-1),
                Field("LeaderEpoch", INT32, default=-1),
                Field("Host", STRING),
                Field("Port", INT32),
            ),
            tag=0,
        ),
    ),
)

SUBMIT: Final = Api(
    1003,
    "Submit",
    0,
    0,
    Fields(
        _CLUSTER,
        Field("TopicId", UUID),
        Field(
            "Records",
            Array(Fields(Field("Key", NULLABLE_BYTES), Field("Value", NULLABLE_BYTES))),
        ),
    ),
    Fields(
        ERROR,
        Field("LeaderId", INT32, default=-1),
        Field("LeaderEpoch", INT32, default=-1),
        Field("BaseOffset", INT64, default=-1),
    ),
)

#: Where a read has to be to see all that was acknowledged before it was asked.
READ_INDEX: Final = Api(
    1004,
    "ReadIndex",
    0,
    0,
    Fields(_CLUSTER, Field("TopicId", UUID)),
    Fields(
        ERROR,
        Field("LeaderId", INT32, default=-1),
        Field("LeaderEpoch", INT32, default=-1),
        Field("EndOffset", INT64, default=-1),
    ),
)

#: Kafka has none of these.
OURS: Final = frozenset({SUBMIT.key, READ_INDEX.key})

APIS: Final[Mapping[int, Api]] = MappingProxyType(
    {
        each.key: each
        for each in (
            FETCH,
            SASL_HANDSHAKE,
            API_VERSIONS,
            SASL_AUTHENTICATE,
            VOTE,
            BEGIN_QUORUM_EPOCH,
            END_QUORUM_EPOCH,
            DESCRIBE_QUORUM,
            FETCH_SNAPSHOT,
            DESCRIBE_CLUSTER,
            ADD_RAFT_VOTER,
            REMOVE_RAFT_VOTER,
            UPDATE_RAFT_VOTER,
            SUBMIT,
            READ_INDEX,
        )
    }
)
