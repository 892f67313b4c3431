"""Modules on which acknowledged data hangs, and the tests that have to notice a change there."""

from dataclasses import dataclass
from typing import Final

EMBEDDED: Final = "rlmm_daemon/adapters/event_log/embedded"
LOCAL: Final = "rlmm_daemon/adapters/storage/local"
S3: Final = "rlmm_daemon/adapters/storage/s3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Modules that are mutated, and what is run for each mutant."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


GROUPS: Final = {
    "disposal": Group(
        modules=("rlmm_daemon/core/disposal",),
        tests=("tests/unit/core/disposal", "tests/unit/cleaner"),
    ),
    "fold": Group(modules=("rlmm_daemon/core/fold.py",), tests=("tests/unit/core",)),
    "follower": Group(
        modules=("rlmm_daemon/core/following.py", "rlmm_daemon/daemon/follower.py"),
        tests=("tests/unit/core/test_following.py", "tests/unit/manager"),
    ),
    "mending": Group(
        modules=("rlmm_daemon/daemon/mending.py", "rlmm_daemon/daemon/recovering.py"),
        tests=("tests/unit/manager",),
    ),
    "embedded": Group(
        modules=(f"{EMBEDDED}/recovery.py", f"{EMBEDDED}/repair.py"),
        tests=(
            "tests/unit/event_log/test_embedded.py",
            "tests/contract/test_event_log_embedded.py",
        ),
    ),
    "quarantine": Group(
        modules=("rlmm_daemon/reconcile/quarantine.py", "rlmm_daemon/reconcile/executing.py"),
        tests=("tests/unit/reconcile/test_quarantine.py",),
    ),
    "storage": Group(
        modules=(f"{LOCAL}/copying.py", f"{LOCAL}/tree.py", f"{S3}/upload.py", f"{S3}/deleting.py"),
        tests=("tests/unit/storage", "tests/unit/daemon/test_copier.py"),
    ),
}
