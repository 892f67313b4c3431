"""Requests between replicas, to Kafka's messages and back.

One topic-partition for each request, as Kafka's own replicas have it.
Source: RaftUtil, KafkaRaftClient.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from rlmm_daemon.codec.kraft import apis
from rlmm_daemon.codec.kraft.schema import Api, Message
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.core.raft.messages import (
    NO_HURRY,
    AddVoterRequest,
    BeginEpochRequest,
    EndEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    RemoveVoterRequest,
    Request,
    UpdateVoterRequest,
    VoteRequest,
)
from rlmm_daemon.core.raft.voters import NO_DIRECTORY, Endpoint, ReplicaKey, Voter

#: What a fetch answer holds at most, unless one batch alone is larger.
FETCH_BYTES_MAX: Final = 1 << 20
SNAPSHOT_BYTES_MAX: Final = 1 << 20
NOBODY: Final = -1


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The one log of a quorum, as requests name it."""

    cluster_id: str
    topic: str
    topic_id: bytes
    #: The listener whose addresses answers name.
    listener: str


class OtherTopic(Exception):
    """A request for another topic, or for none or several."""


class Incoming(msgspec.Struct, frozen=True):
    """A request that was read, and the cluster that it names."""

    request: Request
    cluster_id: str | None


_APIS: Final[Mapping[type[Request], Api]] = MappingProxyType(
    {
        VoteRequest: apis.VOTE,
        BeginEpochRequest: apis.BEGIN_QUORUM_EPOCH,
        EndEpochRequest: apis.END_QUORUM_EPOCH,
        FetchRequest: apis.FETCH,
        FetchSnapshotRequest: apis.FETCH_SNAPSHOT,
        AddVoterRequest: apis.ADD_RAFT_VOTER,
        RemoveVoterRequest: apis.REMOVE_RAFT_VOTER,
        UpdateVoterRequest: apis.UPDATE_RAFT_VOTER,
    }
)


def api_of(request: Request) -> Api:
    """Return the API that carries this request."""
    return _APIS[type(request)]


# Requests, to Kafka's messages.


def request_message(group: Group, request: Request) -> Message:
    """Return a request's fields; older versions leave out what they have not."""
    return _cluster(group) | _WRITERS[type(request)](group, request)


def _cluster(group: Group) -> Message:
    return {"ClusterId": group.cluster_id}


def topics_of(group: Group, partition: Message, *, name: str = "TopicName") -> Message:
    """Return the field that names one partition of the quorum's log."""
    return {"Topics": ({name: group.topic, "Partitions": (partition,)},)}


def _key(key: ReplicaKey, prefix: str) -> Message:
    return {f"{prefix}Id": key.id, f"{prefix}DirectoryId": key.directory}


def _voter(voter: Voter) -> Message:
    return _key(voter.key, "Voter") | {"Listeners": _listeners(voter.endpoints)}


def _listeners(endpoints: tuple[Endpoint, ...]) -> tuple[Message, ...]:
    return tuple({"Name": each.name, "Host": each.host, "Port": each.port} for each in endpoints)


def _vote(group: Group, request: VoteRequest) -> Message:
    partition = {
        "PartitionIndex": 0,
        "ReplicaEpoch": request.epoch,
        **_key(request.candidate, "Replica"),
        "VoterDirectoryId": request.voter.directory if request.voter else NO_DIRECTORY,
        "LastOffsetEpoch": request.last.epoch,
        "LastOffset": request.last.end,
        "PreVote": request.pre_vote,
    }
    asked = {"VoterId": request.voter.id if request.voter else NOBODY}
    return asked | topics_of(group, partition)


def _begin(group: Group, request: BeginEpochRequest) -> Message:
    partition = {
        "PartitionIndex": 0,
        "VoterDirectoryId": request.voter.directory if request.voter else NO_DIRECTORY,
        "LeaderId": request.leader.id,
        "LeaderEpoch": request.epoch,
    }
    told = {
        "VoterId": request.voter.id if request.voter else NOBODY,
        "LeaderEndpoints": _listeners(request.endpoints),
    }
    return told | topics_of(group, partition)


