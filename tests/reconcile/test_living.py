"""Runs beside a real daemon that copies and deletes all the while, and a run that is killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from rlmm_daemon.cli.group import main as rlmm
from rlmm_daemon.client import Client
from rlmm_daemon.config import Config, load
from rlmm_daemon.config.reconcile import Output, ReconcileConfig
from rlmm_daemon.config.reconcile import Spark as SparkConfig
from rlmm_daemon.domain.ids import SegmentId, uuid_text
from rlmm_daemon.reconcile import control
from rlmm_daemon.reconcile.act import quarantine
from rlmm_daemon.reconcile.act.lease import LEASE_KEY, Lease
from rlmm_daemon.reconcile.act.quarantine import CondemnedObject, Manifest
from rlmm_daemon.reconcile.night import Run
from rlmm_daemon.reconcile.read import listing
from tests.reconcile.conftest import QUICK
from tests.reconcile.world import DAY, World
from tests.support import stocked_daemon
from tests.support.daemon_process import CONFIG
from tests.support.kafka_segments import KafkaSegment
from tests.support.manifests import write_manifests

#: More in `make soak-reconcile`.
ROUNDS = int(os.environ.get("RLMM_TEST_RECONCILE_ROUNDS", "2"))
KILLS = int(os.environ.get("RLMM_TEST_RECONCILE_KILLS", "1"))
WAIT_SECONDS = 300.0
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300 * max(ROUNDS, 3))]


class Traffic(threading.Thread):
    """Copies and deletes segments, one after the other, until it is stopped."""

    def __init__(self, client: Client, segment: KafkaSegment) -> None:
        super().__init__(daemon=True)
        self._client, self._segment = client, segment
        self.stopped = threading.Event()
        self.copied = 0
        #: Of which a delete was asked for, whether or not it is over.
        self.doomed: set[str] = set()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                fresh = SegmentId(os.urandom(16))
                metadata = replace(self._segment.metadata, segment_id=fresh)
                self._client.copy_segment(metadata, self._segment.files)
                self.copied += 1
                if self.copied % 3:
                    self.doomed.add(uuid_text(fresh))
                    self._client.delete_segment(metadata.partition, fresh)
        except BaseException as error:  # noqa: BLE001 - told by the test
            self.error = error


def test_a_run_beside_a_busy_daemon_finds_nothing_wrong(
    spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the second round on everything is two days old: only the order of the steps spares it.

    A manifest of long ago names all that lives, so that whatever was condemned would be deleted.
    """
    stocked = stocked_daemon.make(tmp_path)
    with stocked.daemon:
        stocked.stock()
        monkeypatch.chdir(tmp_path)
        daemon = load(CONFIG, [f"{k}={v}" for k, v in stocked.daemon.settings.items()])
        config = ReconcileConfig(
            output=Output(directory=str(tmp_path / "out")),
            spark=SparkConfig(shuffle_partitions=4),
            lineage=False,  # one segment's range is copied again and again
        )
        asyncio.run(quarantine_everything(daemon))
        with stocked.daemon.client() as client:
            traffic = Traffic(client, stocked.next(0))
            traffic.start()
            for number in range(ROUNDS):
                before = traffic.copied
                run = Run(
                    spark,
                    config,
                    daemon,
                    execute=True,
                    now_ms=time.time_ns() // 1_000_000 + (2 * DAY if number else 0),
                    progress=lambda _stage: None,
                )
                night = run.whole()
                assert traffic.error is None, traffic.error
                assert traffic.copied > before, "there was no traffic beside the run"
                assert night.refused == []
                found = pq.read_table(run.directory / "findings").to_pylist()
                assert [row for row in found if row["severity"] == "high"] == []
                # Two days on, the upload that goes on just now is one that nobody finishes.
                condemned = [row for row in found if row["condemned"] and row["upload_id"] is None]
                # Listed, then deleted before the log's end was asked for.
                assert {row["kind"] for row in condemned} <= {"deleted_but_present"}
                assert {row["segment_id"] for row in condemned} <= traffic.doomed
                assert night.deleted == 0
                assert number or night.condemned == 0, "nothing is a day old"
            traffic.stopped.set()
            traffic.join(WAIT_SECONDS)
        stocked.serves(0)
        stocked.serves(1)


