"""Ours and Kafka's own replicas in one quorum, each leading in turn; both logs are the same bytes.

| | ours leads | theirs leads |
|---|---|---|
| a diverging tail of a leader that was cut off | `TestRaftServer` cut off | ours cut off |
| another cluster's id | `TestRaftServer` asks ours | ours asks `TestRaftServer` |
| leaders killed in turn | `TestRaftServer` | `TestRaftServer` |
| a peer that knows no pre-vote | `TestRaftServer` 3.9 | `TestRaftServer` 3.9 |
| a snapshot to catch up with | `TestRaftServer` loses its disk | real controllers |
| voters added and removed | no peer: controllers take their own records only | real controllers |
"""

import asyncio
from pathlib import Path

from deploy.dev.stack.kafka import libs
from rlmm_daemon.domain.errors import OutcomeUnknown
from tests.kafka.controllers_rig import OURS, controllers, metadata_quorum
from tests.kafka.quorum_rig import EAGER, PATIENT, Mixed, as_text, log_of, mixed
from tests.support.quorum import CALM, quorum_of_ours

RECORD = (None, b"z" * 256)


async def same_logs(quorum: Mixed, *numbers: int) -> None:
    """Stop what writes, and compare what is committed, byte by byte."""
    committed = quorum.nodes[3].replica.committed
    await quorum.stop()
    for number in tuple(quorum.jvms):
        quorum.kill_jvm(number)
    logs = [log_of(quorum.log(number)) for number in numbers]
    shared = min(committed, *(max(log, default=0) for log in logs))
    kept = [{base: data for base, data in log.items() if base < shared} for log in logs]
    assert len(kept[0]) > 5
    assert all(each == kept[0] for each in kept[1:])


async def test_leaders_killed_in_turn_lose_nothing(tmp_path: Path) -> None:
    async with mixed(tmp_path) as quorum:
        for number in (1, 2):
            quorum.start_jvm(number)
        await quorum.format()
        await quorum.start()
        written: list[int] = []
        for _ in range(4):
            leader = await quorum.until_led_by(1, 2, 3)
            if leader == 3:
                written += [await quorum.nodes[3].submit([RECORD]) for _ in range(10)]
                await quorum.stop()
                await quorum.start(timing=PATIENT)
            else:
                await quorum.until_all_follow(1, 2)
                quorum.kill_jvm(leader)
                await quorum.stop()
                await quorum.start(timing=EAGER)
                await quorum.until_led_by(*{1, 2, 3} - {leader})
                quorum.start_jvm(leader)
        await quorum.until_led_by(1, 2, 3)
        assert written
        assert written == sorted(set(written))
        log = log_of(quorum.log(3))
        assert all(offset in log for offset in written)
        await same_logs(quorum, 1, 2, 3)


async def test_theirs_leads_and_our_tail_diverged(tmp_path: Path) -> None:
    async with mixed(tmp_path) as quorum:
        await quorum.format()
        await quorum.start(timing=EAGER)
        quorum.start_jvm(1, throughput=50)
        await quorum.until(quorum.leads, "ours leads")
        quorum.start_jvm(2, throughput=50)
        node = quorum.nodes[3]
        await node.submit([RECORD])
        before = node.replica.committed
        quorum.doors[3].shut()
        lost = [node.submissions.add([RECORD]) for _ in range(20)]
        node.nudge()
        await quorum.until(lambda: node.replica.log.end > before, "a tail that nobody has")
        quorum.doors[3].open()
        await quorum.stop()
        await quorum.start(timing=PATIENT)
        await quorum.until_led_by(1, 2)
        assert all(isinstance(each.exception(), OutcomeUnknown) for each in lost)
        await quorum.until_all_follow(1, 2)
        await same_logs(quorum, 1, 2, 3)


async def test_ours_leads_and_their_tail_diverged(tmp_path: Path) -> None:
    async with mixed(tmp_path) as quorum:
        for number in (1, 2):
            quorum.start_jvm(number)
        await quorum.format()
        await quorum.start(timing=PATIENT)
        first = await quorum.until_led_by(1, 2)
        other = 3 - first
        await quorum.until_all_follow(1, 2)
        quorum.freeze(other)
        await quorum.until_all_follow(3)  # only ours can lead next
        await quorum.stop()
        # Alone, it goes on writing until it notices that nobody fetches.
        size = sum(path.stat().st_size for path in quorum.log(first).glob("*.log"))
        await quorum.until(
            lambda: sum(p.stat().st_size for p in quorum.log(first).glob("*.log")) > size + 4096,
            "a tail that nobody has",
        )
        quorum.doors[first].shut()
        quorum.thaw(other)
        await quorum.start(timing=EAGER)
        await quorum.until(quorum.leads, "ours leads")
        node = quorum.nodes[3]
        await node.submit([RECORD])
        quorum.doors[first].open()
        await quorum.until_all_same(1, 2, 3)
        await node.submit([RECORD])
        await same_logs(quorum, 1, 2, 3)


async def test_theirs_catches_up_with_a_snapshot_of_ours(tmp_path: Path) -> None:
    async with mixed(tmp_path) as quorum:
        await quorum.format()
        node = await quorum.start(timing=EAGER)
        quorum.start_jvm(1)
        await quorum.until(quorum.leads, "ours leads")
        for _ in range(20):
            await node.submit([RECORD])
        point = await node.snapshots.make([RECORD] * 20)
        await node.snapshots.begin_at(point)
        await node.submit([RECORD])
        quorum.start_jvm(2)
        name = f"{point.end:020}-{point.epoch:010}.checkpoint"
        await quorum.until((quorum.log(2) / name).exists, "it fetched the snapshot")
        await quorum.until(lambda: point.end in log_of(quorum.log(2)), "and goes on behind it")
        assert (quorum.log(2) / name).read_bytes() == (quorum.log(3) / name).read_bytes()
        assert min(log_of(quorum.log(2))) == point.end
        assert not node.alarms