def _end(group: Group, request: EndEpochRequest) -> Message:
    partition = {
        "PartitionIndex": 0,
        "LeaderId": request.leader.id,
        "LeaderEpoch": request.epoch,
        "PreferredCandidates": tuple(_key(key, "Candidate") for key in request.successors),
    }
    return topics_of(group, partition)


def _fetch(group: Group, request: FetchRequest) -> Message:
    partition = {
        "Partition": 0,
        "CurrentLeaderEpoch": request.epoch,
        "FetchOffset": request.point.end,
        "LastFetchedEpoch": request.point.epoch,
        "ReplicaDirectoryId": request.replica.directory,
        "HighWatermark": request.high_watermark,
    }
    return {
        "MaxWaitMs": request.wait_ms,
        "MaxBytes": FETCH_BYTES_MAX,
        "ReplicaState": {"ReplicaId": request.replica.id},
        "Topics": ({"TopicId": group.topic_id, "Partitions": (partition,)},),
        **_cluster(group),
    }


def _fetch_snapshot(group: Group, request: FetchSnapshotRequest) -> Message:
    partition = {
        "Partition": 0,
        "CurrentLeaderEpoch": request.epoch,
        "SnapshotId": snapshot_id(request.snapshot),
        "Position": request.position,
        "ReplicaDirectoryId": request.replica.directory,
    }
    asker = {"ReplicaId": request.replica.id, "MaxBytes": SNAPSHOT_BYTES_MAX}
    return asker | topics_of(group, partition, name="Name") | _cluster(group)


def _add(_group: Group, request: AddVoterRequest) -> Message:
    return _voter(request.voter) | {"AckWhenCommitted": request.when_committed}


def _remove(_group: Group, request: RemoveVoterRequest) -> Message:
    return _key(request.voter, "Voter")


def _update(_group: Group, request: UpdateVoterRequest) -> Message:
    least, most = request.voter.versions
    feature = {"MinSupportedVersion": least, "MaxSupportedVersion": most}
    told = {"CurrentLeaderEpoch": request.epoch, "KRaftVersionFeature": feature}
    return _voter(request.voter) | told


#: Each takes requests of its kind.
_WRITERS: Final[Mapping[type[Request], Callable[[Group, Any], Message]]] = MappingProxyType(
    {
        VoteRequest: _vote,
        BeginEpochRequest: _begin,
        EndEpochRequest: _end,
        FetchRequest: _fetch,
        FetchSnapshotRequest: _fetch_snapshot,
        AddVoterRequest: _add,
        RemoveVoterRequest: _remove,
        UpdateVoterRequest: _update,
    }
)


def snapshot_id(point: LogPoint) -> Message:
    """Return a snapshot's id, or a diverging epoch."""
    return {"EndOffset": point.end, "Epoch": point.epoch}


# Requests, from Kafka's messages.


def read_request(group: Group, api: Api, version: int, body: bytes) -> Incoming:
    """Return what a replica or an operator asks.

    Raises:
        Malformed: it is no such request.
        OtherTopic: it is for another log than this one.
    """
    message = api.read_request(version, body)
    return Incoming(_READERS[api.key](group, message), message["ClusterId"])


def _partition(group: Group, message: Message, *, name: str = "TopicName") -> Message:
    """Return the only partition that it names."""
    topics = message["Topics"]
    wanted = group.topic_id if name == "TopicId" else group.topic
    if len(topics) != 1 or topics[0][name] != wanted or len(topics[0]["Partitions"]) != 1:
        raise OtherTopic
    partition: Message = topics[0]["Partitions"][0]
    index = next(partition[key] for key in ("PartitionIndex", "Partition") if key in partition)
    if index != 0:
        raise OtherTopic
    return partition


def _key_of(message: Message, prefix: str) -> ReplicaKey:
    return ReplicaKey(message[f"{prefix}Id"], message.get(f"{prefix}DirectoryId", NO_DIRECTORY))


