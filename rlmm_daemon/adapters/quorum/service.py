"""Answers of a quorum's listener: to replicas by the core, to operators from its state."""

from collections.abc import Callable, Mapping
from typing import Final

import structlog

from rlmm_daemon.adapters.quorum import wire, wire_answers
from rlmm_daemon.adapters.quorum.listener import spoken_here
from rlmm_daemon.adapters.quorum.node import Node
from rlmm_daemon.adapters.quorum.wire import Group, OtherTopic
from rlmm_daemon.codec.kraft import apis
from rlmm_daemon.codec.kraft.headers import RequestHead
from rlmm_daemon.codec.kraft.record_key import read_key
from rlmm_daemon.codec.kraft.schema import Api, Message
from rlmm_daemon.core.raft.inputs import Peer
from rlmm_daemon.core.raft.messages import UNKNOWN, AddVoterRequest, Code, RemoveVoterRequest
from rlmm_daemon.core.raft.roles import Leader, Progress, Replica
from rlmm_daemon.core.raft.voters import ReplicaKey
from rlmm_daemon.domain.errors import (
    InvalidArgument,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    StorageUnavailable,
    UnsupportedProtocol,
)
from rlmm_daemon.domain.ids import uuid_text

_log = structlog.get_logger(__name__)
#: Kafka's quorum tool asks for this topic only.
_KAFKAS_TOPIC: Final = "__cluster_metadata"
_UNKNOWN_TIME: Final = -1


