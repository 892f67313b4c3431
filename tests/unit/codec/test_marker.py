"""The bucket marker's own checksum, and markers of versions that wrote none."""

import msgspec
import pytest

from rlmm_daemon.codec import marker
from rlmm_daemon.codec.marker import BucketMarker, Hold, LayoutRow, NewerMarker
from rlmm_daemon.domain.errors import Malformed
from tests.support import markers

HOLD = Hold(metadata_partition=2, before_ms=7, broker_id=1)
MARKER = BucketMarker(
    cluster_id="here",
    partition_count=3,
    metadata_topic_id="AAECAwQFBgcICQoLDA0ODw",
    layouts=(LayoutRow(number=1, kind="local-tiered-storage", prefix="a/ü"),),
    holds=(HOLD,),
    ended_holds=(Hold(metadata_partition=None, before_ms=5, broker_id=1),),
)
WHOLE = marker.encode(MARKER)


def test_a_marker_comes_back_as_it_was_written() -> None:
    assert marker.decode_marker(WHOLE) == marker.as_written(MARKER)
    bare = msgspec.structs.replace(MARKER, holds=(), ended_holds=())
    assert b"holds" not in marker.encode(bare)


def test_no_flipped_bit_of_a_marker_is_believed_or_taken_for_a_newer_version() -> None:
    for at in range(len(WHOLE)):
        for bit in range(8):
            flipped = bytearray(WHOLE)
            flipped[at] ^= 1 << bit
            try:
                found = marker.decode_marker(bytes(flipped))
            except NewerMarker:
                pytest.fail(f"byte {at}, bit {bit}: only that version could end it")
            except Malformed:
                continue
            assert found == marker.as_written(MARKER), (at, bit)  # in the newline at its end


@pytest.mark.parametrize("version", [1, 2])
def test_a_marker_of_an_older_version_is_read_without_a_checksum(version) -> None:
    older = markers.content_of(WHOLE) | {"format": version}
    del older["ended_holds"]
    found = marker.decode_marker(markers.written(older))
    assert found.held == (HOLD,)
    assert (found.ended, found.tells_ended) == ((), False)


def test_a_marker_without_the_checksum_that_its_version_writes_is_damaged() -> None:
    cut = msgspec.json.encode(markers.content_of(WHOLE))
    with pytest.raises(Malformed, match="its checksum is gone"):
        marker.decode_marker(cut)


def test_a_newer_marker_is_told_as_one() -> None:
    with pytest.raises(NewerMarker, match="format 99"):
        marker.decode_marker(markers.newer(WHOLE))
