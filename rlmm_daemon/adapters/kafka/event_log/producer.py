"""Writing to the topic: one sender per leader, one request at a time, a batch per partition in it.

While a request is under way the next one gathers, so that many writers cost few round trips.
aiokafka's own producer is not used: it retries for ever, writes to a recreated topic of the same
name, lets one failed batch poison its partition, may hang in `stop()`, and leaves futures pending.

What an answer means for a batch: an offset, written. An error with which the leader refuses before
it appends (not leader, too large, not authorized), not written. Anything else, no answer included:
perhaps written, so it is sent again *with the same sequence* until its deadline, and then its
outcome is unknown. So is any error that comes with an offset: a leader that is deposed while it
waits for its followers answers "not leader" for what it appended, and they may have copied it.
Source: Kafka's DelayedProduce. Success with an offset below 0 is unknown at once.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from rlmm_daemon.adapters.kafka.connection import Connection, Directory, KafkaClient, Node
from rlmm_daemon.adapters.kafka.connection.errors import Reaction, error_of, reaction_to
from rlmm_daemon.adapters.kafka.connection.producing import ProduceBatches
from rlmm_daemon.adapters.kafka.connection.requests import (
    NO_TAGS,
    PRODUCE,
    InitProducerId,
    Pinned,
    ProduceByName,
)
from rlmm_daemon.adapters.kafka.event_log.lane import (
    Lane,
    ProducerIdentity,
    QueuedBatch,
    QueuedRecord,
)
from rlmm_daemon.domain.backoff import Backoff
from rlmm_daemon.domain.errors import (
    Draining,
    InvalidArgument,
    Overloaded,
    PartitionFailed,
    RlmmError,
    StorageUnavailable,
    UnavailableError,
)
from rlmm_daemon.domain.ids import MetadataPartition, TopicId
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.event_log import Told

#: Starts a named task in the daemon's task group.
Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]

_ALL_REPLICAS: Final = -1
_DUPLICATE_SEQUENCE: Final = 46
#: After these a record may be in the log: appended but not replicated, or anything at all.
_PERHAPS_WRITTEN: Final = frozenset({-1, 7, 13, 20, 56})
#: The leader refuses before it appends anything, and the same bytes would be refused again.
_REFUSALS: Final = frozenset({Reaction.REFUSED, Reaction.TOO_LARGE, Reaction.SEQUENCE})
PURPOSE: Final = "produce"
#: What waits is sent after so long, however little it is.
GATHER_SECONDS: Final = 0.002
_RECREATED: Final = "the metadata topic was recreated"


class Producer:
    """Takes records and sees each of them to a known fate, or to "unknown", in bounded time."""

    def __init__(
        self,
        *,
        client: KafkaClient,
        directory: Directory,
        topic: str,
        clock: Clock,
        spawn: Spawn,
    ) -> None:
        self._client = client
        self._directory = directory
        self._topic = topic
        self._clock = clock
        self._spawn = spawn
        self._config = client.config.producer
        self._topic_id: TopicId | None = None
        self._lanes: dict[MetadataPartition, Lane] = {}
        #: Of a topic that was recreated, until their records' fate is known.
        self._former: list[Lane] = []
        self._ready: dict[Node, list[Lane]] = {}
        self._senders: dict[Node, asyncio.Task[None]] = {}
        self._timers: dict[Lane, asyncio.TimerHandle] = {}
        self._settled = asyncio.Event()
        self._closing = False
        self.last_error: str | None = None
        self.errors_count = 0
        #: Batches whose producer had to be given up.
        self.lost_count = 0

    @property
    def in_flight(self) -> int:
        """Records whose fate is not known."""
        return sum(
            len(lane.waiting) + (len(lane.batch.entries) if lane.batch else 0)
            for lane in self._all_lanes()
        )

    def start(self, topic_id: TopicId) -> None:
        """Take records for this topic from now on."""
        if self._topic_id != topic_id:
            self._former = [lane for lane in self._all_lanes() if not lane.idle]
            self._lanes = {}
        self._topic_id, self._closing = topic_id, False

    def begin_append(self, partition: MetadataPartition, value: bytes, told: Told) -> None:
        """Take a record; see `EventLog.begin_append`."""
        if self._closing or self._topic_id is None:
            raise Draining("the event log is closed")
        lane = self._lanes.get(partition)
        if lane is None:
            lane = Lane(partition, self._topic_id, self._config.batch_bytes_max)
            self._lanes[partition] = lane
        if self._recreated(lane):
            raise PartitionFailed(_RECREATED)
        if len(lane.waiting) >= self._config.pending_records_max:
            raise Overloaded(f"{len(lane.waiting)} records wait", limit="pending_records_max")
        loop = asyncio.get_running_loop()
        seconds = self._config.delivery_timeout_ms / 1000
        lane.waiting.append(QueuedRecord(value, told, loop.time() + seconds))
        if not lane.busy:
            lane.busy = True
            if lane.ripe:  # what is found out then, nobody is told from within here
                loop.call_soon(self._queue, lane)
            else:
                self._gather(lane)
        elif lane.gathering and lane.ripe:
            self._gathered(lane)

    def read_back(self, partition: MetadataPartition, position: int | None) -> None:
        """A follower here has taken in all before `position`; None: it ended."""
        lane = self._lanes.get(partition)
        if lane is None:
            return
        # Another one may follow from far behind.
        lane.read = None if position is None else max(position, lane.read or 0)
        if lane.gathering and lane.ripe:
            self._gathered(lane)

    async def close(self, timeout_seconds: float) -> None:
        """Finish what was taken, for at most so long; then what was sent is unknown."""
        self._closing = True
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        try:
            async with asyncio.timeout_at(deadline):
                while self.in_flight:
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            pass
        senders, self._senders = list(self._senders.values()), {}
        for sender in senders:
            sender.cancel()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if senders:
            await asyncio.wait(senders)
        for lane in self._all_lanes():
            self._abandon(lane)
        self._lanes.clear()
        self._former.clear()
        self._ready.clear()

    # Who sends what when.

    def _gather(self, lane: Lane) -> None:
        """Give those who write to a lane a moment to come together."""
        lane.gathering = True
        loop = asyncio.get_running_loop()
        self._timers[lane] = loop.call_later(GATHER_SECONDS, self._queue, lane)

    def _gathered(self, lane: Lane) -> None:
        lane.gathering = False
        self._timers.pop(lane).cancel()
        asyncio.get_running_loop().call_soon(self._queue, lane)

    def _queue(self, lane: Lane) -> None:
        """Hand a lane to its leader's sender, or look for the leader first."""
        lane.busy, lane.gathering = True, False
        self._timers.pop(lane, None)
        leader = self._directory.leader(lane.partition)
        if leader is None:
            self._launch(self._find_leader(lane), f"produce-leader-{lane.partition}")
            return
        self._ready.setdefault(leader.node, []).append(lane)
        if leader.node not in self._senders:
            task = self._launch(self._send_to(leader.node), f"produce-{leader.node.node_id}")
            if task is not None:
                self._senders[leader.node] = task

    def _launch(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None] | None:
        try:
            return self._spawn(work, name)
        except RuntimeError:  # the task group is ending, so nothing will be sent any more
            work.close()
            self._closing = True
            for lane in self._all_lanes():
                self._abandon(lane)
            return None

    async def _find_leader(self, lane: Lane) -> None:
        await self._refresh()
        if self._directory.leader(lane.partition) is None:
            self._again(lane, StorageUnavailable(f"partition {lane.partition} has no leader"))
        else:
            self._queue(lane)

    async def _send_to(self, node: Node) -> None:
        """Send what is ready for one broker, request after request; ends when nothing is."""
        try:
            while lanes := self._ready.pop(node, []):
                for lane, error in await self._send(node, lanes):
                    if error is None:
                        self._go_on(lane)
                    else:
                        self._again(lane, error)
        finally:
            self._senders.pop(node, None)

    async def _send(self, node: Node, lanes: list[Lane]) -> list[tuple[Lane, RlmmError | None]]:
        """Send one request; return each lane with what another attempt might cure, if anything."""
        gone = [lane for lane in lanes if self._recreated(lane)]
        lanes = [lane for lane in lanes if lane not in gone]
        results: dict[Lane, RlmmError | None] = {lane: PartitionFailed(_RECREATED) for lane in gone}
        try:
            connection = await self._client.shared(node, PURPOSE)
            for lane in lanes:
                self._expire(lane)
                if lane.identity is None and not lane.idle:
                    await self._identify(lane, connection)
        except UnavailableError as error:
            await self._refresh()
            return [*results.items(), *((lane, error) for lane in lanes)]
        sent = [(lane, batch) for lane in lanes if (batch := self._next_batch(lane)) is not None]
        results |= dict.fromkeys(lanes)
        if not sent:
            return list(results.items())
        try:
            answers = await self._ask(connection, sent)
        except UnavailableError as error:
            answers, unanswered = {}, error
        else:
            unanswered = StorageUnavailable(f"{node} left partitions out of its answer")
        for lane, batch in sent:
            row = answers.get(int(lane.partition))
            if row is None:
                batch.maybe_written = True
                results[lane] = unanswered
            else:
                _, code, base_offset, _, _, _, message, _ = row
                results[lane] = self._judge(lane, batch, code, base_offset, message=message)
        if any(results.values()):
            await self._refresh()
        return list(results.items())

    async def _ask(
        self, connection: Connection, sent: list[tuple[Lane, QueuedBatch]]
    ) -> dict[int, tuple[Any, ...]]:
        timeout_ms = self._config.request_timeout_ms or self._client.config.request_timeout_ms
        request: Pinned
        if connection.speaks(PRODUCE, ProduceBatches.API_VERSION):
            assert self._topic_id is not None, "started"
            batches = [(int(lane.partition), batch.data) for lane, batch in sent]
            request = ProduceBatches(self._topic_id, batches, timeout_ms=timeout_ms)
        else:
            rows = [(int(lane.partition), batch.data, NO_TAGS) for lane, batch in sent]
            topics = [(self._topic, rows, NO_TAGS)]
            request = ProduceByName(None, _ALL_REPLICAS, timeout_ms, topics, NO_TAGS)
        answer = await connection.ask(request, timeout_seconds=timeout_ms / 1000)
        return {row[0]: row for _, partitions, _ in answer.topics for row in partitions}

    async def _identify(self, lane: Lane, connection: Connection) -> None:
        """Make the lane a producer; where that is not allowed, its writers are told at once.

        Raises:
            UnavailableError: not now.
        """
        request = InitProducerId(None, 0, NO_TAGS)
        answer = await connection.ask(request, timeout_seconds=self._client.request_seconds)
        if not answer.error:
            lane.identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
            return
        error = error_of(answer.error, "asking for a producer id")
        if reaction_to(answer.error) is not Reaction.REFUSED:
            raise error
        self._note(error)
        for entry in lane.expire(float("inf")):
            entry.tell(error)

    def _next_batch(self, lane: Lane) -> QueuedBatch | None:
        return lane.next_batch(self._clock.now_ms())

    # What became of it.

    def _judge(
        self, lane: Lane, batch: QueuedBatch, code: int, base_offset: int, *, message: str | None
    ) -> RlmmError | None:
        """Tell the writers what is certain; return what another attempt might cure."""
        if code == 0 and base_offset >= 0:
            lane.written(base_offset)
            return None
        reaction = reaction_to(code)
        error = error_of(code, f"appending to metadata partition {lane.partition}", message)
        if code in (0, _DUPLICATE_SEQUENCE):
            self._lose(lane, "the record is in the log, but the leader did not say where")
        elif code in _PERHAPS_WRITTEN or base_offset >= 0:
            batch.maybe_written = True
            return error
        elif reaction in _REFUSALS:
            if batch.maybe_written:
                self._lose(lane, f"an earlier attempt may have been written; then: {error}")
            else:
                return self._refused(lane, batch, reaction, error)
        else:
            return error
        return None

    def _refused(
        self, lane: Lane, batch: QueuedBatch, reaction: Reaction, error: RlmmError
    ) -> RlmmError | None:
        """The leader's word at the first attempt: nothing of it was written."""
        self._note(error)
        if reaction is Reaction.SEQUENCE:
            lane.restart()
            return error
        if reaction is Reaction.TOO_LARGE and len(batch.entries) > 1:
            lane.batch_bytes_max = max(1, sum(len(each.value) for each in batch.entries) // 2)
            lane.put_back()
        elif reaction is Reaction.TOO_LARGE:
            size = len(batch.entries[0].value)
            lane.refused(InvalidArgument(f"a record of {size} bytes is more than the topic takes"))
        else:
            lane.refused(error)
        return None

    def _go_on(self, lane: Lane) -> None:
        if lane.idle:
            lane.busy = False
            self._settled.set()
        elif lane.ripe:
            self._queue(lane)
        else:
            self._gather(lane)

    def _again(self, lane: Lane, error: RlmmError) -> None:
        """Try again after a while, or conclude what has run out of time."""
        self._note(error)
        now, recreated = asyncio.get_running_loop().time(), self._recreated(lane)
        batch = lane.batch
        if batch is not None and (batch.deadline <= now or recreated):
            if batch.maybe_written:
                self._lose(lane, f"no other attempt is made: {error}")
            else:
                lane.refused(PartitionFailed(_RECREATED) if recreated else error)
        self._expire(lane)
        if lane.idle:
            self._go_on(lane)
            return
        lane.failures += 1
        config = self._client.config
        backoff = Backoff(
            config.retry_backoff_ms / 1000,
            config.retry_backoff_max_ms / 1000,
            self._client.luck.random,
            lane.failures - 1,
        )
        loop = asyncio.get_running_loop()
        self._timers[lane] = loop.call_later(backoff.next(), self._queue, lane)

    def _expire(self, lane: Lane) -> None:
        now = asyncio.get_running_loop().time()
        recreated = self._recreated(lane)
        for entry in lane.expire(float("inf") if recreated else now):
            if recreated:
                entry.tell(PartitionFailed(_RECREATED))
            else:
                last = self.last_error or "its leader was busy"
                entry.tell(StorageUnavailable(f"the record could not be sent in time: {last}"))

    def _lose(self, lane: Lane, reason: str) -> None:
        self.lost_count += 1
        lane.lost(reason)

    def _abandon(self, lane: Lane) -> None:
        """Nothing will be sent any more."""
        if lane.batch is not None:
            self._lose(lane, "the event log was closed while the record was on its way")
        for entry in lane.expire(float("inf")):
            entry.tell(Draining("the event log was closed before the record was sent"))
        lane.busy = lane.gathering = False
        self._settled.set()

    def _recreated(self, lane: Lane) -> bool:
        view = self._directory.view
        return view is not None and view.topic_id != lane.topic_id

    def _all_lanes(self) -> list[Lane]:
        return [*self._former, *self._lanes.values()]

    async def _refresh(self) -> None:
        try:
            await self._directory.refresh()
        except UnavailableError as error:
            self._note(error)

    def _note(self, error: RlmmError) -> None:
        self.last_error, self.errors_count = error.message, self.errors_count + 1
