"""Announcing one more user partition costs the same however many are announced."""

from rlmm_daemon.daemon.metadata.assignment import Assignment
from rlmm_daemon.domain.ids import TopicId, TopicIdPartition

ANNOUNCED = 300


class Hashed(TopicIdPartition):
    """A user partition that counts how often somebody looks for it."""

    looks = 0

    def __hash__(self) -> int:
        Hashed.looks += 1
        return super().__hash__()


def test_partitions_that_are_announced_one_by_one_are_each_looked_for_a_few_times():
    told: list[object] = []
    assignment = Assignment(told.extend)
    partitions = [Hashed(TopicId(bytes(16)), "orders", number) for number in range(ANNOUNCED)]
    Hashed.looks = 0
    for partition in partitions:
        assignment.add([partition], [])
    assert told == partitions
    assert Hashed.looks <= 8 * ANNOUNCED


def test_a_repeat_tells_of_nothing_but_changes_the_role():
    told: list[object] = []
    assignment = Assignment(told.extend)
    partition = TopicIdPartition(TopicId(bytes(16)), "orders", 0)
    assignment.add([partition], [])
    assignment.add([], [partition])
    assert told == [partition]
    assert assignment.announced == {partition: False}
