"""Compaction of an embedded log on real files: what a reader finds, and what a crash leaves."""

import asyncio
import errno
import json
import random
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rlmm_daemon.adapters.event_log.embedded import (
    EmbeddedLog,
    EmbeddedOptions,
    compacted_files,
    identity,
)
from rlmm_daemon.adapters.event_log.embedded.repair import repair
from rlmm_daemon.adapters.event_log.embedded.verify import verify
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec import batches, records
from rlmm_daemon.core.snapshots.compaction import When
from rlmm_daemon.domain.errors import (
    LogCorrupt,
    StorageFull,
    StorageUnavailable,
    UnsupportedProtocol,
)
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import NO_EPOCH, Compacted, EpochEnd, LogRange
from tests.contract.event_log import spawning
from tests.unit.adapters.event_log.embedded.faulty_disk import FaultyDisk
from tests.unit.core.snapshots.test_compaction import folded, life, same_from_here, state_of
from tests.unit.core.world import DELETE_FINISHED, DELETE_STARTED, FINISHED, update
from tests.unit.daemon.events import until

ZERO = MetadataPartition(0)
DELETES = (DELETE_STARTED, DELETE_FINISHED)
ALWAYS = When(factor=1.01, bytes_min=1)
OPTIONS = EmbeddedOptions(
    heartbeat_seconds=0.01,
    segment_bytes=2048,
    preallocate_bytes=512,
    probe_seconds=0.01,
    compaction=ALWAYS,
)


