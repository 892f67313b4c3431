"""An operator who types what a failed daemon names next, step by step, until it serves again."""

import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
from click.testing import CliRunner

from rlmm_daemon.cli import main
from rlmm_daemon.domain.ids import SegmentId, uuid_text
from rlmm_daemon.domain.segment import SegmentState
from tests.support.daemon_process import CONFIG
from tests.support.stocked_daemon import PATIENCE_SECONDS, Stocked

CONFIGURATION: Final = "rlmm.toml"
STEPS_MAX: Final = 6
#: How long a command may take to show: a daemon asks for its log and marker every few seconds.
_SHOWS_SECONDS: Final = 8.0
_POLL_SECONDS: Final = 0.02
#: They pass by themselves within moments.
_PASSING: Final = frozenset[str | None](
    {
        "log_not_open",
        "not_followed",
        "starting",
        "replaying",
        "end_unknown",
        "unconfirmed",
        "gate_closed",
    }
)
#: Commands that only show something: what they print names what comes next.
_LOOKS: Final = ("rlmm doctor", "rlmm status", "rlmm partitions", "rlmm explain", "rlmm --version")
_FINISHED: Final = SegmentState.COPY_SEGMENT_FINISHED
#: Notices of these are failures, too.
_OF_THE_STORAGE: Final = frozenset({"storage_trouble", "other_daemon"})


@dataclass(frozen=True, slots=True)
class Now:
    """What the daemon says of itself at one moment."""

    #: None: it serves.
    cause: str | None
    command: str
    #: All that `rlmm explain` says.
    text: str


@dataclass(slots=True)
class Walk:
    """The steps from a failure to a daemon that serves, and what became of every segment."""

    it: Stocked
    config: Path
    #: What a person can do by hand, by the words that name it.
    hands: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    #: Commands, by how they begin, that this failure leaves no means for.
    cannot: Sequence[str] = ()
    lines: list[str] = field(default_factory=list)
    #: Everything that was printed on the way.
    output: str = ""
    kept: dict[SegmentId, frozenset[str]] = field(default_factory=dict)
    #: Causes that are waited out: all that pass but the one that the walk is about.
    passing: frozenset[str | None] = _PASSING

    def remember(self) -> None:
        """Note the objects of all that was acknowledged: none of them may go from now on."""
        if self.it.daemon.remote.is_dir():  # else what was noted before counts
            self.kept = {each: objects(self.it, each) for each in self.it.acknowledged}

    def go(self, cause: str | None, says: str) -> list[str]:
        """Walk from a failure until it serves; return each step, and what became of segments."""
        now = self.comes(cause, says)
        for _ in range(STEPS_MAX):
            if now.cause is None:
                break
            now = self._step(now)
        assert now.cause is None, f"it does not end: {self.lines}\n{now}"
        return [*self.lines, *self._outcome()]

    def comes(self, cause: str | None, says: str = "") -> Now:
        """Return once a failure is there, which from then on is not waited out."""
        self.passing -= {cause}
        return self._until(lambda now: now.cause == cause and says in now.text)

    def settles(self, before: Now, expected: str | None, seconds: float) -> Now:
        """Return what it says once that does not pass by itself: "" and None mean it serves.

        It is waited for what is expected, or where nobody knows for anything else than before, so
        many seconds; what does not come in time is answered as it stands.
        """

        def come(now: Now) -> bool:
            if expected is None:
                return (now.cause, now.command) != (before.cause, before.command)
            return (now.cause or "") == expected

        try:
            return self._until(come, seconds if expected is None else PATIENCE_SECONDS)
        except AssertionError:
            return self._until(lambda _: True)

    # One step.

    def _step(self, now: Now) -> Now:
        """Do what is named: by hand where a person can, else by the command."""
        text, command = now.text, now.command
        while True:
            hand = next((words for words in self.hands if words in text), None)
            if hand is not None:
                self.hands[hand]()
                self.lines.append(f"{now.cause}: by hand: {hand}")
                return self._changed(now)
            code, printed = self._type(command)
            self.lines.append(f"{now.cause}: {self._plain(command)} -> {code}")
            if "stop the daemon first" in printed:
                assert self.it.daemon.stop() == 0
                code, printed = self._type(command)
                self.lines.append(f"stopped: {self._plain(command)} -> {code}")
                self.it.start()
            self._holds()
            text = flat(printed)
            by_hand = any(words in text for words in self.hands)
            if not command.startswith(_LOOKS) and not by_hand:
                assert code in (0, 1), f"{command}: {printed}"
                return self._changed(now)
            following = [each for each in named(text) if self._can(each, command)]
            if not by_hand:
                assert following, f"{command} names nothing that can be done: {printed}"
                command = following[0]

    def _can(self, command: str, last: str) -> bool:
        return command != last and not command.startswith((*self.cannot, *_LOOKS))

    def _type(self, command: str) -> tuple[int, str]:
        """Run a command as it stands; what is dry by default, with --execute."""
        words = command.replace("FILE", str(self.config)).split()[1:]
        if any(option.name == "execute" for option in parsed(words)[0].params):
            words.append("--execute")
        code, printed = said(words, self.it, self.config)
        self.output += printed
        return code, printed

    def _plain(self, command: str) -> str:
        """A command without this machine's names, and with what was added to it."""
        words = command.split()
        if any(option.name == "execute" for option in parsed(words[1:])[0].params):
            words.append("--execute")
        text = " ".join(words).replace(str(self.config), "FILE")
        text = re.sub(rf"{re.escape(str(self.it.daemon.directory))}\S*", "DIR", text)
        return re.sub(r"\b\d+\b", "N", text)

    def _changed(self, before: Now) -> Now:
        """Return what it says when that is something else, and nothing that passes."""
        told = (before.cause, before.command)
        return self._until(lambda now: (now.cause, now.command) != told, _SHOWS_SECONDS)

    def _until(self, wanted: Callable[[Now], bool], seconds: float = PATIENCE_SECONDS) -> Now:
        until = time.monotonic() + seconds
        nothing = threading.Event()
        while True:
            now = self.now()
            if now.cause not in self.passing and wanted(now):
                return now
            assert time.monotonic() < until, (
                f"nothing changed: {self.lines}\n{now}\n{self.output[-600:]}"
            )
            nothing.wait(_POLL_SECONDS)

    def now(self) -> Now:
        """Ask about both partitions: the first that does not serve, else what is said besides."""
        answers = [self.it.explain(partition) for partition in (0, 1)]
        for answer in answers:
            if answer["verdict"] != "ready":
                text = [answer["sentence"], *answer["evidence"]]
                return Now(answer["cause"], answer["next_command"], " ".join(text))
        for answer in answers:
            for notice in answer["also"]:
                if notice["trouble"] and notice["cause"] in _OF_THE_STORAGE:
                    return Now(notice["cause"], notice["next_command"], notice["sentence"])
        return Now(None, "", "")

    # What must hold.

    def _holds(self) -> None:
        """No command took an object of what was acknowledged."""
        for segment_id, before in self.kept.items():
            gone = before - objects(self.it, segment_id)
            assert not gone, f"{self.lines} removed {sorted(gone)}"

    def _outcome(self) -> list[str]:
        """Hold that each acknowledged segment is listed, or named as kept without being listed."""
        self._holds()
        listed = {
            segment_id
            for partition in (0, 1)
            for segment_id, each in self.it.listed(partition).items()
            if each.state is _FINISHED
        }
        lost = [each for each in self.kept if each not in listed]
        way = self.output
        _, verified = self._type("rlmm storage verify --config FILE --json") if lost else (0, "")
        _, cleanup = self._type("rlmm cleanup --json") if lost else (0, "")
        said = {
            "rlmm storage verify": verified,
            "the way": way,
            "rlmm cleanup": cleanup,
        }
        unnamed = [
            uuid_text(each)
            for each in lost
            if not any(uuid_text(each) in text for text in said.values())
        ]
        assert not unnamed, f"{self.lines}: nobody names {unnamed}"
        result = [f"ready: {len(self.kept) - len(lost)} of {len(self.kept)} segments listed"]
        # What the cleaner names, it names once it has looked.
        left = {uuid_text(each) for each in lost}
        for name, text in said.items():
            if found := {each for each in left if each in text}:
                result.append(f"named by {name}")
                left -= found
        return result


