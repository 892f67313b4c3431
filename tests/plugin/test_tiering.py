"""Three brokers tier through their daemons, and everything is read back through the tier.

Readers never reset (auto.offset.reset=none) and compare each byte of each record.
"""

import time
from typing import Any

import pytest

from rlmm_daemon.adapters.os.clock import SystemClock
from tests.plugin.fleet import EmbeddedDaemon, Fleet, until
from tests.plugin.storm import listed, require_agreement, rolled_back, storm

COUNT = 4_000
EVERYTHING = [[0, COUNT - 1]]


def not_aborted(first: int, count: int, each: int) -> list[list[int]]:
    """Return the numbers that `write(transaction=each)` commits: every third one is aborted."""
    ranges: list[list[int]] = []
    for index, begin in enumerate(range(first, first + count, each)):
        end = min(begin + each, first + count) - 1
        if index % 3 == 2:
            continue
        if ranges and ranges[-1][1] == begin - 1:
            ranges[-1][1] = end
        else:
            ranges.append([begin, end])
    return ranges


def newest_epochs(fleet: Fleet, topic: str) -> str:
    """Return the leader epochs that the newest segment of the tier was stored with."""
    return fleet.tier.text(fleet.stored(topic, ".leader_epoch_checkpoint")[-1])


def refuses_an_embedded_log(fleet: Fleet, broker_id: int) -> None:
    """A broker that is down needs the same log when it returns, so it counts."""
    ours = fleet.daemons[broker_id]
    ours.kill()
    embedded = EmbeddedDaemon(fleet, broker_id)
    try:
        embedded.start()
        until(
            lambda: f"this cluster has {len(fleet.daemons)} brokers" in fleet.log(broker_id),
            "the plugin counts the broker that is down",
        )
    finally:
        embedded.kill()
    ours.start()


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_what_was_written_is_read_through_the_tier_and_by_timestamp(
    fleet: Fleet, compression: str
) -> None:
    topic = f"plain-{compression}"
    fleet.create(topic, [1, 2, 3])
    base_ms = SystemClock().now_ms() - COUNT
    last = fleet.write(topic, COUNT, compression=compression, base_ms=base_ms)
    fleet.until_tiered(topic, last + 1, brokers=[1, 2, 3])
    logs = fleet.stored(topic, ".log")
    assert len(logs) >= 2
    for suffix in (".index", ".timeindex", ".snapshot", ".leader_epoch_checkpoint"):
        assert len(fleet.stored(topic, suffix)) == len(logs), suffix
    assert fleet.offset(topic, "earliest") == 0
    assert fleet.offset(topic, "latest-tiered") == last
    until(lambda: fleet.offset(topic, "earliest-local") == last + 1, "the broker says so too")
    assert fleet.read(topic).ranges == EVERYTHING
    for number in (1, COUNT // 2, COUNT - 1):
        assert fleet.offset(topic, str(base_ms + number)) == number
        assert fleet.read(topic, timestamp=base_ms + number).ranges == [[number, COUNT - 1]]


def test_aborted_transactions_in_the_tier_stay_aborted(fleet: Fleet) -> None:
    fleet.create("transactions", [2, 3, 1])
    last = fleet.write("transactions", COUNT, transaction=250)
    fleet.until_tiered("transactions", last + 1)
    assert fleet.stored("transactions", ".txnindex")
    assert fleet.read("transactions").ranges == EVERYTHING
    committed = fleet.read("transactions", isolation="read_committed")
    assert committed.ranges == not_aborted(0, COUNT, 250)


def test_a_leader_that_takes_over_serves_what_another_one_tiered(fleet: Fleet) -> None:
    fleet.create("moves", [1, 2, 3])
    end = 0
    for leader in (1, 2, 3):
        fleet.lead_next("moves", leader)
        end = fleet.write("moves", 1500, first=end) + 1
        fleet.until_tiered("moves", end, brokers=[leader])
        assert fleet.read("moves").ranges == [[0, end - 1]]
        assert fleet.offset("moves", "earliest") == 0
    epochs = {fleet.tier.text(path) for path in fleet.stored("moves", ".leader_epoch_checkpoint")}
    assert max(int(text.split()[1]) for text in epochs) >= 3, "one epoch for each leader"


def test_a_killed_leaders_successor_serves_and_tiers_on(fleet: Fleet) -> None:
    fleet.create("killed", [3, 1], min_insync_replicas=1)
    end = fleet.write("killed", 2500) + 1
    fleet.until_tiered("killed", end)
    fleet.cluster.kill(3)
    until(lambda: fleet.leader("killed") == 1, "the follower leads")
    assert fleet.read("killed").ranges == [[0, end - 1]]
    end = fleet.write("killed", 2500, first=end) + 1
    fleet.until_tiered("killed", end, brokers=[1])
    assert fleet.read("killed").ranges == [[0, end - 1]]
    refuses_an_embedded_log(fleet, 1)
    fleet.cluster.start_nodes([3])
    fleet.place("killed", [3, 1])
    assert fleet.read("killed").ranges == [[0, end - 1]]


def test_a_follower_built_from_the_tier_leads_and_serves_everything(fleet: Fleet) -> None:
    """It fetches LEADER_EPOCH and PRODUCER_SNAPSHOT: local data alone would not tell it either."""
    fleet.create("built", [1])
    end = fleet.write("built", COUNT, transaction=500, transactional_id="lasting") + 1
    fleet.until_tiered("built", end, brokers=[1])
    checkpoint = (fleet.cluster.data(1) / "built-0" / "leader-epoch-checkpoint").read_text()
    first_epoch = checkpoint.splitlines()[2]
    fleet.place("built", [2])
    assert fleet.local_start("built", 2) >= end - 1, "it was not built from the leader's log"
    rebuilt = (fleet.cluster.data(2) / "built-0" / "leader-epoch-checkpoint").read_text()
    assert rebuilt.splitlines()[2] == first_epoch
    assert fleet.read("built").ranges == EVERYTHING
    # The producer's state came along: its next transaction goes on where the last one ended.
    more = fleet.write("built", 1500, first=COUNT, transaction=500, transactional_id="lasting") + 1
    fleet.until_tiered("built", more, brokers=[2])
    committed = fleet.read("built", isolation="read_committed").ranges
    expected = not_aborted(0, COUNT, 500)
    expected[-1] = [expected[-1][0], COUNT + 999] if expected[-1][1] == COUNT - 1 else expected[-1]
    assert committed == expected


def test_deleted_records_leave_the_storage(fleet: Fleet) -> None:
    fleet.create("trimmed", [2, 3])
    end = fleet.write("trimmed", COUNT) + 1
    fleet.until_tiered("trimmed", end)
    stored = fleet.stored("trimmed", ".log")
    starts = [int(path.name[:20]) for path in stored]
    before = starts[2] + 10
    fleet.probe.ask("delete_records", topic="trimmed", partition=0, before=before)
    until(
        lambda: [int(path.name[:20]) for path in fleet.stored("trimmed", ".log")] == starts[2:],
        "the segments below the log's start are gone, and no others",
    )
    assert fleet.offset("trimmed", "earliest") == before
    assert fleet.read("trimmed", offset=before).ranges == [[before, end - 1]]


class HeldCopy:
    """A copy of broker 1 that stands still in its middle, its daemon frozen, until `fleet.heal`."""

    LARGE = 24 * 1024 * 1024

    def __init__(self, fleet: Fleet, topic: str) -> None:
        self.fleet, self.topic = fleet, topic
        self.end = 0
        # Kept locally, so that what is read comes from there while the daemon is frozen.
        self.topic_id = fleet.create(topic, [1], segment_bytes=self.LARGE, local_retention_ms=-2)
        for _ in range(5):  # one that is done before it is seen is followed by another
            self.end = fleet.write(topic, self.LARGE // 1000, first=self.end) + 1
            if self._hold():
                return
        raise AssertionError("no copy was met in its middle")

    def _hold(self) -> bool:
        daemon, before = self.fleet.daemons[1], len(self.fleet.stored(self.topic, ".log"))
        with daemon.client() as client:
            until(lambda: self._copies(client.status()), "a copy is under way", every=0.002)
        daemon.freeze()
        if len(self.fleet.stored(self.topic, ".log")) == before:
            return True
        daemon.thaw()
        return False

    def _copies(self, status: dict[str, Any]) -> bool:
        return any(f"{self.topic}-" in str(copy) for copy in status["copies"])

    def until_all_agree(self, by: int) -> None:
        """Storage and log say the same in the end, whatever became of the copy."""

        def agree() -> bool:
            try:
                known = listed(self.fleet, self.topic, self.topic_id, partitions=1, by=by)
                require_agreement(self.fleet, self.topic, known)
            except AssertionError:
                return False
            return rolled_back(self.fleet, self.topic, known)

        until(agree, f"{self.topic}: storage and log agree")


def test_records_that_are_deleted_while_their_segment_is_copied_leave_the_storage(
    fleet: Fleet,
) -> None:
    copy = HeldCopy(fleet, "deleted-meanwhile")
    before = copy.end - 10
    fleet.probe.ask("delete_records", topic=copy.topic, partition=0, before=before)
    fleet.heal()
    end = fleet.write(copy.topic, copy.LARGE // 1000, first=copy.end) + 1
    fleet.configure(copy.topic, local_retention_ms=1000)
    fleet.until_tiered(copy.topic, end)
    until(
        lambda: int(fleet.stored(copy.topic, ".log")[0].name[:20]) > 0,
        "what lies below the log's start is gone",
    )
    copy.until_all_agree(by=1)
    assert fleet.offset(copy.topic, "earliest") == before
    assert fleet.read(copy.topic, offset=before).ranges == [[before, end - 1]]


def test_a_partition_that_moves_away_while_it_is_copied_is_copied_by_its_new_leader(
    fleet: Fleet,
) -> None:
    copy = HeldCopy(fleet, "moved-meanwhile")
    fleet.place(copy.topic, [2])
    fleet.heal()
    fleet.configure(copy.topic, local_retention_ms=1000)
    fleet.until_tiered(copy.topic, copy.end, brokers=[2])
    copy.until_all_agree(by=2)
    assert fleet.offset(copy.topic, "earliest") == 0
    assert fleet.read(copy.topic).ranges == [[0, copy.end - 1]]


def test_retention_by_size_and_by_time_removes_the_oldest(fleet: Fleet) -> None:
    fleet.create("bounded", [3, 1])
    end = fleet.write("bounded", COUNT) + 1
    fleet.until_tiered("bounded", end)
    starts = [int(path.name[:20]) for path in fleet.stored("bounded", ".log")]
    fleet.configure("bounded", retention_bytes=2 * 1024 * 1024)
    until(lambda: fleet.offset("bounded", "earliest") > 0, "the log's start rises")
    start = fleet.offset("bounded", "earliest")
    assert start in starts, "retention cuts between segments"
    until(
        lambda: (
            [int(p.name[:20]) for p in fleet.stored("bounded", ".log")]
            == [each for each in starts if each >= start]
        ),
        "what is stored is what is readable",
    )
    assert fleet.read("bounded", offset=start).ranges == [[start, end - 1]]
    fleet.configure("bounded", retention_ms=1000)
    until(lambda: not fleet.stored("bounded"), "everything is too old")


def test_a_deleted_topic_leaves_nothing_behind(fleet: Fleet) -> None:
    fleet.create("gone", [1, 2, 3])
    end = fleet.write("gone", COUNT) + 1
    fleet.until_tiered("gone", end)
    assert fleet.stored("gone")
    fleet.delete("gone")
    until(lambda: not fleet.stored("gone"), "the storage is empty")
    fleet.create("gone", [2, 1])
    end = fleet.write("gone", 1500) + 1
    fleet.until_tiered("gone", end)
    assert fleet.read("gone").ranges == [[0, end - 1]]
    fleet.delete("gone")
    until(lambda: not fleet.stored("gone"), "the storage is empty again")


def test_without_daemons_local_data_is_served_and_every_task_goes_on_afterwards(
    fleet: Fleet,
) -> None:
    """isReady must not throw: it is called where an exception ends a task until the next election.

    The copy and the expiration task are the leader's, the follower task is the follower's: it
    alone raises what a follower may delete locally.
    """
    fleet.create("outage", [1, 2])
    end = fleet.write("outage", 2500) + 1
    fleet.until_tiered("outage", end, brokers=[1, 2])
    epoch = newest_epochs(fleet, "outage")
    for broker_id in (1, 2):
        fleet.daemons[broker_id].kill()
    more = fleet.write("outage", 2500, first=end) + 1
    assert fleet.read("outage", offset=end).ranges == [[end, more - 1]], "local data is served"
    time.sleep(3)  # several turns of every task meet a daemon that is away
    assert fleet.local_start("outage", 1) <= end, "nothing that is not tiered was deleted"
    for broker_id in (1, 2):
        fleet.daemons[broker_id].start()
    fleet.until_tiered("outage", more, brokers=[1, 2])
    assert newest_epochs(fleet, "outage") == epoch, (
        "the same leader epoch: it was these tasks, not new ones"
    )
    assert fleet.read("outage").ranges == [[0, more - 1]]
    fleet.configure("outage", retention_ms=1000)
    until(lambda: not fleet.stored("outage"), "expiration runs as well")


def test_a_frozen_daemon_does_not_keep_its_broker_from_what_the_controller_says(
    fleet: Fleet,
) -> None:
    """A topic's segments are deleted on the thread that applies all other metadata too."""
    fleet.create("frozen", [1])
    end = fleet.write("frozen", 2500) + 1
    fleet.until_tiered("frozen", end)
    fleet.daemons[1].freeze()
    try:
        fleet.delete("frozen")
        fleet.create("afterwards", [1], remote_storage_enable="false")
        assert fleet.write("afterwards", 10) == 9
    finally:
        fleet.daemons[1].thaw()
    fleet.create("thawed", [1])
    end = fleet.write("thawed", 1500) + 1
    fleet.until_tiered("thawed", end)


@pytest.mark.timeout(600)
def test_kills_under_load_lose_and_double_nothing(fleet: Fleet) -> None:
    storm(fleet, "storm", rounds=3, seed=1)


def test_nothing_that_the_brokers_met_was_a_bug(fleet: Fleet) -> None:
    for broker_id in fleet.daemons:
        said = fleet.log(broker_id)
        for bad in ("met a bug", "NoClassDefFoundError", "ClassCastException"):
            assert bad not in said, said[said.index(bad) - 2000 : said.index(bad) + 2000]
        # A broker that is killed meets these by itself; ours would be in their stack.
        for suspect in ("NullPointerException", "IllegalStateException"):
            for after in said.split(suspect)[1:]:
                stack = after[:1500]
                assert "at rlmm.daemon" not in stack, suspect + stack
