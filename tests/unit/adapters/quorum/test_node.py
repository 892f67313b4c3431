"""Replicas of ours over real sockets: they elect, commit, change, and outlive what fails."""

import asyncio
import errno
from pathlib import Path

import pytest
import structlog

from rlmm_daemon.adapters.quorum.client import QuorumClient
from rlmm_daemon.adapters.quorum.files.snapshot_writer import SnapshotWriter
from rlmm_daemon.adapters.quorum.handshake import Plain
from rlmm_daemon.adapters.quorum.wire import Group
from rlmm_daemon.codec import batches
from rlmm_daemon.core.raft.inputs import Tick
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.core.raft.roles import Follower
from rlmm_daemon.domain.errors import InvalidArgument, NotLeader
from tests.support import quorum as support
from tests.support.quorum import CALM, Quorum, quorum_of_ours

RECORD = (b"key", b"value")


def held(quorum: Quorum, number: int) -> list[batches.Batch]:
    """Return a replica's log as it stands in its files."""
    directory = quorum.directory(number) / f"{support.TOPIC}-0"
    files = sorted(directory.glob("*.log"))
    return [batch for path in files for batch in batches.split(path.read_bytes())]


def values(quorum: Quorum, number: int) -> list[bytes | None]:
    found = held(quorum, number)
    return [value for batch in found for _, value in batches.records_of(batch)]


def client(quorum: Quorum) -> QuorumClient:
    group = Group(
        cluster_id=support.CLUSTER_ID,
        topic=support.TOPIC,
        topic_id=support.TOPIC_ID,
        listener=support.LISTENER,
    )
    servers = [quorum.address(number) for number in quorum.ports]
    return QuorumClient(group, Plain(), servers, timeout_seconds=support.SECONDS)


async def test_what_is_submitted_is_on_every_disk(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, timing=CALM) as quorum:
        leader = quorum.nodes[await quorum.until_led()]
        offsets = [await leader.submit([(None, b"%d" % n)]) for n in range(20)]
        assert offsets == list(range(offsets[0], offsets[0] + 20))
        end = leader.replica.log.end
        await quorum.until(
            lambda: {node.replica.committed for node in quorum.nodes.values()} == {end},
            "all know of it",
        )
        assert held(quorum, 1) == held(quorum, 2) == held(quorum, 3)
        assert values(quorum, 1) == [b"%d" % n for n in range(20)]


async def test_many_in_flight_share_batches_and_keep_their_order(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, timing=CALM) as quorum:
        leader = quorum.nodes[await quorum.until_led()]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(leader.submit([(None, b"%d" % n), (None, b"-")]))
                for n in range(100)
            ]
        offsets = [task.result() for task in tasks]
        assert offsets == sorted(set(offsets))
        number = leader.replica.me.id
        assert values(quorum, number)[0::2] == [b"%d" % n for n in range(100)]
        found = [each for each in held(quorum, number) if not each.is_control]
        assert len(found) < 50, "each was synced alone"


async def test_a_follower_takes_nothing_and_says_who_leads(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, timing=CALM) as quorum:
        leader = await quorum.until_led()
        other = next(node for number, node in quorum.nodes.items() if number != leader)
        await quorum.until(lambda: isinstance(other.replica.role, Follower), "it follows")
        with pytest.raises(NotLeader, match=f"replica {leader} does"):
            await other.submit([RECORD])


async def test_what_can_be_no_batch_is_refused_before_anything(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, voters=1) as quorum:
        node = quorum.nodes[await quorum.until_led()]
        for records in ([], [(None, b"x" * (5 << 20))]):
            with pytest.raises(InvalidArgument, match="can't be one batch"):
                await node.submit(records)
        assert await node.submit([RECORD]) > 0


async def test_a_leader_that_stops_hands_over(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, timing=CALM) as quorum:
        leader = await quorum.until_led()
        at = await quorum.nodes[leader].submit([RECORD])
        await quorum.stop(leader)
        # Nobody times out within this test: the good-bye alone has somebody else lead.
        following = await quorum.until_led()
        assert following != leader
        assert await quorum.nodes[following].submit([RECORD]) > at


async def test_a_leader_that_is_gone_is_replaced_at_once(tmp_path: Path) -> None:
    """Its port refuses: nobody waits for the fetch timeout, which no test here would outlive."""
    async with quorum_of_ours(tmp_path, timing=CALM) as quorum:
        leader = await quorum.until_led()
        at = await quorum.nodes[leader].submit([RECORD])
        await quorum.kill(leader)
        following = await quorum.until_led()
        assert following != leader
        assert await quorum.nodes[following].submit([RECORD]) > at


