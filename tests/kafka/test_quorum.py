"""Ours and Kafka's own replicas in one quorum, each leading in turn; both logs are the same bytes.

| | ours leads | theirs leads |
|---|---|---|
| a diverging tail of a leader that was cut off | `TestRaftServer` cut off | ours cut off |
| another cluster's id | `TestRaftServer` asks ours | ours asks `TestRaftServer` |
| leaders killed in turn | `TestRaftServer` | `TestRaftServer` |
"""

from pathlib import Path

from rlmm_daemon.domain.errors import OutcomeUnknown
from tests.kafka.quorum_rig import EAGER, PATIENT, Mixed, log_of, mixed

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
