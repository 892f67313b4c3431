"""What one seed is about: each fault kind on or off by coin, so that rare ones can meet.

With all faults always on, a full disk hides every bug behind it.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tests.simulation.disk import DiskFaults
from tests.simulation.loop import Order
from tests.simulation.platter import NameLoss, Tear


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """The drawn shape of a run; printed with every failure."""

    order: Order
    lives: int
    #: A life dies before a step drawn below this.
    crash_span: int
    #: Share of crashes that keep the page cache.
    kill_share: float
    #: Share of lives that are not crashed but end by themselves.
    calm_share: float
    #: Probability that an injected fault brings the crash within a few steps.
    ambush: float
    clients: int
    partitions: int
    #: Requests of one client in one life.
    requests: int
    clock_jumps: int
    coarse_timers: bool
    #: Callers that give up and are cancelled.
    impatience: float
    disk: DiskFaults

    @classmethod
    def draw(cls, seed: int) -> "Swarm":
        """Return the shape of `seed`; every draw is made, whatever the coins say."""
        rng = random.Random(f"{seed}/swarm")
        return cls(
            order=rng.choice(list(Order)),
            lives=rng.randint(2, 6),
            crash_span=rng.choice([40, 100, 200, 400, 1500]),
            kill_share=rng.choice([0.0, 0.3, 0.5, 1.0]),
            calm_share=rng.choice([0.0, 0.2, 0.5]),
            ambush=rng.choice([0.0, 0.0, 0.2, 0.8]),
            clients=rng.randint(1, 6),
            partitions=rng.choice([1, 1, 2, 3]),
            requests=rng.choice([2, 5, 12]),
            clock_jumps=rng.choice([0, 0, 3]),
            coarse_timers=rng.random() < 0.2,
            impatience=rng.choice([0.0, 0.1, 0.4]),
            disk=_draw_disk(rng),
        )

    def without(self, fault: str) -> "Swarm":
        """Return the same shape with one disk fault switched off."""
        return replace(self, disk=self.disk.without(fault))

    def text(self) -> str:
        """Return the draw, one line for the shape and one for the disk."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "disk"}
        disk = {f.name: getattr(self.disk, f.name) for f in fields(self.disk)}
        return f"  {_pairs(own)}\n  disk: {_pairs(disk)}"

    def active_faults(self) -> list[str]:
        """Return the disk faults that this draw switched on."""
        clean = DiskFaults()
        return [
            f.name for f in fields(clean) if getattr(self.disk, f.name) != getattr(clean, f.name)
        ]


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={getattr(value, 'value', value)}" for name, value in values.items())


def _draw_disk(rng: random.Random) -> DiskFaults:
    def coin(share: float, strength: list[float]) -> float:
        drawn = rng.choice(strength)
        return drawn if rng.random() < share else 0.0

    return DiskFaults(
        latency_seconds=rng.choice([0.0001, 0.001, 0.02]),
        stall=coin(0.2, [0.01, 0.05]),
        late=rng.choice([0.0, 0.5, 1.0]),
        short_write=coin(0.3, [0.1, 0.5]),
        no_space=coin(0.2, [0.02, 0.1]),
        full_seconds=rng.choice([0.05, 3.0]),
        write_error=coin(0.2, [0.01, 0.05]),
        sync_error=coin(0.4, [0.02, 0.1, 0.3]),
        directory_sync_error=coin(0.15, [0.05, 0.2]),
        read_error=coin(0.1, [0.02]),
        evict=rng.random() < 0.4,
        tear=rng.choice(list(Tear)),
        names=rng.choice(list(NameLoss)),
    )
