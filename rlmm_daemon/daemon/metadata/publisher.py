"""An event's way into the log: judged by a fold, appended, known by its own apply."""

import asyncio
from collections.abc import Callable

from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.outcome import Outcome
from rlmm_daemon.daemon.base.appends import Append, MustWait, Tell
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.following.fleet import Fleet
from rlmm_daemon.daemon.metadata.gates import Gates
from rlmm_daemon.domain.errors import Draining, NotReady, TimedOut
from rlmm_daemon.domain.event import Event
from rlmm_daemon.ports.clock import Clock


class Publisher:
    """Of one manager, while that runs."""

    def __init__(self, fleet: Fleet, gates: Gates, clock: Clock) -> None:
        self._fleet, self._gates, self._clock = fleet, gates, clock
        #: Writers live in it; None while the manager does not run.
        self.group: asyncio.TaskGroup | None = None
        self._ended = False

    def end(self) -> None:
        """Begin nothing any more: the manager's tasks are ending."""
        self.group, self._ended = None, True

    def tasks(self) -> asyncio.TaskGroup:
        """Return the group that writers live in.

        Raises:
            NotReady, Draining: the manager does not run yet, or not any more.
        """
        if self.group is not None:
            return self.group
        if self._ended:
            raise Draining("the daemon stops; nothing was begun")
        raise NotReady("the daemon has just begun; nothing was written", state="starting")

    async def write(
        self,
        event: Event,
        value: bytes,
        caller: Caller,
        timeout_seconds: float,
        *,
        on_demand: bool,
        judge: Callable[[], Fold] | None = None,
        inside: bool = False,
    ) -> Outcome | None:
        """Append an event if a fold allows it and return what its own apply came to.

        None says that it was a repeat: it succeeded, and nothing was appended. `on_demand`
        waits, as for an operator, until the metadata partition is ready.

        Raises:
            RefusedError: the fold does not allow it; nothing was appended.
            OutcomeUnknown: it may be in the log, now or later.
        """
        if self._gates.draining and caller is Caller.BROKER:
            raise Draining
        deadline = self._clock.monotonic() + timeout_seconds
        if caller is Caller.OPERATOR and self._fleet.follow_set is None:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._gates.opened()
            except TimeoutError as error:
                raise TimedOut("the event log was not open in time") from error
        follow_set, group = self._gates.follow_set(), self.tasks()
        metadata_partition = follow_set.of(event.partition)
        with follow_set.keep(metadata_partition):
            if on_demand or caller is Caller.OPERATOR:
                await self._gates.until_writable(metadata_partition, timeout_seconds)
            await self._gates.until_read(metadata_partition, event.partition, timeout_seconds)
            writer = self._fleet.writer(metadata_partition, group)
            judge = judge or (lambda: self._gates.writable(event.partition).fold)
            return await writer.write(event, value, judge, deadline, inside=inside)

    def begin(
        self, event: Event, value: bytes, timeout_seconds: float, tell: Tell
    ) -> Append | None:
        """As `write` for a broker, where nothing has to be waited for.

        The metadata partition stays followed without a `keep`: a follower that judged is there,
        and none is stopped while its writer has something in flight.
        """
        if self._gates.draining:
            raise Draining
        self.tasks()
        follower = self._gates.writable(event.partition)
        if self._gates.is_being_read(follower, event.partition):
            raise MustWait
        deadline = self._clock.monotonic() + timeout_seconds
        return follower.writer.begin(event, value, follower.fold, deadline, tell)
