"""Between what replicas say to each other and Kafka's messages for it.

One topic-partition for each request, as Kafka's own replicas have it. What concerns the whole
request (another cluster, another topic) is an error at the top of an answer; whatever the replica
itself decided stands with the partition.
Source: RaftUtil, KafkaRaftClient.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from rlmm_daemon.codec.kraft import apis, log_batches
from rlmm_daemon.codec.kraft.schema import Api, Message
from rlmm_daemon.core.raft.log_facts import Batch, LogPoint
from rlmm_daemon.core.raft.messages import (
    NO_HURRY,
    AddVoterRequest,
    Answer,
    BeginEpochRequest,
    Code,
    EndEpochRequest,
    FetchAnswer,
    FetchRequest,
    FetchSnapshotAnswer,
    FetchSnapshotRequest,
    RemoveVoterRequest,
    Request,
    UpdateVoterRequest,
    VoteAnswer,
    VoteRequest,
    answer_to,
)
from rlmm_daemon.core.raft.voters import NO_DIRECTORY, Endpoint, ReplicaKey, Voter
from rlmm_daemon.domain.errors import Malformed

#: What a fetch answer holds at most, unless one batch alone is larger.
FETCH_BYTES_MAX: Final = 1 << 20
SNAPSHOT_BYTES_MAX: Final = 1 << 20
#: Errors of a request as a whole.
_AT_THE_TOP: Final = frozenset({Code.INCONSISTENT_CLUSTER_ID, Code.CLUSTER_AUTHORIZATION_FAILED})
_NOBODY: Final = -1
#: Kafka's code for a topic that is not here; no replica answers it of itself.
UNKNOWN_TOPIC: Final = 3


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


def _topics(group: Group, partition: Message, *, name: str = "TopicName") -> Message:
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
    asked = {"VoterId": request.voter.id if request.voter else _NOBODY}
    return asked | _topics(group, partition)


def _begin(group: Group, request: BeginEpochRequest) -> Message:
    partition = {
        "PartitionIndex": 0,
        "VoterDirectoryId": request.voter.directory if request.voter else NO_DIRECTORY,
        "LeaderId": request.leader.id,
        "LeaderEpoch": request.epoch,
    }
    told = {
        "VoterId": request.voter.id if request.voter else _NOBODY,
        "LeaderEndpoints": _listeners(request.endpoints),
    }
    return told | _topics(group, partition)


def _end(group: Group, request: EndEpochRequest) -> Message:
    partition = {
        "PartitionIndex": 0,
        "LeaderId": request.leader.id,
        "LeaderEpoch": request.epoch,
        "PreferredCandidates": tuple(_key(key, "Candidate") for key in request.successors),
    }
    return _topics(group, partition)


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
    }


def _fetch_snapshot(group: Group, request: FetchSnapshotRequest) -> Message:
    partition = {
        "Partition": 0,
        "CurrentLeaderEpoch": request.epoch,
        "SnapshotId": _snapshot_id(request.snapshot),
        "Position": request.position,
        "ReplicaDirectoryId": request.replica.directory,
    }
    asker = {"ReplicaId": request.replica.id, "MaxBytes": SNAPSHOT_BYTES_MAX}
    return asker | _topics(group, partition, name="Name")


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


def _snapshot_id(point: LogPoint) -> Message:
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
    voter = message.get("VoterId", _NOBODY)
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


# Answers, to Kafka's messages.


def answer_message(group: Group, api: Api, answer: Answer) -> Message:
    """Return an answer's fields."""
    if api in (apis.ADD_RAFT_VOTER, apis.REMOVE_RAFT_VOTER):
        return {"ErrorCode": answer.error}
    if answer.error in _AT_THE_TOP:
        return {"ErrorCode": answer.error}
    if api is apis.UPDATE_RAFT_VOTER:
        return {"ErrorCode": answer.error, "CurrentLeader": _leader_with_address(group, answer)}
    partition = _PARTITIONS[api.key](answer)
    if api is apis.FETCH:
        responses = ({"TopicId": group.topic_id, "Partitions": (partition,)},)
        return {"Responses": responses, "NodeEndpoints": _nodes(group, answer)}
    name = "Name" if api is apis.FETCH_SNAPSHOT else "TopicName"
    return _topics(group, partition, name=name) | {"NodeEndpoints": _nodes(group, answer)}


def refusal(api: Api, error: Code) -> Message:
    """Return the answer to a request that names another cluster or another log."""
    if api is apis.FETCH_SNAPSHOT and error is Code.INVALID_REQUEST:
        return {"ErrorCode": UNKNOWN_TOPIC}
    return {"ErrorCode": error}


def _leads(answer: Answer) -> Message:
    leader = answer.leader if answer.leader is not None else _NOBODY
    return {"LeaderId": leader, "LeaderEpoch": answer.epoch}


def _address(group: Group, answer: Answer) -> Endpoint | None:
    named = (each for each in answer.endpoints if each.name == group.listener)
    return next(named, next(iter(answer.endpoints), None))


def _nodes(group: Group, answer: Answer) -> tuple[Message, ...]:
    at = _address(group, answer)
    if answer.leader is None or at is None:
        return ()
    return ({"NodeId": answer.leader, "Host": at.host, "Port": at.port},)


def _leader_with_address(group: Group, answer: Answer) -> Message:
    at = _address(group, answer)
    return _leads(answer) | ({} if at is None else {"Host": at.host, "Port": at.port})


