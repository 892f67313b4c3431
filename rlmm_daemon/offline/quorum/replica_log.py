"""A quorum's log by one replica's files, read without a vote: what of it is settled, and the rest.

Nothing is written, locked or mended. A replica's files do not say what most voters have, so what
stands at their end may yet be taken back. What is settled is known from a checkpoint, from how far
daemons had read, from the leader if one answers, or because no other voter is asked.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from rlmm_daemon.adapters.event_log.embedded.verify import PartitionReport
from rlmm_daemon.adapters.quorum.client import QuorumClient
from rlmm_daemon.adapters.quorum.event_log import checkpointed
from rlmm_daemon.adapters.quorum.event_log.chunks import Chunks
from rlmm_daemon.adapters.quorum.event_log.options import QuorumLogOptions
from rlmm_daemon.adapters.quorum.files import identity, recovery, snapshots
from rlmm_daemon.adapters.quorum.files.formatted import (
    TOPIC,
    require_not_abandoned,
    topic_id_of,
)
from rlmm_daemon.adapters.quorum.files.layout import Layout, damaged, lost, names
from rlmm_daemon.adapters.quorum.wire import Group
from rlmm_daemon.codec import batches, scan
from rlmm_daemon.codec.kraft import log_batches
from rlmm_daemon.codec.kraft.record_key import read_key
from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.config import Config, QuorumLog
from rlmm_daemon.core.disposal.inventory import History
from rlmm_daemon.core.quorum_log.fold import AcceptedEvent, LogFold
from rlmm_daemon.core.raft.log_facts import BEGINNING, Batch, LogPoint
from rlmm_daemon.core.raft.voters import ReplicaKey
from rlmm_daemon.domain.errors import ConfigError, NotReady, RlmmError
from rlmm_daemon.domain.ids import MetadataPartition, TopicId
from rlmm_daemon.ports.disk import Disk
from rlmm_daemon.ports.event_log import LogIdentity, LogRange
from rlmm_daemon.wiring.quorum_log import LISTENER, connections_of, endpoint_of

#: Offset and value.
Event: TypeAlias = tuple[int, bytes | None]
#: Returns how far daemons had read which log.
ReadBefore: TypeAlias = Callable[[Config], Awaitable[Mapping[TopicId, Mapping[int, Position]]]]

#: A leader that runs answers in milliseconds.
_ANSWER_SECONDS: Final = 3.0
#: A replica that runs has by then what its leader had when it was asked.
_REACH_SECONDS: Final = 3.0
_PAUSE_SECONDS: Final = 0.1


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How far a replica's files can be believed."""

    directory: str
    #: Offsets of the quorum's log: all before it is settled; the files end there.
    settled: int
    end: int
    #: Whether nothing that was acknowledged is missing from what is settled.
    whole: bool
    #: Events behind what is settled.
    unsettled: int = 0

    def told(self) -> str | None:
        """Return in words what has to be minded; None: nothing."""
        if self.whole and not self.unsettled:
            return None
        said = f"read of the replica {self.directory}, up to offset {self.settled} of its log"
        if self.unsettled:
            said += f"; the {self.unsettled} events behind it may yet be taken back"
        if not self.whole:
            said += (
                "; no leader says whether that is all (start most voters, or ask on the leader's "
                "host), so what it does not name is not called an orphan"
            )
        return said


class _Said(msgspec.Struct, frozen=True):
    """What the leader says: of its log this replica has so much, and so much is committed."""

    held: int
    committed: int


