import asyncio
import contextlib
import os
import random
import threading
from collections import Counter

import pytest
from crc32c import crc32c
from msgspec.structs import replace

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.passes.in_threads import InThreads
from rlmm_daemon.adapters.storage.local import LocalStorage
from rlmm_daemon.codec import custom_metadata, records
from rlmm_daemon.core.storage.layout import Layout
from rlmm_daemon.daemon.base.retry import Retry
from rlmm_daemon.daemon.bucket import bucket as bucket_module
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.copying.copier import Copier
from rlmm_daemon.daemon.copying.copy_job import CopyOptions
from rlmm_daemon.daemon.reading import fetcher as fetcher_module
from rlmm_daemon.daemon.reading.fetcher import INDEX_READS_MAX, Fetcher
from rlmm_daemon.daemon.reading.read_caches import ReadCacheOptions, ReadCaches
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    IndexNotFound,
    InvalidArgument,
    ObjectMissing,
    SegmentNotFound,
    StorageNotConfigured,
    StorageUnavailable,
)
from rlmm_daemon.domain.ids import BrokerId, SegmentId
from rlmm_daemon.domain.segment import SegmentState
from rlmm_daemon.observability.metrics import Metrics
from rlmm_daemon.ports.storage import ObjectKind
from tests.support.memory_storage import MemoryBucket, MemoryStorage
from tests.unit.daemon.segments import IDENTITY, LOG_BYTES, FakeLog, files_in, metadata

S = SegmentState
#: Nothing here takes a tenth of it.
HANGS_SECONDS_MAX = 10.0
RECORD = records.encode(metadata())


class World:
    def __init__(self, storage) -> None:
        self.storage = storage
        self.log = FakeLog()
        self.bucket = Bucket(storage, layout=Layout(), rng=random.Random(1))
        self.fetcher = self.fetcher_of(self.bucket)

    def fetcher_of(self, bucket, **more):
        rng, loop = random.Random(1), asyncio.get_running_loop()

        def new_retry():
            return Retry(rng, first_seconds=0.001)

        caches = ReadCaches(
            ReadCacheOptions(),
            self.log,
            disk=LocalDisk(),
            spawn=lambda work, name: loop.create_task(work, name=name),
            rng=rng,
            metrics=Metrics().reads,
            monotonic=loop.time,
            new_retry=new_retry,
        )
        return Fetcher(bucket, self.log, rng=rng, caches=caches, new_retry=new_retry, **more)

    def copier_of(self, bucket, home, tasks):
        return Copier(
            bucket,
            self.log,
            tasks,
            options=CopyOptions(),
            log_dirs=[str(home.parent)],
            broker_id=BrokerId(1),
            now_ms=lambda: 7,
            passes=InThreads(new_check=None),
        )

    async def stored(self, home, **changes):
        """Copy a segment, then read it as recorded."""
        segment = metadata(**changes)
        transactions = None if segment.txn_index_empty else b"txn"
        async with asyncio.TaskGroup() as group:
            copier = self.copier_of(self.bucket, home, group)
            files = files_in(home, transactions=transactions)
            await copier.copy_segment(records.encode(segment), files)

    @property
    def segment(self):
        return self.log.fold[metadata().segment_id]

    async def lose(self, suffix: str) -> None:
        place = (await self.bucket.places(self.segment))[0]
        await self.storage.delete([k for k in place.keys.values() if k.endswith(suffix)])


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "logs" / "orders-7"
    home.mkdir(parents=True)
    return home


@pytest.fixture(params=["memory", "local"])
async def world(request, tmp_path):
    (tmp_path / "remote").mkdir()
    storage = (
        MemoryStorage(MemoryBucket(), clock=SystemClock())
        if request.param == "memory"
        else LocalStorage(str(tmp_path / "remote"), owner="1")
    )
    world = World(storage)
    await world.bucket.open(IDENTITY)
    yield world
    await storage.close()


async def content(bulk) -> bytes:
    try:
        if bulk.file is not None:
            return os.pread(bulk.file[0], bulk.length, bulk.file[1])
        return b"".join([piece async for piece in bulk.chunks()])
    finally:
        await bulk.aclose()
        await bulk.aclose()


async def test_a_read_asks_and_decodes_nothing_twice(world, home, monkeypatch):
    await world.stored(home)
    asked: Counter[str] = Counter()

    def counted(owner, name):
        real = getattr(owner, name)

        def count(*args):
            asked[name] += 1
            return real(*args)

        monkeypatch.setattr(owner, name, count)

    counted(custom_metadata, "decode")
    counted(bucket_module, "decode")
    counted(fetcher_module, "decode_segment")
    counted(world.log, "kept_custom_metadata")
    record = records.encode(world.segment)  # as a look-up returned it
    await content(await world.fetcher.fetch_log_segment(record, 0, None))
    assert asked == {"decode": 1, "decode_segment": 1}
    await content(await world.fetcher.fetch_index(record, "OFFSET"))
    assert asked == {"decode": 2, "decode_segment": 2}


