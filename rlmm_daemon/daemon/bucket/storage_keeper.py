"""The daemon's standing with its remote storage: the marker, the presence file, what is wrong."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

import msgspec
import structlog

from rlmm_daemon.codec import marker
from rlmm_daemon.codec.marker import (
    COMPARING,
    MARKER_KEY,
    AcceptedLoss,
    Hold,
    PresencePartition,
)
from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.explain.facts import LastError
from rlmm_daemon.core.readiness import twins
from rlmm_daemon.core.readiness.states import PartitionState
from rlmm_daemon.daemon.bucket import acceptance
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.bucket.live_counts import LiveCount, LiveCounts
from rlmm_daemon.daemon.bucket.live_marker import BucketIdentity
from rlmm_daemon.daemon.bucket.presence import (
    FIRST_LOOK_SECONDS,
    LEASE_SECONDS,
    Author,
    PresenceFacts,
    PresenceFile,
)
from rlmm_daemon.daemon.bucket.presence_files import PresenceReader
from rlmm_daemon.daemon.bucket.storage_past import RecordedPast
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.process.runtime import Runtime
from rlmm_daemon.domain.errors import (
    ConfigError,
    Malformed,
    StorageUnavailable,
    UnavailableError,
)
from rlmm_daemon.domain.ids import MetadataPartition, uuid_text
from rlmm_daemon.observability.metrics import Metrics, StorageMetrics
from rlmm_daemon.ports.storage import RemoteStorage

#: Between two looks at what the presence file says.
_LOOK_SECONDS = 0.5
_LAST_WORDS_SECONDS = 2.0
#: Between two looks at the marker of a bucket that is in use, and of one that is refused.
_MARKER_SECONDS = 30.0
_REFUSED_SECONDS = 5.0
_MARKER_ANSWER_SECONDS = 30.0

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
        metrics: StorageMetrics | None = None,
        author: Callable[[], Author] = Author,
        private_log: bool = False,
        presences: PresenceReader | None = None,
    ) -> None:
        """`author` is asked for when the log is open, so that the state directory is locked.

        `private_log`: another daemon of this broker id would have a log of its own.
        """
        self._backend, self._bucket = backend, bucket
        self._manager, self._runtime = manager, runtime
        self._broker_id, self._cluster_id = broker_id, cluster_id
        self._copy_deadline_seconds = copy_deadline_seconds
        self._trouble_by_cluster = trouble_by_cluster
        own = metrics or Metrics().storage
        own.marker_refused.set_function(lambda: float(bucket.trouble is not None))
        own.other_daemon.set_function(lambda: float(self.other_daemon() is not None))
        self._author, self._private_log = author, private_log
        self._begun = asyncio.Event()
        bucket.require_alone = self._require_alone
        self._presences = presences or PresenceReader(backend, broker_id)
        bucket.presences = self._presences.read_named
        self._refused: LastError | None = None
        self._presence: PresenceFile | None = None

    def trouble(self) -> LastError | None:
        """Return what is wrong with the remote storage: refused, a broker's own, or away."""
        if (refused := self._marker_trouble()) is not None:
            return refused
        if (trouble := self._trouble_by_cluster() or self._unread_of_ours()) is not None:
            return LastError(message=trouble, at_ms=self._manager.clock.now_ms())
        unwritten = None if self._presence is None else self._unwritten(self._presence)
        return unwritten or self._unseen()

    def _unseen(self) -> LastError | None:
        """Return why daemons of other brokers may have read further unseen, where they share it."""
        unseen = None if self._private_log else self._presences.unseen
        if unseen is None:
            return None
        return LastError(message=unseen, at_ms=self._manager.clock.now_ms())

    @staticmethod
    def _unwritten(presence: PresenceFile) -> LastError | None:
        """Return why the presence file is not written, and what waits for that."""
        trouble, why = presence.trouble, presence.why_not_alone()
        if trouble is None or not isinstance(presence.standing, twins.Doubted):
            return trouble
        return msgspec.structs.replace(trouble, message=why or trouble.message)

    def other_daemon(self) -> LastError | None:
        """Return what is known of another daemon that lives under this broker id."""
        if self._presence is None or not isinstance(self._presence.standing, twins.Met):
            return None
        message = self._presence.why_not_alone()
        assert message is not None, "it was met"
        age_seconds = self._manager.clock.monotonic() - self._presence.standing.seconds
        at_ms = self._manager.clock.now_ms() - round(1000 * age_seconds)
        return LastError(message=message, at_ms=at_ms)

    async def _require_alone(self) -> None:
        """Return if no other daemon shows itself under this broker id.

        Raises:
            StorageUnavailable: one does or may, or the start has not come to that question yet.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_SECONDS):
                await self._begun.wait()
        if self._presence is None:
            raise StorageUnavailable(self._unread_of_ours() or twins.UNREAD_WHY)
        await self._presence.require_alone()

    async def _hold_all(self) -> None:
        """Keep all that is there: another daemon's log may name what this one's does not.

        Raises:
            StorageUnavailable: it could not be written down.
        """
        if self._private_log:
            try:
                await acceptance.hold_all(
                    self._bucket, self._manager.clock.now_ms(), self._broker_id
                )
            except Malformed as error:
                raise StorageUnavailable(error.message) from error
            logger.warning(
                "all objects are held: another daemon's log may name them; once none of them is "
                "needed: rlmm partition end-hold --all --execute"
            )

    def _unread_of_ours(self) -> str | None:
        """Return what comes of our own presence file, where it can't be read; None: it can."""
        if self._presence is not None or not self._manager.fleet.others.own_unread:
            return None
        return (
            f"{marker.presence_key(self._broker_id)}, this daemon's own presence file, can't be "
            "read and is not written over, so nothing is deleted: it may tell of events that the "
            "log has lost, of any metadata partition. Put a copy of it back; else, once all is "
            "looked for that failed of it: rlmm partition accept-loss --all"
        )

    def _marker_trouble(self) -> LastError | None:
        """Return why the bucket is refused or was not reached yet, and since when."""
        trouble = self._bucket.trouble or self._bucket.away
        if trouble is None:
            self._refused = None
        elif self._refused is None or self._refused.message != trouble.message:
            now_ms = self._manager.clock.now_ms()
            self._refused = LastError(message=trouble.message, at_ms=now_ms)
        return self._refused

    async def run(self) -> None:
        """Settle the marker once the log is known, then keep the presence file fresh, for ever.

        Metadata is served all along: a marker that is not ours refuses copies, fetches and deletes.
        """
        manager = self._manager
        while (identity := manager.fleet.identity) is None:
            await manager.fleet.changed.wait()
        cluster_id = identity.cluster_id or self._cluster_id or ""
        await self._settled(
            BucketIdentity(
                cluster_id=cluster_id,
                partition_count=identity.partition_count,
                metadata_topic_id=uuid_text(identity.topic_id),
                broker_id=self._broker_id,
                now_ms=manager.clock.now_ms(),
            )
        )
        while not manager.fleet.marker_checked:
            await manager.fleet.changed.wait()  # how far an earlier life had read, it alone may say
        if not manager.fleet.others.has_heard:  # the marker was made since, or a mount came back
            await manager.fleet.check_marker()
        self._runtime.spawn("storage.marker", self._watch_marker())
        while self._unread_of_ours():
            await manager.fleet.changed.wait()  # written over, the next life would not know of it
        counts = LiveCounts(manager)
        presence = self._presence = PresenceFile(
            self._backend,
            manager.clock,
            cluster_id=cluster_id,
            broker_id=self._broker_id,
            copy_deadline_seconds=self._copy_deadline_seconds,
            facts=lambda: presence_of(manager, counts.known, self._holds()),
            spawn=lambda work: self._runtime.spawn("storage.presence.hold", work, may_end=True),
            may_write=lambda: self._bucket.trouble is None,
            author=self._author(),
            on_met=self._hold_all,
            remembrance=manager.state,
        )
        self._begun.set()
        self._runtime.on_drain("presence", lambda: _last_words(presence))
        self._runtime.spawn("storage.presence", presence.run())
        self._runtime.spawn("storage.live counts", counts.run())
        await _tell_of_changes(manager, presence, self._holds, self._losses)

    def holds(self) -> tuple[Hold, ...] | None:
        """Return what the marker keeps; None before it was read."""
        return None if self._bucket.marker is None else self._bucket.marker.held

    def _losses(self) -> Sequence[AcceptedLoss]:
        return () if self._bucket.marker is None else self._bucket.marker.accepted_losses

    def _holds(self) -> tuple[Hold, ...]:
        return self.holds() or ()

    async def _settled(self, identity: BucketIdentity) -> None:
        """Return once the bucket is in use; one that is refused is looked at again and again."""
        manager = self._manager
        past = RecordedPast(manager.log, manager.state, manager.turns)
        while True:
            try:
                await self._bucket.open(identity, past)
            except (ConfigError, Malformed):
                self._marker_trouble()
            else:
                self._marker_trouble()
                return
            await asyncio.sleep(_REFUSED_SECONDS)

    async def _watch_marker(self) -> None:
        """Look at the marker again and again: it may be removed, replaced or mended."""
        while True:
            refused = self._marker_trouble() is not None
            with suppress(TimeoutError):  # a copy may find out first
                async with asyncio.timeout(_REFUSED_SECONDS if refused else _MARKER_SECONDS):
                    await self._bucket.refused.wait()
                    continue
            with suppress(UnavailableError, TimeoutError):  # the marker's own is in `trouble`
                async with asyncio.timeout(_MARKER_ANSWER_SECONDS):
                    await confirm_anew(self._bucket)


