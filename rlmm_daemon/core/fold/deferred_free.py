"""Incremental destruction of large containers, in short steps.

A dict of 100,000 segments holds the loop for many milliseconds while it goes, and it goes when the
last one who held its owner lets go: a snapshot that took its place, the end of a listing, a
look-up. Only then is it certain that nobody reads it any more. So its owner leaves it here at that
moment (`__del__`), and whoever gives way to others between two steps takes it apart.

One heap for the process: what is garbage decides nothing and belongs to nobody. Where nobody frees,
as in a command, everything goes at once.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

#: Fewer items go at once; they may be user partitions, at 20 us each.
LONG: Final = 64
AT_ONCE: Final = 16

Container = dict[Any, Any] | list[Any]

#: A thread may run the collector, so it is one that threads may append to.
_left: Final[deque[Container]] = deque()
#: One entry for each who promised to free.
_freeing: Final[list[None]] = []


@contextmanager
def freed() -> Iterator[None]:
    """Promise to free what is left in the meantime; the rest goes at the end."""
    _freeing.append(None)
    try:
        yield
    finally:
        _freeing.pop()
        if not _freeing:
            _left.clear()


def leave(container: Container | None) -> None:
    """Take a container that its owner alone holds, and not for long."""
    if _freeing and container is not None and len(container) >= LONG:
        _left.append(container)


def free_some() -> bool:
    """Free some of what was left; return whether there was anything."""
    if not _left:
        return False
    container = _left[0]
    if isinstance(container, list):
        del container[-AT_ONCE:]
    else:
        for _ in range(min(AT_ONCE, len(container))):
            container.popitem()
    if not container:
        _left.popleft()
    return True