async def test_another_cluster_is_refused_by_both(tmp_path: Path) -> None:
    async with mixed(tmp_path) as quorum:
        for number in (1, 2):
            quorum.start_jvm(number)
        await quorum.format(cluster_id="BBBBBBBBBBBBBBBBBBBBBA")
        node = await quorum.start(timing=EAGER)
        await quorum.until(
            lambda: node.alarms.get("inconsistent_cluster_id", 0) > 0, "ours is refused"
        )
        await quorum.until(lambda: len(log_of(quorum.log(1))) > 3, "theirs go on without ours")
        assert node.replica.log.end == 0
        assert not quorum.leads()
        assert all(jvm.poll() is None for jvm in quorum.jvms.values())


async def test_a_peer_that_knows_no_pre_vote_is_asked_for_its_vote(tmp_path: Path) -> None:
    """Kafka 3.9's speak Vote up to version 1; a pre-vote would be taken for a vote."""
    async with mixed(tmp_path) as quorum:
        quorum.class_path = f"{await asyncio.to_thread(libs.without_pre_vote)}/*"
        for number in (1, 2):
            quorum.start_jvm(number)
        await quorum.format()
        await quorum.start(timing=PATIENT)
        first = await quorum.until_led_by(1, 2)
        await quorum.until_all_follow(1, 2)
        await quorum.stop()
        node = await quorum.start(timing=EAGER)
        await quorum.until_all_follow(first)
        quorum.freeze(3 - first)
        await quorum.until_all_follow(3)  # only ours can lead next
        quorum.kill_jvm(first)
        quorum.thaw(3 - first)
        await quorum.until(quorum.leads, "ours leads")
        await node.submit([RECORD])
        quorum.start_jvm(first)
        await quorum.until_all_same(1, 2, 3)
        assert node.replica.epoch > 1
        await same_logs(quorum, 1, 2, 3)


async def test_ours_is_the_fourth_voter_of_real_controllers(tmp_path: Path) -> None:
    """Snapshot catch-up, add and remove, where theirs leads: TestRaftServer has neither."""
    async with controllers(tmp_path) as quorum:
        told = await quorum.described(lambda d: d.high_watermark > 0, "theirs have a leader")
        assert len(told.voters) == 3
        await quorum.until(lambda: bool(quorum.snapshots(told.leader)), "it made a snapshot")
        node = await quorum.join()
        await quorum.described(
            lambda d: any(each.key.id == OURS for each in d.observers), "ours observes"
        )
        await quorum.until(lambda: node.replica.log.start > 0, "a snapshot was fetched")
        await quorum.client().add_voter(quorum.voter())
        await quorum.until(lambda: node.replica.is_voter, "ours counts itself")
        shown = await quorum.tool("describe", "--replication")
        assert any(
            line.split()[0] == str(OURS) and "Follower" in line for line in shown.splitlines()[1:]
        )
        leader = (await quorum.client().describe()).leader
        quorum.kill(leader)
        after = await quorum.described(
            lambda d: d.leader != leader and d.high_watermark > 0, "three of four elect"
        )
        committed = node.replica.committed
        await quorum.until(lambda: node.replica.committed > committed, "and commit, with ours")
        assert after.leader != OURS
        quorum.start(leader)
        await quorum.tool(
            "remove-controller",
            "--controller-id",
            str(OURS),
            "--controller-directory-id",
            as_text(OURS),
        )
        await quorum.until(lambda: not node.replica.is_voter, "ours observes again")
        assert not node.alarms


async def test_kafkas_tool_shows_and_changes_a_quorum_of_ours(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, observers=1, timing=CALM) as quorum:
        leader = await quorum.until_led()
        await quorum.nodes[leader].submit([RECORD])
        servers = ",".join(f"127.0.0.1:{quorum.ports[n]}" for n in (1, 2, 3))
        status = await metadata_quorum(servers, "describe", "--status")
        assert f"LeaderId:               {leader}" in status.splitlines()
        assert "HighWatermark" in status
        shown = await metadata_quorum(servers, "describe", "--replication")
        roles = [(line.split()[0], line.split()[-1]) for line in shown.splitlines()[1:] if line]
        assert sorted(roles) == sorted(
            (str(n), "Leader" if n == leader else "Follower" if n < 4 else "Observer")
            for n in (1, 2, 3, 4)
        )
        config = tmp_path / "added.properties"
        config.write_text(
            "process.roles=controller\nnode.id=4\ncontroller.listener.names=QUORUM\n"
            f"controller.quorum.bootstrap.servers={servers}\n"
            f"listeners=QUORUM://127.0.0.1:{quorum.ports[4]}\n"
            "listener.security.protocol.map=QUORUM:PLAINTEXT\n"
            f"log.dirs={quorum.directory(4)}\n"
        )
        await metadata_quorum(servers, "--command-config", str(config), "add-controller")
        await quorum.until(lambda: quorum.nodes[4].replica.is_voter, "the fourth counts itself")
        removed = 1 if leader != 1 else 2
        gone = ("--controller-id", str(removed), "--controller-directory-id", as_text(removed))
        await metadata_quorum(servers, "remove-controller", *gone)
        await quorum.until(lambda: not quorum.nodes[removed].replica.is_voter, "it counts no more")
        assert await quorum.nodes[await quorum.until_led()].submit([RECORD]) > 0
