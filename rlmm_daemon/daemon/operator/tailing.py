"""The metadata topic's records as they come, each with what its apply came to.

What lies before the fold's position is read from the log again, and its outcome is known only as
far as the fold remembers its troubles; what comes after is told by the fold itself.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import ExitStack, aclosing
from typing import Final

from rlmm_daemon.codec.api import TailEvent
from rlmm_daemon.core.fold.fold import TROUBLES_MAX, Fold
from rlmm_daemon.core.fold.outcome import Applied, Deferred, Outcome, Rejected, Repeated, Unreadable
from rlmm_daemon.daemon.following.follow_set import FollowSet
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.domain.errors import NotReady, Overloaded
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import NO_EPOCH, LogMoved

#: Of each metadata partition, if the asker names no offset.
LAST_EVENTS: Final = 10
#: Events that wait for a reader who is slower than the log.
WAITING_MAX: Final = 10_000


async def tail(
    manager: Manager,
    follow_set: FollowSet,
    partitions: Collection[MetadataPartition],
    from_offset: int | None,
    *,
    follow: bool,
) -> AsyncGenerator[TailEvent, None]:
    """Yield the events of followed metadata partitions; for ever if `follow`.

    Raises:
        Overloaded: the reader is too slow; what it would miss is not skipped silently.
        NotReady: the log was cut off, trimmed or replaced while it was read.
    """
    fleet = manager.fleet
    with ExitStack() as kept:
        for partition in partitions:
            kept.enter_context(follow_set.keep(partition))
            if partition not in fleet.followers:
                raise NotReady(f"metadata partition {partition} is not followed any more")
        live = _Live(manager, partitions)
        if follow:
            manager.hooks.every.append(live.applied)
            kept.callback(manager.hooks.every.remove, live.applied)
        behind = {p: fleet.followers[p].fold.position for p in partitions}
        for partition in sorted(partitions):
            fold = fleet.followers[partition].fold
            async with aclosing(_read(manager, fold, from_offset, behind[partition])) as past:
                try:
                    async for event in past:
                        yield event
                except LogMoved as moved:
                    raise NotReady(
                        f"metadata partition {partition} is not the log any more that was read: "
                        f"{str(moved) or 'it lost its tail'}; what came of that: rlmm partitions"
                    ) from moved
        while follow:
            yield await live.next()


class _Live:
    """The events that folds apply from now on, queued for one reader."""

    def __init__(self, manager: Manager, partitions: Collection[MetadataPartition]) -> None:
        self._manager = manager
        self._partitions = partitions
        self._events: asyncio.Queue[TailEvent] = asyncio.Queue(maxsize=WAITING_MAX)
        self._missed = False

    def applied(self, partition: MetadataPartition, outcome: Outcome) -> None:
        """Take one up; the fold stands right behind it."""
        follower = self._manager.fleet.followers.get(partition)
        if follower is None or partition not in self._partitions or self._missed:
            return
        value = None if isinstance(outcome, Unreadable) else outcome.value
        self._missed = self._events.full()
        if not self._missed:
            offset = follower.fold.position - 1
            self._events.put_nowait(TailEvent(partition, offset, value, words(outcome)))

    async def next(self) -> TailEvent:
        """Return the next one.

        Raises:
            Overloaded: the reader missed some.
        """
        if self._missed and self._events.empty():
            raise Overloaded(f"the reader is more than {WAITING_MAX} events behind")
        return await self._events.get()


async def _read(
    manager: Manager, fold: Fold, from_offset: int | None, until: int
) -> AsyncGenerator[TailEvent, None]:
    """Yield what the log holds before `until`."""
    ranges = await manager.log.end_offsets([fold.partition])
    known = ranges.get(fold.partition)
    start = 0 if known is None else known.start
    first = max(start, until - LAST_EVENTS if from_offset is None else from_offset)
    if first >= until:
        return
    async with aclosing(manager.log.follow(fold.partition, first, epoch=NO_EPOCH)) as batches:
        async for batch in batches:
            for offset, value in batch.records:
                if offset < until:
                    yield TailEvent(fold.partition, offset, value, remembered(fold, offset, value))
            if batch.next_offset >= until:
                return


def words(outcome: Outcome) -> str:
    """Return an outcome in the words of `TailEvent.outcome`."""
    match outcome:
        case Applied():
            return "applied"
        case Deferred():
            return "deferred"
        case Repeated():
            return "repeated"
        case Rejected(error=error):
            return f"rejected: {error.wire_name()}"
        case Unreadable(reason=reason):
            return f"unreadable: {reason}"


def remembered(fold: Fold, offset: int, value: bytes | None) -> str:
    """Return what became of a past record: `applied` unless the fold remembers a trouble.

    A fold remembers the last troubles only, and none of those that a snapshot spared it.
    """
    if value is None:
        return "unreadable: tombstone"
    for kind, recent in (
        ("rejected", fold.rejected_recent),
        ("unreadable", fold.unreadable_recent),
    ):
        for trouble in recent:
            if trouble.offset == offset:
                return f"{kind}: {trouble.reason}"
        if len(recent) == TROUBLES_MAX and offset < recent[0].offset:
            return "unknown"
    return "applied"
