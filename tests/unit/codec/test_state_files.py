"""The small JSON files of the state directory: damage is called damage, whatever JSON takes."""

import itertools

import msgspec
import pytest

from rlmm_daemon.codec.state_files import (
    AcceptedFile,
    Identity,
    Position,
    Positions,
    from_json,
    to_json,
)
from rlmm_daemon.domain.errors import Malformed
from rlmm_daemon.domain.ids import uuid_text

TOPIC_ID = uuid_text(b"m" * 16)
IDENTITY = Identity(cluster_id="c", topic_id=TOPIC_ID, partition_count=3, partitioner=1)
POSITIONS = Positions(topic_id=TOPIC_ID, partitions={"2": Position(7, 1)}, accepted_starts={"1": 4})
ACCEPTED = AcceptedFile(topic_id=TOPIC_ID, gaps={"0": [(1, 2)]})


@pytest.mark.parametrize("content", [IDENTITY, POSITIONS, ACCEPTED])
def test_what_was_written_is_read(content):
    assert from_json(to_json(content), type(content), "name") == content


@pytest.mark.parametrize(
    ("content", "old", "new"),
    [
        (IDENTITY, TOPIC_ID[:4], TOPIC_ID[:3] + "/"),
        (POSITIONS, TOPIC_ID[:4], TOPIC_ID[:3] + "\u00e9"),
        (ACCEPTED, TOPIC_ID[:4], TOPIC_ID[:3]),
        (POSITIONS, '"2"', '"r"'),
        (POSITIONS, '"1"', '"-1"'),
        (ACCEPTED, '"0"', '"\u00b2"'),
    ],
)
def test_one_bit_in_a_name_is_damage_and_no_bug(content, old, new):
    data = _of_an_older_daemon(content).decode().replace(old, new, 1).encode()
    with pytest.raises(Malformed, match="name is damaged"):
        from_json(data, type(content), "name")


@pytest.mark.parametrize("content", [IDENTITY, POSITIONS, ACCEPTED])
def test_no_flipped_bit_is_taken_for_what_was_written(content):
    data = to_json(content)
    for at, bit in itertools.product(range(len(data)), range(8)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << bit
        try:
            found = from_json(bytes(flipped), type(content), "name")
        except Malformed:
            continue
        assert found == content, "a bit of the checksum's own name, or of white space"


@pytest.mark.parametrize("content", [IDENTITY, POSITIONS, ACCEPTED])
def test_a_file_without_checksum_is_an_older_daemons(content):
    assert from_json(_of_an_older_daemon(content), type(content), "name") == content


def _of_an_older_daemon(content: Identity | Positions | AcceptedFile) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"
