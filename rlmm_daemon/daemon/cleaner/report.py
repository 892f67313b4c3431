"""The cleaner's report for people: where removals stand, what is stuck, held, and why."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog
from msgspec.structs import replace

from rlmm_daemon.core.disposal.steps import HOLDS, CopyStep, DeleteStep, PartitionStep
from rlmm_daemon.core.explain.facts import LastError, RemovalFacts
from rlmm_daemon.daemon.bucket import acceptance
from rlmm_daemon.daemon.cleaner.cleaner import Cleaner
from rlmm_daemon.daemon.cleaner.observer import Observer
from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, TopicIdPartition, uuid_text

logger = structlog.get_logger(__name__)

#: What every busy partition shows for a while; `explain` says it, `cleanup` does not.
_USUAL: Final = (CopyStep.LIVE, DeleteStep.WAIT)


class Report:
    """Of one cleaner, and of the observer beside it where there is one."""

    def __init__(
        self,
        cleaner: Cleaner,
        *,
        leader_of: Callable[[MetadataPartition], BrokerId | None] = lambda _: None,
        observer: Observer | None = None,
    ) -> None:
        """`leader_of`: whose daemon owns a metadata partition, as far as is known."""
        self.cleaner, self.observer, self._leader_of = cleaner, observer, leader_of
        self._notes, self._manager = cleaner.notes, cleaner.tools.manager

    def told(self, partition: TopicIdPartition) -> RemovalFacts:
        """Return where a user partition stands, for `explain`."""
        note, stuck = self._notes.removals.get(partition), self._notes.stuck.get(partition)
        facts = RemovalFacts(
            copies=dict(stuck.copies) if stuck else {},
            deletes=dict(stuck.deletes) if stuck else {},
            trouble=self._errors().get(partition),
            owner=self._owner_elsewhere(partition),
            observed=None if self.observer is None else self.observer.told(partition.topic_id),
        )
        if note is None:
            return facts
        error = (
            None if note.error is None else LastError(message=note.error, at_ms=note.error_at_ms)
        )
        return replace(
            facts, step=note.step, since_ms=note.since_ms, deleted=note.deleted, error=error
        )

    def _owner_elsewhere(self, partition: TopicIdPartition) -> BrokerId | None:
        number = self.cleaner.number_of(partition)
        return None if number is None or self.cleaner.owns(number) else self._leader_of(number)

    def _errors(self) -> dict[TopicIdPartition, str]:
        stuck = {partition: note.error for partition, note in self._notes.stuck.items()}
        return {**{p: e for p, e in stuck.items() if e is not None}, **self._notes.orders}

    def observation(self) -> dict[str, Any] | None:
        """Return what the observer found; None where it is off, as it is unless configured."""
        return None if self.observer is None else self.observer.rows()

    def rows(self) -> dict[str, Any]:
        """Return what `rlmm cleanup` shows."""
        fleet = self._manager.fleet
        followed = set(fleet.followers)
        return {
            "owned": sorted(number for number in followed if self.cleaner.owns(number)),
            "removals": [self._removal_row(p) for p in sorted(self._notes.removals)],
            "stuck": [
                {"partition": str(partition), "kind": kind, "step": step.value, **_shown(facts)}
                for partition, note in sorted(self._notes.stuck.items())
                for kind, table in (("copy", note.copies), ("delete", note.deletes))
                for step, facts in table.items()
                if step not in _USUAL
            ],
            "errors": [
                {"partition": str(partition), "error": error}
                for partition, error in sorted(self._errors().items())
            ],
            "orders": sorted(self.cleaner.orders),
            "deleted": dict(self._notes.deleted),
            "failures": self._notes.failures,
            "waiting": self.cleaner.waiting,
            "observation": self.observation(),
        }

    def _removal_row(self, partition: TopicIdPartition) -> dict[str, Any]:
        note = self._notes.removals[partition]
        cache = None
        number = self.cleaner.number_of(partition)
        follower = None if number is None else self._manager.fleet.followers.get(number)
        if follower is not None:
            cache = follower.fold.partitions.get(partition)
        return {
            "partition": str(partition),
            "topic_id": uuid_text(partition.topic_id),
            "metadata_partition": number,
            "step": note.step.value,
            "held": note.step in HOLDS,
            "since_ms": note.since_ms,
            "segments_left": 0 if cache is None else len(cache.segments),
            "bytes_left": 0 if cache is None else sum(cache.bytes_by_state),
            "segments_deleted": note.deleted,
            "error": note.error,
        }

    async def held(self, number: int | None) -> list[dict[str, Any]]:
        """Return the holds of one metadata partition, or all, and what is kept as far as is known.

        A hold of every metadata partition is one of each.

        Raises:
            StorageUnavailable: the marker was not read yet.
        """
        holds = await self.cleaner.tools.bucket.holds()
        return [
            {
                "metadata_partition": hold.metadata_partition,
                "before_ms": hold.before_ms,
                "kept": self._kept_by(hold.metadata_partition if number is None else number),
            }
            for hold in holds
            if None in (number, hold.metadata_partition) or number == hold.metadata_partition
        ]

    async def end_holds(self, number: int | None) -> None:
        """End the hold of one metadata partition, or (None) every one."""
        await acceptance.end_holds(
            self.cleaner.tools.bucket, number, cluster_id=None
        )  # the marker was judged as ours
        logger.warning("hold ended by an operator", metadata_partition=number)

    def _kept_by(self, number: int | None) -> list[dict[str, Any]]:
        kept = [
            (partition, kind, facts)
            for partition, note in sorted(self._notes.stuck.items())
            for kind, facts in (
                ("copy", note.copies.get(CopyStep.HOLD)),
                ("delete", note.deletes.get(DeleteStep.HOLD)),
            )
            if number in (None, self.cleaner.number_of(partition))
        ]
        return [
            {"partition": str(partition), "kind": kind, **_shown(facts)}
            for partition, kind, facts in kept
            if facts is not None
        ]

    def holds(self) -> Mapping[PartitionStep, int]:
        """Return how many marked partitions each reason holds up."""
        steps = [note.step for note in self._notes.removals.values()]
        return {step: steps.count(step) for step in HOLDS}


def _shown(facts: Any) -> dict[str, Any]:
    return {
        "segments": facts.count,
        "oldest": facts.oldest_id,
        "oldest_at_ms": facts.oldest_at_ms,
    }
