"""Task of a replica: it feeds the core what happens, and obeys what it says.

Inputs are taken one at a time, and everything that one leads to is done before the next: a state is
on the disk before what follows it is sent. Only syncs of the log, requests to others and the
reading of their answers go on beside.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from rlmm_daemon.adapters.quorum.asking import Asking
from rlmm_daemon.adapters.quorum.files.replica_files import ReplicaFiles
from rlmm_daemon.adapters.quorum.links import Links
from rlmm_daemon.adapters.quorum.notices import Notices
from rlmm_daemon.adapters.quorum.own_snapshots import OwnSnapshots
from rlmm_daemon.adapters.quorum.reads import Reads
from rlmm_daemon.adapters.quorum.serving import with_piece, with_records
from rlmm_daemon.adapters.quorum.submitting import Record, Submissions
from rlmm_daemon.adapters.quorum.work import Work
from rlmm_daemon.codec.kraft import log_batches
from rlmm_daemon.core.raft import inputs
from rlmm_daemon.core.raft.forcing import is_abandoned
from rlmm_daemon.core.raft.inputs import Answered, Asked, Effect, Input, Moment, Peer, Unanswered
from rlmm_daemon.core.raft.log_facts import Batch, LogFacts
from rlmm_daemon.core.raft.messages import (
    Answer,
    Request,
)
from rlmm_daemon.core.raft.roles import Leader, Replica, Resigned, Timing
from rlmm_daemon.core.raft.step import deadline, start, step
from rlmm_daemon.core.raft.voters import Endpoint, VotersAt
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    RlmmError,
    StorageUnavailable,
)
from rlmm_daemon.ports.clock import Clock

#: Requests of others that wait for their turn; more are told to come back.
_INBOX_MAX: Final = 4096
#: What a leader says to go takes no longer than that, whoever answers.
_GOOD_BYE_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 0.005


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of one replica."""

    #: Where it listens, as others are told.
    endpoints: tuple[Endpoint, ...]
    #: Whom it asks who leads, while it knows nobody better.
    bootstrap: tuple[Endpoint, ...] = ()
    timing: Timing = Timing()


