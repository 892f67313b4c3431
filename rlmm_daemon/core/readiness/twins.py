"""Another daemon under this broker's id: is there one, by the presence file that both write?

A clone (a state directory copied to another host, a snapshot of a machine brought up beside it) or
a second daemon that was given the same broker id knows nothing of what this one acknowledges, and
would delete it as abandoned. So whoever finds another's words in the presence file in place of its
own is not alone.

The first file that a life finds is its forerunner's: known to have ended where it says so, or where
both held the same lock; else it may be a daemon that lives, and would write the file again before
`QUIET_SECONDS` are over.
"""

from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from rlmm_daemon.codec.marker import Presence

#: A daemon that lives rewrites its file within this; the interval and a slow answer.
QUIET_SECONDS: Final = 100.0
#: Another daemon that was met and shows no more is gone after so long.
GONE_SECONDS: Final = 180.0
UNREAD_WHY: Final = (
    "the presence file was not read yet, so another daemon may have this broker's id"
)
_UNREADABLE: Final = "who wrote a presence file that can't be read"


class Unread(msgspec.Struct, frozen=True):
    """The presence file was not read yet."""


class Alone(msgspec.Struct, frozen=True):
    """Nothing speaks for another daemon."""


class Doubted(msgspec.Struct, frozen=True):
    """Another daemon may live. Seconds are the clock's since the last sign of it."""

    who: str
    seconds: float


class Met(msgspec.Struct, frozen=True):
    """Another daemon lives, or did at the last sign of it."""

    who: str
    seconds: float


Standing: TypeAlias = Unread | Alone | Doubted | Met


class Own(msgspec.Struct, frozen=True):
    """The file is as this life last wrote it, or is not there."""


class Others(msgspec.Struct, frozen=True):
    """The file is not what this life wrote; None if it can't be read."""

    presence: Presence | None
    #: It was seen before, and was not written over since: no news.
    again: bool = False


def step(standing: Standing, seen: Own | Others, *, place: str, seconds: float) -> Standing:
    """Return where this life stands after a look at the file.

    `place` names the lock that it holds ("": not known); `seconds` is its clock.
    """
    if isinstance(seen, Own):
        return _silent(standing, seconds)
    if isinstance(standing, Unread):
        return _first(seen.presence, place, seconds)
    if seen.again:  # a forerunner that is known to have ended is not heard of anew
        return standing if isinstance(standing, Alone) else replace(standing, seconds=seconds)
    if isinstance(standing, Alone) and _may_be_forerunners(seen.presence, place):
        return Doubted(_who(seen.presence), seconds)
    return Met(_who(seen.presence), seconds)


def _silent(standing: Standing, seconds: float) -> Standing:
    match standing:
        case Unread():
            return Alone()
        case Doubted(_, since) if seconds - since >= QUIET_SECONDS:
            return Alone()
        case Met(_, since) if seconds - since >= GONE_SECONDS:
            return Alone()
        case _:
            return standing


def _may_be_forerunners(presence: Presence | None, place: str) -> bool:
    """Whether the last holder of this lock may have written it, in a write that came late.

    So may whoever puts an old file back. Either shows once; the copy of a running machine, which
    holds a lock of the same name, shows again.
    """
    return presence is None or (bool(place) and presence.place == place)


def _first(presence: Presence | None, place: str, seconds: float) -> Standing:
    if presence is None:
        return Doubted(_UNREADABLE, seconds)
    if presence.other is not None and presence.other.met:
        return Met(presence.other.who, seconds)
    ended = presence.ended or (bool(place) and presence.place == place)
    if ended and presence.other is None:
        return Alone()
    return Doubted(_who(presence), seconds)


def _who(presence: Presence | None) -> str:
    if presence is None:
        return _UNREADABLE
    return presence.host or "a daemon of an earlier version"


def sentence(standing: Standing, broker_id: int, unwritten: str = "") -> str | None:
    """Return what keeps this daemon from deleting anything, and what ends it; None: nothing.

    `unwritten` is why its own presence file could not be written, if it could not: then nobody
    knows whether the other one is silent, since it may be refused as well.
    """
    match standing:
        case Unread():
            return UNREAD_WHY
        case Doubted(who, _) if unwritten:
            return (
                f"broker {broker_id}'s presence file is another daemon's ({who}), which may still "
                f"run, and is not written over ({unwritten}); nothing is deleted until the storage "
                f"takes that write and the other one was silent for {QUIET_SECONDS:g} s more. It "
                "is tried again and again: rlmm storage doctor says what is denied"
            )
        case Doubted(who, _):
            return (
                f"broker {broker_id}'s presence file is another daemon's ({who}), which may still "
                f"run; nothing is deleted until it was silent for {QUIET_SECONDS:g} s"
            )
        case Met(who, _):
            wait = f"{GONE_SECONDS:g} s later"
            if unwritten:
                wait = f"{GONE_SECONDS:g} s after the storage takes this one's ({unwritten})"
            return (
                f"another daemon has broker id {broker_id}: {who}; nothing is deleted while both "
                f"run. Stop one of them, or mend its daemon.broker_id: {wait} deletes go on"
            )
        case Alone():
            return None
