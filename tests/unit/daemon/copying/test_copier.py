import asyncio
import errno
import json
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from msgspec.structs import replace

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.passes.in_threads import InThreads, kafka_segment_check
from rlmm_daemon.adapters.storage.local import LocalStorage
from rlmm_daemon.codec import custom_metadata, marker, records
from rlmm_daemon.core.storage.calls import Calls
from rlmm_daemon.core.storage.layout import Layout
from rlmm_daemon.core.storage.progress_floor import ProgressFloor, TooSlow
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.bucket import acceptance
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.copying import upload
from rlmm_daemon.daemon.copying.copier import Copier
from rlmm_daemon.daemon.copying.copy_job import CopyOptions
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    Draining,
    HistoryLost,
    IllegalTransition,
    InvalidArgument,
    NotAssigned,
    OutcomeUnknown,
    Overloaded,
    PathNotAllowed,
    RlmmError,
    SegmentNotFound,
    StorageNotConfigured,
    StorageUnavailable,
    TimedOut,
)
from rlmm_daemon.domain.ids import BrokerId, Offset, SegmentId
from rlmm_daemon.domain.segment import SegmentState
from rlmm_daemon.ports import threads
from rlmm_daemon.ports.sources import FileSource
from rlmm_daemon.ports.storage import ObjectKind, Progress
from tests.contract.storage import Buffer
from tests.support.memory_storage import MemoryBucket, MemoryStorage
from tests.support.nice import nice
from tests.unit.daemon.segments import (
    IDENTITY,
    LOG_BYTES,
    PARTITION,
    FakeLog,
    files_in,
    metadata,
)

S = SegmentState
REAL = Path(__file__).parents[3] / "data" / "segments"
RECORD = records.encode(metadata())
PATIENCE_SECONDS = 60
BYTES = Buffer(b"late")
OPTIONS = CopyOptions(apply_wait_seconds=0.5)


class SlowStorage(MemoryStorage):
    """Stops in the middle of a copy until it is let go; may fail then, or when deleting."""

    def __init__(self, bucket: MemoryBucket) -> None:
        super().__init__(bucket, clock=SystemClock())
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = asyncio.Event()
        self.puts = 0
        self.put_fault: RlmmError | None = None
        self.delete_fault: RlmmError | None = None

    async def put_segment(self, objects, *, progress):
        self.puts += 1
        progress.phase, progress.write_begun = "upload", True
        self.begun.set()
        await self.gate.wait()
        if self.put_fault is not None:
            raise self.put_fault
        return await super().put_segment(objects, progress=progress)

    async def delete(self, keys):
        if self.delete_fault is not None:
            return dict.fromkeys(keys, self.delete_fault)
        return await super().delete(keys)


class World:
    def __init__(self, home, group: asyncio.TaskGroup, storage: Any) -> None:
        self.home, self.group = home, group
        self.storage = storage
        self.log = FakeLog()
        self.files = files_in(home)
        self.bucket = Bucket(storage, layout=Layout(), rng=random.Random(1))
        self.copier = self.new_copier()

    def new_copier(
        self,
        options: CopyOptions = OPTIONS,
        new_check: Any = None,
        log_dirs: list[str] | None = None,
        **more: Any,
    ) -> Copier:
        return Copier(
            self.bucket,
            self.log,
            self.group,
            options=options,
            log_dirs=log_dirs or [str(self.home.parent)],
            broker_id=BrokerId(1),
            now_ms=lambda: 7,
            passes=InThreads(new_check),
            **more,
        )

    @property
    def stored(self) -> set[str]:
        return {key for key in self.storage.bucket.objects if not key.startswith("_rlmm")}

    @property
    def state(self) -> SegmentState | None:
        found = self.log.fold.get(metadata().segment_id)
        return None if found is None else found.state


@pytest.fixture
async def world(tmp_path):
    home = tmp_path / "logs" / "orders-7"
    home.mkdir(parents=True)
    async with asyncio.TaskGroup() as group:
        world = World(home, group, SlowStorage(MemoryBucket()))
        await world.bucket.open(IDENTITY)
        yield world
    assert world.log.followed == 0


# ---- a marker that goes away meanwhile ----------------------------------------------------------


async def failure(work) -> RlmmError | None:
    try:
        await work
    except RlmmError as error:
        return error
    return None


async def test_a_copy_whose_bucket_lost_its_marker_meanwhile_is_never_finished(world):
    world.storage.gate.clear()
    async with asyncio.TaskGroup() as group:
        copying = group.create_task(failure(world.copier.copy_segment(RECORD, world.files)))
        await world.storage.begun.wait()
        lost = world.storage.bucket.objects.pop(marker.MARKER_KEY)
        world.storage.gate.set()
    error = copying.result()
    assert isinstance(error, StorageUnavailable)
    assert (error.fields["reason"], error.fields["rolled_back"]) == ("no_marker", False)
    assert world.log.written == ["ADD", "DELETE_SEGMENT_STARTED"]
    whole = world.stored
    assert whole, "nothing is removed while nobody knows whose bucket it is"
    world.storage.bucket.objects[marker.MARKER_KEY] = lost
    await world.bucket.confirm()
    await world.copier.delete_segment(PARTITION, metadata().segment_id)
    assert (world.stored, world.state) == (set(), None)


async def test_a_broker_is_not_told_of_a_copy_into_a_bucket_that_lost_its_marker(world):
    await world.log.put(metadata())
    world.storage.gate.clear()
    async with asyncio.TaskGroup() as group:
        copying = group.create_task(
            failure(world.copier.copy_log_segment_data(RECORD, world.files))
        )
        await world.storage.begun.wait()
        del world.storage.bucket.objects[marker.MARKER_KEY]
        world.storage.gate.set()
    error = copying.result()
    assert isinstance(error, StorageUnavailable)
    assert (error.fields["reason"], error.fields["write_begun"]) == ("no_marker", True)


