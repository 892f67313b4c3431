"""One replica of the simulated quorum: its disk, which outlives it, and the shell that obeys."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlmm_daemon.core.raft import inputs
from rlmm_daemon.core.raft.inputs import Effect, Input, Moment, SavedState
from rlmm_daemon.core.raft.log_facts import Batch, LogFacts, LogPoint
from rlmm_daemon.core.raft.messages import (
    Answer,
    FetchAnswer,
    FetchRequest,
    VoteAnswer,
    VoteRequest,
)
from rlmm_daemon.core.raft.roles import Leader, Replica, Timing
from rlmm_daemon.core.raft.step import start, step
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter, VoterHistory, VotersAt
from tests.simulation.quorum.truth import Broken

if TYPE_CHECKING:
    from tests.simulation.quorum.world import World

FETCH_BATCHES_MAX = 8


#: Nobody of the quorum.
STRANGER = 99


def endpoint(replica_id: int, port: int) -> Endpoint:
    return Endpoint("QUORUM", f"host{replica_id}", port)


def voter(key: ReplicaKey) -> Voter:
    """Return a voter as it is configured first."""
    return Voter(key, (endpoint(key.id, 9_000 + key.id),))


@dataclass(frozen=True, slots=True)
class Image:
    """A snapshot: what was committed up to its end, and the voters then."""

    point: LogPoint
    voters: VotersAt
    size: int


@dataclass(slots=True)
class Disk:
    """What is left of a replica when its process is gone."""

    key: ReplicaKey
    bootstrap: VotersAt
    saved: SavedState | None = None
    batches: list[Batch] = field(default_factory=list)
    #: All before is on the platter; the rest may be lost with the page cache.
    synced: int = 0
    start: int = 0
    base_epoch: int = 0
    images: dict[LogPoint, Image] = field(default_factory=dict)
    #: How often it was cut: a sync from before says nothing of what was written again.
    cuts: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.start

    def cut(self, end: int) -> None:
        while self.batches and self.batches[-1].end > end:
            self.batches.pop()
        assert self.end == end, "cuts fall between batches"
        self.synced = min(self.synced, end)
        self.cuts += 1

    def crash(self, rng: random.Random) -> None:
        """Lose some of what was not synced."""
        keep = [batch.end for batch in self.batches if batch.end >= self.synced]
        self.cut(max(self.synced, rng.choice([self.synced, *keep])))
        self.synced = self.end  # what is found is synced before anything is said of it

    def holds(self, last: Batch | None) -> bool:
        """Whether it has this committed batch, and with it all before."""
        if last is None or last.end <= self.start:
            return True
        for batch in reversed(self.batches):
            if batch.base <= last.base:
                return (batch.base, batch.epoch, batch.payload) == (
                    last.base,
                    last.epoch,
                    last.payload,
                )
        return False

    def facts(self) -> LogFacts:
        first = tuple(point for point in self.images if point.end == self.start)
        log = LogFacts(self.start, self.start, self.start, (), first)
        for batch in self.batches:
            log = log.append(batch)
        for point in self.images:
            log = log.with_snapshot(point)
        return log.sync(log.end)

    def voters(self) -> VoterHistory:
        base = self.bootstrap
        if self.start:
            base = next(
                image.voters for image in self.images.values() if image.point.end == self.start
            )
        sets = VoterHistory((base,))
        for batch in self.batches:
            if batch.voters is not None:
                version = batch.kraft_version
                version = sets.newest.kraft_version if version is None else version
                sets = sets.append(VotersAt(batch.base, batch.voters, version))
        return sets


class Node:
    """A process that runs, or not."""

    def __init__(self, world: "World", disk: Disk) -> None:
        self.world = world
        self.disk = disk
        self.replica: Replica | None = None
        self.life = 0
        self.paused_until = 0
        self.applied = 0
        #: Where it listens.
        self.port = 9_000 + disk.key.id
        #: Its clock: what it showed first, and tenths of a millisecond in each.
        self.clock = (0, 10)
        #: When it last had a save on the disk that it waited for.
        self.was_busy_at = 0
        self._inbox: list[Input] = []
        self.is_busy = False
        self._partial: dict[LogPoint, int] = {}

    @property
    def key(self) -> ReplicaKey:
        return self.disk.key

    @property
    def is_up(self) -> bool:
        return self.replica is not None and self.replica.failed is None

    def now(self) -> Moment:
        began, rate = self.clock
        return Moment(began + self.world.now * rate // 10, self.world.rng.random())

    def when(self, shows: int) -> int:
        """Return the time at which its clock shows that."""
        began, rate = self.clock
        return -(-(shows - began) * 10 // rate)

    def start(self, timing: Timing) -> None:
        assert self.replica is None
        self.life += 1
        self._inbox, self.is_busy, self._partial = [], False, {}
        log = self.disk.facts()
        self.replica, effects = start(
            me=self.key,
            cluster_id="quorum",
            saved=self.disk.saved,
            log=log,
            voters=self.disk.voters(),
            now=self.now(),
            endpoints=(endpoint(self.key.id, self.port),),
            timing=timing,
        )
        self.applied = self.replica.committed
        self.world.truth.starts(self)
        self._obey(effects)

    def crash(self) -> None:
        self.replica = None
        self.life += 1
        self.disk.crash(self.world.rng)

    def take(self, happened: Input) -> None:
        """Have something happen, as soon as what happened before was obeyed."""
        if self.replica is None:
            return
        self._inbox.append(happened)
        self._work()

    def _work(self) -> None:
        while self._inbox and not self.is_busy and self.replica is not None:
            happened = self._inbox.pop(0)
            before = self.replica
            self.replica, effects = step(before, happened, self.now())
            self.world.stepped(self, before, happened)
            self._obey(effects)

    def _obey(self, effects: Sequence[Effect]) -> None:
        """Do what it says in order; a save takes time, and all else waits for it."""
        for at, effect in enumerate(effects):
            if isinstance(effect, inputs.Save):
                self.is_busy = True
                self._save(effect.state, effects[at + 1 :])
                return
            self._do(effect)
        self.world.wake(self)

    def _save(self, state: SavedState, rest: Sequence[Effect]) -> None:
        world, life = self.world, self.life
        fails = world.faulty and world.rng.random() < world.shape.failing_saves

        def saved() -> None:
            if life != self.life:
                return
            self.was_busy_at = world.now
            if fails and world.rng.random() < 0.5:
                world.chaos.falls(self)
                return
            self.disk.saved = state
            world.truth.saves(self, state)
            if fails:
                world.chaos.falls(self)
                return
            self.is_busy = False
            self._obey(rest)
            self._work()

        world.after_sync(saved)

    def _do(self, effect: Effect) -> None:
        match effect:
            case inputs.Write() | inputs.Truncate() | inputs.StartSync():
                self._keep(effect)
            case inputs.Send() | inputs.Probe():
                self._send(effect)
            case inputs.Reply(token=token, answer=answer):
                self._reply(token, answer)
            case inputs.ReplyRecords(token=token, answer=answer, offset=offset, end=end):
                self._reply(token, self._with_records(answer, offset, end))
            case inputs.ReplySnapshot(token=token, answer=answer, snapshot=point, position=at):
                self._reply(token, self.world.images.piece(self, answer, point, at))
            case inputs.StorePiece() | inputs.Install():
                self._load(effect)
            case _:
                self._tell(effect)

    def _keep(self, effect: inputs.Write | inputs.Truncate | inputs.StartSync) -> None:
        world, disk = self.world, self.disk
        match effect:
            case inputs.Write(batch=batch):
                batch = world.sealed(batch)
                world.truth.writes(self, batch)
                disk.batches.append(batch)
                world.wrote(self, batch)
            case inputs.Truncate(end=end):
                world.truth.cuts(self, end)
                disk.cut(end)
            case inputs.StartSync(end=end, cuts=cuts):
                life, seen = self.life, disk.cuts
                world.after_sync(lambda: self._synced(life, seen, inputs.Synced(end, cuts)))

    def _synced(self, life: int, seen: int, done: inputs.Synced) -> None:
        if life != self.life or self.replica is None:
            return
        if seen == self.disk.cuts:
            self.disk.synced = max(self.disk.synced, min(done.end, self.disk.end))
        self.take(done)

    def _send(self, effect: inputs.Send | inputs.Probe) -> None:
        world = self.world
        if isinstance(effect, inputs.Probe):
            world.probe(self, effect.serial, effect.to)
            return
        request = effect.request
        if isinstance(request, FetchRequest):
            world.truth.acknowledges(self, request.point.end)
        elif isinstance(request, VoteRequest):
            world.truth.asks(self, request)
        world.send(self, effect.serial, effect.to, request)

    def _load(self, effect: inputs.StorePiece | inputs.Install) -> None:
        point = effect.snapshot
        if isinstance(effect, inputs.Install):
            self.world.truth.installs(self)
            self.world.images.install(self, point)
            return
        have = 0 if effect.position == 0 else self._partial.get(point, 0)
        assert have == effect.position, "pieces follow each other"
        self._partial[point] = effect.position + len(effect.piece)

    def _tell(self, effect: Effect) -> None:
        match effect:
            case inputs.Accept(token=token, base=base, epoch=epoch):
                self.world.chaos.accepted(self, token, base, epoch)
            case inputs.Refuse(token=token):
                self.world.chaos.refused(token)
            case inputs.ReadAt(token=token, end=end):
                self.world.chaos.read(self, token, end)
            case inputs.ReadRefused(token=token):
                self.world.chaos.read(self, token, None)
            case inputs.Commit(end=end):
                self._commit(end)
            case inputs.Alarm(kind=kind, message=message):
                self.world.alarm(self, kind, message)
            case inputs.Fail(message=message):
                raise Broken(f"{self.key} failed: {message}")
            case _:
                raise AssertionError(effect)

    def _with_records(self, answer: Answer, offset: int, end: int) -> Answer:
        assert isinstance(answer, FetchAnswer)
        found = [batch for batch in self.disk.batches if offset <= batch.base and batch.end <= end]
        taken = tuple(found[: self.world.rng.randint(1, FETCH_BATCHES_MAX)])
        return FetchAnswer(
            error=answer.error,
            epoch=answer.epoch,
            leader=answer.leader,
            high_watermark=answer.high_watermark,
            start=answer.start,
            batches=taken,
        )

    def _reply(self, token: int, answer: Answer) -> None:
        if isinstance(answer, VoteAnswer) and answer.granted:
            self.world.granted(self, token)
        self.world.reply(self, token, answer)

    def _commit(self, end: int) -> None:
        assert self.replica is not None
        self.world.note(f"{self.key.id} commits {end}, synced {self.disk.synced}")
        self.world.truth.commits(self, end, self.replica.epoch)
        if isinstance(self.replica.role, Leader):
            self.world.truth.on_a_majority(self.replica.in_force, end)
        self.applied = end
        self.world.chaos.applied(self, end)
