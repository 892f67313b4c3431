"""Damage between two lives: flipped bits, cut and missing files of the log and what guards it.

Only what somebody can know of is damaged: a log that is cut where nothing remembers how long it was
is whole as far as anybody can tell. So a tail goes only where the positions file lies behind what
is left, however much was acknowledged beyond, and what remembers (positions, snapshots, the marker)
decays only while the log is whole.
"""

import random
from dataclasses import dataclass, field
from typing import Final

from rlmm_daemon.codec import scan
from rlmm_daemon.codec.marker import MARKER_KEY
from rlmm_daemon.codec.state_files import Positions, from_json
from rlmm_daemon.domain.errors import RlmmError
from tests.simulation.operators.bucket import World
from tests.simulation.operators.daemon import LOG_DIRECTORY, STATE_DIRECTORY
from tests.simulation.platter import Inode, Platter
from tests.simulation.world import Life

#: How often the log, what guards it, or the marker is damaged between two lives.
LOG_SHARE: Final = 0.55
SNAPSHOTS_TOO_SHARE: Final = 0.6
GUARD_SHARE: Final = 0.3
MARKER_SHARE: Final = 0.12
GUARDS: Final = (
    "positions.json",
    "identity.json",
    "accepted.json",
    "announced.json",
    "marker.json",
)


@dataclass(slots=True)
class Rot:
    """The decay of one seed's machine, and what an operator has copies of."""

    counts: dict[str, int] = field(default_factory=dict)
    #: Files that name the log, and the whole of a log that went: by path, as a backup has them.
    kept: dict[str, bytes] = field(default_factory=dict)
    #: The marker as it was before a bit of it flipped.
    marker: bytes | None = None

    def strike(self, life: Life, world: World) -> None:
        """Damage something, or nothing, before a life."""
        rng = life.rng("rot")
        log, guard, marker = rng.random(), rng.random(), rng.random()
        platter = life.disk.platter
        if log < LOG_SHARE:
            self._note(life, self._damage_log(rng, platter, world))
        elif guard < GUARD_SHARE and not world.books.wounded:
            self._note(life, self._damage_guard(rng, platter))
        elif marker < MARKER_SHARE and not world.books.wounded:
            self._note(life, self._damage_marker(rng, world))

    def mend(self, life: Life) -> list[str]:
        """Put back what a backup has; return the paths."""
        platter = life.disk.platter
        missing = [path for path in self.kept if platter.names.get(path) is None]
        wrong = [each for each in self.kept if each not in missing and each.endswith(".json")]
        for path in missing + wrong:
            platter.place(path, self.kept[path])
        self.kept.clear()
        return missing + wrong

    def _note(self, life: Life, what: str) -> None:
        if what:
            kind = f"rot {what.split(maxsplit=1)[0]}"
            self.counts[kind] = self.counts.get(kind, 0) + 1
            life.loop.note(f"rot: {what}")

    # The log.

    def _damage_log(self, rng: random.Random, platter: Platter, world: World) -> str:
        numbers = range(world.books.partition_count)
        files = {n: _segments(platter, n) for n in numbers}
        chosen = rng.choice(numbers)
        kind = rng.random()
        if kind < 0.06:
            return self._lose_log(platter, world)
        if kind < 0.12:
            return self._damage_names(rng, platter)
        ways = [self._flip, self._flip, self._flip, self._cut, self._drop_file]
        done = rng.choice(ways)(rng, platter, chosen, files[chosen])
        if done:
            world.books.damaged(chosen)
            if rng.random() < SNAPSHOTS_TOO_SHARE:
                done += self._lose_snapshots(platter, chosen)
        return done

    def _flip(self, rng: random.Random, platter: Platter, number: int, paths: list[str]) -> str:
        """Flip a bit of a batch that others follow, or that a position lies behind."""
        known = max(position_of(platter, number), _end(platter, paths) - 1)
        rows = [
            (path, batch)
            for path in paths
            for batch in scan.walk(bytes(platter.names[path].data), _base(path)).found
            if batch.next_offset <= known
        ]
        if not rows:
            return ""
        first = rng.randrange(len(rows))
        chosen = rows[first : first + rng.choice([1, 1, 2, 4])]
        for path, batch in chosen:
            _flip(platter.names[path], batch.position + rng.randrange(batch.size), rng)
        return f"flip {chosen[0][0]} from {chosen[0][1].base_offset} to {chosen[-1][1].next_offset}"

    def _cut(self, rng: random.Random, platter: Platter, number: int, paths: list[str]) -> str:
        """Cut the last file, so that a position that was written down lies beyond its end."""
        if not paths:
            return ""
        path, known = paths[-1], position_of(platter, number)
        found = scan.walk(bytes(platter.names[path].data), _base(path)).found
        rows = [batch for batch in found if batch.base_offset < known]
        if not rows:
            return ""
        batch = rng.choice(rows)
        size = batch.position + rng.choice([0, 0, rng.randrange(batch.size)])
        cut_file(platter.names[path], size)
        return f"cut {path} at {batch.base_offset}"

    def _drop_file(
        self, rng: random.Random, platter: Platter, number: int, paths: list[str]
    ) -> str:
        if not paths:
            return ""
        path = rng.choice(paths)
        if path == paths[-1] and _base(path) >= position_of(platter, number):
            return ""
        platter.lose(path)
        return f"drop {path}"

    def _lose_snapshots(self, platter: Platter, number: int) -> str:
        """What the log lost nobody else knows: its own gap, or a position, is all that tells."""
        home = f"{STATE_DIRECTORY}/snapshots/{number}-"
        for path in [each for each in platter.names if each.startswith(home)]:
            platter.lose(path)
        return " with all snapshots"

    def _lose_log(self, platter: Platter, world: World) -> str:
        """The log's disk is not mounted, or is empty: a backup has what was on it."""
        if f"{STATE_DIRECTORY}/identity.json" not in platter.names:
            return ""
        paths = [path for path in platter.names if path.startswith(f"{LOG_DIRECTORY}/")]
        for path in paths:
            self.kept[path] = bytes(platter.names[path].data)
            platter.lose(path)
        for number in range(world.books.partition_count):
            world.books.damaged(number)
        return "unmount the log" if paths else ""

    def _damage_names(self, rng: random.Random, platter: Platter) -> str:
        """Damage what names the log, which a backup has too."""
        path = f"{LOG_DIRECTORY}/{rng.choice(['state.json', 'identity.json'])}"
        inode = platter.names.get(path)
        if inode is None or not inode.data:
            return ""
        content = bytes(inode.data)
        self.kept.setdefault(path, content)
        _spoil(rng, platter, path)
        return f"name {path}"

    # What guards it.

    def _damage_guard(self, rng: random.Random, platter: Platter) -> str:
        names = [f"{STATE_DIRECTORY}/{name}" for name in GUARDS]
        names += [path for path in sorted(platter.names) if path.endswith(".snapshot")]
        there = [path for path in names if path in platter.names]
        if not there:
            return ""
        path = rng.choice(there)
        return f"guard {path} {_spoil(rng, platter, path)}"

    def _damage_marker(self, rng: random.Random, world: World) -> str:
        objects = world.bucket.objects
        stored = objects.get(MARKER_KEY)
        if stored is None:
            return ""
        if rng.random() < 0.5:
            del objects[MARKER_KEY]
            return "marker removed"
        self.marker = stored.body
        content = bytearray(stored.body)
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        objects[MARKER_KEY] = type(stored)(bytes(content), stored.modified_ms)
        return "marker flipped"