async def test_no_copy_begins_and_no_object_goes_in_a_bucket_without_its_marker(world, monkeypatch):
    await world.copier.copy_segment(RECORD, world.files)
    whole = world.stored
    for module in ("bucket.bucket", "copying.removal"):
        monkeypatch.setattr(f"rlmm_daemon.daemon.{module}.MARKER_SECONDS", 0)
    del world.storage.bucket.objects[marker.MARKER_KEY]
    with pytest.raises(StorageUnavailable) as refused:
        await world.copier.delete_segment(PARTITION, metadata().segment_id)
    assert refused.value.fields["reason"] == "no_marker"
    assert (world.stored, world.state) == (whole, S.COPY_SEGMENT_FINISHED), "it is read as before"
    another = metadata(segment_id=SegmentId(bytes(15) + b"\x0a"))
    with pytest.raises(StorageUnavailable):
        await world.copier.copy_segment(records.encode(another), world.files)
    assert another.segment_id not in world.log.fold


async def test_no_object_is_written_where_the_marker_is_gone_when_a_copy_begins(world, monkeypatch):
    monkeypatch.setattr("rlmm_daemon.daemon.copying.copy_job.MARKER_SECONDS", 0)
    del world.storage.bucket.objects[marker.MARKER_KEY]
    puts = []
    put_segment = world.storage.put_segment

    async def noted(objects, *, progress):
        puts.append(objects)
        return await put_segment(objects, progress=progress)

    monkeypatch.setattr(world.storage, "put_segment", noted)
    with pytest.raises(StorageUnavailable) as refused:
        await world.copier.copy_segment(RECORD, world.files)
    assert refused.value.fields["reason"] == "no_marker"
    assert puts == []
    assert world.state is not S.COPY_SEGMENT_FINISHED


# ---- writes that come after their copy was given up ---------------------------------------------


async def late_put(world: World) -> None:
    """The storage carries out a PUT of the failed copy, long after."""
    await MemoryStorage.put_segment(
        world.storage,
        [(ObjectKind.LOG, world.bucket.place_for_new(metadata()).keys[ObjectKind.LOG], BYTES)],
        progress=Progress(),
    )


async def failed_copy(world: World) -> None:
    world.storage.put_fault = StorageUnavailable("the answer was lost")
    with pytest.raises(StorageUnavailable):
        await world.copier.copy_segment(RECORD, world.files)
    world.storage.put_fault = None
    await late_put(world)
    assert len(world.stored) == 1


def later() -> float:
    return asyncio.get_running_loop().time() + 100


async def test_a_put_that_lands_after_its_copy_was_rolled_back_does_not_stay(world):
    await failed_copy(world)
    assert world.state is None, "rolled back"
    await world.copier.late.look(asyncio.get_running_loop().time())
    assert len(world.stored) == 1, "nothing is due yet"
    await world.copier.late.look(later())
    assert world.stored == set()
    await late_put(world)
    await world.copier.late.look(later() + 10_000)
    assert world.stored == set()
    for _ in range(3):
        await world.copier.late.look(later() + 10_000)
    assert len(world.copier.late) == 0, "it is not looked at for ever"


async def test_a_brokers_failed_copy_is_looked_at_again_once_the_broker_has_deleted_it(world):
    await world.log.put(metadata())
    world.storage.put_fault = StorageUnavailable("the answer was lost")
    with pytest.raises(StorageUnavailable):
        await world.copier.copy_log_segment_data(RECORD, world.files)
    await late_put(world)
    await world.copier.late.look(later())
    assert len(world.stored) == 1, "the segment is there"
    await world.log.put(metadata(state=S.DELETE_SEGMENT_STARTED))
    del world.log.fold[metadata().segment_id]
    await world.copier.late.look(later() + 200)
    assert world.stored == set()


async def test_an_id_whose_copy_was_rolled_back_is_used_up_and_what_it_left_goes(world):
    """A delete that the storage has not answered could take what a later copy stores."""
    await failed_copy(world)
    for kind in (world.copier.copy_segment, world.copier.copy_log_segment_data):
        with pytest.raises(IllegalTransition, match="under a new id") as refused:
            await kind(RECORD, world.files)
        fields = refused.value.fields
        assert (fields["reason"], fields["write_begun"]) == ("segment_id_used", False)
    await world.copier.late.look(later())
    assert world.stored == set()


async def test_an_id_whose_deletion_an_earlier_life_began_is_used_up(world):
    """What that one asked of the storage may be carried out after this one has ended it."""
    deleting = metadata(state=S.DELETE_SEGMENT_STARTED)
    world.log.fold[deleting.segment_id] = deleting  # as a snapshot has it
    await world.copier.delete_segment(deleting.partition, deleting.segment_id)
    assert world.log.fold == {}
    with pytest.raises(IllegalTransition, match="under a new id"):
        await world.copier.copy_segment(RECORD, world.files)


async def test_an_id_that_anybody_deleted_is_used_up(world):
    await world.copier.copy_segment(RECORD, world.files)
    await world.log.put(metadata(state=S.DELETE_SEGMENT_STARTED))
    world.log.fold.clear()
    with pytest.raises(IllegalTransition, match="under a new id"):
        await world.copier.copy_segment(RECORD, world.files)


