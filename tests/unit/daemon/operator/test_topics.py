"""Sums by topic are taken in turns, and never have more labels than were allowed."""

from types import SimpleNamespace
from typing import Any

import pytest

from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.daemon.metadata.tally import COUNTED_AT_ONCE
from rlmm_daemon.daemon.operator.gauges import Gauges
from rlmm_daemon.daemon.operator.topics import (
    OTHER,
    TOPICS_AT_ONCE,
    TopicLabels,
    Topics,
    TopicSums,
    topic_of,
)
from rlmm_daemon.daemon.socket.limits import ServerStats
from rlmm_daemon.domain.ids import TopicId, TopicIdPartition
from rlmm_daemon.observability.metrics import Metrics
from tests.unit.daemon.events import NEIGHBOUR, TP, copied, until
from tests.unit.daemon.following.test_mapped import NEVER


def sums(**sizes: int) -> list[TopicSums]:
    return [
        TopicSums(topic=topic, topic_id=TopicId(bytes(16)), finished_bytes=size)
        for topic, size in sizes.items()
    ]


def assigned(labels: TopicLabels, known: list[TopicSums]) -> frozenset[str]:
    steps = labels.assigning(known)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            gone: frozenset[str] = done.value
            return gone


def test_the_largest_topics_have_labels_and_keep_them():
    labels = TopicLabels(2)
    assert assigned(labels, sums(small=1, large=9, larger=10)) == frozenset()
    assert [labels.of(topic) for topic in ("larger", "large", "small")] == [
        "larger",
        "large",
        OTHER,
    ]
    assigned(labels, sums(small=100, large=9, larger=10))
    assert labels.of("small") == OTHER, "its counters would begin anew"
    assert assigned(labels, sums(small=100, larger=10)) == {"large"}
    assert labels.of("small") == "small"
    assert labels.of("large") == OTHER


def test_fifty_thousand_topics_are_looked_at_a_few_in_a_step():
    labels, known = TopicLabels(3), sums(**{f"t{number}": number for number in range(50_000)})
    steps = list(labels.assigning(known))
    assert len(steps) == 2 * (50_000 // TOPICS_AT_ONCE + 1)
    assert [labels.of(f"t{number}") for number in (49_996, 49_997, 49_999)] == [
        OTHER, "t49997", "t49999",
    ]  # fmt: skip


def test_topics_are_not_told_apart_where_none_may_be():
    labels = TopicLabels(0)
    assigned(labels, sums(one=1))
    assert labels.of("one") == OTHER


def test_a_topics_name_may_hold_what_separates_it():
    named = TopicIdPartition(TopicId(bytes(range(16))), "a-b.c_-1", 7)
    assert topic_of(str(named)) == "a-b.c_-1"


async def test_sums_are_taken_by_topic_in_turns(rig):
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP, NEIGHBOUR], [])
        await until(lambda: manager.lookups.is_ready(TP) and manager.lookups.is_ready(NEIGHBOUR))
        for number in range(3):
            await copied(manager, number, 10 * number, 10 * number + 9)
        await copied(manager, 1000, 0, 9, NEIGHBOUR)
        (follower,) = manager.followed()
        for number in range(1_000, 1_300):
            follower.fold.partitions.add(
                PartitionCache(TopicIdPartition(TP.topic_id, "many", number))
            )
        topics, turns = Topics(manager), 0

        async def counted() -> None:
            nonlocal turns
            turns += 1

        manager.turns.wait = counted
        await topics.take()
        assert turns == 302 // COUNTED_AT_ONCE + 1
        found = {each.topic: each for each in topics.known()}
        assert found["many"].partitions == 300
        assert sum(each.finished for each in found.values()) == 4
        assert found[TP.topic].finished_bytes > 0


@pytest.fixture
def shown() -> Any:
    return SimpleNamespace(metrics=Metrics())


def test_metrics_by_topic_are_bounded_and_go_with_their_topic(shown):
    manager: Any = SimpleNamespace(
        hooks=SimpleNamespace(applied=[], copies=[], snapshot_written=[])
    )
    running: Any = SimpleNamespace(partition=f"{'A' * 22}:large-0", age_seconds=7.5)
    copier: Any = SimpleNamespace(
        jobs=lambda: [running],
        bytes_by_topic={"large": 5, "small": 2},
        failed_by_topic={"small": 1},
    )
    gauges = Gauges(
        shown.metrics,
        manager,
        copier,
        ServerStats(),
        topic_labels=TopicLabels(1),
        fetched=lambda: {"large": 3},
    )

    def step(**sizes: int) -> None:
        list(gauges._by_topic(sums(**sizes)))

    def value(name: str, topic: str) -> float | None:
        found: float | None = shown.metrics.registry.get_sample_value(name, {"topic": topic})
        return found

    step(large=9, small=1, tiny=1)
    step(large=9, small=1, tiny=1)
    assert value("rlmm_topic_bytes", "large") == 9
    assert value("rlmm_topic_bytes", OTHER) == 2
    assert value("rlmm_topic_bytes", "small") is None
    assert value("rlmm_topic_copied_bytes_total", "large") == 5
    assert value("rlmm_topic_copied_bytes_total", OTHER) == 2
    assert value("rlmm_topic_copies_failed_total", OTHER) == 1
    assert value("rlmm_topic_fetched_bytes_total", "large") == 3
    assert value("rlmm_topic_oldest_copy_seconds", "large") == 7.5
    assert value("rlmm_topic_oldest_copy_seconds", OTHER) == 0
    step(small=1)
    text = shown.metrics.text().decode()
    assert 'topic="large"' not in text
    assert value("rlmm_topic_bytes", "small") == 1
