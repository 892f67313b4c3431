"""Lives of one replica's files on the simulated disk, and what has to be found after each.

A history is drawn from its seed: what a shell does, crashes at any step, failing calls. A planted
bug leaves out one call of the product's, known by who makes it.
"""

import asyncio
import errno
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rlmm_daemon.adapters.quorum.files.identity import format_replica
from rlmm_daemon.adapters.quorum.files.replica_files import ReplicaFiles
from rlmm_daemon.codec.kraft import checkpoint, log_batches
from rlmm_daemon.core.raft.inputs import SavedState
from rlmm_daemon.core.raft.log_facts import Batch, LogPoint
from rlmm_daemon.core.raft.turn import LeaderChange
from rlmm_daemon.core.raft.voters import ReplicaKey, Voter, VotersAt, VoterSet
from rlmm_daemon.domain.errors import RlmmError, StorageUnavailable
from tests.simulation.disk import DiskFaults, SimDisk
from tests.simulation.loop import Crash, SimLoop, ended
from tests.simulation.platter import NameLoss, Platter, Tear
from tests.simulation.quorum.left_out import Plant, Watched

DIRECTORY: Final = "/var/quorum"
TOPIC: Final = "__rlmm_quorum"
TOPIC_ID: Final = bytes(15) + b"\x07"
LIVES: Final = 5
STEPS: Final = 12


class Wrong(AssertionError):
    """The files do not say what they have to."""


def key(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id, bytes([node_id]) * 16)


def voters_of(*ids: int) -> VoterSet:
    return VoterSet.of(Voter(key(node_id)) for node_id in ids)


FIRST: Final = VotersAt(-1, voters_of(1, 2, 3), 1)


@dataclass(slots=True)
class Truth:
    """What a replica was told to keep: `saved`, `synced` and such once the call returned."""

    saved: list[SavedState] = field(default_factory=lambda: [SavedState()])
    #: As written; a cut that is under way has its own.
    batches: list[Batch] = field(default_factory=list)
    synced: int = 0
    #: Ends that a cut under way, or one that failed, may have left.
    cuts: list[int] = field(default_factory=list)
    start: int = 0
    starting: list[LogPoint] = field(default_factory=list)
    snapshots: dict[LogPoint, VotersAt] = field(default_factory=dict)
    #: Under way: a log that is one snapshot's only.
    installing: LogPoint | None = None
    base: VotersAt = FIRST
    epoch: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.start

    def voters(self, start: int, end: int) -> VoterSet:
        """Return those in force at an end."""
        base = next((v for p, v in self.snapshots.items() if p.end == start and start), self.base)
        inside = [b.voters for b in self.batches if b.voters and start <= b.base and b.end <= end]
        return inside[-1] if inside else base.voters


def faults_of(rng: random.Random) -> DiskFaults:
    """Draw what this disk may do: half of them do nothing but lose power."""
    mixed, syncs = rng.choice([(False, False), (False, False), (True, False), (False, True)])
    return DiskFaults(
        short_write=0.1 if mixed else 0.0,
        no_space=0.01 if mixed else 0.0,
        full_seconds=0.01,
        write_error=0.01 if mixed else 0.0,
        sync_error=0.2 if syncs else 0.02 if mixed else 0.0,
        directory_sync_error=0.02 if mixed else 0.0,
        evict=syncs or rng.random() < 0.5,
        tear=rng.choice(list(Tear)),
        names=rng.choice(list(NameLoss)),
    )


