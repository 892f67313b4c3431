"""The storage of all lives: requests that outlive their sender, and each removal judged."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from crc32c import crc32c

from rlmm_daemon.codec.marker import MARKER_KEY
from rlmm_daemon.core.storage.layout import object_key
from rlmm_daemon.domain.errors import RlmmError, StorageUnavailable
from rlmm_daemon.domain.ids import Offset, SegmentId
from rlmm_daemon.ports.storage import ObjectInfo, ObjectKind, Progress, Source, StoredObject
from tests.simulation.clock import SimClock
from tests.simulation.disk import ProcessDead
from tests.simulation.loop import SimLoop
from tests.simulation.operators.truth import LAYOUT, Books, Segment
from tests.simulation.world import Life
from tests.support.memory_storage import MemoryBucket, MemoryStorage

#: The longest that a request in flight outlives its sender.
FLIGHT_SECONDS: Final = 2.0


@dataclass(slots=True)
class World:
    """What all lives share: the bucket, the truth, and requests that nobody waits for any more."""

    books: Books
    bucket: MemoryBucket = field(default_factory=MemoryBucket)
    #: By number, in the order of sending.
    flying: dict[int, Callable[[], None]] = field(default_factory=dict)
    sent: int = 0
    #: When the broker was started last.
    incarnation_ms: int = 0

    def __post_init__(self) -> None:
        self.books.is_whole = self.is_whole
        self.books.is_gone = self.is_gone

    def is_whole(self, segment: Segment) -> bool:
        """Return whether every object of a segment is there, with its own bytes."""
        for key, body in self.books.keys(segment).items():
            stored = self.bucket.objects.get(key)
            if stored is None or stored.body != body:
                return False
        return True

    def is_gone(self, segment: Segment) -> bool:
        """Return whether no object of a segment is there."""
        return not any(key in self.bucket.objects for key in self.books.keys(segment))

    def land(self, rng: random.Random, loop: SimLoop) -> None:
        """A life began: what the former one had sent lands late, or never."""
        for effect in list(self.flying.values()):
            if rng.random() < 0.5:
                loop.call_later(rng.uniform(0.0, FLIGHT_SECONDS), effect)
        self.flying.clear()

    def stray(self, rng: random.Random, life: Life) -> None:
        """Leave objects that no event names, as a broker's death before its first event does."""
        storage = MemoryStorage(self.bucket, clock=SimClock(life.loop, random.Random(0)))
        for _ in range(rng.choice([1, 1, 6])):
            partition = rng.choice(self.books.partitions)
            segment_id = SegmentId(rng.randbytes(16))
            key = object_key(LAYOUT, partition, Offset(0), segment_id, suffix=ObjectKind.LOG.value)
            storage._store(key, b"nobody's")


class JudgedStorage(MemoryStorage):
    """One life's way to the bucket."""

    def __init__(self, world: World, life: Life, *, faults: bool, name: str = "storage") -> None:
        """Of a daemon; commands that open it themselves have another `name`."""
        # The storage's clock is its own: it never jumps.
        super().__init__(world.bucket, clock=SimClock(life.loop, random.Random(0)))
        self._world, self._life = world, life
        self._luck = life.rng(name)
        self._makes_marker = name == "storage"
        self.faults = faults
        #: Whether the nightly job deletes by it.
        self.by_night = False
        self._away_until = 0.0

    async def put_segment(
        self, objects: Sequence[tuple[ObjectKind, str, Source]], *, progress: Progress
    ) -> Sequence[StoredObject]:
        """Store one after another, the `.log` last; a failure leaves what came before it."""
        stored = []
        progress.phase, progress.bytes_total = "upload", sum(s.size for _, _, s in objects)
        for _, key, source in objects:
            body = source.pread(0, source.size)
            await self._reach()
            progress.write_begun = True
            await self._effect(partial(self._put, key, body))
            progress.bytes_done += len(body)
            stored.append(StoredObject(key=key, size=len(body), crc32c=crc32c(body)))
        return stored

    async def delete(self, keys: Collection[str]) -> Mapping[str, RlmmError | None]:
        """Delete some of them, where the storage fails."""
        try:
            await self._reach()
        except StorageUnavailable as error:
            return dict.fromkeys(keys, error)
        outcome: dict[str, RlmmError | None] = {}
        for key in keys:
            failed = self._luck.random() < 0.1 and self.faults
            outcome[key] = StorageUnavailable("not now") if failed else None
        doomed = [key for key, error in outcome.items() if error is None]
        await self._effect(lambda: self._remove(doomed))
        return outcome

    async def put_control(self, key: str, data: bytes, *, if_etag: str | None) -> str:
        """Write a control object; a daemon's first marker is judged."""
        absent = key not in self.bucket.objects
        etag = await super().put_control(key, data, if_etag=if_etag)
        if absent and key == MARKER_KEY and self._makes_marker:
            self._world.books.marker_made()
        return etag

    async def list(self, prefix: str) -> AsyncGenerator[Sequence[ObjectInfo], None]:
        """Yield pages as of some moment within the request."""
        async with aclosing(super().list(prefix)) as pages:
            async for page in pages:
                yield page

    def _put(self, key: str, body: bytes) -> None:
        self._store(key, body)

    def _remove(self, keys: Collection[str]) -> None:
        for key in keys:
            if (stored := self.bucket.objects.get(key)) is not None:
                self._world.books.removed(key, stored.etag, by_night=self.by_night)
                del self.bucket.objects[key]

    async def _reach(self) -> None:
        if self._life.disk.dead:
            raise ProcessDead("a request of a dead process")
        await asyncio.sleep(self._luck.expovariate(100))
        away, seconds = self._luck.random() < 0.005, self._luck.uniform(0.1, 4.0)
        now = self._life.loop.time()
        if self.faults and away:
            self._away_until = now + seconds
        if self.faults and now < self._away_until:
            raise StorageUnavailable("the bucket does not answer")

    async def _effect(self, change: Callable[[], None]) -> None:
        """Let it happen in a while, whatever becomes of whoever waits for it."""
        world, done = self._world, asyncio.get_running_loop().create_future()
        world.sent += 1
        number = world.sent
        world.flying[number] = change

        def happen() -> None:
            if world.flying.pop(number, None) is not None:
                change()
            if not done.done():
                done.set_result(None)

        seconds = min(self._luck.expovariate(50), FLIGHT_SECONDS)
        self._life.loop.call_later(seconds, happen)
        await done
