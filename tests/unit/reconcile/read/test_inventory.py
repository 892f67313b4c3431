"""A report counts only if every file that its manifest names is there as it was written."""

import hashlib
import json
from pathlib import Path

import pytest

from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.read import inventory

NOW = 1_795_000_000_000
DATA = b"PAR1 and so on"


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.parquet").write_bytes(DATA)
    file = tmp_path / "manifest.json"
    told = {
        "sourceBucket": "tier",
        "creationTimestamp": str(NOW),
        "fileFormat": "Parquet",
        "fileSchema": "message s3 {...}",
        "files": [
            {
                "key": "tier/daily/data/one.parquet",
                "size": len(DATA),
                "MD5checksum": hashlib.md5(DATA, usedforsecurity=False).hexdigest(),
            }
        ],
    }
    file.write_text(json.dumps(told))
    return file


def test_a_whole_report_is_found_below_its_manifest(manifest: Path) -> None:
    found = inventory.manifest_of(str(manifest), bucket="tier", now_ms=NOW)
    assert found.paths == (str(manifest.parent / "data" / "one.parquet"),)
    assert (found.form, found.created_ms) == ("PARQUET", NOW)


def test_a_report_from_the_future_would_age_every_object(manifest: Path) -> None:
    with pytest.raises(Incomplete, match="in the future"):
        inventory.manifest_of(str(manifest), bucket="tier", now_ms=NOW - 1)


@pytest.mark.parametrize(
    ("data", "reason"),
    [(DATA[:-1], "bytes long"), (b"", "bytes long"), (DATA[:-1] + b"?", "damaged")],
)
def test_a_data_file_that_was_copied_by_half_is_an_error(
    manifest: Path, data: bytes, reason: str
) -> None:
    (manifest.parent / "data" / "one.parquet").write_bytes(data)
    with pytest.raises(Incomplete, match=reason):
        inventory.manifest_of(str(manifest), bucket="tier", now_ms=NOW)


def test_a_data_file_that_is_not_there_is_an_error(manifest: Path) -> None:
    (manifest.parent / "data" / "one.parquet").unlink()
    with pytest.raises(Incomplete, match="is not below"):
        inventory.manifest_of(str(manifest), bucket="tier", now_ms=NOW)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"files": [{"key": "x"}]}'])
def test_what_is_no_manifest_is_an_error(manifest: Path, text: str) -> None:
    manifest.write_text(text)
    with pytest.raises(Incomplete, match="no inventory manifest"):
        inventory.manifest_of(str(manifest), bucket="tier", now_ms=NOW)


def test_a_report_of_another_bucket_says_nothing_of_this_one(manifest: Path) -> None:
    """Its objects would count among those that a night may touch a share of."""
    with pytest.raises(Incomplete, match="is of the bucket 'tier', and the storage is 'other'"):
        inventory.manifest_of(str(manifest), bucket="other", now_ms=NOW)
    assert inventory.manifest_of(str(manifest), bucket=None, now_ms=NOW).paths
