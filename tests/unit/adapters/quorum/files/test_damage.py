"""Damage of a replica's directory: any byte, any end, any file. Refused, or nothing comes of it."""

import random
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import pytest

from rlmm_daemon.adapters.quorum.files.replica_files import ReplicaFiles
from rlmm_daemon.codec.kraft import log_batches
from rlmm_daemon.core.raft.inputs import SavedState
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.domain.errors import ConfigError, HistoryLost, LogCorrupt
from tests.simulation.disk import DiskFaults, SimDisk
from tests.simulation.loop import SimLoop, ended
from tests.simulation.platter import Platter
from tests.simulation.quorum import files as lives
from tests.unit.adapters.quorum.files.test_replica_files import data, first, key

T = TypeVar("T")
REFUSALS: Final = (LogCorrupt, HistoryLost, ConfigError)
LOG: Final = f"{lives.DIRECTORY}/{lives.TOPIC}-0"


async def opened(disk: SimDisk) -> ReplicaFiles:
    return await ReplicaFiles.open(
        disk, lives.DIRECTORY, topic=lives.TOPIC, topic_id=lives.TOPIC_ID, segment_bytes=400
    )


async def told(disk: SimDisk) -> tuple[Any, ...]:
    """Return all that a replica says of itself."""
    files = await opened(disk)
    log, start, parts = files.log, files.log.start, b""
    while start < log.end:
        part = await files.read(start, log.end, 1 << 20)
        start = log_batches.read(part)[-1].end
        parts += part
    await files.close()
    return files.key, files.cluster_id, files.saved, log, files.voters, parts


def use(platter: Platter, work: Callable[[SimDisk], Coroutine[Any, Any, T]]) -> T:
    with ended(SimLoop(rng=random.Random(1))) as loop:
        disk = SimDisk(platter, loop, random.Random(1), DiskFaults())
        try:
            return loop.run_until_complete(work(disk))
        finally:
            disk.dead = True
            platter.locks.clear()


def contents(*, started: bool) -> dict[str, bytes]:
    """Return the files of a replica that was stopped: two epochs, three files, one snapshot."""
    history = lives.History("damage")
    use(history.platter, history._format)

    async def live(disk: SimDisk) -> None:
        files = await opened(disk)
        await files.save(SavedState(4, None, key(2)))
        await files.write(first(4))
        await files.write(data(3, 4, bytes(100), bytes(100)))
        await files.save(SavedState(6, 3, None))
        await files.write(first(6, base=5))
        await files.write(data(6, 6, bytes(300)))
        await files.write(data(7, 6, b"last"))
        await files.sync()
        await files.make_snapshot(LogPoint(6, 7), [(None, b"state")])
        if started:
            await files.begin_at(LogPoint(6, 7))
        await files.close()

    use(history.platter, live)
    return {path: bytes(inode.data) for path, inode in history.platter.names.items()}


WHOLE: Final = {started: contents(started=started) for started in (False, True)}


def platter_of(files: dict[str, bytes]) -> Platter:
    platter = Platter()
    platter.directories |= {"/var", lives.DIRECTORY, LOG}
    for path, content in files.items():
        platter.place(path, content)
    return platter


TOLD: Final = {started: use(platter_of(files), told) for started, files in WHOLE.items()}
CASES: Final = [
    pytest.param(started, path, id=f"{'started' if started else 'whole'} {path.rpartition('/')[2]}")
    for started, files in WHOLE.items()
    for path in sorted(files)
    if files[path]
]


def refused_or_same(started: bool, path: str, content: bytes) -> None:  # noqa: FBT001 - a case's
    """Open with one file changed; it has to be refused, or to say what it said before."""
    files = dict(WHOLE[started])
    files[path] = content
    try:
        seen = use(platter_of(files), told)
    except REFUSALS as error:
        if not str(error).startswith(lives.DIRECTORY):
            raise
    else:
        assert seen == TOLD[started], f"{path} was believed"


@pytest.mark.parametrize(("started", "path"), CASES)
def test_no_flipped_bit_is_believed(started: bool, path: str) -> None:  # noqa: FBT001 - a case's
    whole = WHOLE[started][path]
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << random.Random(f"{path} {at}").randrange(8)
        refused_or_same(started, path, bytes(damaged))


@pytest.mark.parametrize(("started", "path"), CASES)
def test_no_file_that_is_cut_short_is_believed(started: bool, path: str) -> None:  # noqa: FBT001 - a case's
    whole = WHOLE[started][path]
    for size in range(len(whole)):
        refused_or_same(started, path, whole[:size])


#: What the rest tells as well.
REMAKABLE: Final = (
    "leader-epoch-checkpoint",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
)
#: Without a snapshot that the log does not begin behind nothing is lost; and the log, from its
#: first record on, names the voters that the bootstrap's named.
SPARE: Final = ("0000000000.checkpoint", "0000000006.checkpoint")


@pytest.mark.parametrize(("started", "path"), CASES)
def test_what_is_gone_is_missed(started: bool, path: str) -> None:  # noqa: FBT001 - a case's
    files = dict(WHOLE[started])
    del files[path]
    if path.endswith(REMAKABLE):
        assert use(platter_of(files), told) == TOLD[started]
    elif path.endswith(SPARE) and not started:
        *_, log, voters, records = use(platter_of(files), told)
        *_, known, named, written = TOLD[started]
        assert (log.start, log.end, log.epochs) == (known.start, known.end, known.epochs)
        assert (voters.newest, records) == (named.newest, written)
    else:
        with pytest.raises(REFUSALS, match=lives.DIRECTORY):
            use(platter_of(files), told)


def test_an_emptied_log_under_a_kept_identity_is_refused() -> None:
    for kept in ((), ("partition.metadata",), ("partition.metadata", "quorum-state")):
        files = {
            path: content
            for path, content in WHOLE[False].items()
            if not path.startswith(LOG) or path.endswith(kept or ("nothing",))
        }
        with pytest.raises(HistoryLost, match="format it anew"):
            use(platter_of(files), told)


def test_a_torn_tail_that_no_sync_covered_is_cut() -> None:
    files = dict(WHOLE[False])
    newest = max(path for path in files if path.endswith(".log"))
    tail = data(8, 6, b"never synced", b"nor this").payload
    assert isinstance(tail, bytes)
    for size in range(1, len(tail)):
        files[newest] = WHOLE[False][newest] + tail[:size]
        assert use(platter_of(files), told) == TOLD[False]
