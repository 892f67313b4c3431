"""An engineer's day of faults: each is found from the page, an alert and `explain` alone.

Asked for by RLMM_TEST_FAULT_DAY=1 (`make test-fault-day`): a real S3 server, a real broker, a real
Prometheus and a real browser. Rules are those that are shipped, with shorter waits.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from deploy.dev.stack.fault_proxy import Fault as Planted
from deploy.dev.stack.fault_proxy import Kind
from deploy.dev.stack.kafka.cluster import Cluster
from deploy.dev.stack.s3 import S3Server
from rlmm_daemon.codec.marker import MARKER_KEY
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.domain.errors import StorageFull
from rlmm_daemon.domain.ids import LeaderEpoch, Offset, SegmentId, TopicId, TopicIdPartition
from tests.docs.pages import DOCS
from tests.fault_day import faults
from tests.fault_day.faults import Fault
from tests.fault_day.rig import Day, now_ms, working
from tests.support import markers
from tests.support.fork_server import ForkServer
from tests.support.quorum_daemons import QuorumDaemons
from tests.support.quorum_processes import CLUSTER as QUORUM_CLUSTER
from tests.support.s3_daemon import ProxyThread, Tier, configure
from tests.support.s3_world import s3_server
from tests.support.stocked_daemon import COUNT, Stocked, eventually, free_address, make

__all__ = ["s3_server"]
pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("RLMM_TEST_FAULT_DAY"),
        reason="needs S3, Kafka, Prometheus and Chromium: make test-fault-day",
    ),
    pytest.mark.timeout(600),
]
#: Of the state directory's file system.
DISK = "32m"
KAFKA = """
[daemon]
broker_id = 1
state_dir = "var/state"
log_dirs = ["var/kafka-logs"]
[socket]
path = "var/rlmm.sock"
[event_log]
kind = "kafka"
[event_log.kafka]
bootstrap = ["{bootstrap}"]
[event_log.kafka.admin]
partition_count = {count}
replication_factor = 1
[storage]
kind = "local"
directory = "var/remote"
shared = true
"""
QUORUM = """
[daemon]
broker_id = 1
cluster_id = "{cluster}"
state_dir = "var/state"
log_dirs = ["var/kafka-logs"]
[socket]
path = "var/rlmm.sock"
[event_log]
kind = "quorum"
single_broker = true # else topics that are gone are asked for of brokers, and none runs here
[event_log.quorum]
directory = "{directory}"
listen = "{listen}"
bootstrap = {bootstrap}
partition_count = {count}
[storage]
kind = "local"
directory = "var/remote"
shared = true
"""


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("day")


@pytest.fixture(scope="module")
def proxy(s3_server: S3Server) -> Iterator[ProxyThread]:
    with ProxyThread(s3_server) as proxy:
        yield proxy


@pytest.fixture
def way(proxy: ProxyThread) -> Iterator[ProxyThread]:
    """The way to S3, clear again afterwards, so that one failure is not every later one's."""
    yield proxy
    proxy.lift()


@pytest.fixture(scope="module")
def tier(s3_server: S3Server) -> Tier:
    return Tier(s3_server)


@pytest.fixture(scope="module")
def disk(home: Path) -> Iterator[Path]:
    """The state directory, on a file system of its own."""
    path = home / "var" / "state"
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(path)]
    subprocess.run(mount, check=True, capture_output=True)
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture(scope="module")
def day(home: Path, disk: Path, forks: ForkServer, proxy: ProxyThread, tier: Tier) -> Iterator[Day]:
    """One daemon with an embedded log and S3, for all faults of it."""
    del disk
    config = configure(home, proxy.endpoint, tier.bucket)
    settings = {"admin.listen": free_address(), "read.cache_bytes": 0}
    it = make(home, forks, settings, config)
    with it.daemon:
        it.stock()
        with working(it, config, home) as found:
            found.until_silent()
            yield found


async def found(day: Day, fault: Fault, home: Path, *, picture: Path | None = None) -> None:
    """Find a fault that is there: by the alert, on the page, by explain and by its command."""
    day.until_fires(fault)
    await day.page(fault.page, home / "chromium", picture)
    told = day.explained()
    assert told["trouble"]
    told_by = [told, *told["also"]]
    (named,) = (each for each in told_by if each["cause"] == fault.cause)
    assert named["next_command"] == fault.command
    name, *words = fault.command.split()
    assert name == "rlmm"
    ran = day.typed(*words)
    assert fault.says in ran.stdout, ran.stdout + ran.stderr


async def over(day: Day, fault: Fault, home: Path) -> None:
    """Hold that all is silent once it was ended, and that nobody was woken for nothing."""
    day.no_wrong_alert(fault)
    day.until_silent()
    await day.page("", home / "chromium after")


async def test_a_slow_storage(day: Day, way: ProxyThread, tmp_path: Path):
    day.begin()
    way.plant(Planted(kind=Kind.LATENCY, seconds=2.5))
    await found(day, faults.SLOW, tmp_path)
    way.lift()
    await over(day, faults.SLOW, tmp_path)


async def test_a_storage_that_is_down(day: Day, way: ProxyThread, tmp_path: Path, pytestconfig):
    day.begin()
    way.plant(Planted(kind=Kind.RESET))
    rewrite = pytestconfig.getoption("--rewrite")
    picture = DOCS / "pictures" / "fault-day.png" if rewrite else None
    await found(day, faults.SILENT, tmp_path, picture=picture)
    way.lift()
    await over(day, faults.SILENT, tmp_path)


