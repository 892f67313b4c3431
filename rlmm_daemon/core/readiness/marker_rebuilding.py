"""The layouts of a lost bucket marker, worked out of what is left: a copy, the log, and a listing.

The log names a layout by its number; a listing shows under which prefix those segments lie; a copy
of the marker says both. What two of them say differently, or what a live segment needs and nobody
says, is an operator's to decide and is never guessed.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from rlmm_daemon.core import phrases
from rlmm_daemon.core.storage.layout import SEGMENT_KEY, Layout, parse_key
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import SegmentId, uuid_bytes

#: Of a number that no segment needs: nothing was ever listed below it, nor will be.
UNUSED: Final = "unused-layout"
#: Custom metadata has two bytes for the number.
LAYOUTS_MAX: Final = 65_535
_HEX: Final = re.compile(r"[0-9a-f]{1,8}")
_SHOWN_MAX: Final = 3


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """One row, and who says so."""

    number: int
    prefix: str
    #: Live segments that name this number, and those of them that were found under the prefix.
    named: int
    found: int
    #: Among: asked for, copy, listing, unused.
    sources: tuple[str, ...]


class Places(msgspec.Struct):
    """Where segments of one kind were found."""

    segments: int = 0
    #: Prefix -> segments whose key it explains: below `{hash:16}/a` a key is below `3f07/a` too.
    explained: Counter[str] = msgspec.field(default_factory=Counter)

    def agreed(self) -> list[str]:
        """Return the prefixes that explain every segment that was found."""
        return sorted(p for p, count in self.explained.items() if count == self.segments)


class Evidence(msgspec.Struct, kw_only=True):
    """What is left to work from."""

    #: The prefixes of the state directory's copy, in the order of their numbers.
    kept: Sequence[str] = ()
    #: Number -> prefix, as an operator says.
    told: Mapping[int, str] = msgspec.field(default_factory=dict)
    #: Number -> live segments that name it.
    named: Counter[int] = msgspec.field(default_factory=Counter)
    #: Number -> where segments lie that name it, those too that the log lost.
    found: dict[int, Places] = msgspec.field(default_factory=dict)
    #: Where segments lie whose layout the log does not say: of copies that never ended.
    unnumbered: Places = msgspec.field(default_factory=Places)
    #: Finished segments whose objects are ours, and those of them that anything was found of.
    finished: set[SegmentId] = msgspec.field(default_factory=set)
    seen: set[SegmentId] = msgspec.field(default_factory=set)
    #: When the storage took the youngest object that may be a segment's, also of those unnamed.
    newest_ms: int = 0

    def take(self, needs: Mapping[SegmentId, int | None], key: str, modified_ms: int = 0) -> None:
        """Count a listed key towards the layout that the log says of its segment, None for none."""
        match = SEGMENT_KEY.search(key)
        if match is None:
            return
        self.newest_ms = max(self.newest_ms, modified_ms)
        segment_id = SegmentId(uuid_bytes(match["segment_id"]))
        if segment_id in self.finished:
            self.seen.add(segment_id)
        if segment_id not in needs or not key.endswith(".log"):
            return
        number = needs[segment_id]
        places = self.unnumbered if number is None else self.found.setdefault(number, Places())
        places.segments += 1
        places.explained.update(_prefixes(key, match.start("topic")))


def require_some_seen(evidence: Evidence, storage: str) -> None:
    """See that the storage holds anything of what the log says was stored.

    Raises:
        InvalidArgument: it does not, so it is another one than the log's, most likely.
    """
    if evidence.finished and not evidence.seen:
        raise InvalidArgument(
            f"the event log names {phrases.number(len(evidence.finished), 'finished segment')}, "
            f"and not one object of them is in {storage or 'this storage'}: is this the right "
            "bucket or directory (storage in the configuration), and is it mounted? With a marker "
            "here daemons would copy new segments beside the old ones' place. If the objects are "
            "known to be gone: the same with --objects-are-gone"
        )


def rebuilt(evidence: Evidence) -> list[Rebuilt]:
    """Return the rows 1, 2, 3, ... of the marker.

    Raises:
        InvalidArgument: two sources differ, also what an operator says and what was listed; or a
            number that live segments name has no prefix.
    """
    last = max((*evidence.named, *evidence.found, *evidence.told, len(evidence.kept)))
    if last > LAYOUTS_MAX:
        raise InvalidArgument(f"layout {last} is beyond {LAYOUTS_MAX}, the most there can be")
    rows = [_row(evidence, number) for number in range(1, last + 1)]
    numbers = dict[str, int]()
    for row in rows:
        if (other := numbers.setdefault(row.prefix, row.number)) != row.number:
            raise InvalidArgument(
                f"layouts {other} and {row.number} would both be {row.prefix!r}, and a prefix has "
                f"one number alone; say another: --layout {row.number}=PREFIX"
            )
    return rows


def _row(evidence: Evidence, number: int) -> Rebuilt:
    places = evidence.found.get(number, Places())
    told = evidence.told.get(number)
    kept = evidence.kept[number - 1] if number <= len(evidence.kept) else None
    listed = places.agreed()
    if told is not None:
        prefix = _require_some_found(number, told, places)
    elif kept is not None:
        prefix = _require_found(number, kept, places)
    elif len(listed) == 1:
        prefix = listed[0]
    else:
        prefix = _unused(number, evidence.named[number], places)
    says = {"asked for": told == prefix, "copy": kept == prefix, "listing": prefix in listed}
    return Rebuilt(
        number=number,
        prefix=prefix,
        named=evidence.named[number],
        found=places.explained[prefix],
        sources=tuple(name for name, said in says.items() if said) or ("unused",),
    )


def _require_found(number: int, kept: str, places: Places) -> str:
    """Return the copy's prefix, unless the listing shows the segments elsewhere."""
    if places.explained[kept] == places.segments:
        return kept
    raise InvalidArgument(
        f"layout {number}: the copy says {kept!r}, and its segments lie under {_seen(places)}; "
        f"say which: --layout {number}=PREFIX"
    )


def _require_some_found(number: int, told: str, places: Places) -> str:
    """Return the prefix that an operator says, unless every segment of it lies elsewhere."""
    if not places.segments or places.explained[told]:
        return told
    raise InvalidArgument(
        f"layout {number}: --layout says {told!r}, and all {places.segments} segments of it that "
        f"are there lie under {_seen(places)}; with it none of them could be read"
    )


def _unused(number: int, named: int, places: Places) -> str:
    """Return a prefix for a number that no segment names of which anything is left to be read.

    For any other there is none. Those that the log lost are among what was found, never `named`.
    """
    if not (named or places.segments):
        return f"{UNUSED}-{number}"
    which = f"{named} live" if named else f"{places.segments} lost"
    raise InvalidArgument(
        f"layout {number}: {which} segments name it and lie "
        f"{_seen(places) or 'nowhere'}; say its prefix: --layout {number}=PREFIX"
    )


def _seen(places: Places) -> str:
    return ", ".join(repr(each) for each, _ in places.explained.most_common(_SHOWN_MAX))


def _prefixes(key: str, end: int) -> Iterator[str]:
    """Yield every prefix whose layout makes exactly this key, which names a topic from `end` on."""
    before = key[:end].rstrip("/")
    for prefix in (before, *_hashed(before)):
        with suppress(InvalidArgument):
            if parse_key(Layout(prefix), key) is not None:
                yield prefix


def _hashed(before: str) -> Iterator[str]:
    first, _, rest = before.partition("/")
    if _HEX.fullmatch(first):
        yield f"{{hash:{4 * len(first)}}}" + (f"/{rest}" if rest else "")
