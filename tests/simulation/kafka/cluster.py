"""A cluster as its controller and brokers see it: elections, replication, and what gets lost.

Time comes from the loop of the present life; the cluster itself outlives the daemon. Brokers hear
of a change one by one, within `IMAGE_SECONDS`: meanwhile one that led may believe that it does.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tests.simulation.kafka.replica import Batch, Replica
from tests.simulation.kafka.truth import Truth

#: Until every broker has heard of a change.
IMAGE_SECONDS: Final = 0.5
#: Between an append at the leader and its copy at a follower.
REPLICATION_SECONDS: Final = 0.01
#: A follower that is away for so long leaves the set in sync.
LAG_SECONDS: Final = 2.0
HOST: Final = "simulated"
PORT: Final = 9000
NOBODY: Final = -1


@dataclass(frozen=True, slots=True)
class Led:
    """Who leads a partition, in which epoch, with whom in sync."""

    leader: int
    epoch: int
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Image:
    """The topic as the controller has it; no id: it is not there."""

    topic_id: bytes | None
    partitions: tuple[Led, ...] = ()


@dataclass(slots=True, eq=False)
class Node:
    """A broker: what it knows, what it stores."""

    number: int
    alive: bool = True
    #: Its process is stopped, or cut off from everybody: it answers nothing.
    frozen: bool = False
    version: int = 0
    #: (topic id, partition) -> its copy.
    replicas: dict[tuple[bytes, int], Replica] = field(default_factory=dict)

    @property
    def port(self) -> int:
        return PORT + self.number

    @property
    def works(self) -> bool:
        return self.alive and not self.frozen


class Cluster:
    """Three brokers and one topic."""

    def __init__(self, rng: random.Random, *, topic: str, brokers: int = 3) -> None:
        self.topic = topic
        self.rng = rng
        self.truth = Truth()
        self.nodes = {number: Node(number) for number in range(1, brokers + 1)}
        self.images: list[Image] = [Image(None)]
        self.settings = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        #: (partition, node): holds a copy that no longer grows.
        self.laggards: set[tuple[int, int]] = set()
        self.producers = 0
        self.topics = 0
        #: (broker, called when something changed there).
        self._watching: dict[int, tuple[int, Callable[[], object]]] = {}
        self._watchers = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._clock: Callable[[], float] = lambda: 0.0
        self._arm: Callable[[float, Callable[[], None]], object] | None = None
        self._replicating: set[int] = set()
        self._ahead = 0.0

    # -- time --

    def attach(
        self,
        clock: Callable[[], float],
        arm: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """Go on by the loop of a new life."""
        self._clock, self._arm = clock, arm
        self._watching.clear()
        for when, _, _ in self._due:
            arm(when, partial(self._run_due, when))

    def now(self) -> float:
        """Return the virtual time: the loop's, or what passes unseen while things settle."""
        return self._clock() + self._ahead

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something later, in this life of the daemon or another."""
        self._sequence += 1
        when = self.now() + seconds
        heapq.heappush(self._due, (when, self._sequence, act))
        if self._arm is not None:
            self._arm(when, partial(self._run_due, when))

    def _run_due(self, due: float) -> None:
        """Do what is due; a coarse timer may come before its time."""
        while self._due and self._due[0][0] <= max(due, self.now()):
            heapq.heappop(self._due)[2]()

    def settle(self) -> None:
        """Let everything happen that is under way, as if time passed while nobody looks."""
        for _ in range(10_000):
            if not self._due:
                self._ahead = 0.0
                return
            when, _, act = heapq.heappop(self._due)
            self._ahead = max(self._ahead, when - self._clock())
            act()
        raise AssertionError("the cluster never comes to rest")

    # -- whoever waits at a broker --

    def watch(self, node: int, act: Callable[[], object]) -> int:
        """Call `act` whenever something changed at a broker; returns what `unwatch` wants."""
        self._watchers += 1
        self._watching[self._watchers] = (node, act)
        return self._watchers

    def unwatch(self, number: int) -> bool:
        """Call no more; True if it was still to be called."""
        return self._watching.pop(number, None) is not None

    def _wake(self, node: int) -> None:
        for number, (where, act) in list(self._watching.items()):
            if where == node and number in self._watching and self.nodes[node].works:
                act()

    # -- the controller --

    @property
    def image(self) -> Image:
        """The topic as it is."""
        return self.images[-1]

    def seen_by(self, node: int) -> Image:
        """Return the topic as one broker has heard of it."""
        return self.images[self.nodes[node].version]

    def _publish(self, image: Image) -> None:
        self.images.append(image)
        version = len(self.images) - 1
        for node in self.nodes.values():
            delay = self.rng.expovariate(1 / 0.05) if self.rng.random() < 0.8 else IMAGE_SECONDS
            self.after(min(delay, IMAGE_SECONDS), partial(self._hears, node, version))

    def _hears(self, node: Node, version: int) -> None:
        if not node.works or version <= node.version:
            return  # it hears of the newest when it is back
        before, node.version = self.images[node.version], version
        image = self.images[version]
        if image.topic_id is not None:
            for index, led in enumerate(image.partitions):
                key = (image.topic_id, index)
                replica = node.replicas.setdefault(key, Replica())
                same = before.topic_id == image.topic_id and index < len(before.partitions)
                was = before.partitions[index] if same else None
                if led.leader == node.number and (was is None or was.epoch != led.epoch):
                    replica.lead(led.epoch)
                self._replicate_soon(index)
        self._wake(node.number)

    def create(self, partitions: int) -> None:
        """Create the topic under a new id."""
        self.topics += 1
        topic_id = bytes([0x70, self.topics]) * 8
        numbers = sorted(self.nodes)
        for index in range(partitions):
            self.truth.begin(topic_id, index)
        self._publish(
            Image(
                topic_id,
                tuple(
                    Led(numbers[index % len(numbers)], 0, tuple(numbers))
                    for index in range(partitions)
                ),
            )
        )

    def add_partitions(self, count: int) -> None:
        """Raise the number of partitions, as an administrator may."""
        image, numbers = self.image, sorted(self.nodes)
        assert image.topic_id is not None, "there is a topic"
        added = []
        for index in range(len(image.partitions), len(image.partitions) + count):
            self.truth.begin(image.topic_id, index)
            added.append(Led(numbers[index % len(numbers)], 0, tuple(numbers)))
        self._publish(Image(image.topic_id, (*image.partitions, *added)))

    def delete(self) -> None:
        """Delete the topic."""
        self.truth.delete(self.now())
        self.laggards.clear()
        self._publish(Image(None))

    def _change(self, index: int, led: Led) -> None:
        image = self.image
        rows = list(image.partitions)
        rows[index] = led
        self._publish(Image(image.topic_id, tuple(rows)))

    # -- elections --

    def led(self, index: int) -> Led:
        return self.image.partitions[index]

    def replica(self, index: int, node: int) -> Replica:
        """Return a broker's copy of a partition of the topic that is there."""
        topic_id = self.image.topic_id
        assert topic_id is not None, "there is a topic"
        return self.nodes[node].replicas.setdefault((topic_id, index), Replica())

    def elect(self, index: int, node: int, *, unclean: bool = False) -> None:
        """Make a broker the leader; an unclean election loses what its copy lacks."""
        led = self.led(index)
        replica = self.replica(index, node)
        self.laggards = {each for each in self.laggards if each[0] != index}
        step = self.rng.choice([1, 1, 2])  # epochs are not dense
        in_sync = (node,) if unclean else led.in_sync
        if unclean:
            self.truth.cut(index, self._shared(index, replica), self.now())
            # What the copy has and no consumer saw yet is committed by being all there is.
            replica.lead(led.epoch + step)
            replica.stable = replica.end
            self._commit(index, replica)
        self._change(index, Led(node, led.epoch + step, in_sync))

    def _shared(self, index: int, replica: Replica) -> int:
        """Return up to where a copy has what was committed: it may have led, and gone astray."""
        lineage = self.truth.now(index)
        assert lineage is not None, "there is a topic"
        for batch in replica.batches:
            epochs = lineage.epochs[batch.base : batch.last + 1]
            values = [
                lineage.values[offset]
                for offset, _ in batch.records[: len(epochs)]
                if offset < len(lineage.values)
            ]
            own = [value for _, value in batch.records[: len(values)]]
            if values != own or any(epoch != batch.epoch for epoch in epochs):
                return batch.base
        return replica.end

    def fall_behind(self, index: int, node: int) -> None:
        """A follower stops to copy and leaves the set in sync."""
        led = self.led(index)
        if led.leader in (node, NOBODY):
            return  # only a leader takes a follower out of the set
        self.laggards.add((index, node))
        if node in led.in_sync:
            rest = tuple(each for each in led.in_sync if each != node)
            self._change(index, Led(led.leader, led.epoch, rest))

    def catch_up(self, index: int, node: int) -> None:
        """A follower copies again; it is in sync once it has everything."""
        self.laggards.discard((index, node))
        self._replicate_soon(index)

    # -- brokers that come and go --

    def kill(self, number: int) -> None:
        """A broker's process dies."""
        self.nodes[number].alive = False
        self._wake(number)
        self.after(self.rng.uniform(0.1, LAG_SECONDS), lambda: self._missed(number))

    def freeze(self, number: int) -> None:
        """A broker stops where it stands: nothing is answered, nothing is refused."""
        self.nodes[number].frozen = True
        self.after(LAG_SECONDS, lambda: self._missed(number))

    def revive(self, number: int) -> None:
        """A broker is back, with what was on its disk."""
        node = self.nodes[number]
        node.alive, node.frozen = True, False
        self.after(self.rng.uniform(0, IMAGE_SECONDS), lambda: self._back(node))
        self._wake(number)

    def _back(self, node: Node) -> None:
        if not node.works:
            return
        self._hears(node, len(self.images) - 1)
        for index, led in enumerate(self.image.partitions):
            if led.leader == NOBODY and node.number in led.in_sync:
                self._change(index, Led(node.number, led.epoch + 1, led.in_sync))
            self._replicate_soon(index)

    def _missed(self, number: int) -> None:
        """The controller notes that a broker is away: others lead, and it leaves the set."""
        if self.nodes[number].works:
            return
        for index, led in enumerate(self.image.partitions):
            rest = tuple(each for each in led.in_sync if each != number)
            if led.leader != number:
                if number in led.in_sync and rest:
                    self._change(index, Led(led.leader, led.epoch, rest))
                continue
            candidates = [each for each in rest if self.nodes[each].works]
            if candidates:
                self._change(index, Led(candidates[0], led.epoch + 1, rest))
            else:
                self._change(index, Led(NOBODY, led.epoch + 1, led.in_sync))

    # -- replication --

    def _replicate_soon(self, index: int) -> None:
        if index not in self._replicating:
            self._replicating.add(index)
            self.after(
                self.rng.expovariate(1 / REPLICATION_SECONDS), lambda: self._replicate(index)
            )

    def leads(self, number: int, index: int) -> Led | None:
        """Return in which epoch a broker believes to lead a partition, None if it does not."""
        image = self.seen_by(number)
        if image.topic_id is None or index >= len(image.partitions):
            return None
        led = image.partitions[index]
        return led if led.leader == number else None

    def appended(self, index: int) -> None:
        """A leader took a batch."""
        self._replicate_soon(index)

    def _replicate(self, index: int) -> None:
        """Followers copy the leader; what all in sync have is committed."""
        self._replicating.discard(index)
        image = self.image
        if image.topic_id is None or index >= len(image.partitions):
            return
        led = image.partitions[index]
        leader = self.nodes.get(led.leader)
        if leader is None or not leader.works or self.leads(led.leader, index) != led:
            return  # it comes again when the leader has heard, or another one was elected
        source = self.replica(index, led.leader)
        joined = list(led.in_sync)
        behind = False
        for number in sorted(self.nodes):
            node = self.nodes[number]
            away = not node.works or (index, number) in self.laggards
            if number == led.leader or away or self.seen_by(number) != image:
                continue
            copy = self.replica(index, number)
            copy.copy_of(source)
            behind = behind or copy.stable < source.end
            if number not in joined:
                joined.append(number)
        if len(joined) > len(led.in_sync):
            self._change(index, Led(led.leader, led.epoch, tuple(sorted(joined))))
        before = source.stable
        ends = [self.replica(index, number).agreed(source) for number in led.in_sync]
        source.stable = max(before, min(ends))
        if source.stable > before:
            self._commit(index, source)
            self._wake(led.leader)
        if behind:
            self._replicate_soon(index)

    def _commit(self, index: int, leader: Replica) -> None:
        """Write down what consumers may see from now on."""
        lineage = self.truth.now(index)
        assert lineage is not None, "there is a topic"
        for batch in leader.batches:
            if batch.last < len(lineage.values) or batch.last >= leader.stable:
                continue
            self._commit_batch(index, batch, len(lineage.values))

    def _commit_batch(self, index: int, batch: Batch, known: int) -> None:
        rows = dict(batch.records)
        for offset in range(known, batch.last + 1):
            self.truth.commit(index, offset, rows.get(offset), batch.epoch)

    # -- what happens to logs --

    def working_leader(self, index: int) -> Replica | None:
        """Return the copy of a leader that leads and answers now."""
        led = self.led(index)
        node = self.nodes.get(led.leader)
        if node is None or not node.works or self.leads(led.leader, index) != led:
            return None
        return self.replica(index, led.leader)

    def write(self, index: int, data: bytes) -> bool:
        """Another writer appends a batch; False while nobody leads."""
        leader = self.working_leader(index)
        if leader is None:
            return False
        leader.append(data, self.led(index).epoch)
        self.appended(index)
        return True

    def trim(self, index: int, start: int) -> None:
        """Delete what is before an offset, on every copy."""
        self.truth.harmed.add(index)
        for number in self.nodes:
            replica = self.replica(index, number)
            if start <= replica.stable:
                replica.trim(start)

    def compact(self, index: int, gone: set[int], nodes: list[int]) -> None:
        """Take records out on some brokers: each one's cleaner runs when it likes."""
        self.truth.harmed.add(index)
        for number in nodes:
            replica = self.replica(index, number)
            last = replica.batches[-1].base if replica.batches else 0
            replica.compact({offset for offset in gone if offset < min(last, replica.stable)})
