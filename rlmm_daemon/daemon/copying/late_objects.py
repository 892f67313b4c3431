"""Objects that come after their copy was given up: a write that was on its way is not called back.

A PUT whose answer was lost may be carried out by the storage long after the segment was deleted,
and then no event names what it left. So the keys of a failed copy are deleted a few times more,
later, once this daemon has applied the segment's DELETE_SEGMENT_STARTED and the segment is gone.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import structlog

from rlmm_daemon.core.disposal.holds import held
from rlmm_daemon.daemon.base.bounded import Bounded
from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.base.segment_log import SegmentLog
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import SegmentId, TopicIdPartition, uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata

#: After the copy's end. The last is far beyond any storage's patience with a request.
LOOKS_SECONDS: Final = (30.0, 120.0, 600.0, 3600.0)
#: Of one look, so that a directory that hangs holds up no other copy's.
LOOK_SECONDS_MAX: Final = 120.0
#: Failed copies that are remembered; the oldest goes first, and the nightly job finds its objects.
LATE_MAX: Final = 1_000

log = structlog.get_logger(__name__)


class _Failed(msgspec.Struct, kw_only=True):
    """One copy that wrote something and failed."""

    metadata: SegmentMetadata
    ended_at: float
    #: Whether this daemon has applied its DELETE_SEGMENT_STARTED.
    deleting: bool
    looks: int = 0

    @property
    def due(self) -> float:
        return self.ended_at + LOOKS_SECONDS[self.looks]


class LateObjects:
    """The failed copies of this daemon's life, and when their keys are looked at again."""

    def __init__(
        self, bucket: Bucket, segment_log: SegmentLog, *, is_running: Callable[[SegmentId], bool]
    ) -> None:
        self._bucket, self._log, self._is_running = bucket, segment_log, is_running
        self._failed: Bounded[SegmentId, _Failed] = Bounded(LATE_MAX)
        #: Deleted while their copy still ran.
        self._deleting: set[SegmentId] = set()
        #: Whose keys are being deleted at this moment.
        self._busy: SegmentId | None = None
        self._noted = Broadcast()
        segment_log.on_delete_started.append(self._delete_started)

    def __len__(self) -> int:
        return len(self._failed)

    def is_busy(self, segment_id: SegmentId) -> bool:
        """Return whether the keys of this segment are being deleted: no copy may begin."""
        return self._busy == segment_id

    def begun(self, segment_id: SegmentId) -> None:
        """A copy of this segment begins: what lies there is its own from now on."""
        self._failed.pop(segment_id, None)

    def ended(self, metadata: SegmentMetadata, *, failed: bool) -> None:
        """A copy of this segment ended; `failed`: without success, after it had begun to write."""
        deleting = metadata.segment_id in self._deleting
        self._deleting.discard(metadata.segment_id)
        if not failed:
            return
        now = asyncio.get_running_loop().time()
        self._failed[metadata.segment_id] = _Failed(
            metadata=metadata, ended_at=now, deleting=deleting
        )
        self._noted.ring()

    async def run(self) -> None:
        """Look at what is due, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._failed:
                await self._noted.wait()
                continue
            await self.look(loop.time())
            due = min((each.due for each in self._failed.values()), default=0.0)
            await asyncio.sleep(max(1.0, due - loop.time()))

    async def look(self, now: float) -> None:
        """Delete the keys of every copy that is due and whose segment is gone."""
        for segment_id, each in list(self._failed.items()):
            if each.due > now or self._failed.get(segment_id) is not each:
                continue
            each.looks += 1
            if each.looks == len(LOOKS_SECONDS):
                del self._failed[segment_id]
            try:
                async with self._alone(segment_id), asyncio.timeout(LOOK_SECONDS_MAX):
                    await self._delete(each)
            except (RlmmError, TimeoutError) as error:
                log.warning(
                    "objects of a failed copy may be left",
                    partition=str(each.metadata.partition),
                    segment_id=uuid_text(segment_id),
                    error=str(error) or f"no answer in {LOOK_SECONDS_MAX:g} s",
                )

    @asynccontextmanager
    async def _alone(self, segment_id: SegmentId) -> AsyncIterator[None]:
        self._busy = segment_id
        try:
            yield
        finally:
            self._busy = None

    async def _delete(self, each: _Failed) -> None:
        """Delete the keys, if the log says that nobody can need them."""
        metadata = each.metadata
        if not each.deleting or self._is_running(metadata.segment_id):
            return
        async with self._log.keep_followed(metadata.partition):
            if await self._log.segment(metadata.partition, metadata.segment_id) is not None:
                return
            if held(await self._bucket.holds(), None, None) is not None:
                return  # the log lost events: what it says of this segment may not be all
            place = self._bucket.place_for_new(metadata)
            outcomes = await self._bucket.delete(list(reversed(place.keys.values())))
        for error in outcomes.values():
            if error is not None:
                raise error

    def _delete_started(self, tp: TopicIdPartition, segment_id: SegmentId) -> None:
        del tp
        if (each := self._failed.get(segment_id)) is not None:
            each.deleting = True
        elif self._is_running(segment_id):
            self._deleting.add(segment_id)
