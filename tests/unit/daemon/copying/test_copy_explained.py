"""What `explain` says of a copy that is held up in each of its phases, and of one that failed."""

import threading
from typing import Any

import pytest
from msgspec.structs import replace

from rlmm_daemon.adapters.passes.in_threads import InThreads
from rlmm_daemon.codec import records
from rlmm_daemon.core.explain.facts import CopyPhase
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.copying import copy_job, upload
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.ids import SegmentId
from tests.unit.daemon.copying.copies import PATIENCE_SECONDS, running
from tests.unit.daemon.segments import PARTITION, metadata

OTHER = SegmentId(bytes(15) + b"\x08")
SEGMENT = "The copy of segment AAAAAAAAAAAAAAAAAAAACQ"


async def test_one_that_waits_for_its_turn(tmp_path):
    async with running(tmp_path) as world:
        world.storage.uploads.clear()
        first = world.copy(segment_id=OTHER)
        await world.told(CopyPhase.UPLOAD)
        second = world.copy()
        assert await world.told(CopyPhase.QUEUED) == f"{SEGMENT} waits for its turn"
        world.storage.uploads.set()
        assert (await first, await second) == (None, None)


async def test_one_whose_files_are_opened_slowly(tmp_path, monkeypatch):
    let_go, opened = threading.Event(), copy_job.open_sources  # type: ignore[attr-defined]  # where it is used

    def slowly(*arguments: Any) -> Any:
        assert let_go.wait(PATIENCE_SECONDS)
        return opened(*arguments)

    monkeypatch.setattr(copy_job, "open_sources", slowly)
    async with running(tmp_path) as world:
        copy = world.copy()
        try:
            assert await world.told(CopyPhase.OPEN) == f"{SEGMENT} is opening the segment's files"
        finally:
            let_go.set()
        assert await copy is None


async def test_one_whose_beginning_the_broker_has_not_written(tmp_path):
    async with running(tmp_path) as world:
        record = records.encode(metadata())
        copy = world.group.create_task(world.copier.copy_log_segment_data(record, world.files))
        told = await world.told(CopyPhase.APPLY)
        assert told == f"{SEGMENT} waits until COPY_SEGMENT_STARTED is applied here"
        await world.manager.events.add(record, Caller.BROKER)
        assert await copy


async def test_one_whose_storage_is_slow(tmp_path):
    async with running(tmp_path) as world:
        world.storage.uploads.clear()
        copy = world.copy()
        told = await world.told(CopyPhase.UPLOAD)
        assert told == f"{SEGMENT} is writing to the remote storage"
        answer = await world.standing.explain(str(PARTITION))
        said = answer["also"][0]["sentence"]
        assert ": 8.0 MiB of 16.0 MiB, 2 parts, in PutObject .log, for 0 s" in said, said
        world.storage.uploads.set()
        assert await copy is None


@pytest.mark.parametrize("short", [True, False])
async def test_one_whose_segment_is_read_slowly(tmp_path, monkeypatch, short):
    if not short:
        monkeypatch.setattr(upload, "SHORT_BYTES", 0)
    async with running(tmp_path) as world:
        world.reading.clear()
        copy = world.copy()
        told = await world.told(CopyPhase.CHECK)
        assert told == f"{SEGMENT} is checking what the remote storage holds"
        world.reading.set()
        assert await copy is None


async def test_one_whose_end_the_log_does_not_take(tmp_path):
    async with running(tmp_path) as world:
        world.storage.uploads.clear()
        copy = world.copy()
        await world.told(CopyPhase.UPLOAD)
        world.store.pause()
        world.storage.uploads.set()
        told = await world.told(CopyPhase.FINISH)
        assert told == f"{SEGMENT} is publishing COPY_SEGMENT_FINISHED"
        world.store.resume()
        assert await copy is None


async def test_one_that_fails_is_rolled_back_and_told_until_the_next_one_succeeds(tmp_path):
    async with running(tmp_path) as world:
        world.storage.deletes.clear()
        world.storage.fault = StorageUnavailable("the bucket is over its quota")
        copy = world.copy()
        told = await world.told(CopyPhase.ROLL_BACK)
        assert told == f"{SEGMENT} failed and is being rolled back"
        world.storage.deletes.set()
        assert await copy is world.storage.fault
        answer = await world.standing.explain(str(PARTITION))
        (notice,) = answer["also"]
        assert (notice["cause"], notice["trouble"]) == ("copy_failed", True)
        assert notice["sentence"].startswith("The last copy, of segment AAAAAAAAAAAAAAAAAAAACQ, ")
        assert notice["sentence"].endswith("ago): the bucket is over its quota.")
        assert notice["next_command"].startswith("rlmm segments ")
        world.storage.fault = None
        assert await world.copy(segment_id=OTHER) is None
        assert (await world.standing.explain(str(PARTITION)))["also"] == []


async def test_one_whose_bytes_are_wrong_names_offset_and_place(tmp_path):
    async with running(tmp_path) as world:
        assert world.copier._tools is not None
        world.copier._tools = replace(world.copier._tools, passes=InThreads())
        copy = world.copy()  # 600,000 times the letter A
        assert await copy is not None
        (notice,) = (await world.standing.explain(str(PARTITION)))["also"]
        assert notice["cause"] == "copy_failed"
        assert "file position 0" in notice["sentence"]
