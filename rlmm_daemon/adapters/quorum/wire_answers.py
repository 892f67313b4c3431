"""Answers between replicas, to Kafka's messages and back.

What concerns the whole request (another cluster, another topic) is an error at the top of an
answer; whatever the replica itself decided stands with the partition.
Source: RaftUtil, KafkaRaftClient.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from rlmm_daemon.adapters.quorum.wire import NOBODY, Group, api_of, snapshot_id, topics_of
from rlmm_daemon.codec.kraft import apis, log_batches
from rlmm_daemon.codec.kraft.schema import Api, Message
from rlmm_daemon.core.raft.log_facts import Batch, LogPoint
from rlmm_daemon.core.raft.messages import (
    Answer,
    Code,
    FetchAnswer,
    FetchRequest,
    FetchSnapshotAnswer,
    FetchSnapshotRequest,
    Request,
    VoteAnswer,
    VoteRequest,
    answer_to,
)
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.domain.errors import Malformed

#: Errors of a request as a whole.
_AT_THE_TOP: Final = frozenset({Code.INCONSISTENT_CLUSTER_ID, Code.CLUSTER_AUTHORIZATION_FAILED})
#: Kafka's code for a topic that is not here; no replica answers it of itself.
UNKNOWN_TOPIC: Final = 3


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
    return topics_of(group, partition, name=name) | {"NodeEndpoints": _nodes(group, answer)}


def refusal(api: Api, error: Code) -> Message:
    """Return the answer to a request that names another cluster or another log."""
    if api is apis.FETCH_SNAPSHOT and error is Code.INVALID_REQUEST:
        return {"ErrorCode": UNKNOWN_TOPIC}
    return {"ErrorCode": error}


def _leads(answer: Answer) -> Message:
    leader = answer.leader if answer.leader is not None else NOBODY
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
        said["DivergingEpoch"] = snapshot_id(answer.diverging)
    if answer.snapshot is not None:
        said["SnapshotId"] = snapshot_id(answer.snapshot)
    return said


def _snapshot_partition(answer: Answer) -> Message:
    assert isinstance(answer, FetchSnapshotAnswer), "a snapshot's fetch gets its answer"
    return {
        "Index": 0,
        "ErrorCode": answer.error,
        "SnapshotId": {} if answer.snapshot is None else snapshot_id(answer.snapshot),
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
    partition = only_partition(message)
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


def only_partition(message: Message) -> Message:
    """Return the partition that an answer is about; Malformed: none, or several."""
    topics = message["Responses"] if "Responses" in message else message["Topics"]
    if len(topics) != 1 or len(topics[0]["Partitions"]) != 1:
        raise Malformed("an answer for one partition names none, or several", position=0)
    partition: Message = topics[0]["Partitions"][0]
    return partition


def _led(said: Message) -> dict[str, Any]:
    leader = said.get("LeaderId", NOBODY)
    return {
        "leader": None if leader < 0 else leader,
        "epoch": said.get("LeaderEpoch", NOBODY),
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