async def test_names_a_file_of_this_host_to_who_may_open_it(world, home):
    await world.stored(home)
    local = world.storage.local_path("x") is not None
    fetcher = world.fetcher_of(world.bucket, may_name=lambda _device: True)
    bulk = await fetcher.fetch_log_segment(RECORD, 1, 2, may_open=True)
    if not local:
        assert bulk.named is None
        assert await content(bulk) == b"AA"
        return
    assert (bulk.length, bulk.file, await content(bulk)) == (0, None, b"")
    assert bulk.named.path.startswith("/")
    file = os.open(bulk.named.path, os.O_RDONLY)
    stat = os.fstat(file)
    assert (bulk.named.device, bulk.named.inode) == (stat.st_dev, stat.st_ino)
    assert os.read(file, 2 * LOG_BYTES) == b"A" * LOG_BYTES
    os.close(file)


@pytest.mark.parametrize(("allowed", "may_open"), [(True, False), (False, True)])
async def test_sends_bytes_to_who_may_not_open_files_or_of_another_host(
    world, home, allowed, may_open
):
    await world.stored(home)
    fetcher = world.fetcher_of(world.bucket, may_name=lambda _device: allowed)
    bulk = await fetcher.fetch_log_segment(RECORD, 1, 2, may_open=may_open)
    assert bulk.named is None
    assert await content(bulk) == b"AA"


async def test_names_no_file_of_another_size_or_a_lost_one(world, home):
    await world.stored(home)
    fetcher = world.fetcher_of(world.bucket, may_name=lambda _device: True)
    (place,) = await world.bucket.places(world.segment)
    path = world.storage.local_path(place.keys[ObjectKind.LOG])
    if path is None:
        return
    os.truncate(path, 1)
    with pytest.raises(ChecksumMismatch):
        await fetcher.fetch_log_segment(RECORD, 0, None, may_open=True)
    await world.lose(".log")
    with pytest.raises(ObjectMissing):
        await fetcher.fetch_log_segment(RECORD, 0, None, may_open=True)


@pytest.mark.parametrize(
    ("start", "end", "length"),
    [(0, None, LOG_BYTES), (0, 0, 1), (7, 10**9, LOG_BYTES - 7), (LOG_BYTES - 1, None, 1)],
)
async def test_a_range_is_exact_and_its_end_is_clamped(world, home, start, end, length):
    await world.stored(home)
    bulk = await world.fetcher.fetch_log_segment(RECORD, start, end)
    assert bulk.length == length
    whole = length == LOG_BYTES
    assert bulk.crc32c == (crc32c(b"A" * LOG_BYTES) if whole else None)
    assert await content(bulk) == b"A" * length


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (LOG_BYTES, None), (10**9, None), (5, 4)])
async def test_a_range_that_cannot_be_is_refused(world, home, start, end):
    await world.stored(home)
    with pytest.raises(InvalidArgument):
        await world.fetcher.fetch_log_segment(RECORD, start, end)


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ("OFFSET", b"i" * 8),
        ("TIMESTAMP", b"t" * 12),
        ("TRANSACTION", b"txn"),
        ("PRODUCER_SNAPSHOT", b""),
        ("LEADER_EPOCH", b"0\n1\n0 11\n"),
    ],
)
async def test_every_index_is_read_back(world, home, index, expected):
    await world.stored(home)
    assert await content(await world.fetcher.fetch_index(RECORD, index)) == expected


@pytest.mark.parametrize("index", ["LOG", "offset", "", "NAME"])
async def test_what_is_no_index_is_refused(world, home, index):
    await world.stored(home)
    with pytest.raises(InvalidArgument):
        await world.fetcher.fetch_index(RECORD, index)


async def test_a_transaction_index_is_not_found_only_if_none_was_recorded(world, home):
    await world.stored(home, txn_index_empty=True)
    with pytest.raises(IndexNotFound):
        await world.fetcher.fetch_index(RECORD, "TRANSACTION")


@pytest.mark.parametrize("erased", [False, True])
async def test_a_lost_index_is_missing_and_never_an_empty_answer(world, home, erased):
    await world.stored(home)
    if erased:
        await world.log.put(metadata(state=S.COPY_SEGMENT_FINISHED))
    for index, suffix in (("TRANSACTION", ".txnindex"), ("OFFSET", ".index")):
        await world.lose(suffix)
        with pytest.raises(ObjectMissing):
            await world.fetcher.fetch_index(RECORD, index)
    await world.lose(".log")
    with pytest.raises(ObjectMissing):
        await world.fetcher.fetch_log_segment(RECORD, 0, None)


