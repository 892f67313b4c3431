"""The small objects of segments, whole and in memory: Kafka reads an index for every fetch.

Source: Kafka keeps the same in `RemoteIndexCache`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from cachetools import LRUCache

from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.daemon.base.deleted_segments import DeletedSegments
from rlmm_daemon.daemon.reading.single_flight import SingleFlight, Spawn
from rlmm_daemon.domain.errors import Draining, RlmmError
from rlmm_daemon.domain.ids import SegmentId
from rlmm_daemon.observability.read_metrics import ReadMetrics
from rlmm_daemon.ports.storage import ObjectKind

#: Read from the storage at once; further ones wait for their turn.
LOADS_MAX: Final = 16
#: Loads waiting or running.
FLIGHTS_MAX: Final = 1024
#: How long a load goes on for a caller that has given up: a broker's threads ask again, and an
#: index that takes longer than their patience would never be there.
GOES_ON_SECONDS: Final = 30.0
#: What an entry costs beside its bytes.
ENTRY_BYTES: Final = 256


class IndexKey(NamedTuple):
    """One index of one copy of a segment."""

    segment_id: SegmentId
    #: Tells two copies apart: the object's key and what was recorded of it.
    tag: str
    kind: ObjectKind


class _Load:
    """One index on its way."""

    def __init__(
        self,
        load: Callable[[], Awaitable[bytes]],
        keep: Callable[[bytes], None],
        turn: asyncio.Semaphore,
    ) -> None:
        self.holders = 0
        self.data: bytes | None = None
        self.error: RlmmError | None = None
        self.over = False
        self.bell = Broadcast()
        self._load, self._keep, self._turn = load, keep, turn

    async def run(self) -> None:
        try:
            async with self._turn:
                self.data = await self._load()
        except RlmmError as error:
            self.error = error  # a failed load is told once and never kept
        else:
            # No await between the load and this: a forgotten segment's load was cancelled.
            self._keep(self.data)

    def ended(self) -> None:
        self.over = True
        self.bell.ring()


class IndexCache:
    """Least recently used first out, bounded by bytes; each index is loaded by one at a time."""

    def __init__(
        self,
        bytes_max: int,
        deleted: DeletedSegments,
        *,
        spawn: Spawn,
        metrics: ReadMetrics,
        bugs: Bugs | None = None,
    ) -> None:
        self._deleted, self._metrics = deleted, metrics
        self._entries = _Entries(bytes_max, lambda: self._evicted("size"))
        self._by_segment: dict[SegmentId, set[IndexKey]] = {}
        self._flights: SingleFlight[IndexKey, _Load] = SingleFlight(
            spawn, "read.index", flights_max=FLIGHTS_MAX, bugs=bugs
        )
        self._turn = asyncio.Semaphore(LOADS_MAX)
        deleted.listen(self.forget)

    @property
    def size_bytes(self) -> int:
        """Bytes held, entries' own cost included."""
        return int(self._entries.currsize)

    async def get(self, key: IndexKey, load: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return an index, from memory or by `load`; an error of `load` reaches all who wait.

        Raises:
            SegmentNotFound: the segment's deletion has begun.
            Overloaded: too many loads wait.
        """
        self._deleted.check(key.segment_id)
        found = self._entries.get(key)
        if found is not None:
            self._metrics.lookups.count("index", "hit")
            return found
        shared = self._flights.find(key) is not None
        self._metrics.lookups.count("index", "joined" if shared else "miss")
        hold = self._flights.join(
            key, lambda: _Load(load, lambda data: self._put(key, data), self._turn)
        )
        work = hold.work
        try:
            while not work.over:
                await work.bell.wait()
        finally:
            if work.over:
                hold.release()
            else:  # the caller gave up, and will ask again
                asyncio.get_running_loop().call_later(GOES_ON_SECONDS, hold.release)
        if work.error is not None:
            raise work.error
        self._deleted.check(key.segment_id)
        if work.data is None:
            raise Draining("the load was cancelled")
        return work.data

    def forget(self, segment_id: SegmentId) -> None:
        """Drop a segment's indexes and stop loading them."""
        self._flights.cancel(segment_id)
        for key in list(self._by_segment.get(segment_id, ())):
            self._entries.pop(key, None)
            self._unlist(key)
            self._evicted("deleted")

    def _put(self, key: IndexKey, data: bytes) -> None:
        if len(data) + ENTRY_BYTES > self._entries.maxsize:
            return
        self._entries[key] = data
        self._by_segment.setdefault(key.segment_id, set()).add(key)
        for gone in self._entries.take_evicted():
            self._unlist(gone)
        self._metrics.cached.labels("index").set(self.size_bytes)

    def _unlist(self, key: IndexKey) -> None:
        keys = self._by_segment.get(key.segment_id)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._by_segment[key.segment_id]

    def _evicted(self, cause: str) -> None:
        self._metrics.evictions.labels("index", cause).inc()
        self._metrics.cached.labels("index").set(self.size_bytes)


class _Entries(LRUCache[IndexKey, bytes]):
    """Tells what it evicted."""

    def __init__(self, bytes_max: int, evicted: Callable[[], None]) -> None:
        super().__init__(bytes_max, getsizeof=lambda data: len(data) + ENTRY_BYTES)
        self._told = evicted
        self._gone: list[IndexKey] = []

    def popitem(self) -> tuple[IndexKey, bytes]:
        """Evict the least recently used."""
        key, data = super().popitem()
        self._gone.append(key)
        self._told()
        return key, data

    def take_evicted(self) -> list[IndexKey]:
        """Return what was evicted since the last call."""
        gone, self._gone = self._gone, []
        return gone
