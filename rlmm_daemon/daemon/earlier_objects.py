"""Objects of segments in a storage that has no marker yet, looked for before one is made.

A fresh marker over them would let the cleaner and the nightly job take them for leftovers: the log
that named them may be the one that was lost. So that marker gets a hold. Where a bucket is shared
the look is bounded, and a listing too long to be read, or denied, counts as one that shows some.
"""

from collections.abc import Iterable
from contextlib import aclosing
from typing import Final

from rlmm_daemon.core.layout import Layout, parse_key
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.ports.storage import RemoteStorage

#: Pages of a listing that are read for each layout; S3's have 1,000 keys.
PAGES_MAX: Final = 20


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
