"""A marker that is rebuilt while the event log is damaged too: no command mends that one first."""

import asyncio
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlmm_daemon import config as configuration
from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.cli import main
from rlmm_daemon.codec import custom_metadata, marker, scan
from rlmm_daemon.config import Config
from rlmm_daemon.core.storage.layout import Layout, object_key
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import Offset
from rlmm_daemon.offline import marker_rebuilding
from tests.unit.daemon.events import COUNT, TP, of, segment_id, started, updated

N = of(TP)
FACTS = custom_metadata.encode(custom_metadata.StoredFacts(layout_number=1, log_crc32c=0, sizes={}))
TEXT = f"""
[daemon]
broker_id = 1
cluster_id = "c"
state_dir = "{{tmp_path}}/state"
log_dirs = ["{{tmp_path}}/logs"]
[event_log]
kind = "embedded"
single_broker = true
directory = "{{tmp_path}}/log"
partition_count = {COUNT}
[storage]
kind = "local"
directory = "{{tmp_path}}/remote"
"""


def run(config: Config, *, execute: bool = True) -> marker_rebuilding.Outcome:
    return marker_rebuilding.run(config, {}, execute=execute)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "remote").mkdir()
    return configuration.parse(TEXT.format(tmp_path=tmp_path))


@pytest.fixture
def log(tmp_path: Path, config: Config) -> Path:
    """The file of a log that names two finished segments, and one that is being copied."""
    asyncio.run(write(config))
    return tmp_path / "log" / str(N) / f"{0:020}.log"


async def write(config: Config) -> None:
    disk = LocalDisk()
    async with asyncio.TaskGroup() as group:
        log = EmbeddedLog(
            disk=disk,
            clock=SystemClock(),
            spawn=lambda work, name: group.create_task(work, name=name),
            luck=random.Random(1),
            directory=config.event_log_directory,
            partition_count=COUNT,
            cluster_id="c",
        )
        await log.open(create=True)
        for number in (1, 2):
            await log.append(N, started(number, 10 * number, 10 * number + 9))
            await log.append(N, updated(number, custom=FACTS))
        await log.append(N, started(3, 30, 39))  # so that no damage is a torn tail
        await log.close()
    disk.close()


def damage(file: Path, count: int) -> None:
    """Flip a bit in each of the first batches."""
    data = bytearray(file.read_bytes())
    for batch in scan.walk(bytes(data), 0).found[:count]:
        data[batch.position + 30] ^= 1
    file.write_bytes(data)


def store(tmp_path: Path, number: int) -> None:
    """Store the `.log` of one of the segments."""
    key = object_key(Layout(), TP, Offset(10 * number), segment_id(number), suffix=".log")
    (tmp_path / "remote" / key).parent.mkdir(exist_ok=True)
    (tmp_path / "remote" / key).write_bytes(b"log")


def test_damage_in_the_log_is_passed_over_and_told(config, log, tmp_path):
    damage(log, 1)
    store(tmp_path, 2)
    there = tmp_path / "remote" / marker.MARKER_KEY
    there.parent.mkdir()
    there.write_bytes(b"damaged")
    damaged = log.read_bytes()
    outcome = run(config)
    assert outcome.written
    assert outcome.damaged.keys() == {N}
    assert outcome.damaged[N].startswith(f"{log} at byte 0: ")
    (row,) = marker.decode_marker(there.read_bytes()).layouts
    assert row.number == 1
    assert log.read_bytes() == damaged, "it is the daemon's to mend"


def test_a_log_that_is_damaged_throughout_makes_no_marker_where_nothing_is(config, log, tmp_path):
    """Nothing tells this directory from one that is not mounted."""
    damage(log, 4)
    with pytest.raises(InvalidArgument, match="the event log is damaged, and not one"):
        run(config)
    assert not (tmp_path / "remote" / marker.MARKER_KEY).exists()
    store(tmp_path, 1)
    outcome = run(config)
    assert (outcome.written, outcome.holds_all) == (True, True)


@pytest.mark.usefixtures("config")
def test_the_command_tells_the_damage_and_what_comes_next(log, tmp_path):
    damage(log, 1)
    store(tmp_path, 2)
    file = tmp_path / "rlmm.toml"
    file.write_text(TEXT.format(tmp_path=tmp_path))
    told = CliRunner().invoke(main, ["storage", "rebuild-marker", "--config", str(file)])
    assert told.exit_code == 0, told.output
    assert f"{log} at byte 0" in told.output
    assert f"rlmm log repair {N}" in told.output
