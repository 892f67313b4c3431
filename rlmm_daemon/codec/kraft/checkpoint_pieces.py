"""Snapshots as they come, piece by piece: records are handed out before the whole is there.

So that a cluster's snapshot of any size takes no more memory than its largest batch. Whoever folds
them keeps what came of it apart until the footer was read.
"""

from collections.abc import Iterator

from rlmm_daemon.codec import batches
from rlmm_daemon.codec.kraft import control, log_batches
from rlmm_daemon.codec.kraft.control import SnapshotFooter, SnapshotHeader
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.domain.errors import LogCorrupt


class Pieces:
    """One snapshot that is being read; its rules are those of `checkpoint.read`."""

    def __init__(self, point: LogPoint) -> None:
        self._point = point
        self._rest = b""
        self._offset = 0
        self._ended = False

    @property
    def is_whole(self) -> bool:
        """Whether the footer was read, and nothing is left over."""
        return self._ended and not self._rest

    def take(self, piece: bytes) -> Iterator[bytes | None]:
        """Yield the values of the data records that are whole by now.

        Raises:
            LogCorrupt: it is damaged, or not the snapshot of this name.
        """
        self._rest += piece
        at = 0
        for batch in log_batches.walk(self._rest):
            assert isinstance(batch.payload, bytes), "that is what walking yields"
            if self._ended:
                raise LogCorrupt("a batch behind the footer of a snapshot")
            if (batch.base, batch.epoch) != (self._offset, self._point.epoch):
                raise LogCorrupt(
                    f"a snapshot's batch at offset {batch.base} of epoch {batch.epoch}: offset "
                    f"{self._offset} of epoch {self._point.epoch} follows"
                )
            (kept,) = batches.split(batch.payload)
            if kept.is_control:
                self._control(kept)
            else:
                self._require_begun()
                for _, _, value in batches.keyed_records_of(kept):
                    yield value
            at += len(batch.payload)
            self._offset = batch.end
        self._rest = self._rest[at:]

    def _require_begun(self) -> None:
        if not self._offset:
            raise LogCorrupt("a snapshot begins with its header")

    def _control(self, kept: batches.Batch) -> None:
        said = [control.read(key, value) for _, key, value in batches.keyed_records_of(kept)]
        if not isinstance(said[0], SnapshotHeader):
            self._require_begun()
        self._ended = isinstance(said[-1], SnapshotFooter)