async def test_a_repeat_shows_what_was_finished_also_after_a_restart(world):
    done = await world.copier.copy_segment(RECORD, world.files)
    for copier in (world.copier, world.new_copier()):
        assert await copier.copy_segment(RECORD, world.files, repeats=True) == done
        other = records.encode(metadata(end_offset=Offset(100)))
        with pytest.raises(InvalidArgument, match="another segment"):
            await copier.copy_segment(other, world.files, repeats=True)
    assert world.storage.puts == 1


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (None, SegmentNotFound),
        (S.COPY_SEGMENT_STARTED, IllegalTransition),
        (S.DELETE_SEGMENT_STARTED, IllegalTransition),
    ],
)
async def test_a_repeat_begins_nothing(world, state, error):
    """Whether a delete of these keys is on its way, a daemon that has just started can't know."""
    if state is not None:
        await world.log.put(metadata(state=state))
    with pytest.raises(error, match="under a new id") as refused:
        await world.new_copier().copy_segment(RECORD, world.files, repeats=True)
    assert refused.value.fields["write_begun"] is False
    assert (world.stored, world.log.written) == (set(), [])


async def test_a_repeat_joins_what_runs_and_not_what_is_rolled_back(world):
    world.storage.gate.clear()
    first = world.group.create_task(_outcome(world.copier.copy_segment(RECORD, world.files)))
    await world.storage.begun.wait()
    repeat = world.copier.copy_segment(RECORD, world.files, repeats=True)
    joined = world.group.create_task(_outcome(repeat))
    await asyncio.sleep(0)
    (job,) = world.copier._jobs.values()
    assert job.waiters == 2
    job.stop(TimedOut("slow"))
    with pytest.raises(IllegalTransition, match="no copy under this id runs here"):
        await world.copier.copy_segment(RECORD, world.files, repeats=True)
    world.storage.gate.set()
    assert await first is await joined


async def test_a_failed_copy_that_another_caller_finished_keeps_its_objects(world):
    world.log.faults["DELETE_SEGMENT_STARTED"] = TimedOut()
    await failed_copy(world)
    await world.log.put(metadata(state=S.COPY_SEGMENT_FINISHED))
    await world.copier.late.look(later())
    assert len(world.stored) == 1
    del world.log.fold[metadata().segment_id]  # nobody saw a delete: the log may have lost it
    await world.copier.late.look(later() + 10_000)
    assert len(world.stored) == 1


async def test_a_hold_keeps_what_a_failed_copy_left(world):
    await failed_copy(world)
    loss = marker.AcceptedLoss(metadata_partition=3, topic_id="t", accepted_at_ms=7, broker_id=1)
    await acceptance.accept_loss(world.bucket, loss, cluster_id="c1")
    await world.copier.late.look(later())
    assert len(world.stored) == 1


# ---- whole jobs ---------------------------------------------------------------------------------


async def test_a_whole_copy_ends_finished_with_what_was_stored(world):
    record = await world.copier.copy_segment(RECORD, world.files)
    assert world.log.written == ["ADD", "COPY_SEGMENT_FINISHED"]
    finished = records.decode(record)
    assert finished.state is S.COPY_SEGMENT_FINISHED
    facts = custom_metadata.decode(finished.custom_metadata)
    assert facts is not None
    assert facts.log_crc32c == crc32c(b"A" * LOG_BYTES)
    assert facts.sizes[".txnindex"] == 3
    assert len(world.stored) == 6
    assert world.copier.jobs() == []


@pytest.mark.usefixtures("length")
async def test_what_checks_a_copy_comes_behind_what_others_wait_for(world, monkeypatch):
    seen, read = set(), FileSource.pread

    def pread(source, offset, length):
        seen.add(nice())
        return read(source, offset, length)

    monkeypatch.setattr(FileSource, "pread", pread)
    await world.copier.copy_segment(RECORD, world.files)
    assert min(nice() + threads.COPY_NICE, 19) in seen


async def test_a_brokers_whole_copy_stands_before_a_brokers_gates(world):
    world.log.faults = {"ADD": NotAssigned()}
    with pytest.raises(NotAssigned) as refusal:
        await world.copier.copy_segment(RECORD, world.files, Caller.BROKER)
    assert refusal.value.fields["write_begun"] is False
    world.log.faults = {}
    await world.copier.copy_segment(RECORD, world.files)
    assert world.log.callers == [Caller.BROKER, Caller.OPERATOR]


async def test_a_repeat_after_the_end_answers_the_record_and_copies_nothing(world):
    first = await world.copier.copy_segment(RECORD, world.files)
    assert await world.copier.copy_segment(RECORD, world.files) == first
    assert world.storage.puts == 1


async def test_a_repeat_meanwhile_joins(world):
    world.storage.gate.clear()
    tasks = [
        world.group.create_task(_outcome(world.copier.copy_segment(RECORD, world.files)))
        for _ in range(3)
    ]
    await world.storage.begun.wait()
    assert [facts.waiters for facts in world.copier.jobs()] == [3]
    tasks[0].cancel()  # one who leaves does not end it for the others
    world.storage.gate.set()
    assert await tasks[1] == await tasks[2]
    assert isinstance(await tasks[0], OutcomeUnknown)
    assert world.storage.puts == 1
    assert world.state is S.COPY_SEGMENT_FINISHED


async def test_another_segment_under_a_running_id_is_refused(world):
    world.storage.gate.clear()
    task = world.group.create_task(world.copier.copy_segment(RECORD, world.files))
    await world.storage.begun.wait()
    other = records.encode(metadata(end_offset=Offset(100)))
    with pytest.raises(InvalidArgument):
        await world.copier.copy_segment(other, world.files)
    with pytest.raises(Overloaded) as caught:
        await world.copier.copy_log_segment_data(RECORD, world.files)
    assert caught.value.fields["write_begun"] is False
    world.storage.gate.set()
    await task


