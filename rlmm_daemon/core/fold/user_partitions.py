"""The user partitions of one metadata partition: those in use, and those that sleep in a snapshot.

One that sleeps costs a few hundred bytes, however many segments it has: its table is not even
looked at, and events of it are put aside as they came. Asking for it wakes it: the table is
checked, and what was put aside is applied. It sleeps again when the next snapshot is taken up.
"""

import struct
from collections.abc import Callable, Collection, Iterator
from typing import Final
from weakref import WeakMethod

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.codec.sealed_table import SealedTable
from rlmm_daemon.codec.snapshot import Mapped, TableEntry, check_table
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.deferred_free import leave
from rlmm_daemon.domain.errors import CorruptError, Malformed, NotReady
from rlmm_daemon.domain.ids import TopicIdPartition as Partition
from rlmm_daemon.domain.partition_delete import PartitionDeleteState

#: Events put aside for one partition; waking then takes a few milliseconds.
ASIDE_MAX: Final = 256
#: The records that they are about take no more than so many bytes: each leader epoch that a segment
#: spans is one more place to put an event into.
ASIDE_BYTES_MAX: Final = 64 * 1024
#: Tables up to this size are read through where they are touched: that takes 0.1 ms.
TOUCHED_BYTES_MAX: Final = 256 * 1024
_EVENT: Final = struct.Struct("<QI")


class Image:
    """A snapshot file in memory or mapped, and which of its tables were read through."""

    __slots__ = ("_unchecked", "buffer", "damage", "entries", "path")

    def __init__(self, buffer: bytes | Mapped, entries: list[TableEntry], *, checked: bool) -> None:
        self.buffer = buffer
        #: Where it came from, if it is a file's.
        self.path: str | None = None
        self.entries = entries
        #: Set when a table turned out to be damaged: nothing of the fold can be trusted then.
        self.damage: str | None = None
        self._unchecked = set() if checked else set(range(len(entries)))

    def table(self, number: int) -> SealedTable:
        """Return a table, read through if it was not before.

        Raises:
            ChecksumMismatch, Malformed: it is damaged.
        """
        if number in self._unchecked:
            check_table(self.buffer, self.entries[number])
            self._unchecked.discard(number)
        return SealedTable(self.buffer, self.entries[number])

    def unchecked(self) -> list[int]:
        """Return the numbers of the tables that nobody has read through."""
        return sorted(self._unchecked)

    def is_unchecked(self, number: int) -> bool:
        """Whether nobody has read this table through."""
        return number in self._unchecked

    def checked(self, number: int) -> None:
        """Note that somebody has read a table through, and that it was whole."""
        self._unchecked.discard(number)


