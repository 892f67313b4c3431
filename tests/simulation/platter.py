"""What outlives a process: file contents and names, each as seen now and as durable.

A kill keeps what is seen. A power loss keeps what is durable, and of the rest whatever the drawn
mode lets through: POSIX promises nothing about it.
"""

import enum
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

#: What a disk writes as one: a torn write ends at a multiple of this in its file.
SECTOR_BYTES: Final = 512


class Tear(enum.Enum):
    """What a power loss lets through of the writes and truncates that were not synced."""

    NONE = "none"
    #: The first so many, the last one of them torn at a sector.
    PREFIX = "prefix"
    #: Each sector of each write by coin: reordered, with holes.
    ANY = "any"
    #: The size landed, the bytes did not.
    ZERO_TAIL = "zero_tail"


class NameLoss(enum.Enum):
    """What a power loss lets through of the creations, renames and removals not synced."""

    #: The first so many of all directories together, as a journalling file system does.
    JOURNAL = "journal"
    #: Each by coin; POSIX allows it.
    ANY = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    seq: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    seq: int
    size: int


Change = Write | Truncate


def apply_change(data: bytearray, change: Change) -> None:
    """Do to `data` what the change says; what lies between is zeros."""
    if isinstance(change, Truncate):
        del data[change.size :]
        data.extend(bytes(change.size - len(data)))
        return
    data.extend(bytes(max(0, change.offset - len(data))))
    data[change.offset : change.offset + len(change.data)] = change.data


