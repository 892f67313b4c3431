import asyncio
import errno
import random
import shutil
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog, EmbeddedOptions
from rlmm_daemon.adapters.event_log.embedded.epochs import EPOCH_MAX
from rlmm_daemon.adapters.event_log.embedded.identity import spread
from rlmm_daemon.adapters.event_log.embedded.recovery import newest_generation
from rlmm_daemon.adapters.event_log.embedded.repair import repair, seal
from rlmm_daemon.adapters.event_log.embedded.verify import verify
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec import batches
from rlmm_daemon.domain.errors import (
    Draining,
    InvalidArgument,
    LogCorrupt,
    OutcomeUnknown,
    RlmmError,
    StorageFull,
    StorageUnavailable,
    UnsupportedProtocol,
)
from rlmm_daemon.domain.ids import MetadataPartition, TopicId
from rlmm_daemon.ports.event_log import EpochEnd, LogRange, LogUnnamed
from tests.contract.event_log import P0, P1, read, spawning, values
from tests.unit.adapters.event_log.embedded.faulty_disk import FaultyDisk
from tests.unit.daemon.events import until

SMALL = EmbeddedOptions(
    heartbeat_seconds=0.01, segment_bytes=1024, preallocate_bytes=512, probe_seconds=60.0
)
LARGE = replace(SMALL, segment_bytes=1 << 20)


class HandClock(SystemClock):
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return self.seconds


class Bench:
    """A directory, and logs that open and die in it."""

    def __init__(self, directory: Path, tasks: asyncio.TaskGroup, disk: LocalDisk) -> None:
        self.directory = directory
        self.tasks = tasks
        self.disk = FaultyDisk(disk)
        self.clock = HandClock()
        self.logs: list[EmbeddedLog] = []
        self.writers: list[asyncio.Task[None]] = []
        self.spawned = asyncio.Event()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self.tasks.create_task(work, name=name)
        self.writers.append(task)
        self.spawned.set()
        return task

    def make(self, options: EmbeddedOptions = LARGE, cluster_id: str = "here") -> EmbeddedLog:
        log = EmbeddedLog(
            disk=self.disk,
            clock=self.clock,
            spawn=self.spawn,
            luck=random.Random(len(self.logs)),
            directory=str(self.directory),
            partition_count=3,
            cluster_id=cluster_id,
            options=options,
        )
        self.logs.append(log)
        return log

    async def open(self, options: EmbeddedOptions = LARGE) -> EmbeddedLog:
        log = self.make(options)
        await log.open(create=True)
        return log

    async def kill(self, log: EmbeddedLog) -> None:
        """Leave the files as a killed process does: no trim, no ends, the lock gone."""
        state = (self.directory / "state.json").read_bytes()
        files = {file: file.read_bytes() for file in self.files()}
        await log.close()
        for file, data in files.items():
            file.write_bytes(data)
        (self.directory / "state.json").write_bytes(state)

    def files(self, partition: MetadataPartition = P0) -> list[Path]:
        return sorted((self.directory / str(partition)).glob("*.log"))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    disk = LocalDisk()
    async with spawning() as tasks:
        bench = Bench(tmp_path / "log", tasks, disk)
        yield bench
        bench.disk.heal()
        for log in bench.logs:
            await log.close()
    disk.close()


async def fill(log: EmbeddedLog, several: Sequence[bytes]) -> list[tuple[int, bytes]]:
    return [(await log.append(P0, value), value) for value in several]


async def test_a_clean_stop_leaves_exactly_the_batches(bench: Bench) -> None:
    log = await bench.open()
    filled = await fill(log, values(5))
    assert bench.files()[0].read_bytes().endswith(bytes(50))
    await log.close()
    found = [each for batch in batches.split(bench.files()[0].read_bytes())
             for each in batches.records_of(batch)]  # fmt: skip
    assert found == filled
    assert not bench.files()[0].read_bytes().endswith(bytes(50))