async def test_what_cannot_be_opened_writes_nothing_to_the_log(world, tmp_path):
    outside = tmp_path / "x.log"
    outside.write_bytes(b"A" * LOG_BYTES)
    files = type(world.files)(
        *[str(outside), *[getattr(world.files, n) for n in world.files.__struct_fields__[1:]]]
    )
    with pytest.raises(PathNotAllowed) as caught:
        await world.copier.copy_segment(RECORD, files)
    assert caught.value.fields["write_begun"] is False
    assert world.log.written == []


ADDED, STARTED, FINISHED = "ADD", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED"
AWAY = StorageUnavailable("away")


@pytest.mark.parametrize(
    "row",
    [
        # before COPY_SEGMENT_STARTED is surely there, nothing is rolled back
        ({"ADD": IllegalTransition("no")}, None, None, IllegalTransition, [], None),
        ({"ADD": OutcomeUnknown("?")}, None, None, OutcomeUnknown, [], None),
        # from then on until COPY_SEGMENT_FINISHED is handed on, through the log
        ({}, AWAY, None, StorageUnavailable, [ADDED, STARTED, FINISHED], True),
        ({STARTED: OutcomeUnknown("?")}, AWAY, None, StorageUnavailable, [ADDED], False),
        ({STARTED: IllegalTransition("no")}, AWAY, None, StorageUnavailable, [ADDED], False),
        ({}, AWAY, AWAY, StorageUnavailable, [ADDED, STARTED], False),
        ({FINISHED: OutcomeUnknown("?")}, AWAY, None, StorageUnavailable, [ADDED, STARTED], False),
        # afterwards only if its own apply was a rejection
        (
            {"COPY_SEGMENT_FINISHED": IllegalTransition("no")},
            None,
            None,
            IllegalTransition,
            [ADDED, STARTED, FINISHED],
            True,
        ),
        ({"COPY_SEGMENT_FINISHED": OutcomeUnknown("?")}, None, None, OutcomeUnknown, [ADDED], None),
        (
            {"COPY_SEGMENT_FINISHED": ChecksumMismatch("?")},
            None,
            None,
            ChecksumMismatch,
            [ADDED],
            None,
        ),
    ],
)
async def test_the_roll_back_table(world, row):
    faults, put, delete, error, written, rolled_back = row
    world.log.faults = {step: type(fault)(fault.message) for step, fault in faults.items()}
    world.storage.put_fault = put and type(put)(put.message)
    world.storage.delete_fault = delete and type(delete)(delete.message)
    with pytest.raises(error) as caught:
        await world.copier.copy_segment(RECORD, world.files)
    assert world.log.written == written
    assert caught.value.fields.get("rolled_back") is rolled_back
    kept = {"COPY_SEGMENT_FINISHED"} & faults.keys() and rolled_back is None
    assert len(world.stored) == (6 if kept else 0)


async def test_a_finish_that_was_certainly_not_written_is_asked_again_and_keeps_the_objects(world):
    options = replace(OPTIONS, deadline_seconds=2.0)
    world.log.faults = {"COPY_SEGMENT_FINISHED": Overloaded("not now")}
    with pytest.raises(Overloaded):
        await world.new_copier(options).copy_segment(RECORD, world.files)
    assert world.log.written == ["ADD"]
    assert len(world.stored) == 6
    world.log.faults = {}
    await world.copier.copy_segment(RECORD, world.files)
    assert world.state is S.COPY_SEGMENT_FINISHED


@pytest.mark.parametrize("why", ["deadline", "floor", "caller", "delete", "drain"])
async def test_whatever_ends_a_copy_in_the_middle_rolls_it_back(world, why):
    options = {
        # Far longer than it takes to get there, or there would be nothing to roll back.
        "deadline": replace(OPTIONS, deadline_seconds=2.0),
        "floor": replace(OPTIONS, progress_window_seconds=0.02),
    }.get(why, OPTIONS)
    copier = world.new_copier(options)
    world.storage.gate.clear()
    task = world.group.create_task(_outcome(copier.copy_segment(RECORD, world.files)))
    await world.storage.begun.wait()
    if why == "caller":
        task.cancel()
    elif why == "delete":
        held = world.log.fold[metadata().segment_id]
        await world.log.put(replace(held, state=S.DELETE_SEGMENT_STARTED))
    elif why == "drain":
        await copier.drain(0.1)
    outcome = await task
    await until(lambda: not copier.jobs())
    expected = {
        "deadline": TimedOut,
        "floor": StorageUnavailable,
        "caller": OutcomeUnknown,
        "delete": IllegalTransition,
        "drain": Draining,
    }[why]
    assert isinstance(outcome, expected)
    assert outcome.fields["write_begun"] is True
    assert world.state is None
    assert world.log.written[-1] == "DELETE_SEGMENT_FINISHED"
    assert world.stored == set()


# ---- the broker's own copies --------------------------------------------------------------------


class Busy(SlowStorage):
    """Keeps its calls, as S3 does; `step` is what it does with the copy in place of storing it."""

    def __init__(self, step: Callable[[Progress, Calls], Any]) -> None:
        super().__init__(MemoryBucket())
        self.step = step

    async def put_segment(self, objects, *, progress):
        progress.calls = calls = Calls(asyncio.get_running_loop().time)
        progress.phase, progress.write_begun = "upload", True
        await self.step(progress, calls)
        return await super().put_segment(objects, progress=progress)


FLOOR = replace(
    OPTIONS, progress_floor_bytes_per_second=1_000, progress_window_seconds=0.1, parallel_max=2
)


async def copied_while(world, options: CopyOptions, step: Any) -> Any:
    busy = World(world.home, world.group, Busy(step))
    await busy.bucket.open(IDENTITY)
    return await _outcome(busy.new_copier(options).copy_segment(RECORD, busy.files))


