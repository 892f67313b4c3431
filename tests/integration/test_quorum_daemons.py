"""Daemons whose event log a quorum keeps: written by each, killed, cut off, formatted late."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from rlmm_daemon.client import Client
from rlmm_daemon.domain.errors import (
    NotReady,
    PartitionFailed,
    StorageUnavailable,
    UnavailableError,
)
from rlmm_daemon.domain.ids import BrokerId, LeaderEpoch, Offset, SegmentId, TopicId
from rlmm_daemon.domain.ids import TopicIdPartition as Partition
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState
from tests.support.daemon_process import DaemonProcess
from tests.support.fork_server import ForkServer
from tests.support.quorum_daemons import QuorumDaemons, of_one
from tests.support.quorum_processes import CLUSTER, QuorumProcesses

SECONDS = 30.0
#: In three metadata partitions, or two.
PARTITIONS = [Partition(TopicId(bytes([n]) * 16), "events", n) for n in range(1, 5)]


@pytest.fixture
def three(tmp_path: Path) -> Iterator[QuorumDaemons]:
    with QuorumDaemons(tmp_path, 1, 2, 3) as daemons:
        for number in (1, 2, 3):
            daemons[number].start()
        yield daemons


def segment(number: int) -> SegmentMetadata:
    return SegmentMetadata(
        partition=PARTITIONS[number % len(PARTITIONS)],
        segment_id=SegmentId(number.to_bytes(16, "big")),
        start_offset=Offset(number * 100),
        end_offset=Offset(number * 100 + 99),
        broker_id=BrokerId(1),
        max_timestamp_ms=number,
        event_timestamp_ms=time.time_ns() // 1_000_000,
        segment_leader_epochs={LeaderEpoch(number): Offset(number * 100)},
        segment_size_bytes=1000 + number,
        state=SegmentState.COPY_SEGMENT_STARTED,
    )


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not in {SECONDS:g} s: {what}"
        time.sleep(0.05)  # another process rings no bell


def write(daemon: DaemonProcess, number: int) -> None:
    """Write it, again while it is not known to be there: a repeat succeeds and changes nothing."""
    deadline = time.monotonic() + SECONDS
    with daemon.client(timeout_seconds=10) as client:
        while True:
            try:
                client.add_remote_log_segment_metadata(segment(number))
            except UnavailableError:
                assert time.monotonic() < deadline, "nobody takes it"
                time.sleep(0.05)
            else:
                return


def held(client: Client) -> set[int]:
    return {
        int.from_bytes(each.segment_id)
        for partition in PARTITIONS
        for each in client.list_remote_log_segments(partition)
    }


def holds(daemon: DaemonProcess, numbers: set[int]) -> bool:
    """Whether a daemon answers of its own replica that these segments are there."""
    try:
        with daemon.client() as client:
            return held(client) == numbers
    except NotReady:
        return False


def test_what_each_wrote_is_everywhere_and_outlives_the_leader(three: QuorumDaemons) -> None:
    written = set[int]()
    for number in range(12):
        write(three[number % 3 + 1], number)
        written.add(number)
    for each in (1, 2, 3):
        until(partial(holds, three[each], written), "each replica has all of it")
    leader = three.leader()
    assert leader is not None
    three[leader].kill()
    others = [each for each in (1, 2, 3) if each != leader]
    for number in range(12, 18):
        write(three[others[number % 2]], number)
        written.add(number)
    three[leader].start()
    until(lambda: holds(three[leader], written), "the one that was away has all of it")
    assert three.leader() in others
    write(three[leader], 18)
    until(lambda: holds(three[others[0]], written | {18}), "and is heard again")
    for each in (1, 2, 3):
        assert three[each].stop() == 0


def test_a_side_without_a_majority_answers_look_ups_and_says_what_it_misses(
    three: QuorumDaemons,
) -> None:
    write(three[1], 1)
    until(lambda: holds(three[3], {1}), "it is there")
    three[1].kill()
    three[2].kill()
    until(lambda: three.standing(3)["role"] in {"prospective", "candidate"}, "nobody leads")
    with three[3].client() as client:
        with pytest.raises(StorageUnavailable) as refused:
            client.add_remote_log_segment_metadata(segment(2))
        assert "hears of the voters 3, not 1, 2; 2 of 3 have to hear each other" in str(
            refused.value
        )
        assert held(client) == {1}
        status = client.status()["log"]
        assert (status["quorum"]["leader"], status["quorum"]["heard"]) == (None, [3])
        assert status["unwritable"] in str(refused.value)
    said = three[3].rlmm("status")
    assert said.returncode == 1
    assert "nobody leads; hears 3 (voters 1, 2, 3; 2 decide)" in said.stdout
    explained = three[3].rlmm("explain", str(PARTITIONS[1]))
    assert "The quorum takes no writes here" in explained.stdout
    assert "hears of the voters 3, not 1, 2" in " ".join(explained.stdout.split())
    three[1].start()
    write(three[3], 2)
    until(lambda: holds(three[1], {1, 2}), "with a majority they go on")


def test_a_daemon_without_a_vote_reads_its_own_replica_and_writes_through_the_leader(
    three: QuorumDaemons,
) -> None:
    for number in range(6):
        write(three[number % 3 + 1], number)
    observer = three.join(4)
    observer.start()
    until(lambda: holds(observer, set(range(6))), "it has all of it")
    assert three.standing(4)["role"] == "observer"
    write(observer, 6)
    until(lambda: holds(three[1], set(range(7))), "the voters have what it wrote")
    leader = three.leader()
    assert leader is not None
    three[leader].kill()
    write(observer, 7)
    until(lambda: holds(observer, set(range(8))), "it follows the next leader")


def test_a_directory_is_formatted_by_an_operator_only_and_taken_up_without_a_restart(
    tmp_path: Path, forks: ForkServer
) -> None:
    settings = of_one(tmp_path / "another")
    directory = str(tmp_path / "replica")
    settings |= {"event_log.quorum.directory": directory}
    with DaemonProcess(tmp_path, settings, forks) as daemon:
        until(lambda: "rlmm quorum format" in daemon.rlmm("status").stdout, "it says what to do")
        assert not Path(directory).exists()
        with daemon.client() as client, pytest.raises(PartitionFailed, match="quorum format"):
            client.add_remote_log_segment_metadata(segment(1))
        words = ["--cluster-id", CLUSTER, "--node-id", "1", "--standalone", "--execute"]
        listen = str(settings["event_log.quorum.listen"])
        made = daemon.rlmm("quorum", "format", directory, *words, "--listen", listen)
        assert made.returncode == 0, made.stderr
        with daemon.client() as client:
            until(lambda: client.status()["log"]["open"], "it is taken up")
        write(daemon, 1)


def test_another_replicas_directory_ends_the_start(tmp_path: Path, forks: ForkServer) -> None:
    quorum = QuorumProcesses(tmp_path)
    quorum.format(1, 2)
    settings = of_one(tmp_path / "another") | {
        "event_log.quorum.directory": str(quorum[2].directory)
    }
    daemon = DaemonProcess(tmp_path, settings, forks)
    daemon.start()
    assert daemon.ended() == 78
    assert "formatted as replica 2, and this is the daemon of broker 1" in daemon.last_words()


def test_a_side_without_a_majority_that_is_started_anew_waits_and_says_for_whom(
    three: QuorumDaemons,
) -> None:
    """Nobody vouches for what it has until a leader does: it is not ready, which is never empty."""
    write(three[3], 1)
    until(lambda: holds(three[3], {1}), "it is there")
    for each in (1, 2, 3):
        assert three[each].stop() == 0
    three[3].start()
    until(lambda: three.standing(3)["role"] in {"prospective", "candidate"}, "nobody leads")
    with three[3].client(timeout_seconds=10) as client:
        for ask in (
            lambda: client.list_remote_log_segments(PARTITIONS[1]),
            lambda: client.remote_log_segment_metadata(PARTITIONS[1], LeaderEpoch(1), Offset(150)),
        ):
            with pytest.raises(NotReady, match="hears of the voters 3, not 1, 2; 2 of 3 have to"):
                ask()
    explained = " ".join(three[3].rlmm("explain", str(PARTITIONS[1])).stdout.split())
    assert "No look-up is answered before a leader says" in explained
    assert "hears 3 (voters 1, 2, 3; 2 decide)" in three[3].rlmm("status").stdout
    three[1].start()
    until(lambda: holds(three[3], {1}), "with a majority it answers, without another start")
