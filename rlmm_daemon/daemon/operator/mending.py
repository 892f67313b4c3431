"""Orders for metadata partitions that failed: retry, repair, accept the loss.

An order answers when its partitions were judged anew, so that whoever gave it need not guess.
"""

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from typing import Any, Final

import structlog

from rlmm_daemon.codec import records
from rlmm_daemon.core import phrases
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.readiness.states import Failure, FailureReason, PartitionState, not_ready
from rlmm_daemon.daemon.base.crash_guard import CrashGuard
from rlmm_daemon.daemon.base.segment_log import decode_segment
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.operator.recovering import (
    MaybeFinished,
    Recovery,
    beginning_of,
    missing_of,
    require_same,
    update_of,
)
from rlmm_daemon.domain.errors import (
    CorruptError,
    InvalidArgument,
    OutcomeUnknown,
    RefusedError,
    UnavailableError,
)
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentUpdate
from rlmm_daemon.domain.segment import SegmentState as S

#: How long an order waits to be judged; a longer replay goes on and is answered as it stands.
JUDGED_SECONDS: Final = 20.0
_OF_OTHERS: Final = "others have this log, too: it is theirs to mend"
_UNREAD: Final = (
    "its log was not read to the end yet, so nothing was put back: what is still to be read may "
    "show it, or its end; ask again once it is read (rlmm partitions)"
)

logger = structlog.get_logger(__name__)

#: Mends one partition of the log with the records given; returns what it did.
LogRepair = Callable[[MetadataPartition, Collection[bytes]], Awaitable[Mapping[str, Any]]]


