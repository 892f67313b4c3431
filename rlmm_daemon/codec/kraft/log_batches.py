"""Record batches of a quorum's log: a core batch's bytes, and fetched bytes as core batches.

Base offset and leader epoch lie outside of a batch's checksum. What follows on one another bears
them out: offsets without a gap, and a leader's own record (LeaderChange) at the start of each
epoch. That is the caller's to compare.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from rlmm_daemon.codec import batches
from rlmm_daemon.codec.batches import HEADER_BYTES, LENGTH_END
from rlmm_daemon.codec.kraft import control
from rlmm_daemon.codec.kraft.control import KRaftVersion, LeaderChanged
from rlmm_daemon.core.raft.log_facts import Batch
from rlmm_daemon.core.raft.turn import LeaderChange
from rlmm_daemon.core.raft.voters import VoterSet
from rlmm_daemon.domain.errors import InvalidArgument, LogCorrupt, Malformed

#: No batch of a quorum's log is larger; Kafka's own limit (`KafkaRaftClient.MAX_BATCH_SIZE_BYTES`).
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024

_LENGTH: Final = struct.Struct(">qi")
_PLACE: Final = struct.Struct(">qii")


def build(batch: Batch, *, timestamp_ms: int) -> bytes:
    """Return the bytes of a batch, by what it bears.

    Bytes are taken as they are; a sequence is of keys and values. A leader's first batch holds its
    LeaderChange, and of the very first epoch the bootstrap's kraft.version and voters.

    Raises:
        InvalidArgument: it holds nothing, not as many records as it says, or is too large.
    """
    payload = batch.payload
    if isinstance(payload, bytes):
        return payload
    records, is_control = _records(payload)
    if len(records) != batch.count:
        raise InvalidArgument(f"a batch of {batch.count} offsets is given {len(records)} records")
    data = batches.build_keyed(
        records,
        base_offset=batch.base,
        leader_epoch=batch.epoch,
        timestamp_ms=timestamp_ms,
        control=is_control,
    )
    if len(data) > BATCH_BYTES_MAX:
        raise InvalidArgument(f"a batch of {len(data)} bytes: {BATCH_BYTES_MAX} are the most")
    return data


def read(data: bytes) -> tuple[Batch, ...]:
    """Return the batches of a fetch's answer, each with its own bytes as its payload.

    The last one may be cut short, as fetches end at a limit of bytes, and is left out then.

    Raises:
        LogCorrupt: a batch that does not hold, or is larger than any may be.
        Malformed: not one whole batch.
    """
    found = tuple(walk(data))
    if data and not found:
        raise Malformed(f"{len(data)} bytes hold no whole batch")
    return found


def walk(data: bytes) -> Iterator[Batch]:
    """Yield the whole batches of some bytes, each one checked; a last one cut short is left out.

    Raises:
        LogCorrupt: as `read`; what came before was yielded.
    """
    at = 0
    while (size := size_at(data, at)) and at + size <= len(data):
        yield _one(data[at : at + size], at)
        at += size


def size_at(data: bytes, at: int) -> int:
    """Return how many bytes the batch there claims; 0 where too few follow to tell.

    Raises:
        LogCorrupt: less than a header, or more than any batch may have.
    """
    if len(data) - at < LENGTH_END:
        return 0
    size = LENGTH_END + int(_LENGTH.unpack_from(data, at)[1])
    if not HEADER_BYTES <= size <= BATCH_BYTES_MAX:
        raise LogCorrupt(f"a batch of {size} bytes (batch at byte {at})", position=at)
    return size


def place(data: bytes) -> tuple[int, int]:
    """Return the base offset and the epoch of a batch's bytes."""
    base, _, epoch = _PLACE.unpack_from(data)
    return base, epoch


def starts_epoch(batch: Batch) -> bool:
    """Whether it begins with a leader's own record, as the first batch of each epoch does."""
    assert isinstance(batch.payload, bytes), "one that was read"
    kept = next(batches.split(batch.payload))
    if not kept.is_control:
        return False
    _, key, value = batches.keyed_records_of(kept)[0]
    return isinstance(control.read(key, value), LeaderChanged)


def _records(payload: object) -> tuple[Sequence[control.Pair], bool]:
    match payload:
        case LeaderChange():
            changed = LeaderChanged(payload.leader, payload.voters, payload.granting)
            pairs = [control.pair(changed)]
            if payload.bootstrap is not None:
                version = KRaftVersion(payload.bootstrap.kraft_version)
                pairs += [control.pair(version), control.pair(payload.bootstrap.voters)]
            return pairs, True
        case VoterSet():
            return [control.pair(payload)], True
        case list() | tuple():
            return payload, False
        case _:
            raise InvalidArgument(f"nothing that a log holds: {type(payload).__name__}")


def _one(data: bytes, position: int) -> Batch:
    (kept,) = batches.split(data, position=position)
    if kept.record_count != kept.last_offset_delta + 1:
        reason = f"{kept.record_count} records for {kept.last_offset_delta + 1} offsets"
        raise LogCorrupt(f"{reason} (batch at byte {position})", position=position)
    if kept.leader_epoch < 0:
        raise LogCorrupt(f"epoch {kept.leader_epoch} (batch at byte {position})", position=position)
    voters, version = _set_by(kept) if kept.is_control else (None, None)
    return Batch(
        base=kept.base_offset,
        count=kept.record_count,
        epoch=kept.leader_epoch,
        voters=voters,
        kraft_version=version,
        payload=data,
    )


def _set_by(kept: batches.Batch) -> tuple[VoterSet | None, int | None]:
    """Return the voters and the kraft.version that a control batch sets; the last ones count."""
    voters: VoterSet | None = None
    version: int | None = None
    for offset, key, value in batches.keyed_records_of(kept):
        try:
            record = control.read(key, value)
        except Malformed as error:
            reason = f"the control record at offset {offset}: {error.message}"
            raise LogCorrupt(f"{reason} (batch at byte {kept.position})") from error
        match record:
            case VoterSet():
                voters = record
            case KRaftVersion(version=version):
                pass
            case _:
                pass
    return voters, version
