"""Other daemons' word on the log: how far they had read it, and what they were told to accept."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

import structlog

from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.following.bucket_record import BucketLog, BucketRecord, same_cluster
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.following.known_log import KnownLog
from rlmm_daemon.daemon.following.known_reads import KnownReads
from rlmm_daemon.domain.errors import RlmmError, StorageUnavailable
from rlmm_daemon.domain.ids import MetadataPartition

#: Between two looks for what other daemons were told to accept, while that is of interest.
GAPS_SECONDS: Final = 5.0

logger = structlog.get_logger(__name__)


class OthersWord:
    """What the bucket says of other daemons, taken up at the start and while it is of interest."""

    def __init__(
        self,
        bucket: BucketRecord | None,
        known: KnownLog,
        reads: KnownReads,
        followers: Mapping[MetadataPartition, Follower],
        *,
        wanted: Callable[[], frozenset[MetadataPartition]],
    ) -> None:
        """`followers` and what is `wanted` are those of now, which come and go."""
        self._bucket, self._known, self.reads = bucket, known, reads
        self._followers, self._wanted = followers, wanted
        #: Followed since those were asked: others may have read on while this daemon did not.
        self._unheard: set[MetadataPartition] = set()
        self._newcomer = Broadcast()
        #: The bucket has answered in this life.
        self._is_there = False
        #: It had a marker then: a mount point whose mount is missing says nothing.
        self.has_heard = False
        #: Whose loss some daemon accepted, while what this one had read may be from before.
        self._lost: set[int] = set()
        #: Presence files that could not be read when the bucket was last asked, by partition.
        self.unread: Mapping[int, Sequence[str]] = {}
        #: This daemon's own is among them: what it tells once it can be read is from before.
        self.own_unread = False
        #: Followed since all files could be read: what one that is damaged since said of it then
        #: was held against the log, and what was read further this daemon has read, too. Or since
        #: the loss of whatever any file tells of was accepted.
        self._all_heard: set[MetadataPartition] = set()

    def newcomer(self, partition: MetadataPartition) -> None:
        """It is followed from now on: others are asked for it soon."""
        if self._bucket is not None:
            self._unheard.add(partition)
            self._newcomer.ring()

    def unheard(self, partition: MetadataPartition) -> Sequence[str]:
        """Return the presence files that may tell of it what nobody here has heard."""
        return () if partition in self._all_heard else self.unread.get(partition, ())

    def given_up(self, partition: MetadataPartition) -> None:
        """The loss of whatever anybody had read of it was accepted."""
        self.unread = {n: files for n, files in self.unread.items() if n != partition}
        self._all_heard |= {partition} & self._followers.keys()

    def all_given_up(self) -> None:
        """So it was of the whole log."""
        self.unread = {}
        self._all_heard.update(self._followers)

    def left(self, follower: Follower) -> None:
        """It is not followed any more: what was said of a loss here ends with that."""
        self._all_heard.discard(follower.partition)
        if follower.partition in self._lost:
            self._lost.discard(follower.partition)
            if not follower.position_confirmed:
                self.reads.forget(follower.partition)

    async def check_marker(self) -> None:
        """Hold the open log against the marker, as soon as that can be read."""
        known, identity = self._known, self._known.identity
        assert identity is not None, "the log is open"
        marker = await known.marker()
        self._is_there = True
        if marker is None or not same_cluster(marker, identity) or known.accept_missing:
            return
        self.has_heard = True
        await known.compare(identity, None, marker)
        if marker.topic_id == identity.topic_id:
            self.reads.hear_own(marker.positions)
        await self._take_up_gaps(marker)
        self._hear_others(marker, self._followers.keys())
        self.lost_elsewhere(marker.lost_since)

    def lost_elsewhere(self, numbers: Collection[int | None]) -> None:
        """Let go of how far partitions had been read whose loss some daemon accepted since.

        A follower here holds the log against that. Of what nobody follows here the presence file
        would speak as of news, and who accepted the loss would fail of it again at each start.
        """
        assert self._known.identity is not None, "the log is open"
        every = range(self._known.identity.partition_count)
        self._lost |= {n for n in every if {None, n} & set(numbers)}
        for number in self._lost - self._followers.keys() - self._wanted():
            self._lost.discard(number)
            self.reads.forget(MetadataPartition(number))

    async def heard(self) -> None:
        """Take up how far others had read, as far as the bucket says so now."""
        if self._bucket is not None and self._is_there and self._known.identity is not None:
            with suppress(RlmmError):
                self._hear_others(await self._bucket.log(), ())

    async def accounted(self, partition: MetadataPartition, start: int) -> None:
        """All that was known is found again in a log that starts there, and nobody misses it.

        Raises:
            OSError: the state directory did not take it.
        """
        await self._known.accounted(partition, start)
        self.reads.listed.pop(partition, None)

    async def ask_others(self, partition: MetadataPartition) -> None:
        """Ask the bucket how far others have read of it, before what another broker began is ended.

        Its follower is not ready from here on while the log does not confirm that.

        Raises:
            StorageUnavailable: the bucket does not say.
        """
        if self._bucket is not None:
            self._hear_others(await self._bucket.log(), [partition])
            if files := self.unread.get(partition):
                raise StorageUnavailable(
                    f"how far their daemons had read the event log nobody knows, so nothing that "
                    f"another broker began is ended: can't be read: {', '.join(files)}"
                )

    def _hear_others(self, marker: BucketLog | None, numbers: Collection[int]) -> None:
        """Take up how far other daemons had read, and have these partitions checked for it."""
        assert self._known.identity is not None, "the log is open"
        before, self.unread, own_unread = self.unread, {}, self.own_unread
        self.own_unread = False
        if marker is not None and marker.topic_id == self._known.identity.topic_id:
            if own_unread and not marker.own_unread:
                self.reads.hear_own(marker.positions)
            self.reads.hear_others(marker.others)
            self.unread, self.own_unread = marker.unread, marker.own_unread
        if (before, own_unread) != (self.unread, self.own_unread):
            self._known.changed.ring()
        for follower in list(self._followers.values()):
            partition = follower.partition
            waits = bool(before.get(partition)) and partition not in self._all_heard
            if partition in numbers or waits:
                if not self.unread.get(partition):
                    self._all_heard.add(partition)
                follower.recheck(self.reads.said_of(partition))

    async def keep_learning_gaps(self) -> None:
        """Ask the bucket again, for what other daemons know.

        While a follower lacks offsets, whether one was told to accept that; how far they had read
        of what this daemon begins to follow; and while a presence file can't be read, whether it
        can by now.
        """
        told = ""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(GAPS_SECONDS):
                    await self._newcomer.wait()
            unheard = frozenset(self._unheard)
            lacking = any(f.open_gaps for f in self._followers.values())
            doubts = bool(self.unread) or self.own_unread
            if self._bucket is None or not (unheard or lacking or doubts):
                continue
            try:
                marker = await self._bucket.log()
            except RlmmError as error:
                if told != error.message:  # once, however long it lasts
                    logger.warning("bucket marker not read", error=error.message)
                told = error.message
                continue
            told = ""
            await self._take_up_gaps(marker)
            self._unheard -= unheard
            if unheard or doubts:
                self._hear_others(marker, unheard)

    async def _take_up_gaps(self, marker: BucketLog | None) -> None:
        """Start those over that failed only of what was accepted elsewhere."""
        assert self._known.identity is not None, "the log is open"
        lacking = [f for f in self._followers.values() if f.open_gaps]
        gaps = marker.accepted_gaps if marker else ()
        if self._known.gaps.learn(self._known.identity.topic_id, gaps):
            for follower in lacking:
                if not follower.open_gaps:
                    follower.retry()
            await self._known.gaps.write_or_later(self._known.identity.topic_id)