async def test_a_killed_log_is_recovered_and_its_zeros_are_cut(bench: Bench) -> None:
    log = await bench.open()
    filled = await fill(log, values(5))
    await bench.kill(log)
    log = await bench.open()
    assert await read(log, P0, 0, 5) == filled
    assert sum(batch.size for batch in batches.split(bench.files()[0].read_bytes())) == (
        bench.files()[0].stat().st_size
    )


async def test_an_end_that_cannot_be_made_durable_is_not_served(bench: Bench) -> None:
    """What the page cache shows after a crash may never have reached the disk."""
    log = await bench.open()
    filled = await fill(log, values(5))
    await bench.kill(log)
    log = await bench.open()
    bench.disk.fail_next("fdatasync", errno.EIO)
    with pytest.raises(StorageUnavailable):
        await log.epoch_end(P0, 0)
    assert not bench.disk.fails_next("fdatasync")
    bench.clock.seconds += 61
    assert await read(log, P0, 0, 5) == filled


async def test_the_last_batch_is_written_again_before_an_end_is_served(bench: Bench) -> None:
    """After a failed sync its pages look clean: a sync alone would write nothing."""
    log = await bench.open()
    await fill(log, values(5))
    await bench.kill(log)
    log = await bench.open()
    before = len(bench.disk.calls)
    await log.epoch_end(P0, 0)
    calls = bench.disk.calls[before:]
    order = [calls.index(call) for call in ("pwrite", "fdatasync", "fsync_directory")]
    assert order == sorted(order)


async def test_a_torn_tail_is_trimmed_and_its_offset_is_used_again(bench: Bench) -> None:
    log = await bench.open()
    filled = await fill(log, values(5))
    await bench.kill(log)
    last = list(batches.split(bench.files()[0].read_bytes()))[-1]
    data = bytearray(bench.files()[0].read_bytes())
    data[last.position + 30 : last.end] = bytes(last.size - 30)
    bench.files()[0].write_bytes(data)
    report = (await verify(bench.disk, str(bench.directory), 1))[0]
    assert [finding.kind for finding in report.findings] == ["torn_tail"]
    log = await bench.open()
    assert await log.append(P0, b"again") == 4
    assert await read(log, P0, 0, 5) == [*filled[:4], (4, b"again")]


async def test_an_invalid_batch_before_a_valid_one_fails_only_its_partition(bench: Bench) -> None:
    log = await bench.open()
    await fill(log, values(5))
    await log.append(P1, b"fine")
    await bench.kill(log)
    spoil(bench.files()[0], 2)
    log = await bench.open()
    with pytest.raises(LogCorrupt) as raised:
        await log.append(P0, b"no")
    assert raised.value.fields["file"] == str(bench.files()[0])
    assert raised.value.fields["position"] == batch_position(bench.files()[0], 2)
    with pytest.raises(LogCorrupt):
        await read(log, P0, 0, 1)
    assert P0 not in await log.end_offsets([P0, P1])
    assert await read(log, P1, 0, 1) == [(0, b"fine")]


async def test_a_corrupt_sealed_file_is_met_when_it_is_read(bench: Bench) -> None:
    log = await bench.open(SMALL)
    filled = await fill(log, values(60))
    await log.close()
    assert len(bench.files()) > 3
    spoil(bench.files()[1], 1)
    log = await bench.open(SMALL)
    with pytest.raises(LogCorrupt):
        await read(log, P0, 0, 60)
    start = int(bench.files()[2].stem)
    assert await read(log, P0, start, 60) == filled[start:]