class History:
    """Some lives of one replica, one after the other, on one platter."""

    def __init__(self, seed: object, plant: Plant | None = None) -> None:
        self.rng = random.Random(f"{seed}/history")
        self.platter = Platter()
        self.platter.directories.add("/var")
        self.truth = Truth()
        self.plant = plant
        self.faults = faults_of(self.rng)
        self.seen: set[tuple[str, str, str]] = set()
        self.cuts = 0
        self.written: set[object] = set()
        self.segment_bytes = self.rng.choice([300, 900, 4000])

    def run(self) -> None:
        """Live, crash, and be found whole, some times over.

        Raises:
            Wrong: something is not as it has to be.
        """
        self._live(self._format, crash_at=-1, calm=True)
        for _ in range(LIVES):
            crash_at = self.rng.choice([-1, self.rng.randint(1, 120), self.rng.randint(1, 700)])
            self._live(self._work, crash_at=crash_at, calm=False)
        self._live(self._look, crash_at=-1, calm=True)

    def _live(self, work: Any, *, crash_at: int, calm: bool) -> None:
        rng = random.Random(self.rng.random())
        faults = self.faults.calm() if calm else self.faults
        with ended(SimLoop(rng=rng, crash_at=crash_at)) as loop:
            disk = SimDisk(self.platter, loop, rng, faults)
            if not calm and self.rng.random() < 0.2:
                disk.on_rename = lambda _: self._crash_soon(loop)
            main = loop.create_task(work(Watched(disk, self.plant, self.seen)))
            try:
                loop.run_until_complete(main)
            except Crash:
                pass
            finally:
                disk.dead = True
        if self.rng.random() < 0.3:
            self.platter.kill(self.rng, evict=self.faults.evict)
        else:
            self.platter.lose_power(self.rng, tear=self.faults.tear, names=self.faults.names)

    def _crash_soon(self, loop: SimLoop) -> None:
        if self.rng.random() < 0.2:
            loop.crash_at = loop.steps + self.rng.randint(1, self.rng.choice([4, 40]))

    async def _format(self, disk: Any) -> None:
        await format_replica(
            disk,
            DIRECTORY,
            cluster_id="simulated",
            node_id=1,
            voters=FIRST.voters,
            topic=TOPIC,
            topic_id=TOPIC_ID,
            directory_id=key(1).directory,
        )

    async def _look(self, disk: Any) -> None:
        files = await self._open(disk)
        await self._judge(files)
        await files.close()

    async def _work(self, disk: Any) -> None:
        """Do what shells do; after a failure open anew, as often as it takes."""
        for _ in range(3):
            try:
                files = await self._open(disk)
                try:
                    await self._judge(files)
                    await self._steps(files)
                finally:
                    await files.close()
            except OSError:
                continue
            return

    async def _open(self, disk: Any) -> ReplicaFiles:
        try:
            return await ReplicaFiles.open(
                disk,
                DIRECTORY,
                topic=TOPIC,
                topic_id=TOPIC_ID,
                segment_bytes=self.segment_bytes,
            )
        except RlmmError as error:
            raise Wrong(f"refused: {error}") from error

    # What is done.

    async def _steps(self, files: ReplicaFiles) -> None:
        doings = [self._save, self._batch, self._batch, self._sync, self._beside]
        doings += [self._cut, self._snapshot, self._begin, self._begin, self._install, self._save]
        for _ in range(self.rng.randint(1, STEPS)):
            await self.rng.choice(doings)(files)

    async def _save(self, files: ReplicaFiles) -> None:
        truth = self.truth
        truth.epoch += self.rng.randint(1, 2)
        state = SavedState(truth.epoch, None, key(self.rng.randint(1, 3)))
        truth.saved.append(state)
        await files.save(state)
        truth.saved = [state]

    def _next(self, files: ReplicaFiles) -> Batch:
        truth, base = self.truth, self.truth.end
        if truth.epoch > files.log.last_epoch or not truth.batches:
            bootstrap = FIRST if base == 0 else None
            change = LeaderChange(1, (1, 2, 3), (1, 2), bootstrap)
            return _built(Batch(base, 3 if base == 0 else 1, truth.epoch, payload=change))
        if self.rng.random() < 0.2:
            others = voters_of(*self.rng.choice([(1, 2), (1, 2, 3), (1, 3, 4)]))
            return _built(Batch(base, 1, truth.epoch, payload=others))
        count = self.rng.randint(1, 4)
        rows = [(None, self.rng.randbytes(self.rng.randint(0, 400))) for _ in range(count)]
        return _built(Batch(base, count, truth.epoch, payload=rows))

    async def _batch(self, files: ReplicaFiles) -> None:
        batch = self._next(files)
        self.written.add(batch.payload)
        self.truth.batches.append(batch)
        await files.write(batch)

    async def _sync(self, files: ReplicaFiles) -> None:
        end, cuts = files.log.end, self.cuts - len(self.truth.cuts)
        await files.sync()
        if cuts < self.cuts:
            return  # some of it may be cut by now, or soon
        self.truth.synced = max(self.truth.synced, end)
        if files.log.synced < end:
            raise Wrong(f"synced to {files.log.synced}, and {end} was written")

    async def _beside(self, files: ReplicaFiles) -> None:
        """Write, or cut, while a sync goes on and somebody reads."""
        failures: list[Exception] = []

        async def syncs() -> None:
            try:
                await self._sync(files)
            except (OSError, StorageUnavailable) as error:
                failures.append(error)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(syncs())
            if not self.faults.write_error + self.faults.sync_error:
                tasks.create_task(self._read(files))
            if self.rng.random() < 0.5:
                await asyncio.sleep(0)
            try:
                what = self.rng.random()
                if what < 0.3:
                    await self._cut(files)
                elif what < 0.4:
                    await self._begin(files)
                else:
                    for _ in range(self.rng.randint(1, 3)):
                        await self._batch(files)
            except (OSError, StorageUnavailable) as error:
                failures.append(error)
        if failures:
            raise OSError(errno.EIO, "a sync or a write failed") from failures[0]

    async def _read(self, files: ReplicaFiles) -> None:
        """Read here and there: whole batches that were written, whatever is cut meanwhile."""
        for _ in range(self.rng.randint(1, 4)):
            offset = self.rng.randint(files.log.start, files.log.end)
            data = await files.read(offset, files.log.end, self.rng.choice([1, 1000]))
            found = log_batches.read(data)
            if found and not found[0].base <= offset < found[0].end:
                raise Wrong(f"{found[0].base} was read for {offset}")
            if {batch.payload for batch in found} - self.written:
                raise Wrong(f"what was read at {offset} was never written")

    async def _cut(self, files: ReplicaFiles) -> None:
        truth = self.truth
        least = max([truth.start, *(point.end for point in truth.snapshots)])
        ends = [batch.base for batch in truth.batches if batch.base >= least]
        if not ends:
            return
        end = self.rng.choice(ends)
        truth.cuts.append(end)
        self.cuts += 1
        await files.truncate(end)
        truth.batches = [batch for batch in truth.batches if batch.end <= end]
        truth.synced, truth.cuts = end, []
        truth.epoch += 1  # what is cut, another leader's records take the place of
        if files.log.end != end or files.voters.newest.voters != truth.voters(truth.start, end):
            raise Wrong(f"cut to {end}: {files.log}, {files.voters}")

    async def _snapshot(self, files: ReplicaFiles) -> None:
        truth = self.truth
        newest = max([truth.start, *(point.end for point in truth.snapshots)])
        made = [b for b in truth.batches if newest < b.end <= files.log.synced]
        if not made:
            return
        last = self.rng.choice(made)
        point = LogPoint(last.epoch, last.end)
        voters = VotersAt(-1, truth.voters(truth.start, point.end), 1)
        await files.make_snapshot(point, [(None, b"state")])
        truth.snapshots[point] = voters

    async def _begin(self, files: ReplicaFiles) -> None:
        truth = self.truth
        points = [point for point in truth.snapshots if point.end > truth.start]
        if not points:
            return
        oldest = self.rng.choice(points)
        truth.starting.append(oldest)
        await files.begin_at(oldest)
        self._started(oldest.end)

    def _started(self, start: int) -> None:
        truth = self.truth
        truth.start, truth.starting = start, []
        truth.snapshots = {p: v for p, v in truth.snapshots.items() if p.end >= start}

    async def _install(self, files: ReplicaFiles) -> None:
        """Fetch another replica's snapshot, and have it take the log's place."""
        truth = self.truth
        point = LogPoint(truth.epoch, max(1, truth.end + self.rng.randint(-1, 9)))
        if any(each.end >= point.end for each in truth.snapshots):
            return
        image = _image(point)
        at, size = 0, self.rng.randint(40, 400)
        while at < len(image):
            await files.store_piece(point, at, image[at : at + size])
            at += size
        truth.installing = point
        voters = await files.install(point)
        if voters.voters != IMAGE_VOTERS.voters:
            raise Wrong(f"installed with {voters}")
        self._installed(point)

    def _installed(self, point: LogPoint) -> None:
        truth = self.truth
        truth.batches, truth.cuts, truth.installing = [], [], None
        truth.synced = point.end
        truth.snapshots = {point: IMAGE_VOTERS}
        truth.start, truth.starting = point.end, []

    # What has to be found.

    async def _judge(self, files: ReplicaFiles) -> None:
        """Compare what was found with what had to be kept, and go on from what was found."""
        truth, log = self.truth, files.log
        if files.saved not in truth.saved:
            raise Wrong(f"saved is {files.saved}, not of {truth.saved}")
        truth.saved = [files.saved]
        if log.synced != log.end:
            raise Wrong("what is found is synced before anything is said of it")
        installing = truth.installing
        if installing is not None and log.start == installing.end and installing in log.snapshots:
            self._installed(installing)
        truth.installing = None
        begun = next((point for point in truth.starting if point.end == log.start), None)
        if begun is not None:
            self._started(begun.end)
        if log.start != truth.start:
            raise Wrong(f"begins at {log.start}, not at {truth.start}")
        truth.starting = []
        missing = set(truth.snapshots) - set(log.snapshots)
        if missing:
            raise Wrong(f"snapshots {missing} are gone")
        await self._judge_log(files)
        for point in log.snapshots:
            voters = VotersAt(-1, truth.voters(log.start, point.end), 1)
            truth.snapshots.setdefault(point, voters)

    async def _judge_log(self, files: ReplicaFiles) -> None:
        truth, log = self.truth, files.log
        least = min([truth.synced, *truth.cuts])
        if log.end < least:
            raise Wrong(f"ends at {log.end}, and {least} was synced")
        kept = [batch for batch in truth.batches if batch.end <= log.end]
        start = log.start
        wanted = b"".join(_bytes(batch) for batch in kept if batch.base >= start)
        found = b""
        while start < log.end:
            piece = await files.read(start, log.end, self.rng.choice([1, 1000]))
            if not piece:
                raise Wrong(f"nothing is read at {start}")
            start = log_batches.read(piece)[-1].end
            found += piece
        if found != wanted or (kept[-1].end if kept else truth.start) != log.end:
            raise Wrong(f"other records than were written: {log}")
        if files.voters.newest.voters != truth.voters(log.start, log.end):
            raise Wrong(f"voters {files.voters}, not {truth.voters(log.start, log.end)}")
        epochs = [batch.epoch for batch in kept if batch.end > log.start]
        if epochs and [epoch for epoch, _ in log.epochs] != sorted(set(epochs)):
            raise Wrong(f"epochs {log.epochs}, not {sorted(set(epochs))}")
        truth.batches, truth.synced, truth.cuts = kept, log.end, []