async def confirm_anew(bucket: Bucket) -> None:
    """Make sure that the marker is ours, of what stands under the storage's name now.

    A mount that has come back is another directory, which a storage of local files takes for
    another storage until it is opened anew.

    Raises:
        StorageUnavailable: it is not, or the storage does not answer.
    """
    if bucket.storage.local_path(MARKER_KEY) is not None:
        await bucket.storage.open()
    await bucket.confirm()


async def _last_words(presence: PresenceFile) -> None:
    """Leave the presence file as of the end, unless the storage is away."""
    try:
        async with asyncio.timeout(_LAST_WORDS_SECONDS):
            await presence.write(ended=True)
    except TimeoutError:
        logger.warning("presence file not written at the end")


async def _tell_of_changes(
    manager: Manager,
    presence: PresenceFile,
    holds: Callable[[], tuple[Hold, ...]],
    losses: Callable[[], Sequence[AcceptedLoss]],
) -> None:
    """Have the presence file rewritten as states, positions, holds or the manager change.

    It tells of no position from before a loss that was accepted, wherever that was.
    """
    before: object = None
    known = losses()
    positions: Mapping[MetadataPartition, Position] = {}
    while True:
        if (accepted := losses()) != known:
            since = {each.metadata_partition for each in accepted if each not in known}
            manager.fleet.others.lost_elsewhere(since)
            known = accepted
        now = (
            manager.assignment.incarnation_ms,
            manager.assignment.has_manager,
            _states(manager),
            holds(),
        )
        if now != before:
            before = now
            presence.changed()
        if (furthest := manager.fleet.furthest()) != positions:
            positions = furthest
            presence.moved()
        await asyncio.sleep(_LOOK_SECONDS)