async def test_repair_keeps_offsets_and_intact_batches_and_appends_what_is_given(
    bench: Bench,
) -> None:
    log = await bench.open(SMALL)
    filled = await fill(log, values(60))
    await log.close()
    spoil(bench.files()[1], 1)
    spoilt = bench.files()[1].read_bytes()
    lost = int(bench.files()[1].stem) + 1
    log = await bench.open(SMALL)
    report = await repair(log, P0, [b"snapshot"])
    assert (report.appended, [(gap.start, gap.end) for gap in report.lost]) == (
        1,
        [(lost, lost + 1)],
    )
    kept = [record for record in filled if record[0] != lost]
    assert await read(log, P0, 0, 61) == [*kept, (60, b"snapshot")]
    assert report.set_aside == [f"{bench.files()[1]}.corrupt"]
    kept_file = bench.files()[1].with_suffix(".log.corrupt")
    assert kept_file.read_bytes() == spoilt, "nothing that was found is thrown away"
    assert not (await verify(bench.disk, str(bench.directory), 1))[0].findings
    assert not (await repair(log, P0, [b"unwanted"])).set_aside


async def test_verify_finds_nothing_in_a_rolled_log_and_counts_all(bench: Bench) -> None:
    log = await bench.open(SMALL)
    await fill(log, values(60))
    report = (await verify(bench.disk, str(bench.directory), 1))[0]
    assert (report.range.end, report.records, report.batches) == (60, 60, 60)
    assert report.files == len(bench.files()) > 3
    assert not report.findings


async def test_seal_leaves_no_zeros_in_any_file(bench: Bench) -> None:
    log = await bench.open()
    filled = await fill(log, values(5))
    await seal(log)
    assert [file.stat().st_size == 0 for file in bench.files()] == [False, True]
    assert sum(batch.size for batch in batches.split(bench.files()[0].read_bytes())) == (
        bench.files()[0].stat().st_size
    )
    more = await log.append(P0, b"more")
    assert await read(log, P0, 0, 6) == [*filled, (more, b"more")]


async def test_epochs_of_sealed_files_survive_a_lost_checkpoint(bench: Bench) -> None:
    ends = []
    for begin in (0, 20, 40):
        log = await bench.open(SMALL)
        await fill(log, values(20, begin))
        ends.append(await log.epoch_end(P0, EPOCH_MAX))
        await bench.kill(log)
    (bench.directory / "0" / "leader-epoch-checkpoint").unlink()
    log = await bench.open(SMALL)
    answers = [await log.epoch_end(P0, end.epoch) for end in ends]
    assert answers == ends
    assert [answer.end_offset for answer in answers] == [20, 40, 60]


async def test_a_full_disk_is_met_before_anything_is_written(bench: Bench) -> None:
    log = await bench.open()
    await log.append(P1, b"opens nothing in partition 0")
    await log.end_offsets([P0])
    bench.disk.fail_next("pwrite", errno.ENOSPC)
    with pytest.raises(StorageFull):
        await log.append(P0, b"refused")
    assert "ordered failure" in log.refusal
    bench.disk.calls.clear()
    with pytest.raises(StorageFull):
        await log.append(P0, b"refused untried")
    assert not bench.disk.calls
    bench.clock.seconds += 61
    assert await log.append(P0, b"taken") == 0
    assert not log.refusal
    assert await read(log, P0, 0, 1) == [(0, b"taken")]


async def test_a_refusal_ends_without_another_write_once_there_is_room(bench: Bench) -> None:
    log = await bench.open(replace(LARGE, probe_seconds=0.01))
    filled = await fill(log, values(3))
    bench.disk.fail_next("fdatasync", errno.EIO)
    fill_the_disk(bench)
    with pytest.raises(OutcomeUnknown):
        await log.append(P0, b"unknown")
    with pytest.raises(StorageFull):
        await log.append(P1, b"refused")
    tried = len(bench.disk.calls)
    await until(lambda: len(bench.disk.calls) > tried)
    assert "ordered failure" in log.refusal, "a probe that is refused goes on"
    bench.disk.heal()
    await until(lambda: not log.refusal)
    bench.clock.seconds += 1
    assert await read(log, P0, 0, 3) == filled
    assert await log.append(P0, b"taken") == 3
    assert await log.append(P1, b"first") == 0


