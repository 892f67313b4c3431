"""The attacks that take a real controller down, on plaintext loopback: what the core refuses there.

Nobody proves anything on loopback, so that whoever is there may acknowledge as any replica. What no
replica in health would say is refused all the same.
"""

import asyncio

import msgspec
import pytest

from rlmm_daemon.adapters.quorum.handshake import Plain, dialed
from rlmm_daemon.adapters.quorum.links import Link, Links
from rlmm_daemon.codec.kraft import apis
from rlmm_daemon.core.raft.elections import EPOCH_STEP_MAX
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.core.raft.messages import (
    Answer,
    BeginEpochRequest,
    Code,
    EndEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    Request,
    VoteRequest,
)
from tests.unit.adapters.quorum.three import GROUP, TOPIC, Three, key, quorum

FAR = 2**31 - 1


async def ask(three: Three, to: int, request: Request, cluster_id: str | None = None) -> Answer:
    """Return what a replica answers to a stranger."""
    group = GROUP if cluster_id is None else msgspec.structs.replace(GROUP, cluster_id=cluster_id)
    links = Links(group, Plain(), timeout_seconds=5)
    try:
        return await links.ask(request, (three.endpoints[to],), to)
    finally:
        links.close()


async def test_a_vote_in_the_next_epoch_does_not_end_an_office(tmp_path):
    """Neither of a stranger nor of a voter: whoever hears its leader refuses without a look."""
    async with quorum(tmp_path) as three:
        await three.submit()
        leader = await three.settled()
        before = three.facts()
        log = three.replica(leader).log.last
        for to in three.nodes:
            for candidate in (99, three.follower()):
                for pre_vote in (False, True):
                    vote = VoteRequest(
                        epoch=before.epochs[0] + 1,
                        candidate=key(candidate),
                        last=LogPoint(log.epoch, log.end + 100),
                        voter=key(to),
                        pre_vote=pre_vote,
                    )
                    answer = await ask(three, to, vote)
                    assert not getattr(answer, "granted", False)
                    assert three.facts() == before
        assert await three.submit() > 0


@pytest.mark.parametrize("epoch", [EPOCH_STEP_MAX + 100, FAR - 1, FAR])
async def test_an_epoch_far_ahead_is_not_taken(tmp_path, epoch):
    """Near 2^31 a quorum would end for ever: refused, whatever it comes with, and told."""
    async with quorum(tmp_path) as three:
        await three.submit()
        leader = await three.settled()
        before = three.facts()
        follower = three.follower()
        words: list[tuple[int, Request]] = [
            (leader, VoteRequest(epoch=epoch, candidate=key(follower), last=LogPoint(1, 100))),
            (follower, BeginEpochRequest(epoch=epoch, leader=key(leader))),
            (follower, EndEpochRequest(epoch=epoch, leader=key(leader))),
        ]
        for to, request in words:
            alarms = three.alarms("epoch_far_ahead")
            answer = await ask(three, to, request)
            assert answer.error == Code.INVALID_REQUEST
            assert three.alarms("epoch_far_ahead") == alarms + 1
        fetch = FetchRequest(epoch=epoch, replica=key(follower), point=LogPoint(1, 1))
        assert (await ask(three, leader, fetch)).error == Code.UNKNOWN_LEADER_EPOCH
        assert three.facts() == before
        assert await three.submit() > 0


async def test_a_second_leader_of_an_epoch_is_not_followed(tmp_path):
    """Kafka's process ends there; here the claim is refused, and told."""
    async with quorum(tmp_path) as three:
        await three.submit()
        leader = await three.settled()
        before = three.facts()
        for to in three.nodes:
            for claims in {1, 2, 3, 99} - {leader, to}:
                alarms = three.alarms("two_leaders")
                begin = BeginEpochRequest(
                    epoch=before.epochs[0],
                    leader=key(claims),
                    voter=key(to),
                    endpoints=(three.endpoints[to],),
                )
                assert (await ask(three, to, begin)).error == Code.INVALID_REQUEST
                assert three.alarms("two_leaders") == alarms + 1
                assert three.facts() == before
        assert await three.submit() > 0


async def test_another_cluster_or_none_is_refused(tmp_path):
    """Kafka lets requests pass that name none."""
    async with quorum(tmp_path) as three:
        await three.submit()
        leader = await three.settled()
        before = three.facts()
        epoch, end = before.epochs[0], three.replica(leader).log.last
        requests: list[Request] = [
            VoteRequest(epoch=epoch + 1, candidate=key(99), last=end),
            BeginEpochRequest(epoch=epoch + 1, leader=key(99)),
            EndEpochRequest(epoch=epoch, leader=key(leader)),
            FetchRequest(epoch=epoch, replica=key(three.follower()), point=end),
            FetchSnapshotRequest(
                epoch=epoch, replica=key(three.follower()), snapshot=end, position=0
            ),
        ]
        for cluster in ("another-cluster-------", ""):
            for request in requests:
                answer = await ask(three, leader, request, cluster)
                assert answer.error == Code.INCONSISTENT_CLUSTER_ID
        assert three.facts() == before


async def test_a_claim_beyond_the_leaders_end_commits_nothing(tmp_path):
    """Whoever fetches behind the leader's end is told where its log leaves this one."""
    async with quorum(tmp_path) as three:
        await three.submit()
        leader = await three.settled()
        before = three.facts()
        end = three.replica(leader).log.last
        beyond = FetchRequest(
            epoch=before.epochs[0],
            replica=key(three.follower()),
            point=LogPoint(end.epoch, end.end + 1_000),
        )
        answer = await ask(three, leader, beyond)
        assert getattr(answer, "diverging", None) == end
        assert three.facts().high_watermark == before.high_watermark
        async with asyncio.timeout(30):
            assert await three.submit() > 0


@pytest.mark.parametrize("position", [2**63 - 1, 2**62, 2**48 + 1, 10_000])
async def test_a_position_behind_every_disk_ends_no_replica(tmp_path, position):
    """A system refuses to read there, which is no failure of the disk."""
    async with quorum(tmp_path, count=1) as three:
        await three.submit()
        await three.settled()
        node = three.nodes[1]
        point = await node.snapshots.make([(None, b"value")])
        fetch = FetchSnapshotRequest(
            epoch=point.epoch, replica=key(2), snapshot=point, position=position
        )
        answer = await ask(three, 1, fetch)
        assert answer.error == Code.POSITION_OUT_OF_RANGE
        assert await three.submit() > 0


async def test_who_asks_for_a_quorum_many_times_is_told_of_none(tmp_path):
    """Else a small request would have an answer of many megabytes."""
    async with quorum(tmp_path, count=1) as three:
        await three.settled()
        many = {"TopicName": TOPIC, "Partitions": ({"PartitionIndex": 0},) * 5_000}
        stream = await dialed(three.endpoints[1])
        link = Link(stream)
        await link.greet()
        api = apis.DESCRIBE_QUORUM
        body = await link.exchange(api, api.last, {"Topics": (many,)})
        link.close()
        (topic,) = api.read_answer(api.last, body)["Topics"]
        assert {each["ErrorCode"] for each in topic["Partitions"]} == {3}
        assert [each["CurrentVoters"] for each in topic["Partitions"]] == [()] * 5_000
