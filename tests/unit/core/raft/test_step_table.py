"""Every role with every input: which roles it may have then, as the step's docstring says."""

import inspect
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import replace

from rlmm_daemon.core.raft import step as step_module
from rlmm_daemon.core.raft.inputs import (
    Answered,
    Asked,
    Input,
    Moment,
    Outgrow,
    Peer,
    Reachable,
    ReadAsked,
    Resign,
    SavedState,
    SnapshotInstalled,
    SnapshotMade,
    StartMoved,
    Submitted,
    Synced,
    Tick,
    Unanswered,
)
from rlmm_daemon.core.raft.log_facts import LogFacts, LogPoint
from rlmm_daemon.core.raft.messages import (
    AddVoterRequest,
    Answer,
    BeginEpochRequest,
    Code,
    EndEpochRequest,
    FetchAnswer,
    FetchRequest,
    FetchSnapshotAnswer,
    FetchSnapshotRequest,
    RemoveVoterRequest,
    Request,
    UpdateVoterRequest,
    VoteAnswer,
    VoteRequest,
)
from rlmm_daemon.core.raft.roles import (
    Candidate,
    Download,
    Follower,
    Leader,
    Progress,
    Prospective,
    Replica,
    Resigned,
    Role,
    Sent,
    Unattached,
    VoterChange,
)
from rlmm_daemon.core.raft.step import deadline, step
from rlmm_daemon.core.raft.voters import (
    Endpoint,
    ReplicaKey,
    Voter,
    VoterHistory,
    VotersAt,
    VoterSet,
)

NOW, PAST, FUTURE = 10_000, 9_000, 20_000
BOTH = (False, True)
ROLES = get_args(Role)
KEYS = [ReplicaKey(n, bytes([n]) * 16) for n in range(5)]
ME, OTHER, THIRD, NEW = KEYS[1:]
POINT, SNAPSHOT = LogPoint(1, 5), LogPoint(1, 4)
LOG = LogFacts(0, 5, 5, ((1, 0),), (SNAPSHOT,))


def voter(key: ReplicaKey) -> Voter:
    return Voter(key, (Endpoint("Q", "host", 9_000 + key.id),))


def history(*keys: ReplicaKey) -> VoterHistory:
    return VoterHistory((VotersAt(-1, VoterSet.of(voter(key) for key in keys)),))


THREE, ALONE, WITHOUT_ME = history(ME, OTHER, THIRD), history(ME), history(OTHER, THIRD)
REMOVED = VoterHistory((*THREE.sets, VotersAt(4, WITHOUT_ME.newest.voters)))


DOWNLOAD = Download(LogPoint(2, 9), 3, 6)
HEARD = {OTHER: Progress(5, NOW), NEW: Progress(5, NOW, NOW)}
CHANGE = VoterChange(token=1, voters=THREE.newest.voters, until=PAST, newcomer=NEW, probe=7)
MINE, LEFT = frozenset({ME.id}), frozenset({OTHER.id})
ROLES_OF: dict[type[Role], list[Role]] = {
    Unattached: [
        Unattached(epoch=2, election_at=at, leader=leader)
        for at, leader in product((PAST, FUTURE), (None, OTHER.id))
    ],
    Prospective: [
        Prospective(
            epoch=2, election_at=at, leader=leader, granted=MINE, refused=frozenset(refused)
        )
        for at, leader, refused in product((PAST, FUTURE), (None, OTHER.id), ((), (THIRD.id,)))
    ],
    Candidate: [Candidate(epoch=2, election_at=at, granted=MINE) for at in (PAST, FUTURE)],
    Follower: [
        Follower(epoch=2, leader=OTHER.id, fetch_by=by, fetched=fetched, download=download)
        for by, fetched, download in product((PAST, FUTURE), BOTH, (None, DOWNLOAD))
    ],
    Leader: [
        Leader(
            epoch=2,
            epoch_start=start,
            since=since,
            peers=peers,
            change=change,
            high_watermark=4 if start == 3 else -1,
        )
        for since, peers, change, start in product((0, NOW), ({}, HEARD), (None, CHANGE), (3, 9))
    ],
    Resigned: [Resigned(epoch=2, election_at=at, unacknowledged=LEFT) for at in (PAST, FUTURE)],
}
assert tuple(ROLES_OF) == ROLES, "every role is tried"


