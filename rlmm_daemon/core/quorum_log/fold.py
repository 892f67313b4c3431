"""Fold of a quorum's committed records: a function of the log's prefix alone, equal everywhere.

The n-th accepted record of a metadata partition has offset n there. A submitter's records count in
the order of their serials, without a gap, each at most once on whichever leader it was repeated.

A submitter's incarnation is granted by a record that follows its last one: no clock and no disk can
repeat one. From there on nothing of an older incarnation is accepted, so that whatever of it was
not accepted before never will be: a serial that was given up blocks nobody behind it.
"""

from enum import Enum, auto
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

import msgspec

from rlmm_daemon.codec.kraft import record_key
from rlmm_daemon.codec.kraft.record_key import FOUNDING, GRANT, RecordKey
from rlmm_daemon.core.quorum_log.epochs import Epochs

#: Of a submitter's newest records so many are known by their bytes; older ones by serial alone.
REMEMBERED: Final = 1024
_DIGEST_BYTES: Final = 16


class AcceptedEvent(NamedTuple):
    """The record has this offset in its partition."""

    partition: int
    offset: int


class Passed(Enum):
    """Why a record has no offset."""

    #: The log's first record.
    FOUNDED = auto()
    #: The submitter has this incarnation now.
    GRANTED = auto()
    #: It was accepted before.
    REPEATED = auto()
    #: Another one was accepted under its serial: two writers take themselves for one submitter.
    CONFLICTING = auto()
    #: Its incarnation is over, or was never granted.
    FENCED = auto()
    #: One before it is missing.
    OUT_OF_ORDER = auto()
    #: No event, or of a partition that the log does not have.
    FOREIGN = auto()


Outcome: TypeAlias = AcceptedEvent | Passed


class Submitter(msgspec.Struct):
    """What is known of one submitter."""

    incarnation: int = 0
    #: Whose it is, of those that asked for an incarnation of this number.
    nonce: bytes = b""
    #: The last one that was accepted of this incarnation; 0 before.
    serial: int = 0
    #: By serial, of the newest.
    digests: dict[int, bytes] = msgspec.field(default_factory=dict)


class LogFold:
    """Everything before one offset of the quorum's log, folded."""

    def __init__(self) -> None:
        #: None before the log was founded.
        self.partition_count: int | None = None
        #: By partition, the next offset.
        self.ends: list[int] = []
        self.epochs: list[Epochs] = []
        self.submitters: dict[int, Submitter] = {}

    def apply(self, epoch: int, key: RecordKey | None, value: bytes | None) -> Outcome:
        """Take the next data record, written by the leader of `epoch`."""
        if key is None:
            return Passed.FOREIGN
        if key.partition == GRANT:
            return self._grant(key, value)
        if key.partition == FOUNDING:
            return self._found(value)
        if not 0 <= key.partition < len(self.ends):
            return Passed.FOREIGN
        return self._refused(key, value) or self._accept(key.partition, epoch)

    def _refused(self, key: RecordKey, value: bytes | None) -> Passed | None:
        """Return why an event does not count; None: it does, and its submitter's next may come."""
        submitter = self.submitters.get(key.submitter)
        if submitter is None or key.incarnation != submitter.incarnation:
            return Passed.FENCED
        digest = _digest(key.partition, value)
        if key.serial <= submitter.serial:
            known = submitter.digests.get(key.serial, digest)
            return Passed.REPEATED if known == digest else Passed.CONFLICTING
        if key.serial != submitter.serial + 1:
            return Passed.OUT_OF_ORDER
        submitter.serial = key.serial
        submitter.digests[key.serial] = digest
        submitter.digests.pop(key.serial - REMEMBERED, None)
        return None

    def _accept(self, partition: int, epoch: int) -> AcceptedEvent:
        offset = self.ends[partition]
        self.ends[partition] = offset + 1
        self.epochs[partition].note(epoch, offset)
        return AcceptedEvent(partition, offset)

    def _grant(self, key: RecordKey, value: bytes | None) -> Passed:
        if value is None or len(value) != record_key.NONCE_BYTES:
            return Passed.FOREIGN
        known = self.submitters.get(key.submitter, Submitter())
        if key.incarnation == known.incarnation and value == known.nonce:
            return Passed.REPEATED
        if key.incarnation != known.incarnation + 1:
            return Passed.FENCED
        self.submitters[key.submitter] = Submitter(key.incarnation, value)
        return Passed.GRANTED

    def _found(self, value: bytes | None) -> Passed:
        count = record_key.read_count(value)
        if count is None:
            return Passed.FOREIGN
        if self.partition_count is not None:
            return Passed.REPEATED
        self.partition_count = count
        self.ends = [0] * count
        self.epochs = [Epochs() for _ in range(count)]
        return Passed.FOUNDED


def _digest(partition: int, value: bytes | None) -> bytes:
    """Return what two records have in common only if they are the same."""
    size = -1 if value is None else len(value)
    head = b"%d %d " % (partition, size)
    return blake2b(head + (value or b""), digest_size=_DIGEST_BYTES).digest()
