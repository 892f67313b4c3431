"""Records that callers submitted here, from their first wait to their commit.

All that wait when the replica has a moment go into one batch: under load, that is the linger. A
batch counts once it is committed *and* still stands in this log; where it was cut out, or a
snapshot took its place, another replica may have it yet, so that nobody knows.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from rlmm_daemon.core.raft.inputs import Submitted
from rlmm_daemon.domain.errors import InvalidArgument, NotLeader, OutcomeUnknown, Overloaded

Record: TypeAlias = tuple[bytes | None, bytes | None]

#: Of one batch; a record beside it comes on top.
BATCH_BYTES: Final = 1 << 20
#: Of one submission, so that its batch has a place in an answer.
RECORD_BYTES_MAX: Final = 4 << 20
#: Of what waits for its batch.
PENDING_BYTES_MAX: Final = 16 << 20
#: What a record takes besides its key and value, at most.
_AROUND: Final = 32


class _Submission(msgspec.Struct):
    records: Sequence[Record]
    size: int
    told: asyncio.Future[int]


class _Batch(msgspec.Struct):
    submissions: list[_Submission]
    base: int = -1
    end: int = -1


class Submissions:
    """Those of one replica."""

    def __init__(self) -> None:
        self._new: deque[_Submission] = deque()
        self._new_bytes = 0
        self._tokens = 0
        #: By token: taken, and not yet accepted or refused.
        self._offered: dict[int, _Batch] = {}
        #: In the log, in its order.
        self._written: deque[_Batch] = deque()

    @property
    def are_new(self) -> bool:
        """Whether some wait for their batch."""
        return bool(self._new)

    def add(self, records: Sequence[Record]) -> asyncio.Future[int]:
        """Return what will be the offset of the first one, once all are committed.

        The future raises NotLeader (nothing was appended) or OutcomeUnknown.

        Raises:
            InvalidArgument: none, or more than a batch holds.
            Overloaded: too many wait.
        """
        size = sum(len(key or b"") + len(value or b"") + _AROUND for key, value in records)
        if not records or size > RECORD_BYTES_MAX:
            raise InvalidArgument(f"{len(records)} records of {size} bytes can't be one batch")
        if self._new_bytes + size > PENDING_BYTES_MAX:
            raise Overloaded(f"{self._new_bytes} bytes wait to be written")
        told = asyncio.get_running_loop().create_future()
        self._new.append(_Submission(records, size, told))
        self._new_bytes += size
        return told

    def take(self) -> Submitted | None:
        """Return the next batch, if any waits."""
        batch = _Batch([])
        size = count = 0
        while self._new and (not size or size + self._new[0].size <= BATCH_BYTES):
            each = self._new.popleft()
            self._new_bytes -= each.size
            if each.told.done():  # its caller has left
                continue
            batch.submissions.append(each)
            size += each.size
            count += len(each.records)
        if not count:
            return None
        self._tokens += 1
        self._offered[self._tokens] = batch
        return Submitted(self._tokens, count)

    def payload(self, token: int) -> tuple[Record, ...]:
        """Return the records of a batch."""
        return tuple(record for each in self._offered[token].submissions for record in each.records)

    def accepted(self, token: int, base: int) -> None:
        """Know where a batch stands in the log."""
        batch = self._offered.pop(token)
        batch.base = base
        batch.end = base + sum(len(each.records) for each in batch.submissions)
        self._written.append(batch)

    def refused(self, token: int, leader: int | None) -> None:
        """Tell its callers that nothing was appended."""
        known = "nobody is known to" if leader is None else f"replica {leader} does"
        for each in self._offered.pop(token).submissions:
            _fail(each, NotLeader(f"this replica does not lead the quorum, {known}"))

    def committed(self, end: int) -> None:
        """Tell those whose records all lie before this."""
        while self._written and self._written[0].end <= end:
            batch = self._written.popleft()
            at = batch.base
            for each in batch.submissions:
                if not each.told.done():
                    each.told.set_result(at)
                at += len(each.records)

    def cut(self, end: int) -> None:
        """Tell those whose records stood at `end` or behind that nobody knows."""
        while self._written and self._written[-1].end > end:
            for each in self._written.pop().submissions:
                _fail(each, OutcomeUnknown("another leader's log took the place of this one's"))

    def end(self) -> None:
        """Tell all that this replica ends."""
        self.cut(0)
        for batch in self._offered.values():
            for each in batch.submissions:
                _fail(each, OutcomeUnknown("this replica ended before it was written"))
        for each in self._new:
            _fail(each, NotLeader("this replica ends"))
        self._offered.clear()
        self._new.clear()


def _fail(submission: _Submission, error: Exception) -> None:
    if not submission.told.done():
        submission.told.set_exception(error)
