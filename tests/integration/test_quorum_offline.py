"""A quorum's log read from a replica's files: what is settled, what is not, and damage."""

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.quorum.files.formatted import TOPIC
from rlmm_daemon.adapters.quorum.files.layout import Layout
from rlmm_daemon.cli import main
from rlmm_daemon.codec.marker import PRESENCE_PREFIX
from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.config import load
from rlmm_daemon.core.disposal.inventory import History
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.domain.errors import LogCorrupt
from rlmm_daemon.domain.ids import MetadataPartition, uuid_text
from rlmm_daemon.offline.log_adoption import read_before
from rlmm_daemon.offline.quorum.replica_log import ReplicaLog, of_config
from tests.integration.test_quorum_daemons import holds, until, write
from tests.support.daemon_process import CONFIG
from tests.support.fork_server import ForkServer
from tests.support.quorum_daemons import QuorumDaemons, of_one
from tests.support.quorum_processes import CLUSTER, QuorumProcesses
from tests.support.stocked_daemon import Stocked, make, restarts_clean


@pytest.fixture
def stocked(tmp_path: Path, forks: ForkServer) -> Iterator[Stocked]:
    """A daemon that is a quorum of one, with segments in its storage."""
    (tmp_path / "quorum").mkdir()
    settings = of_one(tmp_path / "quorum") | {"event_log.partition_count": None}
    it = make(tmp_path, forks, settings)
    it.cluster_id = CLUSTER
    it.daemon.start()
    it.stock()
    yield it
    it.daemon.kill()


def tool(it: Stocked, *words: str) -> Any:
    overrides = [f"--set={key}={value}" for key, value in it.daemon.settings.items()]
    return it.daemon.rlmm("storage", *words, "--config", str(CONFIG), *overrides)


def replica(it: Stocked) -> Path:
    return Path(str(it.daemon.settings["event_log.quorum.directory"]))


def test_the_storage_is_verified_by_a_replica_with_and_without_its_daemon(stocked: Stocked) -> None:
    live = tool(stocked, "verify")
    assert live.returncode == 0, live.stderr
    assert "They agree." in live.stdout
    assert stocked.daemon.stop() == 0
    lost = next(stocked.daemon.remote.rglob("*.log"))
    lost.rename(lost.with_suffix(".away"))
    files = {each: each.read_bytes() for each in replica(stocked).rglob("*") if each.is_file()}
    stopped = tool(stocked, "verify", "--json")
    assert stopped.returncode == 1, stopped.stderr
    told = json.loads(stopped.stdout)
    assert told["segments"] == len(stocked.acknowledged)
    assert told["counts"] == {"missing_object": 1, "unknown_key": 1}
    assert told["replica"]["whole"] is True
    assert told["untold"] == 0
    assert files == {each: each.read_bytes() for each in files}, "nothing is written"


def test_a_marker_is_rebuilt_from_a_replica_and_damage_in_it_is_named(stocked: Stocked) -> None:
    assert stocked.daemon.stop() == 0
    marker = stocked.daemon.remote / "_rlmm" / "marker.json"
    marker.unlink()
    (stocked.state_dir / "marker.json").unlink()
    (log,) = (replica(stocked) / f"{TOPIC}-0").glob("*.log")
    whole = log.read_bytes()
    log.write_bytes(whole[:-40] + bytes(8) + whole[-32:])
    refused = tool(stocked, "rebuild-marker", "--execute")
    assert refused.returncode != 0
    assert str(log) in refused.stderr
    assert "byte" in refused.stderr
    assert not marker.exists()
    log.write_bytes(whole)
    told = tool(stocked, "rebuild-marker", "--execute")
    assert told.returncode == 0, told.stderr
    stocked.start()
    restarts_clean(stocked)


def test_what_is_settled_is_what_the_leader_or_a_daemon_that_read_it_says(tmp_path: Path) -> None:
    """Alone, a replica's files vouch for nothing behind what its daemon had read."""
    with QuorumDaemons(tmp_path, 1, 2, 3) as daemons:
        for each in (1, 2, 3):
            daemons[each].start()
        for number in range(6):
            write(daemons[1], number)
        until(lambda: holds(daemons[2], set(range(6))), "it has them")
        home = daemons[2].directory
        config = load(home / "rlmm.toml", [f"daemon.state_dir={home}/var/state"])
        led = asyncio.run(_standing(config, read_before))
        assert (led.whole, led.unsettled) == (True, 0)
        assert led.told() is None
        for each in (1, 3, 2):
            daemons[each].kill()

        async def nobody(_: Any) -> dict[Any, Any]:
            return {}

        alone = asyncio.run(_standing(config, nobody))
        assert (alone.whole, alone.settled, alone.unsettled) == (False, 0, 6)
        assert "the 6 events behind it may yet be taken back" in str(alone.told())

    # The rest is of its files alone.
    directory = str(daemons.quorum[2].directory)

    async def read_to(epoch_more: int) -> tuple[int, int]:
        disk = LocalDisk()
        plain = await _log(disk, directory, {})
        epoch = plain._fold.epochs[1].entries[-1][0]
        last = plain._fold.ends[1]
        said = Position(next_offset=last, leader_epoch=epoch + epoch_more)
        log = await _log(disk, directory, {1: said})
        history = History(Fold(MetadataPartition(1), 3))
        await log.read_on(history)
        disk.close()
        return history.fold.position, last

    position, last = asyncio.run(read_to(0))
    assert position == last > 0
    assert asyncio.run(read_to(1))[0] == 0, "of another epoch it is another event"