def replicas(kind: type[Role]) -> Iterator[Replica]:
    """Replicas in this role, with all that may be true of them in it."""
    observes = kind in (Unattached, Follower, Resigned)
    known = (THREE, ALONE, REMOVED, *((WITHOUT_ME,) if observes else ()))
    for role, voters, synced in product(ROLES_OF[kind], known, (3, 5)):
        yield Replica(
            me=ME,
            cluster_id="c",
            role=role,
            voters=voters,
            log=replace(LOG, synced=synced),
            saved=SavedState(2),
            committed=3,
            endpoints=(Endpoint("Q", "host", 9_001),),
        )


def requests(kind: type[Request]) -> Iterator[Request]:
    for epoch, key in product((1, 2, 3), (OTHER, THIRD)):
        if kind is VoteRequest:
            for last, pre_vote in product((LogPoint(0, 0), POINT), BOTH):
                yield VoteRequest(epoch=epoch, candidate=key, last=last, pre_vote=pre_vote)
        elif kind is BeginEpochRequest:
            yield BeginEpochRequest(epoch=epoch, leader=key)
        elif kind is EndEpochRequest:
            yield EndEpochRequest(epoch=epoch, leader=key, successors=(ME,))
        elif kind is FetchRequest:
            yield FetchRequest(epoch=epoch, replica=key, point=POINT)
        elif kind is FetchSnapshotRequest:
            yield FetchSnapshotRequest(epoch=epoch, replica=key, snapshot=SNAPSHOT, position=0)
        elif kind is AddVoterRequest:
            yield AddVoterRequest(voter=voter(NEW))
        elif kind is RemoveVoterRequest:
            yield RemoveVoterRequest(voter=ME)
            yield RemoveVoterRequest(voter=key)
        else:
            yield UpdateVoterRequest(epoch=epoch, voter=voter(key))


CODES = (Code.NONE, Code.NOT_LEADER_OR_FOLLOWER, Code.UNSUPPORTED_VERSION, Code.INVALID_REQUEST)


def answers(kind: type[Request]) -> Iterator[tuple[Request, Answer]]:
    """What was asked in the role's epoch, and its answers."""
    for code, epoch, leader in product(CODES, (1, 2, 3), (None, OTHER.id, THIRD.id)):
        base = Answer(error=code, epoch=epoch, leader=leader)
        if kind is VoteRequest:
            for pre_vote, granted in product(BOTH, BOTH):
                asked = VoteRequest(epoch=2, candidate=ME, last=POINT, pre_vote=pre_vote)
                yield asked, VoteAnswer(error=code, epoch=epoch, leader=leader, granted=granted)
        elif kind is FetchRequest:
            asked_ = FetchRequest(epoch=2, replica=ME, point=POINT)
            for diverging in (None, LogPoint(1, 4)):
                yield (
                    asked_,
                    FetchAnswer(
                        error=code,
                        epoch=epoch,
                        leader=leader,
                        diverging=diverging,
                        high_watermark=5,
                    ),
                )
        elif kind is FetchSnapshotRequest:
            piece = FetchSnapshotRequest(epoch=2, replica=ME, snapshot=LogPoint(2, 9), position=3)
            yield (
                piece,
                FetchSnapshotAnswer(
                    error=code,
                    epoch=epoch,
                    leader=leader,
                    snapshot=LogPoint(2, 9),
                    size=6,
                    position=3,
                    piece=b"abc",
                ),
            )
        else:
            yield next(requests(kind)), base


