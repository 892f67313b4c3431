"""Past of a storage beside its marker: the state directory's copy of it, and the event log."""

from collections.abc import AsyncGenerator, Awaitable, Iterable
from contextlib import aclosing, suppress
from typing import Final, Protocol

import msgspec
import structlog

from rlmm_daemon.codec import custom_metadata, marker, records
from rlmm_daemon.codec.marker import BucketMarker
from rlmm_daemon.core.disposal.holds import held_whole, joined, with_holds_of
from rlmm_daemon.core.readiness.marker_verdict import LogHistory
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.daemon.base.os_errors import from_os_error, in_words, is_shortage
from rlmm_daemon.daemon.base.state_directory import MARKER, OWED_MARKER, StateDirectory
from rlmm_daemon.domain.errors import Malformed, RlmmError, UnavailableError
from rlmm_daemon.domain.ids import MetadataPartition, SegmentId
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from rlmm_daemon.ports.event_log import NO_EPOCH, EventLog, LogMoved, LogRange, range_of

#: What custom metadata of ours begins with: a record without these bytes names no layout.
_HINT: Final = custom_metadata.ONLY_IF_STARTED[:2]

log = structlog.get_logger(__name__)


class StoragePast(Protocol):
    """What a daemon knows of its storage beside the storage's own marker."""

    async def kept(self) -> BucketMarker | None:
        """Return the marker as this daemon last saw it; None if it never did.

        Raises:
            Malformed: it did, and that can't be read.
            UnavailableError: not now.
        """

    async def keep(self, present: BucketMarker) -> None:
        """Keep a marker that was found in order; what can't be written is told, never raised."""

    async def owed(self) -> BucketMarker | None:
        """Return a marker with what was accepted while there was none, until `paid`.

        Raises:
            Malformed: something was, and it can't be read.
            UnavailableError: not now.
        """

    async def paid(self) -> None:
        """Forget what was owed: it stands in the storage's marker."""

    async def history(self) -> LogHistory:
        """Return what the event log says of stored segments.

        Raises:
            UnavailableError: not now.
        """

    async def named_from(self, number: int) -> int | None:
        """Return a layout of this number or beyond that a live segment names; None: none does.

        Raises:
            UnavailableError: not now.
        """


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """What of this cluster's marker is known beside the storage's own."""

    kept: BucketMarker | None = None
    owed: BucketMarker | None = None
    #: Whether something is owed, be it that nobody can read what.
    owes: bool = False
    #: Why something of it can't be read; None where all can.
    unread: str | None = None

    def put_into(self, marker: BucketMarker, now_ms: int, broker_id: int) -> BucketMarker:
        """Return a marker with what is owed, and with all held where that can't be told."""
        if self.owed is not None:
            marker = with_holds_of(joined(marker, self.owed), self.owed)
        return marker if self.unread is None else held_whole(marker, now_ms, broker_id)


async def remembered(past: StoragePast | None, cluster_id: str) -> Remembered:
    """Return what a daemon remembers: nothing of a storage that was never used.

    Raises:
        UnavailableError: not now.
    """
    if past is None:
        return Remembered()
    kept, kept_unread = await _of_cluster(past.kept(), cluster_id)
    owed, owed_unread = await _of_cluster(past.owed(), cluster_id)
    return Remembered(
        kept=kept,
        owed=owed,
        owes=owed is not None or owed_unread is not None,
        unread=kept_unread or owed_unread,
    )


async def _of_cluster(
    reading: Awaitable[BucketMarker | None], cluster_id: str
) -> tuple[BucketMarker | None, str | None]:
    try:
        found = await reading
    except Malformed as damage:
        return None, damage.message
    return (found if found is not None and found.cluster_id == cluster_id else None), None