async def quarantine_everything(daemon: Config) -> None:
    """Write a manifest of last week that names every object."""
    found = [
        CondemnedObject(
            key=each.key,
            size=each.size,
            etag=each.etag,
            modified_ms=each.modified_ms,
            kind="orphan_object",
        )
        for part in listing.slices(daemon, [""])
        for each in listing.objects(daemon, part)
    ]
    assert found
    last_week = time.time_ns() // 1_000_000 - 8 * DAY
    made = quarantine.manifests_of("earlier", 1, last_week, found)
    async with control.opened(daemon) as storage:
        await write_manifests(storage, made)


@pytest.mark.parametrize("after", range(1, KILLS + 1))
@pytest.mark.usefixtures("spark")
def test_a_run_killed_in_the_middle_of_deleting_is_taken_up_by_the_next(
    tmp_path: Path, after: int
) -> None:
    now_ms = time.time_ns() // 1_000_000
    world = World(tmp_path, now_ms)
    for _ in range(500):  # so that a hundredth is more than all orphans
        world.store(world.live())
    orphans = [key for _ in range(4) for key in world.store(world._orphan(20 * DAY))]
    live = sorted(world.objects.keys() - set(orphans))
    world.write_log()
    world.write_local()
    entries = tuple(entry(tmp_path, key) for key in sorted(orphans))
    manifest = Manifest(run="earlier", fence=1, created_ms=now_ms - 8 * DAY, entries=entries)
    name = f"{quarantine.MANIFESTS}earlier-001.json".removeprefix("_rlmm/")
    world.write_control(name, control.encode(manifest))
    config = tmp_path / "reconcile.toml"
    config.write_text(
        f'daemon_config = "{tmp_path}/rlmm.toml"\n'
        "[safety]\nbatch_objects = 1\ndeletes_per_second_max = 2\n"
        '[spark]\nmaster = "local[2]"\ndriver_memory = "1g"\nshuffle_partitions = 4\n'
        + "".join(f'settings."{name}" = "{value}"\n' for name, value in QUICK.items())
        + f'[output]\ndirectory = "{tmp_path}/out"\n'
    )

    first = start(config, tmp_path / "first.log")
    wait_for(lambda: len(told(tmp_path, "deleted")) >= after, first)
    first.send_signal(signal.SIGKILL)
    first.wait()
    left = [key for key in orphans if (tmp_path / "remote" / key).exists()]
    assert 0 < len(left) < len(orphans)
    # Whenever it died: what is gone was named before it went.
    assert {*orphans} - {*left} <= {line["deleting"] for line in told(tmp_path, "deleting")}

    # The dead run's lease has to run out; until then the next one would only say who holds it.
    at = tmp_path / "remote" / LEASE_KEY
    lease = control.decode(at.read_bytes(), Lease)
    at.write_bytes(control.encode(msgspec.structs.replace(lease, expires_ms=0)))
    quicker = ("--set", "safety.deletes_per_second_max=1000")
    words = ["reconcile", "run", "--execute", "--config", str(config), *quicker]
    second = CliRunner().invoke(rlmm, words)
    assert second.exit_code == 1, second.output
    assert not any((tmp_path / "remote" / key).exists() for key in orphans)
    assert all((tmp_path / "remote" / key).exists() for key in live)
    fences = {line["fence"] for line in told(tmp_path, "deleted")}
    assert len(fences) == 2


def entry(home: Path, key: str) -> CondemnedObject:
    status = (home / "remote" / key).stat()
    return CondemnedObject(
        key=key,
        size=status.st_size,
        etag=f"{status.st_ino:x}-{status.st_mtime_ns:x}",
        modified_ms=status.st_mtime_ns // 1_000_000,
        kind="orphan_object",
    )


def start(config: Path, output: Path) -> subprocess.Popen[bytes]:
    words = ["reconcile", "run", "--execute", "--config", str(config), "--json"]
    with output.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "rlmm_daemon", *words], stdout=log, stderr=log
        )


def told(home: Path, word: str) -> list[dict[str, object]]:
    """Return the whole lines of all audit logs that have the word."""
    lines = [
        line
        for audit in (home / "out").glob("*/audit.jsonl")
        for line in audit.read_text().splitlines(keepends=True)
    ]
    return [found for line in lines if line.endswith("\n") and word in (found := json.loads(line))]


def wait_for(holds, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert process.poll() is None, "the run ended before it deleted anything"
        assert time.monotonic() < until, "the run did not come to its deletes"
        time.sleep(0.05)