IMAGE_VOTERS: Final = VotersAt(-1, voters_of(1, 4, 5), 1)


def _image(point: LogPoint) -> bytes:
    """Return another replica's snapshot."""
    rows = [(b"key", bytes(300)), (None, b"value")]
    pieces = checkpoint.build(point, IMAGE_VOTERS, rows, timestamp_ms=1, last_timestamp_ms=1)
    return b"".join(pieces)


def _built(batch: Batch) -> Batch:
    (read,) = log_batches.read(log_batches.build(batch, timestamp_ms=1_700_000_000_000))
    return read


def _bytes(batch: Batch) -> bytes:
    assert isinstance(batch.payload, bytes)
    return batch.payload


def hunt(plant: Plant | None, seeds: Sequence[int]) -> tuple[int, str] | None:
    """Return the first seed in which something is wrong, and what; None: all of them are right."""
    for seed in seeds:
        try:
            History(seed, plant).run()
        except Exception as wrong:  # noqa: BLE001  # an assertion of the product's, too
            return seed, f"{type(wrong).__name__}: {wrong}"
    return None


def call_sites(seeds: Sequence[int]) -> set[tuple[str, str, str]]:
    """Return who makes something durable, in which way, of which file."""
    found: set[tuple[str, str, str]] = set()
    for seed in seeds:
        history = History(seed)
        history.run()
        found |= history.seen
    return found
