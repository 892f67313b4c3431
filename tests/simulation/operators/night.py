"""The nightly job beside a daemon, without Spark: its guards, plans, lease, manifests and deletes.

What Spark does with a million objects (join, sort, take) is done here with a few; whoever decides
and whoever deletes is the job's own code: `guards`, `judge`, `quarantine.plan`, `Holder`,
`LastLook`, `Executor`. A day is some seconds here, for the daemon's presence file too.
"""

import asyncio
import contextlib
import importlib
import sys
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from unittest import mock

import msgspec

from rlmm_daemon.codec import records
from rlmm_daemon.config.reconcile import Safety
from rlmm_daemon.core.disposal.findings import Ages, Present, Recorded, judge
from rlmm_daemon.core.disposal.inventory import History, SegmentName
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.core.storage.layout import parse_key
from rlmm_daemon.daemon.bucket import live_counts, presence
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import MetadataPartition, uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from rlmm_daemon.ports.storage import ObjectInfo
from tests.simulation.operators import offline
from tests.simulation.operators.bucket import World
from tests.simulation.operators.truth import LAYOUT
from tests.simulation.platter import Platter
from tests.simulation.world import Life

if TYPE_CHECKING:
    from tests.simulation.operators.daemon import Daemon

T = TypeVar("T")
S = SegmentState

GRACE_MS: Final = 5_000
SKEW_MS: Final = 1_000
PRESENCE_SECONDS: Final = 1.0
#: Between two nights.
DAY_SECONDS: Final = 3.0
SAFETY: Final = msgspec.structs.replace(
    Safety(),
    quarantine_hours=6.0 / 3600,
    share_max=1.0,
    lease_seconds=6,
    batch_objects=2,
    deletes_per_second_max=2,
)
#: Of these buckets that is less than one object: each of them needs an approval.
TIGHT_SHARE: Final = 0.001


