"""Objects of segments that a hold is about to keep, or whose bucket has no marker yet.

A fresh marker over them would let the cleaner and the nightly job take them for leftovers: the log
that named them may be the one that was lost. So that marker gets a hold. Where a bucket is shared
the look is bounded, and a listing too long to be read, or denied, counts as one that shows some.
"""

from collections.abc import Iterable
from contextlib import aclosing
from typing import Final

import structlog

from rlmm_daemon.codec.marker import MARKER_KEY
from rlmm_daemon.core.storage.layout import Layout, parse_key
from rlmm_daemon.domain.errors import StorageUnavailable, UnavailableError
from rlmm_daemon.ports.storage import RemoteStorage

log = structlog.get_logger()

#: Pages of a listing that are read for each layout; S3's have 1,000 keys.
PAGES_MAX: Final = 20
#: The same of all layouts together, for how young they are, which an acceptance waits for.
NEWEST_PAGES_MAX: Final = 100


async def why_held(storage: RemoteStorage, layouts: Iterable[Layout]) -> str | None:
    """Return why objects of segments may lie under these layouts; None if there are none.

    Raises:
        StorageUnavailable: nobody can say now.
    """
    for layout in dict.fromkeys(layouts):
        try:
            found = await _found(storage, layout)
        except StorageUnavailable as error:
            if error.fields.get("retry") is not False:
                raise
            found = f"its objects cannot be listed: {error.message}"
        if found is not None:
            return found
    return None


async def newest_ms(storage: RemoteStorage, layouts: Iterable[Layout]) -> int | None:
    """Return when the storage took the youngest object of a segment; 0 where there is none.

    Its clock may have been ahead then. None where nobody can say: the listing is denied, fails,
    or is too long. A directory's is read to its end.
    """
    pages_max = None if storage.local_path(MARKER_KEY) is not None else NEWEST_PAGES_MAX
    newest, read = 0, 0
    try:
        for layout in dict.fromkeys(layouts):
            async with aclosing(storage.list(layout.listed_prefix)) as pages:
                async for page in pages:
                    if read == pages_max:
                        _tell(f"it has more objects than are looked at ({read} pages)")
                        return None
                    read += 1
                    times = (row.modified_ms for row in page if parse_key(layout, row.key))
                    newest = max(newest, *times, 0)
    except UnavailableError as error:
        _tell(str(error))
        return None
    return newest


def _tell(why: str) -> None:
    log.warning("a hold keeps more: how young the objects are is not known", why=why)


async def _found(storage: RemoteStorage, layout: Layout) -> str | None:
    read = 0
    async with aclosing(storage.list(layout.listed_prefix)) as pages:
        async for page in pages:
            for row in page:
                if parse_key(layout, row.key) is not None:
                    return f"{row.key} is there"
            read += 1
            if read == PAGES_MAX:
                return f"it has more objects than a first look reads ({PAGES_MAX} pages)"
    return None