@pytest.fixture
def looked(monkeypatch) -> Callable[[], Any]:
    """Return what waits for the floor's next look."""
    bell, real = asyncio.Event(), ProgressFloor.look

    def look(floor: ProgressFloor, moved: int, waited: float) -> TooSlow | None:
        bell.set()
        return real(floor, moved, waited)

    async def next_look() -> None:
        bell.clear()
        await bell.wait()

    monkeypatch.setattr(ProgressFloor, "look", look)
    return next_look


async def windows_pass(looked: Callable[[], Any]) -> None:
    """Wait until the floor has looked in several windows."""
    loop = asyncio.get_running_loop()
    end = loop.time() + 4 * FLOOR.progress_window_seconds
    while loop.time() < end:
        await looked()


async def test_a_copy_that_waits_for_its_own_side_is_not_ended_by_the_floor(world, looked):
    async def step(_: Progress, calls: Calls) -> None:
        await windows_pass(looked)
        with calls.made("UploadPart 1 .log") as call:
            call.ours()
            await windows_pass(looked)

    assert isinstance(await copied_while(world, FLOOR, step), bytes)


async def test_a_copy_whose_storage_stands_still_is_ended_by_the_floor_with_the_call(world, looked):
    async def step(_: Progress, calls: Calls) -> None:
        await windows_pass(looked)
        with calls.made("UploadPart 2 .log"):
            await asyncio.sleep(PATIENCE_SECONDS)

    error = await copied_while(world, FLOOR, step)
    assert isinstance(error, StorageUnavailable)
    assert error.message.startswith("only 0 bytes in ")
    assert error.fields["call"].startswith("UploadPart 2 .log (")


async def test_bytes_that_were_sent_for_nothing_count_for_the_floor(world, looked):
    """An attempt that failed is sent again: the storage took its bytes all the same."""

    async def step(progress: Progress, calls: Calls) -> None:
        with calls.made("PutObject .log"):
            for _ in range(4):
                progress.moved(1_000_000)
                await looked()
                progress.moved(-1_000_000)
        assert (progress.bytes_done, progress.bytes_moved) == (0, 4_000_000)

    assert isinstance(await copied_while(world, FLOOR, step), bytes)


async def test_a_copy_that_only_waits_for_its_own_side_has_its_deadline(world):
    async def step(progress: Progress, _: Calls) -> None:
        progress.bytes_total = 9_000
        progress.moved(7_000)
        await asyncio.sleep(PATIENCE_SECONDS)

    outcome = await copied_while(world, replace(FLOOR, deadline_seconds=0.5), step)
    assert isinstance(outcome, TimedOut)
    assert "upload, 7000 of 9000 bytes" in outcome.message, "how far it came tells why"


async def test_a_broker_driven_copy_writes_no_metadata(world):
    await world.log.put(metadata())
    custom = await world.copier.copy_log_segment_data(RECORD, world.files)
    assert custom_metadata.decode(custom) is not None
    assert world.log.written == []
    assert len(world.stored) == 6


async def test_a_broker_driven_copy_waits_for_the_apply_of_started(world):
    copier = world.new_copier(replace(OPTIONS, apply_wait_seconds=10.0))
    task = world.group.create_task(copier.copy_log_segment_data(RECORD, world.files))
    await until_phases(copier, ["apply"])
    assert world.storage.puts == 0
    await world.log.put(metadata())
    assert await task is not None


@pytest.mark.parametrize(
    "state", [S.COPY_SEGMENT_FINISHED, S.DELETE_SEGMENT_STARTED], ids=lambda state: state.name
)
async def test_a_broker_driven_copy_in_another_state_is_refused(world, state):
    await world.log.put(metadata(state=state))
    with pytest.raises(IllegalTransition) as caught:
        await world.copier.copy_log_segment_data(RECORD, world.files)
    assert caught.value.fields["write_begun"] is False


async def test_a_segment_that_never_starts_times_out_with_nothing_begun(world):
    with pytest.raises(TimedOut) as caught:
        await world.copier.copy_log_segment_data(RECORD, world.files)
    assert caught.value.fields["write_begun"] is False


async def test_a_failed_broker_driven_copy_removes_nothing_and_says_that_it_began(world):
    await world.log.put(metadata())
    world.storage.put_fault = StorageUnavailable("away")
    world.storage.delete_fault = AssertionError("nobody may delete")
    with pytest.raises(StorageUnavailable) as caught:
        await world.copier.copy_log_segment_data(RECORD, world.files)
    assert caught.value.fields["write_begun"] is True
    assert world.state is S.COPY_SEGMENT_STARTED


async def in_flight(world):
    """Return a copy of the broker's own that is at the storage."""
    await world.log.put(metadata())
    world.storage.gate.clear()
    task = world.group.create_task(
        _outcome(world.copier.copy_log_segment_data(RECORD, world.files))
    )
    await world.storage.begun.wait()
    return task


async def test_a_copy_is_ended_by_a_delete_that_waits_to_be_applied(world):
    """Its partition was given to another broker, and sleeps."""
    task = await in_flight(world)
    for told in world.log.on_delete_put_aside:
        told(metadata().partition, metadata().segment_id)
    assert isinstance(await task, IllegalTransition)


async def test_a_deleted_segments_broker_driven_copy_is_ended(world):
    task = await in_flight(world)
    await world.log.put(metadata(state=S.DELETE_SEGMENT_STARTED))
    await world.copier.delete_log_segment_data(RECORD)
    assert isinstance(await task, IllegalTransition)
    assert world.stored == set()


