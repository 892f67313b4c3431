"""An attempt to copy a segment: its phases, its limits, and when it may be rolled back."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from rlmm_daemon.codec.api import SegmentFiles
from rlmm_daemon.core.storage.progress_floor import ProgressFloor
from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.crash_guard import blamed
from rlmm_daemon.daemon.base.segment_log import (
    SegmentLog,
    decode_segment,
    same_segment,
    update_record,
)
from rlmm_daemon.daemon.bucket.bucket import MARKER_SECONDS, Bucket
from rlmm_daemon.daemon.copying.progress import ENDED, FINISHING, CopyKind, RollBack, RunningCopy
from rlmm_daemon.daemon.copying.removal import FinishedElsewhere, Removal
from rlmm_daemon.daemon.copying.sources import SegmentSources, open_sources
from rlmm_daemon.daemon.copying.turns import Turns
from rlmm_daemon.daemon.copying.upload import upload
from rlmm_daemon.domain.backoff import Backoff, full
from rlmm_daemon.domain.errors import (
    IllegalTransition,
    InvalidArgument,
    OutcomeUnknown,
    RefusedError,
    RlmmError,
    SegmentNotFound,
    StorageUnavailable,
    TimedOut,
    UnavailableError,
)
from rlmm_daemon.domain.ids import BrokerId, uuid_text
from rlmm_daemon.domain.segment import CustomMetadata, SegmentState
from rlmm_daemon.ports.disk_threads import DiskThreads
from rlmm_daemon.ports.passes import Passes
from rlmm_daemon.ports.storage import SOURCE_UNREADABLE, Progress
from rlmm_daemon.ports.threads import in_thread

#: For a copy's files to be opened: a disk that hangs would keep a turn until the deadline.
OPEN_SECONDS: Final = 30.0
FINISH_RETRY_SECONDS: Final = 0.2
FINISH_RETRY_SECONDS_MAX: Final = 5.0

log = structlog.get_logger()


class CopyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a copy, each one a configuration key."""

    parallel_max: int = 4
    #: Beyond these, a request is `overloaded`.
    waiting_max: int = 64
    deadline_seconds: float = 600.0
    #: A copy that moved less within a window of the storage's time is ended as
    #: `storage_unavailable`.
    progress_floor_bytes_per_second: int = 16 * 1024
    progress_window_seconds: float = 60.0
    #: How long a step of the SPI waits for the apply of the event that must precede it.
    apply_wait_seconds: float = 30.0
    rollback_seconds: float = 60.0
    #: Whether every batch of the segment is checked before COPY_SEGMENT_FINISHED.
    check_segments: bool = True


class CopyTools(msgspec.Struct, frozen=True, kw_only=True):
    """What every job works with."""

    bucket: Bucket
    log: SegmentLog
    removal: Removal
    options: CopyOptions
    log_dirs: Sequence[str]
    broker_id: BrokerId
    now_ms: Callable[[], int]
    turns: Turns
    #: As many as there are turns: a copy opens its files and reads them in one, and whoever reads
    #: from the storage never stands behind a broker's slow disk.
    threads: DiskThreads
    passes: Passes
    bugs: Bugs


