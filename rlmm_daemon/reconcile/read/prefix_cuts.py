"""Cuts of a large prefix, so that several tasks list it side by side.

A user partition's keys begin with the start offset in 20 digits, so offsets are what can be cut at.
How many keys lie between two offsets only the storage knows: it is asked in hops. One page after a
cut tells how dense the keys are there, and with that how far on the next cut should be. That is one
List request for `SLICE_KEYS` keys, and a single one for a prefix of a page or less.

A cut decides nothing about what is listed: slices meet at it, whatever the density was.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Final

#: Of one slice, about: some two seconds of one stream.
SLICE_KEYS: Final = 100_000
#: Slices of one prefix: a hundred million keys, and what is beyond goes to the last.
CUTS_MAX: Final = 1_000
DIGITS: Final = 20
#: A page of keys behind a key, in the storage's order; fewer than `page_keys`: the last ones.
PageAfter = Callable[[str], Sequence[str]]


def cuts(
    prefix: str, page_after: PageAfter, *, page_keys: int, slice_keys: int = SLICE_KEYS
) -> list[str]:
    """Return keys to cut a prefix at, each greater than the one before."""
    return [*itertools.islice(_cuts(prefix, page_after, page_keys, slice_keys), CUTS_MAX)]


def _cuts(prefix: str, page_after: PageAfter, page_keys: int, slice_keys: int) -> Iterator[str]:
    after, page = "", page_after("")
    while len(page) >= page_keys:
        offsets = sorted(at for key in page if (at := _offset(prefix, key)) is not None)
        if not offsets:
            return  # nothing that can be cut: other people's keys
        per_page = max(offsets[-1] - offsets[0], 1)
        at = offsets[0] + per_page * (slice_keys // page_keys)
        found = f"{prefix}{at:0{DIGITS}}"
        if at >= 10**DIGITS or found <= after:
            return
        after, page = found, page_after(found)
        if page:
            yield after


def _offset(prefix: str, key: str) -> int | None:
    digits = key.removeprefix(prefix)[:DIGITS]
    return (
        int(digits) if len(digits) == DIGITS and digits.isascii() and digits.isdecimal() else None
    )
