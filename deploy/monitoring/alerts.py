"""All alerts; `make monitoring` writes them for Prometheus, with a test of each.

`make docs-tables` writes a section of each into `docs/alerts.md`. An expression is about one
daemon, so that an alert names its `instance`.
"""

from typing import Final

from deploy.monitoring.alert import Alert, Growth, Level
from rlmm_daemon.core.explain.notices import PAUSE_SECONDS_MAX

_UP: Final = 'up{job="rlmm"}'
_EXPLAIN: Final = "`rlmm partitions`, then [the runbook](runbook.md)"
_REPEATED: Final = (
    "Nothing is lost: brokers repeat what was refused, and keep their local segments."
)

ALERTS: Final = (
    # The process.
    Alert(
        name="RlmmDown",
        metric="up",
        expr='up{job="rlmm"} == 0',
        lasting="5m",
        severity="page",
        because="a daemon does not answer: `systemctl status rlmm-daemon`, then `journalctl -u "
        "rlmm-daemon`",
        meanwhile="Its broker tiers nothing, and reads of tiered offsets fail or wait. Local "
        "data is read as ever; "
        "local disks fill, since nothing is deleted locally that is not copied.",
        ends="Mend what its last log line names and start it. `rlmm doctor` finds most of it "
        "without a daemon.",
        fault=(Level(_UP, bad=0, good=1),),
    ),
    Alert(
        name="RlmmNotReady",
        metric="rlmm_ready",
        expr="rlmm_ready == 0",
        lasting="5m",
        severity="page",
        because=f"the daemon does not answer all questions: {_EXPLAIN}",
        meanwhile='It answers "not ready" where it is not, never "nothing there": consumers '
        "wait, and lose no place.",
        ends="A replay ends by itself: `rlmm partitions` shows how far it is. A failed partition "
        "needs its command.",
        fault=(Level("rlmm_ready", bad=0, good=1),),
    ),
    Alert(
        name="RlmmEventLoopLate",
        metric="rlmm_event_loop_lag_max_seconds",
        expr="rlmm_event_loop_lag_max_seconds > 1",
        lasting="5m",
        because="look-ups wait; beyond `daemon.watchdog_lag_ms_max` systemd restarts the daemon",
        meanwhile="Answers are late, and right.",
        ends="Look for a machine without processor or memory to spare (`top`, `vmstat 1`), or a "
        "limit of the unit.",
        fault=(Level("rlmm_event_loop_lag_max_seconds", bad=3),),
    ),
    Alert(
        name="RlmmCrashLoop",
        metric="rlmm_crash_loop_partitions",
        expr="rlmm_crash_loop_partitions > 0",
        severity="page",
        because="a metadata partition crashed the daemon three times: `rlmm partition retry N`",
        meanwhile="That partition is held back, so that the others serve. Nothing of it is "
        "deleted.",
        ends="Report the traceback in the daemon's log, install a mended version, then `rlmm "
        "partition retry N`.",
        fault=(Level("rlmm_crash_loop_partitions"),),
    ),
    Alert(
        name="RlmmReloadFailed",
        metric="rlmm_reloads_total",
        expr='increase(rlmm_reloads_total{outcome="failed"}[10m]) > 0',
        because="the old settings stay in force: the daemon's log names the mistake",
        meanwhile="The daemon goes on as it was. Its next start would fail.",
        ends="`rlmm check-config` says what is wrong with the file; then reload once more.",
        fault=(Growth('rlmm_reloads_total{outcome="failed"}'),),
    ),
    Alert(
        name="RlmmInternalErrors",
        metric="rlmm_internal_errors_total",
        expr="increase(rlmm_internal_errors_total[1h]) > 0",
        because="a bug: report the traceback in the daemon's log",
        meanwhile="One request failed, and the daemon went on.",
        ends="A mended version.",
        fault=(Growth('rlmm_internal_errors_total{where="copy"}'),),
    ),
    # Metadata.
    Alert(
        name="RlmmPartitionFailed",
        metric="rlmm_metadata_partitions",
        expr='rlmm_metadata_partitions{state="failed"} > 0',
        severity="page",
        because=f"nothing is answered about a failed one: {_EXPLAIN}",
        meanwhile="Neither cleaner nor nightly job deletes any of its objects; the other "
        "metadata partitions serve.",
        ends="`rlmm partitions` names the failure, the runbook its command.",
        fault=(Level('rlmm_metadata_partitions{state="failed"}'),),
    ),
    Alert(
        name="RlmmBadEvents",
        metric="rlmm_events_total",
        expr='increase(rlmm_events_total{outcome=~"rejected|unreadable|misplaced"}[1h]) > 0',
        because="somebody writes events that the life cycle forbids: `rlmm explain "
        "TOPIC-PARTITION`",
        meanwhile="They are passed over, as Kafka does; what was there before is answered.",
        ends="Find who wrote them (`rlmm tail`): two daemons of one broker id, or a broker of "
        "another version.",
        fault=(Growth('rlmm_events_total{outcome="rejected"}'),),
    ),
    Alert(
        name="RlmmFollowerBehind",
        metric="rlmm_log_lag_events",
        expr="rlmm_log_lag_events > 10000",
        lasting="10m",
        because="a metadata partition falls behind: `rlmm partitions`",
        meanwhile="It answers what it knows, and holds reads that newer events might change.",
        ends="It catches up once brokers and processor let it: see the connection's state in "
        "`rlmm partitions`.",
        fault=(Level('rlmm_log_lag_events{metadata_partition="7"}', bad=20_000),),
    ),
    Alert(
        name="RlmmNoLeader",
        metric="rlmm_log_followers",
        expr='rlmm_log_followers{state="backing_off"} > 0',
        lasting="5m",
        severity="page",
        because="no leader answers: `rlmm partitions` has the last error",
        meanwhile="Nothing new can be tiered in those metadata partitions; what was read is "
        "answered for a while.",
        ends="Bring back the brokers that replicate `__remote_log_metadata`; the daemon finds "
        "them by itself.",
        fault=(Level('rlmm_log_followers{state="backing_off"}', bad=2),),
    ),
    Alert(
        name="RlmmLogErrors",
        metric="rlmm_log_errors_total",
        expr="rate(rlmm_log_errors_total[10m]) > 0.1",
        because="brokers refuse or do not answer: the daemon's log, `rlmm doctor`",
        meanwhile=_REPEATED,
        ends="`rlmm doctor` tries what the daemon does, and says which right or address is wrong.",
        fault=(Growth('rlmm_log_errors_total{task="fetch"}', by_minute=30),),
    ),
    Alert(
        name="RlmmLogSettings",
        metric="rlmm_log_setting_warnings",
        expr="rlmm_log_setting_warnings > 0",
        severity="page",
        because="the topic compacts or deletes, and will lose events: `rlmm doctor`",
        meanwhile="Nothing is lost yet. Once events are, segments are no longer found.",
        ends="Set `cleanup.policy=delete`, `retention.ms=-1` and `retention.bytes=-1` on the "
        "metadata topic.",
        fault=(Level("rlmm_log_setting_warnings"),),
    ),
    Alert(
        name="RlmmCompactionFailed",
        metric="rlmm_log_compactions_total",
        expr='increase(rlmm_log_compactions_total{outcome="failed"}[1h]) > 0',
        because="the log grows until it is mended: the daemon's log has the reason",
        meanwhile="The log is whole; it takes more of its disk.",
        ends="Free the disk of the state directory, or mend it.",
        fault=(Growth('rlmm_log_compactions_total{outcome="failed"}'),),
    ),
    Alert(
        name="RlmmAppendsFail",
        metric="rlmm_appends_total",
        expr='increase(rlmm_appends_total{outcome!="ok"}[10m]) > 0',
        lasting="5m",
        severity="page",
        because="brokers' writes fail, and they repeat them: `rlmm status`",
        meanwhile=_REPEATED,
        ends="`rlmm status` says what refuses them: a full disk, brokers out of sync, or rights.",
        fault=(Growth('rlmm_appends_total{outcome="unavailable"}'),),
    ),
    Alert(
        name="RlmmAppendsSlow",
        metric="rlmm_append_duration_seconds",
        expr="histogram_quantile(0.99, rate(rlmm_append_duration_seconds_bucket[10m])) > 1",
        lasting="10m",
        because="the disk of the log, or the brokers, are slow",
        meanwhile="Copies take longer to begin and to end.",
        ends="Look at the disk of `daemon.state_dir` (`iostat -x 1`), or at the brokers' produce "
        "latency.",
        fault=(
            Growth('rlmm_append_duration_seconds_bucket{le="1.0"}', by_minute=1),
            Growth('rlmm_append_duration_seconds_bucket{le="2.5"}', by_minute=10),
            Growth('rlmm_append_duration_seconds_bucket{le="+Inf"}', by_minute=10),
        ),
        labels={},
    ),
    Alert(
        name="RlmmLogUnwritable",
        metric="rlmm_log_writable",
        expr="rlmm_log_writable == 0",
        severity="page",
        because="the log's disk is full or failing; it goes on by itself once there is room",
        meanwhile="Writes are refused, none is half done. Look-ups and reads go on.",
        ends="Make room on the disk of `daemon.state_dir`.",
        fault=(Level("rlmm_log_writable", bad=0, good=1),),
    ),
    Alert(
        name="RlmmQuorumLeaderless",
        metric="rlmm_quorum_leader",
        expr="rlmm_quorum_leader == -1 and rlmm_quorum_epoch >= 0",
        lasting="1m",
        severity="page",
        because="this replica hears no leader of its quorum: `rlmm status` names the voters heard",
        meanwhile="Writes are refused here, and look-ups answered from what was read. Nothing is "
        "lost.",
        ends="Start the daemons of the voters that are not heard, or mend the way to them: most of "
        "them have to hear each other. `rlmm quorum describe` asks any that runs.",
        fault=(
            Level("rlmm_quorum_leader", bad=-1, good=2),
            Level("rlmm_quorum_epoch", bad=3, good=3),
        ),
    ),
    Alert(
        name="RlmmSnapshotsFail",
        metric="rlmm_snapshots_total",
        expr='increase(rlmm_snapshots_total{outcome=~"failed|rejected"}[1h]) > 0',
        because="restarts get slower, or a disk flips bits: the daemon's log has the reason",
        meanwhile="The log has everything; a snapshot that does not hold is set aside, and the "
        "log is read instead.",
        ends="Free the disk of the state directory; after `rejected` look at the disk's own "
        "health.",
        fault=(Growth('rlmm_snapshots_total{outcome="failed"}'),),
    ),
    # Copies, deletes and reads.
    Alert(
        name="RlmmCopiesFail",
        metric="rlmm_copies_total",
        expr='increase(rlmm_copies_total{outcome!~"ok|cancelled"}[1h]) > 10',
        severity="page",
        because="segments are not tiered, and local disks fill: `rlmm explain TOPIC-PARTITION`",
        meanwhile=_REPEATED,
        ends="`rlmm explain` has the last failure's words; `rlmm storage doctor` tries the "
        "storage.",
        fault=(Growth('rlmm_copies_total{outcome="storage_unavailable"}'),),
    ),
    Alert(
        name="RlmmTopicCopiesFail",
        metric="rlmm_topic_copies_failed_total",
        expr="increase(rlmm_topic_copies_failed_total[1h]) > 10",
        because="copies of one topic fail: `rlmm explain TOPIC-PARTITION`",
        meanwhile=_REPEATED,
        ends="As `rlmm explain` says of its partitions; where all topics fail it is the storage.",
        fault=(Growth('rlmm_topic_copies_failed_total{topic="orders"}'),),
    ),
    Alert(
        name="RlmmCopyOld",
        metric="rlmm_topic_oldest_copy_seconds",
        expr="rlmm_topic_oldest_copy_seconds > 1800",
        lasting="5m",
        because="a copy has run or waited for half an hour: `rlmm status` has its phase and its "
        "call",
        meanwhile="The segment stays on the broker's disk until its copy ends.",
        ends="A copy without progress ends by itself after `copy.deadline_seconds`; what waits "
        "needs a faster storage.",
        fault=(Level('rlmm_topic_oldest_copy_seconds{topic="orders"}', bad=3_600),),
    ),
    Alert(
        name="RlmmPauseForgotten",
        metric="rlmm_topics_paused_oldest_seconds",
        expr=f"rlmm_topics_paused_oldest_seconds > {PAUSE_SECONDS_MAX}",
        because="copies of a topic have been paused for half a day: `rlmm status` names it",
        meanwhile="Nothing is lost: the broker keeps on its own disk what is not copied, which "
        "fills. Reads and deletes go on.",
        ends="`rlmm resume TOPIC --execute`. If it is meant to be, silence the alert until it "
        "is to end.",
        fault=(Level("rlmm_topics_paused_oldest_seconds", bad=PAUSE_SECONDS_MAX + 1),),
    ),
    Alert(
        name="RlmmCopiesWait",
        metric="rlmm_copies_waiting",
        expr="rlmm_copies_waiting > 100",
        lasting="30m",
        because="the storage is slower than the brokers roll segments",
        meanwhile="Nothing is lost; the tier falls behind, and local disks keep more.",
        ends="Raise `copy.parallelism` or the rates of `[storage.s3]`, or find out why the "
        "storage is slow.",
        fault=(Level("rlmm_copies_waiting", bad=200),),
    ),
    Alert(
        name="RlmmFinishedElsewhere",
        metric="rlmm_copy_roll_backs_total",
        expr='increase(rlmm_copy_roll_backs_total{outcome="finished_elsewhere"}[1h]) > 0',
        severity="page",
        because="two brokers finished one segment: `rlmm storage verify`",
        meanwhile="Its objects stay. They may not be whole.",
        ends="`rlmm storage verify` reads them; what does not hold is copied anew while the "
        "broker has it.",
        fault=(Growth('rlmm_copy_roll_backs_total{outcome="finished_elsewhere"}'),),
    ),
    Alert(
        name="RlmmDeletesFail",
        metric="rlmm_deletes_total",
        expr='increase(rlmm_deletes_total{outcome!="ok"}[1h]) > 10',
        because="retention cannot delete: `rlmm status`, `rlmm storage doctor`",
        meanwhile="Objects that nobody reads stay, and cost money.",
        ends="Allow `s3:DeleteObject`, or bring back the storage; brokers and the cleaner repeat "
        "each delete.",
        fault=(Growth('rlmm_deletes_total{outcome="storage_unavailable"}'),),
    ),
    Alert(
        name="RlmmObjectsMissing",
        metric="rlmm_fetches_total",
        expr='increase(rlmm_fetches_total{outcome=~"object_missing|checksum_mismatch"}[10m]) > 0',
        severity="page",
        because="a finished segment cannot be read: `rlmm storage verify`",
        meanwhile="Readers of it get an error, never wrong bytes. Delete nothing by hand.",
        ends="Bring the object back (an earlier version of it, a copy of the bucket); else its "
        "offsets are lost.",
        fault=(Growth('rlmm_fetches_total{kind="log",outcome="object_missing"}'),),
    ),
    # The storage.
    Alert(
        name="RlmmStorageSilent",
        metric="rlmm_storage_silent",
        expr="rlmm_storage_silent == 1",
        lasting="2m",
        severity="page",
        because="the storage answers nothing: `rlmm doctor` says what it met",
        meanwhile="Reads of tiered offsets fail, and nothing is tiered. Nothing is lost: brokers "
        "repeat what was refused, and keep their local segments.",
        ends="Bring back the storage, or the way to it (network, proxy, name service); all goes on "
        "by itself.",
        fault=(Level("rlmm_storage_silent"),),
    ),
    Alert(
        name="RlmmStorageSlow",
        metric="rlmm_storage_answer_seconds",
        expr="rlmm_storage_answer_seconds > 2",
        lasting="5m",
        because="half of the storage's answers take longer than two seconds: `rlmm doctor`",
        meanwhile="Copies and reads go on, later; the tier falls behind, and local disks keep "
        "more.",
        ends="Look at the way to the storage and at its own health; there is nothing to do here.",
        fault=(Level("rlmm_storage_answer_seconds", bad=3),),
    ),
    Alert(
        name="RlmmMarkerRefused",
        metric="rlmm_storage_marker_refused",
        expr="rlmm_storage_marker_refused == 1",
        severity="page",
        because="copies and reads are refused: [the wrong bucket, or a lost marker](recovery.md)",
        meanwhile="Nothing is written to a bucket that is not ours, and nothing is deleted in it.",
        ends="Point `[storage]` at the right bucket; where the marker was lost, `rlmm storage "
        "rebuild-marker`.",
        fault=(Level("rlmm_storage_marker_refused"),),
    ),
    Alert(
        name="RlmmOtherDaemon",
        metric="rlmm_other_daemon",
        expr="rlmm_other_daemon == 1",
        severity="page",
        because="stop the one that should not be there: `rlmm status` names it",
        meanwhile="Nothing is deleted until it was silent for a while.",
        ends="Two hosts with one broker id: stop one. It is noticed by itself.",
        fault=(Level("rlmm_other_daemon"),),
    ),
    Alert(
        name="RlmmRetriesRefused",
        metric="rlmm_storage_retries_total",
        expr='increase(rlmm_storage_retries_total{outcome="refused"}[10m]) > 0',
        because="so many calls fail that the budget of retries is used up",
        meanwhile=_REPEATED,
        ends="`rlmm storage doctor`; the budget fills again with each call that succeeds.",
        fault=(Growth('rlmm_storage_retries_total{outcome="refused"}'),),
    ),
    Alert(
        name="RlmmStorageThrottles",
        metric="rlmm_storage_throttled_total",
        expr="rate(rlmm_storage_throttled_total[10m]) > 1",
        because="the storage asks for fewer requests: spread the prefix, or lower the limits",
        meanwhile="Requests at once are halved by themselves, and grow again.",
        ends="A prefix with `{hash:N}` spreads new objects; fewer copies at once need fewer "
        "requests.",
        fault=(Growth("rlmm_storage_throttled_total", by_minute=120),),
    ),
    Alert(
        name="RlmmUploadsLeft",
        metric="rlmm_storage_uploads_left",
        expr="rlmm_storage_uploads_left > 0",
        lasting="1d",
        because="unfinished uploads cost money: does the policy allow AbortMultipartUpload?",
        meanwhile="They are no objects; nobody reads them.",
        ends="Allow `s3:AbortMultipartUpload`, and give the bucket a lifecycle rule for "
        "incomplete uploads.",
        fault=(Level("rlmm_storage_uploads_left", bad=3),),
    ),
    Alert(
        name="RlmmReadMismatches",
        metric="rlmm_read_mismatches_total",
        expr="increase(rlmm_read_mismatches_total[1h]) > 0",
        because="a disk or the storage changed bytes: `rlmm storage verify`",
        meanwhile="What does not hold is evicted and asked for again; readers get the right "
        "bytes, or an error.",
        ends="Of kind `chunks` look at the cache's disk, of the others at the storage.",
        fault=(Growth('rlmm_read_mismatches_total{kind="chunks"}'),),
    ),
    Alert(
        name="RlmmCacheUnwritable",
        metric="rlmm_read_cache_writable",
        expr="rlmm_read_cache_writable == 0",
        lasting="10m",
        because="reads cost a request each until the cache's disk takes writes",
        meanwhile="Reads go on, slower and dearer.",
        ends="Make room on the cache's disk, or mend it.",
        fault=(Level("rlmm_read_cache_writable", bad=0, good=1),),
    ),
    # What is removed.
    Alert(
        name="RlmmRemovalsWait",
        metric="rlmm_cleaner_removals",
        expr="rlmm_cleaner_removals > 0",
        lasting="1d",
        because="deleted topics' data stays: `rlmm cleanup` says what it waits for",
        meanwhile="Objects that nobody reads stay, and cost money.",
        ends="As `rlmm cleanup` says: a metadata partition that is not ready, a hold, or the "
        "storage.",
        fault=(Level('rlmm_cleaner_removals{step="waiting"}'),),
    ),
    Alert(
        name="RlmmSegmentsStuck",
        metric="rlmm_cleaner_stuck_segments",
        expr="rlmm_cleaner_stuck_segments > 0",
        lasting="1d",
        because="objects stay that nobody reads: `rlmm cleanup` says what it waits for",
        meanwhile="They cost money, and nothing else.",
        ends="As `rlmm cleanup` says.",
        fault=(Level('rlmm_cleaner_stuck_segments{kind="copy",step="waiting"}'),),
    ),
    Alert(
        name="RlmmCleanerFails",
        metric="rlmm_cleaner_failures_total",
        expr="increase(rlmm_cleaner_failures_total[1h]) > 10",
        because="the storage refuses deletes: `rlmm cleanup`, `rlmm storage doctor`",
        meanwhile="Each is repeated.",
        ends="Allow `s3:DeleteObject`, or bring back the storage.",
        fault=(Growth("rlmm_cleaner_failures_total"),),
    ),
    Alert(
        name="RlmmTopicMarked",
        metric="rlmm_cleaner_topics_marked_total",
        expr="increase(rlmm_cleaner_topics_marked_total[1h]) > 0",
        because="remote data of a topic will go: is that topic meant to be gone?",
        meanwhile="Its objects go after `cleaner.observe.grace_seconds` and more looks at the "
        "cluster, not at once.",
        ends="If the topic was not to be deleted, stop the daemons before its time is over: "
        "`rlmm cleanup`.",
        fault=(Growth("rlmm_cleaner_topics_marked_total"),),
    ),
    # The socket.
    Alert(
        name="RlmmLimitReached",
        metric="rlmm_limit_reached_total",
        expr="increase(rlmm_limit_reached_total[10m]) > 0",
        because="a client asks for more than `[socket]` allows; the label is the key",
        meanwhile="It is refused or waits; the others are served.",
        ends="Find the client, or raise the key that the label names.",
        fault=(Growth('rlmm_limit_reached_total{limit="connections_max"}'),),
    ),
    Alert(
        name="RlmmMalformedFrames",
        metric="rlmm_frames_malformed_total",
        expr="increase(rlmm_frames_malformed_total[10m]) > 0",
        because="something that is not a client writes to the socket",
        meanwhile="Its connection is closed.",
        ends="Find it by the peer's uid in the daemon's log.",
        fault=(Growth("rlmm_frames_malformed_total"),),
    ),
)
