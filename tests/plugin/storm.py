"""SIGKILL of daemons, brokers and the way to S3, under load: nothing is lost, doubled or reset.

Consumers that begin at offset 0 while somebody is gone, and one at the end, see every acknowledged
record once, in order, byte for byte, and never have to reset; in the end the storage holds exactly
what the log says.
"""

import enum
import random
from collections.abc import Sequence
from typing import Final

from rlmm_daemon.domain.ids import TopicId, TopicIdPartition, uuid_bytes, uuid_text
from rlmm_daemon.domain.segment import SegmentState
from tests.plugin.fleet import Fleet, until
from tests.plugin.tiers import S3Tier

PARTITIONS = 3
SIZE = 1000
#: A segment of 1 MiB is full every three seconds in each partition.
PER_SECOND = 1_000
#: What every segment of a topic without transactions has.
KINDS: Final = (".log", ".index", ".timeindex", ".snapshot", ".leader_epoch_checkpoint")
#: They read until the JVM ends.
FOLLOWERS_MAX: Final = 3


def acknowledged(fleet: Fleet) -> list[int]:
    state = fleet.probe.ask("load_state")
    assert state["failed"] == 0, f"{state['failed']} writes were given up: {state['failure']}"
    return list(state["acknowledged"])


def await_more(fleet: Fleet, count: int, what: str) -> None:
    """Wait until so many more records of each partition are acknowledged."""
    goals = [each + count for each in acknowledged(fleet)]
    until(
        lambda: all(now >= goal for now, goal in zip(acknowledged(fleet), goals, strict=True)),
        f"writing goes on: {what}",
    )


def stem(name: str) -> str:
    """Return an object's name without its kind: that of its segment."""
    directory, _, file = name.rpartition("/")
    return f"{directory}/{file.partition('.')[0]}"


def listed(
    fleet: Fleet, topic: str, topic_id: str, partitions: int = PARTITIONS, by: int = 1
) -> dict[str, SegmentState]:
    """Return what the log of the metadata knows, by what its objects' names begin with."""
    found = {}
    with fleet.daemons[by].client() as client:
        for number in range(partitions):
            partition = TopicIdPartition(TopicId(uuid_bytes(topic_id)), topic, number)
            for each in client.list_remote_log_segments(partition):
                name = f"{each.start_offset:020d}-{uuid_text(each.segment_id)}"
                found[f"{topic}-{number}-{topic_id}/{name}"] = each.state
    return found


def rolled_back(fleet: Fleet, topic: str, known: dict[str, SegmentState]) -> bool:
    """Return whether no object is left of any copy that was given up."""
    given_up = {
        name for name, state in known.items() if state is SegmentState.DELETE_SEGMENT_STARTED
    }
    stored = {stem(f"{path.parent.name}/{path.name}") for path in fleet.stored(topic)}
    return given_up.isdisjoint(stored)


def require_agreement(fleet: Fleet, topic: str, known: dict[str, SegmentState]) -> None:
    """The storage holds what the log promises, and nothing that the log does not know."""
    stored = {f"{path.parent.name}/{path.name}" for path in fleet.stored(topic)}
    finished = {
        name for name, state in known.items() if state is SegmentState.COPY_SEGMENT_FINISHED
    }
    promised = {f"{name}{kind}" for name in finished for kind in KINDS}
    assert promised <= stored, f"missing, and promised by the log: {promised - stored}"
    # A copy that died with its broker is left to retention, in Kafka too; but the log knows it.
    strangers = {name for name in stored if stem(name) not in known}
    assert not strangers, f"objects that no log knows: {strangers}"


