"""A log that lost its tail behind a snapshot, after lives that stopped cleanly and did not."""

import errno
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from rlmm_daemon.codec.state_files import Position, Positions, from_json, to_json
from rlmm_daemon.core.readiness.follower_inputs import Broken
from rlmm_daemon.core.readiness.states import FailureReason
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.following import noted_positions
from rlmm_daemon.daemon.operator.mending import Mending
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.domain.errors import Draining, StorageFull, StorageUnavailable
from tests.support.memory_log import MemoryEventLog
from tests.unit.daemon.events import TP, copied, of, ready, started, until
from tests.unit.daemon.metadata.test_previous_state import FakeBucket

BROKER = Caller.BROKER


async def failed(manager):
    manager.replace_assignment([TP], [])
    await until(lambda: of(TP) in manager.fleet.followers)
    follower = manager.fleet.followers[of(TP)]
    await until(lambda: follower.failure is not None and follower.read_to_end)
    return follower


def recorded(rig) -> Positions:
    data = Path(rig.directory, "a", "positions.json").read_bytes()
    return from_json(data, Positions, "positions.json")


async def lose_tail(rig, *, clean: bool) -> None:
    """Copy three segments, with a snapshot and a position behind the second, and lose two."""
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await copied(manager, 2, 10, 19)
        assert await Operator(manager).snapshot_now(None)
        await manager.fleet.noted.write()
        await copied(manager, 3, 20, 29)
        if clean:
            await manager.drain()
    rig.store.truncate(of(TP), 2)


async def test_what_a_crashed_life_acknowledged_beyond_its_position_stays_lost(rig):
    """The snapshot knows two segments, and the third was acknowledged: its objects are there."""
    await lose_tail(rig, clean=False)
    for _ in range(2):
        async with rig.manager() as manager:
            follower = await failed(manager)
            assert follower.uncertain
            await Mending(manager, guard=None, repair=None).repair([follower])
            assert follower.failure is not None, "a repair does not know of the third"
            command = follower.failure.command(of(TP))
            assert command == f"rlmm partition accept-loss {of(TP)}"
    async with rig.manager() as manager:
        follower = await failed(manager)
        await manager.fleet.acceptance.accept(follower)
        await until(lambda: manager.lookups.is_ready(TP))


class Asked(FakeBucket):
    """A bucket that looks at what the presence file would say while it keeps an acceptance."""

    furthest: Callable[[], Mapping[int, Position]]

    async def accept_loss(self, partition, identity, gaps):
        assert of(TP) not in self.furthest()
        if self.away:
            raise StorageUnavailable
        await super().accept_loss(partition, identity, gaps)


async def test_a_position_whose_loss_is_being_accepted_is_told_to_nobody_meanwhile(rig):
    """A presence file written behind the acceptance would name it as what was read since."""
    await lose_tail(rig, clean=False)
    bucket = Asked()
    async with rig.manager(bucket=bucket) as manager:
        follower = await failed(manager)
        bucket.furthest, bucket.away = manager.fleet.furthest, True
        lost = manager.fleet.furthest()[of(TP)]
        for accept in (
            lambda: manager.fleet.acceptance.accept(follower),
            manager.fleet.acceptance.accept_all,
        ):
            with pytest.raises(StorageUnavailable):
                await accept()
            assert manager.fleet.furthest()[of(TP)] == lost, "nothing was accepted"
        bucket.away = False
        await manager.fleet.acceptance.accept(follower)
        await until(lambda: manager.lookups.is_ready(TP))


async def test_a_snapshot_alone_does_not_know_the_end_of_the_log_either(rig):
    await lose_tail(rig, clean=False)
    await rig.disk.remove(f"{rig.directory}/a/positions.json")
    async with rig.manager() as manager:
        follower = await failed(manager)
        assert follower.uncertain
        await manager.fleet.noted.write()
    async with rig.manager() as manager:
        assert (await failed(manager)).uncertain, "nor in a later life"


async def test_a_life_that_stopped_cleanly_lost_nothing_but_what_its_snapshot_knows(rig):
    await lose_tail(rig, clean=True)
    async with rig.manager() as manager:
        follower = await failed(manager)
        assert not follower.uncertain
        await Mending(manager, guard=None, repair=None).repair([follower])
        await until(lambda: manager.lookups.is_ready(TP))
        assert manager.lookups.remote_log_segment_metadata(TP, 0, 25, BROKER) is not None