def _states(manager: Manager) -> dict[MetadataPartition, str]:
    """Return the state of each followed partition, as presence files have it.

    Until a replay is compared with what a dropped fold knew, nobody else could see that the log
    lost something where the list lacks how far that had read: of a damaged table, of another log.
    Where it does not lack it the file says that, too, also of what nobody follows here.
    """
    return {
        follower.partition: (
            follower.state.value
            if follower.history.settled or follower.state is PartitionState.FAILED
            else COMPARING
        )
        for follower in manager.followed()
    }


def presence_of(
    manager: Manager,
    counts: Mapping[MetadataPartition, LiveCount] = MappingProxyType({}),
    holds: tuple[Hold, ...] = (),
) -> PresenceFacts:
    """Return what the presence file says of the followed metadata partitions."""
    identity = manager.fleet.identity
    topic_id = uuid_text(identity.topic_id) if identity else ""
    states = _states(manager)
    unread = {partition: Position(0, -1) for partition in states}
    positions = {**unread, **manager.fleet.furthest()}
    return PresenceFacts(
        incarnation=manager.assignment.incarnation_ms,
        lease_end_ms=manager.clock.now_ms() + round(LEASE_SECONDS * 1000),
        # Another manager never connects, and neither does ours before the broker runs.
        metadata_manager="rlmm" if manager.assignment.has_manager else "foreign",
        holds=holds,
        partitions={
            partition: PresencePartition(
                state=states.get(partition, PartitionState.UNASSIGNED.value),
                topic_id=topic_id,
                leader_epoch=position.leader_epoch,
                next_offset=position.next_offset,
                live_segments=counts[partition].segments if partition in counts else None,
                live_at=counts[partition].next_offset if partition in counts else None,
            )
            for partition, position in positions.items()
        },
    )
