"""Kafka's own tests of tiered storage while the daemons beside its brokers are killed.

A topic's deletion is what a broker asks for once, and beside another storage manager there is no
cleaner: what it does not get through stays.
"""

import random
import time
from pathlib import Path

import pytest

from tests.plugin.conftest import PLUGIN
from tests.plugin.own import OwnTest, own_test

#: Of a daemon between two kills: it is often not ready before the second.
UP_SECONDS_MAX = 0.6


def kill_again_and_again(test: OwnTest, luck: random.Random) -> int:
    """Kill every daemon and start it at once, as systemd does, until the test ends."""
    kills = 0
    while test.runs():
        for daemon in luck.sample(test.daemons, k=luck.randint(1, len(test.daemons))):
            daemon.kill()
            kills += 1
        for daemon in test.daemons:
            if daemon.process is None:
                daemon.start()
        time.sleep(luck.uniform(0, UP_SECONDS_MAX))
    return kills


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_deleted_topic_leaves_nothing_while_the_daemons_are_killed_again_and_again(
    tmp_path: Path, seed: int
) -> None:
    with own_test(tmp_path, PLUGIN, "DeleteTopicTest") as test:
        test.until_it_deletes()
        kills = kill_again_and_again(test, random.Random(seed))
        assert test.passed(), test.said()
    assert kills