class CopyJob:
    """Runs in a task of its own, so that a caller who leaves does not tear a roll-back apart."""

    def __init__(
        self,
        kind: CopyKind,
        record: bytes,
        files: SegmentFiles,
        tools: CopyTools,
        *,
        caller: Caller,
    ) -> None:
        """`caller`: who has COPY_SEGMENT_STARTED of a whole job appended."""
        self.kind = kind
        self.metadata = decode_segment(record)
        self.progress = Progress(topic=self.metadata.partition.topic)
        self.waiters = 0
        #: Custom metadata (DATA) or the finished record (WHOLE).
        self.outcome: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        #: True from the moment at which an event of this job may be in the log.
        self.begun = False
        #: Of a whole job that was rolled back, or was to be.
        self.roll_back: RollBack | None = None
        self._record, self._files, self._tools, self._caller = record, files, tools, caller
        self._loop = asyncio.get_running_loop()
        self._begun_at = self._phase_at = self._loop.time()
        #: Phase -> milliseconds spent in it so far.
        self.phases_ms: dict[str, int] = {}
        self._phase = "queued"
        self._started = False
        #: An earlier attempt had begun the segment: what lies in the storage may be its.
        self._repeats = False
        self._stoppable = True
        self._reason: RlmmError | None = None
        self._task: asyncio.Task[None] | None = None
        if self.metadata.state is not SegmentState.COPY_SEGMENT_STARTED:
            raise IllegalTransition("a copy begins with COPY_SEGMENT_STARTED metadata")

    def facts(self) -> RunningCopy:
        """Return what it is doing."""
        return RunningCopy(
            partition=str(self.metadata.partition),
            segment_id=uuid_text(self.metadata.segment_id),
            kind=self.kind.value,
            phase=self.progress.phase,
            bytes_done=self.progress.bytes_done,
            bytes_total=self.progress.bytes_total,
            parts_done=self.progress.parts_done,
            call=self.progress.call_in_flight,
            age_seconds=self._loop.time() - self._begun_at,
            waiters=self.waiters,
        )

    @property
    def is_ending(self) -> bool:
        """Return whether it was stopped, and is being undone: whoever asks now comes behind it."""
        return self._reason is not None

    def stop(self, reason: RlmmError) -> None:
        """End it with this error, unless COPY_SEGMENT_FINISHED was handed on or it ends already."""
        if self._reason is not None or self.outcome.done():
            return
        if self._task is None:
            self._reason = reason
        elif self._stoppable:
            self._reason = reason
            self._task.cancel()

    def abandon(self) -> None:
        """Cancel it wherever it is, a roll-back too; a later start finds what is left."""
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Do all of it and complete `outcome`; raises only a fold's bug or a cancel from above."""
        self._task = asyncio.current_task()
        where = {
            "partition": str(self.metadata.partition),
            "segment_id": uuid_text(self.metadata.segment_id),
        }
        log.debug("copy started", kind=self.kind.value, **where)
        try:
            async with contextlib.AsyncExitStack() as whole:
                answer = await self._finish(await self._stoppable_part(whole))
        except RlmmError as error:
            error.fields.setdefault("write_begun", self.progress.write_begun)
            self._conclude(where, error)
        except Exception as bug:
            if blamed(bug):
                self.outcome.cancel()
                raise
            self._conclude(where, self._answer_to(bug))
        except BaseException:
            self.outcome.cancel()
            raise
        else:
            self._conclude(where, answer)

    def _answer_to(self, bug: Exception) -> RlmmError:
        """Return what a bug is answered: "unknown" where an event may be on its way."""
        if self._phase == FINISHING or (self.begun and not self._started):
            return self._tools.bugs.met_after_append("copy", bug)
        error = self._tools.bugs.error_for("copy", bug)
        error.fields["write_begun"] = self.progress.write_begun
        return error

    def _conclude(self, where: dict[str, str], answer: bytes | RlmmError) -> None:
        self._enter(ENDED)
        failed = isinstance(answer, RlmmError)
        (log.warning if failed else log.info)(
            "copy failed" if failed else "copy finished",
            kind=self.kind.value,
            bytes=self.progress.bytes_done,
            ms=int((self._loop.time() - self._begun_at) * 1000),
            phases_ms=self.phases_ms,
            **({"error": str(answer)} if failed else {}),
            **where,
        )
        if isinstance(answer, RlmmError):
            self.outcome.set_exception(answer)
            self.outcome.exception()  # retrieved: perhaps everybody has left
        else:
            self.outcome.set_result(answer)

    async def _stoppable_part(self, whole: contextlib.AsyncExitStack) -> CustomMetadata | bytes:
        """Everything before COPY_SEGMENT_FINISHED is handed on; rolled back if it fails."""
        options, partition = self._tools.options, self.metadata.partition
        timers = [self._loop.call_later(options.deadline_seconds, self._deadline)]
        floor = ProgressFloor(
            bytes_per_second=options.progress_floor_bytes_per_second,
            window_seconds=options.progress_window_seconds,
        )
        self._watch(timers, floor)
        try:
            if (reason := self._reason) is not None:  # stopped before it ran
                raise reason
            try:
                # It waits for the log to be open, and is left at the job's end.
                await whole.enter_async_context(self._tools.log.keep_followed(partition))
                return await self._until_stored()
            except asyncio.CancelledError:
                if self._reason is None or self._is_abandoned():
                    raise  # the daemon itself comes down
                raise self._told(self._reason) from None
            finally:
                self._settle()
        except RlmmError as error:
            await self._roll_back(error)
            raise
        except Exception as bug:
            if blamed(bug):
                raise
            answer = self._answer_to(bug)
            await self._roll_back(answer)
            raise answer from bug
        finally:
            for timer in timers:
                timer.cancel()

    def _is_abandoned(self) -> bool:
        """Whether somebody but `stop` has cancelled it, be it while a thread was waited for."""
        return self._task is not None and self._task.cancelling() > 1

    def _settle(self) -> None:
        """Leave the stoppable part: a cancel that `stop` made must not linger in what follows."""
        self._stoppable = False
        if self._reason is not None and self._task is not None and self._task.cancelling():
            self._task.uncancel()

    def _told(self, reason: RlmmError) -> RlmmError:
        """Return the reason, unless COPY_SEGMENT_STARTED is on its way and may yet be applied."""
        if self.begun and not self._started:
            return OutcomeUnknown(f"COPY_SEGMENT_STARTED was handed to the log; {reason}")
        return reason

    async def _until_stored(self) -> CustomMetadata | bytes:
        """Return custom metadata, or the finished record of a job that was done before."""
        self._enter("queued")
        async with self._tools.turns.of(self.progress.topic):
            place = self._tools.bucket.place_for_new(self.metadata)  # raises while there is none
            self._enter("open")
            sources = await self._open()
            try:
                self._enter("apply")
                done = await (
                    self._await_started() if self.kind is CopyKind.DATA else self._append_started()
                )
                if done is not None:
                    return done
                await self._tools.bucket.confirm(seconds=MARKER_SECONDS)
                self._enter("upload")
                stored = await upload(
                    self._tools.bucket.storage,
                    self.metadata,
                    sources,
                    place,
                    progress=self.progress,
                    entered=self._enter,
                    passes=self._tools.passes,
                    checks=self._tools.options.check_segments,
                    threads=self._tools.threads,
                )
                # Stored into a bucket that was replaced meanwhile, nobody would find it.
                await self._tools.bucket.confirm()
            finally:
                sources.close()
            return stored

    async def _open(self) -> SegmentSources:
        opened: list[SegmentSources] = []
        stop, limit = threading.Event(), asyncio.timeout(OPEN_SECONDS)

        def work() -> None:
            sources = open_sources(self.metadata, self._files, self._tools.log_dirs)
            opened.append(sources)
            if stop.is_set():
                sources.close()  # nobody may be there to do so: it is idempotent

        try:
            async with limit:
                await in_thread(self._tools.threads, work, stop)
        except BaseException as error:
            for sources in opened:
                sources.close()
            if isinstance(error, TimeoutError) and limit.expired():
                raise StorageUnavailable(
                    f"the segment's files are not open after {OPEN_SECONDS:g} s: their disk hangs",
                    reason=SOURCE_UNREADABLE,
                    retry=False,
                ) from error
            raise
        return opened[0]

    async def _await_started(self) -> None:
        """Wait for this daemon's apply of COPY_SEGMENT_STARTED, which the broker appended."""
        metadata, options = self.metadata, self._tools.options
        try:
            async with asyncio.timeout(options.apply_wait_seconds):
                found = await self._tools.log.until_state(
                    metadata.partition,
                    metadata.segment_id,
                    frozenset({SegmentState.COPY_SEGMENT_STARTED}),
                )
        except TimeoutError as error:
            raise TimedOut("COPY_SEGMENT_STARTED of this segment was not applied yet") from error
        if found is None:
            raise SegmentNotFound
        self._require_started(*found)

    async def _append_started(self) -> bytes | None:
        metadata, segment_log = self.metadata, self._tools.log
        found = await segment_log.segment(metadata.partition, metadata.segment_id)
        if found is not None:
            state, record = found
            if state is SegmentState.COPY_SEGMENT_FINISHED:
                self._require_same(record)
                return record
            self._require_started(state, record)
        self._repeats = found is not None
        self.begun = True
        await segment_log.add(self._record, self._caller)
        self._started = True
        return None

    def _require_started(self, state: SegmentState, record: bytes) -> None:
        if state is not SegmentState.COPY_SEGMENT_STARTED:
            raise IllegalTransition(f"the segment is {state.name}", state=state.name)
        self._require_same(record)

    def _require_same(self, record: bytes) -> None:
        if not same_segment(self.metadata, decode_segment(record)):
            raise InvalidArgument("the log holds another segment under this id")

    async def _finish(self, stored: CustomMetadata | bytes) -> bytes:
        """Append COPY_SEGMENT_FINISHED. From here on objects go only if its apply rejected it."""
        if self.kind is CopyKind.DATA or not self._started:
            return stored
        self._enter(FINISHING)
        custom = CustomMetadata(stored)
        try:
            return await self._hand_on(custom)
        except RefusedError as error:
            await self._roll_back(error)
            raise

    async def _hand_on(self, custom: CustomMetadata) -> bytes:
        tools, metadata = self._tools, self.metadata
        state = SegmentState.COPY_SEGMENT_FINISHED
        until = self._begun_at + tools.options.deadline_seconds
        backoff = Backoff(FINISH_RETRY_SECONDS, FINISH_RETRY_SECONDS_MAX, full)
        while True:
            try:
                event = update_record(
                    metadata, state, custom, broker_id=tools.broker_id, now_ms=tools.now_ms()
                )
                await tools.log.update(event, Caller.OPERATOR)
                break
            except OutcomeUnknown:
                raise
            except UnavailableError:
                # Certainly not in the log: asking again is harmless, removing objects is not ours.
                if self._loop.time() + backoff.bound > until:
                    raise
            await asyncio.sleep(backoff.next())
        found = await tools.log.segment(metadata.partition, metadata.segment_id)
        if found is None:
            raise OutcomeUnknown("the segment was finished and is gone already")
        return found[1]

    async def _roll_back(self, cause: RlmmError) -> None:
        """Undo a whole job through the log; what fails stays for a repeat or the cleaner."""
        if not self._started:
            return
        self._enter("roll back")
        seconds = self._tools.options.rollback_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._tools.removal.roll_back(self.metadata, seconds, repeats=self._repeats)
        except (RlmmError, TimeoutError) as error:
            ended = isinstance(error, FinishedElsewhere)
            self.roll_back = RollBack.FINISHED_ELSEWHERE if ended else RollBack.FAILED
            cause.fields["rolled_back"] = False
            cause.fields["roll_back_error"] = str(error) or type(error).__name__
        else:
            self.roll_back = RollBack.OK
            cause.fields["rolled_back"] = True

    def _deadline(self) -> None:
        seconds, done = self._tools.options.deadline_seconds, self.progress
        came = f"{done.phase}, {done.bytes_done} of {done.bytes_total} bytes stored"
        self.stop(TimedOut(f"the copy took more than {seconds:g} s: {came}"))

    def _watch(self, timers: list[asyncio.TimerHandle], floor: ProgressFloor) -> None:
        """Look again and again whether the storage is too slow, while it is the storage's turn."""
        progress = self.progress
        waited = self._loop.time() if progress.calls is None else progress.calls.waited_seconds
        if progress.phase != "upload":
            floor.forget()
        elif (slow := floor.look(progress.bytes_moved, waited)) is not None:
            call = progress.call_in_flight
            self.stop(
                StorageUnavailable(
                    f"only {slow.moved_bytes} bytes in {slow.seconds:.3g} s", call=call
                )
            )
        again = max(floor.left_seconds(waited), self._tools.options.progress_window_seconds / 60)
        timers[1:] = [self._loop.call_later(again, lambda: self._watch(timers, floor))]

    def _enter(self, phase: str) -> None:
        now = self._loop.time()
        spent = int((now - self._phase_at) * 1000)
        self.phases_ms[self._phase] = self.phases_ms.get(self._phase, 0) + spent
        self._phase_at = now
        self._phase = self.progress.phase = phase