async def test_a_replica_comes_back_with_all_that_it_had(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, timing=CALM) as quorum:
        leader = await quorum.until_led()
        other = next(number for number in quorum.nodes if number != leader)
        await quorum.stop(other)
        await quorum.nodes[leader].submit([RECORD])
        node = await quorum.start(other)
        end = quorum.nodes[leader].replica.log.end
        await quorum.until(lambda: node.replica.committed == end, "it caught up")
        assert held(quorum, other) == held(quorum, leader)


async def test_a_disk_that_fails_ends_the_replica_and_another_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with quorum_of_ours(tmp_path, timing=CALM) as quorum:
        leader = await quorum.until_led()
        node = quorum.nodes[leader]

        async def fails() -> None:
            raise OSError(errno.EIO, "broken")

        monkeypatch.setattr(node._files._segments, "sync", fails)
        submitted = node.submissions.add([RECORD])
        node.nudge()
        with pytest.raises(ExceptionGroup) as failure:
            await quorum.failed(leader)
        assert failure.group_contains(OSError, match="broken")
        assert submitted.exception() is not None, "what it did not sync is not acknowledged"
        following = await quorum.until_led()
        assert following != leader
        assert await quorum.nodes[following].submit([RECORD]) > 0


async def test_a_replica_that_is_asked_without_a_pause_ends_of_its_disk_too(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, voters=1) as quorum:
        node = quorum.nodes[await quorum.until_led()]
        node._broken = OSError(errno.EIO, "broken")
        node._take(Tick())
        with pytest.raises(OSError, match="broken"):
            await node._next()
        with pytest.raises(ExceptionGroup) as failure:
            await quorum.failed(1)
        assert failure.group_contains(OSError, match="broken")


async def test_an_observer_follows_is_added_and_removed_and_the_leader_notes_who_ordered_it(
    tmp_path: Path,
) -> None:
    with structlog.testing.capture_logs() as caught:
        await follows_is_added_and_removed(tmp_path)
    told_of = [line for line in caught if line["event"] == "audit.quorum_change"]
    assert [(line["order"], line["voter"], line["outcome"]) for line in told_of] == [
        ("add_voter", 4, "ok"),
        ("add_voter", 4, "duplicate_voter"),
        ("remove_voter", 4, "ok"),
        ("remove_voter", 4, "voter_not_found"),
    ]
    assert {line["peer"] for line in told_of} == {"anybody"}


async def follows_is_added_and_removed(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, observers=1, timing=CALM) as quorum:
        leader = await quorum.until_led()
        await quorum.nodes[leader].submit([RECORD])
        operator, joins = client(quorum), quorum.nodes[4]
        end = quorum.nodes[leader].replica.log.end
        await quorum.until(lambda: joins.replica.committed == end, "it follows")
        await operator.add_voter(quorum.voter(4))
        await quorum.until(lambda: joins.replica.is_voter, "it counts itself")
        told = await operator.describe()
        assert [each.key for each in told.voters] == [quorum.key(n) for n in (1, 2, 3, 4)]
        assert told.leader == leader
        with pytest.raises(InvalidArgument, match="duplicate_voter"):
            await operator.add_voter(quorum.voter(4))
        await operator.remove_voter(quorum.key(4))
        await quorum.until(lambda: not joins.replica.is_voter, "it observes again")
        with pytest.raises(InvalidArgument, match="voter_not_found"):
            await operator.remove_voter(quorum.key(4))


async def test_who_comes_late_takes_the_snapshot(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, observers=1, timing=CALM) as quorum:
        leader = quorum.nodes[await quorum.until_led()]
        await quorum.stop(4)
        await leader.submit([(None, b"old %d" % n) for n in range(10)])
        point = await leader.snapshots.make([(None, b"kept")])
        await leader.snapshots.begin_at(point)
        await leader.submit([(None, b"new")])
        await quorum.forget(4)
        late = await quorum.start(4)
        await quorum.until(lambda: late.replica.log.start == point.end, "it took the snapshot")
        await quorum.until(lambda: values(quorum, 4) == [b"new"], "and goes on behind it")


