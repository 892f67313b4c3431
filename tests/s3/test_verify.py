"""`rlmm storage verify` beside a daemon that runs on a real S3."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.dev.stack.fault_proxy import Fault, Kind
from rlmm_daemon.adapters.storage.s3 import leftovers
from rlmm_daemon.domain.ids import uuid_text
from tests.support.fork_server import ForkServer
from tests.support.s3_daemon import ProxyThread, Tier, configure
from tests.support.s3_world import needs_s3, s3_server
from tests.support.stocked_daemon import Stocked, make

pytestmark = needs_s3
__all__ = ["s3_server"]


@pytest.fixture
def it(tmp_path: Path, forks: ForkServer, proxy: ProxyThread, tier: Tier) -> Iterator[Stocked]:
    config = configure(tmp_path, proxy.endpoint, tier.bucket, "{hash:8}/tiered")
    stocked = make(tmp_path, forks, config=config)
    with stocked.daemon:
        yield stocked


def verified(it: Stocked, monkeypatch: pytest.MonkeyPatch, *more: str) -> tuple[int, Any]:
    # As an operator does: in the directory that the configuration's paths are relative to.
    monkeypatch.chdir(it.daemon.directory)
    words = ["storage", "verify", "--config", "rlmm.toml", *more]
    run = it.rlmm(*words)
    return run.exit_code, it.json(*words)


def test_bucket_and_log_agree_until_somebody_meddles(it, tier, monkeypatch):
    it.stock()
    code, found = verified(it, monkeypatch)
    assert (code, found["findings"], found["segments"]) == (0, [], 6)
    assert found["objects"] == len([k for k in tier.keys_there() if not k.startswith("_rlmm/")])
    lost, half = it.copied(0)[0].metadata, it.copied(1)[0].metadata
    [log] = [key for key in tier.keys_there(lost.segment_id) if key.endswith(".log")]
    [index] = [key for key in tier.keys_there(half.segment_id) if key.endswith(".index")]
    for key in (log, index):
        tier.admin.delete_object(Bucket=tier.bucket, Key=key)
    tier.admin.put_object(Bucket=tier.bucket, Key="somebody/else", Body=b"x")
    code, found = verified(it, monkeypatch)
    assert code == 1
    rows = {(row["kind"], row["key"], row["segment_id"]) for row in found["findings"]}
    assert rows == {
        ("missing_object", log, uuid_text(lost.segment_id)),
        ("partial_segment", index, uuid_text(half.segment_id)),
        ("unknown_key", "somebody/else", None),
    }
    _, of_none = verified(it, monkeypatch, "--topic", "another")
    assert of_none["findings"] == []


def test_what_a_listing_lacks_is_looked_at_before_it_is_called_missing(
    it, tier, proxy, monkeypatch
):
    it.stock()
    nothing = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
    blind = Fault(kind=Kind.ANSWER, operation="ListObjectsV2", status=200, body=nothing)
    proxy.plant(blind)
    code, found = verified(it, monkeypatch)
    assert blind.hits
    assert (code, found["findings"], found["objects"], found["segments"]) == (0, [], 0, 6)
    [log, *_] = [key for key in tier.keys_there() if key.endswith(".log")]
    tier.admin.delete_object(Bucket=tier.bucket, Key=log)
    code, found = verified(it, monkeypatch)
    assert (code, [row["key"] for row in found["findings"]]) == (1, [log])


def test_it_aborts_nothing_however_old_it_looks(it, tier, monkeypatch):
    it.stock()
    key = next(key for key in tier.keys_there() if key.endswith(".log"))
    tier.admin.create_multipart_upload(Bucket=tier.bucket, Key=key)
    # A daemon that started now would sweep it.
    monkeypatch.setattr(leftovers, "MARGIN_SECONDS", -1e6)
    code, found = verified(it, monkeypatch)
    assert (code, found["findings"]) == (0, [])
    assert tier.uploads() == [key]
    it.daemon.stop()