@pytest.mark.parametrize("state", [None, S.COPY_SEGMENT_STARTED, S.DELETE_SEGMENT_STARTED])
async def test_a_segment_that_is_not_finished_is_an_error_at_once(world, home, state):
    await world.stored(home)
    if state is None:
        world.log.fold.clear()
    else:
        await world.log.put(metadata(state=state))
    with pytest.raises(SegmentNotFound):
        await world.fetcher.fetch_log_segment(RECORD, 0, None)
    with pytest.raises(SegmentNotFound):
        await world.fetcher.fetch_index(RECORD, "OFFSET")


async def test_without_custom_metadata_every_layout_is_searched(world, home):
    await world.stored(home)
    later = Bucket(world.storage, layout=Layout("newer"), rng=random.Random(1))
    await later.open(IDENTITY)
    world.log.kept.clear()
    await world.log.put(metadata(state=S.COPY_SEGMENT_FINISHED))
    fetcher = world.fetcher_of(later)
    assert await content(await fetcher.fetch_log_segment(RECORD, 0, 3)) == b"AAAA"


@pytest.mark.parametrize("recorded", [True, False])
async def test_after_a_change_of_the_prefix_old_segments_read_and_delete(world, home, recorded):
    await world.stored(home)
    later = Bucket(world.storage, layout=Layout("{hash:12}/newer"), rng=random.Random(1))
    await later.open(IDENTITY)
    if not recorded:
        world.log.kept.clear()
        await world.log.put(metadata(state=S.COPY_SEGMENT_FINISHED))
    fetcher = world.fetcher_of(later)
    assert await content(await fetcher.fetch_log_segment(RECORD, 0, 3)) == b"AAAA"
    async with asyncio.TaskGroup() as tasks:
        copier = world.copier_of(later, home, tasks)
        young = metadata(segment_id=SegmentId(bytes(15) + b"\x0a"))
        await copier.copy_segment(records.encode(young), files_in(home))
        log = await fetcher.fetch_log_segment(records.encode(young), 0, 3)
        assert await content(log) == b"AAAA"
        for gone in (metadata(), young):
            await copier.delete_segment(gone.partition, gone.segment_id)
    async with contextlib.aclosing(world.storage.list("")) as pages:
        left = [row.key async for page in pages for row in page]
    assert left == ["_rlmm/marker.json"]


async def test_a_segment_that_was_put_back_after_its_delete_began_is_read_again(world, home):
    """As `rlmm log repair` and `log recover` do."""
    await world.stored(home)
    finished = world.segment
    await world.log.put(replace(finished, state=S.DELETE_SEGMENT_STARTED))
    for read in (
        world.fetcher.fetch_log_segment(RECORD, 0, None),
        world.fetcher.fetch_index(RECORD, "OFFSET"),
    ):
        with pytest.raises(SegmentNotFound):
            await read
    await world.log.put(finished)
    index = await world.fetcher.fetch_index(RECORD, "OFFSET")
    assert await content(index) == b"i" * 8
    bulk = await world.fetcher.fetch_log_segment(RECORD, 0, None)
    assert await content(bulk) == b"A" * LOG_BYTES


async def test_a_passing_fault_is_retried_in_the_middle_of_a_range(home):

    class Shaky(MemoryStorage):
        faults = 0

        async def fetch(self, key, start, end):
            # Ends with a fault after each piece, and begins with one every second time.
            self.faults += 1
            if self.faults % 2:
                raise StorageUnavailable("shaky")
            async with contextlib.aclosing(super().fetch(key, start, end)) as pieces:
                async for piece in pieces:
                    yield piece
                    raise StorageUnavailable("shaky")

    world = World(Shaky(MemoryBucket(), clock=SystemClock()))
    await world.bucket.open(IDENTITY)
    await world.stored(home)
    bulk = await world.fetcher.fetch_log_segment(RECORD, 1, None)
    assert await content(bulk) == b"A" * (LOG_BYTES - 1)
    assert world.storage.faults > 3


async def test_a_storage_that_stays_away_is_retried_until_the_callers_deadline(home):
    world = World(MemoryStorage(MemoryBucket(), clock=SystemClock()))
    await world.bucket.open(IDENTITY)
    await world.stored(home)
    world.storage.bucket.available = False
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await world.fetcher.fetch_log_segment(RECORD, 0, None)


