"""Fetcher of a followed partition: its own connection, position, epoch and state machine.

    finding_leader -> connecting -> checking -> fetching <-> (next answer)
          ^------------- backing_off <--- any error that time or another leader may cure
    truncated | trimmed | recreated | corrupt | refused or failing for too long: raised

`checking` asks the leader where the epoch of the last fetched batch ends: at every connect and at
every change of the leader epoch, before anything is delivered. Each Fetch carries the leader epoch
that we believe in and the epoch of the last batch, so that the broker says where we diverge.
"""

import asyncio
import enum
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from rlmm_daemon.adapters.kafka.connection import Connection, Directory, KafkaClient, Leader
from rlmm_daemon.adapters.kafka.connection.errors import Reaction, error_of, reaction_to
from rlmm_daemon.adapters.kafka.connection.fetching import FetchAnswer, FetchPartition
from rlmm_daemon.adapters.kafka.event_log.asking import Asker
from rlmm_daemon.adapters.kafka.event_log.parsing import (
    BatchTooLarge,
    InvalidBatch,
    Packed,
    Slice,
    slices,
)
from rlmm_daemon.domain.backoff import Backoff
from rlmm_daemon.domain.errors import LogCorrupt, StorageUnavailable, UnavailableError
from rlmm_daemon.domain.ids import MetadataPartition, TopicId
from rlmm_daemon.ports.event_log import (
    NO_EPOCH,
    EpochEnd,
    LogBatch,
    LogRange,
    LogTrimmed,
    LogTruncated,
    TopicIdChanged,
    diverged,
)

#: First connections of a daemon are made over so long, not all in one moment.
DIAL_SPREAD_SECONDS: Final = 0.02
#: Troubles are sat out here for so long; then the caller hears of them and comes again.
PATIENCE_SECONDS: Final = 5.0
_UNKNOWN_TOPIC_ID = 100
#: A long poll waits up to this part less than it might.
_WAIT_SPREAD: Final = 0.25


class FetchState(enum.Enum):
    """What a follower is doing."""

    FINDING_LEADER = "finding_leader"
    CONNECTING = "connecting"
    CHECKING = "checking"
    FETCHING = "fetching"
    BACKING_OFF = "backing_off"


class _Trouble(Exception):
    """Something that another attempt may cure; `fresh` wants another connection for it."""

    def __init__(self, cause: Exception, *, refresh: bool = False, fresh: bool = False) -> None:
        self.cause = cause
        self.refresh = refresh
        self.fresh = fresh
        super().__init__(str(cause))


