"""Acceptance of a loss by an operator: of one metadata partition's, or of the whole log's."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from rlmm_daemon.core.readiness.states import FailureReason
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.following.known_log import KnownLog
from rlmm_daemon.daemon.following.noted_positions import NotedPositions
from rlmm_daemon.daemon.following.others_word import OthersWord
from rlmm_daemon.daemon.following.snapshots import SnapshotStore
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import LogRange, ranges_joined

#: How long an acceptance waits for the log that is made by it. It is written down with that log.
_MADE_SECONDS: Final = 5.0
#: Of a single partition.
_ENDED_BY_ACCEPTANCE: Final = (FailureReason.HISTORY_LOST, FailureReason.PRESENCE_UNREAD)


class LossAcceptance:
    """What is known goes, and the log is followed as it is."""

    def __init__(
        self,
        known: KnownLog,
        others: OthersWord,
        noted: NotedPositions,
        followers: Mapping[MetadataPartition, Follower],
        *,
        state: StateDirectory,
        snapshots: SnapshotStore,
        recount: Callable[[], Awaitable[None]],
        is_open: Callable[[], bool],
    ) -> None:
        """`followers` are those of now; `recount` follows the log by the number it has now."""
        self._known, self._others, self._reads = known, others, others.reads
        self._noted, self._followers = noted, followers
        self._state, self._snapshots = state, snapshots
        self._recount, self._is_open = recount, is_open

    async def accept_all(self, *, without_looking: bool = False) -> None:
        """Go on with the log as it is, or with a new one: an operator accepted the loss.

        Raises:
            InvalidArgument: there is no loss to accept, or the log or a partition failed of what no
                acceptance ends: nothing that is known may be given up for it.
            NotReady: the log is not open, so nobody knows yet what is missing.
        """
        self._known.require_known_loss()
        await self._others.heard()
        doubted = self._known.whole_failure or self._known.foreign_evidence
        lacking = [each for each in self._followers.values() if each.lacking]
        if not (doubted or lacking or self._others.unread):
            raise _nothing_missing("the event log", self._followers.values())
        _require_ended(() if doubted else lacking)
        if self._known.recounted is not None:
            await self._recount()
        whole = without_looking or bool(doubted)
        every = {
            int(follower.partition): _gaps_of(follower, without_looking=whole)
            for follower in self._followers.values()
        }
        failure = self._known.whole_failure
        recounted = failure and failure.reason is FailureReason.PARTITION_COUNT_CHANGED
        with self._reads.giving_up([*self._reads.present, *self._reads.recorded, *every]):
            if recounted:  # a death in between must not leave what no repair could put back here
                await self._forget_known()
            if self._known.identity is not None:
                await self._known.accept(None, every)
            if doubted and not recounted:  # before anybody follows, and misses it anew
                await self._forget_known()
            self._others.all_given_up()
            self._known.accept_missing = True
            self._known.foreign_evidence = None
            self._known.whole_failure = None
            if doubted:  # nobody's word of the former log is said of this one
                self._reads.forget_all()
            else:
                self._reads.give_up_all()
        if doubted:
            lacking = list(self._followers.values())
        for follower in lacking:  # of a whole log the snapshots of others may be all that is left
            await self._accept_in(follower, without_looking=whole)
        self._known.changed.ring()
        self._known.gone.ring()
        with suppress(TimeoutError):
            async with asyncio.timeout(_MADE_SECONDS):
                while not self._is_open():
                    await self._known.changed.wait()

    async def _forget_known(self) -> None:
        await self._snapshots.remove_all()
        await self._state.remove_all_lost()

    async def can_be_restored(self) -> bool:
        """Whether the log is gone and snapshots know what stood in it."""
        failure = self._known.whole_failure
        gone = failure is not None and failure.reason is FailureReason.LOG_MISSING
        return gone and await self._snapshots.any()

    async def accept(self, follower: Follower, *, without_looking: bool = False) -> None:
        """Go on without what one metadata partition is missing: an operator accepted it.

        Raises:
            InvalidArgument: the whole log is in doubt, so one partition cannot be accepted alone;
                or there is no loss to accept, or it failed of what no acceptance ends.
        """
        if self._known.foreign_evidence is not None or self._known.whole_failure is not None:
            raise InvalidArgument(
                "the whole log is another one than was known; run: rlmm partition accept-loss --all"
            )
        await self._others.heard()
        if not follower.lacking:
            raise _nothing_missing(f"metadata partition {follower.partition}", [follower])
        _require_ended([follower])
        with self._reads.giving_up([follower.partition]):
            gaps = _gaps_of(follower, without_looking=without_looking)
            await self._known.accept(follower.partition, {follower.partition: gaps})
            self._reads.give_up(follower.partition)
            self._others.given_up(follower.partition)
        await self._accept_in(follower, without_looking=without_looking)

    async def _accept_in(self, follower: Follower, *, without_looking: bool) -> None:
        await follower.accept_loss(without_looking=without_looking)
        if follower.accepted_start:
            self._noted.accepted_starts[follower.partition] = follower.accepted_start
        if self._known.identity is not None:
            await self._noted.write()


def _gaps_of(follower: Follower, *, without_looking: bool) -> Sequence[LogRange]:
    """Return the offsets whose loss is accepted: those too of which a list knows that goes."""
    stays = not follower.history.comparing or (follower.head_alone and not without_looking)
    if stays or not follower.accepted_start:
        return follower.open_gaps
    head = LogRange(start=0, end=follower.accepted_start)
    return ranges_joined([*follower.open_gaps, head])


def _require_ended(followers: Iterable[Follower]) -> None:
    """Raise where an acceptance would only take what the failure's own command needs."""
    for follower in followers:
        failure = follower.failure
        if failure is not None and failure.reason not in _ENDED_BY_ACCEPTANCE:
            raise InvalidArgument(
                f"metadata partition {follower.partition} failed ({failure.reason.value}: "
                f"{failure.evidence}); to accept a loss does not end that, so nothing was "
                f"accepted; run: {failure.command(follower.partition)}"
            )


def _nothing_missing(what: str, followers: Iterable[Follower]) -> InvalidArgument:
    """Return why there is no loss to accept, and what ends a failure that is none."""
    nothing = f"nothing is missing from {what}, so nothing was accepted"
    for follower in followers:
        failure = follower.failure
        if failure is not None:
            return InvalidArgument(
                f"{nothing}; metadata partition {follower.partition} failed "
                f"({failure.reason.value}: {failure.evidence}); "
                f"run: {failure.command(follower.partition)}"
            )
    return InvalidArgument(nothing)
