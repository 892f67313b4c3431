"""Every command that changes something, typed at one failure of a real daemon, and judged.

A failure is made once; each cell begins with a copy of the directories that it left behind.
"""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

import click
import msgspec

from rlmm_daemon.cli import main
from rlmm_daemon.cli.group import Exit
from rlmm_daemon.codec import marker
from rlmm_daemon.domain.ids import SegmentId, uuid_text
from rlmm_daemon.domain.segment import SegmentState
from tests.support.brisk import brisk
from tests.support.failures import Failure
from tests.support.fork_server import ForkServer
from tests.support.recovery_walk import (
    Now,
    Walk,
    configuration,
    flat,
    parsed,
    said,
)
from tests.support.stocked_daemon import Stocked, eventually, make

_FINISHED: Final = SegmentState.COPY_SEGMENT_FINISHED
#: No failure at all, which recovery commands may meet just as well.
NOTHING: Final = Failure(name="nothing has failed", cause=None, make=lambda _: None)
#: As long as a daemon takes to notice what changed beside it, and some more.
_SHOWS_SECONDS: Final = 3.0
#: What a command may take; where the log is not open a daemon would wait for it.
_TIMEOUT_SECONDS: Final = 20
_SHORT_SECONDS: Final = 1
_WORDS_MAX: Final = 110
#: Causes for which a daemon opens its log again and again.
_LOOKED_FOR: Final = frozenset({"log_missing", "log_unnamed", "newer_log"})
#: Causes for which a command waits, in case they pass.
_WAITED_FOR: Final = frozenset({"marker_unread", "log_not_open"})
#: What no command that an operator is sent to may do while history is uncertain.
_DELETIONS: Final = ("rlmm delete", "rlmm purge", "rlmm partition end-hold")


#: Orders after which a daemon is another, although no file is: it read anew, or has looked.
_REMEMBERED: Final = ("partition retry", "partition rebuild", "log repair", "log recover")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A command that changes something, as it is typed; capitals are filled in."""

    words: str
    #: It only says what it would do.
    dry: bool = False
    #: It gives up what is missing.
    accepts: bool = False
    #: It deletes what an operator named.
    deletes: bool = False

    @property
    def shows_seconds(self) -> float:
        """How long it may take to show: what is done beside a daemon is noticed after a while."""
        return _SHOWS_SECONDS if "FILE" in self.words and not self.dry else 0.0

    @property
    def leaves_alone(self) -> bool:
        """Whether nothing of it stays in the daemon's memory alone, where it changes no file."""
        return not self.words.startswith(_REMEMBERED)

    @property
    def command(self) -> str:
        """The command without its arguments and options."""
        return " ".join(takewhile(re.compile(r"[a-z][a-z-]*").fullmatch, self.words.split()))


