"""Conditions on which an operator is to be woken, by metric, in PromQL, and what to type then."""

from typing import Final

_EXPLAIN: Final = "`rlmm partitions`, then [the runbook](runbook.md)"

#: Metric -> condition, what it means, what to do. A metric that is not here tells no trouble alone.
ALARMS: Final[dict[str, tuple[str, str]]] = {
    "rlmm_metadata_partitions": (
        'rlmm_metadata_partitions{state="failed"} > 0',
        f"nothing is answered about a failed one: {_EXPLAIN}",
    ),
    "rlmm_events_total": (
        'increase(rlmm_events_total{outcome=~"rejected|unreadable|misplaced"}[1h]) > 0',
        "somebody writes events that the life cycle forbids: `rlmm explain TOPIC-PARTITION`",
    ),
    "rlmm_log_lag_events": (
        "rlmm_log_lag_events > 10000 for 10m",
        "a metadata partition falls behind: `rlmm partitions`",
    ),
    "rlmm_log_followers": (
        'rlmm_log_followers{state="backing_off"} > 0 for 5m',
        "no leader answers: `rlmm partitions` has the last error",
    ),
    "rlmm_log_errors_total": (
        "rate(rlmm_log_errors_total[10m]) > 0.1",
        "brokers refuse or do not answer: the daemon's log, `rlmm doctor`",
    ),
    "rlmm_log_setting_warnings": (
        "rlmm_log_setting_warnings > 0",
        "the topic compacts or deletes, and will lose events: `rlmm doctor`",
    ),
    "rlmm_log_compactions_total": (
        'increase(rlmm_log_compactions_total{outcome="failed"}[1h]) > 0',
        "the log grows until it is mended: the daemon's log has the reason",
    ),
    "rlmm_appends_total": (
        'increase(rlmm_appends_total{outcome!="ok"}[10m]) > 0',
        "brokers' writes fail, and they repeat them: `rlmm status`",
    ),
    "rlmm_append_duration_seconds": (
        "histogram_quantile(0.99, rate(rlmm_append_duration_seconds_bucket[10m])) > 1",
        "the disk of the log, or the brokers, are slow",
    ),
    "rlmm_log_writable": (
        "rlmm_log_writable == 0",
        "the log's disk is full or failing; it goes on by itself once a write is taken",
    ),
    "rlmm_cleaner_stuck_segments": (
        "rlmm_cleaner_stuck_segments > 0 for 1d",
        "objects stay that nobody reads: `rlmm cleanup` says what it waits for",
    ),
    "rlmm_cleaner_removals": (
        "rlmm_cleaner_removals > 0 for 1d",
        "deleted topics' data stays: `rlmm cleanup` says what it waits for",
    ),
    "rlmm_cleaner_failures_total": (
        "increase(rlmm_cleaner_failures_total[1h]) > 10",
        "the storage refuses deletes: `rlmm cleanup`, `rlmm storage doctor`",
    ),
    "rlmm_cleaner_topics_marked_total": (
        "increase(rlmm_cleaner_topics_marked_total[1h]) > 0",
        "remote data of a topic will go: is that topic meant to be gone?",
    ),
    "rlmm_snapshots_total": (
        'increase(rlmm_snapshots_total{outcome=~"failed|rejected"}[1h]) > 0',
        "restarts get slower, or a disk flips bits: the daemon's log has the reason",
    ),
    "rlmm_limit_reached_total": (
        "increase(rlmm_limit_reached_total[10m]) > 0",
        "a client asks for more than `[socket]` allows; the label is the key",
    ),
    "rlmm_frames_malformed_total": (
        "increase(rlmm_frames_malformed_total[10m]) > 0",
        "something that is not a client writes to the socket",
    ),
    "rlmm_internal_errors_total": (
        "increase(rlmm_internal_errors_total[1h]) > 0",
        "a bug: report the traceback in the daemon's log",
    ),
    "rlmm_copies_total": (
        'increase(rlmm_copies_total{outcome!~"ok|cancelled"}[1h]) > 10',
        "segments are not tiered, and local disks fill: `rlmm explain TOPIC-PARTITION`",
    ),
    "rlmm_copies_waiting": (
        "rlmm_copies_waiting > 100 for 30m",
        "the storage is slower than the brokers roll segments",
    ),
    "rlmm_copy_roll_backs_total": (
        'increase(rlmm_copy_roll_backs_total{outcome="finished_elsewhere"}[1h]) > 0',
        "two brokers finished one segment: `rlmm storage verify`",
    ),
    "rlmm_deletes_total": (
        'increase(rlmm_deletes_total{outcome!="ok"}[1h]) > 10',
        "retention cannot delete: `rlmm status`, `rlmm storage doctor`",
    ),
    "rlmm_fetches_total": (
        'increase(rlmm_fetches_total{outcome=~"object_missing|checksum_mismatch"}[10m]) > 0',
        "a finished segment cannot be read: `rlmm storage verify`",
    ),
    "rlmm_storage_marker_refused": (
        "rlmm_storage_marker_refused == 1",
        "copies and reads are refused: [the wrong bucket, or a lost marker](recovery.md)",
    ),
    "rlmm_other_daemon": (
        "rlmm_other_daemon == 1",
        "stop the one that should not be there: `rlmm status` names it",
    ),
    "rlmm_storage_retries_total": (
        'increase(rlmm_storage_retries_total{outcome="refused"}[10m]) > 0',
        "so many calls fail that the budget of retries is used up",
    ),
    "rlmm_storage_throttled_total": (
        "rate(rlmm_storage_throttled_total[10m]) > 1",
        "the storage asks for fewer requests: spread the prefix, or lower the limits",
    ),
    "rlmm_storage_uploads_left": (
        "rlmm_storage_uploads_left > 0 for 1d",
        "unfinished uploads cost money: does the policy allow AbortMultipartUpload?",
    ),
    "rlmm_read_mismatches_total": (
        "increase(rlmm_read_mismatches_total[1h]) > 0",
        "a disk or the storage changed bytes: `rlmm storage verify`",
    ),
    "rlmm_read_cache_writable": (
        "rlmm_read_cache_writable == 0 for 10m",
        "reads cost a request each until the cache's disk takes writes",
    ),
    "rlmm_ready": (
        "rlmm_ready == 0 for 5m",
        f"the daemon does not answer all questions: {_EXPLAIN}",
    ),
    "rlmm_event_loop_lag_max_seconds": (
        "rlmm_event_loop_lag_max_seconds > 1",
        "look-ups wait; beyond `daemon.watchdog_lag_ms_max` systemd restarts the daemon",
    ),
    "rlmm_crash_loop_partitions": (
        "rlmm_crash_loop_partitions > 0",
        "a metadata partition crashed the daemon three times: `rlmm partition retry N`",
    ),
    "rlmm_reloads_total": (
        'increase(rlmm_reloads_total{outcome="failed"}[10m]) > 0',
        "the old settings stay in force: the daemon's log names the mistake",
    ),
}
