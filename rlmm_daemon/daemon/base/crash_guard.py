"""A partition that keeps crashing the process is held back, so that the others serve.

Code that works on one metadata partition runs inside `blame(partition)`: a bug in there leaves as
`PartitionCrash`. The runtime notes it in a small file on the way out. After three within a minute
the next start finds the partition in `quarantined()` and marks it `failed(crash_loop)`;
`rlmm partition retry N` forgives it. Errors of our own are answers, not crashes.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import structlog

from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import MetadataPartition

_log = structlog.get_logger(__name__)
CRASHES: Final = 3
WINDOW_MS: Final = 60_000
#: Enough for every partition of a common topic to reach its limit; older ones are dropped.
_NOTES_MAX: Final = 256
_FORMAT: Final = 1


class PartitionCrash(Exception):
    """A bug met while one metadata partition was worked on; its cause is the bug."""

    def __init__(self, partition: MetadataPartition) -> None:
        self.partition = partition
        super().__init__(f"while working on metadata partition {partition}")


class _Note(msgspec.Struct, frozen=True):
    partition: MetadataPartition
    at_ms: int


class _File(msgspec.Struct, frozen=True):
    format: int
    notes: list[_Note]
    #: Held back until forgiven, however long ago the crashes were.
    held: list[MetadataPartition]


@contextmanager
def blame(partition: MetadataPartition) -> Iterator[None]:
    """Name the partition in a bug that leaves the block; errors of ours and cancels pass."""
    try:
        yield
    except (RlmmError, PartitionCrash):
        raise
    except Exception as bug:
        raise PartitionCrash(partition) from bug


def blamed(error: BaseException) -> set[MetadataPartition]:
    """Return every partition that an error, or a group of them, names."""
    if isinstance(error, PartitionCrash):
        return {error.partition}
    if isinstance(error, BaseExceptionGroup):
        return {partition for each in error.exceptions for partition in blamed(each)}
    return set()


class CrashGuard:
    """The notes of one state directory. Plain blocking IO: at the start and in a dying process."""

    def __init__(self, path: str | Path, now_ms: Callable[[], int]) -> None:
        """Read the notes; a file that can't be read guards nothing, and says so."""
        self._path = Path(path)
        self._now_ms = now_ms
        read = self._read()
        self._held = {*read.held, *self._over_limit(read.notes)}
        self._notes = [note for note in read.notes if note.partition not in self._held]

    def quarantined(self) -> frozenset[MetadataPartition]:
        """Return the partitions that start as `failed(crash_loop)`."""
        return frozenset(self._held)

    def note(self, partition: MetadataPartition) -> None:
        """Write down that the process is about to end because of this partition. Never raises."""
        self._notes = [*self._notes, _Note(partition, self._now_ms())][-_NOTES_MAX:]
        self._write()

    def forgive(self, partition: MetadataPartition) -> None:
        """Forget a partition's crashes."""
        self._held.discard(partition)
        self._notes = [note for note in self._notes if note.partition != partition]
        self._write()

    def _over_limit(self, notes: list[_Note]) -> Iterator[MetadataPartition]:
        """Yield those with enough notes within one window that ends now.

        A note from the future means that the wall clock was set back: it counts.
        """
        since = self._now_ms() - WINDOW_MS
        counts = Counter(note.partition for note in notes if note.at_ms >= since)
        return (partition for partition, count in counts.items() if count >= CRASHES)

    def _read(self) -> _File:
        nothing = _File(format=_FORMAT, notes=[], held=[])
        try:
            file = msgspec.json.decode(self._path.read_bytes(), type=_File)
        except FileNotFoundError:
            return nothing
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _log.warning("crash notes not readable", path=str(self._path), error=str(error))
            return nothing
        return file if file.format == _FORMAT else nothing

    def _write(self) -> None:
        file = _File(format=_FORMAT, notes=self._notes, held=sorted(self._held))
        temporary = self._path.with_suffix(".tmp")
        try:
            temporary.write_bytes(msgspec.json.encode(file))
            temporary.replace(self._path)
        except OSError as error:
            _log.warning("crash notes not written", path=str(self._path), error=str(error))