class RecordedPast:
    """`StoragePast` of a daemon: its state directory and its open event log."""

    def __init__(self, event_log: EventLog, state: StateDirectory, turns: FairScheduler) -> None:
        self._log, self._state, self._turns = event_log, state, turns
        self._found: LogHistory | None = None

    async def kept(self) -> BucketMarker | None:
        """Return the state directory's copy of the marker."""
        return await _decoded(self._state.marker(), MARKER)

    async def keep(self, present: BucketMarker) -> None:
        """Write the state directory's copy."""
        try:
            await self._state.write_marker(marker.encode(present))
        except OSError as error:
            log.warning("the bucket marker's copy is not written", error=str(error))

    async def owed(self) -> BucketMarker | None:
        """Return what an acceptance left that met no marker, in this life or an earlier one."""
        return await _decoded(self._state.owed_marker(), OWED_MARKER)

    async def paid(self) -> None:
        """Remove the file; one that stays costs a hold that comes back once."""
        try:
            await self._state.write_owed_marker(None)
        except OSError as error:
            log.warning("what the bucket marker was owed is not removed", error=str(error))

    async def history(self) -> LogHistory:
        """Read the log until it names a layout; what was found once stays found.

        An empty log costs one question. Any other is read whole at most once, but for partitions
        that could not be read: an order may have mended them since.
        """
        if self._found is not None and self._found.named:
            return self._found
        found = await self._read(self._found.unread if self._found else self._every())
        self._found = found if found.named or found.unread else None
        return found

    def _every(self) -> Iterable[int]:
        identity = self._log.identity
        assert identity is not None, "the log is open"
        return range(identity.partition_count)

    async def _read(self, numbers: Iterable[int]) -> LogHistory:
        partitions = [MetadataPartition(number) for number in numbers]
        ranges = await self._log.end_offsets(partitions)
        unread: dict[int, str] = {}
        for number in partitions:
            try:
                known = ranges.get(number) or await range_of(self._log, number)
                if known.start > 0:
                    unread[number] = f"its log begins at offset {known.start}"
                elif (layout := await self._first_named(number, known)) is not None:
                    return LogHistory(named=frozenset({layout}))
            except UnavailableError:
                raise
            except (RlmmError, LogMoved) as error:
                unread[number] = str(error) or type(error).__name__
        return LogHistory(unread=unread)

    async def named_from(self, number: int) -> int | None:
        """Read what there is of the log; what can't be read of it says nothing."""
        partitions = [MetadataPartition(each) for each in self._every()]
        ranges = await self._log.end_offsets(partitions)
        for partition in partitions:
            live = dict[SegmentId, int]()
            try:
                known = ranges.get(partition) or await range_of(self._log, partition)
                async with aclosing(self._values(partition, known)) as values:
                    async for value in values:
                        _take(live, value, number)
            except UnavailableError:
                raise
            except (RlmmError, LogMoved) as error:
                log.warning("layouts may be named that can't be read", error=str(error))
            if live:
                return max(live.values())
        return None

    async def _first_named(self, number: MetadataPartition, known: LogRange) -> int | None:
        """Return a layout that an event of this partition names."""
        async with aclosing(self._values(number, known)) as values:
            async for value in values:
                if (layout := named_by(value)) is not None:
                    return layout
        return None

    async def _values(
        self, number: MetadataPartition, known: LogRange
    ) -> AsyncGenerator[bytes | None, None]:
        if known.start >= known.end:
            return
        async with aclosing(self._log.follow(number, known.start, epoch=NO_EPOCH)) as batches:
            async for batch in batches:
                for _, value in batch.records:
                    yield value
                if batch.next_offset >= known.end:
                    return
                await self._turns.wait()


async def _decoded(reading: Awaitable[bytes | None], name: str) -> BucketMarker | None:
    """Return the marker in a file of the state directory, None for no file.

    Raises:
        Malformed: there is one, and it can't be read.
        UnavailableError: not now.
    """
    try:
        data = await reading
        return None if data is None else marker.decode_marker(data)
    except Malformed as error:
        raise Malformed(f"{name} in the state directory: {error.message}") from error
    except OSError as error:
        if is_shortage(error):
            raise from_os_error(error) from error
        raise Malformed(f"{name} in the state directory: {in_words(error)}") from error


def _take(live: dict[SegmentId, int], value: bytes | None, number: int) -> None:
    """Keep which segments name a layout from this number on, until they are deleted."""
    layout = named_by(value)
    if value is None or not (live or layout):
        return
    with suppress(RlmmError):
        event = records.decode(value)
        if isinstance(event, SegmentMetadata | SegmentUpdate):
            if event.state is SegmentState.DELETE_SEGMENT_FINISHED:
                live.pop(event.segment_id, None)
            elif layout is not None and layout >= number:
                live[event.segment_id] = layout


def named_by(value: bytes | None) -> int | None:
    """Return the layout that an event names: 0 if only a newer program can tell, None for none."""
    if value is None or _HINT not in value:
        return None
    try:
        event = records.decode(value)
    except RlmmError:
        return None
    if not isinstance(event, SegmentMetadata | SegmentUpdate):
        return None
    try:
        facts = custom_metadata.decode(event.custom_metadata)
    except Malformed:
        return 0
    return None if facts is None else facts.layout_number
