"""Files of the state directory that the disk or their rights keep from the daemon."""

import asyncio
import errno
import os
from typing import Any

import pytest

from rlmm_daemon.core.explain.causes import CAUSES
from rlmm_daemon.core.explain.facts import Facts, LastError
from rlmm_daemon.core.readiness.states import PartitionState, TroubleKind
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.domain.errors import ConfigError, StorageUnavailable
from tests.unit.daemon.events import TP, of, ready, started, until, updated

READS = frozenset({"read", "map", "open", "list", "lock"})
WRITES = frozenset({"write_atomically", "make_directory", "lock", "remove"})


class Unusable:
    """A disk on which calls for one name fail, once that is said."""

    def __init__(self, disk: Any) -> None:
        self._disk = disk
        self.name = ""
        self.calls = READS
        self.number = errno.EIO

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._disk, name)

        def call(*arguments: Any, **named: Any) -> Any:
            fails = self.name and name in self.calls and arguments[0].endswith(self.name)
            return self._fails() if fails else found(*arguments, **named)

        return call

    async def _fails(self) -> None:
        raise OSError(self.number, os.strerror(self.number))  # as a read of a descriptor does


@pytest.fixture
async def stocked(rig):
    """A state directory of one segment, on such a disk."""
    rig.disk = Unusable(rig.disk)
    async with rig.manager() as manager:
        await ready(manager)
        await manager.events.add(started(1, 0, 9), Caller.BROKER)
        await manager.events.update(updated(1), Caller.BROKER)
        await manager.drain()
    return rig


NEEDED = ["identity.json", "positions.json", "lock", "snapshots"]


@pytest.mark.parametrize("name", NEEDED)
async def test_a_start_that_the_disk_fails_says_so_and_goes_on_when_it_is_mended(stocked, name):
    stocked.disk.name = name
    async with stocked.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: "mend its disk" in str(manager.fleet.trouble))
        assert manager.fleet.trouble.kind is TroubleKind.STATE_AWAY
        if name.endswith(".json"):
            assert f"{stocked.directory}/a/{name}: Input/output error" in str(manager.fleet.trouble)
        stocked.disk.name = ""
        await until(lambda: manager.lookups.is_ready(TP))


@pytest.mark.parametrize("name", NEEDED)
@pytest.mark.parametrize("number", [errno.EACCES, errno.EISDIR])
async def test_a_file_that_is_not_the_daemons_ends_it_with_what_to_do(stocked, name, number):
    stocked.disk.name, stocked.disk.number = name, number
    with pytest.raises(ExceptionGroup) as ended:
        async with asyncio.timeout(20), stocked.manager():
            await asyncio.Event().wait()
    (error,) = ended.value.exceptions
    assert isinstance(error, ConfigError)
    assert os.strerror(number) in error.message
    assert "let the daemon's user read and write its state directory" in error.message


@pytest.mark.parametrize("name", ["announced.json", "accepted.json"])
async def test_what_only_warms_or_spares_a_question_stands_in_no_ones_way(stocked, name):
    stocked.disk.name = name
    async with stocked.manager() as manager:
        await ready(manager)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EROFS])
async def test_reads_do_not_wait_for_positions_to_be_written_and_writes_say_why(stocked, number):
    stocked.disk.name, stocked.disk.calls = "positions.json", WRITES
    stocked.disk.number = number
    async with stocked.manager() as manager:
        await ready(manager)
        assert manager.lookups.remote_log_segment_metadata(TP, 0, 5, Caller.BROKER) is not None
        with pytest.raises(StorageUnavailable, match=os.strerror(number)):
            await manager.events.add(started(2, 10, 19), Caller.BROKER)
        stocked.disk.name = ""
        await until(lambda: not manager.fleet.noted.refusal)
        await manager.events.add(started(2, 10, 19), Caller.BROKER)


async def test_reads_do_not_wait_for_the_identity_to_be_written(rig):
    rig.disk = Unusable(rig.disk)
    rig.disk.name, rig.disk.calls = "identity.json", WRITES
    async with rig.manager() as manager:
        await ready(manager)
        rig.disk.name = ""
        await until(lambda: not manager.fleet.known._identity_unwritten)
    async with rig.manager() as manager:
        known = await manager.state.identity()
        assert known is not None


def cause_of(file: str) -> tuple[str, str, str]:
    """Return what is said of a follower that waits for a file."""
    facts = Facts(
        selector="orders-0",
        partition=TP,
        metadata_partition=of(TP),
        state=PartitionState.STARTING,
        now_ms=1_000,
        trouble=LastError(message="Input/output error", at_ms=0, file=file),
    )
    cause = next(each for each in CAUSES if each.applies(facts))
    return cause.name, cause.sentence(facts), cause.command(facts)


@pytest.mark.parametrize("name", [f"{of(TP)}.lost", ".snapshot"])
async def test_a_partition_that_waits_for_a_file_names_it_and_goes_on_when_it_is_mended(
    stocked, name
):
    stocked.disk.name = name
    async with stocked.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: any(each.trouble for each in manager.followed()))
        (trouble,) = [each.trouble for each in manager.followed() if each.trouble]
        assert trouble.file is not None
        assert trouble.file.endswith(name)
        stocked.disk.name = ""
        await until(lambda: manager.lookups.is_ready(TP))


def test_what_is_said_of_such_a_file():
    name, sentence, command = cause_of("/state/1.lost")
    assert (name, command) == ("file_unusable", "ls -l /state/1.lost")
    assert "/state/1.lost" in sentence
    assert cause_of("/state/snapshots/1-2.snapshot")[2] == f"rlmm partition rebuild {of(TP)}"


def test_of_a_log_file_that_its_disk_lost_there_is_a_way_to_what_is_left():
    name, sentence, _ = cause_of(path := "/state/log/1/00000000000000000000.log")
    assert name == "file_unusable"
    assert path in sentence
    assert "conv=noerror,sync" in sentence
    assert "chown --reference" in sentence, "what root makes is not the daemon's user's to write"


async def test_a_snapshot_that_cannot_be_read_can_be_given_up(stocked):
    stocked.disk.name = "1.snapshot"
    async with stocked.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: any(each.trouble for each in manager.followed()))
        manager.fleet.followers[of(TP)].rebuild()
        await until(lambda: manager.lookups.is_ready(TP))
        assert manager.lookups.remote_log_segment_metadata(TP, 0, 5, Caller.BROKER) is not None
