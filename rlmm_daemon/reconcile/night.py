"""One run, from the listing to the report. The order of the steps is the safety case.

1 marker, presence files            whose storage is it, who lives, how old is old
2 listing (T0), uploads             written down before the log is asked for its end
3 end offsets, then the log         so that every object listed has its event in it
4 sifting, judging, lineage         findings
5 confirming, then the log's tail   absence is only a hint until here
6 guards                            may anything be condemned?
7 plan, quarantine, deletion        with --execute only
"""

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from rlmm_daemon.codec.marker import BucketMarker, LayoutRow, Presence
from rlmm_daemon.config import Config, EmbeddedLog
from rlmm_daemon.config.reconcile import InventoryListing, ReconcileConfig
from rlmm_daemon.core.disposal.findings import RULES, Ages, Finding
from rlmm_daemon.ports.storage import RemoteStorage
from rlmm_daemon.reconcile import (
    control,
    executing,
    guards,
    inventory,
    lineage,
    listing,
    liveness,
    log_reading,
    quarantine,
    sifting,
    sources,
    tagging,
)
from rlmm_daemon.reconcile.confirming import Confirm
from rlmm_daemon.reconcile.judging import Judge
from rlmm_daemon.reconcile.lease import Holder
from rlmm_daemon.reconcile.log_reading import LogView
from rlmm_daemon.reconcile.quarantine import Entry, Manifest, Totals
from rlmm_daemon.reconcile.schema import FINDINGS, OBJECTS, Kind, batch, ddl, literal

#: What a daemon may still do with an event after its own deadline: delivery_timeout_seconds.
DELIVERY_TIMEOUT_MS: Final = 120_000
#: Rows of UNREADABLE that are worth naming; one is enough to refuse.
UNREADABLE_MAX: Final = 100
OFFENDERS: Final = 50
Progress = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Night:
    """What a run found and did: the summary that is printed, written and compared later."""

    run: str
    cluster: str
    listed_at_ms: int
    execute: bool
    objects: int = 0
    object_bytes: int = 0
    events: int = 0
    #: kind -> (number, bytes)
    findings: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: (kind, topic, number, bytes, oldest ms), the largest first.
    offenders: list[tuple[str, str, int, int, int]] = field(default_factory=list)
    condemned: int = 0
    condemned_bytes: int = 0
    #: Why nothing was condemned; empty: it might have been.
    refused: list[str] = field(default_factory=list)
    quarantined: int = 0
    #: Of these, how many have a tag that says so.
    tagged: int = 0
    manifests: list[str] = field(default_factory=list)
    deleted: int = 0
    deleted_bytes: int = 0
    failed: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    left: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ours:
    """What the storage says of itself."""

    marker: BucketMarker | None
    presences: Mapping[str, Presence | None]
    accepted: frozenset[tuple[int, int, str]]
    manifests: Mapping[str, Manifest]