async def test_a_log_that_closes_while_it_is_refused_probes_no_more(bench: Bench) -> None:
    log = await bench.open(replace(LARGE, probe_seconds=0.01))
    fill_the_disk(bench)
    with pytest.raises(StorageFull):
        await log.append(P0, b"refused")
    await log.close()
    later = asyncio.Event()
    # Due after any probe that was.
    asyncio.get_running_loop().call_later(0.02, later.set)
    bench.writers.clear()
    await later.wait()
    assert not bench.writers


async def test_a_failed_sync_is_unknown_then_cut_in_a_new_generation(bench: Bench) -> None:
    log = await bench.open()
    await fill(log, values(3))
    before = (await log.epoch_end(P0, EPOCH_MAX)).epoch
    bench.disk.fail_next("fdatasync", errno.EIO)
    with pytest.raises(OutcomeUnknown):
        await log.append(P0, b"unknown")
    assert await log.append(P0, b"next") == 3
    assert (await log.epoch_end(P0, before)).end_offset == 3
    assert (await log.epoch_end(P0, EPOCH_MAX)).epoch > before
    assert await read(log, P0, 3, 4) == [(3, b"next")]
    await bench.kill(log)
    log = await bench.open()
    assert await read(log, P0, 3, 4) == [(3, b"next")]


async def test_no_append_passes_a_cut_that_failed(bench: Bench) -> None:
    log = await bench.open()
    await fill(log, values(3))
    bench.disk.fail_next("fdatasync", errno.EIO, errno.EIO)
    with pytest.raises(OutcomeUnknown):
        await log.append(P0, b"unknown")
    with pytest.raises(StorageFull):
        await log.append(P0, b"refused")
    bench.clock.seconds += 61
    assert await log.append(P0, b"next") == 3


@pytest.mark.parametrize("step", range(60))
async def test_an_error_at_any_step_leaves_a_log_that_takes_writes_again(
    bench: Bench, step: int
) -> None:
    """Sixty steps are several files: also one that was begun, and then not opened."""
    log = await bench.open(SMALL)
    written = []
    bench.disk.fail_at(step, errno.EMFILE)
    for value in values(40):
        try:
            written.append((await log.append(P0, value), value))
        except RlmmError:
            bench.clock.seconds += SMALL.probe_seconds
    bench.disk.heal()
    written += await fill(log, values(1))
    end = written[-1][0] + 1
    assert len(bench.files()) > 2
    assert set(written) <= set(await read(log, P0, 0, end))
    await bench.kill(log)
    assert set(written) <= set(await read(await bench.open(SMALL), P0, 0, end))


async def test_waiting_appends_share_syncs(bench: Bench) -> None:
    log = await bench.open()
    await fill(log, values(1))
    bench.disk.calls.clear()
    async with asyncio.TaskGroup() as tasks:
        for value in values(64):
            tasks.create_task(log.append(P0, value))
    assert bench.disk.calls.count("fdatasync") < 10


async def test_appends_of_a_dying_group_are_answered(bench: Bench) -> None:
    log = await bench.open()
    await fill(log, values(1))
    bench.spawned.clear()
    answers = [bench.tasks.create_task(refused(log, value)) for value in values(3)]
    async with asyncio.timeout(20):
        await bench.spawned.wait()
    bench.writers[-1].cancel()
    assert [await answer for answer in answers] == [-1] * 3
    with pytest.raises(Draining):
        await log.append(P0, b"late")


async def refused(log: EmbeddedLog, value: bytes) -> int:
    try:
        return await log.append(P0, value)
    except (OutcomeUnknown, Draining):
        return -1


async def test_a_second_process_is_kept_out_until_the_first_is_closed(bench: Bench) -> None:
    log = await bench.open()
    second = bench.make()
    with pytest.raises(StorageUnavailable, match="another process"):
        await second.open(create=True)
    await log.close()
    assert (await second.open(create=False)).partition_count == 3