class PartitionFetcher:
    """Follows one partition of one topic id from a position, until closed."""

    def __init__(
        self,
        partition: MetadataPartition,
        position: int,
        epoch: int,
        *,
        topic_id: TopicId,
        client: KafkaClient,
        directory: Directory,
        asker: Asker,
        backoff: Backoff,
        check_open: Callable[[], None],
        unpacking: asyncio.Semaphore,
    ) -> None:
        self.partition = partition
        #: The next offset to be delivered.
        self.position = position
        #: Of the last batch delivered or passed over; of the one read before `position` at first.
        self.epoch = epoch if position > 0 else NO_EPOCH
        self.state = FetchState.FINDING_LEADER
        self.leader: Leader | None = None
        self.last_error: str | None = None
        self.errors_count = 0
        #: Of the present back-off; 0 while there is none.
        self.pause_seconds = 0.0
        self._topic_id = topic_id
        self._client = client
        self._directory = directory
        self._asker = asker
        self._backoff = backoff
        self._check_open = check_open
        #: Shared by all: unpacked batches are large.
        self._unpacking = unpacking
        self._connection: Connection | None = None
        self._failing_since: float | None = None
        self._invalid_at: int | None = None
        #: The first answer does not wait: it says at once where the log ends.
        self._answered = False

    @property
    def connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return self._connection is not None and self._connection.usable

    async def batches(self) -> AsyncGenerator[LogBatch, None]:
        """Yield what comes; see `EventLog.follow` for what is raised."""
        try:
            while True:
                self._check_open()
                try:
                    answer = await self._fetch()
                    async with aclosing(self._deliver(answer)) as delivered:
                        async for batch in delivered:
                            yield batch
                            self._check_open()
                except _Trouble as trouble:
                    await self._recover(trouble)
                except InvalidBatch as invalid:
                    await self._recover(self._judge_invalid(invalid))
        finally:
            self._hang_up()

    # One answer.

    async def _fetch(self) -> FetchAnswer:
        try:
            connection, leader = await self._connected()
            self.state = FetchState.FETCHING
            answer = await self._ask(connection, leader)
        except UnavailableError as error:
            self._check_open()
            raise _Trouble(error, refresh=True, fresh=True) from error
        if answer.error:
            raise await self._classify(answer.error, leader)
        if answer.diverging is not None:
            epoch, end = answer.diverging
            found = EpochEnd(epoch=epoch, end_offset=end)
            raise LogTruncated(diverged(found, self.position, self.epoch) or "the leader says so")
        self._progressed()
        return answer

    async def _deliver(self, answer: FetchAnswer) -> AsyncGenerator[LogBatch, None]:
        log_range = LogRange(start=answer.log_start, end=answer.high_watermark)
        if not answer.records:
            yield self._batch(Slice([], self.position, self.epoch), log_range)
            return
        bytes_max = self._client.config.fetch.unpacked_bytes_max
        for part in slices(answer.records, self.position, unpacked_bytes_max=bytes_max):
            if isinstance(part, Packed):
                async with self._unpacking:
                    await asyncio.to_thread(part.unpack)
                continue
            self.position, self.epoch = part.next_offset, part.leader_epoch
            self._invalid_at = None
            yield self._batch(part, log_range)

    def _batch(self, part: Slice, log_range: LogRange) -> LogBatch:
        return LogBatch(
            next_offset=part.next_offset,
            leader_epoch=part.leader_epoch,
            records=part.records,
            range=log_range,
            unvouched=part.unvouched,
        )

    async def _ask(self, connection: Connection, leader: Leader) -> FetchAnswer:
        fetch = self._client.config.fetch
        # Idle followers, which began together, would else all be answered at the same moment.
        spread = 1 - self._client.luck.random() * _WAIT_SPREAD
        wait_ms = round(fetch.max_wait_ms * spread) if self._answered else 0
        request = FetchPartition(
            self._topic_id,
            self.partition,
            leader_epoch=leader.epoch,
            position=self.position,
            last_epoch=self.epoch,
            wait_ms=wait_ms,
            bytes_max=fetch.bytes_max,
        )
        seconds = (wait_ms + fetch.request_timeout_ms) / 1000
        answer: FetchAnswer = await connection.ask(request, timeout_seconds=seconds)
        return answer

    # Leader and connection.

    async def _connected(self) -> tuple[Connection, Leader]:
        """Return a connection to the present leader that was checked in its epoch."""
        leader = self._directory.leader(self.partition)
        if leader is None:
            self.state = FetchState.FINDING_LEADER
            await self._refresh()
            leader = self._directory.leader(self.partition)
        view = self._directory.view
        if view is not None and view.topic_id != self._topic_id:
            raise TopicIdChanged(view.topic_id)
        if leader is None:
            raise StorageUnavailable(f"metadata partition {self.partition} has no leader")
        connection = self._connection
        if connection is not None and (not connection.usable or connection.node != leader.node):
            self._hang_up()
            connection = None
        if connection is None or leader != self.leader:
            self.state = FetchState.CONNECTING
            if connection is None:
                if not self._answered:  # later ones are spread by their back-off
                    await asyncio.sleep(self._client.luck.random() * DIAL_SPREAD_SECONDS)
                fetch = self._client.config.fetch
                seconds = (fetch.max_wait_ms + fetch.request_timeout_ms) / 1000
                connection = await self._client.connect(leader.node, request_seconds=seconds + 1)
                self._connection = connection
            self.state = FetchState.CHECKING
            await self._check_divergence(leader)
            self.leader = leader
        return connection, leader

    async def _refresh(self) -> None:
        view = await self._directory.refresh()
        if view is None:
            raise StorageUnavailable("the metadata topic does not exist")
        if view.topic_id != self._topic_id:
            raise TopicIdChanged(view.topic_id)

    async def _check_divergence(self, leader: Leader) -> None:
        if self.epoch < 0:
            return
        error, found = await self._asker.epoch_end_at(leader, self.partition, self.epoch)
        if error:
            raise await self._classify(error, leader)
        if not await self._directory.is_topic(leader.node, self._topic_id):
            raise await self._classify(_UNKNOWN_TOPIC_ID, leader)
        if (found.epoch, found.end_offset) == (self.epoch, self.position) and (
            self.epoch < leader.epoch
        ):
            found = await self._asker.unless_before_start(self.partition, found, self._topic_id)
        if (how := diverged(found, self.position, self.epoch)) is not None:
            raise LogTruncated(how)

    def _hang_up(self) -> None:
        self.leader = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # Errors.

    async def _classify(self, code: int, leader: Leader) -> Exception:
        """Return what an error code amounts to."""
        error = error_of(code, f"fetching metadata partition {self.partition}")
        match reaction_to(code):
            case Reaction.OUT_OF_RANGE:
                return await self._out_of_range(error, leader)
            case Reaction.TOPIC:
                return await self._topic_gone(error)
            case Reaction.CORRUPT:
                return InvalidBatch(self.position, "is called corrupt by the broker")
            case Reaction.REFRESH:
                return _Trouble(error, refresh=True)
            case _:
                return _Trouble(error)

    async def _topic_gone(self, error: Exception) -> Exception:
        """Deleted, recreated, or the broker has not heard of it yet."""
        try:
            await self._refresh()
        except (TopicIdChanged, UnavailableError) as found:
            return found if isinstance(found, TopicIdChanged) else _Trouble(found)
        return _Trouble(error)

    async def _out_of_range(self, error: Exception, leader: Leader) -> Exception:
        """Below the start or beyond the end: the code does not say which."""
        try:
            ranges = await self._asker.ranges([self.partition], self._topic_id)
        except UnavailableError as unknown:
            return _Trouble(unknown, refresh=True)
        known = ranges.get(self.partition)
        if known is None or self._directory.leader(self.partition) != leader:
            return _Trouble(error, refresh=True)
        if self.position < known.start:
            return LogTrimmed(known.start)
        if self.position > known.end:
            return LogTruncated(f"read up to {self.position}, the log ends at {known.end}")
        return _Trouble(error)

    def _judge_invalid(self, invalid: InvalidBatch) -> _Trouble:
        if isinstance(invalid, BatchTooLarge):
            raise LogCorrupt(
                f"metadata partition {self.partition}: {invalid}; it is whole, and nothing behind "
                "it is read: set event_log.kafka.fetch.unpacked_bytes_max higher and start the "
                "daemon again",
                metadata_partition=self.partition,
                offset=self.position,
                command=f"rlmm partition retry {self.partition}",
            ) from invalid
        if self._invalid_at == self.position:
            raise LogCorrupt(
                f"metadata partition {self.partition}: {invalid}, twice, from "
                f"{self.leader and self.leader.node}: let another replica lead, then retry",
                metadata_partition=self.partition,
                offset=self.position,
                command=f"rlmm partition retry {self.partition}",
            ) from invalid
        self._invalid_at = self.position
        return _Trouble(invalid, fresh=True)

    async def _recover(self, trouble: _Trouble) -> None:
        """Wait a little and prepare another attempt, or give up for now.

        Raises:
            StorageUnavailable: nothing worked for `PATIENCE_SECONDS`.
        """
        now = asyncio.get_running_loop().time()
        self.last_error, self.errors_count = str(trouble.cause), self.errors_count + 1
        self.state = FetchState.BACKING_OFF
        if self._failing_since is None:
            self._failing_since = now
        if trouble.fresh:
            self._hang_up()
        if now - self._failing_since >= PATIENCE_SECONDS:
            if isinstance(trouble.cause, UnavailableError):
                raise trouble.cause
            raise StorageUnavailable(self.last_error) from trouble.cause
        self.pause_seconds = self._backoff.next()
        await asyncio.sleep(self.pause_seconds)
        self.pause_seconds = 0.0
        self._check_open()
        if trouble.refresh:
            try:
                await self._refresh()
            except UnavailableError as error:
                self.last_error = str(error)

    def _progressed(self) -> None:
        self._answered = True
        self._failing_since = None
        self._backoff.reset()
