"""Shapes of seeds: which faults one has, and how it went."""

import random
from collections import Counter
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a seed is about: each fault is there or not by coin, so that rare ones can meet.

    Rates count faults in two seconds; shares count messages or syncs.
    """

    voters: int
    observers: int
    loss: float
    duplicates: float
    #: How late the second copy of a message may come: after elections, lives, and new disks.
    stale_ms: int
    delay_ms: tuple[int, int]
    sync_ms: tuple[int, int]
    #: Syncs and saves that take 5 s.
    stalls: float
    #: Saves that fail, with which the process ends: what is on the disk then, nobody knows.
    failing_saves: float
    crashes: float
    partitions: float
    pauses: float
    wipes: float
    #: Voters, too, get a new disk: nobody removed them before.
    wipes_voters: bool
    changes: float
    snapshots: float
    #: Pieces are 3 bytes: a big one takes longer than a fetch timeout.
    snapshot_bytes_max: int
    #: Voters listen elsewhere after a restart.
    moves: float
    strangers: float
    resignations: float
    #: Clocks run between 0.7 and 1.4 of what they should, and began at other times.
    drift: bool
    #: Ports of processes that are gone refuse connections; else they are silent.
    refuses: bool
    faults_ms: int
    submits: int
    #: Questions for the committed end, at whoever leads, or believes that it does.
    reads: int = 0

    @classmethod
    def draw(cls, rng: random.Random) -> "Shape":
        """Return the shape of a seed."""
        return cls(
            voters=rng.choice([1, 2, 3, 3, 3, 4, 5]),
            observers=rng.choice([0, 0, 1, 2]),
            loss=rng.choice([0.0, 0.0, 0.02, 0.1, 0.3]),
            duplicates=rng.choice([0.0, 0.0, 0.05, 0.2]),
            stale_ms=rng.choice([0, 50, 3_000, 20_000]),
            delay_ms=rng.choice([(1, 3), (1, 20), (1, 200), (5, 1_500)]),
            sync_ms=rng.choice([(1, 2), (1, 10), (1, 300)]),
            stalls=rng.choice([0.0, 0.0, 0.01]),
            failing_saves=rng.choice([0.0, 0.0, 0.03]),
            crashes=rng.choice([0.0, 0.3, 1.0, 3.0]),
            partitions=rng.choice([0.0, 0.3, 1.0]),
            pauses=rng.choice([0.0, 0.0, 0.3]),
            wipes=rng.choice([0.0, 0.0, 0.5]),
            wipes_voters=rng.random() < 0.3,
            changes=rng.choice([0.0, 0.5, 2.0]),
            snapshots=rng.choice([0.0, 0.5, 2.0]),
            snapshot_bytes_max=rng.choice([20, 20, 2_000]),
            moves=rng.choice([0.0, 0.0, 0.3]),
            strangers=rng.choice([0.0, 0.0, 0.5]),
            resignations=rng.choice([0.0, 0.0, 0.5]),
            drift=rng.random() < 0.3,
            refuses=rng.random() < 0.5,
            faults_ms=rng.choice([5_000, 15_000, 30_000]),
            submits=rng.choice([10, 60, 200]),
        )

    def that_is_read(self) -> "Shape":
        """Return it with clients that read, and quick enough that deposed leaders are asked."""
        return replace(
            self,
            voters=max(3, self.voters),
            loss=min(self.loss, 0.02),
            duplicates=max(self.duplicates, 0.05),
            stale_ms=max(self.stale_ms, 3_000),
            delay_ms=(1, 20),
            sync_ms=(1, 10),
            stalls=0.0,
            failing_saves=0.0,
            changes=min(self.changes, 0.5),
            crashes=min(self.crashes, 0.3),
            reads=400,
        )


@dataclass(slots=True)
class Outcome:
    """How a seed went."""

    seed: int
    events: int = 0
    #: Of all steps: the same seed takes the same.
    trace: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failure: str | None = None
    tail: list[str] = field(default_factory=list)
