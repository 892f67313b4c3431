"""Search of every order of events of three voters, a few epochs and appends, breadth first.

Each state is what the three replicas are, and which requests are on their way; from each, every
request may arrive, with its answer or without, or never; every timer may be over; the leader may
take a record. Votes arrive however late, other requests as long as somebody waits for the answer.
Pre-votes are passed by, as of a peer that has none: they only forbid what may happen here. Syncs
and saves take no time: the simulation has those. Replicas are alike, so the first whose time is up
is the first.

python -m tests.simulation.quorum.exhaustive [--bounds 2 2 2] [--states 1000000]
"""

# ruff: noqa: T201  # a command line prints

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from rlmm_daemon.core.raft import inputs
from rlmm_daemon.core.raft.inputs import (
    Answered,
    Asked,
    Effect,
    Input,
    Moment,
    Peer,
    Submitted,
    Synced,
    Tick,
    Unanswered,
)
from rlmm_daemon.core.raft.log_facts import Batch, LogFacts
from rlmm_daemon.core.raft.messages import (
    Answer,
    BeginEpochRequest,
    Code,
    EndEpochRequest,
    FetchAnswer,
    Request,
    VoteAnswer,
    VoteRequest,
)
from rlmm_daemon.core.raft.roles import Follower, Leader, Progress, Prospective, Replica, Unattached
from rlmm_daemon.core.raft.step import start, step
from rlmm_daemon.core.raft.voters import ReplicaKey, VoterHistory, VotersAt, VoterSet
from tests.simulation.quorum.node import voter
from tests.simulation.quorum.truth import Broken, hold

KEYS: Final = tuple(ReplicaKey(n, bytes([n]) * 16) for n in (1, 2, 3))
SOON, LATE = Moment(0, 0.0), Moment(100_000, 0.0)
#: Times of a role, as if all had been set at the same moment: only their order would matter.
TIMES: Final = {"election_at": 500, "fetch_by": 1_000, "ask_at": 0, "tell_at": 0, "since": 0}


class Call(NamedTuple):
    """A request on its way."""

    asker: int
    asked: int
    request: Request


class State(NamedTuple):
    """The replicas, the batches of their logs, what is on its way, and how many were appended."""

    replicas: tuple[Replica, ...]
    logs: tuple[tuple[Batch, ...], ...]
    calls: frozenset[Call]
    appended: int


