"""A tag on what is quarantined, for people and lifecycle rules that look at the bucket itself.

Only a sign: the manifest is what counts. Where the storage has no tags, or the keys may not set
them, or an object is gone meanwhile, nothing is lost by it.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from rlmm_daemon.config import Config, S3Storage
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.reconcile.read.s3_calls import S3Calls, Unsupported

TAG: Final = "rlmm-quarantined"
_AT_ONCE: Final = 16


def tag_all(config: Config, keys: Iterable[str], value: str | None) -> int:
    """Set the tag of each object, or take it away with None; return how many have it so now."""
    if not isinstance(config.storage, S3Storage):
        return 0
    every, calls = [*keys], S3Calls(config)
    # One first: a server without tags is asked once, not ten thousand times.
    if not every or not _tagged(calls, value, every[0]):
        return 0
    with ThreadPoolExecutor(_AT_ONCE) as workers:
        return 1 + sum(workers.map(partial(_tagged, calls, value), every[1:]))


def _tagged(calls: S3Calls, value: str | None, key: str) -> bool:
    try:
        calls.tag(key, TAG, value)
    except (Unsupported, RlmmError):
        return False
    return True
