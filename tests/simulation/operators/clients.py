"""What a broker asks of the daemon beside it: the copy of a segment, in either of its two ways."""

import random
from typing import Final

from rlmm_daemon.codec import records
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.segment_log import update_record
from rlmm_daemon.domain.segment import CustomMetadata, SegmentState
from tests.simulation.operators.daemon import Daemon
from tests.simulation.operators.truth import BROKER, Segment

#: Share of copies that are one request.
WHOLE_SHARE: Final = 0.6


async def copy(daemon: Daemon, segment: Segment, rng: random.Random) -> None:
    """Return when its COPY_SEGMENT_FINISHED is acknowledged."""
    record = records.encode(segment.first)
    if rng.random() < WHOLE_SHARE:
        await daemon.copier.copy_segment(record, segment.files, Caller.BROKER)
        return
    await daemon.manager.events.add(record, Caller.BROKER, 5.0)
    custom = await daemon.copier.copy_log_segment_data(record, segment.files)
    update = update_record(
        segment.first,
        SegmentState.COPY_SEGMENT_FINISHED,
        None if custom is None else CustomMetadata(custom),
        broker_id=BROKER,
        now_ms=daemon.life.clock.now_ms(),
    )
    await daemon.manager.events.update(update, Caller.BROKER, 5.0)
