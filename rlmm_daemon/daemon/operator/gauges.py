"""Levels for the metrics, read from the rooms a few times a minute rather than at every event."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rlmm_daemon.core.fold.outcome import Applied, Deferred, Outcome, Rejected, Repeated, Unreadable
from rlmm_daemon.core.readiness.states import FailureReason, PartitionState
from rlmm_daemon.daemon.cleaner.notes import Notes
from rlmm_daemon.daemon.cleaner.observer import Observer
from rlmm_daemon.daemon.cleaner.report import Report
from rlmm_daemon.daemon.copying.copier import Copier
from rlmm_daemon.daemon.following.compactor import Counts
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.following.snapshots import WrittenSnapshot
from rlmm_daemon.daemon.metadata import tally
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.operator.copy_lag import CopyLag
from rlmm_daemon.daemon.operator.topics import (
    OTHER,
    TOPICS_AT_ONCE,
    TopicLabels,
    Topics,
    TopicSums,
    topic_of,
)
from rlmm_daemon.daemon.socket.greeting import Role
from rlmm_daemon.daemon.socket.limits import LIMITS, ServerStats
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.domain.segment import SegmentState
from rlmm_daemon.observability.metrics import Metrics
from rlmm_daemon.observability.quorum_metrics import NOBODY
from rlmm_daemon.ports.storage import Traffic

PERIOD_SECONDS: Final = 2.0
#: Of a step, which takes a few tenths of a millisecond.
_FOLLOWERS_AT_ONCE: Final = 16
_SHOWN: Final = tuple(
    state for state in SegmentState if state is not SegmentState.DELETE_SEGMENT_FINISHED
)
_OUTCOMES: Final = {
    Applied: "applied",
    Repeated: "repeated",
    Deferred: "deferred",
    Rejected: "rejected",
    Unreadable: "unreadable",
}


class Gauges:
    """Copies states, lags, counts and limits into the metrics."""

    def __init__(
        self,
        metrics: Metrics,
        manager: Manager,
        copier: Copier,
        stats: ServerStats,
        *,
        log_facts: Callable[[], Mapping[str, Any]] | None = None,
        quorum_facts: Callable[[], Mapping[str, Any]] | None = None,
        traffic: Callable[[], Traffic] | None = None,
        removals: Report | None = None,
        writable: Callable[[], bool] = lambda: True,
        buffered: Callable[[], int] = lambda: 0,
        topics: Topics | None = None,
        topic_labels: TopicLabels | None = None,
        fetched: Callable[[], Mapping[str, int]] = dict,
        lag: CopyLag | None = None,
    ) -> None:
        """`fetched` tells bytes by topic; without `topics` nothing is counted by topic."""
        self._metrics = metrics
        self._manager = manager
        self._copier = copier
        self._stats = stats
        self._log_facts, self._traffic = log_facts, traffic
        self._quorum_facts = quorum_facts
        self._removals = removals
        self._writable, self._buffered = writable, buffered
        self._topics, self._labels = topics, topic_labels or TopicLabels(0)
        self._fetched, self._lag = fetched, lag
        self._log_counts: Counter[str] = Counter()
        self._counted: Counter[object] = Counter()
        self._events: Counter[str] = Counter()
        #: Metadata partitions with a position in the metrics, and whether with a lag too.
        self._positions_shown: dict[str, bool] = {}
        manager.hooks.applied.append(self._applied)
        manager.hooks.copies.append(self._copies)
        manager.hooks.snapshot_written.append(self._snapshot)

    def _applied(self, _partition: MetadataPartition, outcome: Outcome) -> None:
        self._events[_OUTCOMES[type(outcome)]] += 1

    def _copies(self, _partition: MetadataPartition, count: int) -> None:
        self._events[_OUTCOMES[Applied]] += count

    def _snapshot(self, written: WrittenSnapshot) -> None:
        snapshots, partition = self._metrics.snapshots, str(written.metadata_partition)
        snapshots.outcomes.labels("written").inc()
        snapshots.created.labels(partition).set(self._manager.clock.now_ms() / 1000)
        snapshots.size.labels(partition).set(written.bytes)
        snapshots.write.observe(written.seconds)

    async def run(self) -> None:
        """Copy the levels, for ever."""
        while True:
            for _ in self._steps():
                await asyncio.sleep(0)
            for _ in self._segments():
                await asyncio.sleep(0)
            await asyncio.sleep(PERIOD_SECONDS)

    def _steps(self) -> Iterator[None]:
        """Copy the levels once, in steps between which others get a turn."""
        followers = self._manager.followed()
        yield from self._positions(followers)
        self._fold(followers)
        yield
        self._socket()
        yield
        if self._log_facts is not None:
            self._log(self._log_facts())
        if self._quorum_facts is not None:
            self._quorum(self._quorum_facts())
        if self._traffic is not None:
            self._storage(self._traffic())
        if self._removals is not None:
            self._cleaned(self._removals.cleaner.notes)
            if self._removals.observer is not None:
                self._observed(self._removals.observer)
        yield
        jobs = self._copier.jobs()
        self._metrics.storage.copying.set(sum(job.phase != "queued" for job in jobs))
        self._metrics.storage.copies_waiting.set(sum(job.phase == "queued" for job in jobs))
        self._totals()
        pauses = self._manager.pauses
        self._metrics.topics.paused.set(len(pauses.rows()))
        self._metrics.topics.oldest_pause.set(pauses.oldest_seconds)
        self._metrics.topics.refused.inc(self._grown("paused", pauses.refused))
        yield
        if self._topics is not None and self._topics.taken_at_ms is not None:
            yield from self._by_topic(self._topics.known())

    def _by_topic(self, known: Sequence[TopicSums]) -> Iterator[None]:
        metrics, copier, of = self._metrics.topics, self._copier, self._labels.of
        for label in (yield from self._labels.assigning(known)):
            metrics.forget(label)
        segments, sizes, oldest = Counter({OTHER: 0}), Counter[str](), dict[str, float]()
        for at in range(0, len(known), TOPICS_AT_ONCE):
            for each in known[at : at + TOPICS_AT_ONCE]:
                segments[of(each.topic)] += each.finished
                sizes[of(each.topic)] += each.finished_bytes
            yield
        for job in copier.jobs():
            label = of(topic_of(job.partition))
            oldest[label] = max(oldest.get(label, 0.0), job.age_seconds)
        for label in segments:
            metrics.segments.labels(label).set(segments[label])
            metrics.size.labels(label).set(sizes[label])
            metrics.oldest_copy.labels(label).set(oldest.get(label, 0.0))
        if self._lag is not None and self._lag.untold is not None:
            yield from self._behind(self._lag, segments)
        for metric, counts in (
            (metrics.copied, copier.bytes_by_topic),
            (metrics.failed, copier.failed_by_topic),
            (metrics.fetched, self._fetched()),
        ):
            for number, (topic, count) in enumerate(list(counts.items()), start=1):
                metric.labels(of(topic)).inc(self._grown((metric, topic), count))
                if number % TOPICS_AT_ONCE == 0:
                    yield

    def _behind(self, lag: CopyLag, labels: Iterable[str]) -> Iterator[None]:
        metrics = self._metrics.topics
        sums = dict.fromkeys(labels, (0, 0, 0.0))
        for number, (topic, each) in enumerate(lag.known().items(), start=1):
            if number % TOPICS_AT_ONCE == 0:
                yield
            label, seconds = self._labels.of(topic), lag.seconds(each)
            count, size, oldest = sums.get(label, (0, 0, 0.0))
            sums[label] = (count + each.segments, size + each.bytes, max(oldest, seconds))
        for label, (count, size, oldest) in sums.items():
            metrics.lag_segments.labels(label).set(count)
            metrics.lag_bytes.labels(label).set(size)
            metrics.lag_seconds.labels(label).set(oldest)
        yield

    def _cleaned(self, notes: Notes) -> None:
        metrics = self._metrics.cleaner
        for reason, count in notes.deleted.items():
            metrics.deleted.labels(reason).inc(self._grown(("deleted", reason), count))
        metrics.failures.inc(self._grown("cleaner", notes.failures))
        metrics.removals.clear()
        for step, count in Counter(note.step for note in notes.removals.values()).items():
            metrics.removals.labels(step.value).set(count)
        metrics.stuck.clear()
        for (kind, step_name), count in notes.hanging().items():
            metrics.stuck.labels(kind, step_name).set(count)

    def _observed(self, observer: Observer) -> None:
        metrics = self._metrics.cleaner
        metrics.unknown.clear()
        for clock, count in observer.clocks().items():
            metrics.unknown.labels(clock.value).set(count)
        metrics.observed.set((observer.last_look_ms or 0) / 1000)
        metrics.looks_failed.inc(self._grown("looks", observer.failures))
        metrics.marked.inc(self._grown("topics marked", observer.marked))

    def _grown(self, name: object, count: int) -> int:
        """Return by how much a count grew since it was last asked about."""
        grown = count - self._counted[name]
        self._counted[name] = count
        return grown

    def _totals(self) -> None:
        """Take up what the rooms count by themselves."""
        metrics, manager = self._metrics, self._manager
        outcomes = metrics.snapshots.outcomes
        outcomes.labels("failed").inc(self._grown("failed", manager.snapshotter.failures))
        outcomes.labels("rejected").inc(self._grown("rejected", manager.snapshots.rejected))
        if manager.compactor is not None:
            self._compacted(manager.compactor.counts)
        for outcome, count in self._copier.outcomes().items():
            metrics.storage.copies.labels(outcome).inc(self._grown(("copy", outcome), count))
        for outcome, count in self._copier.outcomes_of_roll_backs().items():
            grown = self._grown(("roll back", outcome), count)
            metrics.storage.roll_backs.labels(outcome).inc(grown)
        metrics.storage.copy_bytes.inc(self._grown("copied", self._copier.bytes_copied))

    def _compacted(self, counts: Counts) -> None:
        log = self._metrics.log
        log.compactions.labels("done").inc(self._grown("compacted", counts.done))
        log.compactions.labels("failed").inc(self._grown("not compacted", counts.failed))
        log.compacted_bytes.labels("before").inc(self._grown("before", counts.bytes_before))
        log.compacted_bytes.labels("after").inc(self._grown("after", counts.bytes_after))

    def _segments(self) -> Iterator[None]:
        """Count segments, a few user partitions in each step."""
        counted = yield from tally.steps(each.fold for each in self._manager.followed())
        for state in _SHOWN:
            self._metrics.fold.segments.labels(state.name).set(counted.segments[state])
        self._metrics.fold.segments_bytes.set(counted.finished_bytes)

    def _positions(self, followers: Sequence[Follower]) -> Iterator[None]:
        fold, shown = self._metrics.fold, dict[str, bool]()
        for at, follower in enumerate(followers, start=1):
            while follower.replays:
                fold.replay.observe(follower.replays.popleft())
            partition, lag = str(follower.partition), follower.lag
            fold.next_offset.labels(partition).set(follower.fold.position)
            if lag is not None:
                fold.lag.labels(partition).set(lag)
            elif self._positions_shown.get(partition):
                fold.lag.remove(partition)
            shown[partition] = lag is not None
            if at % _FOLLOWERS_AT_ONCE == 0:
                yield
        # One by one, not cleared before: whoever reads the metrics between two steps finds all.
        for partition in self._positions_shown.keys() - shown.keys():
            fold.next_offset.remove(partition)
            if self._positions_shown[partition]:
                fold.lag.remove(partition)
        self._positions_shown = shown

    def _fold(self, followers: Sequence[Follower]) -> None:
        fold = self._metrics.fold
        states = Counter(follower.state for follower in followers)
        for state in PartitionState:
            fold.partitions.labels(state.value).set(states[state])
        for outcome, count in self._events.items():
            fold.events.labels(outcome).inc(count)
        self._events.clear()
        self._metrics.process.crash_looped.set(
            sum(
                follower.failure is not None and follower.failure.reason is FailureReason.CRASH_LOOP
                for follower in followers
            )
        )
        self._metrics.log.waiters.set(sum(follower.writer.in_flight for follower in followers))
        self._metrics.log.writable.set(self._writable())
        assignment = self._manager.assignment
        fold.announced.labels("leader").set(assignment.leads)
        fold.announced.labels("follower").set(len(assignment.announced) - assignment.leads)

    def _log(self, facts: Mapping[str, Any]) -> None:
        log = self._metrics.log
        log.connections.labels("follow").set(facts["following"])
        log.connections.labels("other").set(facts["connections"] - facts["following"])
        log.warnings.set(len(facts["warnings"]))
        log.followers.clear()
        for state, count in Counter(each["state"] for each in facts["partitions"].values()).items():
            log.followers.labels(state).set(count)
        counts = {"opened": facts["connections_opened"], **facts["errors"]}
        for name, count in counts.items():
            counter = log.connections_opened if name == "opened" else log.errors.labels(name)
            counter.inc(count - self._log_counts[name])
            self._log_counts[name] = count

    def _quorum(self, facts: Mapping[str, Any]) -> None:
        quorum = self._metrics.quorum
        quorum.role.clear()
        quorum.role.labels(facts["role"] or "closed").set(1)
        leader = facts.get("leader")
        quorum.leader.set(NOBODY if leader is None else leader)
        quorum.heard.set(len(facts.get("heard", ())))
        if facts["role"] is not None:
            quorum.epoch.set(facts["epoch"])
            quorum.voters.set(len(facts["voters"]))
            quorum.end.set(facts["end"])
            quorum.committed.set(facts["committed"])

    def _storage(self, traffic: Traffic) -> None:
        storage = self._metrics.storage
        for (operation, outcome), count in traffic.requests.items():
            requests = storage.requests.labels(operation, outcome)
            requests.inc(self._grown(("request", operation, outcome), count))
        for outcome, count in traffic.retries.items():
            storage.retries.labels(outcome).inc(self._grown(("retry", outcome), count))
        storage.throttled.inc(self._grown("throttled", traffic.throttled))
        storage.retry_budget.set(traffic.retry_budget)
        storage.uploads_left.set(traffic.uploads_left)
        storage.answer_seconds.set(traffic.answer_seconds)
        storage.silent.set(traffic.silence is not None)
        for direction, most in traffic.in_flight_max.items():
            storage.requests_max.labels(direction).set(most)
            storage.requests_now.labels(direction).set(traffic.in_flight[direction])

    def _socket(self) -> None:
        socket, stats = self._metrics.socket, self._stats
        socket.in_flight.set(stats.requests_now)
        socket.held_reads.set(stats.held_reads_now)
        socket.buffered.set(self._buffered())
        greeted = 0
        for role in Role:
            greeted += stats.roles[role.value]
            socket.connections.labels(role.value).set(stats.roles[role.value])
        socket.connections.labels("new").set(stats.connections_now - greeted)
        answered = stats.held_reads_answered
        refused = stats.held_reads - answered - stats.held_reads_now
        socket.held.labels("answered").inc(self._grown("held, answered", answered))
        socket.held.labels("refused").inc(self._grown("held, refused", refused))
        for limit, counter in LIMITS.items():
            count = getattr(stats, counter)
            socket.limits.labels(limit).inc(self._grown(limit, count))
        socket.accepted.inc(self._grown("accepted", stats.connections))
        socket.malformed.inc(self._grown("malformed", stats.frames_malformed))
        for where, count in self._manager.bugs.counts.items():
            socket.internal_errors.labels(where).inc(self._grown(("bugs", where), count))
        at_once = stats.requests - stats.requests_now
        for (method, outcome), count in stats.outcomes.items():
            at_once -= count
            socket.requests.count(method, outcome, by=self._grown((method, outcome), count))
        # Counted together: an increment by method would cost them more than it tells.
        socket.requests.count("at once", "ok", by=max(0, self._grown("at once", at_once)))
