"""Every scenario file answers as it is written, and every cause has its scenario."""

import re
from pathlib import Path

import pytest

from rlmm_daemon.core.explain import NAMES
from tests.scenario.harness import in_world
from tests.scenario.script import parse, rewritten

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_scenario_goes_as_written(path, request):
    text = path.read_text()
    answer = in_world(lambda harness: rewritten(parse(text), harness.run))
    if request.config.getoption("--rewrite", default=False):
        path.write_text(answer)
    else:
        assert answer == text


def test_every_cause_and_every_notice_has_a_scenario():
    told = "\n".join(path.read_text() for path in FILES)
    said = set(re.findall(r"^(?:\w+: |  also )(\w+)", told, re.MULTILINE))
    assert set(NAMES) - said == set()