class Mending:
    """The orders, over a running manager."""

    def __init__(
        self,
        manager: Manager,
        *,
        guard: CrashGuard | None,
        repair: LogRepair | None,
        recovery: Recovery | None = None,
    ) -> None:
        """Without `repair` the event log has none of its own; without `recovery` no storage is."""
        self._manager = manager
        self._recovery = recovery
        self._guard = guard
        self._repair_log = repair
        #: Two repairs at once would each take what the other writes for the log's own.
        self._repairing = asyncio.Lock()

    async def retry(self, followers: Sequence[Follower]) -> dict[str, Any]:
        """Start those that failed over; return which, and which of them failed again.

        Raises:
            NotReady: none has failed, and one is read for so long that it is not known yet.
        """
        if not _failed(followers):
            await _judged(followers)
        failed = _failed(followers)
        for each in followers:
            if not (failed or _is_judged(each)):
                raise not_ready(each.partition, each.state, each.lag)
        self._forgive(failed)
        for follower in failed:
            follower.retry()
        await _judged(failed)
        return {
            "retried": [follower.partition for follower in failed],
            "failed": [follower.partition for follower in failed if follower.failure is not None],
            "next": [
                each.command(follower.partition) for follower, each in _failed(failed).items()
            ],
        }

    def _forgive(self, followers: Iterable[Follower]) -> None:
        """Let those that crashed be tried again, also by the daemon's next start."""
        for follower in followers:
            self._manager.fleet.released(follower.partition)
            if self._guard is not None:
                self._guard.forgive(follower.partition)

    async def rebuild(self, follower: Follower) -> dict[str, Any]:
        """Drop a fold and replay it from the log's start; return what it is then.

        Raises:
            InvalidArgument: the log is another one than was known.
            HistoryLost, PartitionFailed: the list of what it missed before can't be read, so that
                what it knows now could not be added to it.
        """
        failed = _failed([follower])
        try:
            await follower.history.load()
        except (CorruptError, RefusedError) as error:
            failure = failed.get(follower)
            raise error if failure is None else failure.error(follower.partition) from error
        follower.rebuild()
        self._forgive(_crashed(failed))
        await _judged([follower])
        failure = follower.failure
        return {
            "rebuilding": [follower.partition],
            "state": follower.state.value,
            "next": failure and failure.command(follower.partition),
        }

    async def recover(self, follower: Follower, *, execute: bool) -> dict[str, Any]:
        """Look for the objects of what the log lost, as `Recovery.recover`; say what is next.

        Raises:
            StorageUnavailable: not now.
        """
        assert self._recovery is not None, "without a storage there is nowhere to look"
        with self._kept(follower):
            answer = await self._recovery.recover(follower, execute=execute)
            await _judged([follower])
        failure = follower.failure
        if failure is None:
            return answer
        return answer | {"next": failure.command(follower.partition)}

    async def accept_everything(self, *, without_looking: bool) -> dict[str, Any]:
        """Go on without whatever is missing, of the whole log.

        Raises:
            InvalidArgument: nothing is, or objects were not looked for yet.
        """
        followers = list(self._manager.followed())
        if not without_looking:
            self._require_looked_for(followers)
            await self._require_restored()
        missing = sum(_given_up(each, without_looking=without_looking) for each in followers)
        await self._manager.fleet.acceptance.accept_all(without_looking=without_looking)
        logger.warning("loss accepted", missing=missing, without_looking=without_looking)
        followers = list(self._manager.followed())
        await _judged(followers)
        return {"accepted": "all", "missing": missing, "next": _next(followers)}

    async def accept(self, follower: Follower, *, without_looking: bool) -> dict[str, Any]:
        """Go on without what is missing of one metadata partition.

        One that was just begun to be followed is waited for: that nothing is missing is not known.

        Raises:
            InvalidArgument: nothing is, or objects were not looked for yet.
            NotReady: it is read for so long that nobody knows yet what is missing.
        """
        await _judged([follower])
        if not _is_judged(follower):
            raise not_ready(follower.partition, follower.state, follower.lag)
        if not without_looking:
            self._require_looked_for([follower])
        missing = _given_up(follower, without_looking=without_looking)
        await self._manager.fleet.acceptance.accept(follower, without_looking=without_looking)
        logger.warning(
            "loss accepted",
            metadata_partition=follower.partition,
            missing=missing,
            without_looking=without_looking,
        )
        await _judged([follower])
        return {
            "accepted": [follower.partition],
            "missing": missing,
            "next": _next([follower]),
        }

    @contextmanager
    def _kept(self, follower: Follower) -> Iterator[None]:
        """Keep a metadata partition followed: a look into the storage may take many minutes.

        That it was looked for would be forgotten with a follower that nobody wants any more.
        """
        follow_set = self._manager.fleet.follow_set
        assert follow_set is not None, "the log is open"
        with follow_set.keep(follower.partition):
            yield
            follow_set.demand([follower.partition])  # for the order that is named next

    def _require_looked_for(self, followers: Iterable[Follower]) -> None:
        """Raise where what an acceptance gives up for good may be put back yet.

        What is known to be missing is known by nothing else afterwards.
        """
        for follower in followers:
            history, number = follower.history, follower.partition
            known = history.missing_count or history.risen_count
            if self._recovery is None or not known or follower.looked_for:
                continue
            if follower.head_alone:
                continue  # the list stays, and is held against the rest of the log
            what = (
                f"{phrases.number(history.missing_count, 'finished segment')} of metadata "
                f"partition {number} may be there yet"
                if history.missing_count
                else f"{phrases.number(history.risen_count, 'deleted segment')} of metadata "
                f"partition {number} came back"
            )
            recover = f"rlmm log recover {number} --execute"
            certain = not (follower.uncertain or history.risen_count)
            command = f"rlmm log repair {number}" if certain else recover
            raise InvalidArgument(
                f"{what}, and nobody has looked for the objects since the daemon started, so "
                f"nothing was accepted; run: {command} (or say --without-looking)"
            )

    async def _require_restored(self) -> None:
        """Raise where the log is gone, and snapshots that an acceptance removes bring it back."""
        if self._recovery is not None and await self._manager.fleet.acceptance.can_be_restored():
            raise InvalidArgument(
                "the event log is gone, but there are snapshots of it, and rlmm log restore puts "
                "back what they know, so nothing was accepted; run: rlmm doctor, which names that "
                "command (or say --without-looking)"
            )

    async def repair(self, followers: Sequence[Follower]) -> dict[str, Any]:
        """Mend the log's files, append the finished segments that it lost, and start over.

        A log whose files are not this daemon's to mend is only read again. While nothing is known
        to have failed, those that are not judged yet are waited for, as after a start: told are
        those of which it is still not known, and those of whose log the head was not read.
        """
        async with self._repairing:
            if not _failed(followers):
                await _judged(followers)
            failed = _failed(followers)
            well = [follower for follower in followers if follower not in failed]
            unknown = [each.partition for each in well if not _is_judged(each)]
            self._forgive(_crashed(failed))
            until = asyncio.get_running_loop().time() + JUDGED_SECONDS
            rows = [await self._repair(*each, until) for each in failed.items()]
        await _judged(failed)
        for row, follower in zip(rows, failed, strict=True):
            row["state"] = follower.state.value
            if follower.failure is not None:
                row.setdefault("error", follower.failure.evidence)
                row["next"] = follower.failure.command(follower.partition)
        return {"repaired": rows, "not_known": unknown, "not_read": self._not_read(well)}

    def _not_read(self, followers: Iterable[Follower]) -> list[dict[str, int]]:
        """Return which went on from a snapshot: damage before that is not noticed by them."""
        return [
            {"metadata_partition": each.partition, "before_offset": each.went_on_from}
            for each in followers
            if self._repair_log is not None and each.went_on_from and _is_judged(each)
        ]

    async def _repair(self, follower: Follower, failure: Failure, until: float) -> dict[str, Any]:
        row: dict[str, Any] = {
            "metadata_partition": follower.partition,
            "reason": failure.reason.value,
        }
        if failure.reason is FailureReason.LOG_CORRUPT:
            if self._repair_log is None or failure.instead is not None:
                # What names another command is no damage: to mend it would make it one.
                ours = self._repair_log is not None
                row["error"] = failure.evidence if ours else _OF_OTHERS
                follower.retry()
                return row
            await follower.known_to_snapshot()
            # Nothing is appended by it: what the log still says has to be read first.
            row |= dict(await self._repair_log(follower.partition, ()))
            follower.retry()
            await _judged([follower])
        row["appended"] = 0
        try:
            if await _read_to_end(follower, until):
                await self._put_back(follower, row)
            elif not follower.waits_for_order:
                row["error"] = _UNREAD
        except OutcomeUnknown as error:
            # Appended twice it is a repeat, so the operator may simply ask again.
            row["error"] = error.message
        except UnavailableError as error:
            row["error"] = f"objects could not be looked for: {error.message}"
        follower.retry()
        return row

    async def _put_back(self, follower: Follower, row: dict[str, Any]) -> None:
        """Append what was known to be finished and the replay lacks: never what ended later.

        Where there is a storage, only segments whose objects are there, and only where all that was
        lost is known: else their end may have stood in it, and `log recover` says so and looks.
        """
        log, fold, held = self._manager.log, follower.fold, _put_back(follower.fold)
        for record in held:
            await log.append(follower.partition, record)
            row["appended"] += 1
        missing = missing_of(follower.history, follower.fold)
        if self._recovery is None:
            for each in missing:
                for record in _events(each):
                    await log.append(follower.partition, record)
                    row["appended"] += 1
            return
        if follower.uncertain:
            row["may_have_ended"] = len(missing)
            return
        look = await self._recovery.look(follower, missing)
        require_same(follower, fold)
        row["appended"] += await self._recovery.put_back(follower, look.whole)
        require_same(follower, fold)
        follower.looked_for = not (look.left or follower.history.risen_count)
        if look.lacking:
            row["not_whole"] = len(look.lacking)
        if look.left:
            row["not_looked_at"] = look.left