@pytest.mark.parametrize("whole", [True, False])
async def test_a_delete_touches_nothing_before_the_copy_has_ended(world, whole):
    """A copy that is ended may store one more object before it has."""

    class Lingering(SlowStorage):
        def __init__(self) -> None:
            super().__init__(MemoryBucket())
            self.ending, self.may_end, self.deleted = asyncio.Event(), asyncio.Event(), 0

        async def put_segment(self, objects, *, progress):
            try:
                return await super().put_segment(objects, progress=progress)
            except asyncio.CancelledError:
                self.ending.set()
                await self.may_end.wait()
                await MemoryStorage.put_segment(self, objects, progress=progress)
                raise

        async def delete(self, keys):
            self.deleted += 1
            return await super().delete(keys)

    storage = Lingering()
    slow = World(world.home, world.group, storage)
    await slow.bucket.open(IDENTITY)
    copy = await in_flight(slow)
    if whole:
        delete = slow.copier.delete_segment(PARTITION, metadata().segment_id)
    else:
        await slow.log.put(metadata(state=S.DELETE_SEGMENT_STARTED))
        delete = slow.copier.delete_log_segment_data(RECORD)
    task = world.group.create_task(delete)
    try:
        await storage.ending.wait()
        for _ in range(50):  # as many turns of the loop as a delete takes by far
            await asyncio.sleep(0)
        assert (task.done(), storage.deleted) == (False, 0)
    finally:
        storage.may_end.set()
    await task
    assert isinstance(await copy, IllegalTransition)
    assert slow.stored == set()


@pytest.fixture(params=[upload.SHORT_BYTES, 0], ids=["short", "long"])
def length(request, monkeypatch) -> None:
    """A `.log` that counts as short, and one that is read while it is stored."""
    monkeypatch.setattr(upload, "SHORT_BYTES", request.param)


@pytest.mark.usefixtures("length")
async def test_a_check_that_finds_fault_fails_the_copy(world):
    class Strict:
        def __init__(self, segment) -> None:
            del segment

        def feed(self, chunk: bytes) -> None:
            assert chunk

        def finish(self) -> None:
            raise ChecksumMismatch("batch at 17", offset=12, position=17)

    copier = world.new_copier(new_check=Strict)
    with pytest.raises(ChecksumMismatch) as caught:
        await copier.copy_segment(RECORD, world.files)
    assert caught.value.fields["position"] == 17
    assert world.state is None
    lax = world.new_copier(replace(OPTIONS, check_segments=False), Strict)
    another = metadata(segment_id=SegmentId(bytes(15) + b"\x55"))
    await lax.copy_segment(records.encode(another), world.files)


async def test_a_long_log_that_is_found_at_fault_ends_its_upload(world, monkeypatch):
    class Strict:
        def __init__(self, _: Any) -> None: ...

        def feed(self, _: bytes) -> None:
            raise ChecksumMismatch("batch at 17")

        def finish(self) -> None: ...

    monkeypatch.setattr(upload, "SHORT_BYTES", 0)
    world.storage.gate.clear()  # for good
    async with asyncio.timeout(PATIENCE_SECONDS):
        outcome = await _outcome(
            world.new_copier(new_check=Strict).copy_segment(RECORD, world.files)
        )
    assert isinstance(outcome, ChecksumMismatch)
    assert (world.state, world.stored) == (None, set())


@pytest.mark.parametrize(("short_bytes", "reader"), [(LOG_BYTES, "storage.copy"), (0, "copy")])
async def test_a_log_is_read_once_and_a_short_one_by_the_thread_that_stores_it(
    world, tmp_path, monkeypatch, short_bytes, reader
):
    """To wake another one takes longer."""
    monkeypatch.setattr(upload, "SHORT_BYTES", short_bytes)
    (tmp_path / "remote").mkdir()
    local = LocalStorage(str(tmp_path / "remote"), owner="1")
    own = World(world.home, world.group, local)
    await own.bucket.open(IDENTITY)
    readers: list[str] = []
    read = upload._ReadMeanwhile.read

    def noted(log: Any) -> int:
        readers.append(threading.current_thread().name.partition("_")[0].partition("-")[0])
        return read(log)

    monkeypatch.setattr(upload._ReadMeanwhile, "read", noted)
    await own.copier.copy_segment(RECORD, own.files)
    await local.close()
    assert readers == [reader]


@pytest.mark.usefixtures("length")
@pytest.mark.parametrize("suffix", ["log", "timeindex"])
async def test_a_bad_sector_ends_the_copy_that_meets_it_and_no_other(world, monkeypatch, suffix):
    bad = (world.home / f"11.{suffix}").stat().st_ino
    real = os.pread

    def pread(descriptor: int, *where: int) -> bytes:
        if os.fstat(descriptor).st_ino == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, *where)

    monkeypatch.setattr(os, "pread", pread)
    world.storage.gate.clear()
    copy = world.group.create_task(_outcome(world.copier.copy_segment(RECORD, world.files)))
    healthy = world.home.parent / "healthy" / "orders-7"
    healthy.mkdir(parents=True)
    copier = world.new_copier(log_dirs=[str(healthy.parent)])
    other = copier.copy_segment(
        records.encode(metadata(segment_id=SegmentId(bytes([1]) * 16))), files_in(healthy)
    )
    both = world.group.create_task(_outcome(other))
    await world.storage.begun.wait()
    world.storage.gate.set()
    error = await copy
    assert isinstance(error, StorageUnavailable)
    assert error.message == f"{world.home}/11.{suffix} can't be read: Input/output error"
    assert error.fields["rolled_back"] is True
    assert isinstance(await both, bytes)


