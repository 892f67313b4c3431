"""Proof that a replica has folded all that was committed a moment ago."""

import asyncio
from typing import Final

from rlmm_daemon.adapters.quorum.event_log.folding import Folding
from rlmm_daemon.adapters.quorum.event_log.own_replica import OwnReplica
from rlmm_daemon.domain.errors import UnavailableError

#: An end that was not reached in so long says nothing about now.
_MOMENT_SECONDS: Final = 2.0


class UpToDate:
    """That of one follower. An end stands until it is reached: the log's own moves on meanwhile."""

    def __init__(self, replica: OwnReplica, folding: Folding) -> None:
        self._replica = replica
        self._folding = folding
        self._end: int | None = None
        self._asked_at = 0.0

    def holds(self) -> bool:
        """Whether all is folded up to where the log was committed, by its leader's word."""
        now, heard = asyncio.get_running_loop().time(), self._replica.end_heard
        if self._end is None or heard is None or now - self._asked_at > _MOMENT_SECONDS:
            self._end, self._asked_at = heard, now
        if self._end is None or self._folding.applied < self._end:
            return False
        self._end = None
        return True

    async def comes(self, *, timeout_seconds: float) -> bool:
        """Whether it holds in time; at once False where no leader says where that is."""
        end = self._replica.end_heard
        if end is None:
            return False
        try:
            await self._folding.reached(end, timeout_seconds=timeout_seconds)
        except UnavailableError:
            return False
        return True
