"""Modules on which acknowledged data hangs, and the tests that have to notice a change there."""

from dataclasses import dataclass
from typing import Final

EMBEDDED: Final = "rlmm_daemon/adapters/event_log/embedded"
LOCAL: Final = "rlmm_daemon/adapters/storage/local"
S3: Final = "rlmm_daemon/adapters/storage/s3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Modules that are mutated, and the tests of which those run that reach a mutant."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


GROUPS: Final = {
    "disposal": Group(
        modules=("rlmm_daemon/core/disposal",),
        tests=(
            "tests/unit/core/disposal",
            "tests/unit/daemon/cleaner",
            "tests/unit/daemon/following/test_given_up.py",
            "tests/unit/core/readiness/test_marker_rebuilding.py",
            "tests/unit/daemon/bucket/test_bucket.py",
        ),
    ),
    "fold": Group(
        modules=(
            "rlmm_daemon/core/fold/fold.py",
            "rlmm_daemon/core/fold/cache.py",
            "rlmm_daemon/core/fold/common_events.py",
            "rlmm_daemon/core/fold/epoch_index.py",
            "rlmm_daemon/core/fold/lifecycle.py",
            "rlmm_daemon/core/fold/segment_table.py",
            "rlmm_daemon/core/fold/validation.py",
        ),
        tests=(
            "tests/unit/core/fold/test_fold.py",
            "tests/unit/core/fold/test_held.py",
            "tests/unit/core/explain/test_uncertain.py",
            "tests/unit/core/fold/test_copy_runs.py",
            "tests/unit/core/fold/test_fold_journal.py",
            "tests/unit/core/fold/test_histories.py",
            "tests/unit/core/fold/test_deferred_free.py",
            "tests/unit/core/fold/test_kafka_tables.py",
            "tests/unit/core/fold/test_deviations.py",
            "tests/unit/core/fold/test_lifecycle.py",
            "tests/unit/core/fold/test_epochs.py",
            "tests/unit/core/fold/test_cover.py",
            "tests/unit/core/fold/test_walks.py",
            "tests/unit/daemon/operator/test_held.py",
            "tests/unit/daemon/following/test_slices.py",
            "tests/unit/daemon/following/test_mapped.py",
        ),
    ),
    "following": Group(
        modules=(
            "rlmm_daemon/core/readiness/following.py",
            "rlmm_daemon/core/readiness/follower_roles.py",
            "rlmm_daemon/core/readiness/follower_losses.py",
        ),
        tests=("tests/unit/core/readiness/test_following.py",),
    ),
    "follower": Group(
        modules=(
            "rlmm_daemon/daemon/following/follower.py",
            "rlmm_daemon/daemon/following/follower_state.py",
            "rlmm_daemon/daemon/following/batches.py",
        ),
        tests=("tests/unit/daemon/following", "tests/unit/daemon/metadata"),
    ),
    "mending": Group(
        modules=(
            "rlmm_daemon/daemon/operator/mending.py",
            "rlmm_daemon/daemon/operator/recovering.py",
            "rlmm_daemon/daemon/operator/risen.py",
            "rlmm_daemon/daemon/following/history.py",
        ),
        tests=(
            "tests/unit/daemon/operator/test_recovering.py",
            "tests/unit/daemon/operator/test_mending.py",
            "tests/unit/daemon/following",
            "tests/unit/daemon/metadata",
            "tests/unit/daemon/operator",
        ),
    ),
    "embedded": Group(
        modules=(f"{EMBEDDED}/recovery.py", f"{EMBEDDED}/repair.py"),
        tests=(
            "tests/unit/adapters/event_log",
            "tests/contract/test_event_log_embedded.py",
        ),
    ),
    "quarantine": Group(
        modules=("rlmm_daemon/reconcile/act/quarantine.py",),
        tests=(
            "tests/unit/reconcile/act/test_quarantine.py",
            "tests/unit/reconcile/act/test_quarantine_edges.py",
        ),
    ),
    "executing": Group(
        modules=(
            "rlmm_daemon/reconcile/act/deletions.py",
            "rlmm_daemon/reconcile/act/last_look.py",
            "rlmm_daemon/reconcile/act/steps.py",
        ),
        tests=(
            "tests/unit/reconcile/act/test_deletions.py",
            "tests/unit/reconcile/act/test_steps.py",
            "tests/reconcile/test_driver.py",
            "tests/reconcile/test_executing.py",
        ),
    ),
    "guards": Group(
        modules=("rlmm_daemon/reconcile/judge/guards.py",),
        tests=(
            "tests/unit/reconcile/judge/test_guards.py",
            "tests/unit/reconcile/judge/test_guards_edges.py",
        ),
    ),
    "storage": Group(
        modules=(f"{LOCAL}/copying.py", f"{LOCAL}/tree.py", f"{S3}/upload.py", f"{S3}/deleting.py"),
        tests=(
            "tests/unit/adapters/storage",
            "tests/contract/test_storage_local.py",
            "tests/unit/daemon/copying/test_copier.py",
        ),
    ),
    "copies": Group(
        modules=(
            "rlmm_daemon/daemon/copying/copier.py",
            "rlmm_daemon/daemon/copying/copy_job.py",
            "rlmm_daemon/daemon/copying/late_objects.py",
            "rlmm_daemon/daemon/copying/removal.py",
            "rlmm_daemon/daemon/copying/sources.py",
            "rlmm_daemon/daemon/copying/upload.py",
        ),
        tests=(
            "tests/unit/daemon/copying/test_copy_promises.py",
            "tests/unit/daemon/copying/test_roll_back.py",
            "tests/unit/daemon/copying/test_sources.py",
            "tests/unit/daemon/copying/test_copier.py",
            "tests/unit/daemon/copying/test_copy_explained.py",
            "tests/unit/daemon/bucket/test_deletes_under_way.py",
        ),
    ),
    "marker": Group(
        modules=(
            "rlmm_daemon/daemon/bucket/acceptance.py",
            "rlmm_daemon/daemon/bucket/bucket.py",
            "rlmm_daemon/daemon/bucket/live_marker.py",
            "rlmm_daemon/daemon/bucket/storage_past.py",
            "rlmm_daemon/core/readiness/marker_rebuilding.py",
            "rlmm_daemon/core/readiness/marker_verdict.py",
        ),
        tests=(
            "tests/unit/daemon/bucket/test_bucket.py",
            "tests/unit/daemon/bucket/test_marker_promises.py",
            "tests/unit/daemon/bucket/test_marker_edges.py",
            "tests/unit/daemon/bucket/test_storage_past.py",
            "tests/unit/core/readiness/test_marker_rebuilding.py",
            "tests/unit/daemon/bucket/test_recorded_log.py",
        ),
    ),
}
