"""What the job opens of a storage: a run that only looks leaves nothing behind."""

import asyncio
import os
from pathlib import Path

from rlmm_daemon.codec import marker
from rlmm_daemon.codec.marker import BucketMarker
from rlmm_daemon.config import parse
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.reconcile import control
from rlmm_daemon.reconcile.act import evidence
from tests.unit.reconcile.configured import LOCAL
from tests.unit.reconcile.judge.test_guards import presence


def test_whoever_only_looks_writes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "remote"
    (root / "_rlmm").mkdir(parents=True)
    made = BucketMarker(cluster_id="c", partition_count=1, metadata_topic_id=uuid_text(bytes(16)))
    (root / "_rlmm" / "marker.json").write_bytes(marker.encode(made))
    before = sorted(tmp_path.rglob("*"))
    daemon = parse(LOCAL.format(home=tmp_path))

    async def look() -> None:
        assert (await evidence.ours(daemon)).marker == made
        async with control.opened(daemon, reads_only=True) as storage:
            assert [page async for page in storage.list_uploads("")] == []

    asyncio.run(look())
    assert sorted(tmp_path.rglob("*")) == before


def test_a_presence_file_was_written_when_the_storage_took_it(tmp_path: Path) -> None:
    """Whatever its daemon's clock says; and so was the marker, for all that stands in it."""
    home = tmp_path / "remote" / "_rlmm"
    (home / "daemons").mkdir(parents=True)
    made = BucketMarker(cluster_id="c", partition_count=1, metadata_topic_id=uuid_text(bytes(16)))
    for name, data, at in (
        ("marker.json", marker.encode(made), 2_000),
        ("daemons/1.json", marker.encode(presence(written_at_ms=1)), 1_000),
        ("daemons/2.json", b"{", 1_000),
    ):
        (home / name).write_bytes(data)
        os.utime(home / name, (at, at))
    told = asyncio.run(evidence.ours(parse(LOCAL.format(home=tmp_path))))
    assert told.marker_ms == 2_000_000
    written = {key: said and said.written_at_ms for key, said in told.presences.items()}
    assert written == {"_rlmm/daemons/1.json": 1_000_000, "_rlmm/daemons/2.json": None}