def said(words: Sequence[str], it: Stocked, config: Path) -> tuple[int, str]:
    """Type a command; return its exit code and all that it printed."""
    environment = {"RLMM_SOCKET": it.daemon.socket_path, "RLMM_CONFIG": str(config)}
    run = CliRunner().invoke(main, list(words), env=environment, input="y\n")
    assert run.exception is None or isinstance(run.exception, SystemExit), run.output
    assert run.exit_code != 2, f"{' '.join(words)}: {run.output}"
    return run.exit_code, run.output


def objects(it: Stocked, segment_id: SegmentId) -> frozenset[str]:
    """Return the paths of a segment's objects; other files come and go meanwhile."""
    name = uuid_text(segment_id)
    return frozenset(
        str(Path(directory, each))
        for directory, _, names in os.walk(it.daemon.remote)
        for each in names
        if name in each
    )


def flat(text: str) -> str:
    """Text without its line breaks."""
    return " ".join(text.split())


def named(text: str) -> list[str]:
    """Return each command that stands in a text, as it would be typed."""
    found = list[str]()
    for match in re.finditer(r"\brlmm (?=[a-z-])", text):
        words = text[match.end() :].split()
        command, count = parsed(words)
        if command is not main:
            typed = " ".join(word.rstrip(".,;)") for word in words[:count])
            found.append(f"rlmm {typed}")
    return found


def parsed(words: Sequence[str]) -> tuple[click.Command, int]:
    """Return the command that these words begin with, and how many of them are its own."""
    command: click.Command = main
    context = click.Context(main)
    at = 0
    while isinstance(command, click.Group) and at < len(words):
        found = command.get_command(context, words[at].rstrip(".,;)"))
        if found is None:
            return main, 0
        ended = words[at][-1] in ".,;)"
        command, at = found, at + 1
        if ended:
            return command, at
    options: dict[str, Any] = {
        name: option
        for option in command.params
        if isinstance(option, click.Option)
        for name in option.opts
    }
    arguments = sum(isinstance(each, click.Argument) for each in command.params)
    while at < len(words):
        word = words[at].rstrip(".,;)")
        if word in options:
            at += 1 if options[word].is_flag else 2
        elif arguments and re.fullmatch(r"\d+|N", word):
            arguments -= 1
            at += 1
        else:
            break
        if words[min(at, len(words)) - 1][-1] in ".,;)":
            break
    return command, min(at, len(words))


def configuration(directory: Path) -> Path:
    """Write the daemon's configuration with absolute paths: commands are typed elsewhere."""
    text = CONFIG.read_text("utf-8").replace('= "var/', f'= "{directory}/var/')
    text = text.replace(f'path = "{directory}/var/rlmm.sock"', 'path = "var/rlmm.sock"')
    text = text.replace('log_dirs = ["var/', f'log_dirs = ["{directory}/var/')
    text = text.replace("# partition_count = 50", "partition_count = 3", 1)
    path = directory / CONFIGURATION
    path.write_text(text, "utf-8")
    return path