INPUTS: dict[str, type[Input]] = {
    each.__name__: each for each in get_args(Input) if each not in (Asked, Answered)
}
ASKED = {f"{each.__name__.removesuffix('Request')} asked": each for each in get_args(Request)}
#: Those that a replica sends itself.
ANSWERED = {
    f"{each.__name__.removesuffix('Request')} answered": each
    for each in get_args(Request)
    if each not in (AddVoterRequest, RemoveVoterRequest)
}
KINDS = [*INPUTS, *ASKED, *ANSWERED]


def happen(replica: Replica, kind: str) -> Iterator[tuple[Replica, Input]]:
    """The replica as it must be for that to happen, and what happens."""
    if kind in ASKED:
        for request in requests(ASKED[kind]):
            proven = getattr(request, "candidate", None) or getattr(request, "replica", None)
            yield replica, Asked(7, request, Peer(proven.id if proven else None), "c")
    elif kind in ANSWERED:
        for request, answer in answers(ANSWERED[kind]):
            yield replace(replica, serial=7, sent={7: Sent(OTHER.id, request)}), Answered(7, answer)
    elif kind == "Unanswered":
        sent = Sent(OTHER.id, FetchRequest(epoch=2, replica=ME, point=POINT))
        for refused in BOTH:
            yield replace(replica, serial=7, sent={7: sent}), Unanswered(7, refused=refused)
    elif kind == "Reachable":
        yield replace(replica, serial=7, sent={7: Sent(None, None)}), Reachable(7, (0, 1))
    elif kind == "SnapshotInstalled":
        loads = replace(replica, installing=LogPoint(2, 9))
        yield loads, SnapshotInstalled(LogPoint(2, 9), VotersAt(3, THREE.newest.voters))
    else:
        others: dict[str, Input] = {
            "Tick": Tick(),
            "Submitted": Submitted(7, 1),
            "ReadAsked": ReadAsked(7),
            "Synced": Synced(5, 0),
            "SnapshotMade": SnapshotMade(LogPoint(1, 3)),
            "StartMoved": StartMoved(SNAPSHOT),
            "Resign": Resign(),
            "Outgrow": Outgrow(2),
        }
        yield replica, others[kind]


@cache
def stepped(role: type[Role], kind: str) -> list[tuple[Replica, Input, Replica]]:
    return [
        (one, happened, step(one, happened, Moment(NOW, 0.5))[0])
        for replica in replicas(role)
        for one, happened in happen(replica, kind)
    ]


def outcomes(role: type[Role], kind: str) -> str:
    if kind == "SnapshotInstalled" and role not in (Unattached, Follower):
        return ""  # no office is sought while one is loaded
    seen = {type(after.role) for _, _, after in stepped(role, kind)}
    return "|".join("-" if each is role else each.__name__[0] for each in ROLES if each in seen)


def table() -> list[str]:
    """The rows of the table in the step's docstring, as `step` has them now."""
    rows = [["", *(role.__name__ for role in ROLES)]] + [
        [kind, *(outcomes(role, kind) for role in ROLES)] for kind in KINDS
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def test_the_table_in_the_docstring_is_what_step_does():
    text = inspect.getdoc(step_module) or ""
    drawn = [line[4:] for line in text.splitlines() if line.startswith("    ")]
    assert drawn == table()


def test_the_page_shows_the_same_table():
    page = (Path(__file__).parents[4] / "docs/quorum-states.md").read_text()
    assert "\n".join(table()) in page


PAIRS = [
    (role, kind)
    for role, kind in product(ROLES, KINDS)
    if kind != "SnapshotInstalled" or role in (Unattached, Follower)
]


@pytest.mark.parametrize(("role", "kind"), PAIRS)
def test_every_role_bears_every_input(role, kind):
    for before, happened, after in stepped(role, kind):
        assert after.epoch >= before.epoch, happened
        assert after.committed >= before.committed, happened
        assert after.failed is None, happened
        deadline(after)


if __name__ == "__main__":
    print("\n".join(table()))  # noqa: T201 - to be put into the docstring
