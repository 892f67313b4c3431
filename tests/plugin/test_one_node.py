"""A cluster of one broker whose daemon keeps the metadata in that broker's own topic."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin.conftest import PLUGIN
from tests.plugin.fleet import Fleet, until

COUNT = 3_000
EACH = 250


@pytest.fixture
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
