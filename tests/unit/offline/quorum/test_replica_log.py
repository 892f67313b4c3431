"""A replica's files, read once more while its daemon goes on."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.quorum.event_log import QuorumLog
from rlmm_daemon.adapters.quorum.files.layout import Layout
from rlmm_daemon.adapters.quorum.files.replica_files import ReplicaFiles
from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.disposal.inventory import History
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.raft.voters import ReplicaKey
from rlmm_daemon.domain.errors import NotReady
from rlmm_daemon.domain.ids import TopicId
from rlmm_daemon.offline.quorum.replica_log import ReplicaLog
from tests.support.quorum import TOPIC
from tests.unit.adapters.quorum.event_log.test_checkpoints import alone, make
from tests.unit.adapters.quorum.event_log.test_compacting import P0, SOON, compact, row, written
from tests.unit.adapters.quorum.event_log.test_log import log_at


async def nobody(_: ReplicaKey) -> None:
    return None


async def nothing(_: TopicId) -> Mapping[int, Position]:
    return {}


@pytest.fixture(autouse=True)
def _short_files(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = ReplicaFiles.open

    async def short(*args: Any, **named: Any) -> ReplicaFiles:
        return await opened(*args, **named, segment_bytes=1)

    monkeypatch.setattr(ReplicaFiles, "open", short)


@asynccontextmanager
async def both(home: Path) -> AsyncIterator[tuple[QuorumLog, ReplicaLog]]:
    """Return the log of a daemon that is a quorum of one, and what reads its files."""
    disk = LocalDisk()
    async with alone(home) as quorum, log_at(quorum, 1, SOON) as log:
        await log.open(create=True)
        layout = Layout(str(quorum.directory(1)), TOPIC)
        yield log, ReplicaLog(disk, layout, ask=nobody, read_to=nothing)
    disk.close()


async def test_checkpoints_that_took_the_place_of_what_was_read_are_no_loss(tmp_path: Path) -> None:
    async with both(tmp_path) as (log, files):
        end = await written(log, row(2))
        await files.open()
        history = History(Fold(P0, 2))
        await files.read_on(history)
        assert history.fold.position == end
        for begin in (2, 4):
            end = await written(log, row(2, begin), end)
            await make(log)
        assert log._node.log.start > 0
        await files.read_on(history)
        assert history.fold.position == end


async def test_what_had_been_read_before_a_compaction_is_not_gone_on_with(tmp_path: Path) -> None:
    async with both(tmp_path) as (log, files):
        end = await written(log, row(2))
        await files.open()
        history = History(Fold(P0, 2))
        await files.read_on(history)
        for begin in (2, 4):
            end = await written(log, row(2, begin), end)
            await compact(log, end)
        with pytest.raises(NotReady, match="compacted meanwhile"):
            await files.read_on(history)
        anew = History(Fold(P0, 2))
        await files.read_on(anew)
        assert anew.fold.position == end