async def test_another_clusters_log_and_a_lost_identity_are_refused(bench: Bench) -> None:
    log = await bench.open()
    await log.append(P0, b"here")
    await log.close()
    with pytest.raises(LogCorrupt, match="cluster"):
        await bench.make(cluster_id="elsewhere").open(create=True)
    (bench.directory / "identity.json").unlink()
    (bench.directory / "state.json").unlink()
    for create in (False, True):  # neither gone, which invites to give it up, nor made anew
        with pytest.raises(LogUnnamed, match="is missing beside the log's partitions"):
            await bench.make().open(create=create)


async def test_a_lost_identity_is_made_again_from_the_copy_in_the_state(bench: Bench) -> None:
    log = await bench.open()
    first = log.identity
    await fill(log, values(3))
    await log.close()
    (bench.directory / "identity.json").unlink()
    log = bench.make()
    assert await log.open(create=False) == first
    assert len(await read(log, P0, 0, 3)) == 3
    assert (bench.directory / "identity.json").exists()


@pytest.mark.parametrize("found", [None, b"", b"{", b"\xff\x00", b'{"format": 1}', b"[]"])
@pytest.mark.parametrize("ending", ["closed", "killed"])
async def test_a_state_that_is_damaged_or_missing_is_made_again_from_whole_segment_files(
    bench: Bench, found: bytes | None, ending: str
) -> None:
    log = await bench.open(SMALL)
    filled = await fill(log, values(30))
    before = (await log.epoch_end(P0, EPOCH_MAX)).epoch
    await (log.close() if ending == "closed" else bench.kill(log))
    state = bench.directory / "state.json"
    if found is None:
        state.unlink()
    else:
        state.write_bytes(found)
    log = bench.make(SMALL)
    await log.open(create=False)
    assert await read(log, P0, 0, 30) == filled
    more = await fill(log, values(2, 30))
    after = (await log.epoch_end(P0, EPOCH_MAX)).epoch
    assert after > before + 100, "none that was used and cut off since is met again"
    kept = bench.directory / "state.json.corrupt"
    assert (kept.read_bytes() if kept.exists() else None) == found, "what was found is kept"
    await log.close()
    log = await bench.open(SMALL)
    assert await read(log, P0, 0, 32) == filled + more


@pytest.mark.parametrize("found", [b"", b"{", b"\xff\x00", b'{"format": 1}', b"[]"])
async def test_a_damaged_identity_is_made_again_from_the_copy_in_the_state(
    bench: Bench, found: bytes
) -> None:
    log = await bench.open()
    filled, identity = await fill(log, values(3)), log.identity
    await log.close()
    named = bench.directory / "identity.json"
    before = named.read_bytes()
    named.write_bytes(found)
    log = bench.make()
    assert await log.open(create=False) == identity
    assert await read(log, P0, 0, 3) == filled
    assert named.read_bytes() == before
    assert (bench.directory / "identity.json.corrupt").read_bytes() == found


@pytest.mark.parametrize("name", ["identity.json", "state.json"])
async def test_a_flipped_bit_changes_neither_the_name_of_a_log_nor_where_it_ends(
    bench: Bench, name: str
) -> None:
    """A flipped digit is a digit: of another count of partitions, of another end."""
    log = await bench.open()
    filled, identity = await fill(log, values(6)), log.identity
    ends = await log.end_offsets([P0])
    await log.close()
    file = bench.directory / name
    whole = {each: each.read_bytes() for each in bench.directory.glob("*.json")}
    for at in (at for at, byte in enumerate(whole[file]) if chr(byte).isdigit()):
        for bit in (1, 4):
            for path, content in whole.items():
                path.write_bytes(content)
            content = whole[file]
            file.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
            log = bench.make()
            assert await log.open(create=False) == identity
            assert await log.end_offsets([P0]) == ends
            assert await read(log, P0, 0, 6) == filled
            await log.close()


