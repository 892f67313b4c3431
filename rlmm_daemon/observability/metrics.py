"""Every metric, declared here once; a `Metrics` is made by the wiring and passed down.

Units are suffixes, counters end in `_total`, labels have few values (a metadata partition's number
is the widest). `docs/metrics.md` has them in tables: help text, comment, and when to be alarmed.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from rlmm_daemon.observability.buckets import FAST_SECONDS
from rlmm_daemon.observability.collectors import QuickCounter, QuickHistogram, without_created
from rlmm_daemon.observability.quorum_metrics import QuorumMetrics
from rlmm_daemon.observability.read_metrics import ReadMetrics
from rlmm_daemon.observability.topic_metrics import TopicMetrics

#: 10 ms to 20 min: copies, fetches, snapshots, replays.
SLOW_SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1200)
#: Records that shared one sync.
GROUP_RECORDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)


class FoldMetrics:
    """Followers, the cache and what may be answered from it."""

    def __init__(self, into: CollectorRegistry) -> None:
        #: States as `rlmm partitions` names them.
        self.partitions = Gauge(
            "rlmm_metadata_partitions", "Followed metadata partitions.", ["state"], registry=into
        )
        #: outcome: applied, repeated, rejected, unreadable, misplaced.
        self.events = Counter(
            "rlmm_events_total", "Events read from the log.", ["outcome"], registry=into
        )
        self.lag = Gauge(
            "rlmm_log_lag_events",
            "Events between the log's end, as last seen, and the next one to read.",
            ["metadata_partition"],
            registry=into,
        )
        self.next_offset = Gauge(
            "rlmm_log_next_offset", "Next offset to read.", ["metadata_partition"], registry=into
        )
        self.replay = Histogram(
            "rlmm_replay_duration_seconds",
            "From starting to ready, per metadata partition.",
            buckets=SLOW_SECONDS,
            registry=into,
        )
        #: role: leader, follower.
        self.announced = Gauge(
            "rlmm_user_partitions_announced", "Announced by the broker.", ["role"], registry=into
        )
        #: state: Kafka's names of segment states.
        self.segments = Gauge("rlmm_segments", "Segments in the cache.", ["state"], registry=into)
        self.segments_bytes = Gauge(
            "rlmm_segments_bytes", "Size of all COPY_SEGMENT_FINISHED segments.", registry=into
        )


class LogMetrics:
    """Writes to the event log, and the connections of one that brokers hold."""

    def __init__(self, into: CollectorRegistry) -> None:
        #: purpose: follow (one for each followed partition), other.
        self.connections = Gauge(
            "rlmm_log_connections", "Open connections to brokers.", ["purpose"], registry=into
        )
        #: state: finding_leader, connecting, checking, fetching, backing_off.
        self.followers = Gauge(
            "rlmm_log_followers",
            "Followed partitions by what their connection is doing.",
            ["state"],
            registry=into,
        )
        self.connections_opened = Counter(
            "rlmm_log_connections_opened_total", "Connections ever opened.", registry=into
        )
        #: task: fetch, produce.
        self.errors = Counter(
            "rlmm_log_errors_total", "Errors of brokers and connections.", ["task"], registry=into
        )
        self.warnings = Gauge(
            "rlmm_log_setting_warnings",
            "Settings of the metadata topic with which events may be lost.",
            registry=into,
        )
        #: outcome: done, failed. Of an embedded log, as the next.
        self.compactions = Counter(
            "rlmm_log_compactions_total", "Compactions ended.", ["outcome"], registry=into
        )
        #: when: before, after.
        self.compacted_bytes = Counter(
            "rlmm_log_compacted_bytes_total", "Size of what was compacted.", ["when"], registry=into
        )
        #: outcome: ok, refused, unavailable, unknown, corrupt.
        self.appends = QuickCounter("rlmm_appends", "Appends to the event log.", ("outcome",), into)
        self.append = QuickHistogram(
            "rlmm_append_duration_seconds",
            "From handing a record to the log until it was durable.",
            FAST_SECONDS,
            into,
        )
        self.apply_wait = QuickHistogram(
            "rlmm_apply_wait_duration_seconds",
            "From a durable record to its apply here.",
            FAST_SECONDS,
            into,
        )
        self.sync = Histogram(
            "rlmm_log_sync_duration_seconds",
            "One batch written and synced.",
            buckets=FAST_SECONDS,
            registry=into,
        )
        self.group = Histogram(
            "rlmm_log_sync_records",
            "Records that shared one fdatasync.",
            buckets=GROUP_RECORDS,
            registry=into,
        )
        self.waiters = Gauge(
            "rlmm_apply_waiters", "Writes that wait for their own apply.", registry=into
        )
        self.writable = Gauge(
            "rlmm_log_writable",
            "0 from a write that the log's disk refused until it has room for it, asked or not.",
            registry=into,
        )
        self.writable.set(1)

    def synced(self, seconds: float, records: int) -> None:
        """Count one batch that was written and synced."""
        self.sync.observe(seconds)
        self.group.observe(records)


class CleanerMetrics:
    """What is removed, what waits, what is stuck, as far as this daemon looks after it."""

    def __init__(self, into: CollectorRegistry) -> None:
        #: reason: partition_removed, stuck_copy, stuck_delete, unlisted, purged.
        self.deleted = Counter(
            "rlmm_cleaner_segments_total", "Segments deleted.", ["reason"], registry=into
        )
        #: step: as `rlmm cleanup` names them.
        self.removals = Gauge(
            "rlmm_cleaner_removals", "Partitions marked for removal.", ["step"], registry=into
        )
        #: kind: copy, delete; step: as `rlmm cleanup` names them.
        self.stuck = Gauge(
            "rlmm_cleaner_stuck_segments",
            "Copies and deletes that got stuck.",
            ["kind", "step"],
            registry=into,
        )
        self.failures = Counter(
            "rlmm_cleaner_failures_total", "Tries that failed; each is repeated.", registry=into
        )
        #: clock: as `rlmm cleanup` names them.
        self.unknown = Gauge(
            "rlmm_cleaner_unknown_topics",
            "Topics that every live broker calls unknown.",
            ["clock"],
            registry=into,
        )
        self.observed = Gauge(
            "rlmm_cleaner_observed_timestamp_seconds",
            "The last whole look at the cluster; 0: none, or it is not observed.",
            registry=into,
        )
        self.looks_failed = Counter(
            "rlmm_cleaner_looks_failed_total",
            "Looks that failed; clocks start over.",
            registry=into,
        )
        self.marked = Counter(
            "rlmm_cleaner_topics_marked_total", "Topics marked unasked.", registry=into
        )


class SnapshotMetrics:
    """Snapshots. Age in PromQL: `time() - rlmm_snapshot_timestamp_seconds`."""

    def __init__(self, into: CollectorRegistry) -> None:
        #: outcome: written, failed, loaded, rejected.
        self.outcomes = Counter(
            "rlmm_snapshots_total", "Snapshots handled.", ["outcome"], registry=into
        )
        self.created = Gauge(
            "rlmm_snapshot_timestamp_seconds",
            "When the newest snapshot was written.",
            ["metadata_partition"],
            registry=into,
        )
        self.size = Gauge(
            "rlmm_snapshot_bytes",
            "Size of the newest snapshot.",
            ["metadata_partition"],
            registry=into,
        )
        self.write = Histogram(
            "rlmm_snapshot_write_duration_seconds",
            "From the first table to the directory's fsync.",
            buckets=SLOW_SECONDS,
            registry=into,
        )


class SocketMetrics:
    """The socket: requests, connections and each limit."""

    def __init__(self, into: CollectorRegistry) -> None:
        #: outcome: ok, or the error's wire name.
        self.requests = QuickCounter(
            "rlmm_requests", "Requests answered.", ("method", "outcome"), into
        )
        self.in_flight = Gauge(
            "rlmm_requests_in_flight", "Requests not yet answered.", registry=into
        )
        self.held_reads = Gauge(
            "rlmm_reads_held", "Reads held until their partition is ready.", registry=into
        )
        #: outcome: answered, refused.
        self.held = Counter(
            "rlmm_held_reads_total", "Reads that were held.", ["outcome"], registry=into
        )
        #: role: broker, operator, bulk, or new before its hello.
        self.connections = Gauge(
            "rlmm_connections_open", "Open connections.", ["role"], registry=into
        )
        self.accepted = Counter(
            "rlmm_connections_accepted_total", "Connections since the start.", registry=into
        )
        #: limit: the configuration key.
        self.limits = Counter(
            "rlmm_limit_reached_total", "How often a limit refused or paused.", ["limit"],
            registry=into,
        )  # fmt: skip
        self.malformed = Counter(
            "rlmm_frames_malformed_total", "Frames that closed a connection.", registry=into
        )
        self.buffered = Gauge(
            "rlmm_buffered_bytes", "Answers kept for slow readers.", registry=into
        )
        #: where: a method of the socket, or a step on behalf of one request. Alert on any.
        self.internal_errors = Counter(
            "rlmm_internal_errors_total",
            "Requests that ended in a bug of the daemon, which went on.",
            ["where"],
            registry=into,
        )


class StorageMetrics:
    """Copies, deletes and fetches of segments."""

    def __init__(self, into: CollectorRegistry) -> None:
        #: outcome: ok, or the error's wire name, or cancelled.
        self.copies = Counter("rlmm_copies_total", "Copies ended.", ["outcome"], registry=into)
        #: outcome: ok, failed, or finished_elsewhere, which is an alarm: somebody else reported the
        #: segment as finished, so its objects stay.
        self.roll_backs = Counter(
            "rlmm_copy_roll_backs_total", "Copies rolled back.", ["outcome"], registry=into
        )
        self.copy_bytes = Counter("rlmm_copy_bytes_total", "Bytes copied.", registry=into)
        self.copy = Histogram(
            "rlmm_copy_duration_seconds", "One whole copy.", buckets=SLOW_SECONDS, registry=into
        )
        self.copy_phase = Histogram(
            "rlmm_copy_phase_duration_seconds",
            "One phase of a copy.",
            ["phase"],
            buckets=SLOW_SECONDS,
            registry=into,
        )
        self.copying = Gauge("rlmm_copies_in_flight", "Copies running.", registry=into)
        self.copies_waiting = Gauge("rlmm_copies_waiting", "Copies in the queue.", registry=into)
        self.deletes = Counter("rlmm_deletes_total", "Deletes ended.", ["outcome"], registry=into)
        self.deleting = Gauge("rlmm_deletes_in_flight", "Deletes running.", registry=into)
        #: kind: log, or the index's name.
        self.fetches = Counter(
            "rlmm_fetches_total", "Fetches ended.", ["kind", "outcome"], registry=into
        )
        self.fetch_bytes = Counter("rlmm_fetch_bytes_total", "Bytes sent.", ["kind"], registry=into)
        #: Of those of kind log; their bytes go by no process of ours, and are not counted.
        self.fetches_named = Counter(
            "rlmm_fetches_named_total",
            "Fetches answered with the name of a local file, which the broker reads itself.",
            registry=into,
        )
        self.fetch = Histogram(
            "rlmm_fetch_duration_seconds", "One whole fetch.", buckets=SLOW_SECONDS, registry=into
        )
        self.marker_refused = Gauge(
            "rlmm_storage_marker_refused",
            "1 while the marker is gone, damaged or not ours, and copies and reads are refused.",
            registry=into,
        )
        self.other_daemon = Gauge(
            "rlmm_other_daemon",
            "1 while another daemon runs under this broker id, and nothing is deleted.",
            registry=into,
        )
        #: operation: S3's name. outcome: ok, or the error's reason. An attempt is a request.
        self.requests = Counter(
            "rlmm_storage_requests_total",
            "Requests to the storage.",
            ["operation", "outcome"],
            registry=into,
        )
        #: outcome: made, or refused by the budget of the whole process.
        self.retries = Counter(
            "rlmm_storage_retries_total", "Requests repeated.", ["outcome"], registry=into
        )
        self.retry_budget = Gauge(
            "rlmm_storage_retry_budget", "Retries that may still be made.", registry=into
        )
        self.throttled = Counter(
            "rlmm_storage_throttled_total", "Answers that asked for fewer requests.", registry=into
        )
        #: direction: read, write. A read counts until its answer begins, not while its body comes.
        self.requests_now = Gauge(
            "rlmm_storage_requests_in_flight",
            "Requests now; of reads those being opened.",
            ["direction"],
            registry=into,
        )
        self.requests_max = Gauge(
            "rlmm_storage_requests_in_flight_max",
            "Requests allowed at once now, of reads those being opened: halved by throttling,"
            " grown by successes.",
            ["direction"],
            registry=into,
        )
        self.uploads_left = Gauge(
            "rlmm_storage_uploads_left",
            "Keys under which a multipart upload could not be aborted yet.",
            registry=into,
        )
        #: Of the last ten, if they came within five minutes; without those that took an object's
        #: bytes along.
        self.answer_seconds = Gauge(
            "rlmm_storage_answer_seconds",
            "Typical time of an answer of S3: the median; 0 if there were too few of late.",
            registry=into,
        )
        self.silent = Gauge(
            "rlmm_storage_silent",
            "1 while S3 answered none of the last three requests or more.",
            registry=into,
        )


class ProcessMetrics:
    """The process itself."""

    def __init__(self, into: CollectorRegistry) -> None:
        self.build = Gauge(
            "rlmm_build_info", "Always 1; the label says which.", ["version"], registry=into
        )
        self.ready = Gauge(
            "rlmm_ready", "1 if /readyz last answered that all is ready.", registry=into
        )
        #: task: the name without a trailing partition number.
        self.tasks = Gauge("rlmm_tasks", "Tasks running.", ["task"], registry=into)
        self.loop_lag = Histogram(
            "rlmm_event_loop_lag_seconds",
            "How late the event loop ran a timer.",
            buckets=FAST_SECONDS,
            registry=into,
        )
        self.loop_lag_max = Gauge(
            "rlmm_event_loop_lag_max_seconds", "The longest lag of the last minute.", registry=into
        )
        self.crash_looped = Gauge(
            "rlmm_crash_loop_partitions", "Partitions held back after crashes.", registry=into
        )
        #: outcome: ok, failed.
        self.reloads = Counter("rlmm_reloads_total", "SIGHUPs handled.", ["outcome"], registry=into)


class Metrics:
    """All metrics of one daemon, in a registry of their own: two daemons share nothing."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.fold = FoldMetrics(self.registry)
        self.log = LogMetrics(self.registry)
        self.quorum = QuorumMetrics(self.registry)
        self.snapshots = SnapshotMetrics(self.registry)
        self.cleaner = CleanerMetrics(self.registry)
        self.socket = SocketMetrics(self.registry)
        self.storage = StorageMetrics(self.registry)
        self.reads = ReadMetrics(self.registry)
        self.topics = TopicMetrics(self.registry)
        self.process = ProcessMetrics(self.registry)
        ProcessCollector(registry=self.registry)

    def text(self) -> bytes:
        """Return the Prometheus text form."""
        return generate_latest(without_created(self.registry))
