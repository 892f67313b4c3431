"""Faults of the cluster, drawn by seed: each kind on or off, so that rare ones can meet.

Every kind can also happen while no daemon runs, between two of its lives.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Final

from tests.simulation.kafka.cluster import NOBODY, Cluster
from tests.simulation.kafka.network import NetworkFaults
from tests.simulation.kafka.replica import control, encoded

#: Makes the events that another broker writes next: metadata partition and values.
Foreign = Callable[[random.Random], tuple[int, list[bytes | None]]]
#: Doings of the cluster while no daemon runs.
OFFLINE_MAX: Final = 12
#: Of the moments at which a daemon begins to follow a partition.
AMBUSH_SHARE: Final = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFaults:
    """Weights of what happens; 0 is never."""

    foreign: int = 4
    moved: int = 0
    died: int = 0
    froze: int = 0
    behind: int = 0
    unclean: int = 0
    trimmed: int = 0
    compacted: int = 0
    control: int = 0
    recreated: int = 0
    grown: int = 0
    #: Virtual seconds between two of them.
    pause_seconds: float = 2.0
    network: NetworkFaults = NetworkFaults()  # noqa: RUF009 - frozen, so sharing one is safe
    #: Brokers before 4.1 name the topic of a Produce request by its name.
    produce_by_id: bool = True
    min_in_sync: int = 1

    @classmethod
    def draw(cls, seed: int) -> "ClusterFaults":
        """Return the faults of `seed`; every draw is made, whatever the coins say."""
        rng = random.Random(f"{seed}/cluster faults")

        def coin(share: float, weight: int) -> int:
            return weight if rng.random() < share else 0

        def rate(share: float, strength: list[float]) -> float:
            drawn = rng.choice(strength)
            return drawn if rng.random() < share else 0.0

        unclean = coin(0.45, 3)
        return cls(
            foreign=rng.choice([2, 6]),
            moved=coin(0.5, 2),
            died=coin(0.3, 1),
            froze=coin(0.2, 1),
            behind=3 if unclean else coin(0.2, 2),
            unclean=unclean,
            trimmed=coin(0.15, 1),
            compacted=coin(0.2, 1),
            control=coin(0.3, 1),
            recreated=coin(0.1, 1),
            grown=coin(0.05, 1),
            pause_seconds=rng.choice([0.3, 2.0, 10.0]),
            network=NetworkFaults(
                delay_seconds=rng.choice([0.0002, 0.002, 0.05]),
                split=rate(0.5, [0.1]),
                cut=rate(0.4, [0.005, 0.05]),
                silence=rate(0.15, [0.002, 0.02]),
                refuse=rate(0.3, [0.05, 0.3]),
            ),
            produce_by_id=rng.random() < 0.8,
        )

    @property
    def harmless(self) -> bool:
        """Whether nothing is drawn that takes committed records away."""
        return not (self.unclean or self.trimmed or self.compacted or self.recreated or self.grown)

    def text(self) -> str:
        """Return the draw in one line."""
        return " ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))


class Chaos:
    """Draws and does what goes wrong."""

    def __init__(self, cluster: Cluster, faults: ClusterFaults, foreign: Foreign) -> None:
        self.cluster = cluster
        self.faults = faults
        self._events = foreign
        self.done: dict[str, int] = {}
        self._kinds: Sequence[str] = (
            "foreign", "moved", "died", "froze", "behind", "unclean", "trimmed", "compacted",
            "control", "recreated", "grown",
        )  # fmt: skip
        #: Told that a broker died: its connections are reset.
        self.on_death: Callable[[int], None] = lambda _: None
        #: Told of each thing, for the trace.
        self.note: Callable[[str], None] = lambda _: None

    def strike(self, rng: random.Random) -> None:
        """Do one thing, if there is a topic to do it to."""
        weights = [getattr(self.faults, kind) for kind in self._kinds]
        kind = rng.choices(self._kinds, weights)[0]
        if self.cluster.image.topic_id is None:
            return
        index = rng.randrange(len(self.cluster.image.partitions))
        if getattr(self, f"_{kind}")(rng, index):
            self.done[kind] = self.done.get(kind, 0) + 1
            truth = self.cluster.truth.now(index)
            ends = "gone" if truth is None else f"holds {len(truth.values)}"
            self.note(f"the cluster: {kind} {index}, which {ends}")

    def offline(self, rng: random.Random) -> None:
        """Let some of it happen while no daemon looks, each to its end."""
        for _ in range(rng.choice([0, 0, 3, OFFLINE_MAX])):
            self.strike(rng)
            self.cluster.settle()

    def ambush(self, rng: random.Random, index: int, position: int) -> None:
        """At the moment at which a daemon follows: its position is cut off and written anew."""
        cluster, image = self.cluster, self.cluster.image
        if rng.random() >= AMBUSH_SHARE or not self.faults.unclean:
            return
        if image.topic_id is None or index >= len(image.partitions):
            return
        led = cluster.led(index)
        others = [n for n, node in cluster.nodes.items() if n != led.leader and node.works]
        if not others or position < 1:
            return
        number = rng.choice(sorted(others))
        replica = cluster.replica(index, number)
        if replica.start > position:
            return  # what the daemon asks for was trimmed
        replica.fall_back(rng.randint(max(replica.start, position - 4), position))
        cluster.elect(index, number, unclean=True)
        epoch = cluster.led(index).epoch
        for _ in range(rng.choice([0, 4, 12])):
            where, values = self._events(rng)
            if where == index:
                replica.append(encoded(values), epoch)
        self.done["ambush"] = self.done.get("ambush", 0) + 1
        self.note(f"the cluster: ambush {index} at {position}, {replica.end} written")

    def calm(self) -> None:
        """Put right what can be: brokers are back, replicas in sync, and the topic is there."""
        cluster = self.cluster
        cluster.settle()
        for node in cluster.nodes.values():
            if not node.works:
                cluster.revive(node.number)
        cluster.settle()
        for index, number in sorted(cluster.laggards):
            cluster.catch_up(index, number)
        cluster.settle()

    # -- the kinds; each returns whether it happened --

    def _foreign(self, rng: random.Random, index: int) -> bool:
        del index
        where, values = self._events(rng)
        if where >= len(self.cluster.image.partitions):
            return False
        if rng.random() < 0.5:
            return self.cluster.write(where, encoded(values))
        return all(self.cluster.write(where, encoded([value])) for value in values)

    def _control(self, _: random.Random, index: int) -> bool:
        return self.cluster.write(index, control())

    def _moved(self, rng: random.Random, index: int) -> bool:
        led = self.cluster.led(index)
        others = [
            each for each in led.in_sync if each != led.leader and self.cluster.nodes[each].works
        ]
        if led.leader == NOBODY or not others:
            return False
        self.cluster.elect(index, rng.choice(others))
        return True

    def _died(self, rng: random.Random, _: int) -> bool:
        return self._away(rng, self.cluster.kill)

    def _froze(self, rng: random.Random, _: int) -> bool:
        return self._away(rng, self.cluster.freeze)

    def _away(self, rng: random.Random, way: Callable[[int], None]) -> bool:
        cluster = self.cluster
        number = rng.choice(sorted(cluster.nodes))
        if not all(node.works for node in cluster.nodes.values()):
            return False
        way(number)
        if not cluster.nodes[number].alive:
            self.on_death(number)
        cluster.after(rng.choice([0.2, 4.0, 15.0]), lambda: cluster.revive(number))
        return True

    def _behind(self, rng: random.Random, index: int) -> bool:
        led = self.cluster.led(index)
        others = [each for each in sorted(self.cluster.nodes) if each != led.leader]
        self.cluster.fall_behind(index, rng.choice(others))
        if rng.random() < 0.1:
            for number in others:
                self.cluster.catch_up(index, number)
        return True

    def _unclean(self, rng: random.Random, index: int) -> bool:
        """Elect whoever is behind; now and then others write on at once, beyond where it was."""
        cluster = self.cluster
        behind = [
            number
            for where, number in sorted(cluster.laggards)
            if where == index and cluster.nodes[number].works
        ]
        if not behind:
            return False
        number = rng.choice(behind)
        cluster.elect(index, number, unclean=True)
        many = rng.choice([0, 0, 1, 6])
        for turn in range(many):
            cluster.after(0.6 + turn * 0.05, lambda: self._overwrite(rng, index))
        return True

    def _overwrite(self, rng: random.Random, index: int) -> None:
        where, values = self._events(rng)
        if where == index and index < len(self.cluster.image.partitions):
            self.cluster.write(index, encoded(values))

    def _trimmed(self, rng: random.Random, index: int) -> bool:
        leader = self.cluster.working_leader(index)
        if leader is None or leader.stable <= leader.start:
            return False
        self.cluster.trim(index, rng.randint(leader.start + 1, leader.stable))
        return True

    def _compacted(self, rng: random.Random, index: int) -> bool:
        leader = self.cluster.working_leader(index)
        if leader is None:
            return False
        offsets = sorted(leader.offsets)
        share = rng.choice([0.1, 0.5, 1.0])
        gone = {offset for offset in offsets if rng.random() < share}
        nodes = sorted(self.cluster.nodes)
        if rng.random() < 0.3:
            nodes = rng.sample(nodes, 1)
        self.cluster.compact(index, gone, nodes)
        return True

    def _recreated(self, rng: random.Random, _: int) -> bool:
        cluster = self.cluster
        count = len(cluster.image.partitions)
        cluster.delete()
        cluster.after(rng.choice([0.01, 1.0, 8.0]), lambda: cluster.create(count))
        return True

    def _grown(self, _: random.Random, index: int) -> bool:
        del index
        if len(self.cluster.image.partitions) > 3:
            return False
        self.cluster.add_partitions(1)
        return True