class Sleeping:
    """A user partition that is as the snapshot has it, but for events put aside."""

    __slots__ = ("_about_bytes", "_aside", "aside_events", "image", "late_writers", "number")

    def __init__(self, image: Image, number: int) -> None:
        self.image = image
        self.number = number
        self._aside: bytearray | None = None
        self.aside_events = 0
        #: Bytes of the records that those are about, by estimate.
        self._about_bytes = 0
        #: Of `PartitionCache`, which no snapshot has.
        self.late_writers: dict[int, int] | None = None

    @property
    def entry(self) -> TableEntry:
        """What the snapshot's directory says of it."""
        return self.image.entries[self.number]

    @property
    def partition(self) -> Partition:
        """Which one it is."""
        return self.entry.user_partition

    @property
    def is_long_unread(self) -> bool:
        """Whether to wake it would read a long file's table through, in one go."""
        image = self.image
        return (
            image.path is not None
            and image.is_unchecked(self.number)
            and self.entry.size > TOUCHED_BYTES_MAX
        )

    @property
    def delete_state(self) -> PartitionDeleteState | None:
        """How far its deletion is; such events are never put aside."""
        state = self.entry.delete_state
        return None if state is None else PartitionDeleteState(state)

    @property
    def is_quiet(self) -> bool:
        """Whether it held nothing but finished segments that are listed, as of the snapshot.

        What is put aside began since: nothing of it hangs yet, and the next snapshot shows it.
        """
        entry = self.entry
        started, _, deleting = entry.segments
        return not (started or deleting or entry.third or entry.held)

    @property
    def segments_by_state(self) -> list[int]:
        """As of the snapshot."""
        return [*self.entry.segments, 0]

    @property
    def bytes_by_state(self) -> list[int]:
        """As of the snapshot."""
        return [*self.entry.segment_bytes, 0]

    @property
    def aside_bytes(self) -> int:
        """What the events put aside take."""
        return 0 if self._aside is None else len(self._aside)

    def has_room(self, value: bytes) -> bool:
        """Whether one more event can be applied in a few milliseconds with those put aside."""
        about = self._about_bytes + self._bytes_about(value)
        return self.aside_events < ASIDE_MAX and about <= ASIDE_BYTES_MAX

    def _bytes_about(self, value: bytes) -> int:
        """Return what the record takes that an event is about: as the table's do, or its own."""
        return max(len(value), self.entry.size // max(1, sum(self.entry.segments)))

    def put_aside(self, offset: int, value: bytes) -> int:
        """Keep an event for later; return how many bytes that takes."""
        self._about_bytes += self._bytes_about(value)
        if self._aside is None:
            self._aside = bytearray()
        self._aside += _EVENT.pack(offset, len(value))
        self._aside += value
        self.aside_events += 1
        return _EVENT.size + len(value)

    def aside(self) -> Iterator[tuple[int, bytes]]:
        """Yield the events put aside, in order."""
        kept, at = bytes(self._aside or b""), 0
        while at < len(kept):
            offset, size = _EVENT.unpack_from(kept, at)
            at += _EVENT.size + size
            yield offset, kept[at - size : at]


class UserPartitions:
    """Caches by user partition; to look at one wakes it, to list or count them does not."""

    def __init__(self, apply_aside: Callable[[PartitionCache, int, bytes], None]) -> None:
        # Weak: a fold in a cycle is freed by the collector alone, which never looks at what
        # `gc.freeze` was told to leave out.
        self._fold_applies = WeakMethod(apply_aside)
        self._all: dict[Partition, PartitionCache | Sleeping] = {}
        #: The same by `PartitionCache.prefix`, as records begin.
        self.by_prefix: dict[bytes, PartitionCache | Sleeping] = {}
        #: What the events put aside take, of all that sleep.
        self.aside_bytes = 0
        #: Called once when a table turns out to be damaged.
        self.on_damage: Callable[[str], None] = lambda _: None

    def __del__(self) -> None:
        leave(self._all)
        leave(self.by_prefix)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._all)

    def __contains__(self, partition: object) -> bool:
        return partition in self._all

    def __getitem__(self, partition: Partition) -> PartitionCache:
        found = self._all[partition]
        return self.wake(found) if isinstance(found, Sleeping) else found

    def get(self, partition: Partition) -> PartitionCache | None:
        """Return a user partition's cache, awake.

        Raises:
            NotReady: its table is damaged; the log will be replayed.
        """
        found = self._all.get(partition)
        return self.wake(found) if isinstance(found, Sleeping) else found

    def newest_highest(self, partition: Partition) -> int | None:
        """Return the highest offset of a user partition's newest epoch that has one.

        What sleeps is woken only if events were put aside, which may have raised it.

        Raises:
            NotReady: its table is damaged; the log will be replayed.
        """
        found = self._all.get(partition)
        if isinstance(found, Sleeping) and not found.aside_events:
            return self._table(found).newest_highest()
        cache = self.get(partition)
        return None if cache is None else cache.epochs.newest_highest()

    def items(self) -> Iterator[tuple[Partition, PartitionCache]]:
        """Yield all, each awake."""
        for partition in list(self._all):
            yield partition, self[partition]

    def values(self) -> Iterator[PartitionCache]:
        """Yield all caches, each awake."""
        return (self[partition] for partition in list(self._all))

    def peek(self, partition: Partition) -> PartitionCache | Sleeping | None:
        """Return a user partition without waking it."""
        return self._all.get(partition)

    def awake(self, partition: Partition) -> PartitionCache | None:
        """Return a user partition's cache if it does not sleep."""
        found = self._all.get(partition)
        return found if isinstance(found, PartitionCache) else None

    def restless(self) -> list[Partition]:
        """Return those that are awake, or in which something is under way."""
        return [
            partition
            for partition, found in self._all.items()
            if not (isinstance(found, Sleeping) and found.is_quiet)
        ]

    def at_rest(self) -> Collection[PartitionCache | Sleeping]:
        """Return all without waking any: to count, and to write them down."""
        return self._all.values()

    def add(self, cache: PartitionCache) -> None:
        """Take up a cache, in place of one that sleeps if there is one."""
        self._all[cache.partition] = cache
        self.by_prefix[cache.prefix] = cache

    def lay(self, sleeping: Sleeping) -> None:
        """Take up one that sleeps."""
        partition = sleeping.partition
        self._all[partition] = sleeping
        self.by_prefix[tails.prefix_of(partition)] = sleeping

    def wake(self, sleeping: Sleeping) -> PartitionCache:
        """Return what sleeps as a cache, with everything applied that was put aside.

        Raises:
            NotReady: its table is damaged; the log will be replayed.
        """
        cache = PartitionCache(sleeping.partition, self._table(sleeping))
        if sleeping.late_writers:
            cache.late_writers = sleeping.late_writers
        self.add(cache)
        self.aside_bytes -= sleeping.aside_bytes
        for offset, value in sleeping.aside():
            self._apply_aside(cache, offset, value)
        return cache

    def _table(self, sleeping: Sleeping) -> SealedTable:
        """Return the table of what sleeps; raises as `wake` says."""
        image = sleeping.image
        try:
            if image.damage is not None:
                raise Malformed(image.damage)
            return image.table(sleeping.number)
        except (CorruptError, Malformed) as error:
            self.damaged(image, error.message)
            raise NotReady(
                f"the snapshot is damaged ({error.message}); the log is replayed",
                state="replaying",
            ) from error

    def _apply_aside(self, cache: PartitionCache, offset: int, value: bytes) -> None:
        apply = self._fold_applies()
        if apply is None:
            raise NotReady("this fold was given up; the log is replayed", state="replaying")
        apply(cache, offset, value)

    def sleep(self, image: Image, number: int) -> Sleeping:
        """Let a user partition sleep in a newer image, on which nothing was applied yet."""
        sleeping = Sleeping(image, number)
        former = self._all.get(sleeping.partition)
        if former is not None and former.late_writers:
            sleeping.late_writers = former.late_writers
        if isinstance(former, Sleeping):
            self.aside_bytes -= former.aside_bytes
        self.lay(sleeping)
        return sleeping

    def put_aside(self, sleeping: Sleeping, offset: int, value: bytes) -> None:
        """Keep an event of one that sleeps for later."""
        self.aside_bytes += sleeping.put_aside(offset, value)

    def damaged(self, image: Image, message: str) -> None:
        """A table of an image is damaged: tell the owner of the fold, once."""
        if image.damage is None:
            image.damage = message
            self.on_damage(message)
