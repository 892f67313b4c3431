"""What `--execute` does: a plan, then under a lease the deletions and the new manifests."""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlmm_daemon.config import Config
from rlmm_daemon.config.reconcile import Safety
from rlmm_daemon.ports.storage import RemoteStorage
from rlmm_daemon.reconcile import control, executing, quarantine, tagging
from rlmm_daemon.reconcile.lease import Holder
from rlmm_daemon.reconcile.quarantine import Entry, Manifest, Plan, Totals
from rlmm_daemon.reconcile.summary import Night


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Carries out what a run condemned, and notes it in the run's summary."""

    daemon: Config
    safety: Safety
    night: Night
    #: Where the audit log goes.
    directory: Path
    now_ms: int
    #: Metadata partition -> where the run's log ended.
    ends: Mapping[int, int]

    def act(self, found: Any, manifests: Mapping[str, Manifest]) -> None:
        """Delete what earlier manifests name and is condemned again, quarantine what is new.

        Raises:
            LeaseHeld: another run is deleting.
        """
        # Those of earlier manifests and as many new ones as a run may take.
        oldest = found.where("condemned").orderBy("modified_ms", "key")
        condemned = [
            quarantine.entry_of(row.asDict()) for row in oldest.take(2 * self.safety.objects_max)
        ]
        totals = Totals(objects=self.night.objects, bytes=self.night.object_bytes)
        plan = quarantine.plan(condemned, manifests, totals, self.safety, self.now_ms)
        self.night.left = plan.left
        if plan.delete or plan.quarantine:
            asyncio.run(self._carry_out(plan))
            keys = [entry.key for entry in plan.quarantine if entry.upload_id is None]
            self.night.tagged = tagging.tag_all(self.daemon, keys, self.night.run)

    async def _carry_out(self, plan: Plan) -> None:
        async with control.opened(self.daemon) as storage:
            lease = Holder(
                storage,
                owner=self.night.run,
                seconds=self.safety.lease_seconds,
                now_ms=_now_ms,
            )
            await lease.acquire()
            with (self.directory / "audit.jsonl").open("a", encoding="utf-8") as audit:

                def note(line: Mapping[str, object]) -> None:
                    audit.write(json.dumps({"at_ms": _now_ms(), **line}) + "\n")
                    audit.flush()

                executor = executing.Executor(
                    self.daemon, storage, lease, safety=self.safety, ends=self.ends, audit=note
                )
                try:
                    await executor.delete(plan.delete)
                    await self._quarantine(storage, plan.quarantine, lease, note)
                finally:
                    self._note_done(executor.done)
                    await lease.release()

    async def _quarantine(
        self,
        storage: RemoteStorage,
        entries: tuple[Entry, ...],
        lease: Holder,
        note: executing.Audit,
    ) -> None:
        await lease.renew()
        made = quarantine.manifests_of(self.night.run, lease.fence, self.now_ms, entries)
        self.night.manifests = await quarantine.write_manifests(storage, made)
        self.night.quarantined = len(entries)
        for entry in entries:
            note({"quarantined": entry.key, "kind": entry.kind, "fence": lease.fence})

    def _note_done(self, done: executing.Done) -> None:
        self.night.deleted, self.night.deleted_bytes = done.deleted, done.deleted_bytes
        self.night.failed, self.night.dropped = done.failed, done.dropped


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