class _Absent:
    """What a module of Spark's dependencies is, where they are not installed: nobody calls it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Exception if name.endswith("Error") else _Absent()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return _Absent()

    def __or__(self, _: Any) -> Any:
        return self


def _modules() -> SimpleNamespace:
    """Import the job's modules; what only Spark's tasks need may be absent."""
    stood_in = []
    for name in ("pyarrow", "pyarrow.parquet", "obstore", "obstore.exceptions", "obstore.store"):
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = _Absent()  # type: ignore[assignment]  # good enough to be imported
            stood_in.append(name)
    names = (
        "control", "errors", "act.evidence", "act.deletions", "judge.guards", "act.last_look",
        "act.lease", "read.listing", "read.log_files", "read.log_reading", "act.quarantine",
        "storage_time", "read.late_events", "act.manifest_orders",
    )  # fmt: skip
    modules = (importlib.import_module(f"rlmm_daemon.reconcile.{name}") for name in names)
    job = SimpleNamespace(**{module.__name__.rpartition(".")[2]: module for module in modules})
    for name in stood_in:
        del sys.modules[name]  # other tests ask whether it is installed
    return job


job: Final = _modules()


class _InstantDisk:
    """The simulated disk at one moment: what reads it comes to its end without a turn."""

    def __init__(self, platter: Platter) -> None:
        self._platter = platter

    async def read(self, path: str) -> bytes:
        inode = self._platter.names.get(path)
        if inode is None:
            raise FileNotFoundError(path)
        return bytes(inode.data)

    async def list(self, path: str) -> list[str]:
        if path not in self._platter.directories:
            raise FileNotFoundError(path)
        names = [*self._platter.names, *self._platter.directories]
        found = {n.removeprefix(f"{path}/") for n in names if n.startswith(f"{path}/")}
        return sorted(name for name in found if "/" not in name)

    async def exists(self, path: str) -> bool:
        return path in self._platter.names or path in self._platter.directories

    def close(self) -> None:
        """Do nothing."""


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run what never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits")


class _Inline:
    """A pool of threads that has none."""

    def __init__(self, _: int) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, work: Any, items: Any) -> Iterator[Any]:
        return iter([work(each) for each in items])


def _tail(_: Any, before: Mapping[int, int], now: Any) -> tuple[set[str], Mapping[int, int]]:
    """Return what the log has come to name since, as `tailing.tail` does."""
    fresh = {n: now.ranges[n].end for n in before if n in now.ranges}
    if any(fresh.get(n, -1) < before[n] for n in before):
        raise job.errors.Incomplete("the log ends earlier than before")
    touched: set[str] = set()
    for number, begin in before.items():
        for row in rows_of(number, begin, fresh[number]):
            if row.lost:
                raise job.errors.Incomplete("lost records")
            touched |= {uuid_text(i) for _, v in row.pairs if v for i in _named(v)}
    return touched, fresh


@contextlib.contextmanager
def simulated(life: Life, world: World) -> Iterator[None]:
    """Have the job's modules read the simulated disk and bucket, and live by its clock."""
    config = offline.config()

    def ends(_: Any, pairs: Any) -> Any:
        return at_once(job.log_files.epoch_ends(config, pairs))

    def look_up(_: Any, key: str) -> ObjectInfo | None:
        stored = world.bucket.objects.get(key)
        if stored is None:
            return None
        return ObjectInfo(
            key=key, size=len(stored.body), modified_ms=stored.modified_ms, etag=stored.etag
        )

    def view(_: Any) -> Any:
        identity, ranges = at_once(job.log_files.ranges(config))
        numbers = range(identity.partition_count)
        return job.log_reading.LogView(
            identity=identity,
            ranges=ranges,
            compactions=at_once(job.log_files.compactions(config, numbers)),
        )

    time = SimpleNamespace(
        monotonic=life.loop.time, time_ns=lambda: life.clock.now_ms() * 1_000_000
    )
    with contextlib.ExitStack() as stack:
        for module, name, value in (
            (job.log_files, "LocalDisk", lambda: _InstantDisk(life.disk.platter)),
            (job.log_reading, "view", view),
            (job.log_reading, "epoch_ends", ends),
            (job.listing, "look_up", look_up),
            (job.late_events, "tail", _tail),
            (job.deletions, "ThreadPoolExecutor", _Inline),
            (job.storage_time, "time", time),
            (job.guards, "SKEW_MS", SKEW_MS),
            (presence, "REWRITE_SECONDS", 2 * PRESENCE_SECONDS),
            (presence, "MOVED_SECONDS", PRESENCE_SECONDS),
            (presence, "SETTLE_SECONDS", PRESENCE_SECONDS),
            (live_counts, "COUNT_SECONDS", PRESENCE_SECONDS),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def rows_of(number: int, begin: int, end: int) -> list[Any]:
    """Return what offsets [begin, end) of one metadata partition hold now."""

    async def collected() -> list[Any]:
        found = job.log_files.records(offline.config(), number, begin, end)
        return [row async for row in found]

    return at_once(collected()) if begin < end else []


def _named(value: bytes) -> list[bytes]:
    """Return which segments an event names."""
    try:
        event = records.decode(value)
    except RlmmError:
        return []
    return [event.segment_id] if isinstance(event, SegmentMetadata | SegmentUpdate) else []


@dataclass(slots=True)
class Read:
    """The log as one night read it."""

    view: Any
    histories: dict[int, History] = field(default_factory=dict)
    named: set[bytes] = field(default_factory=set)
    lost: list[Any] = field(default_factory=list)
    live: dict[tuple[int, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Planned:
    """What one night would have go."""

    name: str
    started_ms: int
    condemned: list[Any]
    totals: Any


class Night:
    """Runs of the job beside one life of the daemon."""

    def __init__(self, daemon: "Daemon") -> None:
        self._life, self._world = daemon.life, daemon.world
        self._config = offline.config()
        self._books = self._world.books
        share = TIGHT_SHARE if self._books.tight else SAFETY.share_max
        self._safety = msgspec.structs.replace(SAFETY, share_max=share)
        self._runs = 0
        self.counts: dict[str, int] = {}

    async def run(self) -> None:
        """Run again and again, as a timer does, for ever."""
        rng = self._life.rng("night")
        while True:
            await asyncio.sleep(rng.expovariate(1 / DAY_SECONDS))
            self._runs += 1
            try:
                async with asyncio.timeout(60.0):
                    said = await self._once(f"run-{self._life.number}-{self._runs}")
            except (RlmmError, TimeoutError, OSError) as error:
                said = f"ended: {error}"
            self._life.loop.note(f"night: {said}"[:300])
            word = f"night {said.split()[0].rstrip(':')}"
            self.counts[word] = self.counts.get(word, 0) + 1

    async def _once(self, name: str) -> str:
        async with job.control.opened(self._config) as storage:
            clock = await job.storage_time.read(storage)
            started_ms = clock.now_ms()
            rows = [row async for page in storage.list("") for row in page]
            ours = await job.evidence.ours(self._config)
            read = self._read_log(ours)
            if reasons := self._reasons(ours, read):
                return f"refused {reasons}"
            condemned = self._condemned(rows, ours, read, started_ms)
            totals = job.quarantine.Totals(objects=len(rows), bytes=sum(row.size for row in rows))
            plan = _Planned(name, started_ms, condemned, totals)
            await self._act(plan, storage, clock, read)
        return f"done, {len(condemned)} condemned: {sorted(e.key for e in condemned)[:4]}"

    def _read_log(self, ours: Any) -> Read:
        """Read it all in one moment: what comes later is the tail's affair."""
        view = job.log_reading.view(self._config)
        read = Read(view)
        gaps = job.evidence._accepted_gaps(ours.marker, view)
        compacted = {number: until for number, (_, until) in view.compactions.items()}
        asked = job.evidence.counts_of(ours.presences, compacted)
        for number, known in view.ranges.items():
            fold = Fold(MetadataPartition(number), view.identity.partition_count)
            history = read.histories[number] = History(fold)
            for row in rows_of(number, known.start, known.end):
                for offset, value in row.pairs:
                    self._count(read, number, history, asked, offset)
                    read.named.update(_named(value) if value else ())
                    history.take(offset, value)
                for gap in row.lost:
                    if not any(n == number and b <= gap.start and gap.end <= e for n, b, e in gaps):
                        one = gap.end - gap.start
                        read.lost.append(job.guards.LostOffsets(number, gap, 1, one))
            self._count(read, number, history, asked, known.end)
        return read

    def _count(
        self, read: Read, number: int, history: History, asked: set[tuple[int, int]], offset: int
    ) -> None:
        for at in [each for n, each in asked if n == number]:
            if (number, at) not in read.live and at <= offset:
                read.live[number, at] = sum(
                    known.state is not S.DELETE_SEGMENT_FINISHED
                    for known in history.segments.values()
                )

    def _reasons(self, ours: Any, read: Read) -> list[str]:
        pairs = job.evidence.epochs_of(ours.presences, read.view)
        identity = read.view.identity
        found: list[str] = job.guards.reasons(
            job.guards.Evidence(
                marker=ours.marker,
                marker_ms=ours.marker_ms,
                cluster_id=identity.cluster_id,
                log=read.view,
                read={n: [(known.start, known.end)] for n, known in read.view.ranges.items()},
                lost=read.lost,
                live=read.live,
                accepted=ours.accepted,
                presences=ours.presences,
                damaged=ours.damaged,
                epoch_ends=job.log_reading.epoch_ends(self._config, pairs),
            )
        )
        return found

    def _condemned(
        self, rows: list[ObjectInfo], ours: Any, read: Read, listed_ms: int
    ) -> list[Any]:
        """Return what `judge` condemns, as the job's own sifting does."""
        by_segment: dict[SegmentName, dict[str, ObjectInfo]] = {}
        for row in rows:
            parsed = parse_key(LAYOUT, row.key)
            if parsed is not None:
                name = SegmentName(parsed.partition, parsed.segment_id)
                by_segment.setdefault(name, {})[parsed.suffix] = row
        found = []
        for name, present in by_segment.items():
            whose, count = name.partition, read.view.identity.partition_count
            number = metadata_partition(whose.topic_id, whose.partition, count)
            recorded = read.histories[number].recorded(name)
            if recorded is None:
                recorded = Recorded(state=None, refused=name.segment_id in read.named)
            listed = {
                s: Present(suffix=s, size=row.size, modified_ms=row.modified_ms)
                for s, row in present.items()
            }
            found += [
                self._entry(name, judged, present[judged.suffix])
                for judged in judge(recorded, listed, self._ages(ours, number, listed_ms))
                if judged.condemned and judged.suffix in present
            ]
        return found

    def _ages(self, ours: Any, number: int, listed_ms: int) -> Ages:
        losses = [
            loss.accepted_at_ms
            for loss in ours.marker.accepted_losses
            if loss.metadata_partition in (None, number)
        ]
        return Ages(
            listed_ms=listed_ms,
            grace_ms=GRACE_MS,
            stuck_copy_ms=10_000,
            skew_ms=SKEW_MS,
            loss_ms=max(losses, default=0),
            holds=ours.marker.held,
            metadata_partition=number,
        )

    def _entry(self, name: SegmentName, judged: Any, row: ObjectInfo) -> Any:
        return job.quarantine.CondemnedObject(
            key=row.key,
            size=row.size,
            etag=row.etag,
            modified_ms=row.modified_ms,
            kind=judged.kind.value,
            topic_id=uuid_text(name.partition.topic_id),
            partition=name.partition.partition,
            segment_id=uuid_text(name.segment_id),
        )

    async def _act(self, planned: "_Planned", storage: Any, clock: Any, read: Read) -> None:
        """Do what `acting.Actor` does: all of it under the lease, by the manifests of then."""
        name, started_ms = planned.name, planned.started_ms
        storage.by_night = True
        holder = job.lease.Holder(
            storage, owner=name, seconds=self._safety.lease_seconds, now_ms=clock.now_ms
        )
        await holder.acquire()
        look = job.last_look.LastLook(self._config, storage, started_ms=started_ms)
        executor = job.deletions.Executor(
            self._config,
            storage,
            holder,
            safety=self._safety,
            ends={n: known.end for n, known in read.view.ranges.items()},
            look=look,
            audit=self._audit,
        )
        try:
            let = self._books.manifests.let
            manifests = (await look()).manifests
            plan = job.quarantine.plan(
                planned.condemned, manifests, planned.totals, self._safety, now_ms=started_ms
            )
            due = job.quarantine.over(manifests, self._safety, started_ms)
            said = self._books.manifests.planned(planned.condemned, plan.delete, due, let)
            if said:
                self._books.fail(said)
            await executor.delete(plan.delete)
            made = job.quarantine.manifests_of(name, holder.fence, started_ms, plan.quarantine)
            for each, manifest in job.quarantine.named(made).items():
                await holder.renew()
                await job.quarantine.write_manifest(storage, each, manifest)
        finally:
            deleted = executor.done.deleted
            self.counts["night deletes"] = self.counts.get("night deletes", 0) + deleted
            if self._life.alive:
                await holder.release()

    def _audit(self, lines: Any) -> None:
        for line in lines:
            self._life.loop.note(f"night audit: {dict(line)}"[:200])
