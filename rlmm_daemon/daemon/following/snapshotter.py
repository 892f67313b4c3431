"""Schedule of snapshots: when a metadata partition advanced enough, and at a clean stop."""

import asyncio
import gc
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import accumulate
from typing import Final

import msgspec
import structlog

from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.user_partitions import Image, Sleeping
from rlmm_daemon.core.readiness.states import PartitionState
from rlmm_daemon.core.snapshots.rebasing import rebase
from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.base.crash_guard import blame
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.following.snapshots import SnapshotStore, WrittenSnapshot
from rlmm_daemon.domain.errors import CorruptError, Malformed, NotReady
from rlmm_daemon.domain.ids import MetadataPartition, TopicIdPartition
from rlmm_daemon.ports.clock import Clock

POLL_SECONDS: Final = 1.0
#: Look-ups wait for a slice of the drawing: of small tables one holds several steps.
SLICE_SECONDS: Final = 0.0003
#: Of one snapshot's tables, what is read through at each turn: all of most snapshots.
CHECKED_BYTES: Final = 16 * 1024 * 1024
#: After a failed snapshot the next one waits as long as after a written one, and at least this.
AGAIN_SECONDS_MIN: Final = 30.0
#: Put aside by one metadata partition, this much is always fine.
ASIDE_BYTES: Final = 1024 * 1024
ASIDE_SHARE: Final = 16

logger = structlog.get_logger(__name__)


class SnapshotOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Either is enough, if the partition advanced at all."""

    after_events: int = 100_000
    after_seconds: float = 300.0


class Snapshotter:
    """Writes snapshots of whatever is followed and steady."""

    def __init__(
        self,
        store: SnapshotStore,
        clock: Clock,
        options: SnapshotOptions,
        on_written: Callable[[WrittenSnapshot], None],
        *,
        announced: Callable[[MetadataPartition], Collection[TopicIdPartition]],
        turns: FairScheduler,
    ) -> None:
        self._turns = turns
        self._store = store
        self._clock = clock
        self._options = options
        self._on_written = on_written
        self._announced = announced
        #: One snapshot at a time: they share the disk and the temporary memory.
        self._one = asyncio.Lock()
        self.failures = 0
        #: Tables that somebody waits for, by the snapshot that has them.
        self._asked: dict[Image, tuple[Follower, set[int]]] = {}
        self._asking = Broadcast()

    async def run(self, followers: Callable[[], Collection[Follower]]) -> None:
        """Write what is due, for ever; a disk that fails is tried again at the next turn."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for follower in list(followers()):
                with blame(follower.partition):
                    await self.check(follower)
                    if self._due(follower):
                        await self.try_write(follower)

    def check_soon(self, follower: Follower, sleeping: Sleeping) -> None:
        """Have a table read through at once; `follower.changed` rings when that is done."""
        _, numbers = self._asked.setdefault(sleeping.image, (follower, set()))
        numbers.add(sleeping.number)
        self._asking.ring()

    async def keep_checked(self) -> None:
        """Read through what somebody waits for, for ever."""
        while True:
            while not self._asked:
                await self._asking.wait()
            image, (follower, numbers) = self._asked.popitem()
            with blame(follower.partition), suppress(NotReady):
                try:
                    await self._judge(follower, image, numbers)
                except OSError as error:
                    logger.warning("snapshot not readable", path=image.path, error=str(error))
                    # Nobody waits for a disk that may not come back: it is mapped after all.
                    for number in numbers:
                        await self._judge(follower, image, [number], touch=True)
            follower.changed.ring()

    def _due(self, follower: Follower) -> bool:
        advanced = follower.applied_since_snapshot
        if advanced == 0 or not allowed(follower) or self._failed_lately(follower):
            return False
        age_ms = self._clock.now_ms() - (follower.snapshot_at_ms or follower.followed_since_ms)
        return (
            advanced >= self._options.after_events
            or not 0 <= age_ms < self._options.after_seconds * 1000  # the clock may be set back
            or too_much_aside(follower.fold)
        )

    def _failed_lately(self, follower: Follower) -> bool:
        """A full disk is not filled to its last byte anew at each turn."""
        failed_ms = follower.snapshot_failed_ms
        pause_ms = max(AGAIN_SECONDS_MIN, self._options.after_seconds) * 1000
        return failed_ms is not None and 0 <= self._clock.now_ms() - failed_ms < pause_ms

    async def try_write(self, follower: Follower) -> WrittenSnapshot | None:
        """Write a snapshot; None if the disk did not take it (logged, counted, tried later)."""
        try:
            return await self.write(follower)
        except NotReady:
            return None  # a damaged snapshot was met: the follower starts over
        except OSError as error:
            self.failures += 1
            follower.snapshot_failed_ms = self._clock.now_ms()
            logger.warning(
                "snapshot failed", metadata_partition=follower.partition, error=str(error)
            )
            return None

    async def write(self, follower: Follower) -> WrittenSnapshot | None:
        """Write a snapshot of a follower's fold; None if its state does not allow one.

        Raises:
            OSError: the disk failed; the snapshots before are untouched.
            NotReady: the snapshot before is damaged, so the follower starts over.
        """
        async with self._one:
            # Copied unread, a damaged table would be believed, and the last whole one removed.
            await self._read_through(follower)
            async with follower.steady:
                if not allowed(follower) or _unread(follower.fold):
                    return None
                fold, next_offset = follower.fold, follower.fold.position
                advanced = follower.applied_since_snapshot
                pieces = deque[bytes | memoryview]()
                until = self._clock.monotonic() + SLICE_SECONDS
                for piece in self._store.image(follower.fold):
                    if piece:
                        pieces.append(piece)
                    if self._clock.monotonic() >= until:
                        await self._turns.wait()
                        until = self._clock.monotonic() + SLICE_SECONDS
                follower.applied_since_snapshot = 0
                fold.keep_journal()
            written = None
            try:
                written = await self._write_down(follower, fold, next_offset, pieces)
                if written is None:
                    return None
                await self._move(follower, fold, written)
            except BaseException:  # cancelled too
                if written is None and follower.fold is fold:
                    follower.applied_since_snapshot += advanced
                raise
            finally:
                fold.journal = None
        follower.snapshot_at_ms, follower.snapshot_failed_ms = self._clock.now_ms(), None
        self._on_written(written)
        return written

    async def _write_down(
        self, follower: Follower, fold: Fold, next_offset: int, pieces: deque[bytes | memoryview]
    ) -> WrittenSnapshot | None:
        try:
            return await self._store.write(
                follower.partition,
                next_offset,
                _taken_from(pieces),
                still_true=lambda: (
                    follower.fold is fold
                    and not follower.retired
                    and not follower.history.comparing
                ),
            )
        finally:
            pieces.clear()  # they may be an older file's pages

    async def _move(self, follower: Follower, fold: Fold, written: WrittenSnapshot) -> None:
        """Make the fold stand on the snapshot, so that what changed before takes no memory."""
        if fold.journal is None:
            logger.warning("snapshot not taken up", path=written.path, error="it took too long")
            return
        try:
            image = await self._store.opened(written.path)
        except (OSError, CorruptError, Malformed) as error:
            logger.warning("snapshot not taken up", path=written.path, error=str(error))
            return

        # Not whoever was asked about once: an export asks about all.
        announced = self._announced(follower.partition)

        def stays(partition: TopicIdPartition) -> bool:
            return partition in announced or follower.writer.writes_to(partition)

        until = self._clock.monotonic()
        for _ in rebase(fold, image, stays):
            if self._clock.monotonic() >= until:
                await self._turns.wait()
                if follower.fold is not fold:
                    return
                until = self._clock.monotonic() + SLICE_SECONDS
        gc.freeze()  # what stays is not walked again

    async def check(self, follower: Follower) -> None:
        """Read some more tables of a follower's snapshot through, if any are left."""
        with suppress(NotReady, OSError):  # then they are checked when they are looked at
            await self._read_through(follower, CHECKED_BYTES)

    async def _read_through(self, follower: Follower, at_most: int | None = None) -> None:
        """Read tables through that nobody looked at yet, until that were so many bytes.

        Raises:
            OSError: the disk failed.
            NotReady: a table is damaged; the follower was told and starts over.
        """
        fold = follower.fold
        image, numbers = fold.image, _unread(fold)
        if image is None or image.path is None or not numbers:
            return
        if at_most is not None:
            sizes = accumulate(image.entries[number].size for number in numbers)
            numbers = numbers[: 1 + sum(size < at_most for size in sizes)]
        await self._judge(follower, image, numbers)

    async def _judge(
        self, follower: Follower, image: Image, numbers: Collection[int], *, touch: bool = False
    ) -> None:
        try:
            if touch:
                for number in numbers:
                    image.table(number)
            else:
                await self._store.read_through(image, numbers)
        except (CorruptError, Malformed) as error:
            if follower.fold.image is image:
                follower.fold.partitions.damaged(image, error.message)
            raise NotReady(error.message, state="replaying") from error


def _taken_from(pieces: deque[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield them, each forgotten as soon as the next is asked for: megabytes take long to free."""
    while pieces:
        yield pieces.popleft()


def _unread(fold: Fold) -> list[int]:
    """Return the numbers of the tables of a fold's snapshot that nobody has read through."""
    return [] if fold.image is None else fold.image.unchecked()


def too_much_aside(fold: Fold) -> bool:
    """Whether events that nobody asked for take memory that a snapshot would free.

    A mapped segment costs about 106 bytes of a file and none of ours; what is put aside is kept
    below a sixteenth of that, so that a segment of an unannounced partition costs a few bytes.
    """
    image = fold.image
    if image is None:
        return False
    return fold.partitions.aside_bytes > max(ASIDE_BYTES, len(image.buffer) // ASIDE_SHARE)


def allowed(follower: Follower) -> bool:
    """Whether a snapshot may be written: a fold that is whole, and no history in doubt."""
    steady = follower.state in (PartitionState.READY, PartitionState.STALE)
    image = follower.fold.image
    in_doubt = follower.retired or follower.history.comparing or follower.open_gaps
    return steady and not in_doubt and (image is None or image.damage is None)
