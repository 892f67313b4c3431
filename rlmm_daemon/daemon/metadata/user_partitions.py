"""The user partitions that a daemon knows: announced by the broker, or named by its log."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from heapq import merge
from typing import Final

from rlmm_daemon.codec import api
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.user_partitions import Sleeping
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.domain.ids import MetadataPartition, TopicId, TopicIdPartition, uuid_text
from rlmm_daemon.domain.segment import SegmentState

#: Partitions that are looked at before others get a turn.
_TURN_PARTITIONS: Final = 128


async def user_partitions(
    manager: Manager, topic: str | None
) -> AsyncGenerator[api.UserPartition, None]:
    """Yield those of one topic, by its name or its id, or all of them; by name, id and number."""
    found, pages = set[TopicIdPartition](), list[list[TopicIdPartition]]()
    for some in known(manager):
        page = {each for each in some if _is_of(each, topic)} - found
        found |= page
        pages.append(sorted(page, key=_place))
        await asyncio.sleep(0)
    for index, partition in enumerate(merge(*pages, key=_place)):
        if index % _TURN_PARTITIONS == _TURN_PARTITIONS - 1:
            await asyncio.sleep(0)
        yield _row(manager, partition)


def known(manager: Manager) -> Iterator[list[TopicIdPartition]]:
    """Yield what is announced or named by a followed log, some at a time; a few come twice."""
    sources: list[Iterable[TopicIdPartition]]
    sources = [manager.assignment.announced, *(f.fold.partitions for f in manager.followed())]
    for source in sources:
        partitions = list(source)  # it may change between two steps
        for at in range(0, len(partitions), _TURN_PARTITIONS):
            yield partitions[at : at + _TURN_PARTITIONS]


def _place(partition: TopicIdPartition) -> tuple[str, TopicId, int]:
    return partition.topic, partition.topic_id, partition.partition


def _is_of(partition: TopicIdPartition, topic: str | None) -> bool:
    return topic is None or topic in (partition.topic, uuid_text(partition.topic_id))


def _row(manager: Manager, partition: TopicIdPartition) -> api.UserPartition:
    number, cache = _found(manager, partition)
    leads = manager.assignment.announced.get(partition)
    finished = SegmentState.COPY_SEGMENT_FINISHED
    mark = None if cache is None else cache.delete_state
    return api.UserPartition(
        partition=api.Partition.of(partition),
        metadata_partition=number,
        role={True: "leader", False: "follower", None: None}[leads],
        segments={}
        if cache is None
        else {
            state.name: cache.segments_by_state[state]
            for state in SegmentState
            if state is not SegmentState.DELETE_SEGMENT_FINISHED
        },
        size_bytes=0 if cache is None else cache.bytes_by_state[finished],
        delete_state=None if mark is None else mark.name,
    )


def _found(
    manager: Manager, partition: TopicIdPartition
) -> tuple[MetadataPartition | None, PartitionCache | Sleeping | None]:
    """Return where a partition's events are, and what is folded of them."""
    follow_set = manager.fleet.follow_set
    if follow_set is None:
        return None, None
    number = follow_set.of(partition)
    follower = manager.fleet.followers.get(number)
    return number, None if follower is None else follower.fold.partitions.peek(partition)
