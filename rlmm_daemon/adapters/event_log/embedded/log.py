"""The embedded log as a whole: lock, identity, generation, and a partition for each number."""

import random
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import suppress

import structlog
from msgspec.structs import replace

from rlmm_daemon.adapters.event_log.embedded import files, identity
from rlmm_daemon.adapters.event_log.embedded.identity import (
    GENERATIONS_SKIPPED,
    CleanEnd,
    Generations,
)
from rlmm_daemon.adapters.event_log.embedded.options import Context, EmbeddedOptions, Spawn
from rlmm_daemon.adapters.event_log.embedded.partition import Partition
from rlmm_daemon.adapters.event_log.embedded.recovery import newest_generation
from rlmm_daemon.domain.errors import (
    Draining,
    InvalidArgument,
    LogCorrupt,
    RlmmError,
    StorageUnavailable,
)
from rlmm_daemon.domain.ids import UUID_BYTES, MetadataPartition, TopicId, uuid_text
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.disk import Disk, DiskLock
from rlmm_daemon.ports.event_log import (
    Compacted,
    EpochEnd,
    LogBatch,
    LogForeign,
    LogIdentity,
    LogMissing,
    LogRange,
    LogUnnamed,
    Steady,
    Told,
    Turn,
    appended,
)

_log = structlog.get_logger(__name__)


