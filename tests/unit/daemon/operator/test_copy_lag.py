"""The tier's lag behind the broker's own files: what waits, since when, what nobody can tell."""

from pathlib import Path

import pytest

from rlmm_daemon.codec.sealed_table import SealedTable
from rlmm_daemon.core.fold.user_partitions import Sleeping
from rlmm_daemon.core.readiness.states import PartitionState
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.operator.copy_lag import CopyLag
from rlmm_daemon.domain.errors import Malformed
from rlmm_daemon.domain.ids import TopicIdPartition
from tests.unit.daemon.events import NEIGHBOUR, TP, copied, of, until
from tests.unit.daemon.following.test_mapped import NEVER, filled


def lay(logs: Path, partition: TopicIdPartition, **files: int) -> None:
    directory = logs / f"{partition.topic}-{partition.partition}"
    directory.mkdir(parents=True, exist_ok=True)
    for start, size in files.items():
        (directory / f"{int(start[1:]):020}.log").write_bytes(bytes(size))
    (directory / "00000000000000000099.log.deleted").write_bytes(bytes(1_000))
    (directory / "00000000000000000099.index").write_bytes(bytes(1_000))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "kafka"


async def test_closed_segments_wait_until_they_are_finished(rig, logs):
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [NEIGHBOUR])
        await until(lambda: manager.lookups.is_ready(TP))
        lay(logs, TP, _0=100, _10=200, _20=300)
        lay(logs, NEIGHBOUR, _0=100, _10=200, _20=300)
        lag = CopyLag(manager, [str(logs / "empty"), str(logs)])
        assert lag.facts() is None, "nobody has looked yet"
        await lag.look()
        first = lag.known()[TP.topic]
        assert (first.segments, first.bytes) == (2, 300), "the newest is written to"
        assert set(lag.known()) == {TP.topic}, "of another leader's partition its daemon tells"
        await copied(manager, 1, 0, 9)
        await lag.look()
        assert lag.known()[TP.topic].segments == 1
        assert lag.known()[TP.topic].since == first.since, "it waits as long as it was seen to"
        await copied(manager, 2, 10, 19)
        await lag.look()
        told = lag.facts()
        assert told == {
            "segments": 0, "bytes": 0, "seconds": 0.0, "topics": [], "untold_partitions": 0
        }  # fmt: skip
        lay(logs, TP, _30=400)
        await lag.look()
        told = lag.facts()
        assert told is not None
        (row,) = told["topics"]
        assert (row["topic"], row["segments"], row["bytes"]) == (TP.topic, 1, 300)
        since = lag.known()[TP.topic].since
        assert since is not None
        assert first.since is not None
        assert since > first.since, "another one"


async def test_what_is_tiered_is_asked_for_only_where_something_may_wait(rig, logs, monkeypatch):
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        await copied(manager, 1, 0, 9)
        lay(logs, TP, _0=100, _10=200)
        lag, asked = CopyLag(manager, [str(logs)]), list[TopicIdPartition]()
        tiered_to = lag._tiered_to

        def counted(partition: TopicIdPartition) -> int | None:
            asked.append(partition)
            return tiered_to(partition)

        monkeypatch.setattr(lag, "_tiered_to", counted)
        for _ in range(3):
            await lag.look()
        assert asked == [TP], "each look would wake what sleeps in a snapshot"


async def test_of_what_is_not_read_or_has_no_files_nothing_is_told(rig, logs, monkeypatch):
    async with rig.manager(snapshots=NEVER) as manager:
        outside = TopicIdPartition(TP.topic_id, "../secret", 0)
        manager.replace_assignment([TP, outside], [])
        await until(lambda: manager.lookups.is_ready(TP))
        lay(logs, TP, _0=100, _10=200)
        lay(logs, outside, _0=100, _10=200)
        lag = CopyLag(manager, [str(logs)])
        await lag.look()
        assert lag.untold == 1, "a name that leads elsewhere"
        with monkeypatch.context() as patched:
            patched.setattr(Follower, "state", PartitionState.REPLAYING)
            await lag.look()
        assert lag.untold == 2
        assert not any(each.segments for each in lag.known().values())


async def test_a_look_after_a_restart_wakes_only_where_events_were_put_aside(rig, logs):
    await filled(rig)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP, NEIGHBOUR], [])
        await until(lambda: manager.lookups.is_ready(TP))
        partitions = manager.fleet.followers[of(TP)].fold.partitions
        assert isinstance(partitions.peek(NEIGHBOUR), Sleeping)
        lay(logs, TP, _190=100, _200=200, _210=300)
        lay(logs, NEIGHBOUR, _190=100, _200=200, _210=300)
        lag = CopyLag(manager, [str(logs)])
        await lag.look()
        assert lag.known()[TP.topic].segments == 2, "199 was finished in each"
        assert isinstance(partitions.peek(NEIGHBOUR), Sleeping), "its table was read, no more"
        await copied(manager, 1020, 200, 209, NEIGHBOUR)
        await lag.look()
        assert lag.known()[TP.topic].segments == 1


@pytest.mark.parametrize("passes_checksum", [False, True])
async def test_of_what_sleeps_in_a_damaged_snapshot_nothing_is_told(
    rig, logs, monkeypatch, passes_checksum
):
    await filled(rig)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        fold = manager.fleet.followers[of(TP)].fold
        if passes_checksum:

            def spoilt(_table: SealedTable) -> int | None:
                raise Malformed("a table is cut short")

            monkeypatch.setattr(SealedTable, "newest_highest", spoilt)
        else:
            fold.image.damage = "a checksum"
        lay(logs, TP, _190=100, _200=200, _210=300)
        lag = CopyLag(manager, [str(logs)])
        await lag.look()
        assert lag.untold == 1