class Search:
    """One search."""

    def __init__(self, epochs: int, appends: int, standing: int, states_max: int) -> None:
        #: So many of the three stand for elections; the others only vote.
        self._standing = standing
        self._epochs = epochs
        self._appends = appends
        self._states_max = states_max
        self.states = 0
        self.steps = 0
        self.complete = False
        self._replicas: dict[str, Replica] = {}
        self._kept: set[int] = set()

    def run(self) -> None:
        """Look at every state that can be reached, the nearest first."""
        first = self._first()
        seen, queue = {self._key(first)}, deque([first])
        while queue:
            state = queue.popleft()
            self.states += 1
            if self.states >= self._states_max:
                return
            for after in self._next(state):
                key = self._key(after)
                if key not in seen:
                    seen.add(key)
                    check(after)
                    queue.append(after)
        self.complete = True

    def _first(self) -> State:
        voters = VoterHistory((VotersAt(-1, VoterSet.of(voter(key) for key in KEYS)),))
        replicas = tuple(
            start(me=key, cluster_id="q", saved=None, log=LogFacts(), voters=voters, now=SOON)[0]
            for key in KEYS
        )
        state = State(tuple(map(plain, replicas)), ((), (), ()), frozenset(), 0)
        state = self._shared(state)
        return next(self._happens(state, 0, Tick(), LATE))

    def _key(self, state: State) -> tuple[object, ...]:
        return (*map(id, state.replicas), state.calls, state.appended)

    def _shared(self, state: State) -> State:
        """Return it with one object for each replica that is the same, so that ids tell them."""
        return state._replace(replicas=tuple(map(self._one, state.replicas)))

    def _one(self, replica: Replica) -> Replica:
        if id(replica) in self._kept:
            return replica
        facts = (replica.log, replica.saved, replica.committed, replica.sent)
        one = self._replicas.setdefault(repr((replica.me.id, replica.role, facts)), replica)
        self._kept.add(id(one))
        return one

    def _next(self, state: State) -> Iterator[State]:
        for call in state.calls:
            yield from self._arrives(state, call)
        for at, replica in enumerate(state.replicas):
            if at < self._standing or not isinstance(replica.role, Unattached | Follower):
                yield from self._happens(state, at, Tick(), LATE)
            if isinstance(replica.role, Leader) and state.appended < self._appends:
                more = state._replace(appended=state.appended + 1)
                yield from self._happens(more, at, Submitted(0, 1, more.appended))

    def _arrives(self, state: State, call: Call) -> Iterator[State]:
        """A request arrives; its answer does, or is lost, or nobody waits for it any more."""
        rest = state._replace(calls=state.calls - {call})
        asker, asked = call.asker - 1, call.asked - 1
        told = Asked(0, call.request, Peer(call.asker), "q")
        for after, answer in self._step(rest, asked, told):
            serial = _serial(after.replicas[asker], call)
            if serial is None:
                yield after
                continue
            if answer is not None:
                yield from self._happens(after, asker, Answered(serial, answer))
            if isinstance(call.request, BeginEpochRequest):
                continue  # its answer says nothing
            for lost, _ in self._step(after, asker, Unanswered(serial)):
                yield from self._happens(lost, asker, Tick())

    def _happens(
        self, state: State, at: int, happened: Input, now: Moment = SOON
    ) -> Iterator[State]:
        for after, _ in self._step(state, at, happened, now):
            yield after

    def _step(
        self, state: State, at: int, happened: Input, now: Moment = SOON
    ) -> Iterator[tuple[State, Answer | None]]:
        """Step one replica, and do what it says; nothing comes of it beyond the last epoch."""
        shell = Shell(state, at)
        shell.take(happened, now)
        role = shell.replica.role
        if isinstance(role, Prospective):  # as of a peer without pre-votes: it asks for real ones
            serial = min(shell.replica.sent)
            told = VoteAnswer(error=Code.UNSUPPORTED_VERSION, epoch=role.epoch)
            shell.take(Answered(serial, told), SOON)
        self.steps += 1
        if shell.replica.epoch <= self._epochs:
            yield self._shared(shell.state()), shell.answer


class Shell:
    """One replica that takes a step, with all that comes of it at once."""

    def __init__(self, state: State, at: int) -> None:
        self._before = state
        self._at = at
        self.replica = state.replicas[at]
        self._log = state.logs[at]
        self._calls = set(state.calls)
        self._inbox: list[Input] = []
        self.answer: Answer | None = None

    def take(self, happened: Input, now: Moment) -> None:
        """Step, and do what that says."""
        self._inbox.append(happened)
        while self._inbox:
            self.replica, effects = step(self.replica, self._inbox.pop(0), now)
            for effect in effects:
                self._do(effect)

    def _do(self, effect: Effect) -> None:
        match effect:
            case inputs.Write(batch=batch):
                self._log = (*self._log, replace(batch, payload=None))
            case inputs.Truncate(end=end):
                self._log = tuple(each for each in self._log if each.end <= end)
            case inputs.StartSync(end=end, cuts=cuts):
                self._inbox.append(Synced(end, cuts))
            case inputs.Send(request=EndEpochRequest()):
                pass  # it only hurries the timers that may be over at any time
            case inputs.Send(to=to, request=request) if to is not None:
                self._calls.add(Call(self._at + 1, to, request))
            case inputs.Reply(answer=answer):
                self.answer = answer
            case inputs.ReplyRecords(answer=answer, offset=offset):
                assert isinstance(answer, FetchAnswer), "records answer fetches"
                found = tuple(each for each in self._log if each.base >= offset)
                self.answer = replace(answer, batches=found)
            case inputs.Alarm(message=message) | inputs.Fail(message=message):
                raise Broken(message)
            case _:
                pass

    def state(self) -> State:
        """Return what all replicas are then."""
        before, at = self._before, self._at
        replicas, logs = list(before.replicas), list(before.logs)
        replicas[at], logs[at] = plain(self.replica), self._log
        awaited = {(sent.to, sent.request) for sent in self.replica.sent.values()}
        kept = frozenset(
            call
            for call in self._calls
            if call.asker != at + 1
            or (call.asked, call.request) in awaited
            or (isinstance(call.request, VoteRequest) and not call.request.pre_vote)
        )
        return State(tuple(replicas), tuple(logs), kept, before.appended)


