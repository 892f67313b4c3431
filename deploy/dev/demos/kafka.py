"""`make demo-kafka`: the demo beside a real Kafka cluster of three, its leader and ours killed.

The daemon keeps its events in `__remote_log_metadata`. While it copies, the broker that leads its
metadata partition is killed; later the daemon is, in the middle of a copy. It ends with the checks
of `make demo`, and with each event of the topic being there once.
"""  # noqa: INP001 - a script, no package

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from deploy.dev.demos import local as plain
from deploy.dev.demos.local import CheckFailed, Demo, check
from deploy.dev.stack.kafka.cluster import Cluster
from rlmm_daemon.client import Client
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.domain.errors import RlmmError, UnavailableError
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState
from tests.support.daemon_process import DaemonProcess
from tests.support.fork_server import Launch
from tests.support.kafka_segments import KafkaSegment

TOPIC = "__remote_log_metadata"
PARTITIONS = 50
#: Of one copy, over as many attempts as it takes.
RECOVERY_SECONDS = 60.0
T = TypeVar("T")


class DaemonBesideKafka(DaemonProcess):
    """`rlmm run` with the events in Kafka's own metadata topic."""

    def __init__(self, directory: Path, cluster: Cluster) -> None:
        super().__init__(directory)
        self._cluster = cluster

    def configure(self) -> Path:
        """Write the configuration: the brokers' ports are known by now."""
        file = self.directory / "rlmm.toml"
        cluster = self._cluster
        bootstrap = ", ".join(f'"{each}"' for each in cluster.bootstrap().split(","))
        file.write_text(
            f"""
[daemon]
broker_id = 1
state_dir = "var/state"
log_dirs = ["var/kafka-logs"]
[socket]
path = "var/rlmm.sock"
[event_log]
kind = "kafka"
[event_log.kafka]
bootstrap = [{bootstrap}]
[event_log.kafka.admin]
partition_count = {PARTITIONS}
replication_factor = 3
[storage]
kind = "local"
directory = "var/remote"
shared = true
[admin]
listen = "127.0.0.1:0"
"""
        )
        return file

    def _launch(self, notify: str) -> Launch:
        launch = super()._launch(notify)
        arguments = ["run", "--config", str(self.configure())]
        return Launch(
            arguments=arguments,
            directory=launch.directory,
            environment=launch.environment,
            output=launch.output,
        )


def start_cluster(demo: Demo, cluster: Cluster) -> None:
    """Start three brokers."""
    with demo.step("start a Kafka cluster") as step:
        cluster.start()
        step.count, step.note = cluster.count, f"KRaft, {cluster.bootstrap()}"


def meet(demo: Demo, client: Client) -> None:
    """Wait until the daemon knows its cluster and has made the topic; until then it says so."""
    with demo.step("find the cluster, make the topic") as step:
        asking_until_answered(lambda: client.replace_assignment(leaders=[], followers=[]))
        step.note = f"{TOPIC}, {PARTITIONS} partitions, 3 replicas"


def asking_until_answered(ask: Callable[[], T]) -> T:
    """Return the answer, asking again while that may help."""
    until = time.monotonic() + RECOVERY_SECONDS
    while True:
        try:
            return ask()
        except UnavailableError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def leader_of(cluster: Cluster, partition: int) -> int:
    """Return the node that leads a partition of the metadata topic."""
    main = "org.apache.kafka.tools.TopicCommand"
    live = [node for node in cluster.nodes if cluster.alive(node)]
    bootstrap = f"127.0.0.1:{cluster.nodes[live[0]].ports['PLAINTEXT']}"
    said = cluster.tool(main, "--bootstrap-server", bootstrap, "--describe", "--topic", TOPIC)
    for line in said.splitlines():
        words = dict(zip(line.split()[::2], line.split()[1::2], strict=False))
        if words.get("Partition:") == str(partition):
            return int(words["Leader:"])
    raise CheckFailed(f"nobody leads partition {partition}:\n{said}")


