"""Steps of `--execute`, under a lease: plan, delete, write and remove manifests.

A run that is killed leaves each of these done or not done, one object or manifest at a time, and
the next run sees which: what is deleted is in no listing, what is quarantined is in a manifest, and
a manifest that goes names nothing that is there, so that with it or without it the same is planned.
"""

import asyncio
import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import functions

from rlmm_daemon.config import Config
from rlmm_daemon.config.reconcile import Safety
from rlmm_daemon.ports.storage import RemoteStorage
from rlmm_daemon.reconcile import control, storage_time
from rlmm_daemon.reconcile.act import deletions, object_tags, quarantine
from rlmm_daemon.reconcile.act.last_look import LastLook
from rlmm_daemon.reconcile.act.lease import Holder
from rlmm_daemon.reconcile.act.quarantine import (
    CondemnedObject,
    Identity,
    Manifest,
    Name,
    NightPlan,
    Totals,
)
from rlmm_daemon.reconcile.errors import Refused
from rlmm_daemon.reconcile.report.summary import Night
from rlmm_daemon.reconcile.storage_time import Steady
from rlmm_daemon.reconcile.workspace import AUDIT

_NAME: Final = "key string, upload_id string"


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """Carries out what a run condemned, and notes it in the run's summary."""

    daemon: Config
    safety: Safety
    night: Night
    #: Where the audit log goes.
    directory: Path
    now_ms: int
    #: Metadata partition -> where the run's log ended.
    ends: Mapping[int, int]
    #: Since the run began.
    steady: Steady = msgspec.field(default_factory=Steady)

    def act(self, found: Any, objects: Any, manifests: Mapping[str, Manifest]) -> None:
        """Delete what earlier manifests name and is condemned again, quarantine what is new.

        Manifests that have nothing left to name are removed.

        `manifests` as they were when the run began: what is decided, is decided by those of then.
        A guard that speaks against it by now is noted as any other: `Night.refused`.

        Raises:
            LeaseHeld: another run is deleting.
        """
        known = quarantine.standing(manifests, self.safety, self.now_ms)
        spared = quarantine.kept(manifests)
        condemned, beyond = oldest(found, known, spared, 2 * self.safety.objects_max)
        plan = self._plan(condemned, manifests)
        over = quarantine.over(manifests, self.safety, self.night.listed_at_ms)
        settled = quarantine.settled(over, listed(objects, over)) if over else []
        if plan.delete or plan.quarantine or settled:
            try:
                plan = asyncio.run(self._carry_out(condemned, settled))
            except Refused as refused:
                self.night.refused = refused.reasons
        self._note_plan(plan, beyond, manifests)

    def forecast(self, found: Any, manifests: Mapping[str, Manifest]) -> None:
        """Note what is left to the caps or quarantined, without doing anything."""
        known = quarantine.standing(manifests, self.safety, self.now_ms)
        spared = quarantine.kept(manifests)
        condemned, beyond = oldest(found, known, spared, 2 * self.safety.objects_max)
        self._note_plan(self._plan(condemned, manifests), beyond, manifests)

    def _note_plan(self, plan: NightPlan, beyond: int, manifests: Mapping[str, Manifest]) -> None:
        self.night.left = plan.left + beyond
        kept_by_caps = {entry.identity: entry.size for entry in plan.beyond}
        for name, manifest in sorted(manifests.items()):
            sizes = [kept_by_caps.pop(each.identity, None) for each in manifest.entries]
            stuck = [size for size in sizes if size is not None]
            if stuck:
                self.night.needs_approval[name] = (len(stuck), sum(stuck))
        done = self.night.execute and not self.night.refused
        quarantine_ms = self.safety.quarantine_hours * 3_600_000
        after_ms = self.now_ms if done else 0
        dates = [quarantine.next_deletion_ms(manifests, self.safety, after_ms)]
        dates += [self.now_ms + quarantine_ms] if self.night.quarantined else []
        self.night.next_deletion_ms = min((date for date in dates if date), default=None)

    def _plan(
        self, condemned: Collection[CondemnedObject], manifests: Mapping[str, Manifest]
    ) -> NightPlan:
        totals = Totals(objects=self.night.objects, bytes=self.night.object_bytes)
        return quarantine.plan(condemned, manifests, totals, self.safety, now_ms=self.now_ms)

    async def _carry_out(
        self, condemned: Collection[CondemnedObject], settled: Collection[str] = ()
    ) -> NightPlan:
        async with control.opened(self.daemon) as storage:
            self.steady.check()
            clock = await storage_time.read(storage)
            clock.check(storage_time.wall_ms())
            lease = Holder(
                storage,
                owner=self.night.run,
                seconds=self.safety.lease_seconds,
                now_ms=clock.now_ms,
            )
            await lease.acquire()
            look = LastLook(self.daemon, storage, started_ms=self.now_ms)
            executor = deletions.Executor(
                self.daemon,
                storage,
                lease,
                safety=self.safety,
                ends=self.ends,
                look=look,
                audit=self._note,
            )
            try:
                # Nobody else quarantines or deletes from here on: these manifests count.
                manifests = (await look()).manifests
                plan = self._plan(condemned, manifests)
                await executor.delete(plan.delete)
                await self._quarantine(storage, plan.quarantine, lease)
                for name in settled:
                    if name in manifests:
                        await self._remove(storage, name, manifests[name], lease)
            finally:
                self._note_done(executor.done)
                await lease.release()
        # Without the lease, which is for deletes: a tag says what the manifest said when it was
        # written, and harms nothing where another run has gone on since.
        keys = [entry.key for entry in plan.quarantine if entry.upload_id is None]
        if keys:
            self._note([{"tagging": len(keys), "tag": object_tags.TAG, "value": self.night.run}])
            self.night.tagged = await asyncio.to_thread(
                object_tags.tag_all, self.daemon, keys, self.night.run
            )
            self._note([{"tagged": self.night.tagged}])
        return plan

    async def _quarantine(
        self, storage: RemoteStorage, entries: tuple[CondemnedObject, ...], lease: Holder
    ) -> None:
        made = quarantine.manifests_of(self.night.run, lease.fence, self.now_ms, entries)
        for name, manifest in quarantine.named(made).items():
            await lease.renew()
            self._note_quarantine("quarantining", name, manifest)
            await quarantine.write_manifest(storage, name, manifest)
            self._note_quarantine("quarantined", name, manifest)
            self.night.manifests.append(name)
            self.night.quarantined += len(manifest.entries)

    def _note_quarantine(self, word: str, name: str, manifest: Manifest) -> None:
        said = {"manifest": name, "fence": manifest.fence}
        self._note(
            {word: entry.key, "upload_id": entry.upload_id, "kind": entry.kind, **said}
            for entry in manifest.entries
        )

    async def _remove(
        self, storage: RemoteStorage, name: str, manifest: Manifest, lease: Holder
    ) -> None:
        """Remove a manifest, unless what the listing missed is seen when it is asked for itself."""
        await lease.renew()
        if await asyncio.to_thread(deletions.left, self.daemon, manifest):
            return
        said = {"entries": len(manifest.entries), "restored": manifest.restored}
        self._note([{"removing_manifest": name, **said, "fence": lease.fence}])
        key = quarantine.MANIFESTS + name
        error = (await storage.delete([key]))[key]
        self._note([{"removed_manifest": name, "error": None if error is None else error.message}])

    def _note(self, lines: Iterable[Mapping[str, object]]) -> None:
        """Append to the audit log; when this returns, the lines outlive a crash of the machine."""
        with (self.directory / AUDIT).open("a", encoding="utf-8") as audit:
            for line in lines:
                audit.write(json.dumps({"at_ms": storage_time.wall_ms(), **line}) + "\n")
            audit.flush()
            os.fsync(audit.fileno())

    def _note_done(self, done: deletions.Done) -> None:
        self.night.deleted, self.night.deleted_bytes = done.deleted, done.deleted_bytes
        self.night.failed, self.night.dropped = done.failed, done.dropped