async def test_a_log_that_nothing_names_is_left_as_it_is_and_said_so(bench: Bench) -> None:
    log = await bench.open()
    await fill(log, values(3))
    await log.close()
    named, state = bench.directory / "identity.json", bench.directory / "state.json"
    whole = named.read_bytes()
    named.write_bytes(b"damaged")
    state.write_bytes(b"damaged")
    for _ in range(2):
        with pytest.raises(LogUnnamed, match=r"identity\.json is damaged"):
            await bench.make().open(create=True)
        assert (named.read_bytes(), state.read_bytes()) == (b"damaged", b"damaged")
    named.write_bytes(whole)
    log = bench.make()
    await log.open(create=False)
    assert len(await read(log, P0, 0, 3)) == 3, "what the text says to do ends it"


@pytest.mark.parametrize("name", ["identity.json", "state.json"])
async def test_what_a_newer_version_wrote_is_refused_by_name_and_left_untouched(
    bench: Bench, name: str
) -> None:
    log = await bench.open()
    await log.close()
    file = bench.directory / name
    newer = b'{"format": 3, "generation": "g7", "clean": 5}'
    file.write_bytes(newer)
    with pytest.raises(UnsupportedProtocol, match=f"{name} is of format 3, this version knows 2"):
        await bench.make().open(create=True)
    assert file.read_bytes() == newer
    assert not list(bench.directory.glob("*.corrupt*"))


async def test_two_new_logs_have_different_topic_ids(bench: Bench) -> None:
    log = await bench.open()
    first = log.identity
    await log.close()
    bench.directory = bench.directory.with_name("other")
    second = (await bench.open()).identity
    assert first is not None
    assert second is not None
    assert first.topic_id != second.topic_id != TopicId(bytes(16))


async def test_too_large_a_record_is_refused(bench: Bench) -> None:
    log = await bench.open()
    with pytest.raises(InvalidArgument):
        await log.append(P0, bytes(LARGE.record_bytes_max + 1))
    whole = bytes(LARGE.record_bytes_max)
    assert await log.append(P0, whole) == 0
    assert await read(log, P0, 0, 1) == [(0, whole)]


async def test_a_state_that_went_back_never_reuses_a_generation(bench: Bench) -> None:
    log = await bench.open()
    old = (bench.directory / "state.json").read_bytes()
    await log.close()
    for begin in (0, 2):
        log = await bench.open()
        await fill(log, values(2, begin))
        await log.close()
    latest = (await (log := await bench.open()).epoch_end(P0, EPOCH_MAX)).epoch
    await log.close()
    (bench.directory / "state.json").write_bytes(old)
    log = await bench.open()
    await log.append(P0, b"new")
    assert (await log.epoch_end(P0, EPOCH_MAX)).epoch > latest


def fill_the_disk(bench: Bench, *kinds: str) -> None:
    """Refuse every call that needs room, until healed."""
    for kind in kinds or ("write_atomically", "pwrite", "truncate"):
        bench.disk.fail_next(kind, *[errno.ENOSPC] * 1_000)


async def state_of(bench: Bench) -> dict[str, Any]:
    content = await bench.disk.read(str(bench.directory / "state.json"))
    return msgspec.json.decode(content, type=dict[str, Any])