class ReplicaLog:
    """One replica's log; each partition is given up to where it is settled."""

    def __init__(
        self,
        disk: Disk,
        layout: Layout,
        *,
        ask: Callable[[ReplicaKey], Awaitable[_Said | None]],
        read_to: Callable[[TopicId], Awaitable[Mapping[int, Position]]],
    ) -> None:
        self._disk = disk
        self._layout = layout
        self._ask = ask
        self._read_to = read_to
        self._fold = LogFold()
        #: Offset of the quorum's log behind what was read.
        self._end = 0
        self._epoch = 0
        self._settled = 0
        #: By partition: offset of the quorum's log, -1 of a checkpoint's, and the event.
        self._rows: dict[int, list[tuple[int, Event]]] = defaultdict(list)
        self._voters: tuple[ReplicaKey, ...] = ()
        self._me = ReplicaKey(0, b"")
        #: By partition, of the checkpoint that was loaded: before this offset some were dropped.
        self._dropped_to: Sequence[int] = ()
        self._cluster_id = ""
        self._topic_id = bytes(16)
        self._whole = False
        #: Of all partitions together, checkpoints included; batches of the log that were read.
        self._files = self._batches = 0

    async def open(self) -> None:
        """Read all that is there.

        Raises:
            ConfigError: it is not formatted, or was left behind; or no daemon began its log.
            LogCorrupt, HistoryLost: something is damaged, or gone; it says what and where.
            NotReady: the files changed meanwhile.
        """
        await require_not_abandoned(self._disk, self._layout.directory)
        self._topic_id = await topic_id_of(self._disk, self._layout.directory)
        meta = await identity.read_meta(self._disk, self._layout)
        self._me, self._cluster_id = ReplicaKey(meta.node_id, meta.directory_id), meta.cluster_id
        await self._read_on()
        if self._fold.partition_count is None:
            raise ConfigError(
                f"{self._layout.directory}: no daemon has begun this log, as far as this replica "
                "has it"
            )

    @property
    def identity(self) -> LogIdentity:
        """Which log it is."""
        return LogIdentity(
            cluster_id=self._cluster_id,
            topic_id=TopicId(self._topic_id),
            partition_count=len(self._fold.ends),
        )

    @property
    def standing(self) -> Standing:
        """How far it can be believed."""
        behind = (at >= self._settled for rows in self._rows.values() for at, _ in rows)
        return Standing(
            directory=self._layout.directory,
            settled=self._settled,
            end=self._end,
            whole=self._whole,
            unsettled=sum(behind),
        )

    def unsettled(self, number: MetadataPartition) -> Sequence[Event]:
        """Return events that may yet be taken back, behind all that was read."""
        return [event for at, event in self._rows[number] if at >= self._settled]

    async def read_on(self, history: History, damaged: dict[int, str] | None = None) -> int:
        """Read from the history's position to what is settled now.

        Damage is never passed over: each event's offset depends on all before it.

        Raises:
            NotReady: what had been read of it was compacted since: it may lack an end of that.
        """
        del damaged
        fold = history.fold
        number = fold.partition
        if fold.position:
            await self._read_on()
            if self._dropped_to and fold.position < self._dropped_to[number]:
                raise NotReady(f"metadata partition {number} was compacted meanwhile: ask again")
        for at, (offset, value) in self._rows[number]:
            if at < self._settled and offset >= fold.position:
                history.take(offset, value)
        behind = self.unsettled(number)
        end = behind[0][0] if behind else self._fold.ends[number]
        if end > fold.position:  # a compaction dropped what stood there
            fold.advance(end, self._fold.epochs[number].epoch_of(end - 1))
        return 0

    def report(self, number: MetadataPartition) -> PartitionReport:
        """Return what there is of a partition, settled or not."""
        end = self._fold.ends[number]
        return PartitionReport(
            partition=number,
            range=LogRange(start=0, end=end),
            files=self._files,
            batches=self._batches,
            records=end,
            dropped=end - len(self._rows[number]),
        )

    # What is settled.

    async def _read_on(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + _REACH_SECONDS
        while True:
            alone = self._voters == (self._me,)
            said = None if alone else await self._ask(self._me)
            await self._load()
            alone = self._voters == (self._me,)
            self._whole = alone or (
                said is not None and min(said.held, self._end) >= said.committed
            )
            known = [self._settled, *([self._end] if alone else [])]
            if said is not None:
                known.append(min(said.held, said.committed, self._end))
            self._settled = max(known)
            if self._whole or said is None or loop.time() >= until:
                break
            await asyncio.sleep(_PAUSE_SECONDS)  # another process rings no bell
        if not self._whole:
            self._settled = max(self._settled, await self._settled_by_readers())

    async def _settled_by_readers(self) -> int:
        """Return up to where daemons had read it: they only read what is committed.

        An event of the same offset and epoch is the same one, and so is all before it.
        """
        settled = 0
        for number, position in (await self._read_to(TopicId(self._topic_id))).items():
            last = position.next_offset - 1
            if not 0 <= number < len(self._fold.ends) or not 0 <= last < self._fold.ends[number]:
                continue
            if self._fold.epochs[number].epoch_of(last) == position.leader_epoch:
                at = next((at for at, (offset, _) in self._rows[number] if offset == last), -1)
                settled = max(settled, at + 1)
        return settled

    # The files.

    async def _load(self) -> None:
        try:
            found = await names(self._disk, self._layout)
            if not await identity.require_begun(self._disk, self._layout, found, self._topic_id):
                return  # formatted, and never started
            if found.installing is not None:
                raise NotReady("a checkpoint takes the log's place just now: ask again")
            self._files = len(found.segments) + len(found.snapshots)
            point = await recovery.recovery_point(self._disk, self._layout) or 0
            await self._stand_on(found.snapshots, found.segments)
            await self._read_segments(found.segments, point)
        except FileNotFoundError as error:
            raise NotReady(f"{error.filename} was removed meanwhile: ask again") from error

    async def _stand_on(self, points: Sequence[LogPoint], bases: Sequence[int]) -> None:
        """Hold every checkpoint against its checksums; begin with the newest."""
        # What was behind it may be other events by now, and checkpoints may have taken its place.
        if self._end > self._settled or min(bases, default=0) > self._end:
            self._fold, self._end, self._epoch = LogFold(), 0, 0
            self._rows.clear()
        if self._end:
            return
        for each in points:
            said = await snapshots.read(self._disk, self._layout, each)
            self._voters = said.voters.voters.keys
        if not points or points[-1] == BEGINNING:
            return
        point = points[-1]
        loaded = await checkpointed.load(self._read_piece, point)
        options = QuorumLogOptions()
        chunks = Chunks(
            _nothing,
            self._read_piece,
            chunk_bytes=options.chunk_bytes,
            cache_bytes=options.cache_bytes,
        )
        for chunk in loaded.chunks:
            for number, events in (await chunks.rows(chunk)).items():
                self._rows[number] += [(-1, event) for event in events]
        self._fold, self._end = loaded.fold, point.end
        self._epoch, self._settled = point.epoch, max(self._settled, point.end)
        self._dropped_to = loaded.source.dropped_to

    async def _read_piece(
        self, point: LogPoint, position: int, bytes_max: int
    ) -> tuple[int, bytes]:
        file = await self._disk.open(self._layout.snapshot(point))
        try:
            return await file.size(), await file.pread(position, bytes_max)
        finally:
            await file.close()

    async def _read_segments(self, bases: Sequence[int], point: int) -> None:
        """Fold what follows; `point` is up to where the log was on the disk before."""
        for base, after in zip(bases, [*bases[1:], None], strict=True):
            path = self._layout.segment(base)
            if after is not None and after <= self._end:
                continue  # read before
            if base > self._end:
                raise lost(
                    path, f"it begins at offset {base}, and what is before ends at {self._end}"
                )
            data = await self._disk.read(path)
            walked = await self._disk.compute(lambda: scan.walk(data, base))  # noqa: B023 - awaited here
            is_cut = after is not None or walked.next_offset < point
            if walked.stop < len(data) and is_cut:
                raise damaged(path, f"byte {walked.stop}: {walked.reason or 'zeros'}")
            if walked.next_offset < point and after is None:
                ends = f"the log ends with offset {walked.next_offset}"
                raise lost(path, f"{ends}, and was on the disk up to {point}")
            if after is not None and walked.next_offset != after:
                ends = f"it ends with offset {walked.next_offset}"
                raise lost(path, f"{ends}, and the next file begins with {after}")
            for batch in log_batches.walk(data[: walked.stop]):
                if batch.base >= self._end:
                    self._take(path, batch)

    def _take(self, path: str, batch: Batch) -> None:
        """Fold a batch; its leader's record bears out its epoch, which no checksum covers."""
        begins = batch.epoch != self._epoch
        if batch.epoch < self._epoch or (begins and not log_batches.starts_epoch(batch)):
            raise damaged(path, f"offset {batch.base}: epoch {batch.epoch} behind {self._epoch}")
        self._epoch, self._end = batch.epoch, batch.end
        self._batches += 1
        if batch.voters is not None:
            self._voters = batch.voters.keys
        assert isinstance(batch.payload, bytes), "one that was read"
        for kept in batches.split(batch.payload):
            if kept.is_control:
                continue
            for at, packed, value in batches.keyed_records_of(kept):
                outcome = self._fold.apply(batch.epoch, read_key(packed), value)
                if isinstance(outcome, AcceptedEvent):
                    self._rows[outcome.partition].append((at, (outcome.offset, value)))


async def _nothing(offset: int, end: int) -> bytes:
    raise AssertionError(f"only what a checkpoint holds is asked for, not {offset} to {end}")


async def reports(directory: str, disk: Disk) -> list[PartitionReport]:
    """Read a replica's directory, also a copy of one; nobody is asked anything.

    Raises:
        ConfigError, RlmmError: as `ReplicaLog.open`.
    """

    async def nobody(_: ReplicaKey) -> None:
        return None

    async def nothing(_: TopicId) -> Mapping[int, Position]:
        return {}

    log = ReplicaLog(disk, Layout(directory, TOPIC), ask=nobody, read_to=nothing)
    await log.open()
    return [log.report(MetadataPartition(each)) for each in range(log.identity.partition_count)]


async def of_config(config: Config, disk: Disk, read_before: ReadBefore) -> ReplicaLog:
    """Return the log of the configured replica, read; the leader is asked, if one answers.

    Raises:
        ConfigError, RlmmError: as `ReplicaLog.open`.
    """
    chosen = config.event_log
    assert isinstance(chosen, QuorumLog), "others have readers of their own"

    async def ask(me: ReplicaKey) -> _Said | None:
        try:
            _, dialer = connections_of(config, chosen.quorum)
            servers = tuple(map(endpoint_of, (chosen.quorum.listen, *chosen.quorum.bootstrap)))
            group = Group(
                cluster_id=config.daemon.cluster_id or "",
                topic=TOPIC,
                topic_id=bytes(16),
                listener=LISTENER,
            )
            client = QuorumClient(group, dialer, servers, timeout_seconds=_ANSWER_SECONDS)
            seen = await client.describe()
        except (RlmmError, OSError):
            return None
        held = [each.end for each in (*seen.voters, *seen.observers) if each.key == me]
        if seen.high_watermark < 0 or not held:
            return None
        return _Said(held=held[0], committed=seen.high_watermark)

    async def read_to(topic_id: TopicId) -> Mapping[int, Position]:
        return (await read_before(config)).get(topic_id, {})

    log = ReplicaLog(disk, Layout(config.quorum_directory, TOPIC), ask=ask, read_to=read_to)
    await log.open()
    if config.daemon.cluster_id not in (None, log.identity.cluster_id):
        raise ConfigError(
            f"{config.quorum_directory} is of cluster {log.identity.cluster_id}, "
            f"daemon.cluster_id is {config.daemon.cluster_id}"
        )
    return log
