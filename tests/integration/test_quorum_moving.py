"""A daemon's events from an embedded log into a quorum and back: whole, or killed midway."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rlmm_daemon import config as configuration
from rlmm_daemon.client import Client
from rlmm_daemon.codec import marker
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import LeaderEpoch, MetadataPartition, Offset, TopicIdPartition
from rlmm_daemon.domain.segment import SegmentMetadata
from rlmm_daemon.offline import log_contents
from tests.support import recovery_walk
from tests.support.fork_server import ForkServer
from tests.support.log_moving import COMMITTED, STEPS, copied, copy, planned
from tests.support.quorum_daemons import settings_of_first
from tests.support.quorum_processes import CLUSTER, QuorumProcesses
from tests.support.stocked_daemon import COUNT, Stocked, eventually, make
from tests.unit.daemon.events import TP, of, started

if TYPE_CHECKING:
    import subprocess

pytestmark = pytest.mark.timeout(240)  # a dozen processes, one after another
VOTERS = pytest.mark.parametrize("voters", [(1,), (1, 2, 3)], ids=["of one", "of three"])
ONE = pytest.mark.parametrize("voters", [(1,)], ids=["of one"])
WAYS = pytest.mark.parametrize("kills", [(), STEPS], ids=["whole", "killed at each step"])


@dataclass
class House:
    """A stocked daemon, and a configuration of it for each kind of log."""

    it: Stocked
    home: Path
    #: A configuration whose log is the quorum.
    quorum: str
    replicas: QuorumProcesses

    @property
    def log(self) -> str:
        return str(self.it.log_dir)

    @property
    def to_quorum(self) -> tuple[str, ...]:
        return ("--config", self.quorum, "--from", self.log, "--to", "quorum")

    @property
    def another(self) -> str:
        """The configuration of an embedded log in a directory that is not there yet."""
        return str(self.home / "another.toml")

    @property
    def back(self) -> tuple[str, ...]:
        there = ("--from", "quorum", "--to", str(self.home / "another-log"))
        return ("--config", self.another, "--from-config", self.quorum, *there)

    def start(self, config: str) -> None:
        """Start the daemon with this configuration, and wait until it answers for both."""
        self.it.daemon.config = Path(config)  # type: ignore[attr-defined]  # of one with its own
        self.it.start()
        eventually(
            lambda: {self.it.row(n)["state"] for n in (0, 1)}, lambda told: told == {"ready"}
        )

    def refuses(self, config: str) -> None:
        """Start the daemon with a log that is not the marker's, and stop it again."""
        self.it.daemon.config = Path(config)  # type: ignore[attr-defined]  # of one with its own
        self.it.start()
        eventually(
            lambda: {self.it.row(n)["state"] for n in (0, 1)}, lambda told: told == {"failed"}
        )
        self.stop()

    def stop(self) -> None:
        assert self.it.daemon.stop() == 0

    def answers(self) -> dict[str, object]:
        """Return what look-ups say of every offset, and listings of every partition."""
        found: dict[str, object] = {}
        with self.it.daemon.client() as client:
            for partition in self.it.orders:
                listed = sorted(
                    client.list_remote_log_segments(partition), key=lambda each: each.segment_id
                )
                found[str(partition)] = listed
                ends = {each.end_offset + 1 for each in listed}
                for offset in sorted({each.start_offset for each in listed} | ends):
                    for epoch in sorted({e for s in listed for e in s.segment_leader_epochs}):
                        asked = f"{partition} {epoch} {offset}"
                        found[asked] = _looked_up(client, partition, epoch, offset)
        return found

    def marker(self) -> marker.BucketMarker:
        return marker.decode_marker((self.it.daemon.remote / marker.MARKER_KEY).read_bytes())


def _looked_up(
    client: Client, partition: TopicIdPartition, epoch: int, offset: int
) -> SegmentMetadata | str | None:
    try:
        return client.remote_log_segment_metadata(partition, LeaderEpoch(epoch), Offset(offset))
    except RlmmError as error:
        return error.wire_name()


@pytest.fixture
def house(tmp_path: Path, forks: ForkServer, voters: Sequence[int]) -> Iterator[House]:
    text = recovery_walk.configuration(tmp_path).read_text()
    bare = text.replace("partition_count = 3", "")
    named = {"daemon.cluster_id": CLUSTER}
    another = named | {"event_log.directory": str(tmp_path / "another-log")}
    (tmp_path / "quorum").mkdir()
    with QuorumProcesses(tmp_path / "quorum") as replicas:
        replicas.format(*voters)
        replicas.start(*voters[1:])
        files = {
            "embedded": _toml(text, named),
            "another": _toml(bare, another),
            "quorum": _toml(bare, named | settings_of_first(replicas)),
        }
        for name, content in files.items():
            (tmp_path / f"{name}.toml").write_text(content)
        leave_out = {"event_log.partition_count": None}
        it = make(tmp_path, forks, leave_out, tmp_path / "embedded.toml")
        it.cluster_id = CLUSTER
        try:
            it.daemon.start()
            it.stock()
            yield House(it, tmp_path, str(tmp_path / "quorum.toml"), replicas)
        finally:
            it.daemon.kill()


