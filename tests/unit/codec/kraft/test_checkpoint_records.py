"""Records of an event log's checkpoint: read as they were packed, and everything else refused."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.codec import batches
from rlmm_daemon.codec.kraft import checkpoint
from rlmm_daemon.codec.kraft import checkpoint_records as records
from rlmm_daemon.codec.kraft.checkpoint_records import (
    EpochsOf,
    Event,
    Founded,
    PartitionAt,
    Starts,
    SubmitterAt,
)
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.core.raft.voters import VotersAt, VoterSet
from rlmm_daemon.domain.errors import InvalidArgument, LogCorrupt, RlmmError, UnsupportedProtocol

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.none() | st.binary(max_size=40)
RECORDS = st.one_of(
    st.builds(Founded, st.integers(1, 10_000)),
    st.builds(PartitionAt, INT32, INT64, INT64, INT64),
    st.builds(EpochsOf, INT32, st.lists(st.tuples(INT32, INT64), max_size=5).map(tuple)),
    st.builds(
        SubmitterAt,
        INT32,
        st.integers(0, 2**32 - 1),
        st.binary(min_size=16, max_size=16),
        st.integers(0, 2**64 - 1),
        st.lists(st.binary(min_size=16, max_size=16), max_size=4).map(tuple),
    ),
    st.builds(Starts, st.lists(INT64, max_size=5).map(tuple)),
    st.builds(Event, INT32, INT64, VALUES),
)


@given(RECORDS)
def test_a_record_is_read_as_it_was_packed(record):
    assert records.read(*records.pack(record)) == record


def test_an_event_is_these_bytes():
    key, value = records.pack(Event(partition=7, offset=258, value=b"value"))
    assert (key or b"").hex() == "000005000000070000000000000102"
    assert value == b"value"


@given(st.none() | st.binary(max_size=20), VALUES)
def test_hostile_bytes_are_refused_or_are_a_record(key, value):
    try:
        found = records.read(key, value)
    except (LogCorrupt, UnsupportedProtocol):
        return
    assert records.pack(found) == (key, value)


@given(RECORDS, st.data())
def test_a_record_that_is_cut_short_or_goes_on_is_refused_or_another_one(record, data):
    key, value = records.pack(record)
    assert key is not None
    cut = data.draw(st.integers(0, len(key) - 1))
    for changed in (key[:cut], key + b"\0"):
        with pytest.raises(RlmmError):
            records.read(changed, value)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (None, b"", LogCorrupt),
        (b"\0\0", b"", LogCorrupt),
        (b"\0\1\0", b"", UnsupportedProtocol),
        (b"\0\0\6", b"", UnsupportedProtocol),
        (b"\0\0\0", None, LogCorrupt),
        (b"\0\0\0", b"\0\0\0\0", LogCorrupt),
        (b"\0\0\0", b"\0\0\0", LogCorrupt),
        (b"\0\0\xff", b"", LogCorrupt),
        (b"\0\0\3\0\0\0\1", bytes(28 + 15), LogCorrupt),
        (b"\0\0\3\0\0\0\1", bytes(27), LogCorrupt),
        (b"\0\0\4", bytes(9), LogCorrupt),
    ],
)
def test_what_is_none_is_refused(key, value, error):
    with pytest.raises(error):
        records.read(key, value)


def test_what_no_field_holds_is_refused():
    with pytest.raises(InvalidArgument):
        records.pack(Event(2**31, 0, b""))


@given(st.lists(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=4), max_size=4))
def test_batches_of_another_snapshot_are_copied_as_they_are(chunks):
    there, here = LogPoint(3, 50), LogPoint(9, 80)
    nobody = VotersAt(-1, VoterSet(), 0)
    old = checkpoint.Builder(there, timestamp_ms=1)
    head = old.begin(nobody, last_timestamp_ms=1) + old.data([(b"another", b"head")])
    copies = [old.data(chunk) for chunk in chunks]
    checkpoint.read(head + b"".join(copies) + old.end(), there)
    new = checkpoint.Builder(here, timestamp_ms=2)
    whole = new.begin(nobody, last_timestamp_ms=2) + b"".join(map(new.copied, copies))
    whole += new.data([(b"and", b"on")]) + new.end()
    checkpoint.read(whole, here)
    assert list(checkpoint.records(whole)) == [*chain(*chunks), (b"and", b"on")]


def test_what_is_not_one_whole_batch_is_not_copied():
    batch = checkpoint.Builder(LogPoint(1, 1), timestamp_ms=1).data([(b"key", b"value")])
    for damaged in (b"", batch[:-1], batch + b"!", batch[:-1] + b"!", batch + batch):
        with pytest.raises(LogCorrupt):
            batches.moved(damaged, base_offset=0, leader_epoch=0)