def _segments(platter: Platter, number: int) -> list[str]:
    home = f"{LOG_DIRECTORY}/{number}/"
    return sorted(path for path in platter.names if path.startswith(home) and path.endswith(".log"))


def _end(platter: Platter, paths: list[str]) -> int:
    """Return where a metadata partition's log ends."""
    if not paths:
        return 0
    return scan.walk(bytes(platter.names[paths[-1]].data), _base(paths[-1])).next_offset


def _base(path: str) -> int:
    return int(path.rpartition("/")[2].removesuffix(".log"))


def position_of(platter: Platter, number: int) -> int:
    """Return how far the state directory says that a partition was read; 0: it does not."""
    inode = platter.names.get(f"{STATE_DIRECTORY}/positions.json")
    if inode is None:
        return 0
    try:
        found = from_json(bytes(inode.data), Positions, "positions.json").numbered().get(number)
    except RlmmError:
        return 0
    return 0 if found is None else found.next_offset


def _flip(inode: Inode, at: int, rng: random.Random) -> None:
    bit = 1 << rng.randrange(8)
    inode.data[at] ^= bit
    if at < len(inode.base):
        inode.base[at] = inode.data[at]


def cut_file(inode: Inode, size: int) -> None:
    del inode.data[size:]
    del inode.base[size:]
    inode.unsynced.clear()
    inode.allocated = min(inode.allocated, size)


def _spoil(rng: random.Random, platter: Platter, path: str) -> str:
    inode, kind = platter.names[path], rng.randrange(3)
    if kind == 0 or not inode.data:
        platter.lose(path)
        return "lost"
    if kind == 1:
        cut_file(inode, rng.randrange(len(inode.data)))
        return "cut"
    _flip(inode, rng.randrange(len(inode.data)), rng)
    return "flipped"
