"""Questions about partitions, each put to the partition's own leader."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

from rlmm_daemon.adapters.kafka.connection import Directory, KafkaClient, Leader
from rlmm_daemon.adapters.kafka.connection.directory import is_known, metadata_by_id
from rlmm_daemon.adapters.kafka.connection.errors import Reaction, error_of, reaction_to
from rlmm_daemon.adapters.kafka.connection.requests import (
    NO_TAGS,
    ListOffsets,
    OffsetForLeaderEpoch,
    Pinned,
)
from rlmm_daemon.domain.backoff import Backoff
from rlmm_daemon.domain.errors import RlmmError, StorageUnavailable, UnavailableError
from rlmm_daemon.domain.ids import MetadataPartition, TopicId
from rlmm_daemon.ports.event_log import EpochEnd, LogRange

_EARLIEST, _LATEST = -2, -1
_CONSUMER = -1
_ATTEMPTS = 5
#: No further attempt begins after so long.
_ATTEMPT_SECONDS = 1.0
#: A leader that is slower is unknown: the answers of the others do not wait for it.
_ANSWER_SECONDS = 3.0


class Asker:
    """ListOffsets and OffsetForLeaderEpoch; both name the topic, so its id is checked behind."""

    def __init__(self, client: KafkaClient, directory: Directory, topic: str) -> None:
        self._client = client
        self._directory = directory
        self._topic = topic
        #: A leader gave no answer: another may lead by now, so who leads is asked for first.
        self._doubted = False

    async def ranges(
        self, partitions: Collection[MetadataPartition], topic_id: TopicId
    ) -> Mapping[MetadataPartition, LogRange]:
        """Return start and high watermark of each partition whose leader gave both just now."""
        known: dict[MetadataPartition, LogRange] = {}
        async for again in self._attempts():
            missing = set(partitions) - known.keys()
            if again or any(self._leader(each) is None for each in missing):
                await self._refresh()
            by_leader = defaultdict(list)
            for partition in missing:
                leader = self._directory.leader(partition)
                if leader is not None:
                    by_leader[leader.node].append((partition, leader))
            async with asyncio.TaskGroup() as tasks:
                asked = [
                    tasks.create_task(self._ranges_of(rows, topic_id))
                    for rows in by_leader.values()
                ]
            for answer in asked:
                known.update(answer.result())
            if len(known) == len(set(partitions)):
                break
        return known

    def _leader(self, partition: MetadataPartition) -> Leader | None:
        """Return who leads a partition, as far as that may still be believed."""
        return None if self._doubted else self._directory.leader(partition)

    async def _refresh(self) -> None:
        await self._directory.refresh()
        self._doubted = False

    async def _attempts(self) -> AsyncIterator[bool]:
        """Yield False for a first attempt, then True after each pause, a few times."""
        loop, config = asyncio.get_running_loop(), self._client.config
        over = loop.time() + _ATTEMPT_SECONDS
        backoff = Backoff(
            config.retry_backoff_ms / 1000,
            config.retry_backoff_max_ms / 1000,
            self._client.luck.random,
        )
        yield False
        for _ in range(_ATTEMPTS - 1):
            await asyncio.sleep(backoff.next())
            if loop.time() >= over:
                return
            yield True

    async def _ranges_of(
        self, rows: list[tuple[MetadataPartition, Leader]], topic_id: TopicId
    ) -> dict[MetadataPartition, LogRange]:
        """Ask one leader; whatever fails is missing from the answer."""
        seconds = _ANSWER_SECONDS
        first: dict[MetadataPartition, int]
        last: dict[MetadataPartition, int]
        try:
            connection = await self._client.shared(rows[0][1].node)
            async with asyncio.TaskGroup() as tasks:
                # A broker answers the requests of a connection one by one, in the order in which
                # they were sent: what it says of the topic's id, it says behind the offsets.
                starts, ends, topic = [
                    tasks.create_task(connection.ask(request, timeout_seconds=seconds))
                    for request in (
                        self._offsets_of(rows, _EARLIEST),
                        self._offsets_of(rows, _LATEST),
                        metadata_by_id(topic_id),
                    )
                ]
        except* UnavailableError:
            self._doubted = True
            first, last = {}, {}
        else:
            first, last = _offsets_in(starts.result()), _offsets_in(ends.result())
            if not is_known(topic.result()):
                first = {}
        return {
            partition: LogRange(start=first[partition], end=last[partition])
            for partition, _ in rows
            if partition in first and partition in last
        }

    def _offsets_of(self, rows: list[tuple[MetadataPartition, Leader]], timestamp: int) -> Pinned:
        wanted = [(int(partition), leader.epoch, timestamp, NO_TAGS) for partition, leader in rows]
        request: Pinned = ListOffsets(_CONSUMER, 0, [(self._topic, wanted, NO_TAGS)], NO_TAGS)
        return request

    async def epoch_end(
        self, partition: MetadataPartition, epoch: int, topic_id: TopicId
    ) -> EpochEnd:
        """Return where an epoch ends, by the leader's word; none that lies before the log's start.

        Raises:
            UnavailableError: not now.
        """
        nobody = StorageUnavailable(f"metadata partition {partition} has no leader")
        last: RlmmError = nobody
        async for again in self._attempts():
            leader = self._leader(partition)
            if again or leader is None:
                await self._refresh()
                leader = self._directory.leader(partition)
            if leader is None:
                last = nobody
                continue
            try:
                error, found = await self.epoch_end_at(leader, partition, epoch)
                same = error != 0 or await self._directory.is_topic(leader.node, topic_id)
            except UnavailableError as silent:
                last, self._doubted = silent, True
                continue
            if not same:
                raise StorageUnavailable("the metadata topic was recreated")
            if error == 0 and found.epoch < epoch and leader.epoch < epoch:
                # It lost its controllers, and others elected anew: it knows nothing of that epoch.
                last, self._doubted = _of_former(leader, partition, epoch), True
                continue
            if error == 0 and found.epoch == epoch < leader.epoch:
                return await self.unless_before_start(partition, found, topic_id)
            if error == 0:
                return found
            last = error_of(error, f"asking where epoch {epoch} of partition {partition} ends")
            if reaction_to(error) is Reaction.REFUSED:
                break
        raise last

    async def unless_before_start(
        self, partition: MetadataPartition, found: EpochEnd, topic_id: TopicId
    ) -> EpochEnd:
        """Return the end of an epoch that a leader of a later one named, or that it knows no such.

        Kafka repeats an epoch that is older than all it knows, as if it ended at the start.

        Raises:
            StorageUnavailable: where the log starts is not known now.
        """
        ranges = await self.ranges([partition], topic_id)
        if partition not in ranges:
            raise StorageUnavailable(f"where metadata partition {partition} starts is not known")
        before = found.end_offset <= ranges[partition].start
        return EpochEnd(epoch=-1, end_offset=-1) if before else found

    async def epoch_end_at(
        self, leader: Leader, partition: MetadataPartition, epoch: int
    ) -> tuple[int, EpochEnd]:
        """Return the leader's error code, and where the largest epoch up to `epoch` ends.

        Raises:
            UnavailableError: the leader did not answer.
        """
        request = OffsetForLeaderEpoch(
            _CONSUMER,
            [(self._topic, [(int(partition), leader.epoch, epoch, NO_TAGS)], NO_TAGS)],
            NO_TAGS,
        )
        answer = await self._client.ask(leader.node, request, seconds=_ANSWER_SECONDS)
        error, _, found, end, *_ = answer.topics[0][1][0]
        if found < 0 or end <= 0:
            # An epoch that ends at 0 wrote nothing: nobody can have read in it.
            found, end = -1, -1
        return error, EpochEnd(epoch=found, end_offset=end)


def _of_former(leader: Leader, partition: MetadataPartition, epoch: int) -> RlmmError:
    return StorageUnavailable(
        f"{leader.node} says that it leads metadata partition {partition} in epoch {leader.epoch}, "
        f"and has not heard of epoch {epoch}: does it reach its controllers?"
    )


def _offsets_in(answer: Any) -> dict[MetadataPartition, int]:
    """Return the offsets that a leader gave; where it did not, there is none."""
    return {
        MetadataPartition(index): offset
        for _, partitions, _ in answer.topics
        for index, error, _, offset, *_ in partitions
        if error == 0 and offset >= 0
    }
