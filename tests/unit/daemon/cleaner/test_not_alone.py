"""Another daemon runs under this broker id: whatever would end in a delete is not begun."""

import asyncio
from typing import Any

import pytest

from rlmm_daemon.daemon.cleaner.leftovers import Leftovers
from rlmm_daemon.daemon.cleaner.purge import Purge
from rlmm_daemon.daemon.cleaner.removal import PartitionRemoval
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.segment import SegmentState as S
from rlmm_daemon.ports.storage import UploadInfo
from tests.simulation.cleaning import OPTIONS, CleanWorld, SimDaemon, partition_of, run

AT = partition_of(2)
WHY = "another daemon has broker id 1"


def beside_another(daemon: SimDaemon) -> None:
    async def refuse() -> None:
        raise StorageUnavailable(WHY)

    daemon.bucket.require_alone = refuse


def alone(daemon: SimDaemon) -> None:
    async def nobody_else() -> None:
        return

    daemon.bucket.require_alone = nobody_else


def errors(daemon: SimDaemon) -> list[str]:
    return [row["error"] for row in daemon.report.rows()["errors"]]


def test_a_stuck_copy_is_not_ended_while_another_daemon_may_have_finished_it():
    async def scenario(world: CleanWorld) -> None:
        daemon = world.daemon()
        beside_another(daemon)
        await asyncio.sleep(3)
        daemon.manager.hello_from_broker(world.clock.now_ms())
        await asyncio.sleep(1)
        world.put(world.started(1, AT))
        world.place(1, AT)
        stored = world.stored(AT)
        await asyncio.sleep(5)
        daemon.manager.hello_from_broker(world.clock.now_ms())
        patience = OPTIONS.copy_deadline_seconds + OPTIONS.delivery_timeout_seconds
        await asyncio.sleep(patience)
        await world.until(lambda: WHY in errors(daemon))
        await asyncio.sleep(patience)
        assert (world.state(1, AT), world.stored(AT)) == (S.COPY_SEGMENT_STARTED, stored)
        alone(daemon)
        await world.until(lambda: world.state(1, AT) is None)
        assert world.stored(AT) == []

    run(scenario)


def test_a_removed_topics_segments_are_not_begun_with():
    async def scenario(world: CleanWorld) -> None:
        daemon = world.daemon()
        beside_another(daemon)
        world.finished(1, AT)
        stored = world.stored(AT)
        world.facts.gone.add(AT.topic_id)
        world.mark(AT)
        await world.until(
            lambda: any(row["error"] == WHY for row in daemon.report.rows()["removals"])
        )
        await asyncio.sleep(1000)
        assert (world.state(1, AT), world.stored(AT)) == (S.COPY_SEGMENT_FINISHED, stored)
        alone(daemon)
        await world.until(lambda: world.stored(AT) == [])

    run(scenario)


def test_a_purge_of_a_topic_that_exists_is_refused_before_anything_is_marked():
    async def scenario(world: CleanWorld) -> None:
        daemon = world.daemon()
        await asyncio.sleep(3)
        world.finished(1, AT)
        await asyncio.sleep(2)
        beside_another(daemon)
        with pytest.raises(StorageUnavailable, match=WHY):
            await Purge(daemon.cleaner).purge(AT.topic_id, execute=True, existing=True)
        assert daemon.report.rows()["orders"] == []

    run(scenario)


def test_an_upload_that_no_event_names_may_be_the_others(monkeypatch: pytest.MonkeyPatch):
    async def scenario(world: CleanWorld) -> None:
        daemon = world.daemon()
        await asyncio.sleep(3)
        beside_another(daemon)
        aborted: list[Any] = []

        async def abort(uploads: Any) -> None:
            aborted.extend(uploads)

        monkeypatch.setattr(daemon.cleaner.tools.leftovers, "abort", abort)
        removal = PartitionRemoval(
            AT, daemon.cleaner.tools, daemon.cleaner.segments, still_ours=lambda: True
        )
        upload = UploadInfo(key="k", upload_id="u", initiated_ms=0)
        removal._found = Leftovers(uploads=[upload])
        with pytest.raises(StorageUnavailable, match=WHY):
            await removal._sweep()
        assert aborted == []

    run(scenario)
