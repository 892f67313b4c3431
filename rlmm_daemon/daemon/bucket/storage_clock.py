"""The storage's own time: what it says of an object, or of one that was written just now.

Whatever is compared with ages of objects goes by it: the clock of a broker may be days ahead.
"""

from contextlib import aclosing
from typing import Final

from rlmm_daemon.ports.storage import RemoteStorage

#: Written anew to learn the time, by daemons and by the nightly job.
CLOCK_KEY: Final = "_rlmm/reconcile/clock"


async def stored_ms(storage: RemoteStorage, key: str) -> int | None:
    """Return when the storage took an object, in ms since 1970; None where it lists none.

    Raises:
        StorageUnavailable: not now, or listings are denied.
    """
    async with aclosing(storage.list(key)) as pages:
        async for page in pages:
            for row in page:
                if row.key == key:
                    return row.modified_ms
    return None


async def now_ms(storage: RemoteStorage) -> int | None:
    """Write an object and return the time that the storage gave it; None where it lists none.

    Raises:
        StorageUnavailable: not now, or one of the two is denied.
    """
    await storage.overwrite_control(CLOCK_KEY, b"{}\n")
    return await stored_ms(storage, CLOCK_KEY)
