"""A disk that refuses a partition's writes: since which error, and when it is to be tried again."""

import asyncio
from collections.abc import Callable

import structlog

from rlmm_daemon.adapters.event_log.embedded.options import Context
from rlmm_daemon.domain.errors import StorageFull
from rlmm_daemon.domain.ids import MetadataPartition

_log = structlog.get_logger(__name__)


class Refusal:
    """Of one partition; begins with an error, ends once the disk has taken what it refused.

    Nobody may write for hours, and all would be told for as long of a full disk that is none: so
    `probe` is called `probe_seconds` after each error, whether or not anybody writes.
    """

    def __init__(
        self, context: Context, partition: MetadataPartition, probe: Callable[[], None]
    ) -> None:
        self._context, self._partition, self._probe = context, partition, probe
        self._until: float | None = None
        self._words = ""
        self._due: asyncio.TimerHandle | None = None

    @property
    def words(self) -> str:
        """The last error; empty if the disk refuses nothing."""
        return "" if self._until is None else self._words

    @property
    def holds(self) -> bool:
        """Whether a write would be refused untried: one just was."""
        return self._until is not None and self._context.clock.monotonic() < self._until

    @property
    def error(self) -> StorageFull:
        """What a refused write is told."""
        return StorageFull(f"the event log cannot be written: {self._words}")

    def begin(self, error: OSError) -> None:
        """Take up that the disk refused a write, or a probe."""
        if self._until is None:
            number, said = error.errno, str(error)
            _log.error("log_unwritable", partition=self._partition, errno=number, error=said)
        self._until = self._context.clock.monotonic() + self._context.options.probe_seconds
        self._words = error.strerror or str(error)
        self.probe_later()

    def end(self) -> None:
        """Take up that the disk took what it refused."""
        if self._until is not None:
            _log.info("log_writable_again", partition=self._partition)
        self._until = None
        self._probe_no_more()

    def probe_later(self) -> None:
        """Let the next probe be due `probe_seconds` from now."""
        self._probe_no_more()
        seconds = self._context.options.probe_seconds
        self._due = asyncio.get_running_loop().call_later(seconds, self._probe)

    def _probe_no_more(self) -> None:
        due, self._due = self._due, None
        if due is not None:
            due.cancel()