class Service:
    """Answers of one replica."""

    def __init__(self, node: Node, group: Group, now_ms: Callable[[], tuple[int, int]]) -> None:
        """`now_ms` tells the wall's and the replica's own time, both in milliseconds."""
        self._node = node
        self._group = group
        self._now_ms = now_ms

    async def handle(self, head: RequestHead, peer: Peer) -> Message:
        """Return the answer to a request.

        Raises:
            Malformed: it is none.
        """
        if wire.carries(head.api):
            return await self._replicas(head, peer)
        message = head.api.read_request(head.version, head.body)
        if head.api.key in apis.OURS:
            return await self._members(head.api, message, peer)
        if head.api is apis.API_VERSIONS:
            return spoken_here()
        if head.api is apis.DESCRIBE_QUORUM:
            return self._describe(message)
        if head.api is apis.DESCRIBE_CLUSTER:
            return self._cluster(message)
        return {"ErrorCode": Code.UNSUPPORTED_VERSION}

    async def _replicas(self, head: RequestHead, peer: Peer) -> Message:
        try:
            incoming = wire.read_request(self._group, head.api, head.version, head.body)
        except OtherTopic:
            return wire_answers.refusal(head.api, Code.INVALID_REQUEST)
        try:
            answer = await self._node.ask(incoming.request, peer, incoming.cluster_id)
        except StorageUnavailable:
            return wire_answers.refusal(head.api, Code.BROKER_NOT_AVAILABLE)
        message = wire_answers.answer_message(self._group, head.api, answer)
        if isinstance(incoming.request, AddVoterRequest | RemoveVoterRequest):
            _audit(incoming.request, peer, message)
        return message

    # What members ask of who leads.

    async def _members(self, api: Api, message: Message, peer: Peer) -> Message:
        replica = self._node.replica
        said = {"LeaderId": _id(replica.leader), "LeaderEpoch": replica.epoch}
        if message["ClusterId"] != self._group.cluster_id:
            return said | {"ErrorCode": Code.INCONSISTENT_CLUSTER_ID}
        if message["TopicId"] != self._group.topic_id or not peer.may_vote:
            return said | {"ErrorCode": Code.INVALID_REQUEST}
        try:
            done = await (self._submit(message) if api is apis.SUBMIT else self._read_index())
        except NotLeader:
            return said | {"ErrorCode": Code.NOT_LEADER_OR_FOLLOWER}
        except (InvalidArgument, UnsupportedProtocol):
            return said | {"ErrorCode": Code.INVALID_REQUEST}
        except (OutcomeUnknown, Overloaded):
            return said | {"ErrorCode": Code.REQUEST_TIMED_OUT}
        return said | {"ErrorCode": Code.NONE} | done

    async def _submit(self, message: Message) -> Message:
        """Append records; such as this version can't fold would stop every daemon, for ever."""
        records = tuple((each["Key"], each["Value"]) for each in message["Records"])
        for key, _ in records:
            read_key(key)
        return {"BaseOffset": await self._node.submit(records)}

    async def _read_index(self) -> Message:
        return {"EndOffset": await self._node.read_index()}

    # What operators ask.

    def _describe(self, message: Message) -> Message:
        replica = self._node.replica
        # Of several, each would be told of all replicas: Kafka knows none of them then.
        alone = len(message["Topics"]) == 1 and len(message["Topics"][0]["Partitions"]) == 1
        topics = []
        for topic in message["Topics"]:
            known = alone and topic["TopicName"] in (self._group.topic, _KAFKAS_TOPIC)
            partitions = [
                self._partition(replica, each["PartitionIndex"], known=known)
                for each in topic["Partitions"]
            ]
            topics.append({"TopicName": topic["TopicName"], "Partitions": partitions})
        nodes = [
            {
                "NodeId": voter.key.id,
                "Listeners": [
                    {"Name": each.name, "Host": each.host, "Port": each.port}
                    for each in voter.endpoints
                ],
            }
            for voter in replica.in_force.voters
        ]
        return {"Topics": topics, "Nodes": nodes}

    def _partition(self, replica: Replica, index: int, *, known: bool) -> Message:
        if not known or index != 0:
            return {"PartitionIndex": index, "ErrorCode": wire_answers.UNKNOWN_TOPIC}
        role = replica.role
        if not isinstance(role, Leader):
            return {"PartitionIndex": index, "ErrorCode": Code.NOT_LEADER_OR_FOLLOWER}
        voters = replica.in_force
        others = [key for key in role.peers if not voters.holds(key) and key.id >= 0]
        return {
            "PartitionIndex": index,
            "LeaderId": replica.me.id,
            "LeaderEpoch": replica.epoch,
            "HighWatermark": role.high_watermark,
            "CurrentVoters": [self._state(replica, role, key) for key in voters.keys],
            "Observers": [self._state(replica, role, key) for key in others],
        }

    def _state(self, replica: Replica, role: Leader, key: ReplicaKey) -> Message:
        wall, own = self._now_ms()
        if key.is_same(replica.me):
            progress = Progress(replica.log.synced, own, own)
        else:
            progress = _progress(role.peers, key)
        return {
            "ReplicaId": key.id,
            "ReplicaDirectoryId": key.directory,
            "LogEndOffset": progress.end,
            "LastFetchTimestamp": _wall(progress.fetched_at, wall, own),
            "LastCaughtUpTimestamp": _wall(progress.caught_up_at, wall, own),
        }

    def _cluster(self, message: Message) -> Message:
        replica = self._node.replica
        nodes = [
            {"BrokerId": voter.key.id, "Host": each.host, "Port": each.port}
            for voter in replica.in_force.voters
            for each in voter.endpoints[:1]
        ]
        return {
            "EndpointType": message.get("EndpointType", 1),
            "ClusterId": self._group.cluster_id,
            "ControllerId": _id(replica.leader),
            "Brokers": nodes,
        }


def _audit(request: AddVoterRequest | RemoveVoterRequest, peer: Peer, answer: Message) -> None:
    """Say who ordered a change of the voters, as far as a handshake proved it, and its end."""
    adds = isinstance(request, AddVoterRequest)
    key = request.voter.key if isinstance(request, AddVoterRequest) else request.voter
    code = answer.get("ErrorCode", Code.NONE)
    if code == Code.NOT_LEADER_OR_FOLLOWER:
        return  # whoever asks goes on to who leads
    _log.info(
        "audit.quorum_change",
        order="add_voter" if adds else "remove_voter",
        voter=key.id,
        directory=uuid_text(key.directory),
        peer="anybody" if peer.id is None else peer.id,
        may_change_voters=peer.may_change_voters,
        outcome="ok" if code == Code.NONE else Code(code).name.lower(),
    )


def _id(leader: int | None) -> int:
    return UNKNOWN if leader is None else leader


def _progress(peers: Mapping[ReplicaKey, Progress], key: ReplicaKey) -> Progress:
    return next((peers[each] for each in peers if each.is_same(key)), Progress())


def _wall(at_ms: int | None, wall: int, own: int) -> int:
    return _UNKNOWN_TIME if at_ms is None else wall - (own - at_ms)