def copy_while_the_leader_dies(demo: Demo, client: Client, cluster: Cluster) -> int:
    """Copy half of the segments, kill the leader of their events, copy the rest; return who died.

    A copy whose outcome is not known is simply asked for again.
    """
    half = len(demo.segments) // 2
    with demo.step("copy half of the segments") as step:
        for segment in demo.segments[:half]:
            step.size_bytes += copied(demo, client, segment).segment_size_bytes
        step.count = half
    following = demo.segments[half].metadata.partition
    number = metadata_partition(following.topic_id, following.partition, PARTITIONS)
    leader = leader_of(cluster, number)
    with demo.step("SIGKILL the leader of their events") as step:
        cluster.kill(leader)
        step.note = f"broker {leader} led {TOPIC}-{number}"
    with demo.step("copy the first one after that") as step:
        step.size_bytes = copied(demo, client, demo.segments[half]).segment_size_bytes
        step.count, step.note = 1, "a new leader was found"
    with demo.step("copy the rest") as step:
        for segment in demo.segments[half + 1 :]:
            step.size_bytes += copied(demo, client, segment).segment_size_bytes
            step.count += 1
    return leader


def copied(demo: Demo, client: Client, segment: KafkaSegment) -> SegmentMetadata:
    """Copy a segment, asking again while that may help."""
    done = asking_until_answered(lambda: client.copy_segment(segment.metadata, segment.files))
    check(done.state is SegmentState.COPY_SEGMENT_FINISHED, f"{done} is finished")
    demo.finished[done.segment_id] = done
    return done


def come_back(demo: Demo, cluster: Cluster, leader: int) -> None:
    """Start the killed broker again."""
    with demo.step("start the killed broker again") as step:
        cluster.start_nodes([leader])
        step.count = 1


def each_event_once(demo: Demo, client: Client) -> None:
    """Count the topic's events: each copy wrote two, each delete two more, nothing is there twice.

    What the daemon's own tail shows is what the topic holds.
    """
    with demo.step("see each event of the topic once") as step:
        seen: Counter[bytes] = Counter()
        for partition in demo.placed:
            number = metadata_partition(partition.topic_id, partition.partition, PARTITIONS)
            for event in client.tail(number, 0, follow=False):
                if event.value is not None:
                    seen[event.value] += 1
        twice = [value.hex()[:64] for value, times in seen.items() if times > 1]
        check(not twice, f"there twice: {twice}")
        step.count, step.note = len(seen), "nothing twice"


def run(demo: Demo, cluster: Cluster) -> None:
    """Do everything, in order."""
    start_cluster(demo, cluster)
    plain.start(demo)
    with demo.daemon.client() as client:
        meet(demo, client)
        plain.announce(demo, client)
        leader = copy_while_the_leader_dies(demo, client, cluster)
        plain.look_up(demo, client)
        plain.fetch_ranges(demo, client)
        plain.fetch_indexes(demo, client)
        big = plain.kill_in_the_middle(demo, client)
    plain.restart(demo, big)
    come_back(demo, cluster, leader)
    with demo.daemon.client() as client:
        plain.clean_up(demo, client, big)
        plain.delete(demo, client)
        each_event_once(demo, client)
    plain.stop(demo)


def main() -> int:
    """Return the exit code."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--keep", action="store_true", help="leave the directory behind")
    keep = options.parse_args().keep
    directory = Path(tempfile.mkdtemp(prefix="rlmm-demo-kafka-"))
    cluster = Cluster(directory=directory / "kafka", count=3)
    console = Console(highlight=False)
    daemon = DaemonBesideKafka(directory, cluster)
    demo = Demo(daemon, console)
    begun = time.perf_counter()
    try:
        run(demo, cluster)
    except (CheckFailed, RlmmError, RuntimeError, TimeoutError) as error:
        keep = True
        console.print(f"[bold red]✗ {type(error).__name__}[/]: {error}", markup=True)
        if daemon.output.exists():
            console.print("The daemon's last words:", daemon.last_words(), markup=False)
        return 1
    else:
        plain.show(demo, time.perf_counter() - begun)
        return 0
    finally:
        daemon.kill()
        cluster.stop()
        if keep:
            console.print(f"Everything is left in {directory}")
        else:
            shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
