"""A quorum as its leader sees it, in the words and numbers that commands show."""

from collections.abc import Mapping
from typing import Any, Final

from rlmm_daemon.adapters.quorum.client import Description, ReplicaState
from rlmm_daemon.core.raft import forcing, standing
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from rlmm_daemon.domain.ids import uuid_text

#: Voters fetch a few times a second; one that did not for so long is away.
AWAY_MS: Final = 10_000


def voters_of(seen: Description) -> VoterSet:
    """Return the voters in force."""
    return VoterSet.of(
        Voter(state.key, seen.endpoints.get(state.key.id, ())) for state in seen.voters
    )


def alive(seen: Description) -> frozenset[ReplicaKey]:
    """Return the replicas that fetched lately; the leader is one."""
    states = (*seen.voters, *seen.observers)
    ages = {state.key: _age(seen, state.fetched_at_ms) for state in states}
    return frozenset(key for key, age in ages.items() if age is not None and age < AWAY_MS)


def troubles(seen: Description) -> list[str]:
    """Return what keeps the quorum from being in health."""
    voters, there = voters_of(seen), alive(seen)
    said = [] if seen.high_watermark >= 0 else ["nothing is committed yet in this epoch"]
    away = [str(key.id) for key in voters.keys if key not in there]
    if away:
        word = "voter" if len(away) == 1 else "voters"
        seconds = AWAY_MS // 1000
        verb = "has" if len(away) == 1 else "have"
        said.append(f"{word} {', '.join(away)} {verb} not fetched for {seconds} s")
        left = len(voters.voters) - len(away) - voters.majority
        said.append(
            "the next loss stops the quorum"
            if left == 0
            else f"{left} more may be lost"
            if left > 0
            else "too few are left to commit anything"
        )
    return said


def told(cluster_id: str, seen: Description) -> dict[str, Any]:
    """Return it for machines."""
    voters = voters_of(seen)
    return {
        "cluster_id": cluster_id,
        "leader": seen.leader,
        "epoch": seen.epoch,
        "forced": forcing.times_forced(seen.epoch),
        "high_watermark": seen.high_watermark if seen.high_watermark >= 0 else None,
        "majority": voters.majority,
        "tolerates": standing.tolerated(len(voters.voters)),
        "voters": [_replica(seen, state) for state in seen.voters],
        "observers": [_replica(seen, state) for state in seen.observers],
        "trouble": troubles(seen),
    }


def named(voters: VoterSet) -> str:
    """Return voters as a person reads them: `1, 2, 3; 2 decide, 1 may be lost`."""
    count = len(voters.voters)
    ids = ", ".join(str(key.id) for key in voters.keys)
    may = standing.tolerated(count)
    return f"{ids}: {voters.majority} of {count} decide, {may or 'none'} may be lost"


def address(endpoint: Endpoint) -> str:
    """Return an address as it is typed."""
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{host}:{endpoint.port}"


def _replica(seen: Description, state: ReplicaState) -> dict[str, Any]:
    end = state.end if state.end >= 0 else None
    newest = max((each.end for each in seen.voters if each.key.id == seen.leader), default=-1)
    return {
        "id": state.key.id,
        "directory_id": uuid_text(state.key.directory),
        "leads": state.key.id == seen.leader,
        "end": end,
        "behind": None if end is None or newest < 0 else max(0, newest - end),
        "fetched_ms_ago": _age(seen, state.fetched_at_ms),
        "caught_up_ms_ago": _age(seen, state.caught_up_at_ms),
        "listeners": [address(at) for at in _endpoints(seen.endpoints, state)],
    }


def _endpoints(
    endpoints: Mapping[int, tuple[Endpoint, ...]], state: ReplicaState
) -> tuple[Endpoint, ...]:
    return endpoints.get(state.key.id, ())


def _age(seen: Description, at_ms: int) -> int | None:
    """Return how long before the leader's answer that was, by the leader's own clock."""
    now = max((each.fetched_at_ms for each in seen.voters if each.key.id == seen.leader), default=0)
    return None if at_ms < 0 or not now else max(0, now - at_ms)
