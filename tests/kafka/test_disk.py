"""A broker whose disk is full: writes are refused or unknown, nothing acknowledged is lost."""

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.dev.stack.kafka.cluster import Cluster
from tests.kafka.conftest import tiering
from tests.kafka.probe import Probe
from tests.kafka.rig import KafkaRig, Writer, serving, tp_in, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SIZE = "48m"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[KafkaRig]:
    """A cluster of one, on a file system of its own that is soon full."""
    home = tmp_path / "kafka"
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(home)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    cluster = Cluster(directory=home, count=1, properties=tiering())
    try:
        cluster.start()
        with Probe(cluster.bootstrap(), tmp_path / "probe.log") as probe:
            rig = KafkaRig(cluster, probe, tmp_path, "rlmm.full")
            yield rig
            rig.close()
    finally:
        for node_id in cluster.nodes:
            if cluster.alive(node_id):
                cluster.kill(node_id)
        subprocess.run(["umount", "-l", str(home)], check=True)


def fill(home: Path) -> Path:
    """Take every byte that is left."""
    filler = home / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
    return filler


async def test_a_broker_with_a_full_disk_costs_time_and_no_acknowledged_copy(small):
    rig, tp = small, tp_in(0)
    cluster = rig.cluster
    rig.create()
    async with rig.manager() as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        async with writer.writing():
            await writer.more(5)
            filler = await asyncio.to_thread(fill, cluster.directory)
            # It may take some more into what it has allocated; then it gives its directory up.
            await until(lambda: not cluster.alive(1), 120, "the broker ends")
            await until(lambda: not manager.lookups.is_ready(tp), 60, "and nothing is ready")
            filler.unlink()
            begun = time.perf_counter()
            await asyncio.to_thread(cluster.start_nodes, [1])
            up = time.perf_counter() - begun
            await until(lambda: manager.lookups.is_ready(tp), 60)
            more = await writer.more(5)
            rig.tell(f"disk free again: broker up after {up:.1f} s, five copies {more:.1f} s later")
        await asyncio.to_thread(writer.check, rig)