def _plain_partition(answer: Answer) -> Message:
    return {"PartitionIndex": 0, "ErrorCode": answer.error, **_leads(answer)}


def _vote_partition(answer: Answer) -> Message:
    granted = isinstance(answer, VoteAnswer) and answer.granted
    return _plain_partition(answer) | {"VoteGranted": granted}


def _fetch_partition(answer: Answer) -> Message:
    assert isinstance(answer, FetchAnswer), "a fetch gets a fetch's answer"
    payloads = [batch.payload for batch in answer.batches]
    said: Message = {
        "PartitionIndex": 0,
        "ErrorCode": answer.error,
        "HighWatermark": answer.high_watermark,
        "LogStartOffset": answer.start,
        "Records": b"".join(each for each in payloads if isinstance(each, bytes)),
        "CurrentLeader": _leads(answer),
    }
    if answer.diverging is not None:
        said["DivergingEpoch"] = _snapshot_id(answer.diverging)
    if answer.snapshot is not None:
        said["SnapshotId"] = _snapshot_id(answer.snapshot)
    return said


def _snapshot_partition(answer: Answer) -> Message:
    assert isinstance(answer, FetchSnapshotAnswer), "a snapshot's fetch gets its answer"
    return {
        "Index": 0,
        "ErrorCode": answer.error,
        "SnapshotId": {} if answer.snapshot is None else _snapshot_id(answer.snapshot),
        "CurrentLeader": _leads(answer),
        "Size": answer.size,
        "Position": answer.position,
        "UnalignedRecords": answer.piece,
    }


_PARTITIONS: Final[Mapping[int, Callable[[Answer], Message]]] = MappingProxyType(
    {
        apis.VOTE.key: _vote_partition,
        apis.BEGIN_QUORUM_EPOCH.key: _plain_partition,
        apis.END_QUORUM_EPOCH.key: _plain_partition,
        apis.FETCH.key: _fetch_partition,
        apis.FETCH_SNAPSHOT.key: _snapshot_partition,
    }
)


# Answers, from Kafka's messages.


def read_answer(group: Group, request: Request, version: int, body: bytes) -> Answer:
    """Return what was answered to a request.

    An error at the top says nothing of epochs: it counts as one of the epoch that was asked in.

    Raises:
        Malformed: it is no answer to that.
    """
    api = api_of(request)
    message = api.read_answer(version, body)
    kind = answer_to(request)
    if message["ErrorCode"] or api in (apis.ADD_RAFT_VOTER, apis.REMOVE_RAFT_VOTER):
        return kind(error=_code(message), epoch=getattr(request, "epoch", 0))
    if api is apis.UPDATE_RAFT_VOTER:
        at = message["CurrentLeader"]
        here = (Endpoint(group.listener, at["Host"], at["Port"]),) if at["Host"] else ()
        return kind(error=Code.NONE, endpoints=here, **_led(at))
    partition = _answered_partition(message)
    common: dict[str, Any] = {"error": _code(partition)}
    led = _led(partition.get("CurrentLeader", partition))
    common |= led | {"endpoints": _node(group, message, led["leader"])}
    match request:
        case VoteRequest():
            return VoteAnswer(granted=partition["VoteGranted"], **common)
        case FetchRequest():
            return _read_fetched(partition, common)
        case FetchSnapshotRequest():
            return _read_piece(partition, common)
        case _:
            return Answer(**common)


def _code(message: Message) -> Code:
    try:
        return Code(message["ErrorCode"])
    except ValueError:  # one of those that no replica is known to answer
        return Code.UNKNOWN_SERVER_ERROR


def _answered_partition(message: Message) -> Message:
    topics = message["Responses"] if "Responses" in message else message["Topics"]
    if len(topics) != 1 or len(topics[0]["Partitions"]) != 1:
        raise Malformed("an answer for one partition names none, or several", position=0)
    partition: Message = topics[0]["Partitions"][0]
    return partition


def _led(said: Message) -> dict[str, Any]:
    leader = said.get("LeaderId", _NOBODY)
    return {
        "leader": None if leader < 0 else leader,
        "epoch": said.get("LeaderEpoch", _NOBODY),
    }


def _node(group: Group, message: Message, leader: int | None) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint(group.listener, each["Host"], each["Port"])
        for each in message.get("NodeEndpoints", ())
        if each["NodeId"] == leader
    )


def _point(said: Message) -> LogPoint | None:
    return None if said["EndOffset"] < 0 else LogPoint(said["Epoch"], said["EndOffset"])


def _read_fetched(partition: Message, common: dict[str, Any]) -> Answer:
    return FetchAnswer(
        high_watermark=partition["HighWatermark"],
        start=partition["LogStartOffset"],
        batches=_batches(partition["Records"]),
        diverging=_point(partition["DivergingEpoch"]),
        snapshot=_point(partition["SnapshotId"]),
        **common,
    )


def _batches(records: bytes | None) -> tuple[Batch, ...]:
    return log_batches.read(records) if records else ()


def _read_piece(partition: Message, common: dict[str, Any]) -> Answer:
    return FetchSnapshotAnswer(
        snapshot=_point(partition["SnapshotId"]),
        size=partition["Size"],
        position=partition["Position"],
        piece=partition["UnalignedRecords"],
        **common,
    )