def sectors(write: Write) -> list[Write]:
    """Return the write cut at the sector boundaries of its file."""
    pieces, position, end = [], write.offset, write.offset + len(write.data)
    while position < end:
        stop = min(end, (position // SECTOR_BYTES + 1) * SECTOR_BYTES)
        piece = write.data[position - write.offset : stop - write.offset]
        pieces.append(Write(seq=write.seq, offset=position, data=piece))
        position = stop
    return pieces


@dataclass(slots=True, eq=False)
class Inode:
    """One file's contents. `data` is what reads see, `base` what is durable."""

    data: bytearray = field(default_factory=bytearray)
    base: bytearray = field(default_factory=bytearray)
    #: In order; applied to `base` by a sync, or in part by a power loss.
    unsynced: list[Change] = field(default_factory=list)
    #: Bytes before this have blocks: writing there needs no space.
    allocated: int = 0
    seq: int = 0

    def write(self, offset: int, data: bytes) -> None:
        if not data:
            return
        self.seq += 1
        self._change(Write(seq=self.seq, offset=offset, data=data))
        self.allocated = max(self.allocated, offset + len(data))

    def truncate(self, size: int) -> None:
        self.seq += 1
        self._change(Truncate(seq=self.seq, size=size))
        self.allocated = min(self.allocated, size)

    def _change(self, change: Change) -> None:
        self.unsynced.append(change)
        apply_change(self.data, change)

    def sync(self, upto: int) -> None:
        """Make durable what was changed up to sequence number `upto`, and nothing later."""
        self._leave_unsynced(upto, landed=lambda _: True)

    def fail_sync(self, upto: int, rng: random.Random, *, evict: bool) -> None:
        """Mark all pages clean though only some landed: the next sync succeeds without them.

        With `evict` the cache forgets those pages at once, so that reads see the disk's truth;
        without, reads see what was written until something else drops the cache.
        """
        self._leave_unsynced(upto, landed=lambda _: rng.random() < 0.5)
        if evict:
            self.evict()

    def _leave_unsynced(self, upto: int, *, landed: Callable[[Change], bool]) -> None:
        for change in self.unsynced:
            if change.seq <= upto and landed(change):
                apply_change(self.base, change)
        self.unsynced = [change for change in self.unsynced if change.seq > upto]

    def evict(self) -> None:
        """Drop clean pages: they are read again as the disk has them. The size stays."""
        size = len(self.data)
        fresh = bytearray(self.base)
        for change in self.unsynced:
            apply_change(fresh, change)
        apply_change(fresh, Truncate(seq=0, size=size))
        self.data = fresh

    def lose_power(self, tear: Tear, rng: random.Random) -> None:
        for change in self._survivors(tear, rng):
            apply_change(self.base, change)
        self.unsynced = []
        self.data = bytearray(self.base)
        self.allocated = len(self.data)

    def _survivors(self, tear: Tear, rng: random.Random) -> list[Change]:
        whole = list(self.unsynced)
        if tear is Tear.NONE or not whole:
            return []
        if tear is Tear.PREFIX:
            kept = rng.randint(0, len(whole))
            return whole[:kept] + _torn(whole[kept:], rng)
        if tear is Tear.ANY:
            pieces = [p for c in whole for p in (sectors(c) if isinstance(c, Write) else [c])]
            return [piece for piece in pieces if rng.random() < 0.5]
        return [Truncate(seq=0, size=len(self.data))]


def _torn(rest: list[Change], rng: random.Random) -> list[Change]:
    if not rest or isinstance(rest[0], Truncate):
        return []
    pieces = sectors(rest[0])
    return list(pieces[: rng.randrange(len(pieces))])


@dataclass(frozen=True, slots=True, kw_only=True)
class NameChange:
    """One atomic step in one directory; a rename removes one name and adds another."""

    seq: int
    directory: str
    removed: str | None = None
    added: tuple[str, Inode] | None = None

    def apply(self, names: dict[str, Inode]) -> None:
        if self.removed is not None:
            names.pop(self.removed, None)
        if self.added is not None:
            names[self.added[0]] = self.added[1]


class Platter:
    """The file system of one machine. Paths are absolute; directories are durable at once."""

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.durable: dict[str, Inode] = {}
        self.unsynced: list[NameChange] = []
        self.directories: set[str] = {"/"}
        #: Path -> whoever holds it, as long as that process lives.
        self.locks: dict[str, object] = {}
        self.name_seq = 0

    def change(
        self,
        directory: str,
        *,
        removed: str | None = None,
        added: tuple[str, Inode] | None = None,
    ) -> None:
        self.name_seq += 1
        step = NameChange(seq=self.name_seq, directory=directory, removed=removed, added=added)
        self.unsynced.append(step)
        step.apply(self.names)

    def place(self, path: str, content: bytes) -> None:
        """Have a file there, durable, as if it had always been: for whoever is no process."""
        self.names[path] = self.durable[path] = Inode(
            data=bytearray(content), base=bytearray(content), allocated=len(content)
        )

    def lose(self, path: str) -> None:
        """Have a file not be there any more, durably."""
        self.names.pop(path, None)
        self.durable.pop(path, None)
        self.unsynced = [
            step
            for step in self.unsynced
            if path != step.removed and (step.added is None or step.added[0] != path)
        ]

    def sync_directory(self, directory: str, upto: int) -> None:
        """Make the name changes of one directory durable, up to sequence number `upto`."""
        rest = []
        for step in self.unsynced:
            if step.directory == directory and step.seq <= upto:
                step.apply(self.durable)
            else:
                rest.append(step)
        self.unsynced = rest

    def kill(self, rng: random.Random, *, evict: bool) -> str:
        """End the process: the page cache stays, its clean pages perhaps not (`evict`)."""
        self.locks.clear()
        if evict:
            for path in sorted(self.names):
                if rng.random() < 0.5:
                    self.names[path].evict()
        return "kill"

    def lose_power(self, rng: random.Random, *, tear: Tear, names: NameLoss) -> str:
        """End the process and the machine; return what was lost, for the trace."""
        self.locks.clear()
        lost = _drop_names(self.unsynced, names, rng)
        for step in self.unsynced:
            if step not in lost:
                step.apply(self.durable)
        text = [f"{step.removed or ''}->{step.added[0] if step.added else ''}" for step in lost]
        self.unsynced = []
        self.names = dict(self.durable)
        for path in sorted(self.names):
            inode = self.names[path]
            if inode.unsynced:
                text.append(f"{path}: {len(inode.unsynced)} unsynced")
            inode.lose_power(tear, rng)
        return f"power loss, tear {tear.value}: " + ("; ".join(text) or "nothing unsynced")

    def fingerprint(self) -> int:
        """Return a number for all names and contents."""
        crc = 0
        for path in sorted(self.names):
            crc = zlib.crc32(bytes(self.names[path].data), zlib.crc32(path.encode(), crc))
        return crc


def _drop_names(steps: list[NameChange], mode: NameLoss, rng: random.Random) -> list[NameChange]:
    if mode is NameLoss.JOURNAL:
        return steps[rng.randint(0, len(steps)) :]
    return [step for step in steps if rng.random() < 0.5]