COLUMNS: Final[Sequence[Column]] = (
    Column(words="partition retry N"),
    Column(words="partition rebuild N"),
    Column(words="partition accept-loss N --yes", accepts=True),
    Column(words="partition accept-loss N --without-looking --yes", accepts=True),
    Column(words="partition accept-loss --all --yes", accepts=True),
    Column(words="partition accept-loss --all --without-looking --yes", accepts=True),
    Column(words="partition end-hold N", dry=True),
    Column(words="partition end-hold N --execute"),
    Column(words="partition end-hold --all --execute"),
    Column(words="log repair N"),
    Column(words="log repair"),
    Column(words="log recover N", dry=True),
    Column(words="log recover N --execute"),
    Column(words="log restore --config FILE --from-snapshots SNAPSHOTS --to LOG", dry=True),
    Column(words="log restore --config FILE --from-snapshots SNAPSHOTS --to LOG --execute"),
    Column(words="log seal LOG"),
    Column(words="log name --config FILE", dry=True),
    Column(words="log name --config FILE --execute"),
    Column(words="storage rebuild-marker --config FILE", dry=True),
    Column(words="storage rebuild-marker --config FILE --execute"),
    Column(words="snapshot now N"),
    Column(
        words="copy TOPIC_ID orders-0 --dir DIR --start-offset A --end-offset B --epochs EPOCHS"
    ),
    Column(words="delete orders-0 SEGMENT --yes", deletes=True),
    Column(words="purge TOPIC_ID", dry=True),
    Column(words="purge TOPIC_ID --execute --yes", deletes=True),
    Column(words="purge TOPIC_ID --execute --existing --yes", deletes=True),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """What came of a command."""

    #: "refused", where it did nothing but say why, else its exit code.
    came: str
    #: What `rlmm explain` calls the state afterwards.
    after: str
    #: Segments that are listed of those that were acknowledged, in partitions that serve.
    listed: str
    #: How what it said begins.
    words: str

    def line(self) -> str:
        """Return the cell as it stands in the golden table."""
        return f"{self.came}, {self.after}, {self.listed}: {self.words}"

    @classmethod
    def of(cls, line: str) -> "Cell":
        """Return the cell that stands in a line of the golden table."""
        head, words = line.split(": ", 1)
        came, after, listed = head.split(", ")
        return cls(came, after, listed, words)


@dataclass(slots=True)
class World:
    """A failure with a daemon that has it, or can have it again."""

    failure: Failure
    it: Stocked
    config: Path
    #: The objects of each acknowledged segment, as the failure left them.
    kept: dict[SegmentId, frozenset[str]]
    hands: Mapping[str, Callable[[], object]]
    copy: Path
    #: The daemon of the last cell is as it was before.
    clean: bool = False

    @classmethod
    def made(cls, failure: Failure, directory: Path, forks: ForkServer) -> "World":
        """Make the failure, and keep a copy of what it left behind."""
        inside = directory / "d"
        inside.mkdir()
        config = configuration(inside)
        it = make(inside, brisk(forks), config=config)
        it.daemon.start()
        try:
            it.stock()
            walk = Walk(it, config)
            walk.remember()
            hands = failure.make(it) or {}
            walk.remember()
            walk.comes(failure.cause, failure.says)
        finally:
            it.daemon.kill()
        world = cls(failure, it, config, walk.kept, hands, directory / "copy")
        _copy(inside, world.copy)
        _say_that_it_ended(world.copy / it.daemon.remote.relative_to(inside))
        return world

    def begin(self) -> Walk:
        """Have a daemon that has just this failure; return who looks at it."""
        if not self.clean:
            self.it.daemon.kill()
            shutil.rmtree(self.it.daemon.directory)
            _copy(self.copy, self.it.daemon.directory)
            held = self.it.holds
            self.hands = self.failure.again(self.it) or self.hands
            if self.failure.cause == "other_daemon":  # what the daemon writes then is done
                eventually(lambda: self.it.holds > held)
        walk = Walk(self.it, self.config, hands=self.hands, cannot=self.failure.cannot)
        walk.kept = dict(self.kept)
        walk.comes(self.failure.cause, self.failure.says)
        self.clean = False
        return walk

    def filled_in(self, words: str) -> list[str]:
        """Return a column's words as they are typed here."""
        it = self.it
        segment = it.next(0)
        places = {
            "N": str(it.number(0)),
            "FILE": str(self.config),
            "SNAPSHOTS": str(it.state_dir / "snapshots"),
            "LOG": str(it.log_dir),
            "TOPIC_ID": uuid_text(it.orders[0].topic_id),
            "SEGMENT": uuid_text(it.acknowledged[0]),
            "DIR": str(Path(segment.stem).parent),
            "A": str(segment.metadata.start_offset),
            "B": str(segment.metadata.end_offset),
            "EPOCHS": ",".join(
                f"{epoch}:{offset}"
                for epoch, offset in segment.metadata.segment_leader_epochs.items()
            ),
        }
        return [re.sub(r"\b[A-Z_]+\b", lambda m: places.get(m[0], m[0]), w) for w in words.split()]


def judged(world: World, column: Column, expected: Cell | None) -> Cell:
    """Type a command at a failure, hold what must hold whatever comes, and return what came.

    It is waited for what is `expected`; where nobody knows, as long as that may take.
    """
    return _typed(world, column, expected, world.begin())


def _typed(world: World, column: Column, expected: Cell | None, walk: Walk) -> Cell:
    it = world.it
    before, files = walk.now(), fingerprint(it.daemon.directory)
    words = world.filled_in(column.words)
    if "--timeout" in _options(words):
        seconds = _SHORT_SECONDS if before.cause in _WAITED_FOR else _TIMEOUT_SECONDS
        words += ["--timeout", str(seconds)]
    code, printed = _said(words, world, before)
    assert code in (Exit.CLEAN, Exit.TROUBLE, Exit.CONFIG), (
        f"rlmm {' '.join(words)}: exit code {code}\n{printed}"
    )
    refused = any(line.startswith("rlmm: ") for line in printed.splitlines())
    if column.dry or refused:
        changed = _difference(files, fingerprint(it.daemon.directory))
        assert not changed, f"{words} changed {changed}: {printed}"
    after = None if expected is None else expected.after.removeprefix("ready")
    settled = walk.settles(before, after, column.shows_seconds)
    if expected is not None and (settled.cause or "ready") == expected.after:
        # A purge goes on when its command has ended.
        eventually(lambda: _listed(world, column), lambda listed: listed == expected.listed)
    cell = Cell(
        came="refused" if refused else f"exit {code}",
        after=settled.cause or "ready",
        listed=_listed(world, column),
        words=_words(world, printed),
    )
    _hold(world, column)
    if before.cause is not None and settled.cause is None:
        _stays_ended(world, column, walk, cell)
    untouched = column.leaves_alone and not _difference(files, fingerprint(it.daemon.directory))
    world.clean = (refused or untouched) and settled.cause == before.cause
    return cell


def _said(words: Sequence[str], world: World, before: Now) -> tuple[int, str]:
    """Type a command, again while a daemon has the log for as long as it takes to look at it."""
    until = time.monotonic() + _SHOWS_SECONDS
    while True:
        code, printed = said(words, world.it, world.config)
        looks = before.cause in _LOOKED_FOR and "another process has the event log" in printed
        if not looks or time.monotonic() > until:
            return code, printed


def _stays_ended(world: World, column: Column, walk: Walk, cell: Cell) -> None:
    """Hold that a failure that was ended is ended for the next daemon, too."""
    world.it.daemon.kill()
    world.it.start()
    walk.comes(None)
    eventually(lambda: _listed(world, column), lambda listed: listed == cell.listed)


def walked_on(world: World, column: Column, cell: Cell) -> int:
    """Type a command at a failure, then what is named next; return what is listed in the end."""
    walk = world.begin()
    _typed(world, column, cell, walk)
    world.clean = False
    walk.remember()
    walk.kept = {each: walk.kept[each] | kept for each, kept in world.kept.items()}
    for line in walk.go(cell.after, ""):
        if ended := re.match(r"ready: (\d+) of", line):
            return int(ended[1])
    raise AssertionError("a walk that ends says how")


def _hold(world: World, column: Column) -> None:
    """Hold what no command may do, wherever it is typed."""
    it = world.it
    # By name: where the storage is away, its objects lie elsewhere.
    there = {at.name for at in _files(it.daemon.directory)}
    gone = {Path(each).name for objects in world.kept.values() for each in objects} - there
    by_order = column.deletes and world.failure.cause is None
    assert not gone or by_order, f"{column.words} removed {sorted(gone)}"
    for answer in (it.explain(0), it.explain(1)):
        named = [answer["next_command"], *(each["next_command"] for each in answer["also"])]
        wrong = [each for each in named if each.startswith(_DELETIONS)]
        assert not wrong, f"after {column.words}: {wrong}"
    text = it.daemon.output.read_text(errors="replace")
    assert "Traceback" not in text, it.daemon.last_words()
    assert "internal_error" not in text, it.daemon.last_words()


def _listed(world: World, column: Column) -> str:
    """Hold that a partition that serves lists all that was acknowledged, unless it was given up."""
    it, shown = world.it, list[str]()
    for partition in (0, 1):
        of_the_second = {each.metadata.segment_id for each in it.copied(1)}
        wanted = (
            world.kept.keys() & of_the_second if partition else world.kept.keys() - of_the_second
        )
        if it.explain(partition)["verdict"] != "ready":
            shown.append("-")
            continue
        listed = {i for i, each in it.listed(partition).items() if each.state is _FINISHED}
        missing = wanted - listed
        allowed = column.accepts or column.deletes
        assert not missing or allowed, f"{column.words} serves without {missing}"
        shown.append(f"{len(wanted - missing)}/{len(wanted)}")
    return " ".join(shown)


def _options(words: Sequence[str]) -> set[str]:
    command = parsed(words)[0]
    return {
        name
        for option in command.params
        if isinstance(option, click.Option)
        for name in option.opts
    }


# Files.

#: What a daemon writes by itself at any moment, or what says nothing.
_OWN: Final = re.compile(
    r"(^|/)(lock|[a-z-]+\.lock|(locks|attempts)/.*|daemons/.*|announced\.json|positions\.json|state/marker\.json|.*\.tmp|.*\.sock|daemon\.log)$"
)


def _say_that_it_ended(remote: Path) -> None:
    """A copy holds another lock, so its daemon would wait for the one that was killed to show."""
    presence = remote / marker.presence_key(1)
    if presence.exists():
        last = marker.decode_presence(presence.read_bytes())
        presence.write_bytes(marker.encode(msgspec.structs.replace(last, ended=True)))


def _copy(source: Path, target: Path) -> None:
    def copy(file: str, to: str) -> None:
        if Path(file).is_fifo():
            os.mkfifo(to)
        else:
            shutil.copy2(file, to)

    shutil.copytree(source, target, symlinks=True, ignore=_sockets, copy_function=copy)


def _sockets(directory: str, names: list[str]) -> list[str]:
    return [name for name in names if Path(directory, name).is_socket()]


def fingerprint(directory: Path) -> dict[str, str]:
    """Return what each file holds, and of positions how far they reach."""
    found = dict[str, str]()
    for at in _files(directory):
        name = str(at.relative_to(directory))
        if _OWN.search(name) is None:
            with suppress(FileNotFoundError):
                found[name] = (
                    "fifo" if at.is_fifo() else hashlib.sha256(at.read_bytes()).hexdigest()
                )
    return found


def _files(directory: Path) -> Iterator[Path]:
    for at, _, names in os.walk(directory):
        if "kafka-logs" not in at:
            yield from (Path(at, name) for name in names if Path(at, name).is_file())


def _difference(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )


# Words.

#: What whoever looked last says of a marker that is gone: who opened the bucket, or an order.
_GONE: Final = re.compile(r"there is none, and the event log has segments under layout N; is")
#: The names of a table's columns.
_HEAD: Final = re.compile(r"(partition|layout) +[a-z ]+")


def _words(world: World, printed: str) -> str:
    """Return how what was said begins, without this machine's names and numbers."""
    lines = printed.removeprefix("rlmm: ").splitlines()
    text = flat("\n".join(line for line in lines if not _HEAD.fullmatch(line)))
    text = text.replace(str(world.it.daemon.directory), "DIR")
    text = re.sub(r"DIR\S*?(?=[,;:.)]*(\s|$))", "DIR", text)
    text = re.sub(r"[A-Za-z0-9_-]{22}(?![A-Za-z0-9_-])", "ID", text)
    text = re.sub(r"\b\d([\d,.:-]*\d)?Z?\b", "N", text)
    return _GONE.sub("it is gone; is", text)[:_WORDS_MAX].rstrip()


def leaves(command: click.Command = main, path: Sequence[str] = ()) -> Iterator[str]:
    """Yield every command of the command line tool that is no group."""
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, [*path, name])
