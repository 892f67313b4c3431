"""Orders of a person for a topic id: marks if the topic is gone, segment events if it exists.

A partition mark of an existing topic could end the consumers of Kafka's own metadata managers, so
an existing topic's segments are deleted one by one, and it must be said that this is meant.
"""

import asyncio
from collections.abc import Iterator
from itertools import count, islice
from typing import Any, Final

import structlog

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.codec import records
from rlmm_daemon.core.disposal.steps import Proof
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.readiness.states import PartitionState, not_ready
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.bucket.bucket import MARKER_SECONDS
from rlmm_daemon.daemon.cleaner.cleaner import Cleaner
from rlmm_daemon.domain.errors import InvalidArgument, NotReady, RlmmError, SegmentNotFound
from rlmm_daemon.domain.ids import SegmentId, TopicId, TopicIdPartition, uuid_text
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentState

logger = structlog.get_logger(__name__)

#: How long metadata partitions that nobody followed yet are waited for.
FOLLOW_SECONDS: Final = 30.0
#: An order that is not done by then is given up: the operator asks again.
PURGE_SECONDS_MAX: Final = 24 * 3600.0
PURGED: Final = "purged"
#: Segments that are looked at before others get a turn.
WALK_AT_ONCE: Final = 1_000
#: Walks that a change cut off; then it is done in one go.
WALKS_MAX: Final = 10

#: Tells tasks of orders apart.
_numbers = count(1)

D, S = PartitionDeleteState, SegmentState