def _toml(text: str, settings: Mapping[str, object]) -> str:
    overrides = [f"{key}={value}" for key, value in settings.items()]
    config = configuration.parse(text, overrides)
    # Below the daemon's own directory: a socket's path has to be short.
    return configuration.effective_toml(config).replace(config.socket.path, "var/rlmm.sock")


@VOTERS
@WAYS
def test_into_a_quorum_and_back_nothing_is_lost_and_nothing_doubled(
    house: House, kills: Sequence[str]
) -> None:
    it = house.it
    with it.daemon.client() as client:
        first = it.copied(0)[0].metadata
        client.delete_segment(first.partition, first.segment_id)
    before, segments = house.answers(), len(it.acknowledged)
    house.stop()
    names = house.marker().metadata_topic_id

    said = copy(house.home, *house.to_quorum).stdout
    assert "then the state directory and the bucket's marker name it" in said
    assert said.endswith("nothing was done; --execute does it\n")
    dry = planned(house.home, *house.to_quorum)
    events = sum(row["events"] for row in dry)
    assert events >= 2 * segments
    assert [row["missing"] for row in dry] == [row["events"] for row in dry]
    assert not any(row["appended"] or row["target_end"] for row in dry)
    assert house.marker().metadata_topic_id == names
    rows = copied(house.home, *house.to_quorum, kills=[COMMITTED, *kills] if kills else ())
    assert [(row["events"], row["target_end"]) for row in rows] == [
        (row["events"], row["events"]) for row in dry
    ], "each once"
    assert house.marker().metadata_topic_id != names
    assert not any(row["appended"] for row in copied(house.home, *house.to_quorum))
    house.start(house.quorum)
    assert house.answers() == before
    it.serves(1)
    it.copy_new(1)
    after = house.answers()
    house.stop()

    assert copy(house.home, *house.back).returncode == 0
    assert not (house.home / "another-log").exists()
    rows = copied(house.home, *house.back, kills=kills)
    assert sum(row["events"] for row in rows) == events + 2
    assert [row["target_end"] for row in rows] == [row["events"] for row in rows]
    house.start(house.another)
    assert house.answers() == after
    it.serves(1)
    it.copy_new(1, serial=1)


@ONE
def test_a_quorum_of_one_that_a_log_was_copied_to_grows_to_three(house: House) -> None:
    before = house.answers()
    house.stop()
    copied(house.home, *house.to_quorum)
    house.start(house.quorum)
    quorum = house.replicas
    for number in (2, 3):
        quorum.join(number).start([quorum[1].address])
        server = ("--server", quorum[1].address)
        words = ("--node-id", str(number), "--listen", quorum[number].address, *server)
        add = ("add", *words, "--execute")
        eventually(partial(quorum.rlmm, *add), lambda done: done.returncode == 0)
    asked = ("describe", *quorum.asked)
    eventually(lambda: quorum.rlmm(*asked).returncode, lambda code: code == 0)
    assert house.answers() == before
    house.it.copy_new(0)
    with house.it.daemon.client() as client:
        assert client.status()["log"]["quorum"]["voters"] == [1, 2, 3]


@ONE
def test_what_does_not_fit_is_refused_before_anything_is_written(house: House) -> None:
    running = copy(house.home, *house.to_quorum)
    assert running.returncode == 78
    assert "stop the daemon first" in _words(running)
    house.stop()
    names, replica = house.marker(), house.replicas[1].directory
    kept = replica.rename(replica.with_name("kept"))
    for more in ((), ("--execute",)):
        said = copy(house.home, *house.to_quorum, *more)
        assert said.returncode == 1
        assert "is not formatted for a quorum" in _words(said)
        assert not replica.exists()
    kept.rename(replica)
    asyncio.run(_written(house.quorum, [started(1, 0, 9)]))
    for more in ((), ("--execute",)):
        said = copy(house.home, *house.to_quorum, *more)
        assert said.returncode == 1
        assert f"metadata partition {of(TP)} of the target differs from its event 0 on" in _words(
            said
        )
    assert asyncio.run(_written(house.quorum, [])) == {of(TP): 1}
    assert house.marker() == names
    house.start(str(house.home / "embedded.toml"))


def _words(said: "subprocess.CompletedProcess[str]") -> str:
    return " ".join(said.stderr.split())


async def _written(config: str, values: list[bytes]) -> dict[int, int]:
    """Append to the quorum's log; return where its metadata partitions end that hold something."""
    async with log_contents.opened(configuration.load(config), log_contents.QUORUM, COUNT) as log:
        await log_contents.append_all(log, of(TP), values)
        ranges = await log.end_offsets([MetadataPartition(each) for each in range(COUNT)])
    return {number: each.end for number, each in ranges.items() if each.end}


@ONE
def test_a_daemon_with_the_former_configuration_does_not_go_on_with_the_former_log(
    house: House,
) -> None:
    """What it would acknowledge there, the quorum does not have."""
    house.stop()
    copied(house.home, *house.to_quorum)
    house.refuses(str(house.home / "embedded.toml"))


@ONE
def test_a_daemon_that_is_started_on_half_a_copy_serves_nothing_and_spoils_nothing(
    house: House,
) -> None:
    before = house.answers()
    house.stop()
    assert copy(house.home, *house.to_quorum, "--execute", kill=STEPS[1]).returncode < 0
    house.refuses(house.quorum)
    copied(house.home, *house.to_quorum)
    house.start(house.quorum)
    assert house.answers() == before
