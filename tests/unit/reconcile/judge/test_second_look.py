"""The second look: what a listing hinted at is dropped or stands by the object itself."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rlmm_daemon.config import load
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.judge.second_look import Confirm
from rlmm_daemon.reconcile.schema import FINDINGS
from tests.unit.reconcile.configured import LOCAL

RECORDED = 10


@pytest.fixture
def confirm(tmp_path: Path) -> Confirm:
    (tmp_path / "remote/orders").mkdir(parents=True)
    (tmp_path / "remote/_rlmm").mkdir()
    (tmp_path / "remote/_rlmm/marker.json").touch()
    config = tmp_path / "rlmm.toml"
    config.write_text(LOCAL.format(home=tmp_path))
    return Confirm(load(config))


def stands(confirm: Confirm, kind: str, key: str | None) -> bool:
    finding: dict[str, Any] = {**dict.fromkeys(FINDINGS.names)}
    finding |= {"kind": kind, "key": key, "recorded_bytes": RECORDED}
    (found,) = confirm([pa.RecordBatch.from_pylist([finding], schema=FINDINGS)])
    return bool(found.num_rows)


@pytest.mark.parametrize(
    ("kind", "gone", "whole", "other"),
    [
        ("missing_object", True, False, False),
        ("partial_segment", True, False, False),
        ("size_mismatch", False, False, True),
        ("orphan_object", False, True, True),
        ("deleted_but_present", False, True, True),
        ("unknown_key", False, True, True),
    ],
)
def test_a_finding_stands_only_if_the_object_itself_says_so(
    confirm: Confirm, tmp_path: Path, kind: str, *, gone: bool, whole: bool, other: bool
) -> None:
    path = tmp_path / "remote/orders/x.log"
    assert stands(confirm, kind, "orders/x.log") is gone
    path.write_bytes(bytes(RECORDED))
    assert stands(confirm, kind, "orders/x.log") is whole
    path.write_bytes(bytes(RECORDED + 1))
    assert stands(confirm, kind, "orders/x.log") is other


def test_many_findings_are_asked_one_by_one(confirm: Confirm, tmp_path: Path) -> None:
    (tmp_path / "remote/orders/1.log").write_bytes(bytes(RECORDED))
    rows = [
        {**dict.fromkeys(FINDINGS.names), "kind": "missing_object", "key": f"orders/{n}.log"}
        for n in range(3)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=FINDINGS)
    found = [row["key"] for each in confirm([batch, batch]) for row in each.to_pylist()]
    assert found == ["orders/0.log", "orders/2.log"] * 2


def test_what_has_no_place_is_missing_only_in_a_storage_that_is_there(
    confirm: Confirm, tmp_path: Path
) -> None:
    assert stands(confirm, "missing_object", None)
    (tmp_path / "remote").rename(tmp_path / "elsewhere")
    with pytest.raises(Incomplete, match="there is no _rlmm/marker"):
        stands(confirm, "missing_object", None)
