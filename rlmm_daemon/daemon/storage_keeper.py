"""The daemon's standing with its remote storage: the marker, the presence file, what is wrong."""

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType

import structlog

from rlmm_daemon.codec.marker import PresencePartition
from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.facts import LastError
from rlmm_daemon.core.readiness import PartitionState
from rlmm_daemon.daemon.bucket import Bucket, BucketIdentity
from rlmm_daemon.daemon.live_counts import LiveCount, LiveCounts
from rlmm_daemon.daemon.manager import Manager
from rlmm_daemon.daemon.presence import LEASE_SECONDS, PresenceFacts, PresenceFile
from rlmm_daemon.daemon.runtime import Runtime
from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.domain.ids import MetadataPartition, uuid_text
from rlmm_daemon.ports.storage import RemoteStorage

#: Between two looks at what the presence file says.
_LOOK_SECONDS = 0.5
_LAST_WORDS_SECONDS = 2.0

logger = structlog.get_logger(__name__)


class StorageKeeper:
    """Of one daemon and its bucket, while it runs."""

    def __init__(
        self,
        backend: RemoteStorage,
        bucket: Bucket,
        manager: Manager,
        runtime: Runtime,
        *,
        broker_id: int,
        cluster_id: str | None,
        copy_deadline_seconds: float,
        trouble_by_cluster: Callable[[], str | None],
    ) -> None:
        self._backend, self._bucket = backend, bucket
        self._manager, self._runtime = manager, runtime
        self._broker_id, self._cluster_id = broker_id, cluster_id
        self._copy_deadline_seconds = copy_deadline_seconds
        self._trouble_by_cluster = trouble_by_cluster
        self._refused: LastError | None = None
        self._presence: PresenceFile | None = None

    def trouble(self) -> LastError | None:
        """Return what is wrong with the remote storage: refused, a broker's own, or away."""
        if self._refused is not None:
            return self._refused
        if (trouble := self._trouble_by_cluster()) is not None:
            return LastError(message=trouble, at_ms=self._manager.clock.now_ms())
        return None if self._presence is None else self._presence.trouble

    async def run(self) -> None:
        """Settle the marker once the log is known, then keep the presence file fresh, for ever."""
        manager = self._manager
        while (identity := manager.fleet.identity) is None:
            await manager.fleet.changed.wait()
        cluster_id = identity.cluster_id or self._cluster_id or ""
        try:
            await self._bucket.open(
                BucketIdentity(
                    cluster_id=cluster_id,
                    partition_count=identity.partition_count,
                    metadata_topic_id=uuid_text(identity.topic_id),
                )
            )
        except ConfigError as refusal:
            # Metadata is served on; copies, fetches and deletes are refused with this reason.
            logger.warning("remote storage refused", error=refusal.message)
            self._refused = LastError(message=refusal.message, at_ms=manager.clock.now_ms())
            await asyncio.Event().wait()
        counts = LiveCounts(manager)
        presence = self._presence = PresenceFile(
            self._backend,
            manager.clock,
            cluster_id=cluster_id,
            broker_id=self._broker_id,
            copy_deadline_seconds=self._copy_deadline_seconds,
            facts=lambda: presence_of(manager, counts.known),
        )
        self._runtime.on_drain("presence", lambda: _last_words(presence))
        self._runtime.spawn("storage.presence", presence.run())
        self._runtime.spawn("storage.live counts", counts.run())
        await _tell_of_changes(manager, presence)


async def _last_words(presence: PresenceFile) -> None:
    """Leave the presence file as of the end, unless the storage is away."""
    try:
        async with asyncio.timeout(_LAST_WORDS_SECONDS):
            await presence.write()
    except TimeoutError:
        logger.warning("presence file not written at the end")


async def _tell_of_changes(manager: Manager, presence: PresenceFile) -> None:
    """Have the presence file rewritten soon after a state or the broker's manager changed."""
    before: object = None
    while True:
        now = (
            manager.assignment.incarnation_ms,
            manager.assignment.has_manager,
            {follower.partition: follower.state for follower in manager.followed()},
        )
        if now != before:
            before = now
            presence.changed()
        await asyncio.sleep(_LOOK_SECONDS)


def presence_of(
    manager: Manager, counts: Mapping[MetadataPartition, LiveCount] = MappingProxyType({})
) -> PresenceFacts:
    """Return what the presence file says of the followed metadata partitions."""
    identity = manager.fleet.identity
    topic_id = uuid_text(identity.topic_id) if identity else ""
    states = {follower.partition: follower.state for follower in manager.followed()}
    unread = {partition: Position(0, -1) for partition in states}
    positions = {**unread, **manager.fleet.furthest()}
    return PresenceFacts(
        incarnation=manager.assignment.incarnation_ms,
        lease_end_ms=manager.clock.now_ms() + round(LEASE_SECONDS * 1000),
        # Another manager never connects, and neither does ours before the broker runs.
        metadata_manager="rlmm" if manager.assignment.has_manager else "foreign",
        partitions={
            partition: PresencePartition(
                state=states.get(partition, PartitionState.UNASSIGNED).value,
                topic_id=topic_id,
                leader_epoch=position.leader_epoch,
                next_offset=position.next_offset,
                live_segments=counts[partition].segments if partition in counts else None,
                live_at=counts[partition].next_offset if partition in counts else None,
            )
            for partition, position in positions.items()
        },
    )
