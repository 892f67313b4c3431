"""A segment's files and metadata, and a log that plays the manager for copier and fetcher."""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from rlmm_daemon.codec import records
from rlmm_daemon.codec.api import SegmentFiles
from rlmm_daemon.core.fold.outcome import Applied
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.bucket.live_marker import BucketIdentity
from rlmm_daemon.domain.errors import IllegalTransition, RlmmError
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
)
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate

if TYPE_CHECKING:
    from rlmm_daemon.daemon.base.segment_log import DeleteStarted

PARTITION = TopicIdPartition(TopicId((1).to_bytes(16, "big")), "orders", 7)
IDENTITY = BucketIdentity(cluster_id="c1", partition_count=5, metadata_topic_id="t")
LOG_BYTES = 600_000
S = SegmentState


def metadata(**changes: Any) -> SegmentMetadata:
    made = SegmentMetadata(
        partition=PARTITION,
        segment_id=SegmentId(bytes(15) + b"\x09"),
        start_offset=Offset(11),
        end_offset=Offset(99),
        broker_id=BrokerId(1),
        max_timestamp_ms=5,
        event_timestamp_ms=6,
        segment_leader_epochs={LeaderEpoch(0): Offset(11)},
        segment_size_bytes=LOG_BYTES,
    )
    return replace(made, **changes)


def files_in(home: Any, *, transactions: bytes | None = b"txn") -> SegmentFiles:
    contents = {"log": b"A" * LOG_BYTES, "index": b"i" * 8, "timeindex": b"t" * 12, "snapshot": b""}
    if transactions is not None:
        contents["txnindex"] = transactions
    for suffix, content in contents.items():
        (home / f"11.{suffix}").write_bytes(content)
    return SegmentFiles(
        log=f"{home}/11.log",
        offset_index=f"{home}/11.index",
        time_index=f"{home}/11.timeindex",
        producer_snapshot=f"{home}/11.snapshot",
        leader_epoch_checkpoint=b"0\n1\n0 11\n",
        transaction_index=None if transactions is None else f"{home}/11.txnindex",
    )


class FakeLog:
    """A fold of segments. `faults` names the step (ADD or a state) that raises instead."""

    def __init__(self) -> None:
        self.on_delete_started: list[DeleteStarted] = []
        self.on_delete_put_aside: list[DeleteStarted] = []
        self.fold: dict[SegmentId, SegmentMetadata] = {}
        self.kept: dict[SegmentId, bytes] = {}
        self.held: set[SegmentId] = set()
        self.written: list[str] = []
        #: Of each `add`.
        self.callers: list[Caller] = []
        self.faults: dict[str, RlmmError] = {}
        self.followed = 0
        self._moved = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def keep_followed(self, tp: TopicIdPartition):
        del tp
        self.followed += 1
        try:
            yield
        finally:
            self.followed -= 1

    async def add(self, record: bytes, caller: Caller) -> None:
        self.callers.append(caller)
        await asyncio.sleep(0)
        if "ADD" in self.faults:
            raise self.faults["ADD"]
        segment = records.decode(record)
        assert isinstance(segment, SegmentMetadata)
        await self.put(segment)
        self.written.append("ADD")

    async def update(self, record: bytes, caller: Caller) -> None:
        assert caller is Caller.OPERATOR
        await asyncio.sleep(0)
        update = records.decode(record)
        assert isinstance(update, SegmentUpdate)
        if update.state.name in self.faults:
            raise self.faults[update.state.name]
        present = self.fold.get(update.segment_id)
        if present is None:
            raise IllegalTransition("gone")
        if present.state is update.state:
            return
        await self.put(present.with_update(update))
        self.written.append(update.state.name)

    @contextlib.asynccontextmanager
    async def fence(self, tp: TopicIdPartition, segment_id: SegmentId, timeout_seconds: float):
        del tp, segment_id, timeout_seconds
        yield

    async def update_if(
        self, record: bytes, holds: Any, timeout_seconds: float, *, inside: bool = False
    ) -> Applied | None:
        """Judged by `Removal` itself here: what `holds` asks of, a fake has none."""
        del holds, timeout_seconds
        assert inside
        update = records.decode(record)
        assert isinstance(update, SegmentUpdate)
        before = self.fold[update.segment_id].state
        await self.update(record, Caller.OPERATOR)
        return Applied(record, update.partition, before)

    async def put(self, segment: SegmentMetadata) -> None:
        if segment.custom_metadata is not None:
            self.kept[segment.segment_id] = segment.custom_metadata
        if segment.state is S.DELETE_SEGMENT_FINISHED:
            del self.fold[segment.segment_id]
        else:
            self.fold[segment.segment_id] = segment
        if segment.state is S.DELETE_SEGMENT_STARTED:
            for told in self.on_delete_started:
                told(segment.partition, segment.segment_id)
        async with self._moved:
            self._moved.notify_all()

    async def segment(self, tp: TopicIdPartition, segment_id: SegmentId):
        del tp
        await asyncio.sleep(0)
        found = self.fold.get(segment_id)
        return None if found is None else (found.state, records.encode(found))

    async def until_state(
        self, tp: TopicIdPartition, segment_id: SegmentId, states: frozenset[SegmentState]
    ):
        async with self._moved:
            await self._moved.wait_for(
                lambda: segment_id in self.fold and self.fold[segment_id].state >= min(states)
            )
        return await self.segment(tp, segment_id)

    def is_held(self, tp: TopicIdPartition, segment_id: SegmentId) -> bool:
        del tp
        return segment_id in self.held

    def kept_custom_metadata(self, tp: TopicIdPartition, segment_id: SegmentId) -> bytes | None:
        del tp
        return self.kept.get(segment_id)