def _serial(asker: Replica, call: Call) -> int | None:
    """Return the serial under which the asker waits for that answer."""
    for serial, sent in asker.sent.items():
        if (sent.to, sent.request) == (call.asked, call.request):
            return serial
    return None


def plain(replica: Replica) -> Replica:
    """Return a replica without what only tells two moments apart."""
    role: Any = replica.role
    times = {name: at for name, at in TIMES.items() if name in role.__struct_fields__}
    role = replace(role, **times)
    if isinstance(role, Leader):
        peers = {
            key: Progress(each.end, told_to_cut=each.told_to_cut, lost_before=each.lost_before)
            for key, each in sorted(role.peers.items())
        }
        role = replace(role, peers=peers, parked=(), told_at={})
    sent = [
        each
        for each in replica.sent.values()
        if each.to is not None and not isinstance(each.request, EndEpochRequest)
    ]
    sent.sort(key=lambda each: (each.to or 0, type(each.request).__name__))
    return replace(
        replica,
        role=role,
        serial=len(sent),
        sent=dict(enumerate(sent, 1)),
        hurry_at=0,
        hurry_pause=0,
        cuts=0,
    )


def check(state: State) -> None:
    """ElectionSafety, StateMachineSafety, LeaderCompleteness, QuorumLog."""
    leaders: dict[int, int] = {}
    for replica in state.replicas:
        known = replica.saved.leader
        if known is not None:
            first = leaders.setdefault(replica.saved.epoch, known)
            hold(first == known, f"two leaders of epoch {replica.saved.epoch}")
    for one, log in zip(state.replicas, state.logs, strict=True):
        for other, its_log in zip(state.replicas, state.logs, strict=True):
            end = min(one.committed, other.committed)
            hold(_prefix(log, end) == _prefix(its_log, end), f"two histories before {end}")
        if not isinstance(one.role, Leader):
            continue
        for other, its_log in zip(state.replicas, state.logs, strict=True):
            if other.epoch <= one.epoch:
                committed = _prefix(its_log, other.committed)
                hold(_prefix(log, other.committed) == committed, "a leader lacks what is committed")
        high = one.role.high_watermark
        having = sum(_prefix(each, high) == _prefix(log, high) for each in state.logs)
        hold(high < 0 or having >= 2, f"{high} is committed, and on {having} disks")


def _prefix(log: tuple[Batch, ...], end: int) -> list[tuple[int, int]]:
    return [(batch.base, batch.epoch) for batch in log if batch.end <= end]


#: (epochs, appends, so many of the three stand): the last is too big to be looked through.
BOUNDS: Final = ((1, 2, 2), (2, 2, 1), (2, 2, 2))


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.quorum.exhaustive")
    parser.add_argument("--bounds", type=int, nargs=3, metavar=("EPOCHS", "APPENDS", "STANDING"))
    parser.add_argument("--states", type=int, default=100_000)
    chosen = parser.parse_args()
    for epochs, appends, standing in [chosen.bounds] if chosen.bounds else BOUNDS:
        began = time.process_time()
        search = Search(epochs, appends, standing, chosen.states)
        search.run()
        print(
            f"{epochs} epochs, {appends} appends, {standing} stand: {search.states} states "
            f"({'all' if search.complete else 'the nearest'}), {search.steps} steps, "
            f"{time.process_time() - began:.0f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
