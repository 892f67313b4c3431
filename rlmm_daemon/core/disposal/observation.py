"""The clock of marks that nobody asked for: topic ids that every broker has long called unknown.

A topic id is due once it was unknown in every look for a whole grace period, having been seen alive
in this cluster before. Anything odd starts the clock over: a look that failed or was partial,
another controller or cluster id, an event of that id, a directory of it on the broker's disks. What
looks like a disaster (many ids unknown at once) marks nothing at all, and beyond an hourly cap a
person has to say so: `rlmm purge`.
"""

import enum
from collections import deque
from collections.abc import Mapping
from typing import Final

import msgspec

from rlmm_daemon.domain.ids import TopicId

HOUR_MS: Final = 3_600_000
#: Ids that are remembered as seen alive; beyond it none is taken up, so it is never marked.
SEEN_MAX: Final = 100_000


class ObservationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what is marked unasked."""

    grace_ms: int = 24 * HOUR_MS
    #: More than this part of the known ids unknown at once: marks nothing.
    unknown_share_max: float = 0.1
    #: Per hour; beyond either, it takes a person.
    topics_max: int = 3
    bytes_share_max: float = 0.05


class TopicLook(msgspec.Struct, frozen=True, kw_only=True):
    """One complete look at the cluster: every live broker answered about every id asked for."""

    #: Of a clock that never goes back.
    at_ms: int
    cluster_id: str
    #: Who leads the controllers, and in which epoch.
    controller: tuple[int, int]
    #: Live brokers that answered, each with this cluster id; and how many are registered.
    answers: int
    registered: int
    #: Ids that were asked about, and those that every one of them calls unknown.
    asked: frozenset[TopicId]
    unknown: frozenset[TopicId]
    #: Ids that a directory below the broker's `log_dirs` carries in its `partition.metadata`.
    on_disk: frozenset[TopicId]
    #: Id -> how many events of it were read since this daemon's start.
    events: Mapping[TopicId, int]
    #: Id -> bytes of its live segments.
    size_bytes: Mapping[TopicId, int]


class UnknownClock(enum.Enum):
    """How the clock of an id stands that every live broker calls unknown."""

    RUNNING = "clock_runs"
    #: The last look failed or was partial; the next whole one starts it.
    LOOK_FAILED = "look_failed"
    #: One answer of a cluster that has more brokers.
    TOO_FEW = "too_few_brokers"
    NEVER_SEEN = "never_seen_alive"
    ON_DISK = "directory_on_disk"
    #: It runs, and nothing is marked while so many ids are unknown at once.
    TOO_MANY = "too_many_unknown"
    #: It ran out beyond the hourly cap.
    FOR_PURGE = "over_the_cap"


class Watched(msgspec.Struct, frozen=True):
    """One id that every live broker calls unknown."""

    clock: UnknownClock
    #: When its clock started, of the looks' own clock; None: it does not run.
    since_ms: int | None = None


class _Suspect(msgspec.Struct):
    since_ms: int
    events: int


class Observation(msgspec.Struct):
    """What the looks so far amount to; the clocks are in memory, so a restart starts them over."""

    options: ObservationOptions = msgspec.field(default_factory=ObservationOptions)
    #: Ids seen alive in the present cluster, and which cluster that is.
    seen: set[TopicId] = msgspec.field(default_factory=set)
    cluster_id: str | None = None
    #: Due, but over the cap: only `rlmm purge` marks them.
    for_purge: set[TopicId] = msgspec.field(default_factory=set)
    #: What people are told of each id that the last look found unknown.
    watched: dict[TopicId, Watched] = msgspec.field(default_factory=dict)
    _suspects: dict[TopicId, _Suspect] = msgspec.field(default_factory=dict)
    _marked: deque[tuple[int, int]] = msgspec.field(default_factory=deque)
    _controller: tuple[int, int] | None = None

    def failed(self) -> None:
        """A look failed or was partial: every clock starts over."""
        self._suspects.clear()
        self.watched = {
            topic_id: each
            if each.clock is UnknownClock.FOR_PURGE
            else Watched(UnknownClock.LOOK_FAILED)
            for topic_id, each in self.watched.items()
        }

    def stopped(self) -> None:
        """Another daemon marks from now on, or this one does: every clock starts over."""
        self._suspects.clear()
        self.watched = {}

    def alive(self, cluster_id: str, topic_ids: frozenset[TopicId]) -> None:
        """Remember ids that a broker of this cluster knows; those of another one are forgotten."""
        if cluster_id != self.cluster_id:
            self.seen.clear()
            self.for_purge.clear()
            self._suspects.clear()
        self.cluster_id = cluster_id
        room = max(0, SEEN_MAX - len(self.seen))
        self.seen.update(sorted(topic_ids - self.seen)[:room])
        self.for_purge -= topic_ids

    def look(self, look: TopicLook) -> list[TopicId]:
        """Take in a look and return the ids that may be marked now."""
        enough, many = self._take_in(look)
        marks = (
            []
            if many or not enough
            else self._within_cap(look, self._due(look, self.options.grace_ms))
        )
        self._tell(look, enough=enough, many=many, marks=frozenset(marks))
        return marks

    def look_on(self, look: TopicLook) -> None:
        """Take in a look while somebody else marks: what is left over then waits for a person.

        Whoever marks does so soon after the time is up. What is still unmarked an hour later was
        beyond the cap, and stays so when this daemon is the one that marks.
        """
        enough, many = self._take_in(look)
        if enough and not many:
            self.for_purge.update(self._due(look, self.options.grace_ms + HOUR_MS))

    def _take_in(self, look: TopicLook) -> tuple[bool, bool]:
        """Let the clocks run; return whether enough brokers answered, and if too much is gone."""
        self.alive(look.cluster_id, look.asked - look.unknown)
        self.seen &= look.asked
        self.for_purge &= look.asked
        if look.controller != self._controller:
            self._suspects.clear()
        self._controller = look.controller
        enough = look.answers > 1 or look.answers == look.registered == 1
        if enough:
            self._run_clocks(look)
        else:
            self._suspects.clear()
        return enough, len(look.unknown) > self.options.unknown_share_max * len(look.asked)

    def _run_clocks(self, look: TopicLook) -> None:
        doubtful = (look.unknown & self.seen) - look.on_disk
        for topic_id in [each for each in self._suspects if each not in doubtful]:
            del self._suspects[topic_id]
        for topic_id in doubtful:
            events = look.events.get(topic_id, 0)
            suspect = self._suspects.get(topic_id)
            if suspect is None or suspect.events != events:
                self._suspects[topic_id] = _Suspect(look.at_ms, events)

    def _due(self, look: TopicLook, after_ms: int) -> list[TopicId]:
        return sorted(
            topic_id
            for topic_id, suspect in self._suspects.items()
            if look.at_ms - suspect.since_ms >= after_ms and topic_id not in self.for_purge
        )

    def _within_cap(self, look: TopicLook, due: list[TopicId]) -> list[TopicId]:
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

    def _tell(
        self, look: TopicLook, *, enough: bool, many: bool, marks: frozenset[TopicId]
    ) -> None:
        def judged(topic_id: TopicId) -> Watched:
            if topic_id in self.for_purge:
                return Watched(UnknownClock.FOR_PURGE)
            if not enough:
                return Watched(UnknownClock.TOO_FEW)
            if topic_id not in self.seen:
                return Watched(UnknownClock.NEVER_SEEN)
            if topic_id in look.on_disk:
                return Watched(UnknownClock.ON_DISK)
            since_ms = self._suspects[topic_id].since_ms
            return Watched(UnknownClock.TOO_MANY if many else UnknownClock.RUNNING, since_ms)

        self.watched = {topic_id: judged(topic_id) for topic_id in look.unknown - marks}