async def test_a_disk_that_hangs_keeps_a_thread_and_never_the_copy(world, monkeypatch):
    """A copy that never returns must be impossible: also where a read of its source does not."""
    hung, freed, real = (world.home / "11.log").stat().st_ino, threading.Event(), os.pread

    def pread(descriptor: int, *where: int) -> bytes:
        if os.fstat(descriptor).st_ino == hung:
            freed.wait(PATIENCE_SECONDS / 2)
            returned.append(descriptor)
        return real(descriptor, *where)

    returned: list[int] = []
    monkeypatch.setattr(os, "pread", pread)
    monkeypatch.setattr(threads, "LET_GO_SECONDS", 0.2)
    copier = world.new_copier(replace(OPTIONS, parallel_max=2, deadline_seconds=1.0))
    world.storage.gate.clear()
    try:
        with pytest.raises(TimedOut):
            await copier.copy_segment(RECORD, world.files)
        assert not returned
        assert copier.jobs() == []
        assert world.stored == set()
        world.storage.gate.set()
        healthy = world.home.parent / "healthy" / "orders-7"
        healthy.mkdir(parents=True)
        other = world.new_copier(log_dirs=[str(healthy.parent)])
        record = records.encode(metadata(segment_id=SegmentId(bytes([1]) * 16)))
        assert await other.copy_segment(record, files_in(healthy))
    finally:
        freed.set()


def test_a_file_is_closed_once_though_a_thread_that_was_given_up_closes_it_too(world, monkeypatch):
    """The second time the number may be another file's."""
    closed, real = [], os.close

    def close(descriptor: int) -> None:
        closed.append(descriptor)
        if len(closed) == 1:
            source.close()  # as the other one might, just now
        real(descriptor)

    descriptor = os.open(world.home / "11.log", os.O_RDONLY)
    source = FileSource(descriptor, "11.log")
    with monkeypatch.context() as patched:
        patched.setattr(os, "close", close)
        source.close()
    assert closed == [descriptor]


@pytest.mark.parametrize("crc", [0, 2**32 - 1])
async def test_a_storage_that_holds_other_bytes_fails_the_copy(world, crc):
    class Lying(SlowStorage):
        async def put_segment(self, objects, *, progress):
            stored = await super().put_segment(objects, progress=progress)
            return [replace(row, crc32c=crc) for row in stored]

    lying = World(world.home, world.group, Lying(MemoryBucket()))
    await lying.bucket.open(IDENTITY)
    with pytest.raises(ChecksumMismatch):
        await lying.copier.copy_segment(RECORD, lying.files)
    assert lying.log.written[-1] == "DELETE_SEGMENT_FINISHED"


@pytest.mark.usefixtures("length")
@pytest.mark.parametrize("suffix", ["log", "index"])
async def test_a_file_that_changed_after_it_was_stored_fails_the_copy(world, suffix):
    """What was stored may be of two moments, and none of its checksums says so."""

    class Late(SlowStorage):
        async def put_segment(self, objects, *, progress):
            stored = await super().put_segment(objects, progress=progress)
            os.utime(world.home / f"11.{suffix}", ns=(1, 1))
            return stored

    late = World(world.home, world.group, Late(MemoryBucket()))
    await late.bucket.open(IDENTITY)
    with pytest.raises(ChecksumMismatch, match=f"11.{suffix} changed"):
        await late.copier.copy_segment(RECORD, late.files)
    assert (late.state, late.stored) == (None, set())


@pytest.mark.usefixtures("length")
@pytest.mark.parametrize("damage", [False, True])
async def test_a_real_segment_passes_the_check_and_a_damaged_one_is_rolled_back(world, damage):
    row = json.loads((REAL / "manifest.json").read_bytes())["partitions"][0]["segments"][0]
    segment = metadata(
        start_offset=Offset(row["startOffset"]),
        end_offset=Offset(row["endOffset"]),
        segment_leader_epochs={0: row["startOffset"]},
        segment_size_bytes=row["segmentSizeInBytes"],
        txn_index_empty=row["txnIndexEmpty"],
    )
    content = bytearray((REAL / "orders-0/00000000000000000000.log").read_bytes())
    content[20_000] ^= damage
    files = files_in(world.home, transactions=None)
    (world.home / "11.log").write_bytes(content)
    copier = world.new_copier(new_check=kafka_segment_check)
    outcome = await _outcome(copier.copy_segment(records.encode(segment), files))
    assert isinstance(outcome, RlmmError) is damage
    assert world.state is (None if damage else S.COPY_SEGMENT_FINISHED)


async def test_copies_run_in_turns_and_too_many_are_refused(world):
    copier = world.new_copier(replace(OPTIONS, parallel_max=1, waiting_max=1))
    world.storage.gate.clear()
    tasks = []
    for n in (1, 2):
        record = records.encode(metadata(segment_id=SegmentId(bytes([n]) * 16)))
        tasks.append(world.group.create_task(copier.copy_segment(record, world.files)))
        await until_phases(copier, ["upload", "queued"][:n])
    with pytest.raises(Overloaded):
        await copier.copy_segment(RECORD, world.files)
    assert world.storage.puts == 1
    world.storage.gate.set()
    for task in tasks:
        await task


@pytest.mark.usefixtures("length")
async def test_a_copy_that_a_slow_disk_holds_up_takes_no_thread_from_anybody_else(world):
    """Reads of what is stored want one, to fetch what the page cache lacks."""
    loop, began, freed = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    class Held:
        def __init__(self, _: Any) -> None: ...

        def feed(self, _: bytes) -> None:
            loop.call_soon_threadsafe(began.set)
            assert freed.wait(PATIENCE_SECONDS)

        def finish(self) -> None: ...

    loop.set_default_executor(ThreadPoolExecutor(1))
    copier = world.new_copier(replace(OPTIONS, parallel_max=2), new_check=Held)
    copy = world.group.create_task(copier.copy_segment(RECORD, world.files))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS / 2):
            await began.wait()
            assert await asyncio.to_thread(lambda: 1) == 1
    finally:
        freed.set()
    await copy


