"""Ends of a log that is gone, and what a restore from snapshots would pass over in silence."""

from collections.abc import Mapping

from rlmm_daemon.config import Config, EmbeddedLog
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import TopicId
from rlmm_daemon.offline.log_adoption import is_configured, read_before
from rlmm_daemon.offline.log_contents import topic_of

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
