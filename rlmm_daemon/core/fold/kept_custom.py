"""Last custom metadata of segments whose records have lost it: an update may erase it there."""

from typing import TYPE_CHECKING

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.codec.custom_metadata import is_only_if_started
from rlmm_daemon.domain.ids import SegmentId

if TYPE_CHECKING:
    from rlmm_daemon.codec.sealed_table import SealedTable


class KeptCustom(dict[SegmentId, bytes | None]):
    """What changed of it since the sealed table was made; None: the record has it again."""

    __slots__ = ("_sealed",)

    def __init__(self, sealed: "SealedTable | None") -> None:
        super().__init__()
        self._sealed = sealed if sealed is not None and len(sealed.kept_rows) else None

    def of(self, segment_id: SegmentId) -> bytes | None:
        """Return what is kept of a segment."""
        if segment_id in self or self._sealed is None:
            return self.get(segment_id)
        row = self._sealed.row_of(segment_id)
        return None if row < 0 else self._sealed.kept(row)

    def every(self) -> dict[SegmentId, bytes]:
        """Return all that is kept, by segment."""
        sealed = self._sealed
        known = {*self} if sealed is None else {*self, *map(sealed.id, sealed.kept_rows)}
        found = ((segment_id, self.of(segment_id)) for segment_id in known)
        return {segment_id: custom for segment_id, custom in found if custom is not None}

    def note(self, segment_id: SegmentId, old: bytes, new: bytes) -> None:
        """A record was replaced, both given from behind the segment id."""
        if custom_of(new) is not None:
            self.forget(segment_id)
        elif (custom := custom_of(old)) is not None:
            self[segment_id] = custom

    def forget(self, segment_id: SegmentId) -> None:
        """The record of a segment has custom metadata again, or there is no record any more."""
        if not self and self._sealed is None:
            return
        self.pop(segment_id, None)
        if self.of(segment_id) is not None:
            self[segment_id] = None


def custom_of(tail: bytes) -> bytes | None:
    """Return what a record says of its objects; `ONLY_IF_STARTED` says nothing of them."""
    custom = tails.custom_of(tail)
    return None if is_only_if_started(custom) else custom
