"""JSON answers for the page: how it stands, topics, partitions of one, why one answers as it does.

Sums by topic are those that `topics` took last; whatever walks over user partitions does it in
turns of the loop.
"""

import heapq
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from rlmm_daemon.core.readiness.states import PartitionState
from rlmm_daemon.daemon.cleaner.report import Report
from rlmm_daemon.daemon.copying.copier import Copier
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.metadata.user_partitions import user_partitions
from rlmm_daemon.daemon.operator.http_get import Page, Query
from rlmm_daemon.daemon.operator.page.answer import ROWS_MAX, json_page, number_of
from rlmm_daemon.daemon.operator.page.fleet import PeerStanding, own
from rlmm_daemon.daemon.operator.page.wrong import faults
from rlmm_daemon.daemon.operator.selector import exact
from rlmm_daemon.daemon.operator.standing import Standing
from rlmm_daemon.daemon.operator.topics import Topics, TopicSums, topic_of
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import TopicIdPartition, uuid_text
from rlmm_daemon.observability.metrics import Metrics

#: Of each kind.
TROUBLES_MAX: Final = 50
#: Topics that are looked at in one turn.
_AT_ONCE: Final = 256
_TEXT_MAX: Final = 300


class Answers:
    """Of one daemon; what it has none of is left out."""

    def __init__(
        self,
        manager: Manager,
        standing: Standing,
        topics: Topics,
        *,
        copier: Copier,
        metrics: Metrics,
        removals: Report | None = None,
        fetched: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`fetched` tells bytes by topic."""
        self._manager, self._standing, self._topics = manager, standing, topics
        self._copier, self._metrics, self._removals = copier, metrics, removals
        self._fetched = fetched

    def paths(self) -> dict[str, Callable[[Query], Awaitable[Page]]]:
        """Return what answers each path."""
        return {
            "/api/overview": self.overview,
            "/api/topics": self.topics,
            "/api/topic": self.topic,
            "/api/explain": self.explain,
        }

    async def overview(self, _query: Query) -> Page:
        """How the daemon stands, what runs, what is wrong."""
        brief, partitions = self._standing.brief(), await self._followed()
        unsettled, copies = brief.pop("unsettled_copies"), brief.pop("copies")
        return json_page(
            {
                **brief,
                "as_of_ms": self._manager.clock.now_ms(),
                "summed_at_ms": self._topics.taken_at_ms,
                "totals": await self._totals(),
                "copied_bytes": self._copier.bytes_copied,
                "fetched_bytes": sum(self._fetched().values()),
                "copies": sorted(copies, key=lambda job: -job["age_seconds"])[:ROWS_MAX],
                "copies_count": len(copies),
                "partitions": partitions[:ROWS_MAX],
                "caches": self._caches(),
                "requests": self._requests(),
                "troubles": list(self._troubles(unsettled)),
                "wrong": faults(brief, partitions),
            }
        )

    async def _totals(self) -> dict[str, int]:
        sums = self._topics.known()
        totals = {"topics": len(sums), "partitions": 0, "segments": 0, "bytes": 0, "copying": 0}
        for number, each in enumerate(sums, start=1):
            totals["partitions"] += each.partitions
            totals["segments"] += each.finished
            totals["bytes"] += each.finished_bytes
            totals["copying"] += each.started
            if number % _AT_ONCE == 0:
                await self._manager.turns.wait()
        return totals

    async def own(self) -> PeerStanding:
        """Return this daemon's row in a view of several."""
        brief, totals = self._standing.brief(), await self._totals()
        return own(brief, totals, faults(brief, await self._followed()))

    async def _followed(self) -> list[dict[str, Any]]:
        return [row async for row in self._metadata_partitions()]

    async def _metadata_partitions(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield a row for each followed metadata partition, those that are not well first."""
        followed = sorted(
            self._manager.followed(),
            key=lambda each: (each.state is PartitionState.READY, each.partition),
        )
        for number, follower in enumerate(followed, start=1):
            failure = self._standing.failure(follower)
            yield {
                "metadata_partition": follower.partition,
                "state": PartitionState.FAILED.value if failure else follower.state.value,
                "position": follower.fold.position,
                "target": follower.confirmation.target,
                "lag": follower.lag,
                "silent_seconds": round(follower.silent_seconds, 1),
                "user_partitions": len(follower.fold.partitions),
                "snapshot_at_ms": follower.snapshot_at_ms,
                "trouble": follower.trouble and follower.trouble.message,
                "failure": failure,
            }
            if number % _AT_ONCE == 0:
                await self._manager.turns.wait()

    def _caches(self) -> list[dict[str, Any]]:
        reads = self._metrics.reads
        held = _samples(reads.cached)
        return [
            {
                "cache": cache,
                "bytes": held.get((cache,), 0),
                **{
                    outcome: reads.lookups.value(cache, outcome)
                    for outcome in ("hit", "miss", "joined")
                },
            }
            for cache in ("chunk", "index")
        ]

    def _requests(self) -> dict[str, Any]:
        storage = self._metrics.storage
        outcomes = dict[str, float]()
        for (_operation, outcome), count in _samples(storage.requests).items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
        return {
            "outcomes": outcomes,
            "throttled": sum(_samples(storage.throttled).values()),
            "retry_budget": sum(_samples(storage.retry_budget).values()),
            "uploads_left": sum(_samples(storage.uploads_left).values()),
        }

    def _troubles(self, unsettled: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield what went wrong last, of each kind the newest first."""
        failures = self._standing.copy_failures()
        for partition, failed in islice(reversed(list(failures.items())), TROUBLES_MAX):
            yield _trouble("copy failed", partition, failed.message, failed.at_ms)
        for row in islice(reversed(unsettled), TROUBLES_MAX):
            yield _trouble("copy unsettled", row["partition"], row["message"], row["at_ms"])
        if self._removals is None:
            return
        notes = self._removals.cleaner.notes
        for removed, note in islice(notes.removals.items(), TROUBLES_MAX):
            text = f"{note.step.value}{f': {note.error}' if note.error else ''}"
            yield _trouble("being removed", str(removed), text, note.since_ms)
        for holding, stuck in islice(notes.stuck.items(), TROUBLES_MAX):
            if stuck.error is not None:
                yield _trouble("stuck segment", str(holding), stuck.error, None)

    async def topics(self, query: Query) -> Page:
        """The largest topics, of those whose name has what was searched for."""
        search, best, found = query.get("search", "").casefold(), list[TopicSums](), 0
        known = self._topics.known()
        for at in range(0, len(known), _AT_ONCE):
            some = [
                each
                for each in known[at : at + _AT_ONCE]
                if search in each.topic.casefold() or search == uuid_text(each.topic_id).casefold()
            ]
            found += len(some)
            best = heapq.nlargest(ROWS_MAX, (*best, *some), key=_place)
            await self._manager.turns.wait()
        copying, oldest = dict[str, int](), dict[str, float]()
        for job in self._copier.jobs():
            topic = topic_of(job.partition)
            copying[topic] = copying.get(topic, 0) + 1
            oldest[topic] = max(oldest.get(topic, 0.0), job.age_seconds)
        fetched = self._fetched()
        rows = [
            {
                "topic": each.topic,
                "topic_id": uuid_text(each.topic_id),
                "partitions": each.partitions,
                "segments": each.finished,
                "started": each.started,
                "deleting": each.deleting,
                "bytes": each.finished_bytes,
                "marked": each.marked,
                "paused_since_ms": self._manager.pauses.since_ms(each.topic),
                "copies": copying.get(each.topic, 0),
                "oldest_copy_seconds": oldest.get(each.topic),
                "copied_bytes": self._copier.bytes_by_topic.get(each.topic, 0),
                "fetched_bytes": fetched.get(each.topic, 0),
                "failed": self._copier.failed_by_topic.get(each.topic, 0),
            }
            for each in best
        ]
        return json_page(
            {
                "as_of_ms": self._manager.clock.now_ms(),
                "summed_at_ms": self._topics.taken_at_ms,
                "count": len(known),
                "found": found,
                "topics": rows,
            }
        )

    async def topic(self, query: Query) -> Page:
        """User partitions of one topic, by its id."""
        wanted, rows, count = query.get("id", ""), list[dict[str, Any]](), 0
        async for each in user_partitions(self._manager, wanted):
            if uuid_text(each.partition.topic_id) != wanted:
                continue  # a topic whose name is that id
            count += 1
            if len(rows) < ROWS_MAX:
                rows.append(
                    {
                        "topic": each.partition.topic,
                        "partition": each.partition.partition,
                        "selector": f"{wanted}:{each.partition.topic}-{each.partition.partition}",
                        "metadata_partition": each.metadata_partition,
                        "role": each.role,
                        "segments": each.segments,
                        "bytes": each.size_bytes,
                        "delete_state": each.delete_state,
                    }
                )
        status = 200 if rows else 404
        return json_page({"id": wanted, "count": count, "partitions": rows}, status)

    async def explain(self, query: Query) -> Page:
        """Why a user partition, or an offset of it, answers as it does: `rlmm explain`.

        Only of one that this daemon knows: nothing is followed because somebody looks at a page.
        """
        try:
            partition = exact(query.get("partition", "")[:_TEXT_MAX])
            offset = number_of(query.get("offset"))
            if partition is None or not self._knows(partition):
                return json_page({"error": "this daemon knows no such partition"}, 404)
            return json_page(await self._standing.explain(str(partition), None, offset))
        except RlmmError as error:
            return json_page({"error": error.message}, 400)

    def _knows(self, partition: TopicIdPartition) -> bool:
        follow_set = self._manager.fleet.follow_set
        if follow_set is None:
            return False
        follower = self._manager.fleet.followers.get(follow_set.of(partition))
        return follower is not None and (
            partition in follower.fold.partitions or partition in self._manager.assignment.announced
        )


def _place(topic: TopicSums) -> tuple[int, int, str]:
    return topic.finished_bytes, topic.finished, topic.topic


def _trouble(kind: str, partition: str, message: str, at_ms: int | None) -> dict[str, Any]:
    return {"kind": kind, "partition": partition, "message": message[:_TEXT_MAX], "at_ms": at_ms}


def _samples(metric: Any) -> dict[tuple[str, ...], float]:
    (family,) = metric.collect()
    return {
        tuple(sample.labels.values()): sample.value
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
