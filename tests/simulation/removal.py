"""The removal of one user partition as a script, while others are written to.

A segment, the three marks, and the segment of a new life. Every step is asked for until it is
acknowledged; what may be seen is what the steps between the last acknowledged and the last asked
for imply, and nothing else.
"""

import asyncio
import contextlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rlmm_daemon.codec import records
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.domain.errors import RefusedError, UnavailableError
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
)
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from tests.simulation.world import Life, Violation

S, D = SegmentState, PartitionDeleteState
PARTITION: Final = TopicIdPartition(TopicId(bytes([99]) * 16), "doomed", 4)
BEFORE, AFTER = SegmentId(b"before the marks"), SegmentId(b"a second life...")
EPOCH: Final = LeaderEpoch(7)
LAST_OFFSET: Final = 99
ANSWER_SECONDS_MAX: Final = 400.0

#: What the partition is after so many steps: its segments, and how far its removal is.
Seen = tuple[Mapping[SegmentId, SegmentState], PartitionDeleteState | None]
STAGES: Final[tuple[Seen, ...]] = (
    ({}, None),
    ({BEFORE: S.COPY_SEGMENT_STARTED}, None),
    ({BEFORE: S.COPY_SEGMENT_FINISHED}, None),
    ({BEFORE: S.COPY_SEGMENT_FINISHED}, D.DELETE_PARTITION_MARKED),
    ({BEFORE: S.COPY_SEGMENT_FINISHED}, D.DELETE_PARTITION_STARTED),
    ({}, D.DELETE_PARTITION_FINISHED),
    ({AFTER: S.COPY_SEGMENT_STARTED}, None),
    ({AFTER: S.COPY_SEGMENT_FINISHED}, None),
)
STEPS: Final = len(STAGES) - 1


@dataclass(slots=True)
class Removal:
    """How far the script was acknowledged and asked for, over the daemon's lives."""

    acknowledged: int = 0
    asked: int = 0

    @property
    def done(self) -> bool:
        return self.acknowledged == STEPS

    async def run(self, life: Life, manager: Manager) -> None:
        """Ask for one step after another, with pauses, for ever."""
        rng = life.rng("removal")
        while True:
            await asyncio.sleep(rng.expovariate(2))
            if not self.done:
                await self.step(life, manager, rng)

    async def step(self, life: Life, manager: Manager, rng: random.Random) -> None:
        """Ask for the next step, now and then twice at once; it may remain to be asked again."""
        step = self.acknowledged
        self.asked = max(self.asked, step + 1)
        async with asyncio.TaskGroup() as repeats:
            for _ in range(rng.choice([1, 1, 2])):
                repeats.create_task(self._ask(life, manager, step, rng))

    async def _ask(self, life: Life, manager: Manager, step: int, rng: random.Random) -> None:
        seconds = rng.choice([0.05, 1.0, 30.0])
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                await _request(manager, step, seconds, rng.randint(1, 10**12))
        except TimeoutError:
            raise Violation(f"step {step} of a removal was not answered") from None
        except UnavailableError as error:
            life.loop.note(f"removal, step {step}: {error!r}")
        except RefusedError as error:
            raise Violation(f"step {step} of a removal was refused: {error!r}") from error
        else:
            if life.alive:
                self.acknowledged = max(self.acknowledged, step + 1)

    def judge(self, manager: Manager) -> None:
        """Hold what is answered, if anything is, against the stages that can be true."""
        possible = STAGES[self.acknowledged : self.asked + 1]
        with contextlib.suppress(UnavailableError, RefusedError):
            listed = manager.lookups.list_remote_log_segments(PARTITION, None, Caller.BROKER)
            seen = {}
            for event in map(records.decode, listed):
                assert isinstance(event, SegmentMetadata)
                seen[event.segment_id] = event.state
            if seen not in [segments for segments, _ in possible]:
                raise Violation(f"a partition on its way out shows {seen}, not of {possible}")
            self._judge_highest(manager)

    def _judge_highest(self, manager: Manager) -> None:
        """The highest offset goes with the partition, and comes back with its second life."""
        finished = {2: True, 3: True, 4: True, 7: True}
        possible = {finished.get(k, False) for k in range(self.acknowledged, self.asked + 1)}
        found = manager.lookups.highest_offset_for_epoch(PARTITION, EPOCH, Caller.BROKER)
        if (found == LAST_OFFSET) not in possible or found not in (None, LAST_OFFSET):
            raise Violation(f"step {self.acknowledged}: the highest offset is {found}")


async def _request(manager: Manager, step: int, seconds: float, time_ms: int) -> None:
    segments, mark = STAGES[step + 1]
    if mark is not None:
        record = PartitionDelete(
            partition=PARTITION, broker_id=BrokerId(1), event_timestamp_ms=time_ms, state=mark
        )
        await manager.events.put_partition_delete(records.encode(record), Caller.BROKER, seconds)
        return
    ((segment_id, state),) = segments.items()
    if state is S.COPY_SEGMENT_STARTED:
        await manager.events.add(
            records.encode(_started(segment_id, time_ms)), Caller.BROKER, seconds
        )
        return
    update = SegmentUpdate(
        partition=PARTITION,
        segment_id=segment_id,
        broker_id=BrokerId(1),
        event_timestamp_ms=time_ms,
        custom_metadata=None,
        state=state,
    )
    await manager.events.update(records.encode(update), Caller.BROKER, seconds)


def _started(segment_id: SegmentId, time_ms: int) -> SegmentMetadata:
    return SegmentMetadata(
        partition=PARTITION,
        segment_id=segment_id,
        start_offset=Offset(0),
        end_offset=Offset(LAST_OFFSET),
        broker_id=BrokerId(1),
        max_timestamp_ms=1,
        event_timestamp_ms=time_ms,
        segment_leader_epochs={EPOCH: Offset(0)},
        segment_size_bytes=1000,
    )