class Logs:
    """Logs in one directory, one after another, and what was ever appended."""

    def __init__(self, directory: Path, tasks: asyncio.TaskGroup) -> None:
        self.directory = directory / "log"
        self.tasks = tasks
        self.disk = FaultyDisk(LocalDisk())
        self.rows: list[tuple[int, bytes]] = []
        self.log: EmbeddedLog

    async def open(self, options: EmbeddedOptions = OPTIONS) -> EmbeddedLog:
        self.log = EmbeddedLog(
            disk=self.disk,
            clock=SystemClock(),
            spawn=lambda work, name: self.tasks.create_task(work, name=name),
            luck=random.Random(7),
            directory=str(self.directory),
            partition_count=1,
            options=options,
        )
        await self.log.open(create=True)
        return self.log

    async def put(self, events) -> None:
        for event in events:
            value = records.encode(event)
            self.rows.append((await self.log.append(ZERO, value), value))

    async def churn(self, first: int, count: int, *, alive: int = 3) -> None:
        """Copy segments in a row, each of which makes an old one go."""
        for n in range(first, first + count):
            await self.put(life(n, 10 * n, 10 * n + 9, {n // 20: 10 * n}, upto=FINISHED))
            if n >= alive:
                await self.put(
                    update(n - alive, state) for state in (DELETE_STARTED, DELETE_FINISHED)
                )

    async def compact(self, upto: int | None = None, *, holds: bool = True) -> Compacted | None:
        @asynccontextmanager
        async def steady():
            yield holds

        upto = self.rows[-1][0] + 1 if upto is None else upto
        return await self.log.compact(ZERO, upto, turn=lambda: asyncio.sleep(0), steady=steady)

    async def read(self, offset: int = 0):
        """Return all batches from an offset to the end."""
        end = (await self.log.end_offsets([ZERO]))[ZERO].end
        found = []
        async with aclosing(self.log.follow(ZERO, offset, epoch=NO_EPOCH)) as stream:
            async for batch in stream:
                found.append(batch)
                if batch.next_offset >= end:
                    return found
        raise AssertionError("the log ended")

    async def verify(self) -> None:
        """The log folds to what everything that was ever appended does, and lacks nothing."""
        read = await self.read()
        assert all(not batch.unvouched for batch in read)
        left = [record for batch in read for record in batch.records]
        assert set(left) <= set(self.rows), "each at its own offset"
        end = self.rows[-1][0] + 1
        assert read[-1].next_offset == end
        same_from_here(folded(self.rows, end), folded(left, end), [])

    @property
    def home(self) -> Path:
        return self.directory / "0"

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.home.iterdir())

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.home.glob("*.log"))


@pytest.fixture
async def logs(tmp_path):
    async with spawning() as tasks:
        made = Logs(tmp_path, tasks)
        await made.open()
        yield made
        await made.log.close()


async def test_a_log_of_dead_segments_becomes_as_small_as_its_live_ones(logs):
    await logs.churn(0, 100)
    before = logs.bytes
    done = await logs.compact()
    assert done is not None
    assert done.bytes_after < done.bytes_before / 8
    assert logs.bytes < before / 8
    await logs.verify()
    await logs.churn(100, 30)
    await logs.verify()
    assert await logs.compact() is not None
    await logs.verify()


async def test_what_is_left_is_there_after_a_restart_too(logs):
    await logs.churn(0, 60)
    await logs.compact()
    for _ in range(2):
        await logs.log.close()
        await logs.open()
        await logs.verify()
        await logs.churn(1_000 + logs.rows[-1][0], 20, alive=10_000)
    assert [report.findings for report in await verify(logs.disk, str(logs.directory), 1)] == [[]]


async def test_nothing_before_the_snapshot_alone_is_touched(logs):
    await logs.churn(0, 60)
    bases = [int(name[:20]) for name in logs.names if name.endswith(".log")]
    upto = bases[3] + 1
    done = await logs.compact(upto)
    assert done is not None
    assert done.until == bases[3]
    left = [int(name[:20]) for name in logs.names if name.endswith(".log")]
    assert left[-len(bases[3:]) :] == bases[3:]
    await logs.verify()


async def test_epochs_end_where_they_did_even_those_of_which_nothing_is_left(logs):
    for restart in range(5):
        await logs.churn(20 * restart, 20)
        await logs.log.close()
        await logs.open()
    known = [await logs.log.epoch_end(ZERO, epoch) for epoch in range(12)]
    assert await logs.compact() is not None
    assert [await logs.log.epoch_end(ZERO, epoch) for epoch in range(12)] == known
    await logs.log.close()
    (logs.home / "leader-epoch-checkpoint").unlink()
    for path in logs.directory.glob("state.json"):
        state = json.loads(path.read_text())
        state["clean"] = {}
        del state["crc32c"]
        path.write_text(json.dumps(state))
    await logs.open()
    assert [await logs.log.epoch_end(ZERO, epoch) for epoch in range(12)] == known
    assert known[-1] != EpochEnd(epoch=-1, end_offset=-1)


async def test_each_batch_says_up_to_where_something_was_dropped_and_nothing_else_does(logs):
    await logs.churn(0, 60)
    done = await logs.compact()
    dropped = [batch.dropped_to for batch in await logs.read()]
    assert max(dropped) <= done.until
    assert dropped[0]
    assert not dropped[-1]
    assert [batch.dropped_to for batch in await logs.read(done.until)] == [0] * len(
        await logs.read(done.until)
    )


async def test_kafkas_form_holds_every_file(logs):
    await logs.churn(0, 60)
    await logs.compact()
    for path in logs.home.glob("*.log"):
        offset = int(path.name[:20])
        for batch in batches.split(path.read_bytes()):
            assert batch.base_offset == offset
            offset = batch.next_offset
            assert len(batches.records_of(batch)) == batch.record_count


async def test_what_a_repair_wrote_over_lost_offsets_is_still_lost(logs):
    await logs.churn(0, 40)
    await logs.log.close()
    lost = logs.rows[30][0]
    for path in logs.home.glob("*.log"):
        if int(path.name[:20]) > lost:
            continue
        content = path.read_bytes()
        kept = b""
        for batch in batches.split(content):
            empty = batches.build_spanning(
                [], base_offset=lost, next_offset=lost + 1, leader_epoch=batch.leader_epoch,
                timestamp_ms=1, compacted=False,
            )  # fmt: skip
            piece = content[batch.position : batch.end]
            kept += empty if batch.base_offset == lost else piece
        path.write_bytes(kept)
    await logs.open()
    assert await logs.compact() is not None
    ranges = [each for batch in await logs.read() for each in batch.unvouched]
    assert ranges == [LogRange(start=lost, end=lost + 1)]


async def test_a_reader_in_the_middle_of_a_file_that_is_replaced_reads_on(logs):
    await logs.churn(0, 60)
    async with aclosing(logs.log.follow(ZERO, 0, epoch=NO_EPOCH)) as stream:
        first = await anext(stream)
        await logs.compact()
        position = first.next_offset
        while position <= logs.rows[-1][0]:
            batch = await anext(stream)
            assert batch.next_offset > position
            position = batch.next_offset


async def test_a_fold_that_changed_meanwhile_keeps_the_log_as_it_is(logs):
    await logs.churn(0, 60)
    before = logs.names
    assert await logs.compact(holds=False) is None
    assert logs.names == before


async def test_what_would_free_little_is_not_written_again_and_again(logs):
    await logs.churn(0, 60, alive=10_000)
    assert await logs.compact() is not None, "many small batches become few"
    await logs.churn(60, 6, alive=10_000)
    await logs.log.seal(ZERO)
    before = logs.names
    tried = []
    for _ in range(2):
        logs.disk.calls.clear()
        assert await logs.compact() is None
        tried.append("pwrite" in logs.disk.calls)
    assert tried == [True, False]
    assert logs.names == before


async def test_a_small_log_is_left_alone(logs):
    await logs.log.close()
    options = EmbeddedOptions(segment_bytes=2048, preallocate_bytes=512, compaction=When())
    await logs.open(options)
    await logs.churn(0, 60)
    assert await logs.compact() is None


async def test_the_newest_file_is_closed_first_if_it_alone_makes_the_log_due(logs):
    await logs.log.close()
    whole = EmbeddedOptions(preallocate_bytes=512, compaction=When(bytes_min=10_000))
    await logs.open(whole)
    await logs.churn(0, 20)
    assert [name for name in logs.names if name.endswith(".log")] == [f"{0:020}.log"]
    await logs.churn(20, 40)
    assert await logs.compact(upto=10) is None, "no snapshot is as far"
    bases = [name for name in logs.names if name.endswith(".log")]
    await logs.churn(60, 1)
    assert await logs.compact(upto=10) is None
    assert [name for name in logs.names if name.endswith(".log")] == bases, "not again"
    assert len(bases) == 2
    assert await logs.compact() is not None
    await logs.verify()


async def test_a_full_disk_changes_nothing_and_room_lets_it_go_on(logs):
    await logs.churn(0, 60)
    before = logs.names
    logs.disk.fail_next("pwrite", errno.ENOSPC)
    with pytest.raises(StorageFull):
        await logs.compact()
    assert logs.names == before
    await logs.verify()
    assert await logs.compact() is not None
    await logs.verify()


async def test_an_older_daemon_refuses_a_compacted_log_and_leaves_it_as_it_is(logs, monkeypatch):
    await logs.churn(0, 60)
    await logs.log.close()
    assert json.loads((logs.directory / "identity.json").read_text())["format"] == 1
    assert json.loads((logs.directory / "state.json").read_text())["format"] == 1
    await logs.open()
    await logs.compact()
    await logs.log.close()
    monkeypatch.setattr(identity, "FORMAT_COMPACTED", 1)  # what an older version knows
    for name in ("identity.json", "state.json"):
        assert json.loads((logs.directory / name).read_text())["format"] == 2
    content = {path: path.read_bytes() for path in logs.directory.rglob("*") if path.is_file()}
    with pytest.raises(UnsupportedProtocol, match="format 2"):
        await logs.open()
    assert {p: p.read_bytes() for p in logs.directory.rglob("*") if p.is_file()} == content
    monkeypatch.undo()
    await logs.open()
    await logs.verify()


async def test_a_file_of_a_decided_compaction_that_is_gone_lets_nothing_be_removed(
    logs, monkeypatch
):
    """No crash of ours does that; a repair goes on with what is there, which lacks nothing."""
    await logs.churn(0, 60)

    async def failing(*_: object) -> None:
        raise OSError(errno.EIO, "not now")

    with monkeypatch.context() as patched:
        patched.setattr(compacted_files, "put_in_place", failing)
        work = logs.tasks.create_task(logs.compact())
        await until((logs.home / compacted_files.RECORD_NAME).exists)
        await logs.log.close()
        assert await work is None
    gone = logs.home / f"{0:020}.log{compacted_files.CLEANED_SUFFIX}"
    gone.unlink()
    there = set(logs.names)
    await logs.open()
    with pytest.raises(LogCorrupt, match="rlmm log repair"):
        await logs.log.epoch_end(ZERO, 0)
    assert set(logs.names) >= there - {each for each in there if each.endswith(".cleaned")}
    await repair(logs.log, ZERO, [])
    await logs.verify()
    await logs.churn(60, 5)
    assert await logs.compact() is not None
    await logs.verify()


async def test_a_partition_that_is_never_used_has_nothing_to_compact(logs):
    assert await logs.compact(upto=0) is None


@pytest.mark.parametrize("step", range(40))
async def test_an_error_at_any_step_leaves_a_log_that_folds_to_the_same(tmp_path, step):
    """Also to whoever opens it then, and compacts it again."""
    async with spawning() as tasks:
        logs = Logs(tmp_path, tasks)
        await logs.open()
        await logs.churn(0, 40)
        logs.disk.fail_at(step, errno.EIO)
        with suppress(StorageUnavailable):
            await logs.compact()
        logs.disk.heal()
        await logs.verify()
        await logs.churn(40, 5)
        await logs.compact()
        await logs.verify()
        await logs.log.close()
        await logs.open()
        await logs.verify()
        assert not [name for name in logs.names if name.endswith(compacted_files.CLEANED_SUFFIX)]
        await logs.log.close()


def test_states_of_partitions_are_compared_whole():
    """The helper itself: a fold that lacks one event is seen."""
    rows = [(at, records.encode(event)) for at, event in enumerate(life(1, 0, 9, upto=FINISHED))]
    assert state_of(folded(rows, 5)) != state_of(folded(rows[:1], 5))


async def test_a_full_disk_keeps_no_log_from_being_read_that_was_compacted_by_half(
    logs, monkeypatch
):
    await logs.churn(0, 60)
    killed = asyncio.Event()

    async def failing(*_: object) -> None:
        killed.set()
        raise OSError(errno.EIO, "not now")

    with monkeypatch.context() as patched:
        patched.setattr(compacted_files, "put_in_place", failing)
        work = logs.tasks.create_task(logs.compact())
        await killed.wait()
        await logs.log.close()
        assert await work is None
    logs.disk.fail_next("write_atomically", *[errno.ENOSPC] * 9)
    await logs.open()
    await logs.verify()
    logs.disk.heal()
    assert (await compacted_files.last(logs.disk, str(logs.home))).pending
    await logs.churn(60, 20)
    await logs.compact()
    assert not (await compacted_files.last(logs.disk, str(logs.home))).pending
    await logs.verify()


async def test_files_whose_place_a_compaction_took_by_half_are_no_damage(logs, monkeypatch):
    """It was killed between its renames and its removals, and its record is damaged."""
    await logs.churn(0, 60)
    named, put_in_place = asyncio.Event(), compacted_files.put_in_place

    async def killed(*place: Any) -> None:
        await put_in_place(*place)
        named.set()
        raise OSError(errno.EIO, "not now")

    with monkeypatch.context() as patched:
        patched.setattr(compacted_files, "put_in_place", killed)
        work = logs.tasks.create_task(logs.compact())
        await named.wait()
        await logs.log.close()
        assert await work is None
    (logs.home / compacted_files.RECORD_NAME).write_bytes(b"damaged")
    await logs.open()
    await logs.verify()
    (report,) = await verify(LocalDisk(), str(logs.directory), 1)
    assert not report.findings
    bases = [int(path.stem) for path in sorted(logs.home.glob("*.log"))]
    with pytest.raises(LogCorrupt, match=f"goes on beyond offset {bases[3]}"):
        await logs.compact(upto=bases[3])
    await logs.verify()
    assert await logs.compact() is not None
    await logs.verify()
    assert len(list(logs.home.glob("*.log"))) < len(bases)


async def test_a_compaction_that_lost_a_file_keeps_no_log_from_opening_whose_state_is_gone(
    logs, monkeypatch
):
    """Only its partition fails, and a repair ends that."""
    await logs.churn(0, 60)
    killed = asyncio.Event()

    async def failing(*_: object) -> None:
        killed.set()
        raise OSError(errno.EIO, "not now")

    with monkeypatch.context() as patched:
        patched.setattr(compacted_files, "put_in_place", failing)
        work = logs.tasks.create_task(logs.compact())
        await killed.wait()
        await logs.log.close()
        assert await work is None
    written = [name for name in logs.names if name.endswith(compacted_files.CLEANED_SUFFIX)]
    (logs.home / written[0]).unlink()
    (logs.directory / "state.json").unlink()
    await logs.open()
    with pytest.raises(LogCorrupt, match="where a compaction had put"):
        await logs.log.append(ZERO, b"")
    await repair(logs.log, ZERO, ())
    await logs.verify()
