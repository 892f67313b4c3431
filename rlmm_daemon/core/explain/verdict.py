"""Verdicts of `explain`, and the shape of its rows."""

import enum
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from rlmm_daemon.core.explain.facts import Facts

#: Begins a command for a daemon that does not run.
START: Final = "systemctl start rlmm-daemon"


class Verdict(enum.StrEnum):
    """The answer in a word."""

    #: Every question is answered.
    READY = "ready"
    #: Nothing is wrong, or nothing that does not pass by itself.
    WAITING = "waiting"
    #: Only what cannot be wrong is answered.
    STALE = "stale"
    #: Somebody has to act.
    FAILED = "failed"
    #: The request is refused on purpose.
    REFUSED = "refused"
    #: There is nothing to judge by.
    UNKNOWN = "unknown"


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something to know besides the answer."""

    cause: str
    sentence: str
    #: None if there is nothing to do.
    next_command: str | None
    #: Whether it should not be so.
    trouble: bool


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What `rlmm explain` says."""

    verdict: Verdict
    #: A stable name, for scripts.
    cause: str
    sentence: str
    evidence: tuple[str, ...]
    next_command: str
    also: tuple[Notice, ...] = ()
    #: Whether nothing is wrong although not every question is answered.
    harmless: bool = False

    @property
    def trouble(self) -> bool:
        """Whether anything is not as it should be."""
        well = self.harmless or self.verdict is Verdict.READY
        return not well or any(notice.trouble for notice in self.also)

    def to_dict(self) -> dict[str, Any]:
        """Return the stable shape that `rlmm explain --json` prints."""
        also = [
            {
                "cause": notice.cause,
                "sentence": notice.sentence,
                "next_command": notice.next_command,
                "trouble": notice.trouble,
            }
            for notice in self.also
        ]
        return {
            "verdict": self.verdict.value,
            "cause": self.cause,
            "sentence": self.sentence,
            "evidence": list(self.evidence),
            "next_command": self.next_command,
            "also": also,
            "trouble": self.trouble,
        }


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    name: str
    verdict: Verdict
    applies: Callable[[Facts], bool]
    sentence: Callable[[Facts], str]
    command: Callable[[Facts], str]
    evidence: Callable[[Facts], Iterable[str]] = lambda _: ()
    #: The states that this row speaks for.
    covers: frozenset[enum.Enum] = frozenset()
    #: Whether nothing is wrong, whatever the verdict.
    harmless: bool = False


class NoticeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the second table: said besides the cause."""

    name: str
    applies: Callable[[Facts], bool]
    sentence: Callable[[Facts], str]
    command: Callable[[Facts], str | None] = lambda _: None
    trouble: bool = True
    covers: frozenset[enum.Enum] = frozenset()
