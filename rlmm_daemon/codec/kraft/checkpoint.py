"""Snapshots of a quorum's log: `<end offset>-<epoch>.checkpoint`, batches with offsets from 0 on.

A control batch comes first (header; with kraft.version 1 that and the voters), then the data, then
a control batch with the footer. All bear the epoch of the name. Source: RecordsSnapshotWriter,
RecordsSnapshotReader, Snapshots.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from rlmm_daemon.codec import batches
from rlmm_daemon.codec.kraft import control, log_batches
from rlmm_daemon.codec.kraft.control import (
    Control,
    KRaftVersion,
    Pair,
    SnapshotFooter,
    SnapshotHeader,
)
from rlmm_daemon.core.raft.log_facts import BEGINNING, Batch, LogPoint
from rlmm_daemon.core.raft.voters import VotersAt, VoterSet
from rlmm_daemon.domain.errors import LogCorrupt

SUFFIX: Final = ".checkpoint"
#: Written, and not yet whole.
PART_SUFFIX: Final = ".checkpoint.part"
#: Of Kafka, which removes such a file a minute later.
DELETED_SUFFIX: Final = ".checkpoint.deleted"
_NAME: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
#: Data records go into batches of about so many bytes.
_BATCH_BYTES: Final = 256 * 1024
#: What says nothing of voters: kraft.version 0, where they are configured.
_NO_VOTERS: Final = VotersAt(-1, VoterSet(), 0)


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A whole snapshot: what it says of the voters, and where its data stands."""

    last_timestamp_ms: int
    voters: VotersAt


def name(point: LogPoint) -> str:
    """Return the file's name."""
    return f"{point.end:020}-{point.epoch:010}{SUFFIX}"


def parse_name(file_name: str) -> LogPoint | None:
    """Return the point of a complete snapshot's name, None of any other."""
    found = _NAME.fullmatch(file_name)
    return None if found is None else LogPoint(epoch=int(found[2]), end=int(found[1]))


class Builder:
    """A snapshot's bytes, batch by batch; they are to be written in this order."""

    def __init__(self, point: LogPoint, *, timestamp_ms: int) -> None:
        self._epoch = point.epoch
        self._timestamp_ms = timestamp_ms
        self._offset = 0

    def begin(self, voters: VotersAt, *, last_timestamp_ms: int) -> bytes:
        """Return the first batch."""
        first = [control.pair(SnapshotHeader(last_timestamp_ms))]
        if voters.kraft_version > 0:
            first.append(control.pair(KRaftVersion(voters.kraft_version)))
            first.append(control.pair(voters.voters))
        return self._batch(first, is_control=True)

    def data(self, records: Sequence[Pair]) -> bytes:
        """Return the next batch of records (key and value).

        Raises:
            InvalidArgument: none, or more than a batch holds.
        """
        return self._batch(records, is_control=False)

    def copied(self, batch: bytes) -> bytes:
        """Return a batch of another snapshot as the next one of this.

        Raises:
            LogCorrupt: it does not hold.
        """
        found = batches.moved(batch, base_offset=self._offset, leader_epoch=self._epoch)
        self._offset = found.next_offset
        return found.content

    def end(self) -> bytes:
        """Return the last batch."""
        return self._batch([control.pair(SnapshotFooter())], is_control=True)

    def _batch(self, records: Sequence[Pair], *, is_control: bool) -> bytes:
        data = batches.build_keyed(
            records,
            base_offset=self._offset,
            leader_epoch=self._epoch,
            timestamp_ms=self._timestamp_ms,
            control=is_control,
        )
        self._offset += len(records)
        return data


def build(
    point: LogPoint,
    voters: VotersAt,
    records: Iterable[Pair],
    *,
    timestamp_ms: int,
    last_timestamp_ms: int,
) -> Iterator[bytes]:
    """Yield a snapshot's batches: its beginning, its records (key and value), its end.

    Raises:
        InvalidArgument: a record that no batch holds.
    """
    builder = Builder(point, timestamp_ms=timestamp_ms)
    yield builder.begin(voters, last_timestamp_ms=last_timestamp_ms)
    for chunk in chunks(records):
        yield builder.data(chunk)
    yield builder.end()