@pytest.mark.parametrize("killed", [False, True])
async def test_a_full_disk_is_opened_and_read_and_takes_writes_once_there_is_room(
    bench: Bench, *, killed: bool
) -> None:
    log = await bench.open()
    filled = await fill(log, values(5))
    epoch = (await log.epoch_end(P0, EPOCH_MAX)).epoch
    await (bench.kill(log) if killed else log.close())
    # What a kill left is written anew, in the place that it has.
    fill_the_disk(bench, *(["write_atomically"] if killed else []))
    log = await bench.open()
    assert await read(log, P0, 0, 5) == filled
    assert await log.epoch_end(P0, epoch) == EpochEnd(epoch=epoch, end_offset=5)
    assert await log.end_offsets([P0, P1]) == {
        P0: LogRange(start=0, end=5), P1: LogRange(start=0, end=0)
    }  # fmt: skip
    assert not log.refusal
    for partition in (P0, P1):
        with pytest.raises(StorageFull, match="cannot be written"):
            await log.append(partition, b"new")
    assert "ordered failure" in log.refusal
    assert await read(log, P0, 0, 5) == filled
    bench.disk.heal()
    bench.clock.seconds += SMALL.probe_seconds
    assert await log.append(P0, b"new") == 5
    assert await log.append(P1, b"first") == 0
    assert not log.refusal
    assert await log.epoch_end(P0, epoch) == EpochEnd(epoch=epoch, end_offset=5)
    assert (await log.epoch_end(P0, EPOCH_MAX)).epoch > epoch


@pytest.mark.parametrize("name", ["identity.json", "state.json"])
@pytest.mark.parametrize("found", [b"damaged", None])
async def test_a_full_disk_is_read_though_a_file_that_names_the_log_is_damaged(
    bench: Bench, name: str, found: bytes | None
) -> None:
    log = await bench.open()
    filled, identity = await fill(log, values(5)), log.identity
    epoch = (await log.epoch_end(P0, EPOCH_MAX)).epoch
    await log.close()
    file = bench.directory / name
    file.unlink() if found is None else file.write_bytes(found)
    for _ in range(2):
        # Without the ends of a clean stop the tail is written anew, in the place that it has.
        fill_the_disk(bench, *(["write_atomically"] if name == "state.json" else []))
        log = bench.make()
        assert await log.open(create=False) == identity
        assert await read(log, P0, 0, 5) == filled
        assert await log.epoch_end(P0, epoch) == EpochEnd(epoch=epoch, end_offset=5)
        assert (await log.epoch_end(P0, epoch + 1)).epoch == epoch
        with pytest.raises(StorageFull):
            await log.append(P0, b"new")
        assert (file.read_bytes() if file.exists() else None) == found
        await log.close()
        bench.disk.heal()
    log = bench.make()
    await log.open(create=False)
    assert await log.append(P0, b"new") == 5
    kept = file.with_name(f"{name}.corrupt")
    assert (kept.read_bytes() if kept.exists() else None) == found
    if name == "state.json":
        assert (await log.epoch_end(P0, EPOCH_MAX)).epoch > epoch + 100
    await log.close()
    assert (await bench.open()).identity == identity


async def test_an_open_without_writes_changes_nothing_and_the_first_write_ends_what_a_stop_knew(
    bench: Bench,
) -> None:
    log = await bench.open()
    await fill(log, values(5))
    await log.close()
    left = await state_of(bench)
    assert left["clean"]["0"]["next_offset"] == 5
    for _ in range(2):
        log = await bench.open()
        await read(log, P0, 0, 5)
        assert await state_of(bench) == left
        await bench.kill(log)
    log = await bench.open()
    bench.disk.calls.clear()
    await log.append(P0, b"new")
    calls = bench.disk.calls
    assert calls.index("write_atomically") < calls.index("pwrite")
    state = await state_of(bench)
    assert state["clean"] == {}
    assert state["generation"] > left["generation"]


async def test_what_is_written_after_an_epoch_was_passed_over_bears_a_later_one(
    bench: Bench,
) -> None:
    log = await bench.open()
    log.begin_beyond(100)
    for offset, beyond in enumerate((100, 200, 0)):
        log.begin_beyond(beyond)
        assert await log.append(P0, b"x") == offset
    latest = (await log.epoch_end(P0, 1_000)).epoch
    assert latest == 201, "as late as has to be, and not later with each write"
    assert (await state_of(bench))["generation"] == latest


