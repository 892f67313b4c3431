"""Voters that lost what was acknowledged: a replica that has it keeps it over restarts, too."""

import shutil
from pathlib import Path

import pytest

from rlmm_daemon.domain.errors import ConfigError
from tests.support.quorum import quorum_of_ours
from tests.unit.adapters.quorum.event_log.test_log import appended, log_at, numbered, until


async def test_what_a_leader_would_have_cut_is_kept_over_restarts(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, voters=1, observers=1) as quorum:
        await quorum.stop(2)
        await quorum.stop(1)
        shutil.copytree(quorum.directory(1), tmp_path / "older")
        await quorum.start(1)
        async with log_at(quorum, 2) as log:
            await log.open(create=True)
            await appended(log, numbered(5))
            end = log._node.replica.committed
            await quorum.kill(1)
            shutil.rmtree(quorum.directory(1))
            shutil.copytree(tmp_path / "older", quorum.directory(1))
            await quorum.start(1)
            await until(lambda: log._replica._failure is not None)
        for _ in range(2):  # as a supervisor does
            async with log_at(quorum, 2) as log:
                with pytest.raises(ConfigError, match="force-voters"):
                    await log.open(create=False)
        await quorum.stop(1)
        assert (await quorum.start(2)).replica.log.end == end