async def test_a_snapshot_that_does_not_hold_is_fetched_anew(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, observers=1, timing=CALM) as quorum:
        number = await quorum.until_led()
        leader = quorum.nodes[number]
        await quorum.stop(4)
        await leader.submit([(None, b"old")])
        point = await leader.snapshots.make([(None, b"kept")])
        await leader.snapshots.begin_at(point)
        name = f"{support.TOPIC}-0/{point.end:020}-{point.epoch:010}.checkpoint"
        made = quorum.directory(number) / name
        made.chmod(0o600)
        whole = made.read_bytes()
        made.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
        await quorum.forget(4)
        late = await quorum.start(4)
        await quorum.until(lambda: "damaged_snapshot" in late.alarms, "it was told")
        assert late.replica.log.start == 0
        made.write_bytes(whole)
        await quorum.until(lambda: late.replica.log.start == point.end, "it took the snapshot")


async def test_a_snapshot_that_somebody_fetches_is_known_for_a_fetch_timeout(
    tmp_path: Path,
) -> None:
    async with quorum_of_ours(tmp_path, observers=1) as quorum:
        leader = quorum.nodes[await quorum.until_led()]
        await quorum.stop(4)
        await leader.submit([(None, b"old")])
        point = await leader.snapshots.make([(None, b"kept")])
        newer = LogPoint(point.epoch, point.end + 1)
        await quorum.forget(4)
        late = await quorum.start(4)
        await quorum.until(lambda: late.log.start == point.end, "it took the snapshot")
        assert leader.snapshots.are_fetched(before=newer)
        assert not leader.snapshots.are_fetched(before=point)
        await quorum.until(lambda: not leader.snapshots.are_fetched(before=newer), "no more")


async def test_a_snapshot_that_another_one_overtook_does_not_count(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, voters=1) as quorum:
        node = quorum.nodes[await quorum.until_led()]
        await node.submit([RECORD])
        writer = await node.snapshots.begin(node.replica.committed)
        await node.submit([RECORD])
        point = await node.snapshots.make([RECORD])
        await node.snapshots.begin_at(point)
        await writer.end()
        with pytest.raises(InvalidArgument, match="not within the log"):
            await node.snapshots.keep(writer)
        with pytest.raises(InvalidArgument, match="no snapshot ends"):
            await node.snapshots.begin_at(writer.point)
        assert node.log.snapshots == (point,)
        assert await node.submit([RECORD]) == point.end


async def test_a_disk_that_is_too_full_for_a_snapshot_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with quorum_of_ours(tmp_path, voters=1) as quorum:
        node = quorum.nodes[await quorum.until_led()]
        await node.submit([RECORD])

        async def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "full")

        with monkeypatch.context() as patch:
            patch.setattr(SnapshotWriter, "write", full)
            with pytest.raises(OSError, match="full"):
                await node.snapshots.make([RECORD])
        assert not list(quorum.directory(1).rglob("*.part"))
        assert await node.submit([RECORD]) > 0
        await node.snapshots.make([RECORD])


async def test_an_operator_and_a_submitter_find_the_leader_through_anybody(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, timing=CALM) as quorum:
        await quorum.until_led()
        at = await client(quorum).submit([RECORD])
        assert await client(quorum).submit([RECORD, RECORD]) == at + 1


async def test_a_read_sees_what_was_acknowledged_before(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, timing=CALM) as quorum:
        leader = quorum.nodes[await quorum.until_led()]
        for n in range(10):
            offset = await leader.submit([(None, b"%d" % n)])
            assert await leader.read_index() == offset + 1


async def test_reads_share_their_questions(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, timing=CALM) as quorum:
        leader = quorum.nodes[await quorum.until_led()]
        end = leader.replica.committed
        before = leader.replica.serial
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(leader.read_index()) for _ in range(100)]
        assert [task.result() for task in tasks] == [end] * 100
        assert leader.replica.serial - before < 20


async def test_who_does_not_lead_answers_no_read(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, timing=CALM) as quorum:
        leader = await quorum.until_led()
        follower = next(node for n, node in quorum.nodes.items() if n != leader)
        with pytest.raises(NotLeader):
            await follower.read_index()


async def test_a_leader_without_its_voters_answers_no_read(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path) as quorum:
        leader = await quorum.until_led()
        for number in {1, 2, 3} - {leader}:
            await quorum.kill(number)
        with pytest.raises(NotLeader):
            await quorum.nodes[leader].read_index()


async def test_alone_a_read_is_answered_at_once(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, voters=1) as quorum:
        leader = quorum.nodes[await quorum.until_led()]
        offset = await leader.submit([RECORD])
        assert await leader.read_index() == offset + 1
