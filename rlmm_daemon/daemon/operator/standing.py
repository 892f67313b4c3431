"""The daemon's standing: status, metadata partitions, why a partition answers as it does."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import asdict, replace

from rlmm_daemon import __version__
from rlmm_daemon.config import Config
from rlmm_daemon.core import phrases
from rlmm_daemon.core.explain.explanation import explain
from rlmm_daemon.core.explain.facts import CopyFailure, RemovalFacts
from rlmm_daemon.core.readiness.states import Failure, PartitionState
from rlmm_daemon.core.storage.pace import slow_words
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.cleaner.report import Report
from rlmm_daemon.daemon.copying.copier import Copier
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.metadata import tally
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.metadata.tally import Tally
from rlmm_daemon.daemon.operator import selector as selectors
from rlmm_daemon.daemon.operator.facts import CopyView, StorageView, collect
from rlmm_daemon.daemon.operator.memory import CopyingProcess, memory
from rlmm_daemon.daemon.process.runtime import Runtime
from rlmm_daemon.domain.ids import MetadataPartition, uuid_text
from rlmm_daemon.domain.segment import SegmentState

#: `explain` answers in whatever state things are; it only gives a follower time to begin.
EXPLAIN_SECONDS: Final = 1.0
#: Metadata partitions whose rows are made in one go.
ROWS_AT_ONCE: Final = 8


class Standing:
    """`base.services.Standing` over a running manager; what is absent is left out of answers."""

    def __init__(
        self,
        manager: Manager,
        *,
        config: Config | None = None,
        copier: Copier | None = None,
        removals: Report | None = None,
        runtime: Runtime | None = None,
        storage: Callable[[], StorageView] | None = None,
        log_facts: Callable[[], Mapping[str, Any]] = dict,
        copying: Callable[[], CopyingProcess] = CopyingProcess,
    ) -> None:
        """`log_facts` are the event log's connections'; `copying` tells of the copies' process.

        Of these facts `controllers` is how following the cluster's controllers stands, `quorum` how
        this daemon's replica does, and `leaderless` why a quorum takes no writes.
        """
        self._manager = manager
        self._config = config
        self._copies = _copies(copier, config)
        self._removals = removals
        self._runtime = runtime
        self._storage = storage or (lambda: StorageView(kind=storage_kind(config)))
        self._log_facts = log_facts
        self._copying = copying
        #: A broker's part -> what its plugin called itself.
        self.plugins: Mapping[str, str] = {}
        #: What the broker has not handed over yet, as `CopyLag.facts`.
        self.copy_lag: Callable[[], dict[str, Any] | None] = lambda: None
        self._started_at = manager.clock.monotonic()

    async def status(self) -> dict[str, Any]:
        """Return what the daemon is and how it stands, in one screen."""
        manager = self._manager
        folds = [follower.fold for follower in manager.followed()]
        counted = await tally.taken(folds, manager.turns)
        return {
            **self.brief(),
            "user_partitions": counted.user_partitions,
            "segments": {
                state.name: counted.segments[state]
                for state in SegmentState
                if state is not SegmentState.DELETE_SEGMENT_FINISHED
            },
            "segment_bytes": counted.finished_bytes,
            "memory": memory(folds, counted, self._copying().pid),
            "copying_process": asdict(self._copying()),
            "observation": self._observation(),
            "tasks": [asdict(task) for task in self._runtime.tasks()] if self._runtime else [],
        }

    def brief(self) -> dict[str, Any]:
        """Return the part of `status` for which no segment is looked at."""
        log_facts = self._log_facts()
        manager, fleet = self._manager, self._manager.fleet
        states = [follower.state for follower in manager.followed()]
        identity, assignment, storage = fleet.identity, manager.assignment, self._storage()
        return {
            "version": __version__,
            "broker_id": self._config and self._config.daemon.broker_id,
            "cluster_id": (identity and identity.cluster_id)
            or (self._config and self._config.daemon.cluster_id),
            "uptime_seconds": round(manager.clock.monotonic() - self._started_at, 3),
            "draining": manager.gates.draining,
            "log": {
                "kind": self._config and event_log_kind(self._config),
                "open": identity is not None,
                "topic_id": identity and uuid_text(identity.topic_id),
                "partition_count": identity and identity.partition_count,
                "trouble": fleet.trouble and fleet.trouble.message,
                "unwritable": self._refusal(log_facts) or log_facts.get("leaderless") or None,
                "quorum": log_facts.get("quorum"),
                "warnings": log_facts.get("warnings", []),
                "connections": log_facts.get("connections"),
                "failure": _failure(fleet.whole_failure, None),
                "compaction": self._compaction(),
            },
            "broker": {
                "announced": assignment.gate_open,
                "leads": assignment.leads,
                "follows": len(assignment.announced) - assignment.leads,
                "plugins": dict(self.plugins),
            },
            "metadata_partitions": {
                state.value: states.count(state) for state in PartitionState if state in states
            },
            "storage": {
                "kind": storage.kind,
                "error": storage.error and storage.error.message,
                "slow": slow_words(storage.answer_seconds),
                "other_daemon": storage.other_daemon and storage.other_daemon.message,
            },
            "paused": {
                "topics": [asdict(each) for each in manager.pauses.rows()],
                "trouble": manager.pauses.trouble,
                "refused": manager.pauses.refused,
            },
            "snapshots": {
                "rejected": manager.snapshots.rejected,
                "failures": manager.snapshotter.failures,
            },
            "copies": [asdict(job) for job in self._copies.jobs()],
            "copy_lag": self.copy_lag(),
            "internal_errors": manager.bugs.facts(),
            "unsettled_copies": [asdict(row) for row in self._copies.unsettled()],
            "controllers": log_facts.get("controllers"),
        }

    def copy_failures(self) -> Mapping[str, CopyFailure]:
        """Return what the last copy of a user partition failed of, the last one last."""
        return self._copies.failures()

    def failure(self, follower: Follower) -> dict[str, Any] | None:
        """Return why a metadata partition failed, and the command that ends it."""
        return _failure(self._manager.fleet.whole_failure or follower.failure, follower.partition)

    def _refusal(self, log_facts: Mapping[str, Any]) -> str:
        """Return why writes are refused for now; empty if they are not."""
        return str(log_facts.get("unwritable") or self._manager.fleet.noted.refusal)

    def _compaction(self) -> dict[str, Any] | None:
        compactor = self._manager.compactor
        return None if compactor is None else asdict(compactor.counts)

    def _observation(self) -> dict[str, Any] | None:
        return None if self._removals is None else self._removals.observation()

    async def partitions(self) -> list[dict[str, Any]]:
        """Return a row for each followed metadata partition."""
        connections = self._log_facts().get("partitions", {})
        rows = list[dict[str, Any]]()
        for follower in self._manager.followed():
            if len(rows) % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                await self._manager.turns.wait()
            counted = await tally.taken([follower.fold], self._manager.turns)
            row = self._row(follower, counted)
            rows.append(row | {"connection": connections.get(follower.partition)})
        return rows

    def _row(self, follower: Follower, counted: Tally) -> dict[str, Any]:
        fold, history, fleet = follower.fold, follower.history, self._manager.fleet
        failure = fleet.whole_failure or follower.failure
        return {
            "metadata_partition": follower.partition,
            "state": PartitionState.FAILED.value if failure else follower.state.value,
            "failure": _failure(failure, follower.partition),
            "position": fold.position,
            "target": follower.confirmation.target,
            "lag": follower.lag,
            "log_start": follower.range.start if follower.range else None,
            "log_end": follower.range.end if follower.range else None,
            "leader_epoch": fold.leader_epoch,
            "silent_seconds": round(follower.silent_seconds, 3),
            "trouble": follower.trouble and follower.trouble.message,
            "announced": self._manager.on_demand.follow_set().announced_count(follower.partition),
            "user_partitions": counted.user_partitions,
            "segments": sum(counted.segments),
            "writes_in_flight": follower.writer.in_flight,
            "snapshot_at_ms": follower.snapshot_at_ms,
            "events_since_snapshot": follower.applied_since_snapshot,
            "missing": history.missing_count,
            "unreadable": dict(fold.unreadable),
            "rejected": dict(fold.rejected),
            "recent": [
                {"kind": kind, "offset": each.offset, "reason": each.reason, "head": each.head_hex}
                for kind, ring in (
                    ("unreadable", fold.unreadable_recent),
                    ("rejected", fold.rejected_recent),
                )
                for each in ring
            ],
        }

    async def explain(
        self, selector: str, epoch: int | None = None, offset: int | None = None
    ) -> dict[str, Any]:
        """Return why a partition answers as it does; answers whatever the state is.

        Raises:
            InvalidArgument: no form of a selector, or it names several partitions.
        """
        manager, removals, partition = self._manager, self._removals, None
        if manager.fleet.follow_set is None:
            selectors.matching(selector, ())
        else:
            partition = selectors.only(selector, await selectors.find(manager, selector))
        if partition is not None:
            await manager.lookups.until_readable(partition, Caller.OPERATOR, EXPLAIN_SECONDS)
        facts = await collect(
            manager,
            selector,
            partition,
            epoch=epoch,
            offset=offset,
            storage=self._storage(),
            copies=self._copies,
            removal=(lambda _: RemovalFacts()) if removals is None else removals.told,
        )
        log_facts = self._log_facts()
        facts = replace(
            facts,
            log_warnings=tuple(log_facts.get("warnings", ())),
            log_refusal=self._refusal(log_facts),
            leaderless=str(log_facts.get("leaderless", "")),
        )
        known = log_facts.get("partitions", {}).get(facts.metadata_partition)
        if known is not None:
            facts = replace(facts, connection=phrases.connection(known))
        return {
            "partition": None if partition is None else str(partition),
            "metadata_partition": facts.metadata_partition,
            "as_of_ms": facts.now_ms,
            **explain(facts).to_dict(),
        }


def _copies(copier: Copier | None, config: Config | None) -> CopyView:
    if copier is None:
        return CopyView()
    if config is None:
        return CopyView(jobs=copier.jobs, failures=copier.failures, unsettled=copier.unsettled)
    return CopyView(
        jobs=copier.jobs,
        failures=copier.failures,
        unsettled=copier.unsettled,
        deadline_seconds=config.copy.deadline_seconds,
    )


def event_log_kind(config: Config) -> str:
    """Return the `kind` of the configured event log."""
    return str(config.event_log.__struct_config__.tag)


def storage_kind(config: Config | None) -> str:
    """Return the `kind` of the configured storage."""
    return "none" if config is None else str(config.storage.__struct_config__.tag)


def _failure(failure: Failure | None, partition: MetadataPartition | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    return {
        "reason": failure.reason.value,
        "evidence": failure.evidence,
        "at_ms": failure.at_ms,
        "command": failure.command(MetadataPartition(0) if partition is None else partition),
    }
