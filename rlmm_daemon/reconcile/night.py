"""A run, from the listing to the report. The order of the steps is the safety case.

1 marker, presence files            whose storage is it, who lives, how old is old
2 listing (T0), uploads             written down before the log is asked for its end
3 end offsets, then the log         so that every object listed has its event in it
4 sifting, judging, lineage         findings
5 tail, confirming, tail again      absence is only a hint until here
6 guards                            may anything be condemned?
7 plan, quarantine, deletion        with --execute only
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from rlmm_daemon.codec.marker import MARKER_KEY, LayoutRow
from rlmm_daemon.config import Config, EmbeddedLog, S3Storage
from rlmm_daemon.config.reconcile import ExportMetadata, InventoryListing, ReconcileConfig
from rlmm_daemon.core.disposal.findings import Ages
from rlmm_daemon.domain.ids import TopicId, uuid_bytes
from rlmm_daemon.ports.event_log import LogIdentity
from rlmm_daemon.ports.storage import UploadInfo
from rlmm_daemon.reconcile import control, workspace
from rlmm_daemon.reconcile.act import evidence
from rlmm_daemon.reconcile.act.evidence import Ours
from rlmm_daemon.reconcile.act.steps import Actor
from rlmm_daemon.reconcile.errors import Incomplete, plain
from rlmm_daemon.reconcile.judge import guards, lineage, spared_topics, standalone, suspects
from rlmm_daemon.reconcile.judge.second_look import Confirm
from rlmm_daemon.reconcile.judge.verdicts import Judge
from rlmm_daemon.reconcile.read import exports, inventory, listing, liveness, log_reading, sources
from rlmm_daemon.reconcile.read.late_events import TOUCHED, Tail
from rlmm_daemon.reconcile.read.log_reading import LogView
from rlmm_daemon.reconcile.report import summary
from rlmm_daemon.reconcile.report.summary import Night
from rlmm_daemon.reconcile.schema import EVENTS, FINDINGS, OBJECTS, batch, ddl
from rlmm_daemon.reconcile.storage_time import Steady

#: What a daemon may still do with an event after its own deadline: delivery_timeout_seconds.
DELIVERY_TIMEOUT_MS: Final = 120_000
Progress = Callable[[str], None]


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
        self._steady = Steady()
        started = datetime.fromtimestamp(now_ms / 1000, tz=UTC)
        name = started.strftime("%Y%m%dT%H%M%S") + f"{now_ms % 1000:03}Z"
        self.directory = Path(config.output.directory) / name
        self._work = self.directory / workspace.WORK
        #: Metadata partition -> when the snapshot was made that stands for its head.
        self._covered_ms: dict[int, int] = {}
        #: Metadata partition -> the offset to which that snapshot reaches.
        self._covered: dict[int, int] = {}
        self._frames: dict[str, Any] = {}
        #: Whether the findings are written and counted: from here on there is something to report.
        self.judged = False
        self.night = Night(run=name, cluster="", listed_at_ms=now_ms, execute=execute)

    def whole(self) -> Night:
        """Do everything and return the summary.

        Raises:
            Incomplete: storage or log did not tell all; nothing was judged.
            StorageNotConfigured: there is no storage of ours.
            LeaseHeld: another run is deleting.
        """
        with workspace.kept(self.directory):
            try:
                self._judge_and_act()
            except BaseException as error:  # an operator's Ctrl-C as well
                self.night.broken_off = plain(error).message
                raise
        return self.night

    def _judge_and_act(self) -> None:
        with self._stage("storage"):
            ours = asyncio.run(evidence.ours(self._daemon))
        if ours.marker is None:
            raise Incomplete(
                f"there is no {MARKER_KEY} in the storage: it is not mounted here, it is another"
                " one, or no daemon has ever used it (rlmm storage doctor)"
            )
        with self._stage("listing"):
            self._list(ours.layouts)
        with self._stage("log"):
            view = self._read_export(ours) if self._exported() else self._read_log()
            # A daemon that began to write elsewhere meanwhile said so in the marker before: what
            # the listing has not seen of it is looked for by its key.
            ours = asyncio.run(evidence.refreshed(self._daemon, ours))
        layouts = ours.layouts
        self.night.cluster = self._cluster_id(view) or ""
        ages = self._ages(ours)
        with self._stage("judging"):
            self._judge(layouts, ages, ours)
        with self._stage("confirming"):
            self._confirm(view)
        with self._stage("guards"):
            self.night.refused = self._guards(ours, view)
            self._write_findings()
        found = self._frame("../findings", FINDINGS)
        objects, events = self._frame("objects", OBJECTS), self._frame("events", EVENTS)
        summary.count(self.night, self._spark, objects=objects, events=events, found=found)
        self.judged = True
        with self._stage("acting"):
            if self.night.refused:
                return
            actor = self._actor(view)
            if self.night.execute:
                actor.act(found, objects, ours.manifests)
            else:
                actor.forecast(found, ours.manifests)

    # 1 to 3: what there is

    def _list(self, layouts: tuple[LayoutRow, ...]) -> None:
        prefixes = [row.prefix.partition("{")[0].rstrip("/") for row in layouts]
        roots = listing.roots(prefixes)
        if isinstance(self._config.listing, InventoryListing):
            manifest = self._config.listing.manifest
            storage = self._daemon.storage
            bucket = storage.bucket if isinstance(storage, S3Storage) else None
            report = inventory.read(
                self._spark, manifest, roots, bucket=bucket, now_ms=self._now_ms
            )
            self.night.listed_at_ms, objects = report.created_ms, report.objects
        else:
            parts = listing.slices(self._daemon, prefixes, self.night.notes.append)
            pages = self._config.listing.pages_per_second_max
            objects = sources.objects(self._spark, self._daemon, parts, pages)
        objects.write.parquet(self._path("objects"))
        asyncio.run(self._list_uploads(roots))

    async def _list_uploads(self, roots: list[str]) -> None:
        """Write incomplete uploads beside the objects, page by page: those below the same roots."""
        path = self._work / "objects" / "uploads.parquet"
        async with control.opened(self._daemon, reads_only=True) as storage:
            with pq.ParquetWriter(path, OBJECTS) as writer:
                for root in roots:
                    async for page in storage.list_uploads(root):
                        writer.write_batch(_uploads(page))

    def _read_log(self) -> LogView:
        view = log_reading.view(self._daemon)
        parts = log_reading.slices(
            self._daemon, view, self._config.log_slice_offsets, self._config.snapshots
        )
        self._covered_ms = {
            part.number: part.snapshot_ms for part in parts if part.snapshot_ms is not None
        }
        self._covered = {number: until for number, (_, until) in view.compactions.items()}
        for part in parts:
            if part.snapshot is not None:
                self._covered[part.number] = max(part.end, self._covered.get(part.number, 0))
        sources.events(self._spark, self._daemon, parts).write.parquet(self._path("events"))
        return view

    def _read_export(self, ours: Ours) -> LogView:
        """Return the view of a log of which not one end is known."""
        metadata = self._config.metadata
        assert isinstance(metadata, ExportMetadata), "asked before"
        if ours.marker is None:
            raise Incomplete("the storage has no marker, which would say what an export is of")
        count = ours.marker.partition_count
        exports.events(self._spark, metadata.files, count).write.parquet(self._path("events"))
        topic_id = TopicId(uuid_bytes(ours.marker.metadata_topic_id))
        identity = LogIdentity(
            cluster_id=ours.marker.cluster_id, topic_id=topic_id, partition_count=count
        )
        return LogView(identity=identity, ranges={})

    # 4 and 5: what disagrees

    def _judge(self, layouts: tuple[LayoutRow, ...], ages: Ages, ours: Ours) -> None:
        objects = suspects.keyed(self._spark, self._frame("objects", OBJECTS))
        events = suspects.hash_events(self._spark, self._frame("events", EVENTS))
        # Written down: both sides are joined with it, and it is as good as always small.
        suspicious = suspects.suspicious(self._spark, objects, events, layouts, ages=ages)
        suspicious.write.parquet(self._path("suspicious"))
        hashes = self._spark.read.schema("h bigint").parquet(self._path("suspicious"))
        judge = Judge(
            cluster=self.night.cluster,
            layouts=layouts,
            ages=ages,
            partition_count=ours.marker.partition_count if ours.marker else 1,
            losses=ours.marker.accepted_losses if ours.marker else (),
            holds=ours.marker.held if ours.marker else (),
            covered_ms=self._covered_ms,
            listing_is_old=isinstance(self._config.listing, InventoryListing),
        )
        rows = suspects.rows_of(self._spark, objects, events, hashes)
        found = rows.mapInArrow(judge, ddl(FINDINGS))
        cluster, at_ms = self.night.cluster, self.night.listed_at_ms
        found = found.unionByName(
            standalone.old_versions(self._spark, objects, cluster=cluster, listed_at_ms=at_ms)
        ).unionByName(
            standalone.foreign(self._spark, ours.presences, cluster=cluster, listed_at_ms=at_ms)
        )
        if self._config.lineage:
            found = found.unionByName(lineage.findings(self._spark, events, self.night.cluster))
        if self._asks_cluster():
            unknown = self._unknown(events, objects)
            found = found.unionByName(
                liveness.findings(self._spark, events, unknown, self.night.cluster)
            )
        found.write.parquet(self._path("judged"))

    def _unknown(self, events: Any, objects: Any) -> Any:
        """Return the topic ids that the cluster does not know, asked for once."""
        path = self._path("unknown")
        known = [events.select("topic_id"), suspects.topics(objects).select("topic_id")]
        liveness.unknown_topics(self._daemon, *known).write.parquet(path)
        return self._spark.read.parquet(path)

    def _confirm(self, view: LogView) -> None:
        tail = None if self._exported() else Tail(self._daemon, view)
        self._note_touched("moved", tail)
        candidates = self._untouched("moved", self._frame("judged", FINDINGS).where("confirm"))
        candidates = candidates.repartition(self._config.spark.shuffle_partitions)
        confirmed = candidates.mapInArrow(Confirm(self._daemon), ddl(FINDINGS))
        confirmed.write.parquet(self._path("confirmed"))
        self._note_touched("touched", tail)

    def _findings(self) -> Any:
        """Return what stands: confirmed where that was needed, and untouched by the log since."""
        certain = self._frame("judged", FINDINGS).where("NOT confirm")
        every = certain.unionByName(self._frame("confirmed", FINDINGS))
        return self._untouched("touched", every)

    def _note_touched(self, name: str, tail: Tail | None) -> None:
        touched = sorted(tail.read()) if tail else []
        pq.write_table(pa.table([touched], schema=TOUCHED), self._work / name)

    def _untouched(self, name: str, found: Any) -> Any:
        touched = self._frame(name, TOUCHED)
        return found.join(touched, "segment_id", "left_anti").select(*FINDINGS.names)

    # 6: may anything be condemned?

    def _guards(self, ours: Ours, view: LogView) -> list[str]:
        if self._exported():
            return [exports.REFUSED]
        reported = isinstance(self._config.listing, InventoryListing)
        if reported and not isinstance(self._daemon.storage, S3Storage):
            return [inventory.REFUSED]  # it is not known to be of this storage
        return guards.reasons(
            evidence.gathered(
                self._spark,
                self._daemon,
                self._frame("events", EVENTS),
                told=ours,
                view=view,
                cluster_id=self._cluster_id(view),
                covered=self._covered,
            )
        )

    def _write_findings(self) -> None:
        found = self._findings()
        if self.night.refused:
            found = found.selectExpr(
                *[name for name in FINDINGS.names if name != "condemned"], "FALSE AS condemned"
            ).select(*FINDINGS.names)
        else:
            unknown = self._spark.createDataFrame([], "topic_id string")
            if self._asks_cluster():
                unknown = self._spark.read.parquet(self._path("unknown"))
            found = spared_topics.spare_live_topics(
                self._spark, found, objects=self._frame("objects", OBJECTS), unknown=unknown
            )
        found.write.parquet(self._path("../findings"))

    # 7: what is done

    def _actor(self, view: LogView) -> Actor:
        return Actor(
            daemon=self._daemon,
            safety=self._config.safety,
            night=self.night,
            directory=self.directory,
            now_ms=self._now_ms,
            ends={number: known.end for number, known in view.ranges.items()},
            steady=self._steady,
        )

    # Small things

    def _ages(self, ours: Ours) -> Ages:
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

    def _exported(self) -> bool:
        return isinstance(self._config.metadata, ExportMetadata)

    def _asks_cluster(self) -> bool:
        alone = isinstance(self._daemon.event_log, EmbeddedLog) or self._exported()
        return self._config.liveness == "auto" and not alone

    def _frame(self, name: str, schema: pa.Schema) -> Any:
        """Return what was written down, of the same files each time.

        Where a file is not seen for once, its rows would count as read, by the READ row that
        another look finds in it, and would not be there to be judged: a missing one is an error.
        """
        if name not in self._frames:
            read = self._spark.read.schema(ddl(schema))
            self._frames[name] = read.parquet(self._path(name))
        return self._frames[name]

    def _path(self, name: str) -> str:
        # With its scheme: on YARN, for one, a bare path is HDFS's, and not what is written here.
        return f"file://{(self._work / name).resolve()}"

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self._progress(name)
        began = time.monotonic()
        try:
            yield
        finally:
            self.night.seconds[name] = round(time.monotonic() - began, 3)


def _uploads(page: Sequence[UploadInfo]) -> pa.RecordBatch:
    return batch(
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
