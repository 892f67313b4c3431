"""Identity of the open log, held against what state directory and bucket know of it.

A log that is absent or another one than was known is no log to answer from, until an operator
accepts that. What is accepted is written down here: in the bucket, which other daemons read too,
and in the state directory.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import structlog

from rlmm_daemon.codec.state_files import Identity
from rlmm_daemon.core.partitioner import PARTITIONER_ID
from rlmm_daemon.core.readiness.states import Failure, FailureReason, LogTrouble, TroubleKind
from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.following.accepted_gaps import AcceptedGaps
from rlmm_daemon.daemon.following.bucket_record import BucketLog, BucketRecord
from rlmm_daemon.domain.backoff import Backoff
from rlmm_daemon.domain.errors import (
    CorruptError,
    InvalidArgument,
    NotReady,
    RlmmError,
    UnavailableError,
    UnsupportedProtocol,
)
from rlmm_daemon.domain.ids import MetadataPartition, TopicId, uuid_bytes, uuid_text
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.event_log import (
    EventLog,
    LogForeign,
    LogIdentity,
    LogMissing,
    LogRange,
    LogUnnamed,
    NoTopicId,
)

RETRY_SECONDS_MIN: Final = 0.05
_RETRY_SECONDS_MAX: Final = 5.0
#: What a log as a whole failed of, and goes on from when the loss is accepted.
_ENDED_BY_ACCEPTANCE: Final = frozenset(
    {FailureReason.LOG_MISSING, FailureReason.PARTITION_COUNT_CHANGED}
)
#: What a log fails of that does not open, the narrowest kinds first.
_OF_OPENING: Final[Sequence[tuple[type[Exception], FailureReason]]] = (
    (LogMissing, FailureReason.LOG_MISSING),
    (NoTopicId, FailureReason.NO_TOPIC_ID),
    (UnsupportedProtocol, FailureReason.NEWER_LOG),
    (LogUnnamed, FailureReason.LOG_UNNAMED),
    (LogForeign, FailureReason.LOG_FOREIGN),
    (CorruptError, FailureReason.LOG_CORRUPT),
)
_NOT_OPENED: Final = LogTrouble(TroubleKind.NOT_OPENED, "not opened yet")

logger = structlog.get_logger(__name__)


class KnownLog:
    """The log that is open, and what of it was known before."""

    def __init__(
        self,
        log: EventLog,
        state: StateDirectory,
        bucket: BucketRecord | None,
        *,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._log, self._state, self._bucket = log, state, bucket
        self._clock, self._rng = clock, rng
        self.identity: LogIdentity | None = None
        #: Why no partition of this log can be served: it is absent, or another count.
        self.whole_failure: Failure | None = None
        #: Set when the log is not the one that state directory or marker name.
        self.foreign_evidence: str | None = None
        self.trouble: LogTrouble | None = _NOT_OPENED
        self.gaps = AcceptedGaps(state)
        #: It was accepted that the log is gone, or another one.
        self.accept_missing = False
        #: Rung when it was.
        self.gone = Broadcast()
        #: How many partitions the open log has by now, where that is not what it opened with.
        self.recounted: int | None = None
        #: Rung when any of this changed.
        self.changed = Broadcast()
        self._identity_unwritten = False

    async def opened(self, *, named: bool, cluster_id: str | None) -> LogIdentity:
        """Open the log, however long that takes; each failure is told and may pass.

        `cluster_id` is the one that the state directory belongs to, None if it does not say.
        """
        backoff = self._backoff()
        while True:
            create = not named or self.accept_missing
            try:
                self.identity = await self._attempt(cluster_id, create=create)
            except (LogMissing, NoTopicId, UnsupportedProtocol, CorruptError) as error:
                reason = next(each for kind, each in _OF_OPENING if isinstance(error, kind))
                self._failed(reason, str(error) or "the log is not there")
            except (UnavailableError, OSError) as error:
                self.trouble = LogTrouble(TroubleKind.LOG_AWAY, str(error))
                logger.warning("event log not open yet", error=str(error))
            else:
                self.whole_failure = None  # the log is there, readable, and has an id
                return self.identity
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff.next()):
                    await self.gone.wait()

    async def opened_anew(self) -> LogIdentity:
        """Open what stands under the known name now.

        Raises:
            UnavailableError, LogMissing, NoTopicId: not now.
        """
        self.identity = await self._log.open(create=False)
        return self.identity

    async def _attempt(self, cluster_id: str | None, *, create: bool) -> LogIdentity:
        opened = await self._log.open(create=create)
        if None not in (cluster_id, opened.cluster_id) and cluster_id != opened.cluster_id:
            raise LogForeign(
                f"the log is of cluster {opened.cluster_id}, and the state directory, which holds "
                f"what is known, of {cluster_id}",
                cluster_id=opened.cluster_id,
            )
        return opened

    async def marker(self) -> BucketLog | None:
        """Return the bucket's word on the log, however long that takes; None: there is none."""
        if self._bucket is None:
            return None
        backoff = self._backoff()
        while True:
            try:
                found = await self._bucket.log()
            except RlmmError as error:
                message = f"the bucket marker was not read yet: {error}"
                trouble = LogTrouble(TroubleKind.MARKER_UNREAD, message)
                if trouble != self.trouble:  # once, however long it lasts
                    logger.warning("bucket marker not read yet", error=str(error))
                self.trouble = trouble
            else:
                if self.trouble is not None and self.trouble.kind is TroubleKind.MARKER_UNREAD:
                    self.trouble = None if self.identity else _NOT_OPENED
                return found
            await asyncio.sleep(backoff.next())

    async def compare(
        self,
        identity: LogIdentity,
        known: Identity | None,
        marker: BucketLog | None,
        *,
        read_of: TopicId | None = None,
    ) -> None:
        """Hold the log that opened against the one that was known.

        `read_of` is the one whose positions are kept, which tell of no partition count.
        """
        names: dict[str, tuple[bytes, int | None]] = {}
        if read_of:
            names["positions.json"] = (read_of, None)
        if known:
            names["the state directory"] = (uuid_bytes(known.topic_id), known.partition_count)
        if marker:
            names["the bucket marker"] = (marker.topic_id, marker.partition_count)
        for who, (topic_id, count) in names.items():
            if count is not None and count != identity.partition_count:
                self._failed(
                    FailureReason.PARTITION_COUNT_CHANGED,
                    f"{who} says {count} partitions, the log has {identity.partition_count}",
                )
            if topic_id != identity.topic_id and not self.accept_missing:
                self.foreign_evidence = (
                    f"{who} names the log {uuid_text(topic_id)}, "
                    f"this one is {uuid_text(identity.topic_id)}"
                )
        in_doubt = self.foreign_evidence is not None or self.whole_failure is not None
        if self.accept_missing:
            await self._accepted_in_time()
        elif known is None and not in_doubt:
            await self._try_write_identity()

    async def _try_write_identity(self) -> None:
        """Write the identity, now or with the positions: reads do not wait for such a disk."""
        try:
            await self.write_identity()
        except OSError as error:
            logger.warning("identity of the log not written yet", error=str(error))
            self._identity_unwritten = True
        else:
            self._identity_unwritten = False

    async def write_identity(self) -> None:
        """Fix the present log as the one this state directory belongs to."""
        identity = self.identity
        assert identity is not None, "the log is open"
        await self._state.write(
            Identity(
                cluster_id=identity.cluster_id,
                topic_id=uuid_text(identity.topic_id),
                partition_count=identity.partition_count,
                partitioner=PARTITIONER_ID,
            )
        )

    def counted(self, partition_count: int) -> None:
        """Take up how many partitions the log has now: events of another count lie elsewhere."""
        identity = self.identity
        # A topic never has fewer: then it was a broker that has not heard of the newest yet.
        if identity is not None and partition_count > identity.partition_count:
            self.recounted = partition_count
            self._failed(
                FailureReason.PARTITION_COUNT_CHANGED,
                f"the log had {identity.partition_count} partitions and has {partition_count} now",
            )

    def _failed(self, reason: FailureReason, evidence: str) -> None:
        before = self.whole_failure
        if before is None or (before.reason, before.evidence) != (reason, evidence):
            self.whole_failure = Failure(reason, evidence, self._clock.now_ms())
            logger.error("event log failed", reason=reason.value, evidence=evidence)
        self.changed.ring()

    async def _accepted_in_time(self) -> None:
        """Write an acceptance of the whole log down, however long the bucket is away."""
        backoff = self._backoff()
        while True:
            try:
                await self.accept(None, {})
            except (UnavailableError, OSError) as error:
                message = f"the accepted loss was not written down yet: {error}"
                self.trouble = LogTrouble(TroubleKind.ACCEPTANCE_UNWRITTEN, message)
                logger.warning("accepted loss not written yet", error=str(error))
            else:
                self.trouble = None
                return
            await asyncio.sleep(backoff.next())

    async def accept(
        self, partition: MetadataPartition | None, gaps: Mapping[int, Sequence[LogRange]]
    ) -> None:
        """Write the acceptance down, first in the bucket, which other daemons read too."""
        assert self.identity is not None, "the log is open"
        if self._bucket is not None:
            await self._bucket.accept_loss(partition, self.identity, gaps)
        for number, some in gaps.items():
            if some:
                self.gaps.note(number, some)
        await self.gaps.write(self.identity.topic_id)
        await self.write_identity()

    async def accounted(self, partition: MetadataPartition, start: int) -> None:
        """Keep that the log lacks nothing which stood before `start`, where it starts now.

        Raises:
            OSError: the state directory did not take it.
        """
        assert self.identity is not None, "the log is open"
        if start and self.foreign_evidence is None:
            self.gaps.note(partition, [LogRange(start=0, end=start)])
            await self.gaps.write(self.identity.topic_id)

    def require_known_loss(self) -> None:
        """Raise why nothing can be accepted of the log as a whole, as `Fleet.accept_all` says."""
        failure = self.whole_failure
        if failure is not None and failure.reason not in _ENDED_BY_ACCEPTANCE:
            raise InvalidArgument(
                f"the event log failed ({failure.reason.value}: {failure.evidence}); to accept a "
                f"loss does not end that, so nothing was accepted; run: "
                f"{failure.command(MetadataPartition(0))}"
            )
        if failure is None and self.identity is None:
            raise NotReady(
                f"the event log is not open: {self.trouble}; nobody knows what is missing, so "
                f"nothing was accepted",
                state="starting",
            )

    async def write_identity_too(self) -> None:
        """Try again to write what the disk did not take at the open."""
        if self._identity_unwritten and self.foreign_evidence is None:
            await self._try_write_identity()

    def _backoff(self) -> Backoff:
        return Backoff(RETRY_SECONDS_MIN, _RETRY_SECONDS_MAX, self._rng.random)
