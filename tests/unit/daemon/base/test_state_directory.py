"""The state directory's copy of the bucket marker, whole and with any bit of it flipped."""

import pytest

from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec import marker
from rlmm_daemon.codec.marker import BucketMarker, Hold, LayoutRow
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.domain.errors import Malformed

MARKER = BucketMarker(
    cluster_id="here",
    partition_count=3,
    metadata_topic_id="AAECAwQFBgcICQoLDA0ODw",
    layouts=(LayoutRow(number=1, kind="local-tiered-storage", prefix="a/ü"),),
    holds=(Hold(metadata_partition=None, before_ms=7, broker_id=1),),
)


@pytest.fixture
def state(tmp_path):
    disk = LocalDisk()
    yield StateDirectory(disk, str(tmp_path))
    disk.close()


async def test_the_copy_comes_back_as_it_was_written(state):
    await state.write_marker(marker.encode(MARKER))
    found = await state.marker()
    assert found is not None
    expected = marker.decode_marker(marker.encode(MARKER))
    assert marker.decode_marker(found) == expected


async def test_a_copy_of_an_older_daemon_is_taken_as_it_is(state, tmp_path):
    (tmp_path / "marker.json").write_bytes(marker.encode(MARKER))
    assert await state.marker() == marker.encode(MARKER)


async def test_no_flipped_bit_of_the_copy_is_believed(state, tmp_path):
    await state.write_marker(marker.encode(MARKER))
    path = tmp_path / "marker.json"
    whole = path.read_bytes()
    expected = marker.decode_marker(marker.encode(MARKER))
    for at in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            path.write_bytes(flipped)
            try:
                found = await state.marker()
                assert found is not None
                assert marker.decode_marker(found) == expected, (at, bit)  # in a space, say
            except Malformed:
                continue
