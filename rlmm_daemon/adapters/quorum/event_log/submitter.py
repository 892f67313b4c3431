"""This daemon's records on their way into a quorum's log, each once on whichever leader it lands.

What is on its way keeps its serial until this replica's own fold says what became of it. A record
that was given up leaves doubt behind: the submitter then takes a new incarnation, whose grant
settles what the older one had sent. What was not accepted by then is sent anew, with new serials.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from rlmm_daemon.adapters.quorum.event_log.folding import Folding
from rlmm_daemon.adapters.quorum.event_log.options import QuorumLogOptions
from rlmm_daemon.adapters.quorum.submitting import Record
from rlmm_daemon.adapters.quorum.to_leader import ToLeader
from rlmm_daemon.codec.kraft.record_key import GRANT, NONCE_BYTES, RecordKey, pack_key
from rlmm_daemon.core.quorum_log.fold import AcceptedEvent, LogFold, Outcome, Passed
from rlmm_daemon.core.quorum_log.fold import Submitter as Submitted
from rlmm_daemon.domain.errors import (
    InvalidArgument,
    OutcomeUnknown,
    Overloaded,
    RlmmError,
    StorageUnavailable,
    UnavailableError,
)
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.event_log import Told

#: How often it is looked whether a delivery timeout has passed, unless that is short.
_LOOK_SECONDS: Final = 1.0


class _Pending(msgspec.Struct, eq=False):
    partition: int
    value: bytes | None
    told: Told
    until: float

    @property
    def size(self) -> int:
        return len(self.value or b"")


class Submitter:
    """All that one daemon has on its way."""

    def __init__(
        self, clock: Clock, luck: random.Random, options: QuorumLogOptions, me: Callable[[], int]
    ) -> None:
        """`me` returns this replica's id, once it is known."""
        self._clock = clock
        self._luck = luck
        self._options = options
        self._me = me
        self._incarnation = 0
        #: Something of the incarnation may or may not be in the log, and nobody waits for it.
        self._in_doubt = True
        #: Somebody waits for the next incarnation.
        self._is_asked = False
        self._renewed = asyncio.Event()
        self._serial = 0
        #: By serial: sent at least once, and not heard of in the fold.
        self._sent: dict[int, _Pending] = {}
        #: Up to this serial a leader has said that they are committed.
        self._acknowledged = 0
        self._queue: deque[_Pending] = deque()
        self._bytes = 0
        self._bell = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        #: Why the last request failed.
        self.why = ""

    def begin(self, partition: int, value: bytes | None, told: Told) -> None:
        """Take a record.

        Raises:
            InvalidArgument: it is too large.
            Overloaded: too much is on its way.
        """
        size = len(value or b"")
        if size > self._options.record_bytes_max:
            raise InvalidArgument(
                f"a record of {size} bytes: {self._options.record_bytes_max} are the most"
            )
        count = len(self._sent) + len(self._queue)
        if (
            count >= self._options.pending_records_max
            or self._bytes + size > self._options.pending_bytes_max
        ):
            raise Overloaded(f"{count} records of {self._bytes} bytes wait for the quorum")
        until = self._clock.monotonic() + self._options.delivery_timeout_seconds
        self._queue.append(_Pending(partition, value, told, until))
        self._bytes += size
        self._idle.clear()
        self._bell.set()

    def hear(self, key: RecordKey, outcome: Outcome) -> None:
        """Know what the fold made of a record."""
        if (key.submitter, key.incarnation) != (self._me(), self._incarnation):
            return
        if isinstance(outcome, AcceptedEvent):
            pending = self._sent.pop(key.serial, None)
            if pending is not None:
                self._tell(pending, outcome.offset)
        elif outcome in (Passed.FENCED, Passed.CONFLICTING):
            self._doubt()  # another one writes as this submitter
        elif outcome is Passed.OUT_OF_ORDER:
            self._acknowledged = min(self._acknowledged, key.serial - 1)
            self._bell.set()

    def passed_over(self, fold: LogFold) -> None:
        """Know that a checkpoint took the place of records that were not heard of.

        It counts what was accepted, and does not say at which offsets.
        """
        known = fold.submitters.get(self._me(), Submitted())
        if known.incarnation == self._incarnation:
            lost = [serial for serial in self._sent if serial <= known.serial]
        else:
            lost = list(self._sent)
        for serial in lost:
            why = "a checkpoint took the place of the log that it may be in"
            self._tell(self._sent.pop(serial), OutcomeUnknown(why))
        if known.incarnation != self._incarnation:
            self._doubt()
        self._acknowledged = min(self._acknowledged, known.serial)
        self._bell.set()

    async def renew(self) -> None:
        """Take the next incarnation: what an older one sent is in the log by then, or never."""
        self._renewed.clear()
        self._is_asked = True
        self._doubt()
        await self._renewed.wait()

    async def finish(self) -> None:
        """Wait until all that was taken was told of."""
        await self._idle.wait()

    def end(self) -> None:
        """Tell of all that is left: nobody sends it any more."""
        for each in self._sent.values():
            self._tell(each, OutcomeUnknown(f"the event log closed before: {self.why}"))
        for each in self._queue:
            self._tell(each, StorageUnavailable(f"the event log closed before: {self.why}"))
        self._sent.clear()
        self._queue.clear()
        self._idle.set()

    async def expire(self) -> None:
        """Give up what takes longer than its time, until cancelled."""
        while True:
            await asyncio.sleep(min(_LOOK_SECONDS, self._options.delivery_timeout_seconds / 10))
            now = self._clock.monotonic()
            why = self.why or "no leader of the quorum took it"
            late = [serial for serial, each in self._sent.items() if each.until <= now]
            for serial in late:
                self._tell(self._sent.pop(serial), OutcomeUnknown(f"not known in time: {why}"))
            if late:
                self._doubt()
            while self._queue and self._queue[0].until <= now:
                self._tell(self._queue.popleft(), StorageUnavailable(f"not taken in time: {why}"))

    async def run(self, leader: ToLeader, folding: Folding) -> None:
        """Send what there is, until cancelled; a new one may go on where this was cancelled."""
        self._acknowledged = 0
        self._bell.set()
        while True:
            await self._bell.wait()
            try:
                if self._in_doubt and (
                    self._queue or self._sent or self._incarnation or self._is_asked
                ):
                    await self._renew(leader, folding)
                await self._send(leader)
            except UnavailableError as error:
                self.why = error.message
                await asyncio.sleep(self._options.retry_seconds)

    async def _send(self, leader: ToLeader) -> None:
        records, last = self._batch()
        if not records:
            self._bell.clear()
            return
        await leader.submit(records)
        self.why = ""
        self._acknowledged = max(self._acknowledged, last)

    def _batch(self) -> tuple[list[Record], int]:
        """Return what is to be sent next, in the order of serials, and the last one's."""
        records: list[Record] = []
        size, last = 0, self._acknowledged
        for serial, each in self._sent.items():
            if serial <= self._acknowledged:
                continue
            if records and size + each.size > self._options.batch_bytes_max:
                return records, last
            records.append(self._record(serial, each))
            size, last = size + each.size, serial
        while self._queue and not (
            records and size + self._queue[0].size > self._options.batch_bytes_max
        ):
            each = self._queue.popleft()
            self._serial = last = self._serial + 1
            self._sent[last] = each
            records.append(self._record(last, each))
            size += each.size
        return records, last

    def _record(self, serial: int, pending: _Pending) -> Record:
        key = RecordKey(pending.partition, self._me(), self._incarnation, serial)
        return pack_key(key), pending.value

    async def _renew(self, leader: ToLeader, folding: Folding) -> None:
        """Take the next incarnation, and with it know what became of all that was sent.

        Raises:
            UnavailableError: not now. What was asked for may be granted yet, and is passed over.
        """
        me, nonce, asked = self._me(), self._luck.randbytes(NONCE_BYTES), 0
        while True:
            known = folding.fold.submitters.get(me, Submitted())
            if (known.incarnation, known.nonce) == (asked, nonce):
                break
            asked = known.incarnation + 1
            record = pack_key(RecordKey(GRANT, me, asked, 0)), nonce
            base = await leader.submit([record])
            await folding.reached(base + 1, timeout_seconds=self._options.reach_seconds)
        self._queue.extendleft(reversed(self._sent.values()))
        self._sent.clear()
        self._incarnation, self._serial, self._acknowledged = known.incarnation, 0, 0
        self._in_doubt = self._is_asked = False
        self._renewed.set()

    def _doubt(self) -> None:
        self._in_doubt = True
        self._bell.set()

    def _tell(self, pending: _Pending, outcome: int | RlmmError) -> None:
        self._bytes -= pending.size
        if not self._sent and not self._queue:
            self._idle.set()
        pending.told(outcome)
