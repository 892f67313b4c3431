"""Files that are read again when they changed; a change that does not hold leaves the old ones."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import structlog

from rlmm_daemon.domain.errors import ConfigError

T = TypeVar("T")

#: They are looked at no more often.
_LOOK_SECONDS: Final = 1.0

_log = structlog.get_logger(__name__)


class Watched(Generic[T]):
    """What some files say, as of the newest ones that hold."""

    def __init__(
        self,
        paths: tuple[str, ...],
        load: Callable[[], T],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read them; ConfigError as of `load`."""
        self._paths = paths
        self._load = load
        self._now = now
        self._seen = self._signature()
        self._looked_at = now()
        self._looking = asyncio.Lock()
        self._value = load()

    async def current(self) -> T:
        """Return what they say; one caller looks now and then, others don't wait for the disk."""
        if self._now() - self._looked_at >= _LOOK_SECONDS and not self._looking.locked():
            async with self._looking:
                self._looked_at = self._now()
                await self._look()
        return self._value

    async def _look(self) -> None:
        seen = await asyncio.to_thread(self._signature)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._value = await asyncio.to_thread(self._load)
        except ConfigError as error:
            _log.warning(
                "changed files of a quorum don't hold; the old ones stay in force",
                files=self._paths,
                why=error.message,
            )
        else:
            _log.info("changed files of a quorum were read again", files=self._paths)

    def _signature(self) -> tuple[tuple[int, ...], ...]:
        """Return what changes with the files; those that are absent have none."""
        found: list[tuple[int, ...]] = []
        for path in self._paths:
            try:
                status = Path(path).stat()
            except OSError:
                found.append(())
            else:
                times = (status.st_mtime_ns, status.st_ctime_ns)
                found.append((status.st_ino, status.st_size, *times))
        return tuple(found)
