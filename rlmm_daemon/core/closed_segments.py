"""Closed segments of a broker's own log, and those of them that the tier does not have yet."""

from collections.abc import Collection, Sequence

import msgspec


class ClosedSegment(msgspec.Struct, frozen=True):
    """One that the broker writes to no more, so that it may be copied."""

    start_offset: int
    #: Inclusive.
    end_offset: int
    size_bytes: int


def closed(files: Collection[tuple[int, int]]) -> list[ClosedSegment]:
    """Return all but the newest of a partition's `.log` files, given as start offset and size."""
    ascending = sorted(files)
    following = (start for start, _ in ascending[1:])
    return [
        ClosedSegment(start, after - 1, size)
        for (start, size), after in zip(ascending, following, strict=False)
    ]


def waiting(segments: Sequence[ClosedSegment], tiered: int) -> list[ClosedSegment]:
    """Return those that end beyond what is tiered."""
    return [each for each in segments if each.end_offset > tiered]
