"""Quorum of one whose directory was put back as a backup has it."""

import shutil
from pathlib import Path

from tests.contract.event_log import P0
from tests.support.quorum import quorum_of_ours
from tests.unit.adapters.quorum.event_log.test_log import log_at


async def test_what_is_written_anew_is_not_taken_for_what_stood_there(tmp_path: Path) -> None:
    """Its replica counts on from an older epoch: it would give the later one twice."""
    async with quorum_of_ours(tmp_path, voters=1) as quorum:
        await quorum.stop(1)
        place, backup = quorum.directory(1), tmp_path / "backup"
        async with log_at(quorum, 1) as log:
            await log.open(create=True)
            await log.append(P0, b"kept")
        shutil.copytree(place, backup)
        async with log_at(quorum, 1) as log:
            await log.open(create=False)
            for value in (b"lost", b"lost, too"):
                await log.append(P0, value)
            epoch = log.folding.fold.epochs[P0].epoch_of(2)
        shutil.rmtree(place)
        shutil.copytree(backup, place)
        async with log_at(quorum, 1) as log:
            await log.open(create=False)
            assert (await log.epoch_end(P0, epoch)).end_offset == 1
            log.outgrow(epoch)
            for value in (b"new", b"other", b"third"):
                await log.append(P0, value)
            assert (await log.epoch_end(P0, epoch)).end_offset == 1
            known = log._node.replica.epoch
            log.outgrow(epoch)
            await log.append(P0, b"on")
            assert log._node.replica.epoch == known, "it is beyond it already"