class EmbeddedLog:
    """An `EventLog` in local files, for a cluster of one broker.

    `spawn` starts tasks in the daemon's group: writes and recoveries outlive whoever asked for
    them. The group must not end before `close` has returned. `luck` draws the topic id of a log
    that is made here, and how far off the generation of an open is: no two opens may be given
    generators of one seed.
    """

    def __init__(
        self,
        *,
        disk: Disk,
        clock: Clock,
        spawn: Spawn,
        luck: random.Random,
        directory: str,
        partition_count: int,
        cluster_id: str | None = None,
        options: EmbeddedOptions | None = None,
        on_sync: Callable[[float, int], None] | None = None,
    ) -> None:
        self.context = Context(
            disk=disk, clock=clock, spawn=spawn, options=options or EmbeddedOptions()
        )
        if on_sync is not None:
            self.context = replace(self.context, on_sync=on_sync)
        self.directory = directory
        self._luck = luck
        self._partition_count = partition_count
        self._cluster_id = cluster_id
        self._generations = Generations(disk, directory, luck)
        self._identity: LogIdentity | None = None
        self._closing = False
        self._lock: DiskLock | None = None
        self._partitions: dict[MetadataPartition, Partition] = {}

    async def open(self, *, create: bool) -> LogIdentity:
        """Lock the directory, find or make the identity.

        Partitions are opened at first use. A log that is there and whole is opened and read
        without a byte of room; a generation begins with the first write. `partition_count` and
        `cluster_id` only count for a log that is made here.

        Raises:
            LogMissing: there is no log, and it may not be created.
            LogUnnamed: the identity is damaged, or missing beside partitions, and the state does
                not hold it either.
            UnsupportedProtocol: identity or state are of a newer format; nothing was touched.
            LogForeign: the log is another cluster's.
            StorageUnavailable: another process has the log, or the disk fails.
        """
        if self._identity is not None:
            return self._identity
        disk = self.context.disk
        try:
            await disk.make_directory(self.directory)
            self._lock = await disk.lock(f"{self.directory}/{files.LOCK_NAME}")
        except BlockingIOError as error:
            raise StorageUnavailable(
                f"another process has the event log in {self.directory}"
            ) from error
        except OSError as error:
            raise StorageUnavailable(f"the event log cannot be opened: {error}") from error
        try:
            self._identity = await self._open_locked(create=create)
        except OSError as error:
            raise StorageUnavailable(f"the event log cannot be opened: {error}") from error
        finally:
            if self._identity is None:
                lock, self._lock = self._lock, None
                await _release(lock)
        return self._identity

    @property
    def identity(self) -> LogIdentity | None:
        """The identity while the log is open."""
        return self._identity

    @property
    def refusal(self) -> str:
        """Why the disk refused the last write of some partition; empty once it takes them."""
        return next(filter(None, (each.refusal for each in self._partitions.values())), "")

    def begin_append(self, partition: MetadataPartition, value: bytes, told: Told) -> None:
        """Take a record; `told` hears its offset once fdatasync has covered it.

        Raises:
            InvalidArgument: no such partition, or a record over `record_bytes_max`.
            StorageFull, StorageUnavailable, Overloaded, Draining: certainly not in the log.
            LogCorrupt: the partition holds an invalid batch that is not a torn tail.
        """
        self._partition(partition).begin_append(value, told)

    async def append(self, partition: MetadataPartition, value: bytes) -> int:
        """Return the offset once fdatasync has covered the record.

        Raises:
            OutcomeUnknown: the write or its sync failed.
            RlmmError: as `begin_append`.
        """
        return await appended(self, partition, value)

    async def end_offsets(
        self, partitions: Collection[MetadataPartition]
    ) -> Mapping[MetadataPartition, LogRange]:
        """Return the ranges of those that are open or could be opened now."""
        ranges: dict[MetadataPartition, LogRange] = {}
        for each in partitions:
            with suppress(RlmmError):
                ranges[each] = await self._partition(each).range()
        return ranges

    async def epoch_end(self, partition: MetadataPartition, epoch: int) -> EpochEnd:
        """Return where a generation ends in this partition."""
        return await self._partition(partition).epoch_end(epoch)

    def follow(
        self, partition: MetadataPartition, from_offset: int, *, epoch: int
    ) -> AsyncGenerator[LogBatch, None]:
        """Yield durable records from `from_offset` on; nothing synced is ever cut while open."""
        return self._partition(partition).follow(from_offset, epoch)

    def begin_beyond(self, epoch: int) -> None:
        """Let the next write begin a generation beyond this epoch, unless its own is."""
        self._generations.floor = max(self._generations.floor, epoch)

    async def seal(self, partition: MetadataPartition) -> None:
        """Begin a new file, so that Kafka's tools can read all that the partition holds."""
        await self._partition(partition).seal()

    async def compact(
        self, partition: MetadataPartition, upto: int, *, turn: Turn, steady: Steady
    ) -> Compacted | None:
        """Write closed files anew without what the fold does not need; see `Compactable`."""
        found = self._partition(partition)
        assert self._identity is not None, "it has partitions"
        count = self._identity.partition_count
        return await found.compact(upto, count, turn=turn, steady=steady)

    async def begin_changing(self) -> None:
        """Let no end that a clean stop left of an open partition count: files are to be changed.

        Raises:
            OSError: not now; nothing may be changed.
        """
        await self._generations.begin()

    def known_end(self, partition: MetadataPartition) -> int | None:
        """Return where a partition ends by what was promised of it; None if nobody says."""
        return self._partition(partition).end

    async def let_go(self, partition: MetadataPartition) -> None:
        """Finish what a partition has taken, and close its files: they are to be changed.

        It takes nothing more until it is taken up again, or forgotten.
        """
        await self._partition(partition).close()

    def take_up(self, partition: MetadataPartition) -> None:
        """Let a partition that was let go be recovered at its next use, as it was before."""
        self._partitions[partition] = Partition(
            self.context,
            self._generations,
            partition,
            self.directory,
            clean=self._generations.owed.get(partition),
        )

    def forget(self, partition: MetadataPartition) -> None:
        """Let the partition be recovered anew at its next use: its files were repaired."""
        self._generations.owed.pop(partition, None)
        self.take_up(partition)

    async def close(self) -> None:
        """Finish appends that were taken, trim the files, note the ends, let go of the lock."""
        if self._identity is None or self._closing:
            return
        self._closing = True
        try:
            await self._close_partitions()
        finally:
            self._partitions, self._identity, self._closing = {}, None, False
            lock, self._lock = self._lock, None
            await _release(lock)

    async def _open_locked(self, *, create: bool) -> LogIdentity:
        found = await self._read_identity()
        clean: Mapping[MetadataPartition, CleanEnd] = {}
        if found is not None:
            self._check(found)
            self._generations.identity = found
            clean = await self._load_state()
        elif create:
            found = await self._create()
        else:
            raise LogMissing(f"{self.directory} holds no event log")
        await files.sweep(self.context.disk, self.directory)
        self._generations.owed = dict(clean)
        for number in map(MetadataPartition, range(found.partition_count)):
            self.take_up(number)
        return found

    async def _read_identity(self) -> LogIdentity | None:
        """Return the identity; a damaged or lost one is made again from the copy in the state."""
        disk = self.context.disk
        try:
            return await self._named()
        except LogUnnamed as damaged:
            found = await identity.remembered_identity(disk, self.directory)
            if found is None:
                raise
            path = f"{self.directory}/{files.IDENTITY_NAME}"
            why = damaged.message
            try:
                kept = await identity.set_aside(disk, path)
                known = await identity.read_format(disk, self.directory)
                self._generations.format = known
                await identity.write_identity(disk, self.directory, found, file_format=known)
            except OSError as error:  # the copy does as well, and the next open tries again
                _log.warning("log_identity_not_made_again_yet", why=why, error=str(error))
            else:
                _log.warning("log_identity_made_again", path=path, kept=kept, why=why)
            return found

    async def _named(self) -> LogIdentity | None:
        disk = self.context.disk
        named = await identity.read_named(disk, self.directory)
        found = None
        if named is not None:
            found, self._generations.format = named
        if found is None and await files.partitions(disk, self.directory):
            path = f"{self.directory}/{files.IDENTITY_NAME}"
            raise LogUnnamed(f"{path} is missing beside the log's partitions", file=path)
        return found

    async def _create(self) -> LogIdentity:
        made = LogIdentity(
            cluster_id=self._cluster_id,
            topic_id=_draw_topic_id(self._luck),
            partition_count=self._partition_count,
        )
        self._generations.identity = made
        await self._generations.advance()
        await identity.write_identity(self.context.disk, self.directory, made)
        _log.info("log_created", directory=self.directory, topic_id=uuid_text(made.topic_id))
        return made

    async def _load_state(self) -> Mapping[MetadataPartition, CleanEnd]:
        disk = self.context.disk
        try:
            clean = await self._generations.load()
        except (FileNotFoundError, LogCorrupt) as lost:
            newest = await newest_generation(disk, self.directory)
            # Some may have been used and cut off since: positions in them must stay unconfirmed.
            self._generations.go_on_without(beyond=newest + GENERATIONS_SKIPPED)
            try:
                await self._generations.advance()
            except OSError as error:  # reads need none, and the first write tries again
                _log.warning("log_state_not_made_again_yet", why=str(lost), error=str(error))
            return {}
        # The identity's maker may have failed before its own sync.
        await disk.fsync_directory(self.directory)
        return clean

    def _check(self, found: LogIdentity) -> None:
        if (
            None not in (self._cluster_id, found.cluster_id)
            and self._cluster_id != found.cluster_id
        ):
            raise LogForeign(
                f"{self.directory} holds the log of cluster {found.cluster_id}, and this daemon's "
                f"is {self._cluster_id}",
                cluster_id=found.cluster_id,
            )

    async def _close_partitions(self) -> None:
        clean: dict[MetadataPartition, CleanEnd] = {}
        for number, partition in self._partitions.items():
            end = await partition.close()
            if end is not None:
                clean[number] = end
        with suppress(OSError):  # without the ends, the next open scans the files
            await self._generations.finish(clean)

    def _partition(self, number: MetadataPartition) -> Partition:
        if self._identity is None or self._closing:
            raise Draining("the event log is not open")
        found = self._partitions.get(number)
        if found is not None:
            return found
        raise InvalidArgument(f"the event log has no partition {number}")


async def _release(lock: DiskLock | None) -> None:
    if lock is not None:
        await lock.release()


def _draw_topic_id(luck: random.Random) -> TopicId:
    """Return a random id whose text no command line takes for an option (Kafka's `randomUuid`)."""
    while True:
        drawn = luck.randbytes(UUID_BYTES)
        if any(drawn) and not uuid_text(drawn).startswith("-"):
            return TopicId(drawn)
