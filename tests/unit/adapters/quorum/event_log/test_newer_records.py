"""Records of a version that the leader can not fold: it takes none, else nobody folds on."""

import struct
from pathlib import Path

import pytest

from rlmm_daemon.domain.errors import StorageUnavailable
from tests.contract.event_log import P0
from tests.unit.adapters.quorum.event_log.test_checkpoints import two


async def test_a_leader_appends_nothing_that_it_could_not_fold(tmp_path: Path) -> None:
    async with two(tmp_path) as (log, late):
        assert late._leader is not None
        for newer in (1, 2, -1):
            key = struct.pack(">hiiIQ", newer, 0, 2, 1, 1)
            with pytest.raises(StorageUnavailable, match="invalid_request"):
                await late._leader.submit([(None, b"beside"), (key, b"of a newer daemon")])
        for number, each in enumerate((log, late, log)):
            assert await each.append(P0, b"goes on") == number
