"""Levels are copied into the metrics in short steps, and are whole between any two."""

from types import SimpleNamespace
from typing import Any

import pytest

from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.metadata import tally
from rlmm_daemon.daemon.operator import gauges
from rlmm_daemon.daemon.operator.copy_lag import CopyLag, TopicLag
from rlmm_daemon.daemon.operator.topics import TOPICS_AT_ONCE
from rlmm_daemon.daemon.socket.limits import ServerStats
from rlmm_daemon.domain.errors import CopiesPaused
from rlmm_daemon.domain.ids import TopicIdPartition
from rlmm_daemon.observability.metrics import Metrics
from tests.unit.daemon.events import NEIGHBOUR, TP, copied, of, started, until
from tests.unit.daemon.following.test_mapped import NEVER

OTHER = next(
    tp for n in range(100) if of(tp := TopicIdPartition(TP.topic_id, "orders", n)) != of(TP)
)


def gauges_of(manager: Any) -> gauges.Gauges:
    idle: Any = SimpleNamespace(
        jobs=list, outcomes=dict, outcomes_of_roll_backs=dict, bytes_copied=0
    )
    return gauges.Gauges(Metrics(), manager, idle, ServerStats())


def samples(of_manager: gauges.Gauges, name: str) -> dict[str, float]:
    """Return a metric's values by its label's value."""
    lines = of_manager._metrics.text().decode().splitlines()
    found = [line.removeprefix(f"{name}{{") for line in lines if line.startswith(f"{name}{{")]
    return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in found}


async def test_positions_are_there_between_any_two_steps_and_gone_with_their_follower(
    rig, monkeypatch
):
    monkeypatch.setattr(gauges, "_FOLLOWERS_AT_ONCE", 1)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP, OTHER], [])
        await until(lambda: manager.lookups.is_ready(TP) and manager.lookups.is_ready(OTHER))
        for each in (TP, OTHER):
            await copied(manager, 1, 0, 9, each)
        shown = gauges_of(manager)
        list(shown._steps())
        both = {str(of(TP)), str(of(OTHER))}
        for _ in shown._steps():
            assert samples(shown, "rlmm_log_next_offset").keys() == both
            assert samples(shown, "rlmm_log_lag_events").keys() == both
        manager.replace_assignment([TP], [])
        await until(lambda: len(manager.followed()) == 1)
        list(shown._steps())
        assert samples(shown, "rlmm_log_next_offset").keys() == {str(of(TP))}
        assert samples(shown, "rlmm_log_lag_events").keys() == {str(of(TP))}


async def test_the_segments_of_many_user_partitions_are_counted_in_steps(rig):
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP, NEIGHBOUR], [])
        await until(lambda: manager.lookups.is_ready(TP) and manager.lookups.is_ready(NEIGHBOUR))
        for number in range(3):
            await copied(manager, number, 10 * number, 10 * number + 9)
        await copied(manager, 1000, 0, 9, NEIGHBOUR)
        (follower,) = manager.followed()
        for number in range(1_000, 1_300):
            empty = TopicIdPartition(TP.topic_id, "many", number)
            follower.fold.partitions.add(PartitionCache(empty))
        shown = gauges_of(manager)
        assert len(list(shown._segments())) == 302 // tally.COUNTED_AT_ONCE + 1
        counted = samples(shown, "rlmm_segments")
        assert counted["COPY_SEGMENT_FINISHED"] == 4
        assert counted["COPY_SEGMENT_STARTED"] == counted["DELETE_SEGMENT_STARTED"] == 0


async def test_paused_topics_and_the_copies_that_they_refused_are_counted(rig):
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        await manager.pauses.pause(TP.topic)
        with pytest.raises(CopiesPaused):
            await manager.events.add(started(1, 0, 9), Caller.BROKER)
        shown = gauges_of(manager)
        list(shown._steps())
        assert "\nrlmm_topics_paused 1.0\n" in shown._metrics.text().decode()
        assert "\nrlmm_copies_paused_total 1.0\n" in shown._metrics.text().decode()


async def test_the_oldest_pause_is_told_by_its_age_until_it_ends(rig, monkeypatch):
    name = "\nrlmm_topics_paused_oldest_seconds "
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        shown, now_ms = gauges_of(manager), 1_700_000_000_000
        monkeypatch.setattr(manager.pauses, "_now_ms", lambda: now_ms)
        await manager.pauses.pause("first")
        now_ms += 7_200_000
        await manager.pauses.pause("later")
        list(shown._steps())
        assert f"{name}7200.0\n" in shown._metrics.text().decode()
        await manager.pauses.resume("first")
        now_ms -= 60_000  # a clock that went back
        list(shown._steps())
        assert f"{name}0.0\n" in shown._metrics.text().decode()


async def test_a_quorums_log_is_told_by_its_replicas_own_word(rig):
    facts = {
        "role": "follower",
        "epoch": 4,
        "leader": 2,
        "voters": [1, 2, 3],
        "heard": [1, 2],
        "end": 90,
        "committed": 88,
    }

    def told(shown: gauges.Gauges) -> dict[str, float]:
        lines = shown._metrics.text().decode().splitlines()
        pairs = [line.rpartition(" ") for line in lines if line.startswith("rlmm_quorum_")]
        return {name.removeprefix("rlmm_quorum_"): float(value) for name, _, value in pairs}

    async with rig.manager(snapshots=NEVER) as manager:
        shown = gauges_of(manager)
        shown._quorum_facts = lambda: facts
        assert (told(shown)["leader"], told(shown)["epoch"]) == (-1, -1)
        list(shown._steps())
        assert told(shown) == {
            'role{role="follower"}': 1,
            "leader": 2,
            "epoch": 4,
            "voters": 3,
            "voters_heard": 2,
            "end_offset": 90,
            "committed_offset": 88,
        }
        facts |= {"role": "candidate", "leader": None, "heard": [1]}
        list(shown._steps())
        assert (told(shown)['role{role="candidate"}'], told(shown)["leader"]) == (1, -1)
        facts.clear()
        facts |= {"role": None, "why": "its disk failed"}
        list(shown._steps())
        assert (told(shown)['role{role="closed"}'], told(shown)["voters_heard"]) == (1, 0)


async def test_how_far_each_topic_is_behind_is_summed_in_short_steps(rig):
    async with rig.manager(snapshots=NEVER) as manager:
        lag, shown = CopyLag(manager, []), gauges_of(manager)
        many = 2 * TOPICS_AT_ONCE + 1
        lag._topics = {f"t{number}": TopicLag(1, 10) for number in range(many)}
        assert len(list(shown._behind(lag, ["t"]))) == 3
        assert samples(shown, "rlmm_topic_copy_lag_bytes") == {"t": 0, "(other)": 10 * many}
