"""A state directory in the first formats: event log, snapshots and what the daemon noted.

`tests/data/formats/state-1` was written by a daemon from before snapshots were mapped, in two lives
with a snapshot in each, and `state-1.json` is what that daemon answered.
"""

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlmm_daemon.client import Client
from rlmm_daemon.codec import records
from rlmm_daemon.domain.ids import TopicIdPartition
from tests.support.compacting import compacted
from tests.support.daemon_process import DaemonProcess
from tests.unit.core.world import FINISHED, TOPIC_ID, add, update

FORMATS = Path(__file__).parents[1] / "data" / "formats"
ORDERS, GONE, FOO = (
    TopicIdPartition(TOPIC_ID, name, number)
    for name, number in (("orders", 0), ("orders", 1), ("foo", 0))
)
SETTINGS = {"event_log.partition_count": 3}
SEGMENT = 40


@pytest.fixture(params=["with its snapshots", "from the log alone", "from the log, compacted"])
def home(request, tmp_path: Path) -> Path:
    state = tmp_path / "var" / "state"
    shutil.copytree(FORMATS / "state-1", state)
    if request.param != "with its snapshots":
        shutil.rmtree(state / "snapshots")
    if request.param == "from the log, compacted":
        assert asyncio.run(compacted(str(state / "log"), SETTINGS["event_log.partition_count"]))
    return tmp_path


@contextmanager
def living(home: Path) -> Iterator[tuple[DaemonProcess, Client]]:
    with DaemonProcess(home, SETTINGS) as daemon, daemon.client() as client:
        client.on_partition_leadership_changes([ORDERS, GONE, FOO], [])
        for partition in (ORDERS, GONE, FOO):
            client.highest_offset_for_epoch(partition, 0)  # held until it is ready
        yield daemon, client


def answers(client: Client, asked: dict[str, Any]) -> dict[str, Any]:
    def found(epoch: int, offset: int) -> str | None:
        segment = client.remote_log_segment_metadata(ORDERS, epoch, offset)
        return None if segment is None else records.encode(segment).hex()

    return {
        "listed": {
            str(each): sorted(
                records.encode(segment).hex() for segment in client.list_remote_log_segments(each)
            )
            for each in (ORDERS, GONE, FOO)
        },
        "found": [[epoch, offset, found(epoch, offset)] for epoch, offset, _ in asked["found"]],
        "highest": {
            epoch: client.highest_offset_for_epoch(ORDERS, int(epoch)) for epoch in asked["highest"]
        },
    }


def test_it_is_answered_from_as_it_was_and_goes_on(home: Path):
    then = json.loads((FORMATS / "state-1.json").read_text("utf-8"))
    with living(home) as (daemon, client):
        assert answers(client, then) == then
        client.add_remote_log_segment_metadata(add(SEGMENT, 900, 999, {3: 900}, partition=ORDERS))
        client.update_remote_log_segment_metadata(update(SEGMENT, FINISHED, partition=ORDERS))
        assert daemon.stop() == 0
    with living(home) as (_, client):
        assert client.highest_offset_for_epoch(ORDERS, 3) == 999
        now = answers(client, then)
        assert now["found"] == then["found"]
        assert len(now["listed"][str(ORDERS)]) == len(then["listed"][str(ORDERS)]) + 1
    assert not list(home.rglob("*.rejected"))
    assert not list(home.rglob("*.corrupt"))