async def test_a_position_is_exact_from_a_clean_stop_until_the_next_life_begins(rig):
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await manager.fleet.noted.write()
        assert not recorded(rig).numbered()[of(TP)].exact
        await manager.drain()
        assert recorded(rig).numbered()[of(TP)].exact
        manager.gates.draining = False
        with pytest.raises(Draining):
            await manager.events.add(started(2, 10, 19), BROKER)
    async with rig.manager() as manager:
        await until(lambda: manager.fleet.follow_set is not None)
        assert not recorded(rig).numbered()[of(TP)].exact, "before anything is appended"
        await manager.drain()
    assert recorded(rig).numbered()[of(TP)].exact, "nobody followed it meanwhile"


async def test_a_life_that_failed_behind_what_it_had_acknowledged_claims_no_exact_end(
    rig, monkeypatch
):
    """What it acknowledged within its first second was never noted."""
    monkeypatch.setattr(noted_positions, "POSITIONS_SECONDS", 3_600)
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await manager.drain()
    for fails in (False, True):
        async with rig.manager() as manager:
            await ready(manager)
            if fails:
                await copied(manager, 2, 10, 19)
            follower = manager.fleet.followers[of(TP)]
            follower._take(Broken(FailureReason.LOG_CORRUPT, "a batch", None))
            await manager.drain()
        known = recorded(rig).numbered()[of(TP)]
        assert (known.next_offset, known.exact) == (2, not fails)


async def test_nothing_is_appended_while_the_file_says_that_nothing_was(rig, monkeypatch):
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await manager.drain()
    write = rig.disk.write_atomically

    async def full(path: str, *pieces: bytes) -> None:
        if path.endswith("positions.json"):
            raise OSError(errno.ENOSPC, "no space left on device")
        await write(path, *pieces)

    monkeypatch.setattr(rig.disk, "write_atomically", full)
    async with rig.manager() as manager:
        await ready(manager)
        with pytest.raises(StorageFull):
            await manager.events.add(started(2, 10, 19), BROKER)
        monkeypatch.undo()
        await until(lambda: not manager.fleet.noted._exact_on_disk)
        assert not recorded(rig).numbered()[of(TP)].exact
        await copied(manager, 2, 10, 19)


def test_positions_are_loaded_by_older_daemons_and_from_them():
    class Older(msgspec.Struct, array_like=True):
        next_offset: int
        leader_epoch: int

    class OlderFile(msgspec.Struct):
        partitions: dict[str, Older]

    file = b'{"format":1,"topic_id":"AAECAwQFBgcICQoLDA0ODw","partitions":{"2":%s}}'
    known = from_json(file % b"[10, 3]", Positions, "positions.json").numbered()[2]
    assert (known.next_offset, known.leader_epoch, known.exact) == (10, 3, False)
    older = msgspec.json.decode(file % b"[10, 3, true]", type=OlderFile).partitions["2"]
    assert (older.next_offset, older.leader_epoch) == (10, 3)


def write_exactly(rig) -> None:
    kept = recorded(rig)
    exactly = {n: msgspec.structs.replace(at, exact=True) for n, at in kept.partitions.items()}
    file = Path(rig.directory, "a", "positions.json")
    file.write_bytes(to_json(msgspec.structs.replace(kept, partitions=exactly)))


async def test_no_position_is_exact_in_a_log_that_other_daemons_write_to(rig):
    """They go on while this one is stopped, and what they wrote may be lost, too."""
    rig.log_of = MemoryEventLog
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        await manager.drain()
    assert not any(at.exact for at in recorded(rig).partitions.values())
    write_exactly(rig)  # nor is one believed that an earlier version wrote
    async with rig.manager() as manager:
        await ready(manager)
        assert not any(at.exact for at in manager.fleet.furthest().values())
        await copied(manager, 2, 10, 19)


async def test_a_log_that_can_lead_anew_writes_no_more_in_an_epoch_that_it_lacks(rig):
    """Else what is written anew would confirm, on other daemons, what they had read before."""
    outgrown: list[int] = []

    class LedHere(MemoryEventLog):
        def outgrow(self, epoch: int) -> None:
            outgrown.append(epoch)

    rig.log_of = LedHere
    await lose_tail(rig, clean=True)
    assert not outgrown, "all of it was there"
    async with rig.manager() as manager:
        await failed(manager)
    read = recorded(rig).numbered().values()
    assert set(outgrown) == {position.leader_epoch for position in read}