def chunks(records: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Yield records in batches of a bounded size."""
    chunk: list[Pair] = []
    size = 0
    for key, value in records:
        chunk.append((key, value))
        size += len(key or b"") + len(value or b"")
        if size >= _BATCH_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def bootstrap(voters: VoterSet, *, timestamp_ms: int) -> bytes:
    """Return the checkpoint 0-0, which says who the first voters are."""
    first = VotersAt(-1, voters, 1)
    times = {"timestamp_ms": timestamp_ms, "last_timestamp_ms": timestamp_ms}
    return b"".join(build(BEGINNING, first, (), **times))


class Reading:
    """A snapshot that is read piece by piece, so that one of any size takes little memory."""

    def __init__(self, point: LogPoint) -> None:
        self._point = point
        self._rest = b""
        #: Of its bytes, and of its records, so many were read.
        self._at = self._offset = 0
        self._said: list[Control] = []

    def take(self, piece: bytes) -> None:
        """Read on.

        Raises:
            LogCorrupt: it is damaged, or not the one of this name.
        """
        self._rest += piece
        taken = 0
        for batch in log_batches.walk(self._rest):
            self._take(batch, self._at + taken)
            assert isinstance(batch.payload, bytes), "that is what walking yields"
            taken += len(batch.payload)
        self._at += taken
        self._rest = self._rest[taken:]

    def end(self) -> Checkpoint:
        """Return what it says of itself.

        Raises:
            LogCorrupt: it is cut short.
        """
        if self._rest or not _has_footer(self._said):
            raise LogCorrupt(f"the snapshot is cut short at byte {self._at}", position=self._at)
        return _summary(self._said)

    def _take(self, batch: Batch, at: int) -> None:
        if (batch.base, batch.epoch) != (self._offset, self._point.epoch):
            reason = f"offset {batch.base} of epoch {batch.epoch} at offset {self._offset}"
            raise LogCorrupt(f"{reason} (batch at byte {at})", position=at)
        if _has_footer(self._said):
            raise LogCorrupt(f"a batch behind the footer (batch at byte {at})", position=at)
        assert isinstance(batch.payload, bytes), "that is what walking yields"
        self._said += _said(batch.payload)
        if not self._said:
            raise LogCorrupt("a snapshot begins with its header", position=0)
        self._offset = batch.end


def read(data: bytes, point: LogPoint) -> Checkpoint:
    """Return what a snapshot says of itself, after every batch of it was checked.

    Raises:
        LogCorrupt: it is cut short, damaged, or not the one of this name.
    """
    reading = Reading(point)
    reading.take(data)
    return reading.end()


def records(data: bytes) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield keys and values of a snapshot's data, in their order.

    Raises:
        LogCorrupt: as `read`.
    """
    for batch in batches.split(data):
        if not batch.is_control:
            for _, key, value in batches.keyed_records_of(batch):
                yield key, value


def _has_footer(said: list[Control]) -> bool:
    return bool(said) and isinstance(said[-1], SnapshotFooter)


def _said(data: bytes) -> list[Control]:
    """Return a batch's control records, which walking over it has read already."""
    (batch,) = batches.split(data)
    if not batch.is_control:
        return []
    found = [control.read(key, value) for _, key, value in batches.keyed_records_of(batch)]
    return [record for record in found if record is not None]


def _summary(said: list[Control]) -> Checkpoint:
    header = said[0]
    if not isinstance(header, SnapshotHeader):
        raise LogCorrupt("a snapshot begins with its header", position=0)
    voters = [record for record in said if isinstance(record, VoterSet)]
    versions = [record.version for record in said if isinstance(record, KRaftVersion)]
    version = versions[-1] if versions else 0
    at = VotersAt(-1, voters[-1], version) if voters and version else _NO_VOTERS
    return Checkpoint(last_timestamp_ms=header.last_timestamp_ms, voters=at)