async def _log(disk: LocalDisk, directory: str, said: dict[int, Position]) -> ReplicaLog:
    async def nobody(_: object) -> None:
        return None

    async def read_to(_: object) -> dict[int, Position]:
        return said

    log = ReplicaLog(disk, Layout(directory, TOPIC), ask=nobody, read_to=read_to)
    await log.open()
    return log


async def _standing(config: Any, read: Any) -> Any:
    disk = LocalDisk()
    try:
        return (await of_config(config, disk, read)).standing
    finally:
        disk.close()


def test_a_file_that_is_gone_and_one_that_is_torn_are_named(tmp_path: Path) -> None:
    with QuorumDaemons(tmp_path, 1) as daemons:
        daemons[1].start()
        for number in range(4):
            write(daemons[1], number)
        assert daemons[1].stop() == 0
    directory = daemons.quorum[1].directory
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    (log,) = (copy / f"{TOPIC}-0").glob("*.log")
    data = log.read_bytes()

    async def read() -> ReplicaLog:
        disk = LocalDisk()
        try:
            return await _log(disk, str(copy), {})
        finally:
            disk.close()

    assert asyncio.run(read()).standing.whole
    run = CliRunner().invoke(main, ["log", "verify", str(copy), "--json"])
    assert run.exit_code == 0, run.output
    rows = json.loads(run.stdout)
    assert sum(each["records"] for each in rows) == 4
    assert [each["findings"] for each in rows] == [[], [], []]
    log.write_bytes(data[:-1])
    run = CliRunner().invoke(main, ["log", "verify", str(copy)])
    assert run.exit_code != 0
    assert str(log) in run.output
    with pytest.raises(LogCorrupt, match="byte"):
        asyncio.run(read())
    log.write_bytes(data + data[:20])
    assert asyncio.run(read()).standing.whole, "what a crash tears was never acknowledged"


def test_what_a_replica_alone_does_not_name_is_no_orphan(tmp_path: Path, forks: ForkServer) -> None:
    """It is one only once a leader says that the replica has all."""
    quorum = QuorumProcesses(tmp_path / "quorum")
    quorum.directory.mkdir()
    quorum.format(1, 2)
    settings = {
        "daemon.cluster_id": CLUSTER,
        "event_log.kind": "quorum",
        "event_log.partition_count": None,
        "event_log.quorum.directory": str(quorum[1].directory),
        "event_log.quorum.listen": quorum[1].address,
        "event_log.quorum.partition_count": 3,
    }
    it = make(tmp_path, forks, settings)
    it.cluster_id = CLUSTER
    with quorum, it.daemon:
        quorum.start(2)
        it.stock()
        name = uuid_text(it.copied(0)[0].metadata.segment_id)
        (known,) = it.daemon.remote.rglob(f"*-{name}.log")
        offset, segment_id = known.stem.split("-", 1)
        stray = known.with_name(f"{offset}-AAAA{segment_id[4:]}.log")
        shutil.copy(known, stray)
        os.utime(stray, (0, 0))

        def verified() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(tool(it, "verify", "--json").stdout)
            return found

        led = verified()
        assert led["replica"]["whole"] is True
        assert (led["counts"], led["untold"]) == ({"orphan_object": 1}, 0)
        assert it.daemon.stop() == 0
        alone = verified()
        assert alone["replica"]["whole"] is False
        assert alone["replica"]["unsettled"] == 0, "its daemon had read all of it"
        assert (alone["counts"], alone["untold"]) == ({}, 1)
        assert alone["segments"] == led["segments"]
        said = tool(it, "verify").stdout
        assert "no leader says whether that is all" in said
        assert "Not told: 1 finding that may be none." in said
        assert "They agree" not in said

        # As far as anybody had read it the first segment of orders-0 is finished, and what follows
        # on it may be taken back, its end among it.
        for each in (it.daemon.remote / PRESENCE_PREFIX).iterdir():
            each.unlink()
        positions = it.state_dir / "positions.json"
        told = json.loads(positions.read_bytes())
        number = str(it.number(0))
        epoch = told["partitions"][number][1]
        del told["crc32c"]  # as older daemons left it out
        told["partitions"] = {number: [2, epoch]}
        positions.write_text(json.dumps(told))
        known.unlink()
        doubted = verified()
        assert doubted["replica"]["unsettled"] > 0, doubted
        assert doubted["segments"] == 1, (doubted, positions.read_text())
        assert doubted["counts"] == {}
        it.daemon.start()
        until(lambda: verified()["counts"].get("missing_object") == 1, "a leader vouches for all")
