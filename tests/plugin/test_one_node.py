"""Clusters of one broker whose daemon keeps the metadata in that broker's own topic."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlmm_daemon import __version__
from tests.plugin.conftest import PLUGIN
from tests.plugin.fleet import METADATA_ONLY, Fleet, until

COUNT = 3_000
EACH = 250


#: The broker says so when it lists what it deletes, and when it gives that up.
DELETES = "Deleting the remote log segments task for partition"
GIVES_UP = "Error while stopping the partition"


@pytest.fixture(scope="module")
def one() -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="rlmm-one-", ignore_cleanup_errors=True) as directory:
        fleet = Fleet(Path(directory), PLUGIN, count=1)
        try:
            yield fleet.start()
        finally:
            fleet.end()


def committed(count: int) -> list[list[int]]:
    """Return what `write(transaction=EACH)` commits: of three transactions the last is aborted."""
    return [[at, at + 2 * EACH - 1] for at in range(0, count, 3 * EACH)]


def test_one_broker_tiers_and_finds_everything_again_after_both_were_killed(one: Fleet) -> None:
    """The daemon starts first, as systemd has it: its log is in the broker that waits for it."""
    one.create("alone", [1])
    end = one.write("alone", COUNT, transaction=EACH) + 1
    one.until_tiered("alone", end)
    assert len(one.stored("alone", ".log")) >= 2
    assert one.stored("alone", ".txnindex")
    one.cluster.kill(1)
    one.daemons[1].kill()
    one.heal()
    assert one.offset("alone", "earliest") == 0
    assert one.read("alone").ranges == [[0, COUNT - 1]]
    assert one.read("alone", isolation="read_committed").ranges == committed(COUNT)
    end = one.write("alone", COUNT, first=COUNT) + 1
    one.until_tiered("alone", end)
    assert one.read("alone").ranges == [[0, 2 * COUNT - 1]]
    one.delete("alone")
    until(lambda: not one.stored("alone"), "the storage is empty")


def test_a_segment_that_cannot_be_deleted_stops_no_other_partitions_retention(one: Fleet) -> None:
    """Kafka stops behind it in its own partition, and comes back with every turn."""
    one.create("stuck", [1], [1])
    for partition in (0, 1):
        end = one.write("stuck", 2500, partition=partition) + 1
        until(
            lambda: one.offset("stuck", "latest-tiered", partition=partition) == end - 1,  # noqa: B023 - waited for here
            "all is tiered",
        )
    first = Path(one.stored("stuck-0", ".log")[0])
    aside = first.rename(one.directory / "aside")
    first.mkdir()  # which nobody unlinks
    one.configure("stuck", retention_ms=1000)
    until(lambda: not one.stored("stuck-1"), "the other partition's are gone")
    assert one.stored("stuck-0", ".log")
    first.rmdir()
    aside.rename(first)
    until(lambda: not one.stored("stuck-0"), "and these once that is possible")


@pytest.fixture
def beside_kafkas_storage() -> Iterator[Fleet]:
    """A broker with LocalTieredStorage: no cleaner ends what it leaves."""
    with tempfile.TemporaryDirectory(prefix="rlmm-none-", ignore_cleanup_errors=True) as directory:
        fleet = Fleet(Path(directory), PLUGIN, count=1)
        fleet.compose(1, METADATA_ONLY)
        try:
            yield fleet.start()
        finally:
            fleet.end()


def test_a_deletion_beside_another_storage_outlasts_a_restart_and_what_it_leaves_is_named(
    beside_kafkas_storage: Fleet,
) -> None:
    """The broker lists once. Kafka's own DeleteTopicTest says the same under many kills."""
    fleet = beside_kafkas_storage
    daemon = fleet.daemons[1]
    for topic in ("parting", "left"):
        fleet.create(topic, [1])
        fleet.until_tiered(topic, fleet.write(topic, 1500) + 1)
    daemon.kill()
    fleet.delete("parting")
    until(lambda: DELETES in fleet.log(1), "the broker deletes it")
    daemon.start()
    until(lambda: not fleet.stored("parting"), "the storage is empty")
    until(lambda: daemon.rlmm("cleanup").returncode == 0, "nothing is left")
    assert GIVES_UP not in fleet.log(1)
    daemon.kill()
    fleet.delete("left")
    until(lambda: GIVES_UP in fleet.log(1), "the broker has waited for long enough")
    daemon.start()

    def left() -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(daemon.rlmm("cleanup", "--json").stdout)["left"]
        return found

    until(left, "what is left is named")
    stored = len(fleet.stored("left", ".log"))
    (row,) = left()
    assert (row["topic"], row["gone"], row["segments"]) == ("left", True, stored)
    assert daemon.rlmm("cleanup").returncode == 1


def test_a_broker_asks_again_while_a_topic_is_paused_and_tiers_it_once_it_is_resumed(
    one: Fleet,
) -> None:
    """Nothing of it is begun, so nothing has to be rolled back; what was tiered is read."""
    one.create("paused", [1])
    end = one.write("paused", COUNT) + 1
    one.until_tiered("paused", end)
    began = len(one.stored("paused", ".log"))
    with one.daemons[1].client() as client:
        client.topic_pause("paused", execute=True)
        end = one.write("paused", COUNT, first=COUNT) + 1

        def refused() -> int:
            return int(client.status()["paused"]["refused"])

        until(lambda: refused() >= 3, "the broker has asked again and again")
        segments = [segment.state.name for segment in client.segments("paused-0")]
        assert segments == ["COPY_SEGMENT_FINISHED"] * began, "nothing was begun"
        assert one.read("paused").ranges == [[0, 2 * COUNT - 1]], "from the tier and from the disk"
        client.topic_resume("paused", execute=True)
    one.until_tiered("paused", end)
    assert one.read("paused").ranges == [[0, 2 * COUNT - 1]]


def test_both_managers_say_which_version_they_are(one: Fleet) -> None:
    with one.daemons[1].client() as client:
        plugins = client.status()["broker"]["plugins"]
    assert plugins.keys() == {"metadata", "storage"}
    for name in plugins.values():
        assert name.startswith(f"kafka-plugin {__version__}, Kafka "), name
