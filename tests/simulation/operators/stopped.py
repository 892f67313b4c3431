"""Commands that are typed while the daemon is stopped, over the simulated disk and bucket.

Each works on files alone, and its own code runs. What a command names next is not followed here:
the daemon that starts behind it says what is wrong, and whoever sits before that obeys.
"""

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final
from unittest import mock

from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.offline import answers as files_alone
from rlmm_daemon.offline import log_contents, log_copying, log_restoring
from rlmm_daemon.ports.event_log import LogMissing, LogMoved
from rlmm_daemon.wiring import adapters
from tests.simulation.operators import offline
from tests.simulation.operators.bucket import World
from tests.simulation.operators.daemon import LOG_DIRECTORY, STATE_DIRECTORY, judge_appends
from tests.simulation.operators.rot import Rot
from tests.simulation.platter import Platter
from tests.simulation.world import Life

FORMER_LOG: Final = f"{LOG_DIRECTORY}-former"
SNAPSHOTS: Final = f"{STATE_DIRECTORY}/snapshots"
#: How often a log that is whole is copied or sealed before a life.
TIDY_SHARE: Final = 0.08
#: How often a log that lost something gets back what snapshots know.
RESTORE_SHARE: Final = 0.5


class _Path:
    """What `log restore` needs of `pathlib.Path`, over the simulated disk."""

    def __init__(self, platter: Platter, name: str) -> None:
        self._platter, self._full = platter, name
        self.name = name.rpartition("/")[2]

    def __str__(self) -> str:
        return self._full

    def is_dir(self) -> bool:
        return self._full in self._platter.directories

    def exists(self) -> bool:
        return self.is_dir() or self._full in self._platter.names

    def iterdir(self) -> Iterator["_Path"]:
        begin = f"{self._full}/"
        names = [n for n in self._platter.names if n.startswith(begin)]
        return iter([_Path(self._platter, n) for n in names if "/" not in n.removeprefix(begin)])

    def read_bytes(self) -> bytes:
        return bytes(self._platter.names[self._full].data)


async def _seal(life: Life, _: World) -> Any:
    del life
    return await files_alone._seal(LOG_DIRECTORY)


async def _restore(life: Life, world: World) -> Any:
    """`rlmm log restore --from-snapshots DIR --to DIR --execute`: the log may be gone."""
    platter, event_log_of = life.disk.platter, adapters.event_log_of

    def judged(*given: Any, **named: Any) -> Any:
        log = event_log_of(*given, **named)
        judge_appends(log, world)  # type: ignore[arg-type]  # of the simulation, which is embedded
        return log

    with (
        mock.patch.object(adapters, "event_log_of", judged),
        mock.patch.object(log_restoring, "Path", lambda name: _Path(platter, name)),
        mock.patch.object(log_contents, "Path", lambda *parts: _Path(platter, "/".join(parts))),
    ):
        known = log_restoring.known_to([SNAPSHOTS])
        return await log_restoring._run(offline.config(), known, LOG_DIRECTORY, execute=True)


async def _copy(life: Life, _: World) -> Any:
    """`rlmm log copy` into a directory that takes the former log's place."""
    platter = life.disk.platter
    if not _has_files(platter, FORMER_LOG):
        _rename(platter, LOG_DIRECTORY, FORMER_LOG)
    try:
        answer = await log_copying._run(
            offline.config(), FORMER_LOG, LOG_DIRECTORY, accept_loss=False
        )
    except* (RlmmError, LogMissing, LogMoved):
        _lose(platter, LOG_DIRECTORY)
        _rename(platter, FORMER_LOG, LOG_DIRECTORY)
        raise
    _lose(platter, FORMER_LOG)
    return answer


#: Command -> what it does.
STOPPED: Final[Mapping[str, Callable[[Life, World], Awaitable[Any]]]] = {
    "log seal": _seal,
    "log restore": _restore,
    "log copy": _copy,
}


class Keeper:
    """Whoever sits before the machine between two lives."""

    def __init__(self, counts: dict[str, int]) -> None:
        """`counts`: command -> how often it was typed, and how often it did what it says."""
        self._counts = counts

    async def work(self, life: Life, world: World, rot: Rot) -> None:
        """Type a command, or none."""
        rng, platter = life.rng("stopped"), life.disk.platter
        command = _thought(rng, platter, world, rot)
        if command is None:
            return
        life.loop.note(f"typed: rlmm {command}")
        self._count(f"typed {command}")
        try:
            answer: Any = await STOPPED[command](life, world)
            self._count(f"done {command}")
        except* (RlmmError, LogMissing, LogMoved, OSError) as errors:
            answer = errors
        life.loop.note(f"answered: {answer!r}"[:400])

    def _count(self, what: str) -> None:
        self._counts[what] = self._counts.get(what, 0) + 1


def is_under_way(platter: Platter) -> bool:
    """Return whether a copy of the log was cut short, and is to be asked for again."""
    return _has_files(platter, FORMER_LOG)


def _thought(rng: random.Random, platter: Platter, world: World, rot: Rot) -> str | None:
    drawn = rng.random()
    if is_under_way(platter):
        return "log copy"
    if rot.kept:
        return None  # a disk, or a copy of what names the log, is at hand
    if world.books.wounded and SNAPSHOTS in platter.directories:
        return "log restore" if drawn < RESTORE_SHARE else None
    if not _has_files(platter, LOG_DIRECTORY):
        return None
    return "log copy" if drawn < TIDY_SHARE else "log seal" if drawn < 2 * TIDY_SHARE else None


def _has_files(platter: Platter, directory: str) -> bool:
    return any(name.startswith(f"{directory}/") for name in platter.names)


def _rename(platter: Platter, source: str, target: str) -> None:
    for path in [each for each in platter.names if each.startswith(f"{source}/")]:
        inode = platter.names[path]
        platter.lose(path)
        moved = target + path.removeprefix(source)
        platter.names[moved] = platter.durable[moved] = inode
    below = {d for d in platter.directories if f"{d}/".startswith(f"{source}/")}
    platter.directories -= below
    platter.directories |= {target + each.removeprefix(source) for each in below}


def _lose(platter: Platter, directory: str) -> None:
    for path in [each for each in platter.names if each.startswith(f"{directory}/")]:
        platter.lose(path)
    platter.directories -= {d for d in platter.directories if f"{d}/".startswith(f"{directory}/")}
