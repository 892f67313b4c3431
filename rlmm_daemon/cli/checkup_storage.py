"""The check of `rlmm doctor` that asks the remote storage: whether its marker is in order."""

import asyncio
import random

from rlmm_daemon.cli.finding import Finding
from rlmm_daemon.cli.verifying import kept_marker, rows_of
from rlmm_daemon.codec.marker import BucketMarker
from rlmm_daemon.config import Config
from rlmm_daemon.core import phrases
from rlmm_daemon.core.marker_verdict import REBUILD, why_remade
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.wiring import adapters

_CHECK = "bucket marker"


async def marker(config: Config, seconds: float) -> list[Finding]:
    """Hold the marker against this cluster and the daemon's copy; nothing without a storage."""
    made = adapters.storage_of(config, random.Random(), reads_only=True)  # noqa: S311 - jitter
    if made is None:
        return []
    try:
        async with asyncio.timeout(seconds):
            present = await made.bucket.peek()
        return [_judged(config, present, await kept_marker(config))]
    except TimeoutError:
        return [Finding(check=_CHECK, verdict="failed", found=f"no answer within {seconds:g} s")]
    except RlmmError as error:
        return [Finding(check=_CHECK, verdict="failed", found=error.message)]
    finally:
        await made.backend.close()


def _judged(config: Config, present: BucketMarker | None, kept: BucketMarker | None) -> Finding:
    ours = config.daemon.cluster_id
    if present is None:
        if kept is None:
            return Finding(check=_CHECK, verdict="ok", found="none yet: a first start makes it")
        return _failed(f"it is gone; the daemon knew {len(kept.layouts)} layouts")
    if ours not in (None, present.cluster_id):
        found = f"of cluster {present.cluster_id}, daemon.cluster_id is {ours}"
        advice = "give each cluster a bucket or directory of its own"
        return Finding(check=_CHECK, verdict="failed", found=found, advice=advice)
    if kept is not None and (why := why_remade(rows_of(kept), rows_of(present))) is not None:
        return _failed(f"another one than the daemon knew: {why}")
    found = phrases.number(len(present.layouts), "layout")
    if present.held:
        holds = phrases.number(len(present.held), "hold")
        found += f", {holds} on what was stored (rlmm partition end-hold --all shows them)"
    return Finding(check=_CHECK, verdict="ok", found=found)


def _failed(found: str) -> Finding:
    advice = f"restore it, or run: {REBUILD}"
    return Finding(check=_CHECK, verdict="failed", found=found, advice=advice)