class Purge:
    """Orders about whole topics."""

    def __init__(self, cleaner: Cleaner) -> None:
        self._cleaner, self._tools = cleaner, cleaner.tools

    async def purge(self, topic_id: TopicId, *, execute: bool, existing: bool) -> dict[str, Any]:
        """Return what there is of a topic and what is done about it; does it only if told so.

        Raises:
            SegmentNotFound: no event of the log names this topic id.
            InvalidArgument: the topic exists, and that was not said to be meant.
            NotReady: not every metadata partition, or not every broker, could be asked.
            StorageUnavailable: the bucket's marker is not in order, or another daemon has this
                broker id, so segments would be marked and read by nobody, and nothing else would
                come of it.
        """
        partitions = await self._partitions(topic_id)
        proof = (await self._tools.proof.prove([topic_id]))[topic_id]
        if execute:
            _require_meant(topic_id, proof, existing=existing)
            if proof is Proof.ALIVE:
                await self._tools.bucket.confirm(seconds=MARKER_SECONDS)
                await self._tools.bucket.require_alone()
        rows = [self._row(partition, proof) for partition in partitions]
        if execute:
            for partition in partitions:
                await self._order(partition, proof)
        return {
            "topic_id": uuid_text(topic_id),
            "topic": proof.value,
            "executed": execute,
            "partitions": rows,
            "segments": sum(row["segments"] for row in rows),
            "bytes": sum(row["bytes"] for row in rows),
        }

    async def _partitions(self, topic_id: TopicId) -> list[TopicIdPartition]:
        manager = self._tools.manager
        await manager.on_demand.follow_all(FOLLOW_SECONDS)
        found = []
        for follower in manager.followed():
            if follower.failure is not None:
                raise follower.failure.error(follower.partition)
            if follower.state is not PartitionState.READY:
                raise not_ready(follower.partition, follower.state, follower.lag)
            found += [each for each in follower.fold.partitions if each.topic_id == topic_id]
        if not found:
            raise SegmentNotFound(f"no event of the log names topic {uuid_text(topic_id)}")
        return sorted(found)

    def _row(self, partition: TopicIdPartition, proof: Proof) -> dict[str, Any]:
        cache = self._tools.cache(partition)
        state = None if cache is None else cache.delete_state
        if state is not None:
            action = "none: it is " + state.name
        elif proof is Proof.GONE:
            action = "mark"
        elif proof is Proof.ALIVE:
            action = "delete segments"
        else:
            action = "none: it is not known whether the topic is gone"
        return {
            "partition": str(partition),
            "segments": 0 if cache is None else len(cache.segments),
            "bytes": 0 if cache is None else sum(cache.bytes_by_state),
            "action": action,
        }

    async def _order(self, partition: TopicIdPartition, proof: Proof) -> None:
        cache = self._tools.cache(partition)
        if cache is not None and cache.delete_state is not None:
            return
        if proof is Proof.ALIVE:
            ids = set() if cache is None else await _finished(cache)
            name = f"purge {partition} {next(_numbers)}"
            self._cleaner.spawn(self._delete_segments(partition, ids), name)
            return
        tools = self._tools
        mark = PartitionDelete(
            partition=partition,
            broker_id=tools.broker_id,
            event_timestamp_ms=tools.clock.now_ms(),
            state=D.DELETE_PARTITION_MARKED,
        )
        await tools.manager.events.put_partition_delete(
            records.encode(mark), Caller.OPERATOR, tools.options.write_seconds
        )

    async def _delete_segments(self, partition: TopicIdPartition, ids: set[SegmentId]) -> None:
        """Delete what was finished when it was ordered; what was being copied is its broker's."""
        tools, error, under_way = self._tools, None, self._cleaner.ordered
        if partition in under_way:
            under_way[partition] |= ids
            return
        under_way[partition] = ids
        until = tools.clock.monotonic() + PURGE_SECONDS_MAX
        try:
            async with tools.manager.events.keep_followed(partition):
                while tools.clock.monotonic() < until:
                    error = await self._try(partition, ids)
                    if error is None:
                        break
                    tools.notes.order(partition, error)
                    await asyncio.sleep(tools.options.interval_seconds)
        except RlmmError as failure:
            error = failure.message
        finally:
            del under_way[partition]
        tools.notes.order(partition, error and f"the purge was given up: {error}")
        if error is not None:
            logger.warning("purge given up", partition=str(partition), error=error)

    async def _try(self, partition: TopicIdPartition, ids: set[SegmentId]) -> str | None:
        """Return what keeps something from being deleted; None: nothing is left."""

        def ordered(cache: PartitionCache) -> Iterator[SegmentId]:
            return (i for i in tuple(ids) if self._is_left(cache, i))

        segments = self._cleaner.segments
        try:
            while await segments.remove(
                partition, ordered, why=PURGED, holds=_may_be_purged, still_ours=lambda: True
            ):
                continue
            cache = self._tools.cache(partition)
        except RlmmError as error:
            return error.message
        if cache is None or cache.delete_state is not None:
            return None  # its removal takes what is left
        counts = cache.segments_by_state
        if not counts[S.COPY_SEGMENT_FINISHED] and not counts[S.DELETE_SEGMENT_STARTED]:
            return None
        left = next(ordered(cache), None)
        return None if left is None else segments.backoff.message(left) or "not deleted yet"

    def _is_left(self, cache: PartitionCache, segment_id: SegmentId) -> bool:
        """Whether an ordered segment is finished yet, or began to go and failed."""
        state = cache.state(segment_id)
        if state is S.DELETE_SEGMENT_STARTED:
            return self._cleaner.segments.backoff.message(segment_id) is not None
        return state is S.COPY_SEGMENT_FINISHED


async def _finished(cache: PartitionCache) -> set[SegmentId]:
    """Return the segments that are finished, by no clock: events bear those of all brokers."""
    for _ in range(WALKS_MAX):
        found, rest = set[SegmentId](), iter(cache.segments.items())
        try:
            while some := list(islice(rest, WALK_AT_ONCE)):
                found |= {i for i, tail in some if tails.state_of(tail) == S.COPY_SEGMENT_FINISHED}
                await asyncio.sleep(0)
        except RuntimeError:  # the dict that was walked has changed
            continue
        return found
    return set(cache.live_finished())


def _require_meant(topic_id: TopicId, proof: Proof, *, existing: bool) -> None:
    name = uuid_text(topic_id)
    if proof is Proof.UNKNOWN:
        raise NotReady(
            f"nobody can say now whether topic {name} is gone: every live broker has to answer or, "
            "beside an embedded log, the broker to announce its partitions and its log_dirs to be "
            "readable"
        )
    if proof is Proof.ALIVE and not existing:
        raise InvalidArgument(
            f"topic {name} exists, or a broker's disk still has a directory of it: its remote "
            "segments are deleted only with --existing",
            topic=name,
        )


def _may_be_purged(cache: PartitionCache, segment_id: SegmentId) -> bool:
    return cache.delete_state is None and cache.state(segment_id) is S.COPY_SEGMENT_FINISHED