def _given_up(follower: Follower, *, without_looking: bool) -> int:
    """Return how many segments that are known to be missing an acceptance gives up."""
    stays = follower.head_alone and not without_looking
    return 0 if stays else follower.history.missing_count


def _next(followers: Iterable[Follower]) -> list[str]:
    """Return the commands for what still fails."""
    failed = _failed(list(followers)).items()
    return [failure.command(follower.partition) for follower, failure in failed]


def _crashed(failed: Mapping[Follower, Failure]) -> list[Follower]:
    """Return those that failed of crashes, which the next start would hold back again."""
    return [f for f, failure in failed.items() if failure.reason is FailureReason.CRASH_LOOP]


def _failed(followers: Iterable[Follower]) -> dict[Follower, Failure]:
    """Return those that failed, each with what it failed of."""
    return {each: each.failure for each in followers if each.failure is not None}


def _is_judged(follower: Follower) -> bool:
    settled = (PartitionState.READY, PartitionState.STALE, PartitionState.FAILED)
    return not follower.restarting and follower.state in settled


async def _judged(followers: Iterable[Follower]) -> None:
    """Return once each that was started over is ready or failed; or when it takes too long."""
    try:
        async with asyncio.timeout(JUDGED_SECONDS):
            for follower in followers:
                while not (_is_judged(follower) or follower.retired):
                    await follower.changed.wait()
    except TimeoutError:
        return


async def _read_to_end(follower: Follower, until: float) -> bool:
    """Whether a fold is read to its log's end, which is waited for until then (the loop's time)."""
    try:
        async with asyncio.timeout_at(until):
            while follower.restarting or not follower.read_to_end:
                if follower.waits_for_order or follower.retired:
                    return False
                await follower.changed.wait()
    except TimeoutError:
        return False
    return True


def _events(found: MaybeFinished) -> list[bytes]:
    """Return the events that make a segment finished again, from what the log says of it now."""
    return [*beginning_of(found), records.encode(_update(found.segment, S.COPY_SEGMENT_FINISHED))]


def _put_back(fold: Fold) -> list[bytes]:
    """Return the events that are left to make held segments finished again."""
    events = list[bytes]()
    for record in fold.held_records():
        segment = decode_segment(record)
        state = fold.partitions[segment.partition].state(segment.segment_id)
        if state is S.DELETE_SEGMENT_STARTED:
            events.append(records.encode(_update(segment, S.DELETE_SEGMENT_FINISHED)))
        events += _events(MaybeFinished(segment=segment, state=None))
    return events


def _update(segment: SegmentMetadata, state: S) -> SegmentUpdate:
    at_ms = segment.event_timestamp_ms
    return update_of(segment, state, segment.custom_metadata, at_ms=at_ms)
