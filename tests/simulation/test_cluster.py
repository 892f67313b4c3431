"""The simulated cluster, where it alone would keep a partition from coming back."""

import random

from tests.simulation.kafka.cluster import NOBODY, Cluster


def test_the_last_broker_in_sync_leads_again_when_it_is_back():
    cluster = Cluster(random.Random(1), topic="metadata")
    cluster.create(1)
    cluster.settle()
    for number in (2, 3):
        cluster.fall_behind(0, number)
    cluster.settle()
    cluster.kill(1)
    cluster.settle()
    assert cluster.led(0).leader == NOBODY
    cluster.fall_behind(0, 1)
    cluster.revive(1)
    cluster.settle()
    assert cluster.led(0).leader == 1
