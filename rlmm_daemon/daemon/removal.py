"""Taking a segment out of the storage, always in the log's order: STARTED, objects, FINISHED."""

from collections.abc import Callable

from rlmm_daemon.daemon.bucket import Bucket
from rlmm_daemon.daemon.caller import Caller
from rlmm_daemon.daemon.segment_log import SegmentLog, update_record
from rlmm_daemon.domain.errors import HistoryLost, StorageUnavailable
from rlmm_daemon.domain.ids import BrokerId, uuid_text
from rlmm_daemon.domain.segment import CustomMetadata, SegmentMetadata, SegmentState


class Removal:
    """The steps that `delete_segment` and a copy's roll-back share."""

    def __init__(
        self, bucket: Bucket, log: SegmentLog, *, broker_id: BrokerId, now_ms: Callable[[], int]
    ) -> None:
        self._bucket, self._log = bucket, log
        self._broker_id, self._now_ms = broker_id, now_ms

    async def whole(self, metadata: SegmentMetadata) -> None:
        """Append DELETE_SEGMENT_STARTED, delete the objects, append DELETE_SEGMENT_FINISHED.

        Each step only after the one before has succeeded. What fails leaves the segment where it
        is, for a repeat or the cleaner.
        """
        custom = metadata.custom_metadata
        await self._append(metadata, SegmentState.DELETE_SEGMENT_STARTED, custom)
        await self.objects(metadata)
        await self._append(metadata, SegmentState.DELETE_SEGMENT_FINISHED, custom)

    async def objects(self, metadata: SegmentMetadata) -> None:
        """Delete a segment's objects wherever they may lie; absent ones are fine.

        Raises:
            HistoryLost: the segment is held; nothing was touched.
            StorageUnavailable: at least one may still be there.
        """
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
            for key, error in (await self._bucket.storage.delete(keys)).items()
            if error is not None
        }
        if failed:
            key, error = next(iter(failed.items()))
            raise StorageUnavailable(
                f"{len(failed)} of {len(keys)} objects were not deleted, {key}: {error}",
                failed=len(failed),
            ) from error

    async def _append(
        self, metadata: SegmentMetadata, state: SegmentState, custom: CustomMetadata | None
    ) -> None:
        record = update_record(
            metadata, state, custom, broker_id=self._broker_id, now_ms=self._now_ms()
        )
        await self._log.update(record, Caller.OPERATOR)
