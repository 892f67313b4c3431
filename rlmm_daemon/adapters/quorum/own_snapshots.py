"""Snapshots that a running replica makes of its own log, and the log's start behind them.

What a snapshot holds is written beside all else; only its begin and its end are steps of the
replica's task.
"""

from collections.abc import Callable, Iterable

from rlmm_daemon.adapters.quorum.files.replica_files import ReplicaFiles
from rlmm_daemon.adapters.quorum.files.snapshot_writer import SnapshotWriter
from rlmm_daemon.adapters.quorum.submitting import Record
from rlmm_daemon.adapters.quorum.work import Work
from rlmm_daemon.codec.kraft import checkpoint
from rlmm_daemon.core.raft import inputs
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.core.raft.roles import Timing
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.ports.clock import Clock


class OwnSnapshots:
    """Those of one replica, from its shell's side."""

    def __init__(
        self,
        files: ReplicaFiles,
        work: Work,
        clock: Clock,
        timing: Timing,
        *,
        committed: Callable[[], int],
        take: Callable[[inputs.Input], None],
        nudge: Callable[[], None],
    ) -> None:
        """`take` feeds the replica what happened; `nudge` tells it of work."""
        self._files = files
        self._work = work
        self._clock = clock
        self._fetch_seconds = timing.fetch / 1000
        self._committed = committed
        self._take = take
        self._nudge = nudge
        #: When a piece of a snapshot was sent to somebody last.
        self._fetched: dict[LogPoint, float] = {}

    async def begin(self, end: int, *, last_timestamp_ms: int = 0) -> SnapshotWriter:
        """Begin a snapshot of what lies before an offset, where a batch ends that is committed.

        What it holds is written to what this returns; `keep` has it count.

        Raises:
            InvalidArgument: nothing lies before it, or it is no batch's end.
            OSError: the disk did not take it.
        """

        async def begin() -> SnapshotWriter | OSError:
            log = self._files.log
            if end > self._committed():
                raise InvalidArgument(f"offset {end} is not committed")
            epoch = log.epoch_at(end - 1)
            if epoch is None:
                raise InvalidArgument(f"nothing was committed behind offset {log.start}")
            if end > log.synced:  # most others have it on their disks
                await self._files.sync()
            try:
                return await self._files.begin_snapshot(
                    LogPoint(epoch, end),
                    timestamp_ms=self._clock.now_ms(),
                    last_timestamp_ms=last_timestamp_ms,
                )
            except OSError as error:  # the log does not need it
                return error

        found = await self._work.done(begin, self._nudge)
        if isinstance(found, OSError):
            raise found
        return found

    async def keep(self, writer: SnapshotWriter) -> LogPoint:
        """Have a snapshot count that has ended.

        Raises:
            InvalidArgument: another one took the log's place meanwhile.
        """

        async def keep() -> LogPoint:
            await self._files.keep_snapshot(writer)
            self._take(inputs.SnapshotMade(writer.point))
            return writer.point

        return await self._work.done(keep, self._nudge)

    async def make(self, records: Iterable[Record]) -> LogPoint:
        """Make a snapshot of these records up to the last whole batch that is committed.

        Raises:
            InvalidArgument: nothing was committed behind the last snapshot.
            OSError: the disk did not take it.
        """
        writer = await self.begin(self._committed())
        try:
            for chunk in checkpoint.chunks(records):
                await writer.put(chunk)
            await writer.end()
            return await self.keep(writer)
        except BaseException:
            await writer.abandon()
            raise

    async def read(self, point: LogPoint, position: int, bytes_max: int) -> tuple[int, bytes]:
        """Return a snapshot's size, and its bytes from a position on.

        Raises:
            SnapshotGone: it was removed.
        """
        return await self._files.read_piece(point, position, bytes_max)

    def note_fetched(self, point: LogPoint) -> None:
        """Know that a piece of a snapshot is sent to somebody."""
        self._fetched[point] = self._clock.monotonic()

    def are_fetched(self, *, before: LogPoint) -> bool:
        """Whether anybody fetched one that is older than this within the last fetch timeout."""
        since = self._clock.monotonic() - self._fetch_seconds
        return any(point < before and at >= since for point, at in self._fetched.items())

    async def begin_at(self, oldest: LogPoint) -> None:
        """Remove what lies before a snapshot's end, and older snapshots.

        Raises:
            InvalidArgument: it is gone: another one took the log's place.
        """

        async def begin() -> None:
            if oldest not in self._files.log.snapshots:
                raise InvalidArgument(f"no snapshot ends at {oldest}")
            await self._files.begin_at(oldest)
            self._take(inputs.StartMoved(oldest))

        await self._work.done(begin, self._nudge)
        self._fetched = {point: at for point, at in self._fetched.items() if point >= oldest}
