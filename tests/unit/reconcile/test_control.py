"""What the job opens of a storage: a run that only looks leaves nothing behind."""

import asyncio
from pathlib import Path

from rlmm_daemon.codec import marker
from rlmm_daemon.codec.marker import BucketMarker
from rlmm_daemon.config import parse
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.reconcile import control, evidence
from tests.unit.reconcile.configured import LOCAL


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
