"""An observer whose bootstrap servers are gone: the voters that it knows tell who leads."""

from pathlib import Path

import pytest

from rlmm_daemon.core.raft.roles import Follower
from tests.support.quorum import quorum_of_ours


@pytest.mark.parametrize("named", ["the_lost_leader", "nobody"])
async def test_an_observer_finds_the_next_leader_without_its_bootstrap_servers(
    tmp_path: Path, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with quorum_of_ours(tmp_path, voters=3, observers=1) as quorum:
        former = await quorum.until_led()
        await quorum.until(lambda: bool(quorum.nodes[4].replica.in_force.voters), "it knows them")
        asking = quorum.nodes[4]._asking
        servers = (quorum.address(former),) if named == "the_lost_leader" else ()
        monkeypatch.setattr(asking, "_bootstrap", servers)
        await quorum.kill(former)

        def follows() -> bool:
            replica = quorum.nodes[4].replica
            return isinstance(replica.role, Follower) and replica.leader not in {None, former}

        await quorum.until(follows, "it follows another one")
