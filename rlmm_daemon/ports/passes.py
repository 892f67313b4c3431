"""The passes over all bytes of a segment's file: one copies it, one reads it and checks it.

They are nearly all of a copy's work, and know nothing of keys, names or the log: files in,
checksums out. Every adapter passes one contract test class.
"""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from rlmm_daemon.domain.ids import Offset
from rlmm_daemon.ports.storage import Source

#: The `reason` of a StorageUnavailable that is the daemon's own: whoever made the pass is gone.
LOST_REASON: Final = "copying_process_ended"


class Stop(Protocol):
    """An order to stop, as `threading.Event` is."""

    def is_set(self) -> bool:
        """Return whether it was given."""


class PassStopped(Exception):
    """The caller asked for an end; nobody takes what the pass came to."""


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """What a segment's metadata says of its `.log`, inclusive at both ends."""

    start_offset: Offset
    end_offset: Offset
    size_bytes: int


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """The CRC-32C of what was written, as the target holds it, and of what was read."""

    written: int
    #: None where the source was not read for it.
    read: int | None


class Passes(Protocol):
    """Blocks, in a thread of the caller's. `stop` ends a pass soon, as Stopped.

    A block may still be copied into the target then, which is nobody's any more.
    """

    def copy(
        self,
        source: Source,
        target: int,
        *,
        reads: bool,
        stop: Stop,
        moved: Callable[[int], None],
    ) -> Copied:
        """Copy a source into an empty file that is open to be written and read; sync nothing last.

        With `reads`, the source is read a second time for its own checksum. `moved` is told of
        bytes as they are copied, from the calling thread.

        Raises:
            Stopped: `stop` was set.
            ChecksumMismatch: the source became shorter.
            StorageUnavailable: the source's disk fails, or the pass was lost; it may be repeated.
            OSError: the target's disk fails, or no more files can be open.
        """

    def check(self, source: Source, claims: Claims | None, *, stop: Stop) -> int:
        """Return the CRC-32C of a `.log`; with claims, every batch must be whole and within them.

        Raises:
            Stopped: `stop` was set.
            ChecksumMismatch, Malformed: of the first batch that is not as it must be.
            StorageUnavailable: as `copy`.
        """
