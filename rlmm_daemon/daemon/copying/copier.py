"""Copies and deletes of segments: the SPI's two steps, the two whole jobs, one copy per segment."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

import structlog

from rlmm_daemon.codec.api import SegmentFiles
from rlmm_daemon.core.explain.facts import CopyFailure, UnsettledCopy
from rlmm_daemon.daemon.base.bounded import Bounded
from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.crash_guard import blamed
from rlmm_daemon.daemon.base.outcomes import outcome_told
from rlmm_daemon.daemon.base.segment_log import (
    SegmentLog,
    decode_new_segment,
    decode_segment,
    same_segment,
)
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.copying.copy_job import CopyJob, CopyOptions, CopyTools
from rlmm_daemon.daemon.copying.late_objects import LateObjects
from rlmm_daemon.daemon.copying.progress import CopyKind, RollBack, RunningCopy
from rlmm_daemon.daemon.copying.removal import Removal
from rlmm_daemon.daemon.copying.turns import Turns
from rlmm_daemon.daemon.copying.used_ids import UsedIds, finished_before
from rlmm_daemon.domain.errors import (
    Draining,
    IllegalTransition,
    InvalidArgument,
    OutcomeUnknown,
    Overloaded,
    RlmmError,
    StorageNotConfigured,
    TimedOut,
)
from rlmm_daemon.domain.ids import (
    BrokerId,
    SegmentId,
    TopicIdPartition,
    require_topic_name,
    uuid_text,
)
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState
from rlmm_daemon.observability.metrics import Metrics, StorageMetrics
from rlmm_daemon.ports.passes import Passes
from rlmm_daemon.ports.threads import copying_threads

#: Of the time to drain, this part waits for copies to finish; the rest is for roll-backs.
DRAIN_PATIENCE: Final = 0.6
#: Partitions whose last copy failed that are remembered for `explain`.
FAILURES_MAX: Final = 1_000
#: Copies that could not be rolled back since somebody else had finished them, remembered likewise.
UNSETTLED_MAX: Final = 1_000

logger = structlog.get_logger()


class Copier:
    """One attempt per segment id at a time; a repeated request joins it."""

    def __init__(
        self,
        bucket: Bucket | None,
        log: SegmentLog,
        tasks: asyncio.TaskGroup,
        *,
        options: CopyOptions,
        log_dirs: Sequence[str],
        broker_id: BrokerId,
        now_ms: Callable[[], int],
        passes: Passes,
        require_copyable: Callable[[TopicIdPartition], None] = lambda _: None,
        require_running: Callable[[TopicIdPartition], None] = lambda _: None,
        lane_of: Callable[[str], str | None] = lambda _: None,
        metrics: StorageMetrics | None = None,
        bugs: Bugs | None = None,
    ) -> None:
        """Without a bucket (`kind = "none"`) every method is StorageNotConfigured.

        `require_copyable` raises for a partition that must not be copied, whoever asks;
        `require_running` for one of which nothing new may begin. Copies of topics of one lane go
        one after another.
        """
        self._log, self._tasks, self._options = log, tasks, options
        self._jobs: dict[SegmentId, CopyJob] = {}
        self._failures: Bounded[str, CopyFailure] = Bounded(FAILURES_MAX)
        self._unsettled: Bounded[SegmentId, UnsettledCopy] = Bounded(UNSETTLED_MAX)
        self._used_ids = UsedIds() if bucket is None else UsedIds(bucket.removing.asked)
        self._outcomes: Counter[str] = Counter()
        self._roll_backs: Counter[str] = Counter()
        #: By all copies that ended, however they did.
        self.bytes_copied = 0
        #: The same by topic, and how many failed.
        self.bytes_by_topic: Counter[str] = Counter()
        self.failed_by_topic: Counter[str] = Counter()
        self._now_ms = now_ms
        self._bugs = Bugs() if bugs is None else bugs
        self._metrics = metrics or Metrics().storage
        self._draining = False
        self._require_copyable, self._require_running = require_copyable, require_running
        self._tools = (
            None
            if bucket is None
            else CopyTools(
                bucket=bucket,
                log=log,
                removal=Removal(bucket, log, broker_id=broker_id, now_ms=now_ms),
                options=options,
                log_dirs=tuple(log_dirs),
                broker_id=broker_id,
                now_ms=now_ms,
                turns=Turns(options.parallel_max, lane_of),
                threads=copying_threads(options.parallel_max, "copy"),
                passes=passes,
                bugs=self._bugs,
            )
        )
        #: None without a bucket.
        self.late = None if bucket is None else LateObjects(bucket, log, is_running=self.is_running)
        log.on_delete_started.append(self._delete_started)
        log.on_delete_put_aside.append(self._delete_started)

    async def copy_log_segment_data(self, record: bytes, files: SegmentFiles) -> bytes | None:
        """Store a segment whose COPY_SEGMENT_STARTED the broker appended; return custom metadata.

        Writes no metadata and removes no object, whatever happens: the broker's delete sequence
        does. Every error carries `write_begun`.

        Raises:
            IllegalTransition: the segment is in another state than COPY_SEGMENT_STARTED.
            ChecksumMismatch, PathNotAllowed, InvalidArgument: the files are not what they must be.
            StorageUnavailable, StorageFull, TimedOut, Overloaded, Draining: as they say.

        Source: RemoteStorageManager.copyLogSegmentData.
        """
        return await self._joined(CopyKind.DATA, record, files)

    async def copy_segment(
        self,
        record: bytes,
        files: SegmentFiles,
        caller: Caller = Caller.OPERATOR,
        *,
        repeats: bool = False,
    ) -> bytes:
        """Append COPY_SEGMENT_STARTED, store, append COPY_SEGMENT_FINISHED; return that record.

        A broker's copy passes the gates of a broker's COPY_SEGMENT_STARTED. A failure before the
        last step is rolled back through the log; `rolled_back` says whether that succeeded. A
        repeat of a finished copy returns its record at once. `repeats`: nothing is begun.

        Raises:
            IllegalTransition, SegmentNotFound: the id is used up; a repeat finds nothing under it.
            OutcomeUnknown: COPY_SEGMENT_FINISHED, or a caller that left, came to nobody knows what.
            RlmmError: as `copy_log_segment_data`, and as the manager's writes.
        """
        if repeats and not self._may_join(record):
            try:
                return await finished_before(self._log, decode_segment(record))
            except RlmmError as error:
                error.fields["write_begun"] = False
                raise
        return await self._joined(CopyKind.WHOLE, record, files, caller)

    def _may_join(self, record: bytes) -> bool:
        self._require_tools()
        job = self._jobs.get(decode_new_segment(record).segment_id)
        return job is not None and not job.is_ending

    async def delete_log_segment_data(self, record: bytes) -> None:
        """Delete the objects of a segment that is DELETE_SEGMENT_STARTED; absent is success.

        Raises:
            IllegalTransition: it is in another state, and stayed there for `apply_wait_seconds`.
            StorageUnavailable: at least one object may still be there.

        Source: RemoteStorageManager.deleteLogSegmentData.
        """
        removal = self._require_tools().removal
        given = decode_segment(record)
        async with self._counted_delete(), self._log.keep_followed(given.partition):
            found = await self._until_delete_started(given.partition, given.segment_id)
            if found is None:
                return
            await self._end_copy(given.segment_id)
            await removal.objects(found)

    async def delete_segment(self, tp: TopicIdPartition, segment_id: SegmentId) -> None:
        """Append DELETE_SEGMENT_STARTED, delete the objects, append DELETE_SEGMENT_FINISHED.

        A segment that is gone from a ready fold is success.
        """
        removal = self._require_tools().removal
        async with self._counted_delete(), self._log.keep_followed(tp):
            await self._end_copy(segment_id)
            found = await self._log.segment(tp, segment_id)
            if found is None:
                return
            try:
                await removal.whole(decode_segment(found[1]))
            except asyncio.CancelledError:
                # A deadline must not say `timed_out` of what has begun; a repeat goes on with it.
                raise OutcomeUnknown("the delete was begun and is not finished") from None
            except RlmmError:
                raise
            except Exception as bug:
                if blamed(bug):
                    raise
                raise self._bugs.met_after_append("delete", bug) from bug

    @contextlib.asynccontextmanager
    async def _counted_delete(self) -> AsyncIterator[None]:
        self._metrics.deleting.inc()
        try:
            with outcome_told(lambda outcome: self._metrics.deletes.labels(outcome).inc()):
                yield
        finally:
            self._metrics.deleting.dec()

    def jobs(self) -> list[RunningCopy]:
        """Return the copies that are running or waiting, in the order of their requests."""
        return [job.facts() for job in self._jobs.values()]

    def outcomes(self) -> Mapping[str, int]:
        """Return how many copies ended in which way: ok, cancelled, or an error's wire name."""
        return self._outcomes

    def failures(self) -> Mapping[str, CopyFailure]:
        """Return what the last copy of a partition failed of, by the partition in Kafka's form."""
        return self._failures

    def outcomes_of_roll_backs(self) -> Mapping[str, int]:
        """Return how many roll-backs came to what (`RollBack`)."""
        return self._roll_backs

    def unsettled(self) -> list[UnsettledCopy]:
        """Return copies that failed after somebody else had finished the segment.

        Its objects may not be whole. Those that failed last come last; what was deleted since is
        left out.
        """
        return list(self._unsettled.values())

    def is_running(self, segment_id: SegmentId) -> bool:
        """Return whether a copy of this segment runs or waits here."""
        return segment_id in self._jobs

    def running_in(self, partition: TopicIdPartition) -> list[SegmentId]:
        """Return the segments of a user partition whose copies run or wait here."""
        return [i for i, job in self._jobs.items() if job.metadata.partition == partition]

    async def end_copy(self, segment_id: SegmentId) -> None:
        """Cancel the copy of a segment that is being deleted, and return when it has ended."""
        await self._end_copy(segment_id)

    async def drain(self, timeout_seconds: float) -> None:
        """Take no more; let whole jobs finish or roll back, end broker-driven ones at once."""
        self._draining = True
        until = asyncio.get_running_loop().time() + timeout_seconds
        for job in tuple(self._jobs.values()):
            if job.kind is CopyKind.DATA:
                job.stop(Draining())
        await self._until_idle(timeout_seconds * DRAIN_PATIENCE)
        for job in tuple(self._jobs.values()):
            job.stop(Draining())
        await self._until_idle(until - asyncio.get_running_loop().time())

    def abandon(self) -> None:
        """Cancel what a drain that was cut short left over: nobody is there to answer it."""
        for job in tuple(self._jobs.values()):
            job.abandon()

    async def _joined(
        self,
        kind: CopyKind,
        record: bytes,
        files: SegmentFiles,
        caller: Caller = Caller.BROKER,
    ) -> bytes:
        try:
            job = self._job(kind, record, files, caller)
            while job.is_ending:  # of what became of it those are told who asked for it
                await asyncio.wait([job.outcome])
                job = self._job(kind, record, files, caller)
        except RlmmError as error:
            error.fields["write_begun"] = False
            raise
        job.waiters += 1
        try:
            return await asyncio.shield(job.outcome)
        except asyncio.CancelledError:
            if job.waiters == 1:
                job.stop(TimedOut("every caller of this copy has left"))
            if job.begun and not job.outcome.cancelled():
                # A deadline must not say `timed_out` of what may still take effect.
                raise OutcomeUnknown(
                    "the copy goes on, or is being rolled back",
                    write_begun=job.progress.write_begun,
                ) from None
            raise
        finally:
            job.waiters -= 1

    def _job(self, kind: CopyKind, record: bytes, files: SegmentFiles, caller: Caller) -> CopyJob:
        tools = self._require_tools()
        given = decode_new_segment(record)
        require_topic_name(given.partition.topic)
        self._require_copyable(given.partition)
        job = self._jobs.get(given.segment_id)
        if job is not None:
            _require_joinable(job, kind, given)
            return job
        if self._draining:
            raise Draining
        if kind is CopyKind.WHOLE:  # the other kind has begun: its COPY_SEGMENT_STARTED is there
            self._require_running(given.partition)
        if len(self._jobs) >= self._options.parallel_max + self._options.waiting_max:
            raise Overloaded("too many copies are waiting")
        if self.late is not None and self.late.is_busy(given.segment_id):
            raise Overloaded("what a failed copy of this segment left is being removed")
        self._used_ids.require_new(given.segment_id)
        job = CopyJob(kind, record, files, tools, caller=caller)
        self._begin(job)
        return job

    def _begin(self, job: CopyJob) -> None:
        """Start a job's task.

        Raises:
            Draining: the daemon's task group is ending.
        """
        segment_id, work = job.metadata.segment_id, job.run()
        try:
            self._tasks.create_task(work, name=f"copy {job.metadata.partition}")
        except RuntimeError:  # the task group is ending
            work.close()
            raise Draining("the daemon stops; nothing was begun") from None
        if self.late is not None:
            self.late.begun(segment_id)
        self._jobs[segment_id] = job
        job.outcome.add_done_callback(lambda outcome: self._ended(job, outcome))

    def _ended(self, job: CopyJob, outcome: asyncio.Future[bytes]) -> None:
        self._jobs.pop(job.metadata.segment_id, None)
        partition = str(job.metadata.partition)
        self._failures.pop(partition, None)
        error = None if outcome.cancelled() else outcome.exception()
        if self.late is not None:
            wrote = job.progress.write_begun
            self.late.ended(job.metadata, failed=wrote and isinstance(error, RlmmError))
        if outcome.cancelled():
            self._outcomes["cancelled"] += 1
        else:
            self._outcomes[error.wire_name() if isinstance(error, RlmmError) else "ok"] += 1
        topic = job.metadata.partition.topic
        self.bytes_copied += job.progress.bytes_done
        self.bytes_by_topic[topic] += job.progress.bytes_done
        self.failed_by_topic[topic] += error is not None
        self._count_roll_back(job, error)
        self._metrics.copy.observe(job.facts().age_seconds)
        for phase, milliseconds in job.phases_ms.items():
            self._metrics.copy_phase.labels(phase).observe(milliseconds / 1000)
        if error is not None:
            self._failures[partition] = CopyFailure(
                segment_id=uuid_text(job.metadata.segment_id),
                message=str(error),
                at_ms=self._now_ms(),
            )

    def _count_roll_back(self, job: CopyJob, error: BaseException | None) -> None:
        if job.roll_back is None:
            return
        self._roll_backs[job.roll_back.value] += 1
        segment_id = job.metadata.segment_id
        if job.roll_back is not RollBack.FINISHED_ELSEWHERE:
            return
        row = UnsettledCopy(
            partition=str(job.metadata.partition),
            segment_id=uuid_text(segment_id),
            message=str(error),
            at_ms=self._now_ms(),
        )
        logger.error(
            "a copy failed of a segment that somebody else finished; its objects stay",
            partition=row.partition,
            segment_id=row.segment_id,
            error=row.message,
            command="rlmm storage verify",
        )
        self._unsettled[segment_id] = row

    def _require_tools(self) -> CopyTools:
        if self._tools is None:
            raise StorageNotConfigured
        return self._tools

    async def _until_delete_started(
        self, tp: TopicIdPartition, segment_id: SegmentId
    ) -> SegmentMetadata | None:
        found = await self._log.segment(tp, segment_id)
        if found is None:
            return None
        state, record = found
        if state is not SegmentState.DELETE_SEGMENT_STARTED:
            wanted = frozenset({SegmentState.DELETE_SEGMENT_STARTED})
            try:
                async with asyncio.timeout(self._options.apply_wait_seconds):
                    found = await self._log.until_state(tp, segment_id, wanted)
                    if found is None:
                        return None
                    state, record = found
            except TimeoutError as error:
                raise IllegalTransition(
                    f"only a segment in DELETE_SEGMENT_STARTED is deleted; this is {state.name}",
                    state=state.name,
                ) from error
        return decode_segment(record)

    async def _end_copy(self, segment_id: SegmentId) -> None:
        job = self._jobs.get(segment_id)
        if job is not None:
            job.stop(IllegalTransition("the segment is being deleted"))
            await asyncio.wait([job.outcome])

    def _delete_started(self, tp: TopicIdPartition, segment_id: SegmentId) -> None:
        self._used_ids.deleted(segment_id)
        if not self._log.is_held(tp, segment_id):
            self._unsettled.pop(segment_id, None)
        job = self._jobs.get(segment_id)
        if job is not None:
            job.stop(IllegalTransition("the segment is being deleted"))

    async def _until_idle(self, timeout_seconds: float) -> None:
        outcomes = [job.outcome for job in self._jobs.values()]
        if outcomes:
            await asyncio.wait(outcomes, timeout=timeout_seconds)


def _require_joinable(job: CopyJob, kind: CopyKind, given: SegmentMetadata) -> None:
    if not same_segment(job.metadata, given):
        raise InvalidArgument("another copy is running under this segment id")
    if job.kind is not kind:
        raise Overloaded(f"a {job.kind.value} of this segment is running")
