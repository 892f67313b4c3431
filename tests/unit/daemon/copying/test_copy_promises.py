"""Copies and deletes at their turning points: what is waited for, ended, answered and forgotten."""

import asyncio
import contextlib
import os
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from rlmm_daemon.codec import records
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.crash_guard import blame, blamed
from rlmm_daemon.daemon.copying import copier as copiers
from rlmm_daemon.daemon.copying import copy_job, late_objects, upload
from rlmm_daemon.daemon.copying.progress import CopyKind, RollBack
from rlmm_daemon.daemon.copying.sources import SegmentSources, open_sources
from rlmm_daemon.domain.errors import (
    Draining,
    HistoryLost,
    IllegalTransition,
    InternalError,
    InvalidArgument,
    OutcomeUnknown,
    Overloaded,
    RlmmError,
    StorageFull,
    StorageUnavailable,
    TimedOut,
)
from rlmm_daemon.domain.ids import MetadataPartition, SegmentId, uuid_text
from rlmm_daemon.domain.segment import SegmentState
from rlmm_daemon.observability.metrics import Metrics
from rlmm_daemon.ports import disk_threads, threads
from rlmm_daemon.ports.disk_threads import DiskThreads
from rlmm_daemon.ports.passes import PassStopped
from rlmm_daemon.ports.storage import UploadInfo
from tests.contract.storage import Buffer
from tests.unit.daemon.copying.test_copier import (
    OPTIONS,
    PATIENCE_SECONDS,
    RECORD,
    World,
    _outcome,
    failure,
    in_flight,
    until,
    until_phases,
    world,
)
from tests.unit.daemon.segments import PARTITION, metadata

__all__ = ["world"]

S = SegmentState
ID = metadata().segment_id
PATIENT = replace(OPTIONS, apply_wait_seconds=30.0)


def noted(given: Any, name: str) -> list[Any]:
    """Note the arguments of each call of an attribute, which goes on as before."""
    calls: list[Any] = []
    real = getattr(given, name)

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        return real(*arguments, **named)

    setattr(given, name, call)
    return calls


async def test_a_delete_that_waits_for_its_beginning_deletes_once_that_is_applied(world):
    await world.copier.copy_segment(RECORD, world.files)
    task = world.group.create_task(world.new_copier(PATIENT).delete_log_segment_data(RECORD))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (task.done(), len(world.stored)) == (False, 6)
    await world.log.put(replace(world.log.fold[ID], state=S.DELETE_SEGMENT_STARTED))
    await task
    assert world.stored == set()


async def test_a_segment_that_goes_while_its_delete_waits_is_deleted_already(world):
    await world.copier.copy_segment(RECORD, world.files)

    async def gone(*_: Any) -> None:
        return None

    world.log.until_state = gone
    await world.copier.delete_log_segment_data(RECORD)
    assert len(world.stored) == 6, "whoever ended it deleted them, or holds them"


async def test_a_repeat_of_a_finished_copy_hands_nothing_to_the_log(world):
    await world.copier.copy_segment(RECORD, world.files)
    updates, adds = noted(world.log, "update"), noted(world.log, "add")
    await world.copier.copy_segment(RECORD, world.files)
    assert (updates, adds) == ([], [])


async def test_a_repeat_of_a_begun_copy_begins_it_again_and_finishes_it(world):
    await world.log.put(metadata())
    await world.copier.copy_segment(RECORD, world.files)
    assert world.state is S.COPY_SEGMENT_FINISHED


@pytest.mark.parametrize("change", [{"start_offset": 12}, {"segment_size_bytes": 7}])
async def test_another_segment_under_an_id_that_the_log_holds_is_refused(world, change):
    for state in (S.COPY_SEGMENT_STARTED, S.COPY_SEGMENT_FINISHED):
        world.log.fold.clear()
        await world.log.put(metadata(state=state, **change))
        with pytest.raises(InvalidArgument, match="another segment"):
            await world.copier.copy_segment(RECORD, world.files)
        assert world.log.fold[ID] == metadata(state=state, **change)
        assert world.stored == set()


async def test_draining_ends_a_brokers_copy_at_once_and_waits_for_a_whole_one(world):
    data = await in_flight(world)
    other = SegmentId(bytes(15) + b"\x08")
    record = records.encode(metadata(segment_id=other))
    whole = world.group.create_task(_outcome(world.copier.copy_segment(record, world.files)))
    await until_phases(world.copier, ["upload", "upload"])
    drain = world.group.create_task(world.copier.drain(30.0))
    assert isinstance(await data, Draining)
    assert not whole.done()
    assert not drain.done()
    world.storage.gate.set()
    await drain
    assert not isinstance(await whole, RlmmError)
    assert world.log.fold[other].state is S.COPY_SEGMENT_FINISHED


