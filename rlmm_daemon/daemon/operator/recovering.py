"""Puts finished segments back whose COPY_SEGMENT_FINISHED the log lost: only what is there, whole.

What the log lost is unknown, the objects are not: a copy shows its `.log` last and when all else of
the segment is verified, a delete removes it first. So a whole set of objects was once finished, or
was about to be, and nobody has deleted it. It is looked for before anything is appended.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec
import structlog
from crc32c import crc32c
from msgspec.structs import replace

from rlmm_daemon.codec import custom_metadata, records
from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.codec.segment_check import SegmentChecker
from rlmm_daemon.core.disposal.holds import held
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.readiness.states import not_ready
from rlmm_daemon.daemon.base.segment_log import decode_segment
from rlmm_daemon.daemon.bucket.bucket import Bucket, SegmentPlace
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.following.history import History
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.operator.risen import Risen
from rlmm_daemon.domain.errors import ChecksumMismatch, Malformed, NotReady
from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, SegmentId, uuid_text
from rlmm_daemon.domain.segment import (
    CustomMetadata,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
)
from rlmm_daemon.ports.storage import ObjectKind

#: Segments that one order looks at: each is read through, so more take another order.
SEGMENTS_MAX: Final = 1_000
#: How long an order that is typed right after the daemon's start waits for the bucket's marker.
MARKER_SECONDS: Final = 5.0
#: How long an order waits for its own events to be applied.
APPLIED_SECONDS: Final = 20.0
#: Without a transaction index a segment is whole: most have none.
_REQUIRED: Final = tuple(kind for kind in ObjectKind if kind is not ObjectKind.TRANSACTION)

_LOG: Final = ObjectKind.LOG
_STARTED: Final = int(SegmentState.COPY_SEGMENT_STARTED)
#: Segments that are looked at before others get a turn.
_TURN: Final = 256

_ENDED: Final = "not put back: it was ended meanwhile, or the log did not apply it in time"

S = SegmentState
logger = structlog.get_logger(__name__)


class MaybeFinished(msgspec.Struct, frozen=True, kw_only=True):
    """A segment that may have been finished in what was lost."""

    segment: SegmentMetadata
    #: What the log says of it now: nothing, COPY_SEGMENT_STARTED or, of an earlier copy under its
    #: id, DELETE_SEGMENT_STARTED.
    state: SegmentState | None
    #: By its event it is younger than what was lost, but its broker's clock may have been ahead.
    younger: bool = False


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What one look for the objects of candidates showed."""

    #: Those whose objects are whole, with what to record.
    whole: Sequence[tuple[MaybeFinished, CustomMetadata]]
    #: Others, and why they are not.
    lacking: Sequence[tuple[MaybeFinished, str]]
    #: How many nobody has looked for yet: another order does.
    left: int


class RecoveryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Whose copies may still run."""

    broker_id: BrokerId
    #: When this process began: what this broker began before, it does not copy now.
    started_at_ms: int
    #: A copy that does not run in this process is over after so long.
    patience_ms: int


class Recovery:
    """The orders `log recover` and, for what is certain, `log repair`."""

    def __init__(
        self,
        manager: Manager,
        bucket: Bucket,
        options: RecoveryOptions,
        *,
        is_running: Callable[[SegmentId], bool],
    ) -> None:
        self._manager, self._bucket, self._options = manager, bucket, options
        self._is_running = is_running
        self._risen = Risen(manager, bucket, options.broker_id)
        #: By metadata partition, segments that were looked for and are not whole.
        self._lacked: dict[MetadataPartition, set[SegmentId]] = {}

    async def recover(self, follower: Follower, *, execute: bool) -> dict[str, Any]:
        """Return what can be put back or ended of a metadata partition, and do so if told to.

        `next` is what a person types about the rest: about what a hold keeps that is not whole.

        Raises:
            StorageUnavailable: nobody can say now what is there.
            NotReady: the log is read anew since the look began.
        """
        await self._bucket.until_judged(MARKER_SECONDS)
        fold = follower.fold
        candidates = [*missing_of(follower.history, follower.fold), *await self.begun(follower)]
        ends_hold = await self._what_is_held(follower.partition)
        look, risen = await self.look(follower, candidates), await self._risen.look(follower)
        require_same(follower, fold)
        whole, may_have_ended = look.whole, follower.uncertain
        lacking = [each for each in look.lacking if not each[0].younger]
        if execute:
            await self.put_back(follower, whole)
            lacking += [(each, _ENDED) for each, _ in whole if not _is_finished(follower, each)]
            whole = [each for each in whole if _is_finished(follower, each[0])]
            await applied(follower, await self._risen.end(follower, risen.gone))
            require_same(follower, fold)
        over = execute or not (whole or risen.gone)
        if over:
            self._risen.let_be(follower, risen)
            follower.looked_for = not (look.left or risen.left)
            if follower.failure is not None:
                follower.retry()  # it is judged anew, and names what ends it now
        return {
            "metadata_partition": follower.partition,
            "executed": execute,
            "put_back" if execute else "can_be_put_back": [_row(each.segment) for each, _ in whole],
            "not_whole": [_row(each.segment) | {"reason": why} for each, why in lacking],
            "ended" if execute else "can_be_ended": [_row(each) for each in risen.gone],
            "came_back": [_row(each) | {"reason": why} for each, why in risen.there],
            "may_have_ended": may_have_ended and bool(whole),
            "not_looked_at": look.left + risen.left,
            "next": ends_hold if over and not look.left else None,
        }

    async def _what_is_held(self, number: MetadataPartition) -> str | None:
        """Return the command that tells what a hold keeps, and ends that; None if nothing does."""
        hold = held(await self._bucket.holds(), number, None)
        if hold is None:
            return None
        which = "--all" if hold.metadata_partition is None else number
        return f"rlmm partition end-hold {which}"

    # What may have been finished.

    async def begun(self, follower: Follower) -> list[MaybeFinished]:
        """Return the copies that the log knows the beginning of, and that nobody works on."""
        holds = await self._bucket.holds()
        uncertain = follower.uncertain or follower.history.comparing
        known = {each.segment.segment_id for each in missing_of(follower.history, follower.fold)}
        found = list[MaybeFinished]()
        for index, segment in enumerate(_begun(follower)):
            if index % _TURN == _TURN - 1:
                await asyncio.sleep(0)
            since = segment.event_timestamp_ms
            doubted = uncertain or held(holds, follower.partition, since) is not None
            younger = not doubted and held(holds, follower.partition, None) is not None
            may = doubted or younger
            if may and segment.segment_id not in known and not self._may_run(segment):
                begun = MaybeFinished(
                    segment=segment, state=S.COPY_SEGMENT_STARTED, younger=younger
                )
                found.append(begun)
        return found

    def _may_run(self, segment: SegmentMetadata) -> bool:
        """Return whether somebody may be at work on it.

        A time far ahead is of a clock that was, or a copy that runs by such a clock: what is whole
        of that one may be finished by an order as well as by its broker.
        """
        if self._is_running(segment.segment_id):
            return True
        age_ms = self._manager.clock.now_ms() - segment.event_timestamp_ms
        if abs(age_ms) > self._options.patience_ms:
            return False
        own = segment.broker_id == self._options.broker_id
        return not own or segment.event_timestamp_ms >= self._options.started_at_ms

    # What is there.

    async def look(self, follower: Follower, candidates: list[MaybeFinished]) -> Look:
        """Look for the objects of so many as one order may, those first that none looked for.

        Raises:
            StorageUnavailable: not now.
        """
        lacked = self._lacked.setdefault(follower.partition, set())
        candidates = sorted(candidates, key=lambda each: each.segment.segment_id in lacked)
        chosen, rest = candidates[:SEGMENTS_MAX], candidates[SEGMENTS_MAX:]
        if chosen:
            # Whose marker it is can be told only once the bucket is being opened.
            await self._bucket.until_judged(MARKER_SECONDS)
            await self._bucket.confirm()  # in another bucket, or in none, nothing is there
        whole = list[tuple[MaybeFinished, CustomMetadata]]()
        lacking = list[tuple[MaybeFinished, str]]()
        for each in chosen:
            found = await self._look(each.segment)
            if isinstance(found, str):
                lacking.append((each, found))
            else:
                whole.append((each, found))
        if lacking:  # what is called gone is given up next: it was looked for in our bucket
            await self._bucket.confirm()
        left = sum(each.segment.segment_id not in lacked for each in rest)
        lacked &= {each.segment.segment_id for each in candidates}
        lacked |= {each.segment.segment_id for each, _ in lacking}
        lacked -= {each.segment.segment_id for each, _ in whole}
        return Look(whole=whole, lacking=lacking, left=left)

    async def _look(self, segment: SegmentMetadata) -> CustomMetadata | str:
        """Return what to record of a segment whose objects are whole, else what is wrong."""
        if custom_metadata.is_foreign(segment.custom_metadata):
            return "another storage manager stored it, and alone can look for its objects"
        if segment.segment_id in self._bucket.removing:
            return "its objects are being deleted"
        why = "none of its objects is there"
        for place in await self._bucket.places(segment):
            sizes = await self._sizes(place)
            if not sizes:
                continue
            problem = _problem(segment, sizes)
            crc = None if problem else await self._read(segment, place)
            if isinstance(crc, int):
                return custom_metadata.encode(
                    custom_metadata.StoredFacts(
                        layout_number=place.layout_number,
                        log_crc32c=crc,
                        sizes={kind.value: sizes[kind] for kind in sizes if kind is not _LOG},
                    )
                )
            why = problem or crc or why
        return why

    async def _sizes(self, place: SegmentPlace) -> dict[ObjectKind, int]:
        storage = self._bucket.storage
        found = {kind: await storage.size(key) for kind, key in place.keys.items()}
        return {kind: size for kind, size in found.items() if size is not None}

    async def _read(self, segment: SegmentMetadata, place: SegmentPlace) -> int | str:
        """Return the CRC-32C of the `.log` if every batch of it is sound, else what is wrong."""
        checker = SegmentChecker(
            start_offset=segment.start_offset,
            end_offset=segment.end_offset,
            size_bytes=segment.segment_size_bytes,
        )
        crc = 0
        chunks = self._bucket.storage.fetch(place.keys[_LOG], 0, segment.segment_size_bytes)
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    crc = crc32c(chunk, crc)
                    checker.feed(chunk)
                    await asyncio.sleep(0)
            checker.finish()
        except (ChecksumMismatch, Malformed) as damage:
            return f"its .log is damaged: {damage.message}"
        recorded = custom_metadata.decode(segment.custom_metadata)
        if recorded is not None and recorded.log_crc32c != crc:
            return "its .log is not the one that was recorded: the CRC-32C differs"
        return crc

    # Putting back.

    async def put_back(
        self, follower: Follower, whole: Sequence[tuple[MaybeFinished, CustomMetadata]]
    ) -> int:
        """Append what makes them COPY_SEGMENT_FINISHED; return how many events, once applied."""
        last, appended = -1, 0
        for candidate, custom in whole:
            segment = candidate.segment
            if _state(follower, segment) is not candidate.state:
                continue  # somebody ended it meanwhile
            for record in self._events(candidate, custom):
                last = await self._manager.log.append(follower.partition, record)
                appended += 1
            logger.warning(
                "segment put back",
                partition=str(segment.partition),
                segment_id=uuid_text(segment.segment_id),
            )
        await applied(follower, last)
        return appended

    def _events(self, candidate: MaybeFinished, custom: CustomMetadata) -> Iterator[bytes]:
        yield from beginning_of(candidate)
        now_ms = self._manager.clock.now_ms()
        yield records.encode(
            update_of(candidate.segment, S.COPY_SEGMENT_FINISHED, custom, at_ms=now_ms)
        )


def beginning_of(found: MaybeFinished) -> Iterator[bytes]:
    """Yield the events that are left before a segment can be COPY_SEGMENT_FINISHED."""
    segment = found.segment
    if found.state is S.DELETE_SEGMENT_STARTED:
        # Not its own end: should the next events be lost, it is still known to be missing.
        at_ms = segment.event_timestamp_ms
        ended = update_of(segment, S.DELETE_SEGMENT_FINISHED, ONLY_IF_STARTED, at_ms=at_ms)
        yield records.encode(ended)
    if found.state is not S.COPY_SEGMENT_STARTED:
        yield records.encode(replace(segment, state=S.COPY_SEGMENT_STARTED, custom_metadata=None))


def update_of(
    segment: SegmentMetadata, state: SegmentState, custom: CustomMetadata | None, *, at_ms: int
) -> SegmentUpdate:
    """Return an event of a segment, in the name of the broker that copied it."""
    return SegmentUpdate(
        partition=segment.partition,
        segment_id=segment.segment_id,
        broker_id=segment.broker_id,
        event_timestamp_ms=at_ms,
        custom_metadata=custom,
        state=state,
    )


def missing_of(history: History, fold: Fold) -> list[MaybeFinished]:
    """Return the segments that were known to be finished, and that the log does not show so.

    Without those whose end the log holds, or whose partition is being removed. A delete that is
    under way is no end where it was of an earlier copy under the same id.
    """
    found = list[MaybeFinished]()
    for record in history.missing:
        segment = decode_segment(record)
        cache = fold.partitions.get(segment.partition)
        state = None if cache is None else cache.state(segment.segment_id)
        removed = cache is not None and cache.delete_state is not None
        may = state in (None, S.COPY_SEGMENT_STARTED) or (
            state is S.DELETE_SEGMENT_STARTED
            and history.was_used_again(segment.partition, segment.segment_id)
        )
        if may and not removed:
            found.append(MaybeFinished(segment=segment, state=state))
    return sorted(found, key=lambda each: each.segment.start_offset)


def require_same(follower: Follower, fold: Fold) -> None:
    """Raise where a follower reads its log anew: what was looked for is of another fold.

    A look takes minutes. What the log lacks now is not what it lacked when the look began.
    """
    if follower.fold is not fold:
        raise not_ready(follower.partition, follower.state, follower.lag)


async def applied(follower: Follower, offset: int) -> None:
    """Return once a follower has applied what stands at an offset, or when it takes too long."""
    try:
        async with asyncio.timeout(APPLIED_SECONDS):
            while follower.fold.position <= offset and not follower.retired:
                await follower.changed.wait()
    except TimeoutError:
        return


def _begun(follower: Follower) -> Iterator[SegmentMetadata]:
    """Yield the segments of a fold that are COPY_SEGMENT_STARTED."""
    for partition in follower.fold.partitions.restless():
        try:
            cache = follower.fold.partitions.get(partition)
        except NotReady:
            continue  # its table is damaged: it is read again from the log
        if cache is None or cache.delete_state is not None:
            continue
        ids = [i for i, tail in cache.segments.items() if tails.state_of(tail) == _STARTED]
        for segment_id in ids:
            record = cache.get(segment_id)
            if record is not None:
                yield decode_segment(record)


def _state(follower: Follower, segment: SegmentMetadata) -> SegmentState | None:
    cache = follower.fold.partitions.get(segment.partition)
    return None if cache is None else cache.state(segment.segment_id)


def _is_finished(follower: Follower, candidate: MaybeFinished) -> bool:
    return _state(follower, candidate.segment) is S.COPY_SEGMENT_FINISHED


def _problem(segment: SegmentMetadata, sizes: dict[ObjectKind, int]) -> str:
    """Return what a set of objects lacks of what the record calls for, "" for nothing."""
    recorded = custom_metadata.decode(segment.custom_metadata)
    required = _REQUIRED if recorded is None else (*map(ObjectKind, recorded.sizes), _LOG)
    absent = [kind.value for kind in required if kind not in sizes]
    if absent:
        return f"not there: {', '.join(absent)}"
    wanted = {_LOG: segment.segment_size_bytes}
    if recorded is not None:
        wanted |= {ObjectKind(suffix): size for suffix, size in recorded.sizes.items()}
    wrong = [
        f"{kind.value} has {sizes[kind]} bytes, not {size}"
        for kind, size in wanted.items()
        if sizes[kind] != size
    ]
    return ", ".join(wrong)


def _row(segment: SegmentMetadata) -> dict[str, Any]:
    return {
        "partition": str(segment.partition),
        "segment_id": uuid_text(segment.segment_id),
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "bytes": segment.segment_size_bytes,
    }
