"""Removal of a segment from the storage, in the log's order: STARTED, objects, FINISHED."""

import contextlib
from collections.abc import Callable

import structlog

from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.core.disposal.holds import held
from rlmm_daemon.core.fold.outcome import Applied
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.segment_log import SegmentLog, update_record
from rlmm_daemon.daemon.bucket.bucket import MARKER_SECONDS, OTHER_DAEMON, Bucket
from rlmm_daemon.domain.errors import (
    HistoryLost,
    IllegalTransition,
    RlmmError,
    SegmentNotFound,
    StorageUnavailable,
)
from rlmm_daemon.domain.ids import BrokerId, uuid_text
from rlmm_daemon.domain.segment import CustomMetadata, SegmentMetadata, SegmentState
from rlmm_daemon.ports.storage import ObjectKind

log = structlog.get_logger()


class FinishedElsewhere(IllegalTransition):
    """A copy can't be rolled back: somebody else wrote COPY_SEGMENT_FINISHED of its segment."""


class Removal:
    """A segment's removal by order, and the roll-back of its copy."""

    def __init__(
        self, bucket: Bucket, log: SegmentLog, *, broker_id: BrokerId, now_ms: Callable[[], int]
    ) -> None:
        self._bucket, self._log = bucket, log
        self._broker_id, self._now_ms = broker_id, now_ms

    async def whole(self, metadata: SegmentMetadata) -> None:
        """Append DELETE_SEGMENT_STARTED, delete the objects, append DELETE_SEGMENT_FINISHED.

        It is for whoever may delete a finished segment. Each step only after the one before has
        succeeded. What fails leaves the segment where it is, for a repeat or the cleaner.

        Raises:
            StorageUnavailable: before anything was appended, where the bucket's marker is not in
                order, or another daemon has this broker id: a segment that is marked is not read
                any more. Later, as `objects`.
        """
        custom = metadata.custom_metadata
        await self._bucket.confirm(seconds=MARKER_SECONDS)
        await self._bucket.require_alone()
        await self._append(metadata, SegmentState.DELETE_SEGMENT_STARTED, custom)
        await self.objects(metadata)
        await self._append(metadata, SegmentState.DELETE_SEGMENT_FINISHED, custom)

    async def roll_back(
        self, metadata: SegmentMetadata, timeout_seconds: float, *, repeats: bool = False
    ) -> None:
        """Undo a copy that failed, unless somebody finished its segment, or may have.

        `repeats`: an earlier copy began the segment. Where a loss of events was accepted, it may
        have been finished among them, and then what is stored is all there is of it.

        No COPY_SEGMENT_FINISHED of it goes through this daemon between the look at its state and
        the apply of DELETE_SEGMENT_STARTED. Objects go only if that replaced COPY_SEGMENT_STARTED;
        where another daemon's COPY_SEGMENT_FINISHED came first the fold holds the segment.

        Raises:
            FinishedElsewhere: nothing was deleted.
            RlmmError: what is left is for a repeat or the cleaner.
        """
        await self._require_alone()
        where = metadata.partition, metadata.segment_id
        async with self._log.fence(*where, timeout_seconds):
            found = await self._log.segment(*where)
            if found is None:
                raise SegmentNotFound
            if found[0] is SegmentState.COPY_SEGMENT_FINISHED:
                raise FinishedElsewhere("somebody else finished the segment; its objects stay")
            if found[0] is SegmentState.COPY_SEGMENT_STARTED:
                if repeats:
                    await self._require_free(metadata)
                await self._begin_roll_back(metadata, timeout_seconds)
        await self.objects(metadata)
        await self._append(metadata, SegmentState.DELETE_SEGMENT_FINISHED, None)

    async def _require_alone(self) -> None:
        """Raise if another daemon may have finished the segment; a bucket that is away is no sign.

        Its objects are not reached then either, and before they are it is asked again.
        """
        try:
            await self._bucket.require_alone()
        except StorageUnavailable as error:
            if error.fields.get("reason") == OTHER_DAEMON:
                raise

    async def _require_free(self, metadata: SegmentMetadata) -> None:
        """Raise if a hold keeps what an earlier copy stored; by whose clock that was, is unknown.

        Raises:
            HistoryLost: one does.
            StorageUnavailable: the marker can't be read.
        """
        holds, marker = await self._bucket.holds(), self._bucket.marker
        assert marker is not None, "it has holds, or none"
        where = metadata.partition
        number = metadata_partition(where.topic_id, where.partition, marker.partition_count)
        if held(holds, number, None) is not None:
            raise HistoryLost(
                "an earlier copy of the segment may have been finished among events whose loss was "
                f"accepted, so its objects stay; run: rlmm log recover {number}"
            )

    async def _begin_roll_back(self, metadata: SegmentMetadata, timeout_seconds: float) -> None:
        outcome = await self._log.update_if(
            self._record(metadata, SegmentState.DELETE_SEGMENT_STARTED, ONLY_IF_STARTED),
            lambda cache: cache.state(metadata.segment_id) is SegmentState.COPY_SEGMENT_STARTED,
            timeout_seconds,
            inside=True,
        )
        if (
            not isinstance(outcome, Applied)
            or outcome.previous_state is not SegmentState.COPY_SEGMENT_STARTED
        ):
            raise FinishedElsewhere(
                "another daemon finished the segment first; its objects stay, and it is held; "
                "run: rlmm log repair"
            )

    async def objects(self, metadata: SegmentMetadata) -> None:
        """Delete a segment's objects, and uploads of them, wherever they may lie; none is fine.

        Raises:
            HistoryLost: the segment is held; nothing was touched.
            StorageUnavailable: at least one may still be there.
        """
        with self._bucket.removing.these([metadata.segment_id]):
            await self._delete_objects(metadata)

    async def _delete_objects(self, metadata: SegmentMetadata) -> None:
        if self._log.is_held(metadata.partition, metadata.segment_id):
            raise HistoryLost(
                f"segment {uuid_text(metadata.segment_id)} had been finished when it was deleted "
                "as a stuck copy, so it is held; run: rlmm log repair"
            )
        kept = self._log.kept_custom_metadata(metadata.partition, metadata.segment_id)
        places = await self._bucket.places(metadata, kept)
        # The .log first: what is half deleted must not look whole.
        keys = [key for place in places for key in reversed(place.keys.values())]
        failed = {
            key: error
            for key, error in (await self._bucket.delete(keys) if keys else {}).items()
            if error is not None
        }
        if failed:
            key, error = next(iter(failed.items()))
            raise StorageUnavailable(
                f"{len(failed)} of {len(keys)} objects were not deleted, {key}: {error}",
                **error.fields | {"failed": len(failed)},
            ) from error
        if kept is None or kept == ONLY_IF_STARTED:
            # Perhaps it was never finished: its copier may have been killed in the middle.
            for place in places:
                await self._abort_uploads(place.keys[ObjectKind.LOG])

    async def _abort_uploads(self, key: str) -> None:
        """Abort what an ended copy left; the sweep at a start finds what is not aborted here."""
        storage = self._bucket.storage
        try:
            async with contextlib.aclosing(storage.list_uploads(key)) as pages:
                found = [row async for page in pages for row in page if row.key == key]
            for upload in found:
                await storage.abort_upload(upload)
        except RlmmError as error:
            log.warning("an incomplete upload may be left", key=key, error=str(error))

    async def _append(
        self, metadata: SegmentMetadata, state: SegmentState, custom: CustomMetadata | None
    ) -> None:
        await self._log.update(self._record(metadata, state, custom), Caller.OPERATOR)

    def _record(
        self, metadata: SegmentMetadata, state: SegmentState, custom: CustomMetadata | None
    ) -> bytes:
        return update_record(
            metadata, state, custom, broker_id=self._broker_id, now_ms=self._now_ms()
        )
