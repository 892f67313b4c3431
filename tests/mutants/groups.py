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
            "tests/unit/cleaner",
            "tests/unit/manager/test_given_up.py",
            "tests/unit/core/test_marker_rebuilding.py",
            "tests/unit/daemon/test_bucket.py",
        ),
    ),
    "fold": Group(
        modules=("rlmm_daemon/core/fold/fold.py",),
        tests=(
            "tests/unit/core/test_fold.py",
            "tests/unit/core/test_held.py",
            "tests/unit/core/test_uncertain.py",
            "tests/unit/core/test_copy_runs.py",
            "tests/unit/core/test_fold_journal.py",
            "tests/unit/core/test_histories.py",
            "tests/unit/core/test_leavings.py",
            "tests/unit/manager/test_held.py",
            "tests/unit/manager/test_slices.py",
            "tests/unit/manager/test_mapped.py",
        ),
    ),
    "following": Group(
        modules=("rlmm_daemon/core/readiness/following.py",),
        tests=("tests/unit/core/test_following.py",),
    ),
    "follower": Group(
        modules=("rlmm_daemon/daemon/following/follower.py",),
        tests=("tests/unit/manager",),
    ),
    "mending": Group(
        modules=(
            "rlmm_daemon/daemon/operator/mending.py",
            "rlmm_daemon/daemon/operator/recovering.py",
            "rlmm_daemon/daemon/following/history.py",
        ),
        tests=(
            "tests/unit/daemon/test_putting_back.py",
            "tests/unit/daemon/test_mending.py",
            "tests/unit/manager",
        ),
    ),
    "embedded": Group(
        modules=(f"{EMBEDDED}/recovery.py", f"{EMBEDDED}/repair.py"),
        tests=(
            "tests/unit/event_log",
            "tests/contract/test_event_log_embedded.py",
        ),
    ),
    "quarantine": Group(
        modules=("rlmm_daemon/reconcile/act/quarantine.py",),
        tests=(
            "tests/unit/reconcile/test_quarantine.py",
            "tests/unit/reconcile/test_quarantine_edges.py",
        ),
    ),
    "executing": Group(
        modules=(
            "rlmm_daemon/reconcile/act/deletions.py",
            "rlmm_daemon/reconcile/act/last_look.py",
        ),
        tests=(
            "tests/unit/reconcile/test_executing_batches.py",
            "tests/reconcile/test_executing.py",
        ),
    ),
    "guards": Group(
        modules=("rlmm_daemon/reconcile/judge/guards.py",),
        tests=(
            "tests/unit/reconcile/test_guards.py",
            "tests/unit/reconcile/test_guards_edges.py",
        ),
    ),
    "storage": Group(
        modules=(f"{LOCAL}/copying.py", f"{LOCAL}/tree.py", f"{S3}/upload.py", f"{S3}/deleting.py"),
        tests=(
            "tests/unit/storage",
            "tests/contract/test_storage_local.py",
            "tests/unit/daemon/test_copier.py",
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
            "tests/unit/daemon/test_copy_promises.py",
            "tests/unit/daemon/test_roll_back.py",
            "tests/unit/daemon/test_sources.py",
            "tests/unit/daemon/test_copier.py",
            "tests/unit/daemon/test_copy_explained.py",
            "tests/unit/daemon/test_removing.py",
        ),
    ),
    "marker": Group(
        modules=(
            "rlmm_daemon/daemon/bucket/bucket.py",
            "rlmm_daemon/daemon/bucket/storage_past.py",
            "rlmm_daemon/core/readiness/marker_rebuilding.py",
            "rlmm_daemon/core/readiness/marker_verdict.py",
        ),
        tests=(
            "tests/unit/daemon/test_bucket.py",
            "tests/unit/daemon/test_marker_promises.py",
            "tests/unit/daemon/test_storage_past.py",
            "tests/unit/core/test_marker_rebuilding.py",
            "tests/unit/manager/test_recorded_log.py",
        ),
    ),
}
