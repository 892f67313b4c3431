"""Losses that are rarer than decay, and larger: whole segments, objects, a machine with its disks.

`rot` damages what comes; here is damage that is aimed: at every event of some segments, at the log
behind what a snapshot knows, at events that a snapshot knows and nothing else does, at an object
beside the events that named it, at the end of a log, which nothing in the log itself tells, and at
all that a machine had beside the bucket.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from rlmm_daemon.adapters.event_log.embedded import repair
from rlmm_daemon.codec import batches, records, scan
from rlmm_daemon.codec.marker import MARKER_KEY
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentUpdate
from tests.simulation.operators.bucket import World
from tests.simulation.operators.daemon import LOG_DIRECTORY, STATE_DIRECTORY
from tests.simulation.operators.rot import Rot, cut_file, position_of
from tests.simulation.operators.truth import Segment
from tests.simulation.platter import Inode, Platter
from tests.simulation.world import Life

#: How often one strikes before a life.
SHARE: Final = 0.4
#: How often it is the machine that goes.
MOVE_SHARE: Final = 0.15
#: How often the snapshots of a metadata partition go with its events.
SNAPSHOTS_TOO_SHARE: Final = 0.5
#: How often an object goes with the events that named it.
OBJECT_TOO_SHARE: Final = 0.35
#: Of a batch: its records' CRC, which a flipped bit of it always contradicts.
_CRC_AT: Final = 17
_CRC_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class _Batch:
    """One batch of the log where it stands."""

    path: str
    position: int
    size: int
    base_offset: int
    next_offset: int
    leader_epoch: int
    #: The segments that its events name.
    named: frozenset[bytes]


@dataclass(slots=True)
class Calamity:
    """What befell one seed's machine."""

    counts: dict[str, int] = field(default_factory=dict)

    def strike(self, life: Life, world: World, rot: Rot) -> bool:
        """Have something happen before a life; return whether it did."""
        rng, platter = life.rng("calamity"), life.disk.platter
        if rng.random() >= SHARE:
            return False
        what = ""
        if rng.random() < MOVE_SHARE:
            what = self._move(rng, platter, world, rot)
        ways = [self._wipe, self._wipe, self._fall_behind, self._fall_behind, self._hollow]
        for way in rng.sample(ways, len(ways)):
            what = what or way(rng, platter, world)
        self._note(life, what)
        return bool(what)

    def forget(self, life: Life, world: World) -> None:
        """Lose the end of a log that is whole yet, and nothing else."""
        if not world.books.wounded:
            self._note(life, self._forget(life.rng("calamity"), life.disk.platter, world))

    def _note(self, life: Life, what: str) -> None:
        if what:
            kind = f"calamity {what.split(maxsplit=1)[0]}"
            self.counts[kind] = self.counts.get(kind, 0) + 1
            life.loop.note(f"calamity: {what}")

    # The log.

    def _wipe(self, rng: random.Random, platter: Platter, world: World) -> str:
        """Flip a bit in every event of some segments."""
        number = rng.randrange(world.books.partition_count)
        rows = [*_batches(platter, number)]
        rows = rows[:-1]  # what follows tells that it is no write in flight
        present = {name for row in rows for name in row.named}
        chosen = [
            each
            for each in world.books.segments
            if each.promised and each.first.segment_id in present
        ]
        chosen = rng.sample(chosen, min(len(chosen), rng.choice([1, 2, 4])))
        if not chosen:
            return ""
        names = {bytes(each.first.segment_id) for each in chosen}
        flipped = [row for row in rows if row.named & names]
        for row in flipped:
            _flip(platter.names[row.path], row.position + _CRC_AT + rng.randrange(_CRC_BYTES), rng)
        world.books.damaged(number)
        told = f"wipe {len(chosen)} segments, {len(flipped)} batches of {number}"
        if rng.random() < SNAPSHOTS_TOO_SHARE:
            told += _lose_snapshots(platter, number)
        if rng.random() < OBJECT_TOO_SHARE:
            told += _lose_object(rng, world, rng.choice(chosen))
        return told

    def _fall_behind(self, rng: random.Random, platter: Platter, world: World) -> str:
        """Lose what was appended last, also what a snapshot knows of it."""
        number, rows = _known_batches(rng, platter, world)
        if not rows:
            return ""
        gone = rows[rng.randrange(len(rows) // 2 + 1) :]
        names = {name for row in gone for name in row.named}
        for row in gone:
            _flip(platter.names[row.path], row.position + _CRC_AT + rng.randrange(_CRC_BYTES), rng)
        world.books.damaged(number)
        told = f"behind {gone[0].base_offset}: {len(gone)} batches of {number}"
        known = [e for e in world.books.segments if e.promised and e.first.segment_id in names]
        if known and rng.random() < OBJECT_TOO_SHARE:
            told += _lose_object(rng, world, rng.choice(known))
        return told

    def _hollow(self, rng: random.Random, platter: Platter, world: World) -> str:
        """Put empty batches over events that a snapshot knows, as a compaction does."""
        number, rows = _known_batches(rng, platter, world)
        if not rows:
            return ""
        begin = rng.randrange(len(rows))
        gone = {row.base_offset for row in rows[begin : begin + rng.choice([2, 4, 8])]}
        every = [*_batches(platter, number)]
        for path in dict.fromkeys(row.path for row in rows if row.base_offset in gone):
            _empty(platter.names[path], [row for row in every if row.path == path], gone)
        world.books.damaged(number)
        return f"hollow {len(gone)} batches of {number} from {min(gone)}"

    def _forget(self, rng: random.Random, platter: Platter, world: World) -> str:
        """Cut the newest file before a segment's first event, where a position lies beyond."""
        number = rng.randrange(world.books.partition_count)
        begins = dict[bytes, _Batch]()
        newest = ""
        for row in _batches(platter, number):
            newest = row.path
            for name in row.named:
                begins.setdefault(name, row)
        known = position_of(platter, number)
        promised = [e for e in world.books.segments if e.promised]
        rows = [begins.get(bytes(each.first.segment_id)) for each in promised]
        chosen = [row for row in rows if row and row.path == newest and row.base_offset < known]
        if not chosen:
            return ""
        row = rng.choice(chosen)
        cut_file(platter.names[row.path], row.position)
        world.books.damaged(number)
        told = f"forget {row.path} from {row.base_offset}"
        return told + (
            _lose_snapshots(platter, number) if rng.random() < SNAPSHOTS_TOO_SHARE else ""
        )

    # The machine.

    def _move(self, rng: random.Random, platter: Platter, world: World, rot: Rot) -> str:
        """Begin again on an empty machine beside the old bucket, with the log or without."""
        drawn = rng.random()
        if drawn < 0.4:
            whole = MARKER_KEY in world.bucket.objects and not world.books.wounded and not rot.kept
            owed = f"{STATE_DIRECTORY}/owed-marker.json" in platter.names
            if not whole or owed:
                return ""
            _lose_all(platter, STATE_DIRECTORY)
            return "moved, with the log's disk"
        _lose_all(platter, STATE_DIRECTORY)
        _lose_all(platter, LOG_DIRECTORY)
        rot.kept.clear()
        if drawn < 0.7 and MARKER_KEY in world.bucket.objects:
            for number in range(world.books.partition_count):
                world.books.damaged(number)
            return "lost-disks beside a bucket with its marker"
        world.bucket.objects.pop(MARKER_KEY, None)
        rot.marker = None
        world.books.forgotten()
        return "lost-all beside a bucket without its marker"


def _batches(platter: Platter, number: int) -> Iterator[_Batch]:
    """Yield the sound batches of a metadata partition up to the first that is not."""
    home = f"{LOG_DIRECTORY}/{number}/"
    paths = sorted(p for p in platter.names if p.startswith(home) and p.endswith(".log"))
    for path in paths:
        data = bytes(platter.names[path].data)
        walked = scan.walk(data, _base(path))
        split = batches.split(data[: walked.stop])
        for at, batch in zip(walked.found, split, strict=True):
            values = (value for _, value in batches.records_of(batch) if value)
            yield _Batch(
                path=path,
                position=at.position,
                size=at.size,
                base_offset=at.base_offset,
                next_offset=at.next_offset,
                leader_epoch=at.leader_epoch,
                named=frozenset(_named(values)),
            )


def _named(values: Iterable[bytes]) -> Iterator[bytes]:
    for value in values:
        try:
            event = records.decode(value)
        except RlmmError:
            continue
        if isinstance(event, SegmentMetadata | SegmentUpdate):
            yield bytes(event.segment_id)


def _base(path: str) -> int:
    return int(path.rpartition("/")[2].removesuffix(".log"))


def _flip(inode: Inode, at: int, rng: random.Random) -> None:
    bit = 1 << rng.randrange(8)
    inode.data[at] ^= bit
    if at < len(inode.base):
        inode.base[at] = inode.data[at]


def _empty(inode: Inode, rows: Iterable[_Batch], gone: set[int]) -> None:
    data, parts, behind = bytes(inode.data), list[bytes](), 0
    for row in rows:
        behind = row.position + row.size
        content = data[row.position : behind]
        hollow = repair._empty_batch(row.base_offset, row.next_offset, row.leader_epoch)
        parts.append(hollow if row.base_offset in gone else content)
    whole = b"".join(parts) + data[behind:]
    inode.data[:], inode.base[:] = whole, whole
    inode.unsynced.clear()


def _snapshots(platter: Platter, number: int) -> list[str]:
    home = f"{STATE_DIRECTORY}/snapshots/{number}-"
    return [each for each in platter.names if each.startswith(home)]


def _known_batches(rng: random.Random, platter: Platter, world: World) -> tuple[int, list[_Batch]]:
    """Return a metadata partition that has a snapshot, and its batches but the last."""
    numbers = [n for n in range(world.books.partition_count) if _snapshots(platter, n)]
    if not numbers:
        return 0, []
    number = rng.choice(numbers)
    return number, [*_batches(platter, number)][:-1]


def _lose_snapshots(platter: Platter, number: int) -> str:
    for path in _snapshots(platter, number):
        platter.lose(path)
    return " with all snapshots"


def _lose_object(rng: random.Random, world: World, segment: Segment) -> str:
    key = rng.choice([*world.books.keys(segment)])
    world.bucket.objects.pop(key, None)
    segment.maimed = True
    return f" with {key}"


def _lose_all(platter: Platter, directory: str) -> None:
    for path in [each for each in platter.names if each.startswith(f"{directory}/")]:
        platter.lose(path)
    platter.directories -= {d for d in platter.directories if f"{d}/".startswith(f"{directory}/")}