class Described(MemoryStorage):
    """Damages the first reads; says what it stored."""

    def __init__(self, damaged: int) -> None:
        super().__init__(MemoryBucket(), clock=SystemClock())
        self.damaged, self.reads = damaged, 0

    async def described_crc32c(self, key):
        return crc32c(self.bucket.objects[key].body)

    async def fetch(self, key, start, end):
        self.reads += 1
        async with contextlib.aclosing(super().fetch(key, start, end)) as pieces:
            async for piece in pieces:
                yield b"?" + piece[1:] if self.reads <= self.damaged else piece


@pytest.mark.parametrize("damaged", [0, 1, INDEX_READS_MAX - 1])
async def test_an_index_that_came_wrong_is_asked_for_again_and_never_kept(home, damaged):
    world = World(Described(damaged))
    await world.bucket.open(IDENTITY)
    await world.stored(home)
    expected = (home / "11.index").read_bytes()
    for _ in range(2):
        assert await content(await world.fetcher.fetch_index(RECORD, "OFFSET")) == expected
    assert world.storage.reads == damaged + 1


async def test_an_index_that_never_comes_as_it_was_stored_is_an_error(home):
    world = World(Described(INDEX_READS_MAX))
    await world.bucket.open(IDENTITY)
    await world.stored(home)
    with pytest.raises(ChecksumMismatch, match=f"came {INDEX_READS_MAX} times with other bytes"):
        await world.fetcher.fetch_index(RECORD, "OFFSET")
    assert world.storage.reads == INDEX_READS_MAX
    expected = (home / "11.index").read_bytes()
    assert await content(await world.fetcher.fetch_index(RECORD, "OFFSET")) == expected


async def test_without_storage_every_method_says_so():
    fetcher = Fetcher(None, FakeLog(), rng=random.Random(1))
    with pytest.raises(StorageNotConfigured):
        await fetcher.fetch_log_segment(RECORD, 0, None)
    with pytest.raises(StorageNotConfigured):
        await fetcher.fetch_index(RECORD, "OFFSET")


async def test_an_object_whose_open_hangs_holds_up_nobody_else(world, home):
    """As on a mount over a network that is away: here it is a pipe that nobody writes to."""
    await world.stored(home)
    (place,) = await world.bucket.places(world.segment)
    path = world.storage.local_path(place.keys[ObjectKind.LOG])
    if path is None:
        return
    os.unlink(path)  # noqa: PTH108 - a Path is not for the loop
    os.mkfifo(path)
    bound = threading.Timer(HANGS_SECONDS_MAX, let_go, [path])
    bound.start()
    try:
        async with asyncio.TaskGroup() as group:
            fetching = group.create_task(fails(world.fetcher))
            # It takes a writer once the open waits for one: and the loop asks all the while.
            while not let_go(path):
                assert not fetching.done()
                await asyncio.sleep(0)
        assert bound.is_alive(), "it was the loop that waited"
    finally:
        bound.cancel()


async def test_an_open_that_hangs_and_was_left_is_not_tried_again_meanwhile(
    world, home, monkeypatch
):
    """Whoever asks for it once a second would keep a thread each time, until none is left."""
    await world.stored(home)
    (place,) = await world.bucket.places(world.segment)
    path = world.storage.local_path(place.keys[ObjectKind.LOG])
    if path is None:
        return
    os.unlink(path)  # noqa: PTH108 - a Path is not for the loop
    os.mkfifo(path)
    began, real = threading.Event(), fetcher_module._opened

    def opened(path: str) -> tuple[int, os.stat_result]:
        began.set()
        return real(path)

    monkeypatch.setattr(fetcher_module, "_opened", opened)
    bound = threading.Timer(HANGS_SECONDS_MAX, let_go, [path])
    bound.start()
    async with asyncio.TaskGroup() as group:
        fetching = group.create_task(world.fetcher.fetch_log_segment(RECORD, 0, None))
        while not began.is_set():  # noqa: ASYNC110 - it is set in a thread
            await asyncio.sleep(0)
        fetching.cancel()
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="disk or mount hangs"):
            await world.fetcher.fetch_log_segment(RECORD, 0, None)
    assert await content(await world.fetcher.fetch_index(RECORD, "OFFSET"))
    while not let_go(path):  # noqa: ASYNC110 - a thread may only be about to open it
        await asyncio.sleep(0)
    bound.cancel()


async def fails(fetcher: Fetcher) -> None:
    with pytest.raises(ChecksumMismatch):
        await fetcher.fetch_log_segment(RECORD, 0, None)


def let_go(path: str) -> bool:
    """Open a pipe that is being opened for reading; False if it is not."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True
