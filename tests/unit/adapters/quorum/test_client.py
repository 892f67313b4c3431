"""An operator's client: it finds the leader through any replica, and never guesses an outcome."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from rlmm_daemon.adapters.quorum import client as client_module
from rlmm_daemon.adapters.quorum.client import QuorumClient
from rlmm_daemon.adapters.quorum.handshake import Plain
from rlmm_daemon.adapters.quorum.listener import Listener, spoken_here
from rlmm_daemon.adapters.quorum.wire import Group
from rlmm_daemon.codec.kraft import apis
from rlmm_daemon.codec.kraft.headers import RequestHead
from rlmm_daemon.codec.kraft.schema import Api, Message
from rlmm_daemon.core.raft.inputs import Peer
from rlmm_daemon.core.raft.messages import Code
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.domain.errors import OutcomeUnknown, StorageUnavailable

GROUP = Group(cluster_id="c", topic="__rlmm_quorum", topic_id=bytes(16), listener="QUORUM")
HOST = "127.0.0.1"


class Server:
    """A listener that answers as it is told, and knows what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, Message | None] = {}
        self.listener = Listener(Plain())
        self.port = self.listener.bind(HOST, 0)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("QUORUM", HOST, self.port)

    async def handle(self, head: RequestHead, peer: Peer) -> Message:
        del peer
        if head.api is apis.API_VERSIONS:
            return spoken_here()
        self.asked.append(head.api.name)
        answer = self.answers[head.api.name]
        if answer is None:
            await asyncio.Event().wait()
        assert answer is not None
        return answer

    def follows(self, api: Api, refusal: Message, leader: "Server") -> None:
        self.answers[api.name] = refusal
        self.answers["DescribeCluster"] = {
            "ClusterId": "c",
            "ControllerId": 2,
            "Brokers": (
                {"BrokerId": 1, "Host": HOST, "Port": self.port},
                {"BrokerId": 2, "Host": HOST, "Port": leader.port},
            ),
        }


@pytest.fixture
async def servers() -> AsyncIterator[tuple[Server, Server]]:
    first, second = Server(), Server()
    try:
        await first.listener.serve(first.handle)
        await second.listener.serve(second.handle)
        yield first, second
    finally:
        await first.listener.close()
        await second.listener.close()


def client(*servers: Server, seconds: float = 10.0) -> QuorumClient:
    known = [each.endpoint for each in servers]
    return QuorumClient(GROUP, Plain(), known, timeout_seconds=seconds)


async def test_a_follower_names_the_leader(servers):
    follower, leader = servers
    follower.follows(apis.SUBMIT, {"ErrorCode": Code.NOT_LEADER_OR_FOLLOWER}, leader)
    leader.answers["Submit"] = {"BaseOffset": 17}
    asking = client(follower)
    assert await asking.submit([(None, b"a")]) == 17
    assert await asking.submit([(None, b"b")]) == 17
    assert follower.asked == ["Submit", "DescribeCluster"], "then the leader is known"
    assert leader.asked == ["Submit", "Submit"]


async def test_a_change_that_nobody_answered_may_have_happened(servers):
    leader, _ = servers
    leader.answers["Submit"] = None
    with pytest.raises(OutcomeUnknown, match=rf"{HOST}:{leader.port} was asked"):
        await client(leader, seconds=1.0).submit([(None, b"a")])


async def test_a_change_that_was_sent_nowhere_did_not_happen(servers, monkeypatch):
    # Its time ends between two questions: one that was sent just then may have taken effect.
    monkeypatch.setattr(client_module, "_PAUSE_SECONDS", 60.0)
    follower, other = servers
    refusal = {"ErrorCode": Code.NOT_LEADER_OR_FOLLOWER}
    follower.follows(apis.SUBMIT, refusal, other)
    other.follows(apis.SUBMIT, refusal, follower)
    with pytest.raises(StorageUnavailable, match="does not lead"):
        await client(follower, seconds=2.0).submit([(None, b"a")])


async def test_a_server_that_hangs_leaves_time_for_another(servers, monkeypatch):
    monkeypatch.setattr(client_module, "_ANSWER_SECONDS", 0.05)
    hangs, answers = servers
    hangs.answers["DescribeCluster"] = None
    answers.answers["DescribeCluster"] = {"ClusterId": "mine"}
    assert await client(hangs, answers).cluster_id() == "mine"


async def test_a_leader_that_hangs_is_asked_last_the_next_time(servers):
    hangs, leads = servers
    hangs.answers["Submit"] = None
    leads.answers["Submit"] = {"BaseOffset": 3}
    asking = client(hangs, leads, seconds=1.0)
    with pytest.raises(OutcomeUnknown):
        await asking.submit([(None, b"a")])
    assert await asking.submit([(None, b"b")]) == 3


async def test_a_host_that_takes_connections_only_leaves_time_for_another(servers):
    _, leads = servers
    leads.answers["Submit"] = {"BaseOffset": 3}
    with socket.create_server((HOST, 0)) as frozen:  # as a process that is stopped
        at = Endpoint("QUORUM", HOST, frozen.getsockname()[1])
        asking = QuorumClient(GROUP, Plain(), [at, leads.endpoint], timeout_seconds=0.9)
        assert await asking.submit([(None, b"a")]) == 3