class Run:
    """Holds a run's frames and directories."""

    def __init__(
        self,
        spark: Any,
        config: ReconcileConfig,
        daemon: Config,
        *,
        execute: bool,
        now_ms: int,
        progress: Progress,
    ) -> None:
        self._spark, self._config, self._daemon = spark, config, daemon
        self._progress = progress
        self._now_ms = now_ms
        started = datetime.fromtimestamp(now_ms / 1000, tz=UTC)
        name = started.strftime("%Y%m%dT%H%M%S") + f"{now_ms % 1000:03}Z"
        self.directory = Path(config.output.directory) / name
        self._work = self.directory / "work"
        self.night = Night(run=name, cluster="", listed_at_ms=now_ms, execute=execute)

    def whole(self) -> Night:
        """Do everything and return the summary.

        Raises:
            Incomplete: storage or log did not tell all; nothing was judged.
            StorageNotConfigured: there is no storage of ours.
            LeaseHeld: another run is deleting.
        """
        self._work.mkdir(parents=True)
        try:
            self._judge_and_act()
        finally:
            shutil.rmtree(self._work, ignore_errors=True)
        return self.night

    def _judge_and_act(self) -> None:
        with self._stage("storage"):
            ours = asyncio.run(self._ours())
        layouts = ours.marker.layouts if ours.marker else ()
        with self._stage("listing"):
            self._list(layouts)
        with self._stage("log"):
            view = self._read_log()
        self.night.cluster = self._cluster_id(view) or ""
        ages = self._ages(ours)
        with self._stage("judging"):
            self._judge(layouts, ages, ours)
        with self._stage("confirming"):
            self._confirm(view)
        with self._stage("guards"):
            self.night.refused = self._guards(ours, view)
            self._write_findings()
        self._count()
        with self._stage("acting"):
            self._act(ours, view)

    # 1 to 3: what there is

    async def _ours(self) -> _Ours:
        async with control.opened(self._daemon) as storage:
            return _Ours(
                marker=await control.read_marker(storage),
                presences=await control.read_presences(storage),
                accepted=(await control.read_accepted(storage)).keys(),
                manifests=await quarantine.read_manifests(storage),
            )

    def _list(self, layouts: tuple[LayoutRow, ...]) -> None:
        if isinstance(self._config.listing, InventoryListing):
            report = inventory.read(self._spark, self._config.listing.manifest)
            self.night.listed_at_ms, objects = report.created_ms, report.objects
        else:
            prefixes = [row.prefix.partition("{")[0].rstrip("/") for row in layouts]
            parts = listing.slices(self._daemon, prefixes)
            pages = self._config.listing.pages_per_second_max
            objects = sources.objects(self._spark, self._daemon, parts, pages)
        objects.write.parquet(self._path("objects"))
        asyncio.run(self._list_uploads())

    async def _list_uploads(self) -> None:
        """Write incomplete uploads beside the objects, page by page."""
        path = self._work / "objects" / "uploads.parquet"
        async with control.opened(self._daemon) as storage:
            with pq.ParquetWriter(path, OBJECTS) as writer:
                async for page in storage.list_uploads(""):
                    writer.write_batch(
                        batch(
                            OBJECTS,
                            {
                                "key": [each.key for each in page],
                                "size": [0] * len(page),
                                "modified_ms": [each.initiated_ms for each in page],
                                "etag": [""] * len(page),
                                "upload_id": [each.upload_id for each in page],
                                "noncurrent": [False] * len(page),
                            },
                        )
                    )

    def _read_log(self) -> LogView:
        view = log_reading.view(self._daemon)
        parts = log_reading.slices(
            self._daemon, view, self._config.log_slice_offsets, self._config.snapshots
        )
        sources.events(self._spark, self._daemon, parts).write.parquet(self._path("events"))
        return view

    # 4 and 5: what disagrees

    def _judge(self, layouts: tuple[LayoutRow, ...], ages: Ages, ours: _Ours) -> None:
        objects = sifting.keyed(self._spark, self._frame("objects", OBJECTS))
        events = sifting.hash_events(self._spark, self._spark.read.parquet(self._path("events")))
        # Written down: both sides are joined with it, and it is as good as always small.
        suspicious = sifting.suspicious(self._spark, objects, events, layouts, ages)
        suspicious.write.parquet(self._path("suspicious"))
        hashes = self._spark.read.schema("h bigint").parquet(self._path("suspicious"))
        judge = Judge(
            cluster=self.night.cluster,
            layouts=layouts,
            ages=ages,
            partition_count=ours.marker.partition_count if ours.marker else 1,
            losses=ours.marker.accepted_losses if ours.marker else (),
            listing_is_old=isinstance(self._config.listing, InventoryListing),
        )
        rows = sifting.rows_of(self._spark, objects, events, hashes)
        found = rows.mapInArrow(judge, ddl(FINDINGS)).unionByName(self._old_versions(objects))
        found = found.unionByName(self._foreign(ours))
        if self._config.lineage:
            found = found.unionByName(lineage.findings(self._spark, events, self.night.cluster))
        if self._asks_cluster():
            unknown = self._unknown(events, objects)
            found = found.unionByName(
                liveness.findings(self._spark, events, unknown, self.night.cluster)
            )
        found.write.parquet(self._path("judged"))

    def _old_versions(self, objects: Any) -> Any:
        """Return a `not_current_version` finding for each old version."""
        old = sifting.parsed(self._spark, objects.where("noncurrent"))
        old.createOrReplaceTempView("old_versions")
        rule = RULES[Finding.NOT_CURRENT_VERSION]
        return self._spark.sql(f"""
            SELECT '{Finding.NOT_CURRENT_VERSION}' AS kind, '{rule.severity}' AS severity,
                {literal(self.night.cluster)} AS cluster, topic, topic_id, partition, segment_id,
                key, size AS bytes, {self.night.listed_at_ms} - modified_ms AS age_ms, '' AS facts,
                {literal(rule.action)} AS action, etag, modified_ms, upload_id, FALSE AS confirm,
                FALSE AS condemned, CAST(NULL AS BIGINT) AS recorded_bytes
            FROM old_versions
        """)  # noqa: S608 - our own constants

    def _foreign(self, ours: _Ours) -> Any:
        """Return a `foreign_cluster` finding per presence file of another cluster's daemon."""
        rule = RULES[Finding.FOREIGN_CLUSTER]
        rows = [
            tuple(
                {
                    "kind": Finding.FOREIGN_CLUSTER.value,
                    "severity": rule.severity.value,
                    "cluster": presence.cluster_id,
                    "key": key,
                    "bytes": 0,
                    "age_ms": self.night.listed_at_ms - presence.written_at_ms,
                    "facts": f"broker_id={presence.broker_id}",
                    "action": rule.action,
                    "confirm": False,
                    "condemned": False,
                }.get(name)
                for name in FINDINGS.names
            )
            for key, presence in ours.presences.items()
            if presence is not None and presence.cluster_id != self.night.cluster
        ]
        return self._spark.createDataFrame(rows, ddl(FINDINGS))

    def _unknown(self, events: Any, objects: Any) -> Any:
        """Return the topic ids that the cluster does not know, asked for once."""
        path = self._path("unknown")
        known = [events.select("topic_id"), sifting.topics(objects).select("topic_id")]
        liveness.unknown_topics(self._daemon, *known).write.parquet(path)
        return self._spark.read.parquet(path)

    def _confirm(self, view: LogView) -> None:
        judged = self._frame("judged", FINDINGS)
        candidates = judged.where("confirm").repartition(self._config.spark.shuffle_partitions)
        confirmed = candidates.mapInArrow(Confirm(self._daemon), ddl(FINDINGS))
        confirmed.write.parquet(self._path("confirmed"))
        ends = {number: known.end for number, known in view.ranges.items()}
        touched, _ = executing.tail(self._daemon, ends)
        rows = pa.table({"segment_id": pa.array(sorted(touched), type=pa.string())})
        pq.write_table(rows, self._work / "touched.parquet")

    def _findings(self) -> Any:
        """Return what stands: confirmed where that was needed, and untouched by the log since."""
        touched = self._spark.read.parquet(self._path("touched.parquet"))
        certain = self._frame("judged", FINDINGS).where("NOT confirm")
        every = certain.unionByName(self._frame("confirmed", FINDINGS))
        return every.join(touched, "segment_id", "left_anti").select(*FINDINGS.names)

    # 6: may anything be condemned?

    def _guards(self, ours: _Ours, view: LogView) -> list[str]:
        events = self._spark.read.parquet(self._path("events"))
        # One row per slice, and no more unreadable records than are worth naming.
        events.createOrReplaceTempView("recorded")
        tiles = self._spark.sql(f"""
            SELECT metadata_partition AS number, collect_list(struct(start_offset, offset)) AS tiles
            FROM recorded WHERE kind = {int(Kind.READ)} GROUP BY metadata_partition
        """)  # noqa: S608 - our own constants
        read = {
            row["number"]: [(tile["start_offset"], tile["offset"]) for tile in row["tiles"]]
            for row in tiles.take(view.identity.partition_count)
        }
        odd = events.where(f"kind = {int(Kind.UNREADABLE)}").take(UNREADABLE_MAX)
        pairs = {
            (number, seen.leader_epoch)
            for presence in ours.presences.values()
            if presence is not None
            for number, seen in presence.partitions.items()
            if seen.leader_epoch >= 0 and number < view.identity.partition_count
        }
        evidence = guards.Evidence(
            marker=ours.marker,
            cluster_id=self._cluster_id(view),
            log=view,
            read=read,
            unreadable=[_unreadable(row) for row in odd],
            accepted=ours.accepted,
            presences=ours.presences,
            epoch_ends=log_reading.epoch_ends(self._daemon, pairs),
        )
        return guards.reasons(evidence)

    def _write_findings(self) -> None:
        found = self._findings()
        if self.night.refused:
            found = found.selectExpr(
                *[name for name in FINDINGS.names if name != "condemned"], "FALSE AS condemned"
            ).select(*FINDINGS.names)
        else:
            found = self._spare_live_topics(found)
        found.write.parquet(self._path("../findings"))

    def _spare_live_topics(self, found: Any) -> Any:
        """Condemn nothing of a topic of which nothing would be left, unless it is known to be gone.

        Where no cluster was asked, every topic counts as alive.
        """
        found.createOrReplaceTempView("found")
        # Only of topics that lose something: of these every key is read as text.
        topics = sifting.topics(sifting.keyed(self._spark, self._frame("objects", OBJECTS)))
        doomed = found.where("condemned").select("topic_id").distinct()
        objects = topics.join(doomed, "topic_id", "left_semi").drop("topic_id")
        sifting.parsed(self._spark, objects).createOrReplaceTempView("objects_of_segments")
        unknown = self._spark.createDataFrame([], "topic_id string")
        if self._asks_cluster():
            unknown = self._spark.read.parquet(self._path("unknown"))
        unknown.createOrReplaceTempView("unknown_topics")
        return self._spark.sql(f"""
            WITH stored AS (
                SELECT topic_id, count(*) AS objects FROM objects_of_segments
                WHERE topic_id IS NOT NULL AND upload_id IS NULL AND NOT noncurrent
                GROUP BY topic_id
            ), doomed AS (
                SELECT topic_id, count(*) AS objects FROM found
                WHERE condemned AND upload_id IS NULL GROUP BY topic_id
            ), spared AS (
                SELECT topic_id FROM stored JOIN doomed USING (topic_id)
                    LEFT ANTI JOIN unknown_topics USING (topic_id)
                WHERE doomed.objects >= stored.objects
            )
            SELECT {", ".join(f"found.{name}" for name in FINDINGS.names if name != "condemned")},
                condemned AND spared.topic_id IS NULL AS condemned
            FROM found LEFT JOIN spared ON found.topic_id = spared.topic_id
        """).select(*FINDINGS.names)  # noqa: S608 - our own column names

    # 7: what is done

    def _act(self, ours: _Ours, view: LogView) -> None:
        if not self.night.execute or self.night.refused:
            return
        safety = self._config.safety
        oldest = self._spark.read.parquet(self._path("../findings")).where("condemned")
        # Those of earlier manifests and as many new ones as a run may take.
        rows = oldest.orderBy("modified_ms", "key").take(2 * safety.objects_max)
        condemned = [quarantine.entry_of(row.asDict()) for row in rows]
        totals = Totals(objects=self.night.objects, bytes=self.night.object_bytes)
        plan = quarantine.plan(condemned, ours.manifests, totals, safety, self._now_ms)
        self.night.left = plan.left
        if plan.delete or plan.quarantine:
            ends = {number: known.end for number, known in view.ranges.items()}
            asyncio.run(self._carry_out(plan, ends))
            keys = [entry.key for entry in plan.quarantine if entry.upload_id is None]
            self.night.tagged = tagging.tag_all(self._daemon, keys, self.night.run)

    async def _carry_out(self, plan: quarantine.Plan, ends: Mapping[int, int]) -> None:
        safety = self._config.safety
        async with control.opened(self._daemon) as storage:
            lease = Holder(
                storage,
                owner=self.night.run,
                seconds=safety.lease_seconds,
                now_ms=_now_ms,
            )
            await lease.acquire()
            with (self.directory / "audit.jsonl").open("a", encoding="utf-8") as audit:

                def note(line: Mapping[str, object]) -> None:
                    audit.write(json.dumps({"at_ms": _now_ms(), **line}) + "\n")
                    audit.flush()

                executor = executing.Executor(
                    self._daemon, storage, lease, safety=safety, ends=ends, audit=note
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
        made = quarantine.manifests_of(self.night.run, lease.fence, self._now_ms, entries)
        self.night.manifests = await quarantine.write_manifests(storage, made)
        self.night.quarantined = len(entries)
        for entry in entries:
            note({"quarantined": entry.key, "kind": entry.kind, "fence": lease.fence})

    def _note_done(self, done: executing.Done) -> None:
        self.night.deleted, self.night.deleted_bytes = done.deleted, done.deleted_bytes
        self.night.failed, self.night.dropped = done.failed, done.dropped

    # Small things

    def _count(self) -> None:
        objects = self._frame("objects", OBJECTS).where("upload_id IS NULL AND NOT noncurrent")
        total = objects.selectExpr("count(*)", "coalesce(sum(size), 0)").take(1)[0]
        self.night.objects, self.night.object_bytes = int(total[0]), int(total[1])
        events = self._spark.read.parquet(self._path("events"))
        self.night.events = events.where(f"kind != {int(Kind.READ)}").count()
        found = self._spark.read.parquet(self._path("../findings"))
        found.createOrReplaceTempView("found")
        kinds = self._spark.sql("SELECT kind, count(*), sum(bytes) FROM found GROUP BY kind")
        self.night.findings = {
            row[0]: (int(row[1]), int(row[2] or 0)) for row in kinds.take(len(Finding))
        }
        worst = self._spark.sql("""
            SELECT kind, coalesce(topic, ''), count(*) AS n, sum(bytes) AS b, max(age_ms)
            FROM found GROUP BY kind, topic ORDER BY b DESC, n DESC, kind
        """).take(OFFENDERS)
        self.night.offenders = [
            (r[0], r[1], int(r[2]), int(r[3] or 0), int(r[4] or 0)) for r in worst
        ]
        doomed = self._spark.sql("SELECT count(*), sum(bytes) FROM found WHERE condemned").take(1)
        self.night.condemned = int(doomed[0][0])
        self.night.condemned_bytes = int(doomed[0][1] or 0)

    def _ages(self, ours: _Ours) -> Ages:
        deadlines = [
            int(presence.copy_deadline_seconds * 1000)
            for presence in ours.presences.values()
            if presence is not None
        ]
        longest = max([self._daemon.copy.deadline_seconds * 1000, *deadlines])
        return Ages(
            listed_ms=self.night.listed_at_ms,
            grace_ms=max(self._config.safety.grace_hours * 3_600_000, 2 * longest),
            stuck_copy_ms=longest + DELIVERY_TIMEOUT_MS,
        )

    def _cluster_id(self, view: LogView) -> str | None:
        return view.identity.cluster_id or self._daemon.daemon.cluster_id

    def _asks_cluster(self) -> bool:
        embedded = isinstance(self._daemon.event_log, EmbeddedLog)
        return self._config.liveness == "auto" and not embedded

    def _frame(self, name: str, schema: pa.Schema) -> Any:
        return self._spark.read.schema(ddl(schema)).parquet(self._path(name))

    def _path(self, name: str) -> str:
        return str((self._work / name).resolve())

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self._progress(name)
        began = time.monotonic()
        try:
            yield
        finally:
            self.night.seconds[name] = round(time.monotonic() - began, 3)


def _unreadable(row: Any) -> guards.Unreadable:
    sha256, _, reason = row["detail"].partition(" ")
    return guards.Unreadable(row["metadata_partition"], row["offset"], sha256, reason)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