async def test_a_whole_copy_that_outlasts_the_patience_of_a_drain_is_rolled_back(world):
    world.storage.gate.clear()
    whole = world.group.create_task(_outcome(world.copier.copy_segment(RECORD, world.files)))
    await until_phases(world.copier, ["upload"])
    await world.copier.drain(0.5)
    error = await whole
    assert isinstance(error, Draining)
    assert error.fields["rolled_back"] is True
    assert (world.state, world.stored) == (None, set())


async def test_a_bug_says_whether_anything_was_written(world):
    class Bug(Exception):
        pass

    def fails(_: Any) -> Any:
        raise Bug

    world.log.keep_followed = fails
    with pytest.raises(InternalError) as bug:
        await world.copier.copy_segment(RECORD, world.files)
    assert bug.value.fields["write_begun"] is False


async def test_a_caller_that_leaves_last_ends_the_copy_and_one_before_does_not(world):
    world.storage.gate.clear()
    tasks = [
        world.group.create_task(_outcome(world.copier.copy_segment(RECORD, world.files)))
        for _ in range(2)
    ]
    await until_phases(world.copier, ["upload"])
    tasks[0].cancel()
    await asyncio.wait([tasks[0]])
    (job,) = world.copier._jobs.values()
    assert job.waiters == 1
    assert not job.outcome.done()
    assert world.state is S.COPY_SEGMENT_STARTED
    tasks[1].cancel()
    await asyncio.wait([tasks[1], job.outcome])
    assert isinstance(job.outcome.exception(), TimedOut)
    assert ID not in world.log.fold
    assert not world.stored


@pytest.mark.parametrize("why", ["caller", "deadline", "delete", "drain"])
async def test_a_copy_that_waits_for_the_log_to_be_open_can_be_ended(world, why):
    @contextlib.asynccontextmanager
    async def never_open(_: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()
        yield

    asked = asyncio.Event()
    world.log.keep_followed = never_open
    copier = world.new_copier(replace(OPTIONS, deadline_seconds=0.01 if why == "deadline" else 60))
    task = world.group.create_task(_outcome(copier.copy_segment(RECORD, world.files)))
    await asked.wait()
    if why == "caller":
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), "nothing may still take effect"
    elif why == "delete":
        await copier.end_copy(ID)
        assert isinstance(await task, IllegalTransition)
    elif why == "drain":
        await copier.drain(0.1)
        assert isinstance(await task, Draining)
    else:
        assert isinstance(await task, TimedOut)
    await until(lambda: not copier.jobs())
    assert (world.log.written, world.storage.puts) == ([], 0)


async def test_who_asks_while_a_copy_that_everybody_left_ends_gets_a_copy_of_his_own(world):
    put, thread_ends = world.storage.put_segment, asyncio.Event()

    async def put_that_ends_with_its_thread(*given: Any, **named: Any) -> Any:
        try:
            return await put(*given, **named)
        finally:
            await thread_ends.wait()

    world.storage.put_segment = put_that_ends_with_its_thread
    world.storage.gate.clear()
    await world.log.add(RECORD, Caller.BROKER)
    left = world.group.create_task(
        _outcome(world.copier.copy_log_segment_data(RECORD, world.files))
    )
    await until_phases(world.copier, ["upload"])
    left.cancel()
    await asyncio.wait([left])
    again = [
        world.group.create_task(_outcome(world.copier.copy_log_segment_data(RECORD, world.files)))
        for _ in range(2)
    ]
    for _ in range(5):
        await asyncio.sleep(0)  # both have asked
    world.storage.gate.set()
    thread_ends.set()
    assert not isinstance(await again[0], RlmmError)
    assert await again[0] == await again[1]
    assert world.storage.puts == 2