def _receiver(message: Message, partition: Message) -> ReplicaKey | None:
    voter = message.get("VoterId", NOBODY)
    if voter < 0:
        return None
    return ReplicaKey(voter, partition.get("VoterDirectoryId", NO_DIRECTORY))


def _endpoints(listeners: tuple[Message, ...]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(each["Name"], each["Host"], each["Port"]) for each in listeners)


def _read_vote(group: Group, message: Message) -> Request:
    partition = _partition(group, message)
    return VoteRequest(
        epoch=partition["ReplicaEpoch"],
        candidate=_key_of(partition, "Replica"),
        last=LogPoint(partition["LastOffsetEpoch"], partition["LastOffset"]),
        voter=_receiver(message, partition),
        pre_vote=partition.get("PreVote", False),
    )


def _read_begin(group: Group, message: Message) -> Request:
    partition = _partition(group, message)
    return BeginEpochRequest(
        epoch=partition["LeaderEpoch"],
        leader=ReplicaKey(partition["LeaderId"]),
        voter=_receiver(message, partition),
        endpoints=_endpoints(message.get("LeaderEndpoints", ())),
    )


def _read_end(group: Group, message: Message) -> Request:
    partition = _partition(group, message)
    named = tuple(_key_of(each, "Candidate") for each in partition.get("PreferredCandidates", ()))
    older = tuple(ReplicaKey(each) for each in partition.get("PreferredSuccessors", ()))
    return EndEpochRequest(
        epoch=partition["LeaderEpoch"],
        leader=ReplicaKey(partition["LeaderId"]),
        successors=named or older,
    )


def _read_fetch(group: Group, message: Message) -> Request:
    partition = _partition(group, message, name="TopicId")
    return FetchRequest(
        epoch=partition["CurrentLeaderEpoch"],
        replica=ReplicaKey(message["ReplicaState"]["ReplicaId"], partition["ReplicaDirectoryId"]),
        point=LogPoint(partition["LastFetchedEpoch"], partition["FetchOffset"]),
        high_watermark=partition.get("HighWatermark", NO_HURRY),
        wait_ms=message["MaxWaitMs"],
    )


def _read_fetch_snapshot(group: Group, message: Message) -> Request:
    partition = _partition(group, message, name="Name")
    wanted = partition["SnapshotId"]
    return FetchSnapshotRequest(
        epoch=partition["CurrentLeaderEpoch"],
        replica=ReplicaKey(message["ReplicaId"], partition.get("ReplicaDirectoryId", NO_DIRECTORY)),
        snapshot=LogPoint(wanted["Epoch"], wanted["EndOffset"]),
        position=partition["Position"],
    )


def _read_add(_group: Group, message: Message) -> Request:
    voter = Voter(_key_of(message, "Voter"), _endpoints(message["Listeners"]))
    return AddVoterRequest(voter=voter, when_committed=message.get("AckWhenCommitted", True))


def _read_remove(_group: Group, message: Message) -> Request:
    return RemoveVoterRequest(voter=_key_of(message, "Voter"))


def _read_update(_group: Group, message: Message) -> Request:
    feature = message["KRaftVersionFeature"]
    voter = Voter(
        _key_of(message, "Voter"),
        _endpoints(message["Listeners"]),
        (feature["MinSupportedVersion"], feature["MaxSupportedVersion"]),
    )
    return UpdateVoterRequest(epoch=message["CurrentLeaderEpoch"], voter=voter)


_READERS: Final[Mapping[int, Callable[[Group, Message], Request]]] = MappingProxyType(
    {
        apis.VOTE.key: _read_vote,
        apis.BEGIN_QUORUM_EPOCH.key: _read_begin,
        apis.END_QUORUM_EPOCH.key: _read_end,
        apis.FETCH.key: _read_fetch,
        apis.FETCH_SNAPSHOT.key: _read_fetch_snapshot,
        apis.ADD_RAFT_VOTER.key: _read_add,
        apis.REMOVE_RAFT_VOTER.key: _read_remove,
        apis.UPDATE_RAFT_VOTER.key: _read_update,
    }
)


def carries(api: Api) -> bool:
    """Whether this API's requests are the replica's to decide."""
    return api.key in _READERS
