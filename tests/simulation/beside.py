"""Another machine in the same world: its own disk and streams of luck, on the loop of the life."""

import random

from tests.simulation.disk import DiskFaults, SimDisk
from tests.simulation.platter import Platter
from tests.simulation.world import Life


class OtherDisk(SimDisk):
    """Its disk, dead when the life of the world is over, or when its own is."""

    def __init__(
        self, platter: Platter, life: Life, rng: random.Random, faults: DiskFaults
    ) -> None:
        self._life, self._down = life, False
        super().__init__(platter, life.loop, rng, faults)

    @property
    def dead(self) -> bool:
        """Whether nothing happens on it any more; set by whoever ends either machine."""
        return self._down or self._life.disk.dead

    @dead.setter
    def dead(self, value: bool) -> None:
        self._down = value


class OtherLife(Life):
    """Its life; what is drawn there shifts nothing of the first machine's."""

    def rng(self, concern: str) -> random.Random:
        return random.Random(f"{self.seed}/{self.number}/other/{concern}")


def beside(life: Life, platter: Platter, *, last: bool) -> OtherLife:
    """Return the life of another machine with that disk; `last`: a calm one."""
    faults = life.swarm.disk.calm() if last else life.swarm.disk
    luck = random.Random(f"{life.seed}/{life.number}/other disk")
    return OtherLife(
        seed=life.seed,
        number=life.number,
        last=last,
        swarm=life.swarm,
        loop=life.loop,
        disk=OtherDisk(platter, life, luck, faults),
        clock=life.clock,
    )


def ended(life: Life, platter: Platter, rng: random.Random) -> None:
    """Do to its disk what the end of its life does, before the next one begins."""
    disk = life.swarm.disk
    if rng.random() < life.swarm.kill_share:
        platter.kill(rng, evict=disk.evict)
    else:
        platter.lose_power(rng, tear=disk.tear, names=disk.names)
