"""The daemon of another broker on the same Kafka log, and the scenario of one seed."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Final

from tests.simulation.beside import beside, ended
from tests.simulation.kafka.chaos import ClusterFaults
from tests.simulation.kafka.cluster import Cluster
from tests.simulation.kafka.given import Given
from tests.simulation.kafka.scenario import KafkaScenario
from tests.simulation.kafka.tapped import TOPIC
from tests.simulation.platter import Platter
from tests.simulation.swarm import Swarm
from tests.simulation.world import Life

#: How many seeds have one, and where its segments' offsets begin.
PEER_SHARE: Final = 0.15
PEER_SERIAL: Final = 1_000_000


@dataclass(slots=True)
class Peer(KafkaScenario):
    """Both write, and follow what both wrote."""

    platter: Platter = field(default_factory=Platter)

    def __post_init__(self) -> None:
        self.given = Given(self.cluster.truth, self._fold_of)
        self.serial = PEER_SERIAL

    async def beside(self, life: Life) -> None:
        """Live beside one life of the first one; the cluster, and what befalls it, are its."""
        rng = random.Random(f"{self.seed}/{life.number}/peer")
        if life.number:
            ended(life, self.platter, rng)
        own = beside(life, self.platter, last=life.last)
        await asyncio.sleep(rng.expovariate(1.0))
        self._begin(own)
        try:
            await self._live(own)
        finally:
            self._manager = None

    async def _strikes(self, life: Life) -> None:
        del life


def scenario(seed: int, swarm: Swarm) -> KafkaScenario:
    """Return the scenario of one seed."""
    cluster = Cluster(random.Random(f"{seed}/cluster"), topic=TOPIC)
    first = KafkaScenario(seed, swarm, ClusterFaults.draw(seed), cluster)
    if random.Random(f"{seed}/peer").random() < PEER_SHARE:
        first.peer = Peer(seed, swarm, first.faults, cluster, name="peer")
        first.peer.chaos, first.peer.taken = first.chaos, first.taken  # each repairs for both
    return first
