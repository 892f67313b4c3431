"""Acceptances that the bucket marker is owed: in the state directory until there is a marker."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog
from msgspec.structs import replace

from rlmm_daemon.codec import marker
from rlmm_daemon.codec.marker import AcceptedGap, AcceptedLoss, BucketMarker, Hold
from rlmm_daemon.core.disposal.holds import held_whole
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.bucket.acceptance import accepting
from rlmm_daemon.daemon.bucket.live_marker import MarkerChange
from rlmm_daemon.daemon.following.bucket_record import BucketLog
from rlmm_daemon.domain.errors import Malformed
from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, uuid_text
from rlmm_daemon.ports.event_log import LogIdentity, LogRange

logger = structlog.get_logger(__name__)


class NoBucket:
    """`daemon.following.bucket_record.BucketRecord` of a daemon that keeps metadata only.

    A loss that is accepted meanwhile may be of what a storage holds that is configured later, or
    was before.
    """

    has_storage = False

    def __init__(
        self,
        state: StateDirectory,
        *,
        broker_id: BrokerId,
        cluster_id: str | None,
        now_ms: Callable[[], int],
    ) -> None:
        self._state, self._broker_id = state, broker_id
        self._cluster_id, self._now_ms = cluster_id, now_ms

    async def log(self) -> BucketLog | None:
        """Return None: there is no marker."""
        return None

    async def accept_loss(
        self,
        partition: MetadataPartition | None,
        identity: LogIdentity,
        gaps: Mapping[int, Sequence[LogRange]],
    ) -> None:
        """Keep an accepted loss, with its hold, for the marker that a later life meets."""
        now_ms = self._now_ms()
        loss = loss_of(partition, identity, at_ms=now_ms, broker_id=self._broker_id)
        hold = Hold(metadata_partition=partition, before_ms=now_ms, broker_id=self._broker_id)
        await owe(
            self._state,
            accepting(
                loss,
                gaps_of(identity, gaps),
                hold,
                identity.partition_count if partition is None else None,
            ),
            identity,
            cluster_id=identity.cluster_id or self._cluster_id,
            now_ms=now_ms,
            broker_id=self._broker_id,
        )


def loss_of(
    partition: MetadataPartition | None, identity: LogIdentity, *, at_ms: int, broker_id: BrokerId
) -> AcceptedLoss:
    """Return the loss of a metadata partition, or (None) of the whole log, as a marker has it."""
    return AcceptedLoss(
        metadata_partition=partition,
        topic_id=uuid_text(identity.topic_id),
        accepted_at_ms=at_ms,
        broker_id=broker_id,
    )


def gaps_of(identity: LogIdentity, gaps: Mapping[int, Sequence[LogRange]]) -> list[AcceptedGap]:
    """Return gaps of a log as a marker has them."""
    return [
        AcceptedGap(
            metadata_partition=number,
            topic_id=uuid_text(identity.topic_id),
            start=gap.start,
            end=gap.end,
        )
        for number, some in gaps.items()
        for gap in some
    ]


async def owe(
    state: StateDirectory,
    change: MarkerChange,
    identity: LogIdentity,
    *,
    cluster_id: str | None,
    now_ms: int,
    broker_id: int,
    is_used: bool = False,
    is_written: bool = False,
) -> None:
    """Keep a change for the marker that is met next, which this process may not live to meet.

    It is made of the copy of a marker, too, which whoever rebuilds the marker goes by; where there
    is no copy, one is made if a storage `is_used`. Of what `is_written` into the marker the copy
    alone is changed. Nothing is kept for a log of which nobody says whose cluster's it is.

    Raises:
        OSError: it was not written.
    """
    if cluster_id is None:
        return
    fresh = BucketMarker(
        cluster_id=cluster_id,
        partition_count=identity.partition_count,
        metadata_topic_id=uuid_text(identity.topic_id),
    )
    unnamed = replace(fresh, metadata_topic_id="")  # it names no log until the change does

    async def changed(reading: Awaitable[bytes | None]) -> BucketMarker | None:
        try:
            data = await reading
            before = None if data is None else marker.decode_marker(data)
        except Malformed as damage:  # what it accepted and held is forgotten
            logger.warning("all objects are held", error=damage.message)
            before = held_whole(fresh, now_ms, broker_id)
        if before is None:
            return None
        return change(before if before.cluster_id == cluster_id else unnamed)

    if not is_written:
        owed = await changed(state.owed_marker()) or change(unnamed)
        if owed != fresh:
            await state.write_owed_marker(marker.encode(owed))
    copy = await changed(state.marker()) or (change(unnamed) if is_used else None)
    if copy is not None:
        await state.write_marker(marker.encode(copy))
