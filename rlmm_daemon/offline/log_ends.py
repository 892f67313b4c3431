"""Ends of a log by what daemons had read: what restore and verify would pass over in silence."""

from collections.abc import Mapping

import msgspec

from rlmm_daemon.codec.marker import BucketMarker
from rlmm_daemon.config import Config, EmbeddedLog
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import TopicId, uuid_text
from rlmm_daemon.offline.log_adoption import is_configured, read_before
from rlmm_daemon.offline.log_contents import topic_of
from rlmm_daemon.ports.event_log import LogIdentity

#: A metadata partition of a log.
Log = tuple[int, TopicId]
#: The offset up to which the snapshot of each has read.
ReadTo = Mapping[Log, int]


async def require_recorded(config: Config, read_to: ReadTo, target: str) -> None:
    """Make sure that snapshots know all that the daemon had read of a log that is gone.

    What was acknowledged between the last note of positions and a crash is known to nothing: only a
    daemon that was stopped wrote down where an embedded log ended. Of a log that is there the
    daemon finds out by itself what it lacks: a new one has another id.

    Raises:
        InvalidArgument: more had been acknowledged, or nothing says whether; nothing was made.
    """
    if not is_configured(config, target):
        return
    before = await read_before(config)
    if not before and await topic_of(config, target) is None:
        raise _untold()
    for gone, positions in before.items():
        beyond = {
            number: at.next_offset
            for number, at in positions.items()
            if at.next_offset > read_to.get((number, gone), 0)
        }
        ends = {number: end for (number, log), end in read_to.items() if log == gone}
        ends |= {number: at.next_offset for number, at in positions.items()}
        exact = {number for number, at in positions.items() if at.exact}
        inexact = isinstance(config.event_log, EmbeddedLog) and {
            # Nothing is noted of one that held nothing.
            number: end
            for number, end in ends.items()
            if end and number not in exact
        }
        if (beyond or inexact) and await topic_of(config, target) != gone:
            if beyond:
                raise _unrecorded(read_to, gone, *min(beyond.items()))
            if inexact:
                raise _unended(*min(inexact.items()))


def _unrecorded(read_to: ReadTo, gone: TopicId, number: int, end: int) -> InvalidArgument:
    return InvalidArgument(
        f"daemons had read metadata partition {number} of the log that is gone up to offset "
        f"{end}, the snapshots up to {read_to.get((number, gone), 0)}: segments that were "
        "finished in between do not come back, and would be answered as if they had never been. "
        "Next: name other brokers' snapshots; or the same with --accept-loss, which holds their "
        "objects"
    )


def _unended(number: int, end: int) -> InvalidArgument:
    return InvalidArgument(
        f"the daemon did not stop by itself: it had read metadata partition {number} of the log "
        f"that is gone up to offset {end} when it last noted that, and nothing says what it "
        "acknowledged behind that. Segments that were finished there do not come back, and would "
        "be answered as if they had never been. Next: the same with --accept-loss, which holds "
        "their objects"
    )


def _untold() -> InvalidArgument:
    return InvalidArgument(
        "the log is gone, and so is all that says how far the daemon had read it: positions.json "
        "of the state directory, the presence file and the marker of the bucket. Nobody knows what "
        "was finished that the snapshots had not read: it does not come back, and would be "
        "answered as if it had never been. Next: put one of these files back from a copy; or the "
        "same with --accept-loss"
    )


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a log has to hold, by metadata partition."""

    #: The offset up to which some daemon had read it.
    read_to: Mapping[int, int]
    #: The offset up to which the loss of its beginning was accepted.
    accepted_to: Mapping[int, int]

    def why_lacking(self, number: int, start: int, end: int) -> str | None:
        """Return what is missing from a metadata partition that was read from `start` to `end`."""
        if start > self.accepted_to.get(number, 0):
            return f"it begins at offset {start}"
        known, end = self.read_to.get(number, 0), max(start, end)  # nothing may be left of it
        return f"it ends at offset {end}, daemons had read it to {known}" if end < known else None


async def expected(config: Config, present: BucketMarker | None, log: LogIdentity) -> Expected:
    """Return what the log has to hold; asked before it is read, as it goes on meanwhile.

    Raises:
        RlmmError: the storage does not answer.
    """
    read = (await read_before(config)).get(log.topic_id, {})
    heads = {
        gap.metadata_partition: gap.end
        for gap in sorted(present.gaps if present is not None else (), key=lambda gap: gap.end)
        if gap.topic_id == uuid_text(log.topic_id) and gap.start == 0
    }
    return Expected(read_to={n: at.next_offset for n, at in read.items()}, accepted_to=heads)
