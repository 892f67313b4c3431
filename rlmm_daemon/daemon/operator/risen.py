"""Segments whose deletion the log lost: they are COPY_SEGMENT_FINISHED again, without objects.

What was deleted is known by what a dropped fold had read and did not show any more
(`daemon.following.history`). It is ended again only if the storage says that none of its objects is
there; where one is, the segment stays as it is, and so do its objects.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
import structlog

from rlmm_daemon.codec import custom_metadata, records
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.daemon.base.segment_log import decode_segment
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.following.history import History
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.domain.ids import BrokerId, uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate

#: Segments that one order looks for: each takes a request per object.
SEGMENTS_MAX: Final = 1_000

S = SegmentState
logger = structlog.get_logger(__name__)


class RisenLook(msgspec.Struct, frozen=True, kw_only=True):
    """What one look for the objects of risen segments showed."""

    #: Those of which no object is there.
    gone: Sequence[SegmentMetadata]
    #: Others, and why they are not ended.
    there: Sequence[tuple[SegmentMetadata, str]]
    #: How many nobody has looked for yet: another order does.
    left: int


class Risen:
    """Looks for the objects of what came back, and ends it."""

    def __init__(self, manager: Manager, bucket: Bucket, broker_id: BrokerId) -> None:
        self._manager, self._bucket, self._broker_id = manager, bucket, broker_id

    async def look(self, follower: Follower) -> RisenLook:
        """Look for the objects of so many as one order may; nothing is changed.

        Raises:
            StorageUnavailable: nobody can say now what is there.
        """
        risen = risen_of(follower.history, follower.fold)
        if risen:
            await self._bucket.confirm()  # in another bucket, or in none, nothing is there
        gone = list[SegmentMetadata]()
        there = list[tuple[SegmentMetadata, str]]()
        for segment in risen[:SEGMENTS_MAX]:
            if why := await self._why_not(segment):
                there.append((segment, why))
            else:
                gone.append(segment)
        if gone:  # it is ended next: it was looked for in our bucket
            await self._bucket.confirm()
        return RisenLook(gone=gone, there=there, left=len(risen[SEGMENTS_MAX:]))

    async def _why_not(self, segment: SegmentMetadata) -> str:
        """Return why a segment is not to be ended, "" if none of its objects is there."""
        if custom_metadata.is_foreign(segment.custom_metadata):
            return "another storage manager stored it, and alone can look for its objects"
        places = await self._bucket.places(segment)
        found = list[str]()
        for place in places:
            for kind, key in place.keys.items():
                if await self._bucket.storage.size(key) is not None:
                    found.append(kind.value)
        if not places:
            return "nobody knows where its objects would be"
        return f"deleted before, but there: {', '.join(dict.fromkeys(found))}" if found else ""

    async def end(self, follower: Follower, gone: Sequence[SegmentMetadata]) -> int:
        """Append the events that end them; return the offset of the last one, -1 for none."""
        last = -1
        for segment in gone:
            cache = follower.fold.partitions.get(segment.partition)
            if cache is None or cache.state(segment.segment_id) is not S.COPY_SEGMENT_FINISHED:
                continue  # somebody ended it meanwhile
            for state in (S.DELETE_SEGMENT_STARTED, S.DELETE_SEGMENT_FINISHED):
                update = SegmentUpdate(
                    partition=segment.partition,
                    segment_id=segment.segment_id,
                    broker_id=self._broker_id,
                    event_timestamp_ms=self._manager.clock.now_ms(),
                    custom_metadata=segment.custom_metadata,
                    state=state,
                )
                last = await self._manager.log.append(follower.partition, records.encode(update))
            logger.warning(
                "segment ended again",
                partition=str(segment.partition),
                segment_id=uuid_text(segment.segment_id),
            )
            await asyncio.sleep(0)
        return last

    def let_be(self, follower: Follower, look: RisenLook) -> None:
        """Take the segments that stay for what they are: nothing of them is lost."""
        stay = [(each.partition, each.segment_id) for each, _ in look.there]
        risen = risen_of(follower.history, follower.fold)
        finished = {(each.partition, each.segment_id) for each in risen}
        others = [each for each in follower.history.risen if each not in finished]
        follower.history.let_be([*stay, *others])


def risen_of(history: History, fold: Fold) -> list[SegmentMetadata]:
    """Return the segments that had been deleted and that a fold shows as COPY_SEGMENT_FINISHED.

    Without those whose partition is being removed: their end is under way.
    """
    found = list[SegmentMetadata]()
    for partition, segment_id in history.risen:
        cache = fold.partitions.get(partition)
        if cache is None or cache.delete_state is not None:
            continue
        record = cache.get(segment_id)
        if record is not None and cache.state(segment_id) is S.COPY_SEGMENT_FINISHED:
            found.append(decode_segment(record))
    return sorted(found, key=lambda each: each.start_offset)