async def test_a_draining_copier_takes_no_more(world):
    await world.copier.drain(0.1)
    with pytest.raises(Draining):
        await world.copier.copy_segment(RECORD, world.files)


async def test_a_copy_that_is_asked_for_while_the_tasks_end_was_not_begun(world):
    async with asyncio.TaskGroup() as ended:
        pass
    world.copier._tasks = ended
    for _ in range(2):
        with pytest.raises(Draining):
            await world.copier.copy_segment(RECORD, world.files)


# ---- deletes ------------------------------------------------------------------------------------


async def test_a_whole_delete_goes_through_the_log(world):
    await world.copier.copy_segment(RECORD, world.files)
    await world.copier.delete_segment(PARTITION, metadata().segment_id)
    assert world.log.written[2:] == ["DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED"]
    assert world.stored == set()
    await world.copier.delete_segment(PARTITION, metadata().segment_id)


async def test_a_segment_that_is_gone_is_deleted_already(world):
    await world.copier.copy_segment(RECORD, world.files)
    world.log.fold.clear()
    await world.copier.delete_log_segment_data(RECORD)
    assert len(world.stored) == 6


@pytest.mark.parametrize("state", [S.COPY_SEGMENT_STARTED, S.COPY_SEGMENT_FINISHED])
async def test_data_of_a_segment_in_another_state_is_not_deleted(world, state):
    await world.copier.copy_segment(RECORD, world.files)
    await world.log.put(metadata(state=state))
    with pytest.raises(IllegalTransition):
        await world.copier.delete_log_segment_data(RECORD)
    assert len(world.stored) == 6


async def test_a_delete_finds_the_objects_by_erased_custom_metadata_too(world):
    await world.copier.copy_segment(RECORD, world.files)
    await world.log.put(metadata(state=S.DELETE_SEGMENT_STARTED, custom_metadata=None))
    await world.copier.delete_log_segment_data(RECORD)
    assert world.stored == set()


async def test_a_failed_delete_of_objects_leaves_the_segment_started(world):
    await world.copier.copy_segment(RECORD, world.files)
    world.storage.delete_fault = StorageUnavailable("away")
    with pytest.raises(StorageUnavailable):
        await world.copier.delete_segment(PARTITION, metadata().segment_id)
    assert world.state is S.DELETE_SEGMENT_STARTED


async def test_a_partition_that_must_not_be_copied_is_refused_before_anything_is_written(world):
    def compacts(partition) -> None:
        raise InvalidArgument(f"{partition.topic} compacts")

    copier = world.new_copier(require_copyable=compacts)
    for call in (
        copier.copy_segment(RECORD, world.files),
        copier.copy_log_segment_data(RECORD, world.files),
    ):
        with pytest.raises(InvalidArgument, match="orders compacts") as refused:
            await call
        assert refused.value.fields["write_begun"] is False
    assert (world.stored, world.state) == (set(), None)


async def test_a_held_segments_objects_are_nobodys_to_delete(world):
    """Neither the broker's call nor an operator's order touches what was finished unseen."""
    await world.copier.copy_segment(RECORD, world.files)
    stored = set(world.stored)
    held = world.log.fold[metadata().segment_id]
    await world.log.put(replace(held, state=S.DELETE_SEGMENT_STARTED))
    world.log.held.add(metadata().segment_id)
    with pytest.raises(HistoryLost, match="rlmm log repair"):
        await world.copier.delete_log_segment_data(RECORD)
    with pytest.raises(HistoryLost, match="rlmm log repair"):
        await world.copier.delete_segment(PARTITION, metadata().segment_id)
    assert stored
    assert set(world.stored) == stored


async def test_without_storage_every_method_says_so(world):
    copier = Copier(
        None,
        world.log,
        world.group,
        options=OPTIONS,
        log_dirs=[],
        broker_id=BrokerId(1),
        now_ms=lambda: 7,
        passes=InThreads(),
    )
    for call in (
        copier.copy_segment(RECORD, world.files),
        copier.copy_log_segment_data(RECORD, world.files),
        copier.delete_log_segment_data(RECORD),
        copier.delete_segment(PARTITION, metadata().segment_id),
    ):
        with pytest.raises(StorageNotConfigured):
            await call


async def test_a_copy_to_a_real_directory_ends_finished(tmp_path, world):
    (tmp_path / "remote").mkdir()
    local = World(world.home, world.group, LocalStorage(str(tmp_path / "remote"), owner="1"))
    await local.bucket.open(IDENTITY)
    await local.copier.copy_segment(RECORD, local.files)
    found = sorted(path.name for path in (tmp_path / "remote").glob("orders-7-*/*"))
    assert len(found) == 6
    await local.storage.close()


async def test_a_segment_gone_before_its_copy_is_not_found(world, monkeypatch):
    async def gone(*_: object) -> None:
        return None

    monkeypatch.setattr(world.log, "until_state", gone)
    with pytest.raises(SegmentNotFound):
        await world.copier.copy_log_segment_data(RECORD, world.files)


async def until_phases(copier: Copier, wanted: list[str]) -> None:
    await until(lambda: [facts.phase for facts in copier.jobs()] == wanted)


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until it holds; pytest's own timeout is the bound."""
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    pytest.fail("it never came")


async def _outcome(call: Any) -> Any:
    try:
        return await call
    except RlmmError as error:
        return error