class Node:
    """A replica that runs: `run` until it is stopped or its disk fails."""

    def __init__(
        self, files: ReplicaFiles, links: Links, clock: Clock, options: NodeOptions
    ) -> None:
        self._files = files
        #: `ReplicaFiles.read`, of what is committed: it may be beside all that this task does.
        self.read = files.read
        self.links = links
        self._clock = clock
        self._luck = random.Random()  # noqa: S311 - of timers, so that two do not stand at once
        self._options = options
        self._inbox: deque[Input] = deque()
        self._bell = asyncio.Event()
        self._work = Work()
        self._tokens = 0
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._beside: set[asyncio.Task[None]] = set()
        #: The newest sync that was asked for and not begun.
        self._sync_due: inputs.StartSync | None = None
        self._syncing = False
        #: What a sync met: nothing more is written then.
        self._broken: Exception | None = None
        self._replica: Replica | None = None
        #: There is a replica.
        self.started = asyncio.Event()
        self.submissions = Submissions()
        self._reads = Reads()
        self.snapshots = OwnSnapshots(
            files,
            self._work,
            clock,
            options.timing,
            committed=lambda: self.replica.committed,
            take=self._take,
            nudge=self.nudge,
        )
        #: Called when role, epoch, leader or voters are others than before.
        self.on_change: list[Callable[[Replica], None]] = []
        #: Called when more is committed.
        self.on_commit: list[Callable[[], None]] = []
        #: Counted since the start, by kind.
        self.alarms: dict[str, int] = {}
        self._notices = Notices(self.alarms)
        self._asking = Asking(
            links,
            options.bootstrap,
            self._take,
            self._notices,
            known=lambda: _other_voters(self.replica),
        )

    @property
    def replica(self) -> Replica:
        """The replica as it is by now, once it has `started`."""
        assert self._replica is not None, "it has started"
        return self._replica

    @property
    def log(self) -> LogFacts:
        """The log as its files have it: a snapshot that took its place shows here first."""
        return self._files.log

    # What others ask.

    async def ask(self, request: Request, peer: Peer, cluster_id: str | None) -> Answer:
        """Return the replica's answer to another one's request, or to an operator's."""
        if len(self._inbox) >= _INBOX_MAX:
            raise StorageUnavailable("too many requests wait")
        self._tokens += 1
        token = self._tokens
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        self._take(Asked(token, request, peer, cluster_id))
        try:
            return await future
        finally:
            self._waiting.pop(token, None)

    async def submit(self, records: Sequence[Record]) -> int:
        """Append records here, if this replica leads; return the offset of the first, committed.

        Raises:
            NotLeader: it does not lead; nothing was appended.
            OutcomeUnknown: it led no more before they were committed.
        """
        waiting = self.submissions.add(records)
        self.nudge()
        return await waiting

    async def read_index(self) -> int:
        """Return an end below which all lies that was acknowledged before this call.

        Whoever has applied so much sees it. It takes one round trip to most voters, or none where
        this replica is alone.

        Raises:
            NotLeader: it does not lead, or most voters do not say so in time.
            Overloaded: too many wait.
        """
        token, waiting = self._reads.add()
        self._take(inputs.ReadAsked(token))
        return await waiting

    def outgrow(self, epoch: int) -> None:
        """Write nothing more of this epoch or an older one, if this replica is the only voter."""
        self._take(inputs.Outgrow(epoch))

    def nudge(self) -> None:
        """Look whether something was submitted."""
        self._bell.set()

    # The task.

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            OSError: the disk failed; it has to be opened anew.
            StorageUnavailable: going on would lose what was acknowledged.
            HistoryLost: the voters were forced while this replica was away.
        """
        files = self._files
        self._replica, effects = start(
            me=files.key,
            cluster_id=files.cluster_id,
            saved=files.saved,
            log=files.log,
            voters=files.voters,
            now=self._now(),
            endpoints=self._options.endpoints,
            timing=self._options.timing,
        )
        self.started.set()
        try:
            await self._obey(effects)
            while True:
                for happened in await self._next():
                    before = self.replica
                    if isinstance(happened, Answered) and is_abandoned(before, happened):
                        self._go(self._confirm(before, happened))
                        happened = Unanswered(happened.serial)  # noqa: PLW2901 - not to be believed
                    self._replica, effects = step(before, happened, self._now())
                    await self._obey(effects)
                    self._tell_of_changes(before)
                await self._work.do_all()
        except OSError:
            await self._say_good_bye()
            raise
        finally:
            await self._end()

    def _tell_of_changes(self, before: Replica) -> None:
        now = self.replica
        if now.role is before.role and now.voters is before.voters:
            return
        if _standing(now) != _standing(before):
            for call in self.on_change:
                call(now)

    async def leave(self) -> None:
        """Have somebody else lead, before this process ends: at most half a second."""
        self._take(inputs.Resign())
        until = self._clock.monotonic() + _GOOD_BYE_SECONDS
        while self._clock.monotonic() < until:
            match self.replica.role:
                case Leader():
                    pass
                case Resigned(unacknowledged=waited_for) if waited_for:
                    pass
                case _:
                    return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _say_good_bye(self) -> None:
        """Tell the others that this disk failed, without a word to the disk."""
        self._replica, effects = step(self.replica, inputs.Resign(), self._now())
        for effect in effects:
            if isinstance(effect, inputs.Send):
                self._go(self._asking.send(effect))
        if self._beside:
            await asyncio.wait(self._beside, timeout=_GOOD_BYE_SECONDS)

    def _take(self, happened: Input) -> None:
        self._inbox.append(happened)
        self._bell.set()

    def _now(self) -> Moment:
        return Moment(int(self._clock.monotonic() * 1000), self._luck.random())

    async def _next(self) -> list[Input]:
        """Return what happened, as soon as something has, or time has gone by."""
        while True:
            if self._broken is not None:
                raise self._broken
            if self._inbox or self.submissions.are_new or self._work.is_due:
                break
            self._bell.clear()
            due = deadline(self.replica)
            wait = None if due is None else max(0.0, due / 1000 - self._clock.monotonic())
            if due is not None and wait == 0.0:
                return [inputs.Tick()]
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._bell.wait()
        taken = [*self._inbox]
        self._inbox.clear()
        submitted = self.submissions.take()
        return taken if submitted is None else [*taken, submitted]

    async def _end(self) -> None:
        self.submissions.end()
        self._reads.end()
        for future in self._waiting.values():
            future.cancel()
        for task in self._beside:
            task.cancel()
        if self._beside:
            await asyncio.wait(self._beside)

    # Effects.

    async def _obey(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            await self._do(effect)

    async def _do(self, effect: Effect) -> None:
        match effect:
            case inputs.Save(state=state):
                await self._files.save(state)
            case inputs.Write(batch=batch, token=token):
                await self._write(batch, token)
            case inputs.Truncate(end=end):
                self.submissions.cut(end)
                await self._files.truncate(end)
            case inputs.StartSync():
                self._sync_due = effect
                if not self._syncing:
                    self._syncing = True
                    self._go(self._sync())
            case inputs.StorePiece(snapshot=point, position=position, piece=piece):
                await self._files.store_piece(point, position, piece)
            case inputs.Install(snapshot=point):
                self.submissions.cut(0)
                voters: VotersAt | None = None
                with suppress(ChecksumMismatch):
                    voters = await self._files.install(point)
                self._take(inputs.SnapshotInstalled(point, voters))
            case _:
                await self._say(effect)

    async def _say(self, effect: Effect) -> None:
        match effect:
            case inputs.Send():
                self._go(self._asking.send(effect))
            case inputs.Probe():
                self._go(self._asking.probe(effect))
            case inputs.Reply(token=token, answer=answer):
                self._reply(token, answer)
            case inputs.ReplyRecords(token=token, answer=answer, offset=offset, end=end):
                self._reply(token, await with_records(self._files, answer, offset, end))
            case inputs.ReplySnapshot(token=token, answer=answer, snapshot=point):
                self.snapshots.note_fetched(point)
                self._reply(token, await with_piece(self._files, answer, effect))
            case inputs.Fail(message=message):
                await self._files.withhold(message)
                raise StorageUnavailable(message, retry=False)
            case _:
                self._tell(effect)

    def _tell(self, effect: Effect) -> None:
        match effect:
            case inputs.Accept(token=token, base=base):
                self.submissions.accepted(token, base)
            case inputs.Refuse(token=token, leader=leader):
                self.submissions.refused(token, leader)
            case inputs.ReadAt(token=token, end=end):
                self._reads.answered(token, end)
            case inputs.ReadRefused(token=token, leader=leader):
                self._reads.refused(token, leader)
            case inputs.Commit(end=end):
                self.submissions.committed(end)
                for call in self.on_commit:
                    call()
            case inputs.Alarm(kind=kind, message=message):
                self._notices.alarm(kind, message)
            case _:
                raise AssertionError(effect)

    async def _write(self, batch: Batch, token: int | None) -> None:
        if token is not None:
            payload = self.submissions.payload(token)
            batch = msgspec.structs.replace(batch, payload=payload)
        data = log_batches.build(batch, timestamp_ms=self._clock.now_ms())
        await self._files.write(msgspec.structs.replace(batch, payload=data))

    def _go(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def _sync(self) -> None:
        """Sync until nothing newer was asked for; what failed once is never synced again."""
        try:
            while (due := self._sync_due) is not None:
                self._sync_due = None
                await self._files.sync()
                self._take(inputs.Synced(due.end, due.cuts))
        except (OSError, RlmmError) as error:
            self._broken = error
            self._bell.set()
        finally:
            self._syncing = False

    async def _confirm(self, replica: Replica, answered: Answered) -> None:
        """End this replica if its quorum went on without it."""
        error = await self._asking.confirm(replica, answered)
        if error is not None:
            self._broken = error
            self._bell.set()

    def _reply(self, token: int, answer: Answer) -> None:
        future = self._waiting.get(token)
        if future is not None and not future.done():
            future.set_result(answer)


def _standing(replica: Replica) -> tuple[object, ...]:
    return type(replica.role), replica.epoch, replica.leader, replica.in_force


def _other_voters(replica: Replica) -> tuple[Endpoint, ...]:
    others = (each for each in replica.in_force.voters if each.key.id != replica.me.id)
    return tuple(endpoint for each in others for endpoint in each.endpoints[:1])
