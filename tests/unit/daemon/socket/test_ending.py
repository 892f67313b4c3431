"""Requests that come while the server's tasks are ending: a crash elsewhere ends the process."""

import asyncio
from functools import partial

import pytest

from rlmm_daemon.codec import api, frames
from rlmm_daemon.daemon.base.announcing import STEP, Announcing
from rlmm_daemon.daemon.base.crash_guard import PartitionCrash
from rlmm_daemon.daemon.socket.admission import begun
from rlmm_daemon.domain.errors import Draining, InternalError
from rlmm_daemon.domain.ids import MetadataPartition
from tests.unit.daemon.socket.fakes import ORDERS, Raw, daemon

MANY = [api.Partition.of(ORDERS._replace(partition=number)) for number in range(2 * STEP)]
QUESTIONS = {
    "explain": api.ExplainParams("orders-0"),
    "list_remote_log_segments": api.EpochParams(api.Partition.of(ORDERS), None),
    "replace_assignment": api.AssignmentParams(MANY, []),
    "export": api.ExportParams(None),
}


async def ended() -> asyncio.TaskGroup:
    async with asyncio.TaskGroup() as group:
        pass
    return group


@pytest.mark.parametrize("method", QUESTIONS)
async def test_what_comes_while_the_tasks_are_ending_is_told_so_and_is_no_bug(tmp_path, method):
    async with daemon(str(tmp_path / "s")) as it:
        raw = await Raw.connect(it.path)
        shared = it.server._shared
        assert shared is not None
        going, shared.tasks = shared.tasks, await ended()
        announcing = partial(begun, shared.tasks, name="announcing")
        shared.announcing = Announcing(it.manager.turns, announcing)
        it.manager.ready = method != "list_remote_log_segments"  # which is held then
        raw.writer.write(frames.request_frame(2, method, QUESTIONS[method]))
        request_id, error, _ = await raw.answer()
        shared.tasks = going
        assert (request_id, error[0]) == (2, Draining.code)
        assert it.manager.bugs.counts.total() == 0
        assert it.server.stats.requests_now == 0
        raw.close()


async def test_a_crash_that_a_request_meets_then_is_its_answer_alone(tmp_path):
    async with daemon(str(tmp_path / "s")) as it:
        raw = await Raw.connect(it.path)
        shared = it.server._shared
        assert shared is not None
        going, shared.tasks = shared.tasks, await ended()
        it.manager.bug = PartitionCrash(MetadataPartition(1))
        params = api.EpochOffsetParams(api.Partition.of(ORDERS), 5, 1)
        raw.writer.write(frames.request_frame(2, "remote_log_segment_metadata", params))
        request_id, error, _ = await raw.answer()
        shared.tasks = going
        assert (request_id, error[0]) == (2, InternalError.code)
        raw.close()
