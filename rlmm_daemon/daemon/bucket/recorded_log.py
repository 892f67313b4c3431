"""The bucket's record of the event log, read at the start: the marker and our presence file."""

from collections.abc import Callable, Mapping, Sequence

import structlog
from msgspec.structs import replace

from rlmm_daemon.codec import marker
from rlmm_daemon.codec.marker import (
    CONTROL_MS_MAX,
    MARKER_KEY,
    AcceptedGap,
    BucketMarker,
    Presence,
)
from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.readiness.marker_verdict import REBUILD
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.bucket import acceptance, storage_clock
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.bucket.owed import gaps_of, loss_of, owe
from rlmm_daemon.daemon.bucket.presence_files import PresenceReader
from rlmm_daemon.daemon.following.bucket_record import BucketLog
from rlmm_daemon.daemon.following.history import furthest
from rlmm_daemon.domain.errors import Malformed, UnavailableError
from rlmm_daemon.domain.ids import (
    BrokerId,
    MetadataPartition,
    TopicId,
    uuid_bytes,
)
from rlmm_daemon.ports.event_log import LogIdentity, LogRange
from rlmm_daemon.ports.storage import RemoteStorage

logger = structlog.get_logger(__name__)


class RecordedLog:
    """`daemon.following.bucket_record.BucketRecord` over a bucket."""

    has_storage = True

    def __init__(
        self,
        storage: RemoteStorage,
        bucket: Bucket,
        *,
        broker_id: BrokerId,
        cluster_id: str | None,
        now_ms: Callable[[], int],
        state: StateDirectory,
        presences: PresenceReader | None = None,
    ) -> None:
        self._storage = storage
        self._bucket = bucket
        self._broker_id = broker_id
        self._cluster_id = cluster_id
        self._now_ms = now_ms
        self._state = state
        self._presences = presences or PresenceReader(storage, broker_id)

    async def log(self) -> BucketLog | None:
        """Return the marker's log, and how far an earlier life of this daemon had read it."""
        present = await self._bucket.peek()
        if present is None or self._cluster_id not in (None, present.cluster_id):
            return None  # another cluster's marker says nothing of our log; copies are refused
        try:
            marker.require_topic_ids(present)
        except Malformed as damage:
            raise Malformed(f"{damage.message}; restore it, or run: {REBUILD}") from damage
        dated = await self._dated(present)
        files = await self._presences.read()
        unheard = dict(files.unread)
        if files.unnamed is not None:
            unheard[files.unnamed] = CONTROL_MS_MAX  # no acceptance says anything of that
        said, unread = await self._said(dated), self._unread(dated, unheard)
        own = marker.presence_key(self._broker_id)
        return BucketLog(
            cluster_id=present.cluster_id,
            topic_id=TopicId(uuid_bytes(present.metadata_topic_id)),
            partition_count=present.partition_count,
            positions=self._positions(dated, said),
            lost_since=() if said is None else _given_up(dated, said.written_at_ms),
            others=self._others(dated, files.told),
            unread=unread,
            own_unread=any(own in each for each in unread.values()),
            accepted_gaps=[
                (TopicId(uuid_bytes(gap.topic_id)), gap.metadata_partition, _range(gap))
                for gap in present.gaps
            ],
        )

    async def _said(self, present: BucketMarker) -> Presence | None:
        """Return our presence file, dated by the storage where a loss was accepted."""
        key = marker.presence_key(self._broker_id)
        try:
            control = await self._storage.get_control(key)
            if control is None:
                return None
            presence = marker.decode_presence(control.data)
        except Malformed as damage:
            logger.warning("our presence file can't be read", error=damage.message)
            return None
        stored_ms = await self._stored_ms(key) if present.accepted_losses else None
        return presence if stored_ms is None else replace(presence, written_at_ms=stored_ms)

    def _positions(self, present: BucketMarker, said: Presence | None) -> dict[int, Position]:
        """Return what our presence file says, but of no loss that was accepted here after it."""
        by, since = self._broker_id, None if said is None else said.written_at_ms
        given_up = set() if since is None else _given_up(present, since, by=by)
        return {
            number: Position(seen.next_offset, seen.leader_epoch)
            for number, seen in (said.partitions if said is not None else {}).items()
            if seen.topic_id == present.metadata_topic_id and not {None, number} & given_up
        }

    def _others(
        self, present: BucketMarker, told: Sequence[Presence]
    ) -> dict[int, dict[Position, str]]:
        """Return how far daemons of other brokers had read this log, and the files that say so.

        Whoever never followed a metadata partition knows of nothing that it lost, and would end as
        abandoned, or answer as absent, what another daemon has acknowledged. A file that is older
        than an acceptance, of whichever daemon, says nothing any more.
        """
        found: dict[int, dict[Position, str]] = {}
        for other in told:
            if other.broker_id == self._broker_id or other.cluster_id != present.cluster_id:
                continue
            given_up = _given_up(present, other.written_at_ms)
            for number, seen in other.partitions.items():
                ours = seen.topic_id == present.metadata_topic_id and seen.leader_epoch >= 0
                if ours and seen.next_offset > 0 and not {None, number} & given_up:
                    at, known = Position(seen.next_offset, seen.leader_epoch), found.get(number, {})
                    file = marker.presence_key(other.broker_id)
                    said = known | {at: f"{known[at]}, {file}" if at in known else file}
                    found[number] = {each: said[each] for each in furthest([*known, at])}
        return found

    def _unread(self, present: BucketMarker, unread: Mapping[str, int]) -> dict[int, list[str]]:
        """Return the files that can't be read, by each partition of which they may tell something.

        As `_others` and `_positions` would hear them: each stands for a read of unknown length.
        """
        found = dict[int, list[str]]()
        for key, stored_ms in sorted(unread.items()):
            by = self._broker_id if key == marker.presence_key(self._broker_id) else None
            given_up = _given_up(present, stored_ms, by=by)
            for number in range(present.partition_count):
                if not {None, number} & given_up:
                    found.setdefault(number, []).append(key)
        return found

    async def _dated(self, present: BucketMarker) -> BucketMarker:
        """Return the marker with no loss that was accepted after it was written.

        Versions before dated a loss by the daemon's own clock, which may have been ahead.
        """
        if not present.accepted_losses:
            return present
        written_ms = await self._stored_ms(MARKER_KEY)
        if written_ms is None:
            return present
        losses = (
            replace(loss, accepted_at_ms=min(loss.accepted_at_ms, written_ms))
            for loss in present.accepted_losses
        )
        return replace(present, accepted_losses=tuple(losses))

    async def _stored_ms(self, key: str) -> int | None:
        """Return when the storage took an object; None where it does not tell."""
        try:
            return await storage_clock.stored_ms(self._storage, key)
        except UnavailableError as error:
            logger.warning("the storage's time is not known", error=str(error))
            return None

    async def _storages_ms(self, cluster_id: str | None) -> int | None:
        """Return the storage's time; None where it does not tell it, or may be somebody else's."""
        try:
            present = await self._bucket.peek()
            if present is not None and cluster_id in (None, present.cluster_id):
                return await storage_clock.now_ms(self._storage)
        except (UnavailableError, Malformed) as error:
            logger.warning("the storage's time is not known; ours is written", error=str(error))
        return None

    async def accept_loss(
        self,
        partition: MetadataPartition | None,
        identity: LogIdentity,
        gaps: Mapping[int, Sequence[LogRange]],
    ) -> None:
        """Keep an accepted loss in the marker; where there is none, in what one is made of."""
        cluster_id = identity.cluster_id or self._cluster_id
        now_ms, storages_ms = self._now_ms(), await self._storages_ms(cluster_id)
        unwritten = await acceptance.accept_loss(
            self._bucket,
            loss_of(
                partition,
                identity,
                at_ms=now_ms if storages_ms is None else storages_ms,
                broker_id=self._broker_id,
            ),
            gaps_of(identity, gaps),
            cluster_id=cluster_id,
            partition_count=identity.partition_count if partition is None else None,
            now_ms=now_ms,
        )
        if unwritten is not None:
            await owe(
                self._state,
                unwritten,
                identity,
                cluster_id=cluster_id,
                now_ms=now_ms,
                broker_id=self._broker_id,
                is_used=True,
            )


def _range(gap: AcceptedGap) -> LogRange:
    return LogRange(start=gap.start, end=gap.end)


def _given_up(
    present: BucketMarker, written_at_ms: int, by: BrokerId | None = None
) -> set[int | None]:
    """Return what was accepted as lost of the marker's log since a presence file was written.

    Both by the storage's time.
    """
    return {
        loss.metadata_partition
        for loss in present.accepted_losses
        if loss.topic_id == present.metadata_topic_id
        and by in (None, loss.broker_id)
        and loss.accepted_at_ms >= written_at_ms
    }
