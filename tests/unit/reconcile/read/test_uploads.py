"""Incomplete uploads are looked for where the daemons' objects lie, and nowhere else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.config import parse
from rlmm_daemon.config.reconcile import (
    InventoryListing,
    Listing,
    Output,
    ReconcileConfig,
    StorageListing,
)
from rlmm_daemon.ports.storage import UploadInfo
from rlmm_daemon.reconcile import control
from rlmm_daemon.reconcile.night import Run
from rlmm_daemon.reconcile.read import inventory, listing, sources
from rlmm_daemon.reconcile.read.inventory import Report
from tests.support.memory_storage import MemoryBucket, MemoryStorage
from tests.unit.reconcile.configured import LOCAL, layouts

KEYS = ("tier/orders/1.log", "tier/kept/2.log", "tiers/3.log", "backup/orders/1.log", "4.log")


class Frame:
    """What a listing writes."""

    write = property(lambda self: self)

    def parquet(self, path: str) -> None:
        Path(path.removeprefix("file://")).mkdir(parents=True)


@pytest.mark.parametrize("kind", [StorageListing(), InventoryListing(manifest="/none")])
@pytest.mark.parametrize(
    ("prefixes", "found"),
    [
        (["tier"], KEYS[:2]),
        (["tier", "tier/kept", "backup"], [KEYS[3], *KEYS[:2]]),
        (["tier", "{hash:16}/tier"], KEYS),
        ([], ()),
    ],
)
def test_uploads_of_others_in_the_bucket_are_theirs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Listing,
    prefixes: list[str],
    found: list[str],
) -> None:
    bucket = MemoryBucket()
    for key in KEYS:
        bucket.uploads[key] = UploadInfo(key=key, upload_id="u", initiated_ms=7)

    @asynccontextmanager
    async def opened(*_: object, **_more: object) -> AsyncIterator[MemoryStorage]:
        yield MemoryStorage(bucket, clock=SystemClock())

    report = Report(created_ms=1, objects=Frame())
    monkeypatch.setattr(control, "opened", opened)
    monkeypatch.setattr(listing, "slices", lambda *_: [])
    monkeypatch.setattr(sources, "objects", lambda *_: Frame())
    monkeypatch.setattr(inventory, "read", lambda *_, **_more: report)
    config = ReconcileConfig(output=Output(directory=str(tmp_path)), listing=kind)
    run = Run(None, config, parse(LOCAL.format(home=tmp_path)),
              execute=False, now_ms=0, progress=print)  # fmt: skip
    run._list(layouts(*prefixes))
    rows = pq.read_table(run.directory / "work/objects/uploads.parquet").to_pylist()
    assert [(row["key"], row["upload_id"], row["modified_ms"]) for row in rows] == [
        (key, "u", 7) for key in found
    ]