def oldest(
    found: Any, known: Mapping[Identity, bool], spared: Collection[Name], limit: int
) -> tuple[list[CondemnedObject], int]:
    """Return what is condemned and may be acted on tonight, and how many there are beyond `limit`.

    What is due comes first, then the oldest. What waits (False in `known`) or is spared is left out
    before any is taken: it would keep back what is behind it.
    """
    rows = [(*identity, due) for identity, due in known.items()]
    quarantined = found.sparkSession.createDataFrame(
        rows, "key string, etag string, second bigint, upload_id string, due boolean"
    )
    names = found.sparkSession.createDataFrame(sorted(spared, key=str), _NAME)
    kept = "found.key = kept.key AND found.upload_id <=> kept.upload_id"
    condemned = (
        found.where("condemned")
        .alias("found")
        .join(functions.broadcast(names).alias("kept"), functions.expr(kept), "left_anti")
    )
    same = (
        "found.key = listed.key AND coalesce(found.etag, '') = listed.etag"
        " AND found.modified_ms DIV 1000 = listed.second AND found.upload_id <=> listed.upload_id"
    )
    joined = condemned.join(quarantined.alias("listed"), functions.expr(same), "left")
    eligible = joined.where("due IS NULL OR due").selectExpr("found.*", "due")
    taken = eligible.orderBy(functions.expr("due IS NULL"), "modified_ms", "key").take(limit)
    beyond = eligible.count() - limit if len(taken) == limit else 0
    return [quarantine.entry_of(row.asDict()) for row in taken], beyond


def listed(objects: Any, manifests: Mapping[str, Manifest]) -> set[Identity]:
    """Return the states in which the listing shows what the manifests name."""
    every = {entry.name for manifest in manifests.values() for entry in manifest.entries}
    named = objects.sparkSession.createDataFrame(sorted(every, key=str), _NAME)
    same = "named.key = shown.key AND named.upload_id <=> shown.upload_id"
    shown = objects.where("NOT noncurrent").alias("shown")
    there = functions.broadcast(named).alias("named").join(shown, functions.expr(same))
    state = there.selectExpr(
        "shown.key", "coalesce(shown.etag, '') AS etag",
        "shown.modified_ms DIV 1000 AS second", "shown.upload_id",
    )  # fmt: skip
    rows = state.take(len(every))
    return {(row["key"], row["etag"], row["second"], row["upload_id"]) for row in rows}