class Followers:
    """Consumers that begin at offset 0 while somebody is gone, and may not reset; a few of them.

    Whoever is the newest is looked at: none of them ends before the fleet does.
    """

    def __init__(self, fleet: Fleet, topic: str, rounds: int) -> None:
        self._fleet, self._topic = fleet, topic
        self._every = -(-rounds // FOLLOWERS_MAX)

    def another(self, number: int) -> None:
        """Let one begin, in some of the rounds."""
        if number % self._every == 0:
            self._fleet.probe.ask("load_follow", topic=self._topic, partitions=PARTITIONS)

    def until_read(self, count: int, what: str) -> None:
        """Wait until the newest has read so many records, each of them the next one.

        It may take as long as it reads on: a late one begins with gigabytes, all of them remote.
        """
        read = self._read(what)
        while read < count:
            before = read

            def reads_on(before: int = before) -> bool:
                return self._read(what) > before

            until(reads_on, f"{what}: a consumer at {before} of {count} records reads on")
            read = self._read(what)

    def _read(self, what: str) -> int:
        told = self._fleet.probe.ask("load_followed")
        assert not told["failure"], f"{what}: the consumer ended: {told['failure']}"
        assert told["wrong"] == 0, f"{what}: {told['wrong']} records were not the next ones"
        return int(sum(told["read"]))


def end_of(fleet: Fleet, topic: str, partition: int, which: str) -> int:
    answer = fleet.probe.ask("offset", topic=topic, partition=partition, which=which)
    return int(answer["offset"])


def settled(fleet: Fleet, topic: str) -> bool:
    """Return whether everything is tiered and deleted locally where it is led."""
    return all(
        end_of(fleet, topic, each, "earliest-local") == end_of(fleet, topic, each, "latest") > 0
        for each in range(PARTITIONS)
    )


class Fault(enum.Enum):
    """Whom a round kills."""

    DAEMON = enum.auto()
    BOTH = enum.auto()
    BROKER = enum.auto()
    #: What stands between all daemons and their S3 server.
    PROXY = enum.auto()


PROCESSES: Final = (Fault.DAEMON, Fault.BOTH, Fault.BROKER)


def strike(fleet: Fleet, fault: Fault, victim: int) -> None:
    """SIGKILL of one process, or of a broker and its daemon."""
    if fault is Fault.PROXY:
        assert isinstance(fleet.tier, S3Tier)
        fleet.tier.proxy.kill()
    if fault in {Fault.DAEMON, Fault.BOTH}:
        fleet.daemons[victim].kill()
    if fault in {Fault.BROKER, Fault.BOTH}:
        fleet.cluster.kill(victim)


def storm(
    fleet: Fleet, topic: str, rounds: int, seed: int, faults: Sequence[Fault] = PROCESSES
) -> None:
    """Let one fault after the other strike in the middle of the load."""
    luck = random.Random(seed)
    followed = Followers(fleet, topic, rounds)
    placement = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    topic_id = fleet.create(topic, *placement, min_insync_replicas=2)
    fleet.probe.ask(
        "load_start", topic=topic, partitions=PARTITIONS, size=SIZE, per_second=PER_SECOND
    )
    await_more(fleet, 500, "before the first fault")
    for number in range(rounds):
        victim = luck.choice(list(fleet.daemons))
        fault = faults[number % len(faults)]
        what = f"round {number}, {fault.name} {victim}"
        strike(fleet, fault, victim)
        followed.another(number)
        await_more(fleet, luck.randrange(200, 1500), f"{what} is gone")
        fleet.heal()
        await_more(fleet, luck.randrange(200, 1500), f"{what} is back")
        followed.until_read(sum(acknowledged(fleet)), what)
    assert not fleet.probe.ask("load_stop")["running"], "the last writes were acknowledged"
    total = sum(acknowledged(fleet))
    followed.until_read(total, "the end")
    until(lambda: settled(fleet, topic), "everything is tiered")
    found = fleet.probe.ask("load_check", topic=topic)
    assert found == {"read": total, "missing": 0, "twice": 0, "wrong": 0, "disordered": 0}
    for each in range(PARTITIONS):
        assert end_of(fleet, topic, each, "earliest") == 0
    # The broker repeats what is oldest only, behind it that is for the daemon's cleaner; whose
    # DELETE_SEGMENT_FINISHED waits until no copy of that segment can be alive any more.
    until(
        lambda: rolled_back(fleet, topic, listed(fleet, topic, topic_id)),
        "copies that were given up are gone",
    )
    require_agreement(fleet, topic, listed(fleet, topic, topic_id))
    fleet.delete(topic)
    until(lambda: not fleet.stored(topic), "the storage is empty")
