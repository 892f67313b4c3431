"""The records of a walked batch: the compiled parser says what the codec would."""

import errno
import threading

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.adapters.event_log.embedded import records
from rlmm_daemon.codec import batches, scan
from rlmm_daemon.domain.errors import LogCorrupt
from tests.unit.adapters.kafka.broker import with_value_of_length


@pytest.fixture(autouse=True, params=[True, False], ids=["compiled", "not loaded yet"])
def parser(request, monkeypatch):
    loaded = records.Compiled()
    if request.param:
        loaded.load()
    monkeypatch.setattr(records, "compiled", loaded)
    monkeypatch.setattr(records, "READ_WITHOUT_BYTES", 2**40)
    return loaded


def built(values, base=0):
    return batches.build(values, base_offset=base, leader_epoch=3, timestamp_ms=7)


def resealed(batch):
    """Set the checksum anew, so that only the records can be wrong."""
    sealed = bytearray(batch)
    sealed[17:21] = crc32c(bytes(sealed[batches.CRC_FROM :])).to_bytes(4, "big")
    return bytes(sealed)


def told(call):
    try:
        return call()
    except LogCorrupt as error:
        return (error.message, error.fields["position"])


def both_ways(batch, ahead=0):
    """Return what the parser says, which must be what the codec says."""
    buffer = bytes(ahead) + batch
    found = scan._batch_at(buffer, ahead)
    assert isinstance(found, scan.FoundBatch)
    said = told(lambda: records.records_of(buffer, found, position=100))
    (judged,) = batches.split(batch, position=100 + ahead)
    assert said == told(lambda: batches.records_of(judged))
    return said


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=40), st.integers(0, 2**40))
def test_what_was_built_is_read(values, base):
    assert both_ways(built(values, base), ahead=5) == list(enumerate(values, base))


@given(st.data())
def test_what_is_wrong_inside_a_batch_is_told_as_the_codec_tells_it(data):
    values = data.draw(st.lists(st.binary(max_size=200), min_size=1, max_size=5))
    batch = bytearray(built(values))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(batches.HEADER_BYTES, len(batch) - 1))
        batch[at] = data.draw(st.integers(0, 255))
    both_ways(resealed(bytes(batch)))


def test_a_value_longer_than_any_memory_is_told_as_the_codec_tells_it():
    message, _ = both_ways(with_value_of_length(2**63 - 1))
    assert message


@pytest.mark.parametrize("attributes", [0x20, 0x01, 0x04])
def test_control_and_compressed_batches_are_for_the_codec(attributes):
    batch = bytearray(built([b"value"]))
    batch[22] = attributes
    both_ways(resealed(bytes(batch)))


def test_a_batch_that_skips_offsets_is_read():
    batch = bytearray(built([b"one", b"two"]))
    batch[26] = 5  # its last offset delta
    assert both_ways(resealed(bytes(batch))) == [(0, b"one"), (1, b"two")]


def test_the_compiled_parser_is_loaded_once_there_is_much_to_read(monkeypatch):
    monkeypatch.setattr(records, "READ_WITHOUT_BYTES", 1_000)
    monkeypatch.setattr(records, "compiled", records.Compiled())
    before = threading.active_count()
    both_ways(built([b"little"]))
    assert threading.active_count() == before
    assert both_ways(built([bytes(2_000)])) == [(0, bytes(2_000))]
    loader = records.compiled._loader
    assert isinstance(loader, threading.Thread)
    loader.join(30)
    assert records.compiled.parser(0) is not None
    assert both_ways(built([bytes(2_000)])) == [(0, bytes(2_000))]


def test_a_parser_that_could_not_be_loaded_is_loaded_later(monkeypatch):
    """Once there were no descriptors for it; without it a replay takes six times as long."""
    monkeypatch.setattr(records, "READ_WITHOUT_BYTES", 0)
    monkeypatch.setattr(records, "compiled", compiled := records.Compiled())

    def short(_name):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("importlib.import_module", short)
        compiled.load()
    assert compiled.parser(0) is None
    assert compiled.parser(1) is None
    loader = compiled._loader
    assert isinstance(loader, threading.Thread)
    loader.join(30)
    assert compiled.parser(0) is not None