async def test_two_lives_that_go_on_from_copies_of_one_log_write_in_different_generations(
    bench: Bench, tmp_path: Path
) -> None:
    """Each may have been put back: by their generations alone is one told from the other."""
    log = await bench.open()
    await log.append(P0, b"x")
    known = (await log.epoch_end(P0, 2**31 - 1)).epoch
    await bench.kill(log)
    shutil.copytree(bench.directory, copy := tmp_path / "copy")
    begun = []
    for _ in range(2):
        log = await bench.open()
        for _ in range(2):
            await log.append(P0, b"x")
        begun.append((await log.epoch_end(P0, 2**31 - 1)).epoch)
        assert known < begun[-1] <= known + spread(known)
        assert (await log.epoch_end(P0, begun[-1] - 1)).epoch == known
        await bench.kill(log)
        shutil.rmtree(bench.directory)
        shutil.copytree(copy, bench.directory)
    assert len(set(begun)) == 2


def test_two_lives_seldom_draw_the_same_generation_and_none_finds_them_used_up() -> None:
    """By the mean of what is drawn: a start each hour writes for five years, and then goes on."""
    newest = -1
    assert spread(newest) >= 250_000
    for _ in range(50_000):
        newest += 1 + spread(newest) // 2
    assert spread(newest) >= 5_000
    for _ in range(1_000_000):
        newest += 1 + spread(newest) // 2
    assert newest < EPOCH_MAX
    assert spread(EPOCH_MAX) == spread(EPOCH_MAX + 1) == 1


async def test_what_a_clean_stop_knew_is_in_no_repairs_way(bench: Bench) -> None:
    log = await bench.open()
    await fill(log, values(5))
    await log.close()
    file = bench.files()[0]
    damaged = bytearray(file.read_bytes())
    damaged[70] ^= 1
    file.write_bytes(damaged)
    log = await bench.open()
    bench.disk.fail_next("write_atomically", errno.ENOSPC)
    with pytest.raises(OSError, match="ordered"):
        await repair(log, P0, [])
    assert file.read_bytes() == damaged
    assert (await repair(log, P0, [])).lost == [LogRange(start=0, end=1)]
    assert (await log.append(P0, b"next")) == 5
    await bench.kill(log)
    log = await bench.open()
    assert (await log.end_offsets([P0]))[P0].end == 6


async def test_the_newest_generation_is_found_in_the_newest_file(bench: Bench) -> None:
    log = await bench.open(SMALL)
    assert await newest_generation(bench.disk, str(bench.directory)) == -1
    await log.close()
    for begin in (0, 30, 60):
        log = await bench.open(SMALL)
        await fill(log, values(30 if begin < 60 else 1, begin))
        latest = (await log.epoch_end(P0, EPOCH_MAX)).epoch
        await log.close()
        assert await newest_generation(bench.disk, str(bench.directory)) == latest


async def test_a_file_that_was_cut_after_a_crash_ends_where_it_does(bench: Bench) -> None:
    """After a clean stop it would be corrupt: see `test_files_gone`."""
    log = await bench.open()
    filled = await fill(log, values(5))
    await bench.kill(log)
    file = bench.files()[0]
    file.write_bytes(file.read_bytes()[: batch_position(file, 3)])
    log = await bench.open()
    assert (await log.end_offsets([P0]))[P0].end == 3
    assert await read(log, P0, 0, 3) == filled[:3]
    assert await log.append(P0, b"next") == 3


def batch_position(file: Path, index: int) -> int:
    data, position = file.read_bytes(), 0
    for _ in range(index):
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return position


def spoil(file: Path, index: int) -> None:
    """Flip a bit in a record of the file's batch number `index`."""
    data = bytearray(file.read_bytes())
    data[batch_position(file, index) + 70] ^= 1
    file.write_bytes(data)
