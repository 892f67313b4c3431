"""The dashboard before Grafana's own schema, by the checker that its developers generate from it.

Asked for by RLMM_TEST_MONITORING=1; `make test-monitoring` also builds the checker. It knows every
field and its type; values of a list of words, as a legend's place, it takes as they are.
"""

import copy
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.monitoring import dashboard
from tests.support.prometheus import TOOLS

pytestmark = pytest.mark.skipif(
    not os.environ.get("RLMM_TEST_MONITORING"),
    reason="needs the checker: make test-monitoring",
)
MODEL: dict[str, Any] = json.loads(dashboard.dashboard())


def complaint(model: dict[str, Any], directory: Path) -> str:
    file = directory / "dashboard.json"
    file.write_text(json.dumps(model))
    ran = subprocess.run(
        [TOOLS / "dashboard", file], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ran.returncode == 0) == (not ran.stderr)
    return ran.stderr


def test_the_dashboard_is_one_by_grafanas_schema(tmp_path: Path):
    assert complaint(MODEL, tmp_path) == ""


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda m: m.pop("schemaVersion"), "schemaVersion: required field"),
        (lambda m: m["time"].pop("to"), "time.to: required field"),
        (lambda m: m["panels"][1].update(heading="x"), "unexpected field 'heading'"),
        (lambda m: m["panels"][1]["options"].pop("graphMode"), "graphMode: required field"),
        (lambda m: m["panels"][2]["options"].pop("tooltip"), "tooltip: required field"),
        (lambda m: m["panels"][2]["fieldConfig"]["defaults"].update(unit=3), "defaults.unit"),
        (lambda m: m["panels"][2]["targets"][0].pop("expr"), "expr: required field"),
        (lambda m: m["panels"][2]["targets"][0].update(query="x"), "unexpected field 'query'"),
    ],
)
def test_a_model_that_is_none_is_found_out(
    tmp_path: Path, harm: Callable[[dict[str, Any]], object], said: str
):
    model = copy.deepcopy(MODEL)
    harm(model)
    assert said in complaint(model, tmp_path)