@pytest.mark.parametrize("refusals", [1, 3])
async def test_a_finish_that_the_log_cannot_take_yet_is_asked_again_until_the_deadline(
    world, monkeypatch, refusals
):
    monkeypatch.setattr(copy_job, "FINISH_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(copy_job, "FINISH_RETRY_SECONDS_MAX", 0.003)
    left, real, pauses = refusals, world.log.update, list[float]()
    sleep = asyncio.sleep

    async def update(record: bytes, caller: Any) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise StorageFull
        await real(record, caller)

    async def slept(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    world.log.update = update
    monkeypatch.setattr(asyncio, "sleep", slept)
    await world.copier.copy_segment(RECORD, world.files)
    assert [pause for pause in pauses if pause] == [0.001, 0.002, 0.003][:refusals]
    assert world.state is S.COPY_SEGMENT_FINISHED


async def test_a_finish_that_the_log_takes_in_no_time_fails_and_its_objects_stay(world):
    world.log.faults = {"COPY_SEGMENT_FINISHED": StorageFull()}
    copier = world.new_copier(replace(OPTIONS, deadline_seconds=0.3))
    error = await failure(copier.copy_segment(RECORD, world.files))
    assert isinstance(error, StorageFull)
    assert world.state is S.COPY_SEGMENT_STARTED
    assert len(world.stored) == 6


async def test_files_that_were_opened_for_a_copy_that_is_given_up_are_closed(world, monkeypatch):
    opened: list[Any] = []
    real = open_sources

    def noting(*given: Any) -> Any:
        opened.append(real(*given))
        return opened[-1]

    async def given_up(_: Any, work: Any, *__: Any) -> None:
        work()
        raise StorageUnavailable("just then")

    monkeypatch.setattr(copy_job, "open_sources", noting)
    monkeypatch.setattr(copy_job, "in_thread", given_up)
    assert isinstance(await failure(world.copier.copy_segment(RECORD, world.files)), RlmmError)
    (sources,) = opened
    closed: list[int] = []
    monkeypatch.setattr(os, "close", closed.append)
    sources.close()
    assert closed == [], "each was closed already"


async def test_files_that_a_slow_disk_opens_for_a_copy_that_has_ended_are_closed(
    world, monkeypatch
):
    opens, opened, real = threading.Event(), list[Any](), open_sources

    def slowly(*given: Any) -> Any:
        assert opens.wait(30)
        opened.append(real(*given))
        return opened[-1]

    monkeypatch.setattr(copy_job, "open_sources", slowly)
    monkeypatch.setattr(threads, "LET_GO_SECONDS", 0.05)
    before = open_files()
    copier = world.new_copier(replace(OPTIONS, deadline_seconds=0.05))
    try:
        assert isinstance(await failure(copier.copy_segment(RECORD, world.files)), TimedOut)
        assert not opened
    finally:
        opens.set()
    await until(lambda: bool(opened) and open_files() == before)


@pytest.mark.parametrize("state", [S.COPY_SEGMENT_FINISHED, S.DELETE_SEGMENT_STARTED])
async def test_a_copy_of_metadata_in_another_state_does_not_begin(world, state):
    record = records.encode(metadata(state=state))
    for copy in (world.copier.copy_segment, world.copier.copy_log_segment_data):
        with pytest.raises(IllegalTransition) as refused:
            await copy(record, world.files)
        assert refused.value.fields["write_begun"] is False
    assert (world.log.written, world.copier.jobs()) == ([], [])


async def test_a_copy_that_meets_a_bug_at_the_storage_is_rolled_back(world):
    world.storage.put_fault = ValueError("a bug")
    with pytest.raises(InternalError) as bug:
        await world.copier.copy_segment(RECORD, world.files)
    assert bug.value.fields["rolled_back"] is True
    assert bug.value.fields["write_begun"] is True
    assert (world.state, world.stored) == (None, set())
    assert world.log.written == ["ADD", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED"]


async def test_a_copy_that_meets_a_bug_in_its_check_is_rolled_back_and_says_so(world):
    def check(_: Any) -> Any:
        raise ValueError("a bug")

    with pytest.raises(InternalError) as bug:
        await world.new_copier(new_check=check).copy_segment(RECORD, world.files)
    assert bug.value.fields["rolled_back"] is True
    assert (world.state, world.stored) == (None, set())


async def test_a_bug_behind_the_hand_over_of_the_finish_keeps_the_objects(world):
    """It may be in the log: nobody can say that it failed."""
    world.log.faults = {"COPY_SEGMENT_FINISHED": ValueError("a bug")}
    with pytest.raises(OutcomeUnknown):
        await world.copier.copy_segment(RECORD, world.files)
    assert (world.state, len(world.stored)) == (S.COPY_SEGMENT_STARTED, 6)


async def test_a_bug_behind_the_hand_over_of_a_delete_is_an_unknown_outcome(world):
    await world.copier.copy_segment(RECORD, world.files)
    world.storage.delete_fault = ValueError("a bug")

    async def bug(_: Any) -> Any:
        raise ValueError("a bug")

    world.storage.delete = bug
    with pytest.raises(OutcomeUnknown):
        await world.copier.delete_segment(PARTITION, ID)
    assert world.state is S.DELETE_SEGMENT_STARTED


async def test_a_drain_ends_in_its_time_though_a_roll_back_does_not(world):
    at_storage, let_go = asyncio.Event(), asyncio.Event()
    real = world.storage.delete

    async def held(keys: Any) -> Any:
        at_storage.set()
        await let_go.wait()
        return await real(keys)

    world.storage.delete = held
    world.storage.gate.clear()
    copy = world.group.create_task(_outcome(world.copier.copy_segment(RECORD, world.files)))
    await until_phases(world.copier, ["upload"])
    await world.copier.drain(0.1)
    await at_storage.wait()
    assert [facts.phase for facts in world.copier.jobs()] == ["roll back"]
    let_go.set()
    assert (await copy).fields["rolled_back"] is True


async def test_a_drain_waits_for_the_roll_backs_of_what_it_ends(world):
    real = world.storage.delete

    async def slow(keys: Any) -> Any:
        for _ in range(100):
            await asyncio.sleep(0)
        return await real(keys)

    world.storage.delete = slow
    world.storage.gate.clear()
    copy = world.group.create_task(_outcome(world.copier.copy_segment(RECORD, world.files)))
    await until_phases(world.copier, ["upload"])
    await world.copier.drain(0.1)
    assert (world.copier.jobs(), world.stored) == ([], set())
    assert (await copy).fields["rolled_back"] is True


async def test_a_stopped_copy_whose_roll_back_takes_too_long_says_why_it_was_stopped(world):
    async def never(_: Any) -> Any:
        await asyncio.Event().wait()

    world.storage.delete = never
    world.storage.gate.clear()
    copier = world.new_copier(replace(OPTIONS, rollback_seconds=0.05))
    copy = world.group.create_task(_outcome(copier.copy_segment(RECORD, world.files)))
    await until_phases(copier, ["upload"])
    (job,) = copier._jobs.values()
    job.stop(TimedOut("too slow"))
    error = await copy
    assert isinstance(error, TimedOut)
    assert (error.message, error.fields["rolled_back"]) == ("too slow", False)
    assert error.fields["roll_back_error"] == "TimeoutError"
    assert world.state is S.DELETE_SEGMENT_STARTED, "a repeat or the cleaner goes on"


async def test_a_copy_whose_segment_is_deleted_right_behind_its_finish_says_so(world):
    real = world.log.update

    async def update(record: bytes, caller: Any) -> None:
        await real(record, caller)
        world.log.fold.clear()

    world.log.update = update
    with pytest.raises(OutcomeUnknown, match="is gone already"):
        await world.copier.copy_segment(RECORD, world.files)


@pytest.mark.parametrize("reason", ["denied", "throttled", None])
async def test_a_bucket_that_is_away_is_no_sign_that_another_daemon_finished_the_segment(
    world, reason
):
    asked = []

    async def away() -> None:
        asked.append(reason)
        raise StorageUnavailable("away", reason=reason)

    world.bucket.require_alone = away
    world.storage.put_fault = StorageUnavailable("away")
    assert isinstance(await failure(world.copier.copy_segment(RECORD, world.files)), RlmmError)
    assert asked
    assert "DELETE_SEGMENT_STARTED" in world.log.written


async def test_running_copies_are_named_by_their_partition(world):
    task = await in_flight(world)
    assert world.copier.running_in(PARTITION) == [ID]
    for other in (PARTITION.partition - 1, PARTITION.partition + 1):
        assert world.copier.running_in(PARTITION._replace(partition=other)) == []
    world.storage.gate.set()
    await task


async def test_a_copy_that_waits_for_the_broker_is_not_ended_for_a_slow_storage(world):
    copier = world.new_copier(replace(OPTIONS, progress_window_seconds=0.02))
    with pytest.raises(TimedOut, match="was not applied yet"):
        await copier.copy_log_segment_data(RECORD, world.files)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("fault", [None, StorageUnavailable("away")])
async def test_an_ended_copy_leaves_no_file_open_and_no_timer(world, monkeypatch, fault):
    timers: list[asyncio.TimerHandle] = []
    loop = asyncio.get_running_loop()
    real = loop.call_later

    def call_later(delay: float, work: Any, *more: Any) -> asyncio.TimerHandle:
        timers.append(real(delay, work, *more))
        return timers[-1]

    files = open_files()
    world.storage.put_fault = fault
    with monkeypatch.context() as patched:
        patched.setattr(loop, "call_later", call_later)
        await _outcome(world.copier.copy_segment(RECORD, world.files))
    assert open_files() == files
    assert timers
    assert all(timer.cancelled() for timer in timers)


async def test_a_copy_whose_segment_went_meanwhile_undoes_nothing(world):
    world.storage.gate.clear()
    copy = world.group.create_task(_outcome(world.copier.copy_segment(RECORD, world.files)))
    await until_phases(world.copier, ["upload"])
    world.log.fold.clear()
    world.storage.put_fault = StorageUnavailable("away")
    world.storage.gate.set()
    error = await copy
    assert error is world.storage.put_fault
    assert error.fields["rolled_back"] is False
    assert world.log.written == ["ADD"]


async def test_a_bug_of_a_partition_reaches_whoever_holds_it_back_and_no_caller_waits(world):
    def update(*_: Any) -> Any:
        with blame(MetadataPartition(3)):
            raise ValueError("a bug")

    callers = []

    async def copied() -> None:
        async with asyncio.TaskGroup() as tasks:
            world.copier._tasks = tasks
            copy = world.copier.copy_segment(RECORD, world.files)
            callers.append(world.group.create_task(copy))
            await asyncio.Event().wait()

    world.log.update = update
    with pytest.raises(ExceptionGroup) as ended:
        await copied()
    assert blamed(ended.value) == {3}
    await asyncio.wait(callers)
    assert callers[0].cancelled()
    assert len(world.stored) == 6, "COPY_SEGMENT_FINISHED may be in the log"


async def test_a_delete_that_is_left_is_counted_as_such(world):
    metrics = Metrics()
    await world.copier.copy_segment(RECORD, world.files)
    copier = world.new_copier(PATIENT, metrics=metrics.storage)
    task = world.group.create_task(copier.delete_log_segment_data(RECORD))
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    told = metrics.registry.get_sample_value
    assert told("rlmm_deletes_total", {"outcome": "cancelled"}) == 1


def test_a_thread_that_waits_for_a_reader_that_is_stopped_is_let_go():
    def stopped() -> int:
        raise PassStopped

    log = upload._ReadMeanwhile(Buffer(b"x" * (upload.SHORT_BYTES + 1)), stopped)
    with ThreadPoolExecutor(1) as waiting:
        waits = waiting.submit(log.checksum)
        with pytest.raises(PassStopped):
            log.read()
        with pytest.raises(CancelledError):
            waits.result(30)


@pytest.mark.parametrize("topic", ["or/ders", "..", "o" * 250])
async def test_no_copy_begins_in_a_topic_whose_name_kafka_forbids(world, topic):
    record = records.encode(metadata(partition=PARTITION._replace(topic=topic)))
    for copy in (world.copier.copy_segment, world.copier.copy_log_segment_data):
        with pytest.raises(InvalidArgument) as refused:
            await copy(record, world.files)
        assert refused.value.fields["write_begun"] is False
    assert (world.log.written, world.stored) == ([], set())


async def test_a_copy_that_is_ended_before_it_ran_writes_nothing(world):
    job = world.copier._job(CopyKind.WHOLE, RECORD, world.files, Caller.OPERATOR)
    job.stop(Draining())
    await asyncio.wait([job.outcome])
    assert isinstance(job.outcome.exception(), Draining)
    assert world.log.written == []
    assert world.storage.puts == 0


async def test_so_many_copies_that_somebody_else_finished_are_remembered(world, monkeypatch):
    monkeypatch.setattr(copiers, "UNSETTLED_MAX", 2)
    world.copier = world.new_copier()
    ids = [SegmentId(bytes(15) + bytes([number])) for number in (1, 2, 3)]
    for number, each in enumerate(ids, start=1):
        job: Any = SimpleNamespace(
            roll_back=RollBack.FINISHED_ELSEWHERE, metadata=metadata(segment_id=each)
        )
        world.copier._count_roll_back(job, StorageUnavailable("away"))
        assert len(world.copier.unsettled()) == min(number, 2)
    told = [row.segment_id for row in world.copier.unsettled()]
    assert told == [uuid_text(each) for each in ids[1:]]


async def test_a_copy_that_somebody_else_finished_is_told_while_its_segment_is_held(world):
    job: Any = SimpleNamespace(roll_back=RollBack.FINISHED_ELSEWHERE, metadata=metadata())
    world.copier._count_roll_back(job, StorageUnavailable("away"))
    for held, left in (({ID}, 1), (set[SegmentId](), 0)):
        world.log.held = held
        for told in world.log.on_delete_started:
            told(PARTITION, ID)
        assert len(world.copier.unsettled()) == left


async def test_a_copy_that_is_abandoned_ends_where_it_is_and_undoes_nothing(world):
    world.storage.gate.clear()
    task = world.group.create_task(world.copier.copy_segment(RECORD, world.files))
    await until_phases(world.copier, ["upload"])
    world.copier.abandon()
    await asyncio.wait([task])
    assert task.cancelled()
    assert (world.copier.jobs(), world.copier.outcomes()) == ([], {"cancelled": 1})
    assert world.state is S.COPY_SEGMENT_STARTED, "a later start finds what is left"


async def test_a_copy_whose_disk_hangs_and_that_is_abandoned_meanwhile_undoes_nothing(
    world, monkeypatch
):
    """Its thread is waited for however often it is cancelled; a stop would wait for its undoing."""
    monkeypatch.setattr(threads, "LET_GO_SECONDS", 0.2)
    over, copying, real = threading.Event(), DiskThreads(1), world.storage.put_segment

    async def hangs(objects: Any, *, progress: Any) -> Any:
        progress.write_begun = True
        await threads.in_thread(copying, over.wait)
        return await real(objects, progress=progress)

    world.storage.put_segment = hangs
    task = world.group.create_task(world.copier.copy_segment(RECORD, world.files))
    await until_phases(world.copier, ["upload"])
    (job,) = world.copier._jobs.values()
    job.stop(Draining())
    await asyncio.sleep(0)
    world.copier.abandon()
    await asyncio.wait([task])
    over.set()
    assert task.cancelled()
    assert world.log.written == ["ADD"]


async def test_a_copy_whose_files_do_not_open_leaves_its_turn_to_another(world, monkeypatch):
    """Until its deadline: four of them, tried again and again, kept all others from a turn."""
    monkeypatch.setattr(threads, "LET_GO_SECONDS", 0.01)
    monkeypatch.setattr(copy_job, "OPEN_SECONDS", 0.05)
    over, real = threading.Event(), open_sources
    monkeypatch.setattr(copy_job, "open_sources", lambda *_: over.wait())
    copier = world.new_copier(replace(OPTIONS, parallel_max=1))
    try:
        error = await _outcome(copier.copy_segment(RECORD, world.files))
        assert isinstance(error, StorageUnavailable)
        assert error.fields["reason"] == "source_unreadable"
        assert world.log.written == []
        monkeypatch.setattr(copy_job, "OPEN_SECONDS", 30.0)
        monkeypatch.setattr(copy_job, "open_sources", real)
        monkeypatch.setattr(disk_threads, "RELIEF_SECONDS", 0.01)
        assert isinstance(await _outcome(copier.copy_segment(RECORD, world.files)), bytes)
    finally:
        over.set()


@pytest.mark.parametrize("short_bytes", [0, upload.SHORT_BYTES])
async def test_whether_a_file_changed_is_looked_at_in_a_thread(world, monkeypatch, short_bytes):
    monkeypatch.setattr(upload, "SHORT_BYTES", short_bytes)
    looked, real = set[int](), SegmentSources.check_unchanged

    def check(sources: SegmentSources) -> None:
        looked.add(threading.get_ident())
        real(sources)

    monkeypatch.setattr(SegmentSources, "check_unchanged", check)
    await world.copier.copy_segment(RECORD, world.files)
    assert looked
    assert threading.get_ident() not in looked


async def test_a_long_copy_that_is_ended_lets_go_of_both_its_threads_at_once(world, monkeypatch):
    """One after another they would be waited for twice as long."""
    monkeypatch.setattr(upload, "SHORT_BYTES", 0)
    reader_told, storing = asyncio.Event(), asyncio.Event()

    async def reads(_threads: Any, _work: Any, _stop: Any = None) -> int:
        try:
            await asyncio.Event().wait()
        finally:
            reader_told.set()
        raise AssertionError

    async def hangs(_objects: Any, *, progress: Any) -> Any:
        progress.write_begun = True
        storing.set()
        try:
            await asyncio.Event().wait()
        finally:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await reader_told.wait()

    monkeypatch.setattr(upload, "in_thread", reads)
    world.storage.put_segment = hangs
    task = world.group.create_task(_outcome(world.copier.copy_segment(RECORD, world.files)))
    await storing.wait()
    (job,) = world.copier._jobs.values()
    job.stop(TimedOut("too slow"))
    assert str(await task) == "too slow"


async def test_copies_and_deletes_are_measured_and_none_is_in_flight_afterwards(world):
    metrics = Metrics()
    copier = world.new_copier(metrics=metrics.storage)
    await copier.copy_segment(RECORD, world.files)
    world.storage.delete_fault = StorageUnavailable("away")
    assert isinstance(await failure(copier.delete_segment(PARTITION, ID)), StorageUnavailable)
    world.storage.delete_fault = None
    await copier.delete_segment(PARTITION, ID)

    def told(name: str, **labels: str) -> float | None:
        found: float | None = metrics.registry.get_sample_value(f"rlmm_{name}", labels)
        return found

    assert told("copy_duration_seconds_count") == 1
    seconds = 0.0
    for phase in ("queued", "open", "apply", "upload", "check", "finish"):
        assert told("copy_phase_duration_seconds_count", phase=phase) == 1
        seconds += told("copy_phase_duration_seconds_sum", phase=phase) or 0
    assert 0 <= seconds <= (told("copy_duration_seconds_sum") or 0)
    assert told("deletes_total", outcome="storage_unavailable") == 1
    assert told("deletes_total", outcome="ok") == 1
    assert told("deletes_in_flight") == 0


async def test_a_brokers_copy_and_a_whole_one_of_one_segment_do_not_join(world):
    task = await in_flight(world)
    with pytest.raises(Overloaded, match=CopyKind.DATA.value):
        await world.copier.copy_segment(RECORD, world.files)
    world.storage.gate.set()
    await task


async def test_no_copy_begins_while_what_a_failed_one_left_is_being_removed(world):
    world.copier.late._busy = ID
    with pytest.raises(Overloaded) as refused:
        await world.copier.copy_segment(RECORD, world.files)
    assert refused.value.fields["write_begun"] is False
    world.copier.late._busy = None
    await world.copier.copy_segment(RECORD, world.files)


async def test_failures_and_outcomes_are_told_until_a_copy_succeeds(world, monkeypatch):
    monkeypatch.setattr(copiers, "FAILURES_MAX", 1)
    world.copier = world.new_copier()
    world.storage.put_fault = StorageUnavailable("away")
    assert isinstance(await failure(world.copier.copy_segment(RECORD, world.files)), RlmmError)
    (told,) = world.copier.failures().values()
    assert (told.message, told.at_ms) == ("away", 7)
    assert world.copier.outcomes() == {"storage_unavailable": 1}
    assert world.copier.outcomes_of_roll_backs() == {"ok": 1}
    del world.copier._failures[str(PARTITION)]
    world.copier._failures["older"] = told
    again, last = (
        records.encode(metadata(segment_id=SegmentId(bytes(15) + bytes([n])))) for n in (1, 2)
    )
    assert isinstance(await failure(world.copier.copy_segment(again, world.files)), RlmmError)
    assert [*world.copier.failures()] == [str(PARTITION)], "the oldest is forgotten"
    world.storage.put_fault = None
    await world.copier.copy_segment(last, world.files)
    assert world.copier.failures() == {}
    assert world.copier.outcomes() == {"storage_unavailable": 2, "ok": 1}
    assert world.copier.bytes_copied > 0
    assert world.new_copier().bytes_copied == 0


async def test_the_log_goes_before_what_belongs_to_it(world):
    """What is half deleted must not look whole."""
    await world.copier.copy_segment(RECORD, world.files)
    asked = noted(world.storage, "delete")
    await world.copier.delete_segment(PARTITION, ID)
    ((keys,),) = asked
    assert [key.endswith(".log") for key in keys] == [True] + [False] * 5


async def test_a_delete_that_fails_for_some_objects_says_how_many(world):
    await world.copier.copy_segment(RECORD, world.files)
    real = world.storage.delete

    async def some(keys):
        done = dict(await real(keys))
        return {**done, **dict.fromkeys(keys[2:4], StorageUnavailable("no", reason="denied"))}

    world.storage.delete = some
    with pytest.raises(StorageUnavailable, match=r"^2 of 6 objects were not deleted") as error:
        await world.copier.delete_segment(PARTITION, ID)
    assert (error.value.fields["failed"], error.value.fields["reason"]) == (2, "denied")
    assert world.state is S.DELETE_SEGMENT_STARTED


async def test_a_delete_that_was_begun_and_is_left_is_not_told_as_timed_out(world):
    await world.copier.copy_segment(RECORD, world.files)
    at_storage = asyncio.Event()

    async def never(_: Any) -> Any:
        at_storage.set()
        await asyncio.Event().wait()

    world.storage.delete = never
    task = world.group.create_task(failure(world.copier.delete_segment(PARTITION, ID)))
    await at_storage.wait()
    task.cancel()
    assert isinstance(await task, OutcomeUnknown)


async def test_a_copier_that_was_killed_in_the_middle_leaves_no_upload_behind_a_delete(world):
    """Of this very key alone; and of a segment that was finished none is looked for."""
    await world.log.put(metadata(state=S.DELETE_SEGMENT_STARTED))
    (place,) = await world.bucket.places(metadata())
    log = next(key for key in place.keys.values() if key.endswith(".log"))
    aborted: list[str] = []

    async def uploads(prefix: str):
        assert prefix == log
        yield [
            UploadInfo(key=key, upload_id=key, initiated_ms=1) for key in (log, f"{log}.another")
        ]

    async def abort(upload: UploadInfo) -> None:
        aborted.append(upload.key)

    world.storage.list_uploads, world.storage.abort_upload = uploads, abort
    await world.copier.delete_log_segment_data(RECORD)
    assert aborted == [log]
    world.log.fold.clear()
    aborted.clear()
    another = metadata(segment_id=SegmentId(bytes(15) + b"\x55"))
    await world.copier.copy_segment(records.encode(another), world.files)
    await world.copier.delete_segment(PARTITION, another.segment_id)
    assert aborted == []


async def test_an_upload_that_cannot_be_aborted_does_not_fail_the_delete(world):
    await world.log.put(metadata(state=S.DELETE_SEGMENT_STARTED))

    def away(_: str) -> Any:
        raise StorageUnavailable("away")

    world.storage.list_uploads = away
    await world.copier.delete_log_segment_data(RECORD)


async def test_a_delete_of_a_held_segment_says_what_ends_the_hold(world):
    await world.copier.copy_segment(RECORD, world.files)
    world.log.held.add(ID)
    with pytest.raises(HistoryLost, match="rlmm log repair"):
        await world.copier.delete_segment(PARTITION, ID)


# ---- objects that come late ---------------------------------------------------------------------


async def a_failed_copy(world: World) -> Any:
    world.storage.put_fault = StorageUnavailable("away")
    await failure(world.copier.copy_segment(RECORD, world.files))
    world.storage.put_fault = None
    late = world.copier.late
    assert late is not None
    assert len(late) == 1
    return late


async def test_no_keys_are_looked_at_of_a_copy_that_succeeded_or_wrote_nothing(world):
    world.log.faults = {"ADD": IllegalTransition("no")}
    assert await failure(world.copier.copy_segment(RECORD, world.files)) is not None
    assert len(world.copier.late) == 0
    world.log.faults = {}
    await world.copier.copy_segment(RECORD, world.files)
    assert len(world.copier.late) == 0


async def test_keys_of_a_failed_copy_are_looked_at_so_often_and_not_before_they_are_due(world):
    late = await a_failed_copy(world)
    deletes = noted(world.bucket, "delete")
    (ended,) = (each.ended_at for each in late._failed.values())
    for number, after in enumerate(late_objects.LOOKS_SECONDS, start=1):
        await late.look(ended + after - 0.5)
        assert len(deletes) == number - 1
        await late.look(ended + after)
        assert len(deletes) == number
    assert len(late) == 0


async def test_keys_are_left_alone_while_the_segment_is_there_or_is_copied_again(world):
    late = await a_failed_copy(world)
    deletes = noted(world.bucket, "delete")
    (each,) = late._failed.values()
    await world.log.put(metadata())
    await late.look(each.due)
    world.log.fold.clear()
    late._is_running = {ID}.__contains__
    await late.look(each.due)
    late._is_running = set[SegmentId]().__contains__
    each.deleting = False
    await late.look(each.due)
    assert deletes == []


async def test_a_look_that_fails_is_made_again_and_holds_up_no_other_copy(world):
    late = await a_failed_copy(world)
    (each,) = late._failed.values()
    world.storage.delete_fault = StorageUnavailable("away")
    await late.look(each.due)
    assert (each.looks, len(late)) == (1, 1)
    assert not late.is_busy(ID)


async def test_a_look_that_hangs_holds_up_no_other_copy(world, monkeypatch):
    monkeypatch.setattr(late_objects, "LOOK_SECONDS_MAX", 0.05)
    late = await a_failed_copy(world)
    (each,) = late._failed.values()
    each.deleting = True
    hung = asyncio.Event()

    async def hangs(_: Any) -> Any:
        await hung.wait()

    world.log.fold.clear()
    world.storage.delete = hangs
    async with asyncio.timeout(PATIENCE_SECONDS):
        await late.look(each.due)
    assert each.looks == 1
    assert not late.is_busy(ID)


async def test_so_many_failed_copies_are_remembered(world, monkeypatch):
    monkeypatch.setattr(late_objects, "LATE_MAX", 2)
    world.copier = world.new_copier()
    late = await a_failed_copy(world)
    others = [metadata(segment_id=SegmentId(bytes(15) + bytes([n]))) for n in (1, 2)]
    for each in others:
        late.ended(each, failed=True)
    assert list(late._failed) == [each.segment_id for each in others]
    late.ended(others[0], failed=False)
    assert len(late) == 2
    late.begun(others[0].segment_id)
    assert list(late._failed) == [others[1].segment_id]


async def test_a_copy_that_is_deleted_while_it_runs_is_looked_at_once_it_failed(world):
    task = await in_flight(world)
    await world.log.put(metadata(state=S.DELETE_SEGMENT_STARTED))
    assert isinstance(await task, IllegalTransition)
    late = world.copier.late
    (each,) = late._failed.values()
    assert each.deleting
    late.begun(ID)
    late.ended(metadata(), failed=True)
    (again,) = late._failed.values()
    assert not again.deleting, "that was its former life"


async def test_no_keys_are_looked_at_of_a_failed_copy_that_the_broker_repeated(world):
    await world.log.put(metadata())
    world.storage.put_fault = StorageUnavailable("away")
    await failure(world.copier.copy_log_segment_data(RECORD, world.files))
    assert len(world.copier.late) == 1
    world.storage.put_fault = None
    await world.copier.copy_log_segment_data(RECORD, world.files)
    assert len(world.copier.late) == 0, "what lies there is the repeat's"


async def test_late_objects_are_looked_at_once_they_are_due_and_not_all_the_time(
    world, monkeypatch
):
    late = await a_failed_copy(world)
    (each,) = late._failed.values()
    first, second, *_ = late_objects.LOOKS_SECONDS
    each.ended_at -= first
    looks, pauses, real = noted(late, "look"), asyncio.Queue[float](), asyncio.sleep

    async def pause(seconds: float) -> None:
        if seconds:
            await pauses.put(seconds)
            await asyncio.Event().wait()
        await real(0)

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "sleep", pause)
        task = world.group.create_task(late.run())
        seconds = await pauses.get()
    task.cancel()
    assert len(looks) == each.looks == 1
    assert 0 < seconds <= second - first


async def test_one_copy_that_is_not_due_holds_up_no_other(world):
    late = await a_failed_copy(world)
    (first,) = late._failed.values()
    await late.look(first.due)
    other = metadata(segment_id=SegmentId(bytes(15) + b"\x08"))
    late.ended(other, failed=True)
    (second,) = (each for each in late._failed.values() if each is not first)
    await late.look(second.due)
    assert (first.looks, second.looks) == (1, 1)


async def test_without_a_failed_copy_nothing_is_looked_at_until_there_is_one(world):
    late = world.copier.late
    looked = asyncio.Event()

    async def look(_: float) -> None:
        looked.set()
        await asyncio.Event().wait()

    late.look = look
    task = world.group.create_task(late.run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not looked.is_set()
    late.ended(metadata(), failed=True)
    await looked.wait()
    task.cancel()