def fill(filler: Path) -> None:
    with filler.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def use_up_the_log(it: Stocked) -> None:
    """Write large events beside those of orders-0 until none is taken: files have room in them."""
    topic = TopicId(bytes([9] * 16))
    here = next(n for n in range(99) if metadata_partition(topic, n, COUNT) == it.number(0))
    large = replace(
        it.next(0).metadata,
        partition=TopicIdPartition(topic, "filling", here),
        event_timestamp_ms=now_ms(),
        segment_leader_epochs={LeaderEpoch(epoch): Offset(0) for epoch in range(5_000)},
    )
    with it.daemon.client() as client:
        for serial in range(1_000):
            fresh = SegmentId(serial.to_bytes(16, "big"))
            try:
                client.add_remote_log_segment_metadata(replace(large, segment_id=fresh))
            except StorageFull:
                return
    raise AssertionError("the log took all")


async def test_a_full_disk(day: Day, disk: Path, tmp_path: Path):
    day.begin()
    filler = disk / "filler"
    fill(filler)
    use_up_the_log(day.it)
    await found(day, faults.FULL, tmp_path)
    named = day.typed("doctor").stdout
    assert str(disk.relative_to(day.it.daemon.directory)) in named, "as the configuration has it"
    filler.unlink()
    await over(day, faults.FULL, tmp_path)


async def test_a_foreign_marker(
    day: Day, proxy: ProxyThread, s3_server: S3Server, tier: Tier, tmp_path: Path
):
    theirs = Tier(s3_server)
    ours = tier.admin.get_object(Bucket=tier.bucket, Key=MARKER_KEY)["Body"].read()
    foreign = {"cluster_id": "another-cluster", "metadata_topic_id": "AAAAAAAAQACAAAAAAAAABg"}
    body = markers.written(markers.content_of(ours) | foreign)
    theirs.admin.put_object(Bucket=theirs.bucket, Key=MARKER_KEY, Body=body)
    it, directory = day.it, day.it.daemon.directory
    configure(directory, proxy.endpoint, theirs.bucket)
    assert it.daemon.stop() == 0
    it.start()
    day.begin()
    await found(day, faults.FOREIGN, tmp_path)
    day.no_wrong_alert(faults.FOREIGN)
    configure(directory, proxy.endpoint, tier.bucket)
    assert it.daemon.stop() == 0
    it.start()
    day.begin()
    await over(day, faults.FOREIGN, tmp_path)
    assert theirs.keys_there() == [MARKER_KEY], "nothing was written to it"


async def test_a_killed_daemon(day: Day, tmp_path: Path):
    fault = faults.KILLED
    day.begin()
    day.it.daemon.kill()
    day.until_fires(fault)
    ran = day.typed("explain", "orders-0", "--json")
    assert ran.returncode != 0
    assert fault.cause in ran.stdout + ran.stderr
    assert f"{fault.command}," in day.typed("explain", "orders-0").stderr
    day.it.start()
    await over(day, fault, tmp_path)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(directory=tmp_path / "kafka")
    cluster.start()
    yield cluster
    cluster.destroy()


async def test_a_broker_that_is_gone(cluster: Cluster, tmp_path: Path):
    home = tmp_path / "daemon"
    home.mkdir()
    config = home / "rlmm.toml"
    config.write_text(KAFKA.format(bootstrap=cluster.bootstrap(), count=COUNT))
    settings = {"admin.listen": free_address(), "event_log.partition_count": None}
    it = make(home, None, settings, config)
    it.cluster_id = cluster.cluster_id
    with it.daemon:
        eventually(it.announce, lambda _: True)  # refused until the broker told of its cluster
        it.stock()
        with working(it, config, home) as day:
            day.until_silent()
            day.begin()
            cluster.kill(1)
            await found(day, faults.BROKER, tmp_path)
            cluster.start_nodes([1])
            await over(day, faults.BROKER, tmp_path)


@pytest.fixture
def others(tmp_path: Path) -> Iterator[QuorumDaemons]:
    """A quorum of three daemons, of which the second and the third run."""
    (tmp_path / "daemons").mkdir()
    with QuorumDaemons(tmp_path / "daemons", 1, 2, 3) as daemons:
        for number in (2, 3):
            daemons[number].start()
        yield daemons


async def test_a_quorum_without_a_majority(others: QuorumDaemons, tmp_path: Path):
    home = tmp_path / "daemon"
    home.mkdir()
    own = others.quorum[1]
    config = home / "rlmm.toml"
    servers = [others.quorum[number].address for number in (2, 3)]
    config.write_text(
        QUORUM.format(
            cluster=QUORUM_CLUSTER,
            directory=own.directory,
            listen=own.address,
            bootstrap=servers,
            count=COUNT,
        )
    )
    settings = {"admin.listen": free_address(), "event_log.partition_count": None}
    it = make(home, None, settings, config)
    it.cluster_id = QUORUM_CLUSTER
    with it.daemon:
        eventually(it.announce, lambda _: True)
        it.stock()
        with working(it, config, home) as day:
            day.until_silent()
            day.begin()
            assert [others[number].stop() for number in (2, 3)] == [0, 0]
            await found(day, faults.MINORITY, tmp_path)
            for number in (2, 3):
                others[number].start()
            await over(day, faults.MINORITY, tmp_path)
            it.copy_new(0, 255)


def test_the_page_says_what_the_tests_hold():
    assert faults.rows() in (DOCS / "fault-day.md").read_text()
