"""The clock of marks that nobody asked for: topic ids that every broker has long called unknown.

A topic id is due once it was unknown in every look for a whole grace period, having been seen alive
in this cluster before. Anything odd starts the clock over: a look that failed or was partial, other
controllers or cluster ids, an event of that id, a directory of it on the broker's disks. What looks
like a disaster (many ids unknown at once) marks nothing at all, and beyond an hourly cap a person
has to say so: `rlmm purge`.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from rlmm_daemon.domain.ids import TopicId

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationOptions:
    """Bounds on what is marked unasked."""

    grace_ms: int = 24 * HOUR_MS
    #: More than this part of the known ids unknown at once: marks nothing.
    unknown_share_max: float = 0.1
    #: Per hour; beyond either, it takes a person.
    topics_max: int = 3
    bytes_share_max: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One complete look at the cluster: every live broker answered about every id asked for."""

    #: Of a clock that never goes back.
    at_ms: int
    cluster_id: str
    controller_id: int
    #: Live brokers that answered, each with this cluster id; and how many are registered.
    answers: int
    registered: int
    #: Ids that were asked about, and those that every one of them calls unknown.
    asked: frozenset[TopicId]
    unknown: frozenset[TopicId]
    #: Ids that a directory below the broker's `log_dirs` carries in its `partition.metadata`.
    on_disk: frozenset[TopicId]
    #: Id -> how many events of it were applied since this daemon's start.
    events: Mapping[TopicId, int]
    #: Id -> bytes of its live segments.
    size_bytes: Mapping[TopicId, int]


@dataclass(slots=True)
class _Suspect:
    since_ms: int
    events: int


@dataclass(slots=True)
class Observation:
    """What the looks so far amount to; in memory only, so a restart starts every clock over."""

    options: ObservationOptions = field(default_factory=ObservationOptions)
    #: Ids seen alive in the present cluster.
    seen: set[TopicId] = field(default_factory=set)
    #: Due, but over the cap: only `rlmm purge` marks them.
    for_purge: set[TopicId] = field(default_factory=set)
    _suspects: dict[TopicId, _Suspect] = field(default_factory=dict)
    _marked: deque[tuple[int, int]] = field(default_factory=deque)
    _cluster_id: str | None = None
    _controller_id: int | None = None

    def failed(self) -> None:
        """A look failed or was partial: every clock starts over."""
        self._suspects.clear()

    def unknown_since(self, topic_id: TopicId) -> int | None:
        """Return when the running clock of an id started."""
        suspect = self._suspects.get(topic_id)
        return None if suspect is None else suspect.since_ms

    def look(self, look: Look) -> list[TopicId]:
        """Take in a look and return the ids that may be marked now."""
        if look.cluster_id != self._cluster_id:
            self.seen.clear()
            self._suspects.clear()
        if look.controller_id != self._controller_id:
            self._suspects.clear()
        self._cluster_id, self._controller_id = look.cluster_id, look.controller_id
        self.seen |= look.asked - look.unknown
        if not look.answers or (look.answers == 1 and look.registered != 1):
            self._suspects.clear()
            return []
        self._run_clocks(look)
        if len(look.unknown) > self.options.unknown_share_max * len(look.asked):
            return []
        return self._within_cap(look, self._due(look))

    def _run_clocks(self, look: Look) -> None:
        doubtful = (look.unknown & self.seen) - look.on_disk
        for topic_id in [each for each in self._suspects if each not in doubtful]:
            del self._suspects[topic_id]
        for topic_id in doubtful:
            events = look.events.get(topic_id, 0)
            suspect = self._suspects.get(topic_id)
            if suspect is None or suspect.events != events:
                self._suspects[topic_id] = _Suspect(look.at_ms, events)

    def _due(self, look: Look) -> list[TopicId]:
        return sorted(
            topic_id
            for topic_id, suspect in self._suspects.items()
            if look.at_ms - suspect.since_ms >= self.options.grace_ms
            and topic_id not in self.for_purge
        )

    def _within_cap(self, look: Look, due: list[TopicId]) -> list[TopicId]:
        while self._marked and look.at_ms - self._marked[0][0] >= HOUR_MS:
            self._marked.popleft()
        bytes_max = self.options.bytes_share_max * sum(look.size_bytes.values())
        marks = []
        for topic_id in due:
            size = look.size_bytes.get(topic_id, 0)
            spent = sum(each for _, each in self._marked)
            if len(self._marked) < self.options.topics_max and spent + size <= bytes_max:
                self._marked.append((look.at_ms, size))
                del self._suspects[topic_id]
                marks.append(topic_id)
            else:
                self.for_purge.add(topic_id)
        return marks
